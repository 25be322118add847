//! Recordings, spool and packed: what was written is what is read, in order, and damage costs no more than it must.

#[path = "support/spool.rs"]
mod spool;

use std::collections::{BTreeMap, HashMap};

use cairn_analysis::recording::{
    Alloc, At, Change, Events, Finding, Free, Mark, Place, Recording, StackId, Wanted,
};
use cairn_format::recording::{CounterKind, Lane};
use proptest::prelude::*;
use spool::{Program, Random, START, Spool};

/// Everything that a visitor sees, and whether it makes sense.
#[derive(Default)]
struct Seen {
    live: HashMap<u32, (u32, u64)>,
    allocations: u64,
    allocated_bytes: u64,
    frees: u64,
    nanos: u64,
    marks: Vec<(u64, u32, String)>,
    changes: u64,
}

impl Seen {
    fn time(&mut self, at: At) {
        assert!(at.nanos >= self.nanos, "time went back from {} to {}", self.nanos, at.nanos);
        self.nanos = at.nanos;
    }

    /// What lives at the end, as (stack, size) with counts.
    fn left(&self) -> BTreeMap<(u32, u64), u64> {
        let mut left = BTreeMap::new();
        self.live.values().for_each(|block| *left.entry(*block).or_default() += 1);
        left
    }
}

impl Events for Seen {
    fn alloc(&mut self, event: &Alloc) {
        self.time(event.at);
        self.allocations += 1;
        self.allocated_bytes += event.size_bytes;
        let before = self.live.insert(event.object.number(), (event.stack.number(), event.size_bytes));
        assert_eq!(before, None, "a number is given twice");
    }

    fn free(&mut self, event: &Free) {
        self.time(event.at);
        self.frees += 1;
        let block = self.live.remove(&event.object.number());
        assert_eq!(block, Some((event.stack.number(), event.size_bytes)), "not what was allocated");
    }

    fn mark(&mut self, event: &Mark<'_>) {
        self.time(event.at);
        let text = String::from_utf8_lossy(event.text).into_owned();
        self.marks.push((event.at.nanos, event.stack.number(), text));
    }

    fn change(&mut self, at: At, _: Change) {
        self.time(at);
        self.changes += 1;
    }
}

fn see(recording: &Recording) -> (Seen, u64) {
    let mut seen = Seen::default();
    let outcome = recording.read(&Wanted::ALL, &mut seen).unwrap();
    (seen, outcome.unmatched_frees)
}

fn expected_left(live: &[spool::Block]) -> BTreeMap<(u32, u64), u64> {
    let mut left = BTreeMap::new();
    live.iter().for_each(|block| *left.entry((block.stack, block.size_bytes)).or_default() += 1);
    left
}

/// A program of some threads that allocate and free each other's blocks, with times that hardly tell the order.
fn entangled(seed: u64, threads: u32, interval: u32, events: u32, first_epoch: u32) -> Program {
    let mut random = Random(seed | 1);
    let mut program = Program::new(threads, interval);
    program.begin_epochs_at(first_epoch);
    for _ in 0..events {
        program.counter += random.below(400);
        let thread = 1 + random.below(u64::from(threads)) as u32;
        // Few blocks, so that addresses come back at once.
        if program.live.len() < 2 || (program.live.len() < 12 && random.below(2) == 0) {
            let stack = program.allocations as u32;
            program.alloc(thread, 16 + random.below(10), stack);
        } else {
            let index = random.below(program.live.len() as u64) as usize;
            program.free(thread, index);
        }
    }
    program
}

#[test]
fn the_tables_of_a_spool_are_read() {
    let mut spool = Spool::new(CounterKind::TimeStampCounter);
    let stacks = spool.stacks(100);
    spool.mark(1, START + 3_000_000, stacks[50], "slow request");
    spool.clock(START + 3_000_000_000);
    spool.end(START + 3_000_000_001);
    let recording = Recording::from_bytes(spool.to_bytes()).unwrap();
    assert_eq!(recording.findings(), []);
    assert_eq!(recording.fact("command"), Some(b"program --flag".as_slice()));
    assert_eq!(recording.modules().len(), 2);
    assert_eq!(recording.modules()[0].path_text(), "/usr/bin/program");
    assert_eq!(recording.threads().len(), 1);
    assert_eq!(recording.end().map(|(_, nanos)| nanos), Some(1_000_000_000));
    for &stack in &stacks {
        let frames: Vec<_> = recording.frames(StackId::from_number(stack)).collect();
        assert!(!frames.is_empty());
        for frame in frames {
            let Place::Module(module, offset) = frame.place else { panic!("in no module") };
            let start = recording.module(module).unwrap().start.value();
            assert_eq!(start + offset.value(), frame.address.value());
            assert_eq!(offset.value() % 0x135, 0);
        }
    }
    let (seen, _) = see(&recording);
    assert_eq!(seen.marks, [(1_000_000, stacks[50], "slow request".to_owned())]);
    assert_eq!(recording.time_scale().wall_nanos(1_000_000), 1_800_000_000_001_000_000);
}

#[test]
fn a_module_in_the_place_of_another_keeps_the_stacks_apart() {
    let mut spool = Spool::new(CounterKind::MonotonicNanos);
    let pc = |spool: &mut Spool, number, module| {
        spool.write(1, Lane::Outer, START, |sink| {
            sink.pc(number, cairn_analysis::recording::PcKind::ReturnAddress, 0x1500, module)
        });
    };
    spool.module(1, 0x1000, 0x2000, "b.so");
    pc(&mut spool, 1, 1);
    let in_b = spool.segment(1, 1, 0, &[1]);
    spool.mark(1, START + 10, in_b, "in b");
    spool.write(1, Lane::Outer, START, |sink| sink.module_unloaded(1, START + 20));
    pc(&mut spool, 2, 0);
    let in_gap = spool.segment(1, 3, 0, &[2]);
    spool.mark(1, START + 30, in_gap, "in the gap");
    spool.module(2, 0x1000, 0x3000, "d.so");
    pc(&mut spool, 3, 2);
    let in_d = spool.segment(1, 5, 0, &[3]);
    let recording = Recording::from_bytes(spool.to_bytes()).unwrap();
    let place = |stack| recording.frames(StackId::from_number(stack)).next().unwrap().place;
    let path = |stack| match place(stack) {
        Place::Module(module, _) => recording.module(module).unwrap().path_text().into_owned(),
        Place::Absolute(address) => address.to_string(),
    };
    assert_eq!((path(in_b).as_str(), path(in_d).as_str()), ("b.so", "d.so"));
    assert!(matches!(place(in_gap), Place::Absolute(_)));
    assert_eq!(recording.modules()[0].unloaded_nanos, Some(20));
    assert!(recording.findings().contains(&Finding::NoEnd));
}

#[test]
fn parents_that_are_no_smaller_are_refused() {
    let mut spool = Spool::new(CounterKind::MonotonicNanos);
    for first in [1, 10] {
        spool.write(1, Lane::Outer, START, |sink| sink.tree_words(first, [1 << 31 | 11, 1].into_iter()));
    }
    spool.write(1, Lane::Outer, START, |sink| sink.tree_words(u32::MAX - 5, [1, 2].into_iter()));
    let recording = Recording::from_bytes(spool.to_bytes()).unwrap();
    assert!(recording.findings().contains(&Finding::BadTableRows { count: 3 }), "{:?}", recording.findings());
    for number in 0..20 {
        assert!(recording.frames(StackId::from_number(number)).count() <= 1);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn every_free_finds_its_allocation(
        seed in any::<u64>(), threads in 1_u32..6, interval in 1_u32..40, late in any::<bool>(),
    ) {
        let first_epoch = if late { u32::MAX - 20 } else { 0 };
        let program = entangled(seed, threads, interval, 3000, first_epoch);
        let (allocations, bytes) = (program.allocations, program.allocated_bytes);
        let left = expected_left(&program.live);
        let recording = Recording::from_bytes(program.finish()).unwrap();
        let (seen, unmatched) = see(&recording);
        prop_assert_eq!(unmatched, 0);
        prop_assert_eq!((seen.allocations, seen.allocated_bytes), (allocations, bytes));
        prop_assert_eq!(seen.left(), left);
    }
}

#[test]
fn frees_of_older_blocks_are_counted_and_take_nothing() {
    let mut random = Random(99);
    let mut program = Program::new(3, 8);
    for round in 0..1000_u64 {
        program.counter += random.below(100);
        let thread = 1 + random.below(3) as u32;
        program.free_older(thread, 0x1000_0000 + round * 16);
        let thread = 1 + random.below(3) as u32;
        program.alloc(thread, round, 5);
    }
    let left = expected_left(&program.live);
    let recording = Recording::from_bytes(program.finish()).unwrap();
    let (seen, unmatched) = see(&recording);
    assert_eq!(unmatched, 1000);
    assert_eq!(seen.left(), left);
}
