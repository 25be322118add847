//! Threads that have one of the recorder's numbers one after the other are threads of their own, in
//! every reader.

#![cfg_attr(not(target_os = "linux"), allow(unused_imports, reason = "files grow on Linux alone"))]

#[path = "../../cairn-recording/tests/support/spool.rs"]
mod spool;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use cairn_analysis::heap::{HeapRecording, LiveHeap, Scope};
use cairn_format::recording::{CounterKind, Lane, SEGMENT_BYTES, ThreadEvent, control};
use cairn_recording::{Alloc, Change, Events, Finding, Free, Mark, Recording, ThreadId, Wanted, pack};
use spool::{Program, START};

/// The recorder's number that the threads have one after the other.
const LANE: u32 = 2;
const JOBS: u32 = 8;
/// Allocations of each job; the main thread makes the rest.
const ALLOCATIONS: u64 = 30;

/// Facts about a thread, and its events.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
struct Row {
    kernel_thread: u32,
    name: String,
    earlier_names: Vec<String>,
    allocations: u64,
    frees: u64,
    marks: Vec<String>,
    changes: u32,
}

/// By number, in the order of their starts.
fn rows(recording: &Recording) -> Vec<Row> {
    #[derive(Default)]
    struct Seen(BTreeMap<ThreadId, Row>);
    impl Events for Seen {
        fn alloc(&mut self, event: &Alloc) {
            self.0.entry(event.at.thread).or_default().allocations += 1;
        }
        fn free(&mut self, event: &Free) {
            self.0.entry(event.at.thread).or_default().frees += 1;
        }
        fn mark(&mut self, event: &Mark<'_>) {
            let text = String::from_utf8_lossy(event.text).into_owned();
            self.0.entry(event.at.thread).or_default().marks.push(text);
        }
        fn change(&mut self, at: cairn_recording::At, change: Change) {
            let is_of_thread = matches!(change, Change::ThreadBegan | Change::ThreadNamed);
            self.0.entry(at.thread).or_default().changes += u32::from(is_of_thread);
        }
    }
    let mut seen = Seen::default();
    let outcome = recording.read(&Wanted::ALL, &mut seen).unwrap();
    assert_eq!(outcome.findings, []);
    let text = |bytes: &Vec<u8>| String::from_utf8_lossy(bytes).into_owned();
    let mut threads: Vec<_> = recording.threads().iter().collect();
    threads.sort_by_key(|thread| thread.began_nanos);
    let rows = threads.into_iter().map(|thread| Row {
        kernel_thread: thread.kernel_thread,
        name: text(&thread.name),
        earlier_names: thread.earlier_names.iter().map(text).collect(),
        ..seen.0.remove(&thread.id).unwrap_or_default()
    });
    let rows = rows.collect();
    let left: Vec<_> =
        seen.0.into_iter().filter(|(id, row)| id.number() != 0 && *row != Row::default()).collect();
    assert_eq!(left, [], "events of threads that are not there");
    rows
}

fn job(number: u32) -> u32 {
    4000 + number
}

/// Builds a main thread and jobs that follow each other.
///
/// Each job frees half of its own allocations, and some of those that the one before left.
/// `between` is called before each job.
fn jobs(segment_bytes: usize, mut between: impl FnMut(u32, &Program)) -> Program {
    let mut program = Program::new(1, 4);
    program.spool.segment_bytes = segment_bytes;
    program.spool.header.process = std::process::id();
    let stacks = program.spool.stacks(20);
    program.spool.named(1, START + 10, "main");
    for number in 0..JOBS {
        between(number, &program);
        program.counter += 3_000_000;
        let counter = program.counter;
        program.spool.goes_on(LANE, counter, job(number));
        // The name that it has of the thread that made it, and then its own.
        program.spool.named(LANE, counter + 10, "main");
        program.begin_thread(LANE);
        for event in 0..ALLOCATIONS {
            program.counter += 1000;
            program.alloc(LANE, 100 + event, stacks[event as usize % 20]);
            if event == 3 {
                let counter = program.counter;
                program.spool.named(LANE, counter, &format!("job-{number}"));
                program.spool.mark(LANE, counter, 0, &format!("work {number}"));
            }
            if event % 2 == 1 {
                let index = program.live.len() - 1 - (event as usize % 3).min(program.live.len() - 1);
                program.free(LANE, index);
            }
        }
    }
    program
}

fn expected() -> Vec<Row> {
    let main = Row { kernel_thread: 1001, name: "main".to_owned(), changes: 2, ..Row::default() };
    let of_job = |number| Row {
        kernel_thread: job(number),
        name: format!("job-{number}"),
        earlier_names: vec!["main".to_owned()],
        allocations: ALLOCATIONS,
        frees: ALLOCATIONS / 2,
        marks: vec![format!("work {number}")],
        changes: 3,
    };
    std::iter::once(main).chain((0..JOBS).map(of_job)).collect()
}

fn directory(name: &str) -> PathBuf {
    let directory = std::env::temp_dir().join(format!("cairn-threads-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir_all(&directory).unwrap();
    directory
}

/// Segments that hold several jobs, and segments so small that a job needs several.
const SIZES: [usize; 2] = [SEGMENT_BYTES, 512];

// Failed before: one thread `job-7` with the events of all eight.
#[test]
fn threads_in_turn_are_rows_of_their_own_in_both_shapes() {
    for segment_bytes in SIZES {
        let recording = Recording::from_bytes(jobs(segment_bytes, |_, _| {}).finish()).unwrap();
        assert_eq!(rows(&recording), expected());
        let numbers: Vec<u32> = recording.threads().iter().map(|thread| thread.id.number()).collect();
        assert_eq!(numbers, (1..=JOBS + 1).collect::<Vec<_>>());
        let jobs = &recording.threads()[1..];
        for pair in jobs.windows(2) {
            assert_eq!(pair[0].ended_nanos, Some(pair[1].began_nanos), "had ended when the next one began");
        }
        assert!(jobs[2].is_called(b"job-2") && jobs[2].is_called(b"main") && !jobs[2].is_called(b"job-3"));
        let mut packed = Vec::new();
        pack(&recording, &mut packed).unwrap();
        let packed = Recording::from_bytes(packed).unwrap();
        assert_eq!(rows(&packed), expected());
        assert_eq!(packed.threads(), recording.threads());
    }
}

// Failed before: `job-7` had what all of them allocated, the others were not there.
#[test]
fn threads_in_turn_have_their_own_sums() {
    let path = directory("sums").join("it.cairn");
    fs::write(&path, jobs(512, |_, _| {}).finish()).unwrap();
    let heap = HeapRecording::new(Recording::open(&path).unwrap());
    let read = heap.read(Scope::default()).unwrap();
    let sums = heap.threads().into_iter().zip(&read.profile.threads);
    let of_jobs: Vec<(String, u64)> =
        sums.skip(1).map(|(thread, sums)| (thread.name, sums.allocations)).collect();
    let expected: Vec<(String, u64)> =
        (0..JOBS).map(|number| (format!("job-{number}"), ALLOCATIONS)).collect();
    assert_eq!(of_jobs, expected);
    // Windows removes no file that is open.
    drop(heap);
    fs::remove_dir_all(path.parent().unwrap()).unwrap();
}

// Failed before: the second thread's events were the first one's.
#[test]
fn threads_with_one_kernel_number_in_turn_are_two() {
    let mut program = Program::new(1, 4);
    let stacks = program.spool.stacks(3);
    for text in ["first", "second"] {
        program.counter += 3_000_000;
        let counter = program.counter;
        program.spool.goes_on(LANE, counter, 4000);
        program.spool.named(LANE, counter + 1, text);
        program.begin_thread(LANE);
        program.alloc(LANE, 10, stacks[0]);
    }
    let recording = Recording::from_bytes(program.finish()).unwrap();
    let found: Vec<(String, u64)> =
        rows(&recording).into_iter().skip(1).map(|row| (row.name, row.allocations)).collect();
    assert_eq!(found, [("first".to_owned(), 1), ("second".to_owned(), 1)]);
}

// Failed before: what the handler of the second thread did was the first one's.
#[test]
fn threads_in_turn_share_no_events_of_signal_handlers() {
    let mut program = Program::new(1, 4);
    let stacks = program.spool.stacks(3);
    for number in 0..3_u32 {
        program.counter += 3_000_000;
        let counter = program.counter;
        program.spool.goes_on(LANE, counter, job(number));
        program.spool.named(LANE, counter + 1, &format!("job-{number}"));
        program.begin_thread(LANE);
        program.alloc(LANE, 10, stacks[0]);
        if number != 1 {
            let began = ThreadEvent::Began { kernel_thread: job(number) };
            program.spool.write(LANE, Lane::Nested, counter + 2000, |sink| sink.thread(counter, began));
            program.spool.write(LANE, Lane::Nested, counter + 2000, |sink| {
                sink.alloc(0x7000 + u64::from(number) * 64, 48, 0, stacks[1])
            });
        }
    }
    let bytes = program.finish();
    let recording = Recording::from_bytes(bytes.clone()).unwrap();
    let allocations =
        |recording: &Recording| rows(recording).iter().map(|row| row.allocations).collect::<Vec<_>>();
    assert_eq!(allocations(&recording), [0, 2, 1, 2]);
    #[cfg(target_os = "linux")]
    {
        let path = directory("handlers").join("spool");
        fs::write(&path, bytes).unwrap();
        let packed = path.with_extension("packed");
        cairn_recording::Drain::open(&path, &packed).unwrap().finish().unwrap();
        assert_eq!(allocations(&Recording::open(&packed).unwrap()), [0, 2, 1, 2]);
        fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }
}

// Failed before: as one thread, whose first segments were of another kernel thread.
#[test]
fn threads_of_a_ring_without_start_are_distinguished() {
    let mut program = jobs(512, |_, _| {});
    program.spool.segment_bytes = SEGMENT_BYTES;
    let mut bytes = program.finish();
    // As if overwritten: the first half of the segments, with half of the records that say that a
    // thread began.
    let segments = bytes.len() / SEGMENT_BYTES;
    let of_lane =
        |segment: &[u8]| u32::from_le_bytes([segment[4], segment[5], segment[6], segment[7]]) == LANE;
    let jobs_segments: Vec<usize> =
        (1..segments).filter(|segment| of_lane(&bytes[segment * SEGMENT_BYTES..])).collect();
    for segment in &jobs_segments[..jobs_segments.len() / 2] {
        bytes[segment * SEGMENT_BYTES..][..SEGMENT_BYTES].fill(0);
    }
    let recording = Recording::from_bytes(bytes).unwrap();
    let lost = |finding: &Finding| matches!(finding, Finding::MissingSegments { thread: LANE, .. });
    assert!(recording.findings().iter().any(lost), "{:?}", recording.findings());
    let found = rows(&recording);
    let of = |number: u32| found.iter().find(|row| row.kernel_thread == job(number));
    let (cut, whole) = (of(JOBS / 2), of(JOBS - 1).unwrap());
    assert_eq!((whole.name.as_str(), whole.allocations), ("job-7", ALLOCATIONS));
    assert!(cut.is_none_or(|row| row.allocations <= ALLOCATIONS));
    assert!(of(0).is_none());
}

// Failed before: all marks in the window were those of `job-7`.
#[test]
fn threads_in_turn_are_distinguished_in_a_window() {
    for segment_bytes in SIZES {
        let bytes = jobs(segment_bytes, |_, _| {}).finish();
        let whole = Recording::from_bytes(bytes.clone()).unwrap();
        for number in [0, 3, JOBS - 1] {
            let of_job = whole.threads().iter().find(|thread| thread.kernel_thread == job(number)).unwrap();
            let (since, until) = (of_job.began_nanos, of_job.ended_nanos.unwrap_or(u64::MAX));
            let window = Recording::from_bytes_window(bytes.clone(), |_| (since, until)).unwrap();
            let marked: Vec<_> = rows(&window).into_iter().filter(|row| !row.marks.is_empty()).collect();
            assert_eq!(marked.len(), 1, "{marked:?}");
            assert_eq!((marked[0].kernel_thread, &marked[0].name), (job(number), &format!("job-{number}")));
        }
    }
}

/// Makes a file what it is later: writes what is different.
#[cfg(target_os = "linux")]
fn grow(file: &fs::File, before: &[u8], after: &[u8]) {
    use std::os::unix::fs::FileExt;
    for (index, word) in after.chunks(8).enumerate().skip(SEGMENT_BYTES / 8) {
        if before.get(index * 8..).is_none_or(|before| !before.starts_with(word)) {
            file.write_all_at(word, index as u64 * 8).unwrap();
        }
    }
    let segments = (after.len() / SEGMENT_BYTES) as u64;
    file.write_all_at(&segments.to_le_bytes(), control::CLAIMED_SEGMENTS as u64).unwrap();
}

/// The file of the jobs as it was before each of them, and at the end.
#[cfg(target_os = "linux")]
fn states(segment_bytes: usize) -> Vec<Vec<u8>> {
    let mut states = Vec::new();
    let program = jobs(segment_bytes, |_, program| states.push(program.spool.to_bytes()));
    states.push(program.finish());
    states
}

// Failed before: `job-7` had all events while the file grew and behind it.
#[cfg(target_os = "linux")]
#[test]
fn threads_in_turn_are_distinguished_while_growing() {
    for segment_bytes in SIZES {
        let directory = directory(&format!("live-{segment_bytes}"));
        let path = directory.join("it.cairn");
        let states = states(segment_bytes);
        fs::write(&path, &states[0]).unwrap();
        let file = fs::File::options().write(true).open(&path).unwrap();
        let mut heap = LiveHeap::open(&path).unwrap();
        for pair in states.windows(2) {
            heap.update().unwrap();
            grow(&file, &pair[0], &pair[1]);
        }
        for _ in 0..3 {
            heap.update().unwrap();
        }
        let read = heap.snapshot();
        let about = heap.about();
        let found: BTreeMap<String, u64> = about
            .threads
            .iter()
            .zip(&read.profile.threads)
            .map(|(thread, sums)| (thread.name.clone(), sums.allocations))
            .collect();
        for number in 0..JOBS {
            assert_eq!(found.get(&format!("job-{number}")), Some(&ALLOCATIONS), "{found:?}");
        }
        fs::remove_dir_all(directory).unwrap();
    }
}

// Failed before: as above, in the packed recording and in one that goes on in the spool of a killed
// drain.
#[cfg(target_os = "linux")]
#[test]
fn threads_in_turn_are_distinguished_when_drained() {
    use cairn_recording::Drain;

    for segment_bytes in SIZES {
        // Killed at every state, and never.
        for killed in 1..=JOBS as usize + 2 {
            let directory = directory(&format!("drained-{segment_bytes}-{killed}"));
            let path = directory.join("it.cairn");
            let packed = directory.join("it.cairn.new");
            let states = states(segment_bytes);
            fs::write(&path, &states[0]).unwrap();
            let file = fs::File::options().read(true).write(true).open(&path).unwrap();
            let mut drain = Some(Drain::open(&path, &packed).unwrap());
            if let Some(drain) = &mut drain {
                drain.set_flush_after(std::time::Duration::ZERO);
            }
            for (index, pair) in states.windows(2).enumerate() {
                if index + 1 == killed {
                    drain = None;
                }
                if let Some(drain) = &mut drain {
                    drain.step().unwrap();
                    drain.step().unwrap();
                }
                grow(&file, &pair[0], &pair[1]);
            }
            if let Some(drain) = drain {
                let (_, findings) = drain.finish().unwrap();
                assert_eq!(findings, []);
            }
            let recording = Recording::open(&packed).unwrap();
            let mut found = rows(&recording);
            // The clock of this program that never ran is not the one that the drain read.
            found.sort_by_key(|row| row.kernel_thread);
            // Frees of what is in the packed file find no block in the spool.
            found.iter_mut().for_each(|row| row.frees = row.frees.max(ALLOCATIONS / 2));
            found[0].frees = 0;
            assert_eq!(found, expected(), "{segment_bytes}, {killed}: {:?}", recording.findings());
            fs::remove_dir_all(directory).unwrap();
        }
    }
}

// Failed before: one row; and must stay quick.
#[test]
fn threads_of_a_long_row_are_all_there() {
    const MANY: u32 = 10_000;
    let mut program = Program::new(1, 4);
    let stacks = program.spool.stacks(3);
    for number in 0..MANY {
        program.counter += 1000;
        let counter = program.counter;
        program.spool.goes_on(LANE, counter, 5000 + number);
        program.begin_thread(LANE);
        program.alloc(LANE, 10, stacks[0]);
    }
    let bytes = program.finish();
    let recording = Recording::from_bytes(bytes).unwrap();
    let found = rows(&recording);
    assert_eq!(found.len() as u32, MANY + 1);
    assert!(found.iter().skip(1).all(|row| row.allocations == 1));
    let mut packed = Vec::new();
    pack(&recording, &mut packed).unwrap();
    assert_eq!(rows(&Recording::from_bytes(packed).unwrap()), found);
}

// Failed before: a thread that was renamed had its last name alone.
#[test]
fn threads_keep_all_names_that_they_had() {
    let mut program = Program::new(1, 4);
    program.spool = spool::Spool::new(CounterKind::TimeStampCounter);
    for (number, name) in (0_u64..).zip(["python3", "reader", "python3", "writer", "writer"]) {
        program.spool.named(1, START + 10 + number, name);
    }
    let recording = Recording::from_bytes(program.finish()).unwrap();
    let row = rows(&recording).remove(0);
    assert_eq!(
        (row.name.as_str(), row.earlier_names.as_slice()),
        ("writer", ["reader".to_owned(), "python3".to_owned()].as_slice())
    );
    let mut packed = Vec::new();
    pack(&recording, &mut packed).unwrap();
    assert_eq!(Recording::from_bytes(packed).unwrap().threads(), recording.threads());
}
