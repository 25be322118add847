//! Packing of whole recordings, and of recordings that are cut or damaged.

use cairn_format::recording::{CHUNK_HEADER_BYTES, ChunkHeader};

use super::*;
use crate::ThreadId;

fn header() -> FileHeader {
    FileHeader {
        shape: Shape::Packed,
        address_bits: 64,
        machine: 62,
        counter: CounterKind::MonotonicNanos,
        process: 1,
        start_wall_nanos: 0,
        start_monotonic_nanos: 0,
        start_counter: 0,
        stamp_interval: 0,
    }
}

/// The numbers behind the losses were not there before; a reader of before leaves them alone.
#[test]
fn summaries_say_early_ends_behind_all_else() {
    let lost = vec![(LossKind::NoStorage, 5), (LossKind::NestedTooDeep, 2)];
    let mut totals = Totals { allocations: 7, lost, ..Totals::default() };
    let mut plain = Vec::new();
    totals.put(&mut plain);
    let ended = EndedEarly { cause: EarlyEnd::DiskFull(28), nanos: 300_000_000, missed: 40 };
    totals.end_early(ended);
    let mut payload = Vec::new();
    totals.put(&mut payload);
    let read = Totals::take(&payload).unwrap();
    assert_eq!((read.ended_early, read.end_reason), (Some(ended), Some(EndReason::Stopped)));
    assert_eq!(read, totals);
    // The events behind the end are noted with it, and others as losses.
    let losses: Vec<_> = read.losses().collect();
    assert_eq!(losses, [(LossKind::NestedTooDeep, 2), (LossKind::NoStorage, 5)]);
    assert_eq!(Totals::take(&plain).unwrap().ended_early, None);
    let text = "recording ended early: the disk was full after 0.3 s; what the program did later is not in the numbers";
    assert_eq!(ended.to_string(), format!("{text} (40 events)"));
}

/// Events handed on or expected, as lines, because events have no equality.
#[derive(Default)]
struct Lines(Vec<String>);

impl Events for Lines {
    fn alloc(&mut self, event: &Alloc) {
        self.0.push(format!("{event:?}"));
    }
    fn free(&mut self, event: &Free) {
        self.0.push(format!("{event:?}"));
    }
}

/// A program of some threads. Each frees at random, in order, in turns, or all that is old.
struct Program {
    seed: u32,
    nanos: u64,
    /// By thread, in the order of their allocations.
    alive: [Vec<(ObjectId, StackId, u64)>; 3],
    free: Vec<u32>,
    next: u32,
    lines: Lines,
}

impl Program {
    fn random(&mut self, below: u32) -> u32 {
        self.seed = self.seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (self.seed >> 8) % below
    }

    fn alloc(&mut self, packer: &mut Packer<Vec<u8>>, thread: u32, is_move: bool) {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.next += 1;
            self.next - 1
        });
        let (stack, size_bytes) = (StackId(self.random(9)), u64::from(self.random(3)) << 40 | 5);
        let object = ObjectId(slot);
        let at = At { nanos: self.nanos, thread: ThreadId(thread + 1) };
        let event = Alloc { at, object, stack, size_bytes, is_move };
        packer.alloc(&event);
        self.lines.alloc(&event);
        self.alive[thread as usize].push((object, stack, size_bytes));
    }

    fn free(&mut self, packer: &mut Packer<Vec<u8>>, thread: u32, of: u32, place: usize, is_move: bool) {
        if place >= self.alive[of as usize].len() {
            return;
        }
        let (object, stack, size_bytes) = self.alive[of as usize].remove(place);
        let at = At { nanos: self.nanos, thread: ThreadId(thread + 1) };
        let event = Free { at, object, stack, size_bytes, is_move };
        packer.free(&event);
        self.lines.free(&event);
        self.free.push(object.0);
    }

    fn step(&mut self, packer: &mut Packer<Vec<u8>>) {
        self.nanos += u64::from(self.random(3)) * HEAP_TIME_QUANTUM_NANOS;
        let thread = self.random(3);
        let many = self.random(90) as usize;
        match self.random(12) {
            0..=4 => (0..many).for_each(|_| self.alloc(packer, thread, false)),
            5 => (0..many).for_each(|_| self.free(packer, thread, thread, 0, false)),
            6 => {
                for _ in 0..many {
                    let last = self.alive[thread as usize].len().wrapping_sub(1);
                    self.free(packer, thread, thread, last, false);
                }
            }
            7 | 8 => {
                for _ in 0..many {
                    let of = self.random(3);
                    let place = self.random(900) as usize;
                    self.free(packer, thread, of, place, false);
                }
            }
            9 => {
                let (before, place) = (self.lines.0.len(), self.random(50) as usize);
                self.free(packer, thread, thread, place, true);
                if self.lines.0.len() > before {
                    self.alloc(packer, thread, true);
                }
            }
            _ => packer.flush().unwrap(),
        }
    }
}

fn recorded(seed: u32, steps: u32) -> (Vec<u8>, Vec<String>) {
    let mut packer = Packer::new(Vec::new(), &header(), &[]).unwrap();
    let mut program = Program {
        seed,
        nanos: 0,
        alive: Default::default(),
        free: Vec::new(),
        next: 0,
        lines: Lines::default(),
    };
    (0..steps).for_each(|_| program.step(&mut packer));
    let (bytes, _) = packer.close().unwrap();
    (bytes, program.lines.0)
}

fn read(bytes: &[u8]) -> (Vec<String>, Vec<Finding>) {
    let recording = Recording::from_bytes(bytes.to_vec()).unwrap();
    let mut lines = Lines::default();
    let outcome = recording.read(&Wanted::HEAP, &mut lines).unwrap();
    (lines.0, outcome.findings)
}

/// Where the chunks of allocations are, and how many events are in each.
fn streamed(bytes: &[u8]) -> Vec<(usize, ChunkHeader)> {
    let (mut at, mut found) = (64, Vec::new());
    while let Some(header) = bytes.get(at..).and_then(ChunkHeader::read) {
        if header.kind == ChunkKind::HEAP_STREAM {
            found.push((at, header));
        }
        at += (CHUNK_HEADER_BYTES + header.stored_bytes as usize).next_multiple_of(8);
    }
    found
}

#[test]
fn many_packed_chunks_are_read_again() {
    for seed in 0..20 {
        let (bytes, expected) = recorded(seed, 400);
        assert!(streamed(&bytes).len() > 30 && expected.len() > 3_000, "{seed}");
        let (lines, findings) = read(&bytes);
        assert!(lines == expected && findings.is_empty(), "{seed}: {findings:?}");
    }
}

#[test]
fn events_before_a_damaged_piece_are_read() {
    let (bytes, expected) = recorded(99, 60);
    let chunks = streamed(&bytes);
    assert!(chunks.len() > 4);
    let mut before = 0;
    for (at, header) in &chunks {
        for place in 0..header.stored_bytes as usize {
            let mut damaged = bytes.clone();
            damaged[at + CHUNK_HEADER_BYTES + place] ^= 0x10;
            let (lines, findings) = read(&damaged);
            assert_eq!(lines, expected[..before]);
            let [Finding::DamagedChunk { offset, .. }] = findings[..] else { panic!("{findings:?}") };
            assert_eq!(offset, *at as u64);
        }
        before += header.events as usize;
    }
    assert_eq!(before, expected.len());
}

#[test]
fn what_is_cut_tells_whole_chunks() {
    let (bytes, expected) = recorded(7, 40);
    let chunks = streamed(&bytes);
    for cut in 64..bytes.len() {
        let whole = |(at, header): &&(usize, ChunkHeader)| {
            at + CHUNK_HEADER_BYTES + header.stored_bytes as usize <= cut
        };
        let events: usize = chunks.iter().filter(whole).map(|(_, header)| header.events as usize).sum();
        let (lines, _) = read(&bytes[..cut]);
        assert_eq!(lines, expected[..events], "cut at {cut}");
    }
}
