//! Whatever the memory: every search gives the same blocks for one slice, for chunks of any size
//! and for windows, and the blocks ascend, do not overlap, and have magics around them.
#![no_main]

use cairn_wire::heapprof::{
    Alignment, Block, HeapprofLayout, MAX_CALLERS, MAX_OVERLAP_BYTES, Search, StreamSearcher,
};

type Found = (u64, u64, Vec<u64>);

fn found(block: Block<'_>) -> Found {
    (block.offset(), block.size_bytes(), block.callers().map(|caller| caller.value()).collect())
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((&[choice, chunk_bytes], memory)) = data.split_first_chunk() else { return };
    let layout = HeapprofLayout::ALL[usize::from(choice % 4)];
    let search = match choice / 4 % 3 {
        0 => Search::compat(layout),
        1 => Search::robust(layout),
        _ => Search::robust(layout).alignment(Alignment::Byte),
    };
    let mut blocks = search.blocks(memory);
    let whole: Vec<Found> = blocks.by_ref().map(found).collect();
    let mut end = 0;
    for (offset, _, callers) in &whole {
        assert!(*offset >= end && callers.len() <= MAX_CALLERS);
        end = offset + ((callers.len() + 2) * layout.word_bytes()) as u64;
        assert!(end + 4 <= memory.len() as u64);
    }

    let mut stream = StreamSearcher::new(search);
    let mut streamed = Vec::new();
    for chunk in memory.chunks(usize::from(chunk_bytes) * 8 + 1) {
        stream.push(chunk, |block| streamed.push(found(block)));
    }
    assert_eq!(stream.finish(|block| streamed.push(found(block))), blocks.findings());
    assert_eq!(streamed, whole);

    let mut searcher = search.searcher();
    let mut windowed = Vec::new();
    let mut start = 0;
    loop {
        let end = (start + MAX_OVERLAP_BYTES + 1 + usize::from(chunk_bytes)).min(memory.len());
        let last = end == memory.len();
        while let Some(block) = searcher.next_block(&memory[start..end], start as u64, last).unwrap() {
            windowed.push(found(block));
        }
        if last {
            break;
        }
        start = end - MAX_OVERLAP_BYTES;
    }
    assert_eq!(windowed, whole);
});
