//! Draining the spool of a program that runs: nothing is lost, nothing is invented, and segments go
//! round.

#![cfg(target_os = "linux")]

#[path = "../../cairn-recording/tests/support/spool.rs"]
mod spool;

use std::collections::HashMap;
use std::fs::{self, File};
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cairn_analysis::names::AddressNames;
use cairn_analysis::player::{Event, Filter, Player as Replay, Tables, What};
use cairn_format::recording::{CounterKind, SEGMENT_BYTES, SEGMENT_HEADER_BYTES, SegmentHeader, control};
use cairn_recording::{
    Alloc, Drain, Events, Finding, Free, Mark, MarkValue, Recording, StackId, Wanted, mark_from_outside, pack,
};
use spool::{Program, Random, START, Spool};

/// Writes the records of a program's threads, in the same order, as the recorder would.
///
/// They go into segments of the free ring, or else from the end, never without storage.
struct Player<'a> {
    file: &'a File,
    spool: &'a Spool,
    /// For each segment of the spool: where it is in the file, and how much of it was written.
    places: HashMap<usize, (u64, usize)>,
    claimed: u64,
    taken: u64,
    claims: u64,
    reused: u64,
}

impl Player<'_> {
    fn word(&self, at: usize) -> u64 {
        let mut bytes = [0; 8];
        self.file.read_exact_at(&mut bytes, at as u64).unwrap();
        u64::from_le_bytes(bytes)
    }

    fn set(&self, at: u64, value: u64) {
        self.file.write_all_at(&value.to_le_bytes(), at).unwrap();
    }

    fn claim(&mut self) -> u64 {
        let start = Instant::now();
        loop {
            if self.word(control::FREE_GIVEN) > self.taken {
                let entry = self.taken as usize % control::FREE_RING_ENTRIES;
                let mut bytes = [0; 4];
                self.file.read_exact_at(&mut bytes, (control::FREE_RING + entry * 4) as u64).unwrap();
                self.taken += 1;
                self.set(control::FREE_TAKEN as u64, self.taken);
                self.reused += 1;
                return u32::from_le_bytes(bytes).into();
            }
            if self.claimed < self.word(control::BACKED_SEGMENTS) {
                self.claimed += 1;
                self.set(control::CLAIMED_SEGMENTS as u64, self.claimed);
                return self.claimed - 1;
            }
            assert!(start.elapsed() < Duration::from_secs(20), "nobody gives storage");
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    fn write(&mut self, segment: usize, slots: usize) {
        let (head, content) = self.spool.content_of(segment);
        if !self.places.contains_key(&segment) {
            let place = self.claim() * SEGMENT_BYTES as u64;
            self.claims += 1;
            let head = SegmentHeader { committed_bytes: 0, claim: self.claims, ..head };
            let mut bytes = head.to_bytes();
            bytes[SegmentHeader::COMMITTED_OFFSET..][..8].fill(0);
            self.file.write_all_at(&bytes, place).unwrap();
            self.set(place + SegmentHeader::COMMITTED_OFFSET as u64, SEGMENT_HEADER_BYTES as u64);
            self.places.insert(segment, (place, 0));
        }
        let (place, written) = self.places[&segment];
        let bytes: Vec<u8> =
            content[written..written + slots].iter().flat_map(|slot| slot.to_le_bytes()).collect();
        let at = place + (SEGMENT_HEADER_BYTES + written * 8) as u64;
        self.file.write_all_at(&bytes, at).unwrap();
        let end = SEGMENT_HEADER_BYTES + (written + slots) * 8;
        self.set(place + SegmentHeader::COMMITTED_OFFSET as u64, end as u64);
        self.places.insert(segment, (place, written + slots));
    }
}

fn directory(name: &str) -> PathBuf {
    let directory = std::env::temp_dir().join(format!("cairn-drain-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir_all(&directory).unwrap();
    directory
}

/// Builds a program that fills several segments on each thread.
fn busy_program(threads: u32, events: u32) -> Program {
    program_with_segments(threads, events, SEGMENT_BYTES)
}

fn program_with_segments(threads: u32, events: u32, segment_bytes: usize) -> Program {
    let mut random = Random(3);
    let mut program = Program::new(threads, 8);
    program.spool.segment_bytes = segment_bytes;
    program.spool.begin_journal();
    let stacks = program.spool.stacks(50);
    for number in 0..events {
        program.counter += random.below(400);
        let thread = 1 + random.below(u64::from(threads)) as u32;
        if program.live.len() < 100 && random.below(5) < 3 || program.live.is_empty() {
            let stack = stacks[random.below(50) as usize];
            program.alloc(thread, 16 + random.below(1000), stack);
        } else {
            let index = random.below(program.live.len() as u64) as usize;
            program.free(thread, index);
        }
        if number % 1000 == 0 {
            let counter = program.counter;
            program.spool.mark(thread, counter, stacks[0], "a round");
        }
    }
    program
}

#[derive(Default)]
struct Sums {
    allocations: u64,
    live: HashMap<u32, u64>,
    marks: u64,
}

impl Events for Sums {
    fn alloc(&mut self, event: &Alloc) {
        self.allocations += 1;
        assert_eq!(self.live.insert(event.object.number(), event.size_bytes), None);
    }
    fn free(&mut self, event: &Free) {
        assert_eq!(self.live.remove(&event.object.number()), Some(event.size_bytes));
    }
    fn mark(&mut self, _: &Mark<'_>) {
        self.marks += 1;
    }
}

fn begin(spool_path: &Path, spool: &Spool) -> File {
    let mut first = spool.to_bytes();
    first.truncate(SEGMENT_BYTES);
    for (word, value) in [(control::CLAIMED_SEGMENTS, 1_u64), (control::BACKED_SEGMENTS, 1)] {
        first[word..word + 8].copy_from_slice(&value.to_le_bytes());
    }
    fs::write(spool_path, first).unwrap();
    File::options().read(true).write(true).open(spool_path).unwrap()
}

#[test]
fn segments_are_taken_while_the_free_ring_is_full() {
    const LAG: usize = control::FREE_RING_ENTRIES + 1000;
    let directory = directory("full-ring");
    let (spool_path, packed_path) = (directory.join("spool"), directory.join("packed"));
    // The smallest segments that hold the stacks, so that there are many.
    let mut program = program_with_segments(1, 120_000, 200);
    program.spool.clock(program.counter);
    let journal = program.spool.journal.take().unwrap();
    let file = begin(&spool_path, &program.spool);
    // Storage for all that is written before anybody drains.
    let backed = LAG as u64 + 10;
    file.set_len(backed * SEGMENT_BYTES as u64).unwrap();
    file.write_all_at(&backed.to_le_bytes(), control::BACKED_SEGMENTS as u64).unwrap();

    let mut drain = Drain::open(&spool_path, &packed_path).unwrap();
    let spool = &program.spool;
    let mut player =
        Player { file: &file, spool, places: HashMap::new(), claimed: 1, taken: 0, claims: 0, reused: 0 };
    let mut rest = journal.into_iter();
    while player.places.len() < LAG {
        let (segment, slots) = rest.next().expect("there are more segments");
        player.write(segment, slots);
    }
    // The segments that it gets back fill the ring.
    for _ in 0..3 {
        drain.step().unwrap();
    }
    let ended = AtomicBool::new(false);
    let reused = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            rest.for_each(|(segment, slots)| player.write(segment, slots));
            ended.store(true, Ordering::Release);
            player.reused
        });
        while !ended.load(Ordering::Acquire) {
            drain.step().unwrap();
        }
        writer.join().unwrap()
    });
    let (summary, findings) = drain.finish().unwrap();
    assert_eq!(findings, []);
    assert!(reused > 1000, "{reused} segments were used again");
    assert_eq!(
        (summary.allocations, summary.allocated_bytes, summary.unmatched_frees),
        (program.allocations, program.allocated_bytes, 0)
    );
    fs::remove_dir_all(directory).unwrap();
}

#[test]
fn drain_reads_behind_a_missing_segment_and_counts_it() {
    let directory = directory("gap");
    let (spool_path, packed_path) = (directory.join("spool"), directory.join("packed"));
    let mut program = program_with_segments(1, 4_000, 1000);
    program.spool.clock(program.counter);
    let journal = program.spool.journal.take().unwrap();
    let segments = journal.iter().map(|(segment, _)| segment + 1).max().unwrap();
    assert!(segments > 40);
    let file = begin(&spool_path, &program.spool);
    file.set_len((segments as u64 + 10) * SEGMENT_BYTES as u64).unwrap();
    file.write_all_at(&(segments as u64 + 10).to_le_bytes(), control::BACKED_SEGMENTS as u64).unwrap();

    let mut drain = Drain::open(&spool_path, &packed_path).unwrap();
    let spool = &program.spool;
    let mut player =
        Player { file: &file, spool, places: HashMap::new(), claimed: 1, taken: 0, claims: 0, reused: 0 };
    let missing = segments / 2;
    for (segment, slots) in journal {
        if segment != missing {
            player.write(segment, slots);
        } else if !player.places.contains_key(&segment) {
            // Taken, and never begun.
            let place = player.claim() * SEGMENT_BYTES as u64;
            player.places.insert(segment, (place, 0));
        }
    }
    drain.step().unwrap();
    let (summary, findings) = drain.finish().unwrap();
    assert_eq!(findings, [Finding::MissingSegments { thread: 1, count: 1 }]);
    let retained = summary.allocations as f64 / program.allocations as f64;
    let expected = 1.0 - 1.0 / segments as f64;
    assert!(
        retained < 1.0 && retained > expected - 0.02,
        "{retained} of the allocations, {segments} segments"
    );
    fs::remove_dir_all(directory).unwrap();
}

/// All that a program writes is there before anybody drains.
///
/// `counter` says when its segments were taken.
fn drained_late(test: &str, counter: impl Fn(u64) -> u64) -> Vec<u64> {
    let directory = directory(test);
    let (spool_path, packed_path) = (directory.join("spool"), directory.join("packed"));
    let mut program = busy_program(2, 800_000);
    program.spool.clock(program.counter);
    let mut bytes = program.spool.to_bytes();
    let segments = bytes.len() / SEGMENT_BYTES;
    for segment in 1..segments {
        let head = segment * SEGMENT_BYTES;
        let mut header = SegmentHeader::read(&bytes[head..head + SEGMENT_HEADER_BYTES]).unwrap();
        header.counter = counter(header.counter);
        bytes[head..head + SEGMENT_HEADER_BYTES].copy_from_slice(&header.to_bytes());
    }
    for word in [control::CLAIMED_SEGMENTS, control::BACKED_SEGMENTS] {
        bytes[word..word + 8].copy_from_slice(&(segments as u64).to_le_bytes());
    }
    fs::write(&spool_path, bytes).unwrap();
    let mut drain = Drain::open(&spool_path, &packed_path).unwrap();
    let mut seen = Vec::new();
    for _ in 0..12 {
        seen.push(drain.step().unwrap().allocations);
    }
    let (summary, findings) = drain.finish().unwrap();
    assert_eq!(findings, []);
    assert_eq!(
        (summary.allocations, summary.allocated_bytes, summary.unmatched_frees),
        (program.allocations, program.allocated_bytes, 0)
    );
    fs::remove_dir_all(directory).unwrap();
    seen.retain(|&allocations| 0 < allocations && allocations < program.allocations);
    seen.dedup();
    seen
}

#[test]
fn what_lies_behind_a_gap_is_read_in_parts() {
    let directory = directory("long-gap");
    let (spool_path, packed_path) = (directory.join("spool"), directory.join("packed"));
    let mut program = busy_program(1, 1_200_000);
    program.spool.clock(program.counter);
    let mut bytes = program.spool.to_bytes();
    let segments = bytes.len() / SEGMENT_BYTES;
    // Taken, and never begun.
    bytes[3 * SEGMENT_BYTES..4 * SEGMENT_BYTES].fill(0);
    for word in [control::CLAIMED_SEGMENTS, control::BACKED_SEGMENTS] {
        bytes[word..word + 8].copy_from_slice(&(segments as u64).to_le_bytes());
    }
    fs::write(&spool_path, bytes).unwrap();
    let mut drain = Drain::open(&spool_path, &packed_path).unwrap();
    let mut seen = vec![0];
    while seen.len() < 1000 {
        let status = drain.read_rest().unwrap();
        seen.push(status.allocations);
        if !status.is_busy {
            break;
        }
    }
    // Four mebibytes of allocations and frees hold no more than this.
    let parts: Vec<u64> = seen.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(parts.len() >= 3 && parts.iter().all(|&part| part < 300_000), "{parts:?}");
    let (summary, findings) = drain.finish().unwrap();
    assert_eq!(findings, [Finding::MissingSegments { thread: 1, count: 1 }]);
    assert_eq!(seen.last(), Some(&summary.allocations));
    let retained = summary.allocations as f64 / program.allocations as f64;
    assert!(
        retained < 1.0 && retained > 1.0 - 2.0 / segments as f64,
        "{retained} of the allocations, {segments} segments"
    );
    fs::remove_dir_all(directory).unwrap();
}

#[test]
fn who_has_fallen_behind_catches_up_in_parts() {
    let parts = drained_late("late", |counter| counter);
    assert!(!parts.is_empty(), "all was read at once");
}

#[test]
fn times_of_segments_that_cannot_be_hold_nothing_up() {
    drained_late("impossible-times", |_| START);
    drained_late("later-times", |counter| counter + (1 << 40));
}

#[test]
fn a_running_program_is_drained_and_its_segments_go_round() {
    let directory = directory("round");
    let (spool_path, packed_path) = (directory.join("spool"), directory.join("packed"));
    let mut program = busy_program(3, 400_000);
    program.spool.clock(program.counter);
    let journal = program.spool.journal.take().unwrap();
    let file = begin(&spool_path, &program.spool);

    let mut drain = Drain::open(&spool_path, &packed_path).unwrap();
    let ended = AtomicBool::new(false);
    let reused = AtomicU64::new(0);
    let steps = std::thread::scope(|scope| {
        scope.spawn(|| {
            let (spool, file) = (&program.spool, &file);
            let places = HashMap::new();
            let mut player = Player { file, spool, places, claimed: 1, taken: 0, claims: 0, reused: 0 };
            for &(segment, slots) in &journal {
                player.write(segment, slots);
            }
            reused.store(player.reused, Ordering::Relaxed);
            ended.store(true, Ordering::Release);
        });
        let mut steps = 0;
        while !ended.load(Ordering::Acquire) {
            drain.step().unwrap();
            steps += 1;
            std::thread::sleep(Duration::from_millis(1));
        }
        steps
    });
    let (summary, findings) = drain.finish().unwrap();
    assert_eq!(findings, []);
    assert!(steps > 3);
    let live: u64 = program.live.iter().map(|block| block.size_bytes).sum();
    assert_eq!(
        (summary.allocations, summary.allocated_bytes),
        (program.allocations, program.allocated_bytes)
    );
    assert_eq!((summary.live_bytes, summary.live_blocks), (live, program.live.len() as u64));
    assert_eq!((summary.marks, summary.unmatched_frees), (400, 0));

    let packed = Recording::open(&packed_path).unwrap();
    let mut sums = Sums::default();
    let outcome = packed.read(&Wanted::ALL, &mut sums).unwrap();
    assert!(outcome.findings.is_empty());
    assert_eq!((sums.allocations, sums.marks), (program.allocations, 400));
    assert_eq!(sums.live.values().sum::<u64>(), live);
    let offline = Recording::from_bytes(program.spool.to_bytes()).unwrap();
    assert_eq!(packed.stacks().ids().count(), offline.stacks().ids().count());
    for stack in offline.stacks().ids() {
        assert!(packed.frames(stack).eq(offline.frames(stack)));
    }
    assert!(packed.frames(StackId::from_number(3)).count() > 0);
    assert_eq!(packed.threads().len(), 3);
    // 400,000 events fill some 130 segments; with flushes every half second the ring may stay
    // unused on a fast machine.
    let segments = fs::metadata(&spool_path).unwrap().len() / SEGMENT_BYTES as u64;
    assert!(segments < 1500, "{segments} segments, {} reused", reused.load(Ordering::Relaxed));
    fs::remove_dir_all(directory).unwrap();
}

#[test]
fn segments_come_back_to_a_program_that_has_little_storage() {
    let directory = directory("little");
    let (spool_path, packed_path) = (directory.join("spool"), directory.join("packed"));
    let mut program = busy_program(2, 150_000);
    let journal = program.spool.journal.take().unwrap();
    let file = begin(&spool_path, &program.spool);
    let mut drain = Drain::open(&spool_path, &packed_path).unwrap();
    let places = HashMap::new();
    let mut player =
        Player { file: &file, spool: &program.spool, places, claimed: 1, taken: 0, claims: 0, reused: 0 };
    // Between two parts the drain has time to give everything back.
    for part in journal.chunks(30_000) {
        part.iter().for_each(|&(segment, slots)| player.write(segment, slots));
        std::thread::sleep(Duration::from_millis(510));
        (0..3).for_each(|_| assert!(drain.step().is_ok()));
    }
    assert_eq!(drain.findings(), []);
    assert!(player.reused > 10, "only {} segments were used again", player.reused);
    let (summary, findings) = drain.finish().unwrap();
    assert_eq!(findings, []);
    assert_eq!(summary.allocations, program.allocations);
    assert_eq!(summary.live_blocks, program.live.len() as u64);
    fs::remove_dir_all(directory).unwrap();
}

#[test]
fn a_packed_file_of_a_killed_drain_opens() {
    let directory = directory("killed");
    let (spool_path, packed_path) = (directory.join("spool"), directory.join("packed"));
    let mut program = busy_program(1, 20_000);
    let journal = program.spool.journal.take().unwrap();
    let file = begin(&spool_path, &program.spool);
    let mut drain = Drain::open(&spool_path, &packed_path).unwrap();
    let places = HashMap::new();
    let mut player =
        Player { file: &file, spool: &program.spool, places, claimed: 1, taken: 0, claims: 0, reused: 0 };
    journal.iter().for_each(|&(segment, slots)| player.write(segment, slots));
    for _ in 0..3 {
        std::thread::sleep(Duration::from_millis(300));
        drain.step().unwrap();
    }
    // As a kill would: neither summary nor index.
    drop(drain);
    let packed = Recording::open(&packed_path).unwrap();
    let mut sums = Sums::default();
    packed.read(&Wanted::ALL, &mut sums).unwrap();
    assert_eq!(sums.allocations, program.allocations);
    assert!(packed.totals().is_none() && packed.findings().contains(&Finding::NotClosed));
    // Both tell of the other one.
    let rest = Recording::open(&spool_path).unwrap();
    assert!(rest.findings().iter().any(|finding| matches!(finding, Finding::Drained { segments: 1.. })));
    fs::remove_dir_all(directory).unwrap();
}

/// Sums of a recording of [`busy_program`].
#[derive(Default)]
struct Reported {
    allocations: u64,
    frees: u64,
    live: HashMap<u32, u64>,
    marks: Vec<MarkValue>,
}

impl Events for Reported {
    fn alloc(&mut self, event: &Alloc) {
        self.allocations += 1;
        assert_eq!(self.live.insert(event.object.number(), event.size_bytes), None);
    }
    fn free(&mut self, event: &Free) {
        self.frees += 1;
        assert_eq!(self.live.remove(&event.object.number()), Some(event.size_bytes));
    }
    fn mark(&mut self, event: &Mark<'_>) {
        self.marks.push(event.value);
    }
}

const DRAINED: &str = "CAIRN_TEST_DRAINED_SPOOL";

/// Drains in the process that [`a_killed_drain_loses_nothing_and_tells_nothing_twice`] kills.
///
/// This is not a test by itself.
#[test]
fn drains_until_it_is_killed() {
    let Some(spool) = std::env::var_os(DRAINED) else { return };
    let spool = PathBuf::from(spool);
    let mut drain = Drain::open(&spool, &spool.with_extension("spool.new")).unwrap();
    drain.set_flush_after(Duration::from_millis(3));
    loop {
        drain.step().unwrap();
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// So much room in the file that the program needs nobody.
const ROOM_SEGMENTS: u64 = 256;

#[test]
fn a_killed_drain_loses_nothing_and_tells_nothing_twice() {
    let directory = directory("kill");
    let seed = std::process::id().into();
    let mut random = Random(seed);
    let (mut continued, mut retained) = (0, 0);
    for round in 0..20 {
        let spool_path = directory.join(format!("{round}.spool"));
        let mut program = busy_program(3, 40_000);
        let journal = program.spool.journal.take().unwrap();
        let file = begin(&spool_path, &program.spool);
        file.set_len(ROOM_SEGMENTS * SEGMENT_BYTES as u64).unwrap();
        file.write_all_at(&ROOM_SEGMENTS.to_le_bytes(), control::BACKED_SEGMENTS as u64).unwrap();
        let mut drain = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "drains_until_it_is_killed"])
            .env(DRAINED, &spool_path)
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let packed_path = spool_path.with_extension("spool.new");
        while fs::metadata(&packed_path).map_or(0, |metadata| metadata.len()) < 64 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let places = HashMap::new();
        let mut player =
            Player { file: &file, spool: &program.spool, places, claimed: 1, taken: 0, claims: 0, reused: 0 };
        let (before, after) = journal.split_at(random.below(journal.len() as u64) as usize);
        before.iter().for_each(|&(segment, slots)| player.write(segment, slots));
        std::thread::sleep(Duration::from_micros(random.below(6000)));
        drain.kill().unwrap();
        drain.wait().unwrap();
        after.iter().for_each(|&(segment, slots)| player.write(segment, slots));
        // Under either name it is the same recording.
        for path in [&packed_path, &spool_path] {
            let recording = Recording::open(path).unwrap();
            let mut answer = Reported::default();
            let outcome = recording.read(&Wanted::ALL, &mut answer).unwrap();
            let context =
                format!("seed {seed}, round {round}, {}: {:?}", path.display(), recording.findings());
            assert_eq!(outcome.findings, [], "{context}");
            let numbers = answer.marks.iter().map(|value| match value {
                MarkValue::Integer(number) => *number,
                other => panic!("{context}: {other:?}"),
            });
            let mut numbers: Vec<i64> = numbers.collect();
            numbers.sort_unstable();
            assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]), "{context}: a mark came twice");
            assert_eq!(numbers.len(), 40, "{context}");
            assert_eq!(answer.allocations, program.allocations, "{context}");
            let frees = program.allocations - program.live.len() as u64;
            // Which block a free is of is known by all that came before: where the two files meet,
            // a block that was found dead by another proof has its own free counted as well, and a
            // free that came early finds no block.
            let counted = answer.frees + outcome.unmatched_frees;
            assert!(
                answer.frees <= frees && counted.abs_diff(frees) < 200,
                "{context}: {counted} of {frees}"
            );
            assert_eq!(recording.threads().len(), 3, "{context}");
            let is_continued =
                recording.findings().iter().any(|finding| matches!(finding, Finding::Continued { .. }));
            let all_in_spool =
                !recording.findings().iter().any(|finding| matches!(finding, Finding::Drained { .. }));
            // Before the first segment is given back, the spool has everything.
            assert!(is_continued || *path == spool_path && all_in_spool, "{context}");
            continued += u32::from(is_continued);
            retained += u32::from(answer.frees < frees);
            // And it can be made one that is whole.
            let mut packed = Vec::new();
            pack(&recording, &mut packed).unwrap();
            let whole = Recording::from_bytes(packed).unwrap();
            let mut again = Reported::default();
            assert_eq!(whole.read(&Wanted::ALL, &mut again).unwrap(), outcome, "{context}");
            assert_eq!((again.allocations, again.frees), (answer.allocations, answer.frees), "{context}");
            assert!(again.marks == answer.marks && again.live == answer.live, "{context}");
            let first = StackId::from_number(3);
            assert!(recording.frames(first).count() > 0, "{context}");
        }
        fs::remove_file(packed_path).unwrap();
        fs::remove_file(spool_path).unwrap();
    }
    assert!(
        continued > 15 && retained > 0,
        "{continued} were continued, {retained} had segments of before the kill"
    );
    fs::remove_dir_all(directory).unwrap();
}

/// Follows the file and calls `write` between the reads, until that has nothing more.
///
/// Returns the numbers of the marks.
fn follow(path: &Path, write: &mut dyn FnMut() -> bool) -> Vec<i64> {
    let mut marks = Vec::new();
    let mut times = Vec::new();
    let mut has_more = true;
    let mut sink = |event: &Event, _: &dyn Tables, _: Option<&mut AddressNames>| {
        times.push(event.nanos);
        if let What::Mark { value: MarkValue::Integer(number), .. } = event.what {
            marks.push(number);
        }
        ControlFlow::Continue(())
    };
    let mut pause = || {
        has_more = has_more && write();
        ControlFlow::Continue(())
    };
    let player = Replay::follow(path, &Filter::default(), None, &mut sink, &mut pause).unwrap();
    assert!(player.is_whole(), "{:?}", player.findings());
    assert_eq!(player.tables().threads().len(), 3);
    assert!(times.is_sorted());
    marks
}

/// The numbers of its marks, in order.
fn marks_of(program: &Program) -> Vec<i64> {
    let mut answer = Reported::default();
    Recording::from_bytes(program.spool.to_bytes()).unwrap().read(&Wanted::OTHERS, &mut answer).unwrap();
    let numbers = answer.marks.iter().filter_map(|value| match value {
        MarkValue::Integer(number) => Some(*number),
        _ => None,
    });
    numbers.collect()
}

/// A program that is there for as long as the test, and ends by its own word.
fn ending_program() -> (Program, Vec<(usize, usize)>) {
    let mut program = busy_program(3, 60_000);
    program.spool.header.process = std::process::id();
    let counter = program.counter + 3_000_000;
    program.spool.clock(counter);
    program.spool.end(counter);
    let journal = program.spool.journal.take().unwrap();
    (program, journal)
}

#[test]
fn a_spool_that_grows_is_followed_and_nothing_is_read_twice() {
    let directory = directory("follow-spool");
    let path = directory.join("spool");
    let (program, journal) = ending_program();
    let file = begin(&path, &program.spool);
    file.set_len(ROOM_SEGMENTS * SEGMENT_BYTES as u64).unwrap();
    let recording = control::State::Recording.to_word();
    for (word, value) in [(control::BACKED_SEGMENTS, ROOM_SEGMENTS), (control::STATE, recording)] {
        file.write_all_at(&value.to_le_bytes(), word as u64).unwrap();
    }
    let places = HashMap::new();
    let mut player =
        Player { file: &file, spool: &program.spool, places, claimed: 1, taken: 0, claims: 0, reused: 0 };
    let mut parts = journal.chunks(3_001);
    let mut attempts = 0;
    let marks = follow(&path, &mut || {
        // Data that existed at the read before is not read again.
        for &(place, written) in player.places.values().filter(|_| attempts > 0) {
            let zeros = vec![0xff; written * 8];
            file.write_all_at(&zeros, place + SEGMENT_HEADER_BYTES as u64).unwrap();
        }
        attempts += 1;
        let part = parts.next();
        part.into_iter().flatten().for_each(|&(segment, slots)| player.write(segment, slots));
        part.is_some()
    });
    assert!(attempts > 10, "{attempts} attempts");
    assert_eq!(marks, marks_of(&program));
    fs::remove_dir_all(directory).unwrap();
}

#[test]
fn a_recording_that_is_being_packed_is_followed() {
    let directory = directory("follow-packed");
    let (spool_path, packed_path) = (directory.join("spool"), directory.join("packed"));
    let (program, journal) = ending_program();
    let file = begin(&spool_path, &program.spool);
    let mut drain = Some(Drain::open(&spool_path, &packed_path).unwrap());
    drain.as_mut().unwrap().set_flush_after(Duration::ZERO);
    let places = HashMap::new();
    let mut player =
        Player { file: &file, spool: &program.spool, places, claimed: 1, taken: 0, claims: 0, reused: 0 };
    let mut parts = journal.chunks(3_001);
    let marks = follow(&packed_path, &mut || match parts.next() {
        Some(part) => {
            part.iter().for_each(|&(segment, slots)| player.write(segment, slots));
            drain.as_mut().unwrap().step().unwrap();
            true
        }
        None => {
            let (_, findings) = drain.take().unwrap().finish().unwrap();
            assert_eq!(findings, []);
            false
        }
    });
    assert_eq!(marks, marks_of(&program));
    // A spool that is drained at the same time would tell a part.
    let refused = Replay::follow(
        &spool_path,
        &Filter::default(),
        None,
        &mut |_, _, _| ControlFlow::Continue(()),
        &mut || ControlFlow::Break(()),
    );
    assert!(refused.is_err_and(|error| error.to_string().contains("cairn drains it")));
    fs::remove_dir_all(directory).unwrap();
}

/// The texts of all marks, each with the name of its thread.
fn marks(recording: &Recording) -> Vec<(String, String)> {
    struct Texts<'a>(&'a Recording, Vec<(String, String)>);
    impl Events for Texts<'_> {
        fn mark(&mut self, event: &Mark<'_>) {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            let thread = self.0.thread(event.at.thread).map(|thread| text(&thread.name));
            self.1.push((text(event.text), thread.unwrap_or_default()));
        }
    }
    let mut texts = Texts(recording, Vec::new());
    recording.read(&Wanted::ALL, &mut texts).unwrap();
    texts.1
}

#[test]
fn external_marks_are_in_the_spool_and_in_the_drained_file() {
    let directory = directory("outside");
    let (spool_path, packed_path) = (directory.join("spool"), directory.join("packed"));
    let mut program = busy_program(1, 5_000);
    let journal = program.spool.journal.take().unwrap();
    let file = begin(&spool_path, &program.spool);
    let full = mark_from_outside(&spool_path, b"too early").unwrap_err().to_string();
    assert!(full.contains("no free storage"), "{full}");
    let mut drain = Drain::open(&spool_path, &packed_path).unwrap();
    mark_from_outside(&spool_path, b"before").unwrap();
    let claimed = u64::from_le_bytes({
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, control::CLAIMED_SEGMENTS as u64).unwrap();
        bytes
    });
    assert_eq!(claimed, 2, "the mark has a segment of its own");
    let places = HashMap::new();
    let mut player =
        Player { file: &file, spool: &program.spool, places, claimed, taken: 0, claims: 1, reused: 0 };
    let (first, second) = journal.split_at(journal.len() / 2);
    first.iter().for_each(|&(segment, slots)| player.write(segment, slots));
    drain.step().unwrap();
    mark_from_outside(&spool_path, &[b'x'; 5000]).unwrap();
    player.claimed += 1;
    second.iter().for_each(|&(segment, slots)| player.write(segment, slots));

    let known = |text: &str| (text.to_owned(), "cairn".to_owned());
    let expected = vec![known("before"), known(&"x".repeat(4096))];
    let mut of_spool = marks(&Recording::open(&spool_path).unwrap());
    of_spool.retain(|(_, thread)| thread == "cairn");
    assert_eq!(of_spool, expected);
    let (summary, _) = drain.finish().unwrap();
    assert_eq!(summary.allocations, program.allocations);
    let packed = Recording::open(&packed_path).unwrap();
    let mut of_packed = marks(&packed);
    of_packed.retain(|(_, thread)| thread == "cairn");
    assert_eq!(of_packed, expected);
    let closed = mark_from_outside(&packed_path, b"too late").unwrap_err().to_string();
    assert!(closed.contains("closed"), "{closed}");
    fs::remove_dir_all(directory).unwrap();
}

#[test]
fn what_is_no_spool_is_refused() {
    let directory = directory("refused");
    let path = directory.join("spool");
    let open = || Drain::open(&path, &directory.join("packed")).err().map(|error| error.to_string());
    assert!(open().is_some_and(|error| error.contains("opening the spool")));
    fs::write(&path, b"").unwrap();
    assert!(open().is_some());
    fs::write(&path, [b'x'; 100_000]).unwrap();
    assert!(open().is_some_and(|error| error.contains("no cairn recording")));
    let spool = Spool::new(CounterKind::MonotonicNanos);
    assert_eq!(spool.header.start_counter, START);
    fs::remove_dir_all(directory).unwrap();
}
