//! A heap that grows while it is looked at: at any moment the sums of what is there, and at the end
//! exactly what a reader of the whole finds.

#![cfg(target_os = "linux")]

#[path = "../../cairn-recording/tests/support/spool.rs"]
mod spool;

use std::collections::HashMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cairn_analysis::heap::slices::SliceOptions;
use cairn_analysis::heap::{HeapRead, HeapRecording, LiveFilter, LiveHeap, Scope, Stacks, Sums};
use cairn_format::recording::{SEGMENT_BYTES, SEGMENT_HEADER_BYTES, SegmentHeader, control};
use cairn_recording::{Drain, EndReason, Finding, Recording};
use spool::{Program, Random, Spool};

/// Writes the records of a program's threads into a file, in the same order, as the recorder
/// would.
///
/// They go into segments of the free ring, or else from the end.
struct Writer<'a> {
    file: File,
    spool: &'a Spool,
    /// For each segment of the spool: where it is in the file, and how much of it was written.
    places: HashMap<usize, (u64, usize)>,
    claimed: u64,
    taken: u64,
}

impl<'a> Writer<'a> {
    /// The file with its first segment, and room for a program that nobody drains.
    fn new(path: &Path, spool: &'a Spool) -> Self {
        const ROOM_SEGMENTS: u64 = 4096;
        let mut first = spool.to_bytes();
        first.truncate(SEGMENT_BYTES);
        fs::write(path, first).unwrap();
        let file = File::options().read(true).write(true).open(path).unwrap();
        file.set_len(ROOM_SEGMENTS * SEGMENT_BYTES as u64).unwrap();
        let writer = Self { file, spool, places: HashMap::new(), claimed: 1, taken: 0 };
        let recording = control::State::Recording.to_word();
        for (word, value) in [
            (control::CLAIMED_SEGMENTS, 1),
            (control::BACKED_SEGMENTS, ROOM_SEGMENTS),
            (control::STATE, recording),
        ] {
            writer.set(word as u64, value);
        }
        writer
    }

    fn set(&self, at: u64, value: u64) {
        self.file.write_all_at(&value.to_le_bytes(), at).unwrap();
    }

    fn claim(&mut self) -> u64 {
        let mut word = [0; 8];
        self.file.read_exact_at(&mut word, control::FREE_GIVEN as u64).unwrap();
        if u64::from_le_bytes(word) > self.taken {
            let entry = self.taken as usize % control::FREE_RING_ENTRIES;
            let mut segment = [0; 4];
            self.file.read_exact_at(&mut segment, (control::FREE_RING + entry * 4) as u64).unwrap();
            self.taken += 1;
            self.set(control::FREE_TAKEN as u64, self.taken);
            return u32::from_le_bytes(segment).into();
        }
        self.claimed += 1;
        self.set(control::CLAIMED_SEGMENTS as u64, self.claimed);
        self.claimed - 1
    }

    /// Writes all of this, segment by segment: a later reader sees no difference.
    fn write_all(&mut self, journal: &[(usize, usize)]) {
        let mut segments: Vec<(usize, usize)> = Vec::new();
        let mut places: HashMap<usize, usize> = HashMap::new();
        for &(segment, slots) in journal {
            let place = *places.entry(segment).or_insert_with(|| {
                segments.push((segment, 0));
                segments.len() - 1
            });
            segments[place].1 += slots;
        }
        segments.into_iter().for_each(|(segment, slots)| self.write(segment, slots));
    }

    fn write(&mut self, segment: usize, slots: usize) {
        let (head, content) = self.spool.content_of(segment);
        if !self.places.contains_key(&segment) {
            let place = self.claim() * SEGMENT_BYTES as u64;
            let head = SegmentHeader { committed_bytes: 0, ..head };
            let mut bytes = head.to_bytes();
            bytes[SegmentHeader::COMMITTED_OFFSET..][..8].fill(0);
            self.file.write_all_at(&bytes, place).unwrap();
            self.set(place + SegmentHeader::COMMITTED_OFFSET as u64, SEGMENT_HEADER_BYTES as u64);
            self.places.insert(segment, (place, 0));
        }
        let (place, written) = self.places[&segment];
        let slots_to_write = &content[written..written + slots];
        let bytes: Vec<u8> = slots_to_write.iter().flat_map(|slot| slot.to_le_bytes()).collect();
        self.file.write_all_at(&bytes, place + (SEGMENT_HEADER_BYTES + written * 8) as u64).unwrap();
        let end = SEGMENT_HEADER_BYTES + (written + slots) * 8;
        self.set(place + SegmentHeader::COMMITTED_OFFSET as u64, end as u64);
        self.places.insert(segment, (place, written + slots));
    }
}

fn directory(name: &str) -> PathBuf {
    let directory = std::env::temp_dir().join(format!("cairn-heap-live-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir_all(&directory).unwrap();
    directory
}

/// A program of some threads that runs in `process`, and what it wrote, piece by piece.
fn program(threads: u32, events: u32, process: u32, says_end: bool) -> (Program, Vec<(usize, usize)>) {
    let mut random = Random(events.into());
    let mut program = Program::new(1, 8);
    program.spool.begin_journal();
    program.spool.header.process = process;
    let stacks = program.spool.stacks(50);
    let mut grown = Program::new(threads, 8);
    std::mem::swap(&mut grown.spool, &mut program.spool);
    for number in 0..events {
        // Threads and stacks come one after the other, so that tables have to grow.
        let known = u64::from(1 + number * 4 / events);
        grown.counter += random.below(400);
        let thread = 1 + random.below(u64::from(threads).min(known)) as u32;
        if grown.live.len() < 100 && random.below(5) < 3 || grown.live.is_empty() {
            let stack = stacks[random.below(12 * known) as usize];
            grown.alloc(thread, 16 + random.below(1000), stack);
        } else {
            let index = random.below(grown.live.len() as u64) as usize;
            grown.free(thread, index);
        }
    }
    let counter = grown.counter;
    for number in 0..3 {
        grown.spool.mark(threads - number % 2, counter + u64::from(number), stacks[0], "nearly done");
    }
    for thread in 1..=threads {
        grown.counter = counter + 10_000;
        grown.alloc(thread, 8, stacks[0]);
    }
    grown.spool.clock(counter + 3_000_000);
    if says_end {
        grown.spool.end(counter + 4_000_000);
    }
    let journal = grown.spool.journal.take().unwrap();
    (grown, journal)
}

fn read(path: &Path) -> (HeapRead, Stacks) {
    let heap = HeapRecording::new(Recording::open(path).unwrap());
    (heap.read(Scope::default()).unwrap(), heap.stacks().clone())
}

fn assert_equal(live: &HeapRead, whole: &HeapRead) {
    assert_eq!(live.profile, whole.profile);
    assert_eq!(live.unmatched_frees, whole.unmatched_frees);
    assert_eq!((live.most_resident_bytes, live.page_faults), (whole.most_resident_bytes, whole.page_faults));
    assert_eq!((&live.resident, &live.usage), (&whole.resident, &whole.usage));
    assert_eq!((&live.marks, live.more_marks), (&whole.marks, whole.more_marks));
}

fn assert_ended_as(heap: &LiveHeap, path: &Path) {
    let (whole, stacks) = read(path);
    assert!(whole.profile.totals.allocations > 0);
    assert_equal(&heap.snapshot(), &whole);
    assert_eq!(*heap.stacks(), stacks);
    assert_eq!(heap.about(), HeapRecording::new(Recording::open(path).unwrap()).about());
}

/// Each row of the slices is that of the sums.
fn assert_slices_add_up(heap: &LiveHeap) {
    let (slices, profile) = (heap.slices().unwrap(), heap.snapshot().profile);
    assert!(slices.count > 1);
    for (entries, rows) in [
        (&slices.stacks, &profile.stacks),
        (&slices.threads, &profile.threads),
        (&slices.sizes, &profile.sizes),
    ] {
        assert!(entries.is_sorted_by_key(|entry| (entry.row, entry.slice)));
        for (row, sums) in rows.iter().enumerate() {
            let of_row = || entries.iter().filter(|entry| entry.row as usize == row);
            assert_eq!(of_row().map(|entry| entry.allocated_bytes).sum::<u64>(), sums.allocated_bytes);
            assert_eq!(of_row().map(|entry| entry.grown_bytes).sum::<i64>() as u64, sums.live_bytes);
            assert_eq!(of_row().map(|entry| entry.leaked_bytes).sum::<u64>(), sums.live_bytes);
        }
    }
}

/// Reads all that is there.
fn catch_up(heap: &mut LiveHeap) -> bool {
    loop {
        let update = heap.update().unwrap();
        if !update.is_behind {
            return update.has_ended;
        }
    }
}

/// Returns the sums that do not depend on the order across threads.
fn counts(sums: &Sums) -> (u64, u64, u64, u64) {
    (sums.allocations, sums.allocated_bytes, sums.live_blocks, sums.live_bytes)
}

#[test]
fn a_recording_that_is_drained_is_added_up_while_it_grows() {
    let directory = directory("drained");
    let (spool_path, packed_path) = (directory.join("it.cairn"), directory.join("it.cairn.new"));
    let (program, journal) = program(5, 60_000, std::process::id(), false);
    let mut writer = Writer::new(&spool_path, &program.spool);
    let mut drain = Drain::open(&spool_path, &packed_path).unwrap();
    drain.set_flush_after(Duration::ZERO);
    // By either name.
    let sliced = LiveHeap::open_sliced(&packed_path, &SliceOptions::default()).unwrap();
    let mut heaps = [LiveHeap::open(&spool_path).unwrap(), sliced];
    let mut random = Random(7);
    let mut compared = 0;
    for part in journal.chunks(2_003) {
        writer.write_all(part);
        drain.step().unwrap();
        let own = Some(random.below(1 << 18)).filter(|own| own % 3 > 0);
        drain.usage(1 << 20 | random.below(1 << 20), own, random.below(1000), 5);
        if random.below(3) == 0 {
            drain.step().unwrap();
            for heap in &mut heaps {
                assert!(!heap.update().unwrap().has_ended);
            }
            // All that was packed is in front of the last word on the progress, so a reader finds
            // the same in a copy without its spool.
            let copy = directory.join("copy");
            fs::copy(&packed_path, &copy).unwrap();
            let (whole, stacks) = read(&copy);
            let live = heaps[0].snapshot();
            assert_eq!(live.profile.stacks, whole.profile.stacks);
            assert_eq!(live.profile.threads, whole.profile.threads);
            assert_eq!(live.profile.peak_nanos, whole.profile.peak_nanos);
            assert_eq!(live.profile.lifetimes, whole.profile.lifetimes);
            assert_eq!(live.usage, whole.usage);
            assert_eq!(*heaps[0].stacks(), stacks);
            assert_slices_add_up(&heaps[1]);
            // A reader of the spool finds the same in the packed file.
            assert_eq!(read(&spool_path).0.profile.totals, live.profile.totals);
            compared += 1;
        }
    }
    assert!(compared > 5, "{compared}");
    assert_eq!(heaps[0].spool(), Some(spool_path.as_path()));
    drain.ended(EndReason::Exit);
    drain.finish().unwrap();
    fs::rename(&packed_path, &spool_path).unwrap();
    for heap in &mut heaps {
        assert!(heap.update().unwrap().has_ended);
        assert_ended_as(heap, &spool_path);
        assert_eq!(heap.spool(), None);
        assert!(!heap.update().unwrap().is_new);
    }
    assert_eq!(heaps[0].snapshot().profile.totals.allocations, program.allocations);
    assert_slices_add_up(&heaps[1]);
    assert!(heaps[0].slices().is_none());
    fs::remove_dir_all(directory).unwrap();
}

#[test]
fn a_spool_that_nobody_drains_is_added_up_while_it_grows() {
    let directory = directory("spool");
    let path = directory.join("it.cairn");
    let (program, journal) = program(5, 60_000, std::process::id(), true);
    let (end, journal) = journal.split_last().unwrap();
    let mut writer = Writer::new(&path, &program.spool);
    let mut heap = LiveHeap::open(&path).unwrap();
    for (turn, part) in journal.chunks(3_001).enumerate() {
        writer.write_all(part);
        if turn % 3 != 1 {
            let update = heap.update().unwrap();
            assert!(update.is_new && !update.has_ended);
        }
    }
    catch_up(&mut heap);
    assert!(!heap.update().unwrap().is_new);
    let (live, (whole, stacks)) = (heap.snapshot(), read(&path));
    assert_eq!(counts(&live.profile.totals), counts(&whole.profile.totals));
    assert_eq!(live.profile.totals.allocations, program.allocations);
    for (live, whole) in [
        (&live.profile.stacks, &whole.profile.stacks),
        (&live.profile.threads, &whole.profile.threads),
        (&live.profile.sizes, &whole.profile.sizes),
    ] {
        assert!(live.iter().map(counts).eq(whole.iter().map(counts)));
    }
    assert_eq!(live.unmatched_frees, whole.unmatched_frees);
    assert_eq!(*heap.stacks(), stacks);

    writer.write(end.0, end.1);
    while !heap.update().unwrap().has_ended {}
    assert_ended_as(&heap, &path);
    assert!(heap.ended().is_some());
    fs::remove_dir_all(directory).unwrap();
}

#[test]
fn a_spool_that_begins_to_be_drained_is_followed_where_it_goes() {
    let directory = directory("begins");
    let (spool_path, packed_path) = (directory.join("it.cairn"), directory.join("it.cairn.new"));
    let (program, journal) = program(2, 20_000, std::process::id(), true);
    let mut writer = Writer::new(&spool_path, &program.spool);
    let (first, rest) = journal.split_at(journal.len() / 3);
    writer.write_all(first);
    let mut heap = LiveHeap::open(&spool_path).unwrap();
    heap.update().unwrap();
    assert!(heap.snapshot().profile.totals.allocations > 1000);
    let mut drain = Drain::open(&spool_path, &packed_path).unwrap();
    drain.set_flush_after(Duration::ZERO);
    for part in rest.chunks(1_000) {
        writer.write_all(part);
        drain.step().unwrap();
        heap.update().unwrap();
    }
    drain.finish().unwrap();
    fs::rename(&packed_path, &spool_path).unwrap();
    assert!(heap.update().unwrap().has_ended);
    assert_ended_as(&heap, &spool_path);
    assert_eq!(heap.snapshot().profile.totals.allocations, program.allocations);
    fs::remove_dir_all(directory).unwrap();
}

/// No process has such a number.
const NOBODY: u32 = 1 << 30;

#[test]
fn killed_command_leaves_a_recording_joined_with_its_spool() {
    for process in [NOBODY, std::process::id()] {
        let directory = directory(&format!("killed-{process}"));
        let (spool_path, packed_path) = (directory.join("it.cairn"), directory.join("it.cairn.new"));
        let (program, journal) = program(3, 40_000, process, false);
        let mut writer = Writer::new(&spool_path, &program.spool);
        let mut drain = Drain::open(&spool_path, &packed_path).unwrap();
        drain.set_flush_after(Duration::ZERO);
        let (first, rest) = journal.split_at(journal.len() / 2);
        for part in first.chunks(1_000) {
            writer.write_all(part);
            drain.step().unwrap();
        }
        let mut heap = LiveHeap::open(&spool_path).unwrap();
        heap.update().unwrap();
        let half = heap.snapshot().profile.totals.allocations;
        assert!(half > 1000 && half < program.allocations, "{half}");
        // As a kill would.
        drop(drain);
        writer.write_all(rest);
        let began = Instant::now();
        while heap.snapshot().profile.totals.allocations < program.allocations {
            assert!(began.elapsed() < Duration::from_secs(60), "the rest is never read");
            std::thread::sleep(Duration::from_millis(20));
            heap.update().unwrap();
        }
        assert_eq!(heap.has_ended(), process == NOBODY);
        assert_equal(&heap.snapshot(), &read(&spool_path).0);
        fs::remove_dir_all(directory).unwrap();
    }
}

// Failed with: no way to read what is there at once, and no word of how far behind a part of it is.
#[test]
fn live_heap_catches_up_at_once_and_says_how_far_it_is() {
    let directory = directory("catches-up");
    let (spool_path, packed_path) = (directory.join("it.cairn"), directory.join("it.cairn.new"));
    let (program, journal) = program(2, 700_000, std::process::id(), false);
    let mut writer = Writer::new(&spool_path, &program.spool);
    let mut of_spool = LiveHeap::open(&spool_path).unwrap();
    writer.write_all(&journal);
    assert_catches_up(&mut of_spool);
    assert_eq!(of_spool.snapshot().profile.totals.allocations, program.allocations);

    let mut writer = Writer::new(&spool_path, &program.spool);
    let mut drain = Drain::open(&spool_path, &packed_path).unwrap();
    drain.set_flush_after(Duration::ZERO);
    for part in journal.chunks(20_000) {
        writer.write_all(part);
        drain.step().unwrap();
    }
    (0..3).for_each(|_| assert!(drain.step().is_ok()));
    let mut of_packed = LiveHeap::open(&spool_path).unwrap();
    assert_catches_up(&mut of_packed);
    // Packed events are counted, up to the moment that the file names.
    let copied = of_packed.snapshot().profile.totals.allocations;
    let recording = Recording::open(&spool_path).unwrap();
    assert!(recording.growth().unwrap().is_drained);
    let read = HeapRecording::new(recording).read(Scope::default()).unwrap();
    assert_eq!(read.profile.totals.allocations, copied);
    drop(drain);
    fs::remove_dir_all(directory).unwrap();
}

/// The first part is behind, what is read at once is not.
fn assert_catches_up(heap: &mut LiveHeap) {
    let first = heap.update().unwrap();
    let least = heap.snapshot().profile.totals.allocations;
    assert!(first.is_behind && first.behind_nanos.is_some(), "{first:?}, {least} allocations");
    let all = heap.catch_up(Duration::from_secs(3600)).unwrap();
    assert!(!all.is_behind && all.is_new, "{all:?}");
    assert!(heap.snapshot().profile.totals.allocations > least);
}

#[test]
fn large_recordings_are_read_in_parts() {
    let directory = directory("parts");
    let (spool_path, packed_path) = (directory.join("spool"), directory.join("packed"));
    // More than is read ahead of each thread, and more than is added up at once.
    let (program, journal) = program(2, 700_000, std::process::id(), false);
    let parts_of = |heap: &mut LiveHeap| {
        let mut parts = 1;
        while heap.update().unwrap().is_behind {
            parts += 1;
        }
        parts
    };
    let mut writer = Writer::new(&spool_path, &program.spool);
    let mut heap = LiveHeap::open(&spool_path).unwrap();
    writer.write_all(&journal);
    assert!(parts_of(&mut heap) > 1);
    assert_eq!(heap.snapshot().profile.totals.allocations, program.allocations);

    let mut writer = Writer::new(&spool_path, &program.spool);
    let mut drain = Drain::open(&spool_path, &packed_path).unwrap();
    drain.set_flush_after(Duration::ZERO);
    for part in journal.chunks(100_000) {
        writer.write_all(part);
        drain.step().unwrap();
    }
    drain.finish().unwrap();
    let mut heap = LiveHeap::open(&packed_path).unwrap();
    assert!(parts_of(&mut heap) > 1);
    assert_ended_as(&heap, &packed_path);
    assert_eq!(heap.snapshot().profile.totals.allocations, program.allocations);
    fs::remove_dir_all(directory).unwrap();
}

/// A program that is gone has written all, and half of it is drained. Nothing was written for an
/// hour.
fn half_drained(spool_path: &Path, packed_path: &Path) -> (Program, Drain) {
    let (program, journal) = program(3, 40_000, NOBODY, false);
    let mut writer = Writer::new(spool_path, &program.spool);
    let mut drain = Drain::open(spool_path, packed_path).unwrap();
    drain.set_flush_after(Duration::ZERO);
    let (first, rest) = journal.split_at(journal.len() / 2);
    writer.write_all(first);
    (0..3).for_each(|_| assert!(drain.step().is_ok()));
    writer.write_all(rest);
    let hour = std::time::SystemTime::now() - Duration::from_secs(3600);
    File::options().write(true).open(packed_path).unwrap().set_modified(hour).unwrap();
    (program, drain)
}

#[test]
fn what_was_left_long_ago_is_read_at_once() {
    let directory = directory("left");
    let (spool_path, packed_path) = (directory.join("it.cairn"), directory.join("it.cairn.new"));
    let (program, drain) = half_drained(&spool_path, &packed_path);
    drop(drain);
    let mut heap = LiveHeap::open(&spool_path).unwrap();
    assert!(heap.update().unwrap().has_ended);
    assert_eq!(heap.snapshot().profile.totals.allocations, program.allocations);
    assert_equal(&heap.snapshot(), &read(&spool_path).0);
    fs::remove_dir_all(directory).unwrap();
}

#[test]
fn who_drains_and_gets_no_processor_is_waited_for() {
    let directory = directory("slow");
    let (spool_path, packed_path) = (directory.join("it.cairn"), directory.join("it.cairn.new"));
    let (program, drain) = half_drained(&spool_path, &packed_path);
    // Nothing ticks.
    let mut heap = LiveHeap::open(&spool_path).unwrap();
    assert!(!catch_up(&mut heap));
    assert!(!heap.update().unwrap().has_ended);
    assert!(heap.snapshot().profile.totals.allocations < program.allocations);
    let whole = Recording::open(&packed_path).unwrap();
    assert!(!whole.findings().iter().any(|finding| matches!(finding, Finding::Continued { .. })));
    drain.finish().unwrap();
    while !heap.update().unwrap().has_ended {}
    assert_ended_as(&heap, &packed_path);
    assert_eq!(heap.snapshot().profile.totals.allocations, program.allocations);
    fs::remove_dir_all(directory).unwrap();
}

#[test]
fn what_was_seen_stays_until_who_begins_to_drain_has_it_too() {
    let directory = directory("begins-slowly");
    let (spool_path, packed_path) = (directory.join("it.cairn"), directory.join("it.cairn.new"));
    let (program, journal) = program(2, 20_000, std::process::id(), false);
    let mut writer = Writer::new(&spool_path, &program.spool);
    writer.write_all(&journal);
    let mut heap = LiveHeap::open(&spool_path).unwrap();
    catch_up(&mut heap);
    let seen = heap.snapshot().profile.totals.allocations;
    assert!(seen > 1000, "{seen}");
    let mut drain = Drain::open(&spool_path, &packed_path).unwrap();
    heap.update().unwrap();
    // However long that takes.
    std::thread::sleep(Duration::from_millis(1500));
    for _ in 0..3 {
        heap.update().unwrap();
        assert_eq!(heap.snapshot().profile.totals.allocations, seen);
    }
    drain.set_flush_after(Duration::ZERO);
    (0..3).for_each(|_| assert!(drain.step().is_ok()));
    drain.finish().unwrap();
    while !heap.update().unwrap().has_ended {}
    assert_eq!(heap.snapshot().profile.totals.allocations, program.allocations);
    fs::remove_dir_all(directory).unwrap();
}

#[test]
fn finished_recordings_are_read_at_once() {
    let directory = directory("finished");
    let path = directory.join("it.cairn");
    let (program, journal) = program(3, 20_000, NOBODY, true);
    let mut writer = Writer::new(&path, &program.spool);
    writer.write_all(&journal);
    let mut heap = LiveHeap::open(&path).unwrap();
    assert_eq!(heap.snapshot().profile.totals.allocations, 0);
    assert!(heap.update().unwrap().has_ended);
    assert_ended_as(&heap, &path);

    let packed = directory.join("packed.cairn");
    let mut out = File::create(&packed).unwrap();
    cairn_recording::pack(&Recording::open(&path).unwrap(), &mut out).unwrap();
    let mut heap = LiveHeap::open(&packed).unwrap();
    assert!(heap.update().unwrap().has_ended);
    assert_ended_as(&heap, &packed);

    fs::write(directory.join("other"), "no recording").unwrap();
    assert!(LiveHeap::open(&directory.join("other")).is_err());
    assert!(LiveHeap::open(&directory.join("nothing")).is_err());
    fs::remove_dir_all(directory).unwrap();
}

/// A program whose second thread gets its name in the middle of its events.
fn program_with_late_name() -> (Program, Vec<(usize, usize)>) {
    let mut random = Random(11);
    let mut program = Program::new(3, 8);
    program.spool.begin_journal();
    program.spool.header.process = std::process::id();
    let stacks = program.spool.stacks(20);
    for number in 0..20_000 {
        program.counter += random.below(400);
        if number == 10_000 {
            let counter = program.counter;
            program.spool.named(2, counter, "worker");
        }
        let thread = 1 + random.below(3) as u32;
        if program.live.len() < 100 && random.below(5) < 3 || program.live.is_empty() {
            program.alloc(thread, 16 + random.below(1000), stacks[random.below(12) as usize]);
        } else {
            let index = random.below(program.live.len() as u64) as usize;
            program.free(thread, index);
        }
    }
    let counter = program.counter;
    program.spool.clock(counter + 3_000_000);
    let journal = program.spool.journal.take().unwrap();
    (program, journal)
}

/// Reads the blocks that a filter lets in, once they are all there.
fn read_filtered(path: &Path, filter: &LiveFilter) -> HeapRead {
    let heap = HeapRecording::new(Recording::open(path).unwrap());
    let threads = heap.about().threads;
    let matching = |wanted: &Vec<String>| {
        let matches =
            (0..).zip(&threads).filter(|(_, thread)| wanted.iter().any(|name| thread.is_called(name)));
        matches.map(|(index, _)| index).collect()
    };
    let scope = Scope {
        sizes: filter.sizes.clone(),
        threads: filter.threads.as_ref().map(matching),
        ..Scope::default()
    };
    heap.read(scope).unwrap()
}

// Failed before: sums of a heap that grows had no filter.
#[test]
fn live_filter_counts_what_a_filtered_read_counts() {
    let filters = [
        LiveFilter { sizes: 100..=400, threads: None },
        LiveFilter { threads: Some(vec!["worker".to_owned()]), ..LiveFilter::default() },
        LiveFilter { sizes: 0..=500, threads: Some(vec!["worker".to_owned(), "1003".to_owned()]) },
        LiveFilter { threads: Some(vec!["nobody".to_owned()]), ..LiveFilter::default() },
    ];
    let directory = directory("filtered");
    let (spool_path, packed_path) = (directory.join("it.cairn"), directory.join("it.cairn.new"));
    let (program, journal) = program_with_late_name();
    let mut writer = Writer::new(&spool_path, &program.spool);
    let mut drain = Drain::open(&spool_path, &packed_path).unwrap();
    drain.set_flush_after(Duration::ZERO);
    let mut heaps: Vec<LiveHeap> =
        filters.iter().map(|filter| LiveHeap::open_filtered(&spool_path, filter.clone()).unwrap()).collect();
    let mut compared = 0;
    for part in journal.chunks(1_001) {
        writer.write_all(part);
        drain.step().unwrap();
        drain.step().unwrap();
        drain.usage(1 << 20, None, 1, 5);
        drain.step().unwrap();
        let copy = directory.join("copy");
        fs::copy(&packed_path, &copy).unwrap();
        for (heap, filter) in heaps.iter_mut().zip(&filters) {
            assert!(!catch_up(heap));
            let (live, whole) = (heap.snapshot(), read_filtered(&copy, filter));
            assert_eq!(live.profile.stacks, whole.profile.stacks);
            assert_eq!(live.profile.threads, whole.profile.threads);
            assert_eq!(live.profile.sizes, whole.profile.sizes);
            assert_eq!(live.profile.totals, whole.profile.totals);
            compared += 1;
        }
    }
    assert!(compared > 20, "{compared}");
    drain.ended(EndReason::Exit);
    drain.finish().unwrap();
    fs::rename(&packed_path, &spool_path).unwrap();
    for (heap, filter) in heaps.iter_mut().zip(&filters) {
        assert!(catch_up(heap));
        assert_equal(&heap.snapshot(), &read_filtered(&spool_path, filter));
    }
    let counted: Vec<u64> = heaps.iter().map(|heap| heap.snapshot().profile.totals.allocations).collect();
    assert!(counted[..3].iter().all(|&count| count > 1000) && counted[3] == 0, "{counted:?}");
    fs::remove_dir_all(directory).unwrap();
}

// Failed before: as above.
#[test]
fn live_filter_counts_events_before_the_thread_name() {
    let directory = directory("late-name");
    let path = directory.join("it.cairn");
    let (program, journal) = program_with_late_name();
    let mut writer = Writer::new(&path, &program.spool);
    let filter = LiveFilter { threads: Some(vec!["worker".to_owned()]), ..LiveFilter::default() };
    let mut heap = LiveHeap::open_filtered(&path, filter.clone()).unwrap();
    let mut counts_seen = Vec::new();
    for part in journal.chunks(journal.len() / 10 + 1) {
        writer.write_all(part);
        catch_up(&mut heap);
        counts_seen.push(heap.snapshot().profile.totals.allocations);
    }
    // No sum grows by a part of the thread's events: before its name there are none, then all.
    let first = counts_seen.iter().position(|&count| count > 0).unwrap();
    assert!(first >= 3 && counts_seen[first] > counts_seen.last().unwrap() / 3, "{counts_seen:?}");
    let (live, whole) = (heap.snapshot(), read_filtered(&path, &filter));
    assert_eq!(counts(&live.profile.totals), counts(&whole.profile.totals));
    for (live, whole) in [
        (&live.profile.stacks, &whole.profile.stacks),
        (&live.profile.threads, &whole.profile.threads),
        (&live.profile.sizes, &whole.profile.sizes),
    ] {
        assert!(live.iter().map(counts).eq(whole.iter().map(counts)));
    }
    fs::remove_dir_all(directory).unwrap();
}
