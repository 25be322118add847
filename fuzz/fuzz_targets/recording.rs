//! Whatever the bytes: a recording opens or says why not, its events make sense, and packing it
//! gives a recording with the same content.
#![no_main]

use std::collections::HashMap;

use cairn_analysis::heap::{HeapRecording, Scope};
use cairn_format::recording::{CHUNK_HEADER_BYTES, ChunkHeader, ChunkKind, TRAILER_BYTES};
use cairn_recording::{Alloc, At, Change, Events, Free, Mark, Recording, Wanted, pack};

#[derive(Default)]
struct Seen {
    live: HashMap<u32, (u32, u64)>,
    counts: [u64; 4],
    nanos: u64,
}

impl Seen {
    fn at(&mut self, at: At, kind: usize) {
        assert!(at.nanos >= self.nanos);
        self.nanos = at.nanos;
        self.counts[kind] += 1;
    }
}

impl Events for Seen {
    fn alloc(&mut self, event: &Alloc) {
        self.at(event.at, 0);
        let block = (event.stack.number(), event.size_bytes);
        assert_eq!(self.live.insert(event.object.number(), block), None);
    }
    fn free(&mut self, event: &Free) {
        self.at(event.at, 1);
        let block = (event.stack.number(), event.size_bytes);
        assert_eq!(self.live.remove(&event.object.number()), Some(block));
    }
    fn mark(&mut self, event: &Mark<'_>) {
        self.at(event.at, 2);
    }
    fn change(&mut self, at: At, _: Change) {
        self.at(at, 3);
    }
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((&choice, bytes)) = data.split_first() else { return };
    let mut bytes = bytes.to_vec();
    if choice & 1 == 1 {
        repair_checks(&mut bytes);
    }
    if choice & 2 == 2 {
        window(bytes, choice);
        return;
    }
    let Ok(recording) = Recording::from_bytes(bytes.clone()) else { return };
    for stack in recording.stacks().ids() {
        let parent = recording.stacks().parent(stack);
        assert!(parent.is_none_or(|parent| parent < stack));
        let _ = recording.frames(stack).count();
    }
    let mut seen = Seen::default();
    let outcome = recording.read(&Wanted::ALL, &mut seen).unwrap();
    let mut packed = Vec::new();
    // A row may be too long for a chunk.
    if pack(&recording, &mut packed).is_ok() && outcome.findings.is_empty() {
        let again = Recording::from_bytes(packed).unwrap();
        let mut seen_again = Seen::default();
        let outcome = again.read(&Wanted::ALL, &mut seen_again).unwrap();
        assert_eq!(outcome.findings, []);
        assert_eq!(seen.counts, seen_again.counts);
        assert_eq!(seen.live, seen_again.live);
    }
    // The same bytes as a heap: by sums that are stored in them, if there are any, or by their
    // events.
    let Ok(recording) = Recording::from_bytes(bytes) else { return };
    let heap = HeapRecording::new(recording);
    let (read, slices) = heap.read_sliced(Scope::default(), 64).unwrap();
    assert!(slices.count <= 64 && slices.stacks.is_sorted_by_key(|entry| (entry.row, entry.slice)));
    assert!(read.profile.stacks.len() <= heap.stacks().len());
});

/// A part of the time: nothing outside of it is given.
fn window(bytes: Vec<u8>, choice: u8) {
    let since = u64::from(choice >> 2) << 20;
    let until = since + (1 << 24);
    let Ok(recording) = Recording::from_bytes_window(bytes, |_| (since, until)) else { return };
    let mut seen = Seen::default();
    recording.read(&Wanted::ALL, &mut seen).unwrap();
    assert_eq!(seen.counts[..2], [0, 0]);
    assert!(seen.nanos == 0 || (since..until).contains(&seen.nanos));
}

/// Repairs the checksums, so that the parsers behind them are reached.
fn repair_checks(bytes: &mut [u8]) {
    let mut offset = 64;
    while let Some(header) = bytes.get(offset..).and_then(ChunkHeader::read) {
        let body = offset + CHUNK_HEADER_BYTES;
        let Some(stored) = bytes.get(body..body + header.stored_bytes as usize) else { return };
        let header = ChunkHeader { check: crc32fast::hash(stored), ..header };
        bytes[offset..body].copy_from_slice(&header.to_bytes());
        offset = (body + header.stored_bytes as usize).next_multiple_of(8);
        // Chunks may have been added behind the end.
        offset += if header.kind == ChunkKind::INDEX { TRAILER_BYTES } else { 0 };
    }
}
