//! Summaries of recordings from anywhere: they are used if they are consistent; else the events
//! give the answers. The first byte selects them: all sums, slices, or the brief ones.
#![no_main]

use std::sync::LazyLock;

use cairn_analysis::heap::slices::Slices;
use cairn_analysis::heap::{HeapRead, HeapRecording, Scope, Sums};
use cairn_format::recording::{CHUNK_HEADER_BYTES, ChunkHeader, ChunkKind};
use cairn_recording::{Finding, Recording};

// check-words: quoted
const STORED: &[u8] = include_bytes!("../../fixtures/recordings/v1/summary.cairn");

/// The recording without its index, and the chunks of sums and of slices.
static PARTS: LazyLock<[Vec<u8>; 3]> = LazyLock::new(|| {
    let mut parts = [STORED[..64].to_vec(), Vec::new(), Vec::new()];
    let mut at = 64;
    while let Some(header) = STORED.get(at..).and_then(ChunkHeader::read) {
        let end = (at + CHUNK_HEADER_BYTES + header.stored_bytes as usize).next_multiple_of(8);
        match header.kind {
            ChunkKind::INDEX => at = end + 16,
            kind => {
                let part = [ChunkKind::SUMS, ChunkKind::SLICES].iter().position(|&stored| stored == kind);
                parts[part.map_or(0, |part| part + 1)].extend_from_slice(&STORED[at..end]);
                at = end;
            }
        }
    }
    parts
});

static FROM_EVENTS: LazyLock<(HeapRead, Slices)> = LazyLock::new(|| read(PARTS[0].clone()));
static BRIEF: LazyLock<HeapRead> = LazyLock::new(|| read_brief(PARTS[0].clone()));

fn read(bytes: Vec<u8>) -> (HeapRead, Slices) {
    let heap = HeapRecording::new(Recording::from_bytes(bytes).unwrap());
    heap.read_sliced(Scope::default(), 256).unwrap()
}

fn read_brief(bytes: Vec<u8>) -> HeapRead {
    HeapRecording::new(Recording::from_bytes(bytes).unwrap()).read_brief(Scope::default()).unwrap()
}

/// Brief sums alone: what they say, or what the events say.
fn check_brief(payload: &[u8]) {
    let mut read = read_brief([&PARTS[0][..], &chunk(ChunkKind::SUMS, payload)].concat());
    let findings = std::mem::take(&mut read.findings);
    if !findings.is_empty() {
        assert!(findings.iter().all(|finding| matches!(finding, Finding::UnusableSums { .. })));
        assert!(read == *BRIEF);
    }
    let allocations = |rows: &[Sums]| rows.iter().fold(0_u64, |sum, row| sum.saturating_add(row.allocations));
    assert_eq!(allocations(&read.profile.sizes), read.profile.totals.allocations);
    assert!(read.profile.timeline.bins.len() <= 256);
}

fn chunk(kind: ChunkKind, payload: &[u8]) -> Vec<u8> {
    let header = ChunkHeader {
        kind,
        stored_bytes: payload.len() as u32,
        unpacked_bytes: payload.len() as u32,
        events: 1,
        first_nanos: 0,
        check: crc32fast::hash(payload),
    };
    let mut chunk = [&header.to_bytes()[..], payload].concat();
    chunk.resize(chunk.len().next_multiple_of(8), 0);
    chunk
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((&choice, payload)) = data.split_first() else { return };
    if choice & 3 == 2 {
        return check_brief(payload);
    }
    let [recording, sums, slices] = &*PARTS;
    let (sums, slices) = match choice & 1 {
        0 => (chunk(ChunkKind::SUMS, payload), slices.clone()),
        _ => (sums.clone(), chunk(ChunkKind::SLICES, payload)),
    };
    let (mut read, slices) = read([&recording[..], &sums, &slices].concat());
    let findings = std::mem::take(&mut read.findings);
    if !findings.is_empty() {
        assert!(findings.iter().all(|finding| matches!(finding, Finding::UnusableSums { .. })));
        assert!((&read, &slices) == (&FROM_EVENTS.0, &FROM_EVENTS.1));
    }
    for entries in [&slices.stacks, &slices.sizes, &slices.threads, &slices.lifetimes] {
        assert!(entries.is_sorted_by_key(|entry| (entry.row, entry.slice)));
        assert!(entries.iter().all(|entry| (entry.slice as usize) < slices.count));
    }
    let allocations: u64 = slices.stacks.iter().map(|entry| entry.allocations).sum();
    assert_eq!(allocations, read.profile.totals.allocations);
});
