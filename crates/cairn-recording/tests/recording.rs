//! Recordings, spool and packed: what was written is what is read, in order, and damage costs no
//! more than it must.

#[path = "support/spool.rs"]
mod spool;

use std::collections::{BTreeMap, HashMap};

use cairn_format::recording::{CounterKind, Lane, SegmentHeader};
use cairn_recording::{
    Alloc, At, Change, Events, Finding, Free, HEAP_TIME_QUANTUM_NANOS, Mapping, Mark, Place, Recording,
    StackId, Usage, Wanted, pack,
};
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

    /// Returns the blocks that live at the end, as (stack, size) with counts.
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

/// Builds a program of some threads that allocate and free each other's blocks.
///
/// Its times hardly give the order.
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
            sink.pc(number, cairn_recording::PcKind::ReturnAddress, 0x1500, module)
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

/// All events as text, in order, with times as exact as packing keeps them.
#[derive(Default)]
struct Reported(Vec<String>);

impl Events for Reported {
    fn alloc(&mut self, event: &Alloc) {
        let at = At { nanos: 0, ..event.at };
        self.0.push(format!("{:?}", Alloc { at, ..*event }));
    }
    fn free(&mut self, event: &Free) {
        let at = At { nanos: 0, ..event.at };
        self.0.push(format!("{:?}", Free { at, ..*event }));
    }
    fn mark(&mut self, event: &Mark<'_>) {
        self.0.push(format!("{event:?}"));
    }
    fn mapping(&mut self, event: &Mapping) {
        self.0.push(format!("{event:?}"));
    }
    fn usage(&mut self, event: &Usage) {
        self.0.push(format!("{event:?}"));
    }
    fn change(&mut self, at: At, change: Change) {
        self.0.push(format!("{at:?} {change:?}"));
    }
}

fn answer(recording: &Recording, wanted: &Wanted) -> Vec<String> {
    let mut answer = Reported::default();
    recording.read(wanted, &mut answer).unwrap();
    answer.0
}

fn packed(recording: &Recording) -> Vec<u8> {
    let mut bytes = Vec::new();
    pack(recording, &mut bytes).unwrap();
    bytes
}

/// A recording with everything in it.
fn rich(seed: u64, events: u32) -> Vec<u8> {
    use cairn_format::recording::{LossKind, MappingKind, MarkValue, Sample, ThreadEvent};
    let mut random = Random(seed | 1);
    let mut program = entangled(seed, 3, 8, events, 7);
    let stacks = program.spool.stacks(40);
    program.spool.clock(program.counter);
    for number in 0..events {
        program.counter += random.below(30_000);
        let (counter, thread) = (program.counter, 1 + random.below(3) as u32);
        let stack = stacks[random.below(40) as usize];
        let spool = &mut program.spool;
        match random.below(14) {
            0 => spool.write(thread, Lane::Outer, counter, |sink| {
                sink.mapping(MappingKind::Map, counter, 0x7000_0000 + counter, 4096, stack)
            }),
            1 => spool.write(thread, Lane::Outer, counter, |sink| {
                let faults = counter / 3;
                sink.sample(&Sample { counter, resident_bytes: counter, page_faults: faults, threads: 3 })
            }),
            2 => spool.write(thread, Lane::Outer, counter, |sink| sink.loss(LossKind::NestedTooDeep, 2)),
            3 => spool.write(thread, Lane::Outer, counter, |sink| {
                sink.thread(counter, ThreadEvent::Named(format!("worker {number}").as_bytes()))
            }),
            4 => spool.write(thread, Lane::Nested, counter, |sink| {
                sink.mark(counter, stack, 0, MarkValue::Float(0.5), b"in a handler")
            }),
            5 => spool.mark(thread, counter, stack, &format!("request {number}")),
            6..9 => spool.mark(thread, counter, stack, "slow request"),
            _ if program.live.is_empty() || random.below(2) == 0 => {
                program.alloc(thread, 16 + random.below(100_000), stack);
            }
            _ => {
                let index = random.below(program.live.len() as u64) as usize;
                program.free(thread, index);
            }
        }
    }
    program.spool.write(2, Lane::Outer, program.counter, |sink| sink.module_unloaded(2, program.counter));
    program.finish()
}

#[test]
fn a_packed_recording_tells_what_the_spool_tells() {
    for seed in 1..20 {
        let spool = Recording::from_bytes(rich(seed, 2000)).unwrap();
        let packed_bytes = packed(&spool);
        let packed = Recording::from_bytes(packed_bytes.clone()).unwrap();
        assert_eq!(packed.facts(), spool.facts());
        assert_eq!(packed.modules(), spool.modules());
        assert_eq!(packed.threads(), spool.threads());
        assert_eq!(packed.end(), spool.end());
        assert_eq!(packed.findings(), spool.findings());
        for stack in spool.stacks().ids() {
            assert!(packed.frames(stack).eq(spool.frames(stack)), "{stack:?}");
            assert_eq!(packed.stacks().parent(stack), spool.stacks().parent(stack));
        }
        let (ours, theirs) = (answer(&packed, &Wanted::ALL), answer(&spool, &Wanted::ALL));
        for (ours, theirs) in ours.iter().zip(&theirs) {
            assert_eq!(ours, theirs);
        }
        assert_eq!(ours.len(), theirs.len());
        assert_eq!(answer(&packed, &Wanted::HEAP), answer(&spool, &Wanted::HEAP));
        assert_eq!(answer(&packed, &Wanted::OTHERS), answer(&spool, &Wanted::OTHERS));
        let window = Wanted::OTHERS.between(3_000_000, 6_000_000);
        assert!(!answer(&packed, &window).is_empty());
        assert_eq!(answer(&packed, &window), answer(&spool, &window));

        let (seen, unmatched) = see(&packed);
        let summary = packed.totals().unwrap();
        assert_eq!(summary.unmatched_frees, unmatched);
        assert_eq!((summary.allocations, summary.frees), (seen.allocations, seen.frees));
        assert_eq!(summary.marks as usize, seen.marks.len());
        assert_eq!(summary.live_bytes, seen.live.values().map(|block| block.1).sum::<u64>());
        // Packed once more it is the same file.
        let mut again = Vec::new();
        pack(&packed, &mut again).unwrap();
        assert!(again == packed_bytes, "packing a packed recording changes it");
    }
}

#[test]
fn times_of_allocations_are_as_exact_as_their_quantum() {
    struct Times(Vec<u64>);
    impl Events for Times {
        fn alloc(&mut self, event: &Alloc) {
            self.0.push(event.at.nanos);
        }
    }
    let spool = Recording::from_bytes(rich(5, 5000)).unwrap();
    let packed = Recording::from_bytes(packed(&spool)).unwrap();
    let (mut exact, mut coarse) = (Times(Vec::new()), Times(Vec::new()));
    spool.read(&Wanted::HEAP, &mut exact).unwrap();
    packed.read(&Wanted::HEAP, &mut coarse).unwrap();
    assert_eq!(exact.0.len(), coarse.0.len());
    for (exact, coarse) in exact.0.iter().zip(&coarse.0) {
        assert!(coarse <= exact && exact - coarse < HEAP_TIME_QUANTUM_NANOS, "{exact} {coarse}");
    }
}

/// Marks of four threads in many segments, tables apart, threads that come and go in one log.
fn marked(count: u64) -> Vec<u8> {
    let mut random = Random(77);
    let mut program = Program::new(4, 8);
    program.spool.keep_tables_apart();
    let stacks = program.spool.stacks(40);
    for number in 0..count {
        // The first thread works ten times as much as the others, so that segments of different
        // lengths of time lie side by side.
        let thread = [1, 1, 1, 1, 1, 1, 1, 2, 3, 4][random.below(10) as usize];
        program.counter += random.below(60_000);
        let counter = program.counter;
        program.spool.mark(thread, counter, stacks[random.below(40) as usize], &format!("mark {number}"));
    }
    let counter = program.counter + 3_000_000;
    program.spool.clock(counter);
    program.spool.end(counter);
    program.spool.to_bytes()
}

#[test]
fn window_of_a_spool_equals_that_time_of_the_whole() {
    let bytes = marked(20_000);
    let whole = Recording::from_bytes(bytes.clone()).unwrap();
    let (_, end) = whole.end().unwrap();
    let mut windows = vec![(0, u64::MAX), (0, 1), (end / 2, end / 2), (end, u64::MAX), (end * 2, end * 3)];
    let mut random = Random(5);
    windows.extend((0..40).map(|_| {
        let since = random.below(end);
        (since, since + random.below(end / 4))
    }));
    for (since, until) in windows {
        let window = Recording::from_bytes_window(bytes.clone(), |_| (since, until)).unwrap();
        let wanted = Wanted::OTHERS.between(since, until);
        assert_eq!(answer(&window, &Wanted::ALL), answer(&whole, &wanted), "{since}..{until}");
        assert_eq!(window.modules(), whole.modules());
        assert_eq!((window.threads(), window.end()), (whole.threads(), whole.end()));
        assert!(window.stacks().ids().eq(whole.stacks().ids()));
        assert_eq!(window.findings(), whole.findings());
    }
    let packed = packed(&whole);
    let (since, until) = (end / 3, end / 2);
    let window = Recording::from_bytes_window(packed, |_| (since, until)).unwrap();
    assert_eq!(answer(&window, &Wanted::ALL), answer(&whole, &Wanted::OTHERS.between(since, until)));
}

#[test]
fn a_window_reads_no_more_of_a_spool_than_it_needs() {
    let mut bytes = marked(20_000);
    let whole = Recording::from_bytes(bytes.clone()).unwrap();
    let (_, end) = whole.end().unwrap();
    let (since, until) = (end / 2, end / 2 + end / 50);
    let before = answer(&whole, &Wanted::OTHERS.between(since, until));
    assert!(before.len() > 100);
    // Damage in the first segment that was full before; what is not read is not noticed.
    let mut blocks = bytes.chunks_mut(65536).skip(1);
    let early = blocks.find(|block| SegmentHeader::read(block).is_ok_and(|header| header.has_no_tables));
    early.unwrap()[30_000..30_008].fill(0);
    assert!(!Recording::from_bytes(bytes.clone()).unwrap().findings().is_empty());
    let window = Recording::from_bytes_window(bytes, |_| (since, until)).unwrap();
    assert_eq!(window.findings(), []);
    assert_eq!(answer(&window, &Wanted::ALL), before);
}

/// Opens and reads whatever the bytes are; no more than that it ends is asked for.
fn survive(bytes: Vec<u8>) {
    if let Ok(recording) = Recording::from_bytes(bytes) {
        let mut answer = Sum::default();
        let _ = recording.read(&Wanted::ALL, &mut answer);
        for stack in recording.stacks().ids() {
            recording.frames(stack).for_each(drop);
        }
    }
}

#[derive(Default)]
struct Sum(u64);

impl Events for Sum {
    fn alloc(&mut self, event: &Alloc) {
        self.0 += u64::from(event.stack.number()) & 1;
    }
    fn mark(&mut self, event: &Mark<'_>) {
        self.0 += event.text.len() as u64;
    }
}

#[test]
fn packed_recording_cut_anywhere_gives_events_before_the_cut() {
    let spool = Recording::from_bytes(rich(3, 300)).unwrap();
    let bytes = packed(&spool);
    let whole = answer(&spool, &Wanted::ALL);
    let mut most = 0;
    for cut in 0..bytes.len() {
        let recording = match Recording::from_bytes(bytes[..cut].to_vec()) {
            Ok(recording) => recording,
            Err(error) => {
                assert!(cut < 64, "cut at {cut}: {error}");
                continue;
            }
        };
        assert!(!recording.findings().is_empty(), "cut at {cut}");
        let seen = answer(&recording, &Wanted::ALL);
        // Chunks of other kinds may be missing, but none is invented and none is out of order.
        let mut rest = whole.iter();
        assert!(seen.iter().all(|event| rest.any(|other| other == event)), "cut at {cut}");
        most = most.max(seen.len());
    }
    assert_eq!(most, whole.len());
}

#[test]
fn a_spool_cut_anywhere_tells_the_records_before_the_cut() {
    let bytes = rich(4, 120);
    let whole = answer(&Recording::from_bytes(bytes.clone()).unwrap(), &Wanted::OTHERS);
    let interesting = (0..bytes.len()).filter(|cut| cut % 65536 < 8192 && (*cut < 200 || cut % 3 == 0));
    let mut lengths = Vec::new();
    for cut in interesting {
        match Recording::from_bytes(bytes[..cut].to_vec()) {
            Ok(recording) => {
                let torn =
                    recording.findings().iter().any(|finding| matches!(finding, Finding::TornTail { .. }));
                let seen = answer(&recording, &Wanted::OTHERS).len();
                // The last segment is rarely full: what is cut there was never written.
                assert!(torn || seen == whole.len(), "cut at {cut}: {:?}", recording.findings());
                lengths.push(seen);
            }
            Err(error) => assert!(cut < 64, "cut at {cut}: {error}"),
        }
    }
    assert!(lengths.is_sorted() && lengths.iter().all(|&length| length <= whole.len()));
}

/// Returns the places where cutting a spool is worthwhile.
///
/// These are its control words and facts, each committed byte and the bytes around it.
fn telling_cuts(bytes: &[u8]) -> Vec<usize> {
    let mut cuts: Vec<usize> = (0..400).chain((400..65536).step_by(977)).collect();
    for (number, block) in bytes.chunks(65536).enumerate().skip(1) {
        let committed = SegmentHeader::read(block).map_or(64, |header| header.committed_bytes as usize);
        cuts.extend(
            (0..committed + 16).chain((committed..65536).step_by(1999)).map(|at| number * 65536 + at),
        );
    }
    cuts.retain(|&cut| cut < bytes.len());
    cuts
}

#[test]
fn fixtures_cut_at_any_byte_open_or_say_what_is_wrong() {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/recordings/v1");
    for name in ["spool.cairn", "packed.cairn", "packed-stream.cairn"] {
        let whole = std::fs::read(std::path::Path::new(directory).join(name)).unwrap();
        let cuts = if name.starts_with("spool") { telling_cuts(&whole) } else { (0..whole.len()).collect() };
        assert!(cuts.len() > 3000, "{name}: {} cuts", cuts.len());
        for cut in cuts {
            // A window reads less, and has to find its way all the same.
            let windows = [None, Some((100_000, 200_000))];
            for window in windows.into_iter().take(if cut % 8 == 3 { 2 } else { 1 }) {
                let bytes = whole[..cut].to_vec();
                let opened = match window {
                    None => Recording::from_bytes(bytes),
                    Some(window) => Recording::from_bytes_window(bytes, |_| window),
                };
                match opened {
                    Ok(recording) => {
                        let said = recording.findings();
                        assert!(
                            !said.is_empty() && said.iter().all(|finding| !finding.to_string().is_empty())
                        );
                        let mut answer = Sum::default();
                        recording.read(&Wanted::ALL, &mut answer).unwrap();
                    }
                    Err(error) => {
                        assert!(cut < 64 && !error.to_string().is_empty(), "{name}: {cut}: {error}")
                    }
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn no_mutation_makes_the_reader_fail_badly(
        seed in 1_u64..6, changes in proptest::collection::vec((any::<u32>(), any::<u8>()), 1..12), is_packed: bool,
        fix in any::<bool>(),
    ) {
        let mut bytes = sample(seed, is_packed);
        for (place, value) in changes {
            // Mostly where something is: headers of segments and chunks, and records.
            let place = place as usize % bytes.len();
            let place = if is_packed || place.is_multiple_of(2) { place } else { place / 65536 * 65536 + place % 2048 };
            let place = place.min(bytes.len() - 1);
            bytes[place] = value;
        }
        if fix && is_packed {
            repair_checks(&mut bytes);
        }
        survive(bytes);
    }
}

fn sample(seed: u64, is_packed: bool) -> Vec<u8> {
    static SAMPLES: std::sync::OnceLock<Vec<[Vec<u8>; 2]>> = std::sync::OnceLock::new();
    let samples = SAMPLES.get_or_init(|| {
        (1..6)
            .map(|seed| {
                let spool = rich(seed, 400);
                let packed = packed(&Recording::from_bytes(spool.clone()).unwrap());
                [spool, packed]
            })
            .collect()
    });
    samples[seed as usize - 1][usize::from(is_packed)].clone()
}

/// Makes checksums right again, so that what is behind them is reached by damage.
fn repair_checks(bytes: &mut [u8]) {
    use cairn_format::recording::{CHUNK_HEADER_BYTES, ChunkHeader};
    let mut offset = 64;
    while let Some(header) = bytes.get(offset..).and_then(ChunkHeader::read) {
        let body = offset + CHUNK_HEADER_BYTES;
        let Some(stored) = bytes.get(body..body + header.stored_bytes as usize) else { return };
        let header = ChunkHeader { check: crc32fast::hash(stored), ..header };
        bytes[offset..body].copy_from_slice(&header.to_bytes());
        offset = (body + header.stored_bytes as usize).next_multiple_of(8);
    }
}

/// Every released version's recording opens for ever and tells the same. `CAIRN_UPDATE_FIXTURES=1`
/// writes the files of the present version; those of a released one stay as they are.
#[test]
fn recordings_of_every_version_read_as_before() {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/recordings/v1");
    let path = |name: &str| std::path::Path::new(directory).join(name);
    if std::env::var_os("CAIRN_UPDATE_FIXTURES").is_some() {
        std::fs::create_dir_all(directory).unwrap();
        let spool = rich(11, 250);
        let recording = Recording::from_bytes(spool.clone()).unwrap();
        std::fs::write(path("spool.cairn"), spool).unwrap();
        // packed.cairn has the older kind of chunks, which nothing writes any more.
        std::fs::write(path("packed-stream.cairn"), packed(&recording)).unwrap();
        std::fs::write(path("expected.txt"), story(&recording)).unwrap();
    }
    let expected = std::fs::read_to_string(path("expected.txt")).unwrap();
    for name in ["spool.cairn", "packed.cairn", "packed-stream.cairn"] {
        let recording = Recording::open(path(name)).unwrap();
        assert!(
            story(&recording) == expected,
            "{name} tells something else; set CAIRN_UPDATE_FIXTURES=1 to see it"
        );
    }
}

/// Everything in a recording as lines.
fn story(recording: &Recording) -> String {
    let mut lines: Vec<String> = recording.facts().iter().map(|fact| format!("{fact:?}")).collect();
    lines.extend(recording.modules().iter().map(|module| format!("{module:?}")));
    // Packed recordings of the first release have the last name alone.
    lines.extend(recording.threads().iter().map(|thread| {
        let cairn_recording::Thread { id, kernel_thread, name, began_nanos, ended_nanos, .. } = thread;
        format!(
            "Thread {{ id: {id:?}, kernel_thread: {kernel_thread}, name: {name:?}, began_nanos: {began_nanos}, \
             ended_nanos: {ended_nanos:?} }}"
        )
    }));
    for stack in recording.stacks().ids() {
        lines.push(format!(
            "{stack:?} {:?}",
            recording.frames(stack).map(|frame| frame.place).collect::<Vec<_>>()
        ));
    }
    // Recordings of the first release do not have cairn's own share of the memory.
    let events = answer(recording, &Wanted::ALL).into_iter();
    lines.extend(events.map(|line| line.replace(", own_bytes: None", "")));
    lines.push(format!("{:?} {:?}", recording.end(), recording.findings()));
    lines.join("\n") + "\n"
}
