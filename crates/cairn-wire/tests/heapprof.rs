//! heapprof blocks: the conformance vectors and properties.

mod support;

use std::collections::BTreeMap;
use std::fmt::Write;

use cairn_format::{AbsoluteAddress, CountingSink, SliceSink};
use cairn_wire::heapprof::{
    Alignment, Block, CallerCounts, HeaderWriter, HeapprofLayout, HeapprofWriteErrorKind, MAX_CALLERS,
    MAX_OVERLAP_BYTES, Search, SearchFindings, StreamSearcher, percent, write_cluster,
};
use proptest::prelude::*;
use serde_json::Value;
use support::mutate::assert_changes_are_noticed;
use support::{cases, hex, name, number, numbers, text, vector_path};

/// Offset, size and callers of a block, free of the memory it was found in.
#[derive(Clone, PartialEq, Debug)]
struct Found {
    offset: u64,
    size_bytes: u64,
    callers: Vec<u64>,
}

impl From<Block<'_>> for Found {
    fn from(block: Block<'_>) -> Self {
        let callers: Vec<_> = block.callers().map(AbsoluteAddress::value).collect();
        assert_eq!(callers.len(), block.caller_count());
        Self { offset: block.offset(), size_bytes: block.size_bytes(), callers }
    }
}

fn search_slice(search: Search, memory: &[u8]) -> (Vec<Found>, SearchFindings) {
    let mut blocks = search.blocks(memory);
    let found = blocks.by_ref().map(Found::from).collect();
    (found, blocks.findings())
}

fn search_chunks(search: Search, memory: &[u8], chunk_sizes: &[usize]) -> (Vec<Found>, SearchFindings) {
    let mut stream = StreamSearcher::new(search);
    let mut found = Vec::new();
    let mut rest = memory;
    for &size in chunk_sizes.iter().cycle() {
        let (chunk, behind) = rest.split_at(size.min(rest.len()));
        stream.push(chunk, |block| found.push(block.into()));
        rest = behind;
        if rest.is_empty() {
            break;
        }
    }
    let findings = stream.finish(|block| found.push(block.into()));
    (found, findings)
}

fn search_windows(search: Search, memory: &[u8], window_bytes: usize) -> (Vec<Found>, SearchFindings) {
    let mut searcher = search.searcher();
    let mut found = Vec::new();
    let mut start = 0;
    loop {
        let end = (start + window_bytes).min(memory.len());
        let last = end == memory.len();
        while let Some(block) = searcher.next_block(&memory[start..end], start as u64, last).unwrap() {
            found.push(block.into());
        }
        if last {
            return (found, searcher.findings());
        }
        start = end - MAX_OVERLAP_BYTES;
    }
}

/// Returns all ways to search must agree.
fn search_all_ways(search: Search, memory: &[u8]) -> (Vec<Found>, SearchFindings) {
    let whole = search_slice(search, memory);
    for chunk_sizes in [&[1][..], &[3, 1, 8], &[64, 0], &[797, 5], &[1599, 1601], &[4000]] {
        assert_eq!(search_chunks(search, memory, chunk_sizes), whole, "chunks of {chunk_sizes:?}");
    }
    for window_bytes in [MAX_OVERLAP_BYTES + 1, 1000, 3001] {
        assert_eq!(search_windows(search, memory, window_bytes), whole, "windows of {window_bytes}");
    }
    whole
}

fn memory(case: &Value) -> Vec<u8> {
    let Some(file) = case["memory_file"].as_str() else { return hex(text(case, "memory_hex")) };
    let memory = std::fs::read(vector_path(file)).unwrap();
    assert_eq!(memory.len() as u64, number(&case["memory_bytes"]), "{}", name(case));
    memory
}

fn layout(case: &Value) -> HeapprofLayout {
    match (number(&case["word_bits"]), text(case, "endian")) {
        (32, "little") => HeapprofLayout::LittleEndian32,
        (64, "little") => HeapprofLayout::LittleEndian64,
        (32, "big") => HeapprofLayout::BigEndian32,
        (64, "big") => HeapprofLayout::BigEndian64,
        other => panic!("{}: {other:?}", name(case)),
    }
}

fn expected(blocks: &Value) -> Vec<Found> {
    let blocks = blocks.as_array().unwrap_or_else(|| panic!("not a list: {blocks}"));
    let found = |block: &Value| Found {
        offset: number(&block["offset"]),
        size_bytes: number(&block["size"]),
        callers: numbers(&block["callers"]),
    };
    blocks.iter().map(found).collect()
}

/// Returns the reference's report; `None` where it divides by zero or has nothing to say.
fn report(blocks: &[Found]) -> Option<String> {
    let mut clusters = BTreeMap::<&[u64], Vec<u64>>::new();
    for block in blocks {
        clusters.entry(&block.callers).or_default().push(block.size_bytes);
    }
    let sum = |sizes: &[u64]| sizes.iter().map(|&size| u128::from(size)).sum::<u128>();
    let total = clusters.values().map(|sizes| sum(sizes)).sum();
    let mut sorted: Vec<_> = clusters.iter().map(|(callers, sizes)| (sum(sizes), callers, sizes)).collect();
    sorted.sort();
    let mut text = String::new();
    for (sum, callers, sizes) in sorted.into_iter().rev() {
        let callers = callers.iter().copied().map(AbsoluteAddress::new);
        write_cluster(
            &mut text,
            percent(sum, total)?,
            sum,
            sizes.iter().copied(),
            callers,
            |out, address| write!(out, "sym_{:x}", address.value()),
        )
        .unwrap();
    }
    (!text.is_empty()).then_some(text)
}

// Failed with: unnoticed changes of `memory_bytes` and of what lies between blocks.
#[test]
fn heapprof_vectors_hold_and_every_field_is_judged() {
    assert_changes_are_noticed(
        &cases("heapprof.json", None),
        check,
        &[("-/memory_hex", 65, "input: memory outside of blocks, and the padding in front of users' bytes")],
    );
}

fn check(case: &Value) {
    {
        let case_name = name(case);
        assert!(case["group"].is_null(), "{case_name}: a group this test does not know");
        let (memory, layout) = (memory(case), layout(case));

        let (compat, findings) = search_all_ways(Search::compat(layout), &memory);
        match case["reference_raises"].as_str() {
            None => {
                assert_eq!(compat, expected(&case["reference_blocks"]), "{case_name}");
                assert_eq!(findings, SearchFindings::default(), "{case_name}");
                assert_eq!(report(&compat).as_deref(), case["reference_report"].as_str(), "{case_name}");
            }
            // Where the reference stops with an error for want of a size, the blocks around it are
            // found all the same.
            Some(error) => {
                assert_eq!(error, "struct.error", "{case_name}");
                assert!(case["reference_blocks"].is_null(), "{case_name}");
                assert_eq!(compat, expected(&case["robust_blocks"]), "{case_name}");
                assert_eq!(findings.adjacent_magics, 1, "{case_name}");
                assert!(findings.first_adjacent_magics.is_some(), "{case_name}");
            }
        }

        let alignment = match &case["robust_alignment"] {
            Value::Null => Alignment::Word,
            bytes => match number(bytes) {
                1 => Alignment::Byte,
                bytes if bytes as usize == layout.word_bytes() => Alignment::Word,
                other => panic!("{case_name}: alignment {other}"),
            },
        };
        let (robust, _) = search_all_ways(Search::robust(layout).alignment(alignment), &memory);
        match &case["robust_blocks"] {
            Value::String(same) => {
                assert_eq!(same, "same as reference_blocks", "{case_name}");
                assert_eq!(robust, expected(&case["reference_blocks"]), "{case_name}");
            }
            list => assert_eq!(robust, expected(list), "{case_name}"),
        }
    }
}

#[test]
fn heapprof_caller_count_exposes_chance_finds() {
    let case = cases("heapprof.json", None).into_iter().find(|case| case["id"] == "heapprof-p039").unwrap();
    let mut memory = memory(&case);
    memory.extend(b"HeaP\0\0\0\0\x11\0\0\0\0\0\0\0ProF\0\0\0\0");
    let blocks = Search::robust(HeapprofLayout::LittleEndian64).blocks(&memory);
    let counts: CallerCounts = blocks.clone().collect();
    assert_eq!(counts.most_frequent(), Some(4));
    let usual: Vec<Found> = blocks.filter(|block| counts.is_usual(block)).map(Found::from).collect();
    assert_eq!(usual, expected(&case["reference_blocks"]));
    assert_eq!(CallerCounts::new().most_frequent(), None);
}

#[test]
fn heapprof_end_word_shares_no_byte_with_next_block() {
    let memory = b"PaeHsizeForPaeHsizeForP";
    let search = Search::robust(HeapprofLayout::BigEndian32).alignment(Alignment::Byte);
    let (found, _) = search_all_ways(search, memory);
    assert_eq!(magic_bounds(HeapprofLayout::BigEndian32, &found), [(0, 8)]);
    let (found, _) = search_all_ways(search, &memory[11..]);
    assert_eq!(magic_bounds(HeapprofLayout::BigEndian32, &found), [(0, 8)]);
}

#[test]
fn heapprof_report_marks_python_long_sizes() {
    let found = [(1 << 63, 1), ((1 << 63) - 1, 1), (5, 2)].map(|(size_bytes, caller)| Found {
        offset: 0,
        size_bytes,
        callers: vec![caller],
    });
    let expected = "100% 18446744073709551615 [9223372036854775808L, 9223372036854775807]\n  0x1 sym_1\n\
                    0% 5 [5]\n  0x2 sym_2\n";
    assert_eq!(report(&found).as_deref(), Some(expected));
    assert_eq!(report(&[Found { offset: 0, size_bytes: 0, callers: vec![1] }]), None);
}

#[test]
fn heapprof_writer_refuses_unsupported_content() {
    let error = HeaderWriter::new(HeapprofLayout::BigEndian32, MAX_CALLERS + 1).unwrap_err();
    assert_eq!(error.kind, HeapprofWriteErrorKind::TooManyCallers);
    let writer = HeaderWriter::new(HeapprofLayout::BigEndian32, 2).unwrap();
    let callers = [1, 2, 0x1_0000_0000].map(AbsoluteAddress::new);
    let error = writer.encode(0, &callers, &mut CountingSink::default()).unwrap_err();
    assert_eq!(error.to_string(), "too many callers at byte 16 of a heapprof block");
    let error = writer.encode(0, &callers[1..], &mut CountingSink::default()).unwrap_err();
    assert_eq!(error.to_string(), "0x100000000 does not fit into a word at byte 12 of a heapprof block");
    let error = writer.encode(0, &callers[..1], &mut SliceSink::new(&mut [0; 10])).unwrap_err();
    assert_eq!(error.to_string(), "no room for the header at byte 8 of a heapprof block");
    assert_eq!(writer.clear_magics(&mut [0; 19]).unwrap_err().kind, HeapprofWriteErrorKind::NoRoom);
}

/// Models the reference's search slowly: offsets of magics by text search over the whole dump.
fn model_compat(word: usize, memory: &[u8]) -> Vec<(usize, usize)> {
    let find = |text: &[u8], from: usize| {
        memory.get(from..)?.windows(4).position(|bytes| bytes == text).map(|place| place + from)
    };
    let (mut blocks, mut cursor) = (Vec::new(), 0);
    while let Some(start) = find(b"HeaP", cursor) {
        let Some(end) = find(b"ProF", start) else { break };
        let distance = end - start;
        if distance % word == 0 && distance / word < 100 && distance != word {
            blocks.push((start, end));
            cursor = end;
        } else {
            cursor = start + word;
        }
    }
    blocks
}

/// Returns the slow and plain model of the robust search.
fn model_robust(layout: HeapprofLayout, step: usize, memory: &[u8]) -> Vec<(usize, usize)> {
    let word = layout.word_bytes();
    let encoded = |magic: u32| {
        let mut bytes = vec![0; word];
        match layout {
            HeapprofLayout::LittleEndian32 | HeapprofLayout::LittleEndian64 => {
                bytes[..4].copy_from_slice(&magic.to_le_bytes())
            }
            _ => bytes[word - 4..].copy_from_slice(&magic.to_be_bytes()),
        }
        bytes
    };
    let places = |magic| -> Vec<usize> {
        let magic = encoded(magic);
        (0..memory.len()).step_by(step).filter(|&place| memory[place..].starts_with(&magic)).collect()
    };
    let (starts, ends) = (places(0x5061_6548), places(0x466f_7250));
    let (mut blocks, mut block_end) = (Vec::new(), 0);
    for end in ends {
        let Some(&start) = starts.iter().filter(|&&start| block_end <= start && start < end).max() else {
            continue;
        };
        if (end - start) % word == 0 && (2..=99).contains(&((end - start) / word)) {
            blocks.push((start, end));
            block_end = end + word;
        }
    }
    blocks
}

fn magic_bounds(layout: HeapprofLayout, found: &[Found]) -> Vec<(usize, usize)> {
    let end = |block: &Found| block.offset as usize + (block.callers.len() + 2) * layout.word_bytes();
    found.iter().map(|block| (block.offset as usize, end(block))).collect()
}

/// Memory full of magics, parts of magics, and stretches as long as the longest header.
fn crowded_memory(pieces: usize) -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        8 => prop::sample::select(vec![
            &b"HeaP"[..], b"ProF", b"PaeH", b"ForP", b"HeaP\0\0\0\0", b"ProF\0\0\0\0", b"\0\0\0\0PaeH", b"\0\0\0\0ForP",
            b"HeaProF", b"ForPaeH", b"H", b"P", b"\0\0\0\0", b"\0\0\0\0\0\0\0\0",
        ]).prop_map(<[u8]>::to_vec),
        2 => (0_usize..900).prop_map(|size| vec![0x11; size]),
        2 => prop::sample::select(vec![380_usize, 384, 388, 392, 396, 768, 776, 780, 784, 788, 792])
            .prop_map(|size| vec![0; size]),
    ];
    prop::collection::vec(piece, 0..pieces).prop_map(|pieces| pieces.concat())
}

fn any_layout() -> impl Strategy<Value = HeapprofLayout> {
    prop::sample::select(HeapprofLayout::ALL.to_vec())
}

proptest! {
    #[test]
    fn heapprof_searches_agree_with_plain_models(memory in crowded_memory(24), layout in any_layout()) {
        let (compat, _) = search_slice(Search::compat(layout), &memory);
        prop_assert_eq!(magic_bounds(layout, &compat), model_compat(layout.word_bytes(), &memory));
        for (alignment, step) in [(Alignment::Word, layout.word_bytes()), (Alignment::Byte, 1)] {
            let (robust, _) = search_slice(Search::robust(layout).alignment(alignment), &memory);
            prop_assert_eq!(magic_bounds(layout, &robust), model_robust(layout, step, &memory));
        }
    }

    #[test]
    fn heapprof_any_chunking_finds_the_same_blocks(
        memory in crowded_memory(120),
        layout in any_layout(),
        chunk_sizes in prop::collection::vec(prop_oneof![0_usize..20, 0_usize..3000], 1..6),
        window_bytes in MAX_OVERLAP_BYTES + 1..4000,
    ) {
        prop_assume!(chunk_sizes.iter().any(|&size| size > 0));
        let robust = Search::robust(layout);
        for search in [robust, robust.alignment(Alignment::Byte), Search::compat(layout)] {
            let whole = search_slice(search, &memory);
            prop_assert_eq!(&search_chunks(search, &memory, &chunk_sizes), &whole);
            prop_assert_eq!(&search_windows(search, &memory, window_bytes), &whole);
        }
    }

    #[test]
    fn heapprof_finds_blocks_until_they_are_freed(
        layout in any_layout(),
        capacity in 0..=MAX_CALLERS,
        blocks in prop::collection::vec((0_u64..300, prop::collection::vec(1_u32.., 0..8), any::<bool>()), 0..12),
    ) {
        let writer = HeaderWriter::new(layout, capacity).unwrap();
        let (mut memory, mut live) = (Vec::new(), Vec::new());
        for (size_bytes, callers, freed) in blocks {
            let callers: Vec<_> = callers
                .into_iter()
                .take(capacity)
                .map(|caller| AbsoluteAddress::new(caller.into()))
                .collect();
            let mut header = vec![0; writer.user_offset()];
            let mut sink = SliceSink::new(&mut header);
            writer.encode(size_bytes, &callers, &mut sink).unwrap();
            prop_assert_eq!(sink.written().len(), writer.user_offset());

            // In place, the callers' and the padding's old content stays.
            let mut in_place = vec![0; writer.user_offset()];
            writer.write_in_place(size_bytes, &callers, &mut in_place).unwrap();
            prop_assert_eq!(&in_place, &header);

            if freed {
                writer.clear_magics(&mut header).unwrap();
            } else {
                let zeros = core::iter::repeat_n(0, capacity - callers.len());
                let callers = callers.iter().map(|caller| caller.value()).chain(zeros).collect();
                live.push((Found { offset: memory.len() as u64, size_bytes, callers }, writer.user_offset() as u64));
            }
            memory.extend(header);
            memory.extend(vec![0xa5; size_bytes.next_multiple_of(8) as usize]);
        }
        let found: Vec<_> = Search::robust(layout)
            .blocks(&memory)
            .map(|block| (Found::from(block), block.user_offset() - block.offset()))
            .collect();
        prop_assert_eq!(&found, &live);
        if [HeapprofLayout::LittleEndian32, HeapprofLayout::LittleEndian64].contains(&layout) {
            let compat: Vec<_> = Search::compat(layout).blocks(&memory).map(Found::from).collect();
            prop_assert_eq!(compat, live.into_iter().map(|(block, _)| block).collect::<Vec<_>>());
        }
    }
}
