//! Rings store only the last part: that part is whole, and the rest is counted.

use std::path::Path;

use cairn_format::recording::MarkValue;
use cairn_recorder::{EndReason, Keep, dump, mark_value, start, stop};

use crate::support::{Mark, Spool};
use crate::{Runner, options};

const MARKS: i64 = 200_000;
const RING_BYTES: u64 = 2 << 20;

fn record(options: &cairn_recorder::Options<'_>) {
    start(options).unwrap();
    let barrier = std::sync::Barrier::new(2);
    std::thread::scope(|scope| {
        scope.spawn(|| write(0, &barrier));
        scope.spawn(|| write(1, &barrier));
    });
}

fn write(thread: i64, barrier: &std::sync::Barrier) {
    for number in 0..MARKS {
        mark_value("ring", MarkValue::Integer(thread << 32 | number));
        // A thread that began when the other one has ended would go on in its segment, and
        // overwrite all of it in the end.
        if number == 0 {
            barrier.wait();
        }
    }
}

pub(crate) fn child(path: &Path) {
    let mut options = options(path);
    options.keep = Keep::Last { bytes: RING_BYTES, nanos: u64::MAX };
    record(&options);
    stop(EndReason::Stopped);
}

/// Checks that the marks of each thread are the last ones without a gap.
///
/// Segments that were still in use when newer ones had been overwritten are exempt.
fn check_last(spool: &Spool) {
    spool.check();
    assert_eq!(spool.lost_events, 0);
    assert_eq!(spool.marks.len() as u64 + spool.overwritten, MARKS as u64 * 2);
    for thread in 0..2 {
        let number = |mark: &Mark| match mark.value {
            MarkValue::Integer(value) if value >> 32 == thread => Some(value & 0xffff_ffff),
            _ => None,
        };
        let numbers: Vec<i64> = spool.marks.iter().filter_map(number).collect();
        assert_eq!(numbers.last(), Some(&(MARKS - 1)));
        assert!(
            numbers.windows(2).all(|pair| pair[0] + 1 == pair[1]),
            "a gap among the last {}",
            numbers.len()
        );
    }
    assert!(spool.marks.len() > 10_000 && spool.marks.len() < 60_000, "{} marks", spool.marks.len());
}

pub(crate) fn check(runner: &Runner) {
    runner.run();
    check_last(&Spool::open(&runner.path));
    let bytes = std::fs::metadata(&runner.path).unwrap().len();
    assert!(bytes <= 4 << 20, "{bytes} bytes");
}

pub(crate) fn child_in_memory(path: &Path) {
    let mut options = options(Path::new(""));
    options.keep = Keep::Last { bytes: RING_BYTES, nanos: u64::MAX };
    record(&options);
    let bytes = path.as_os_str().as_encoded_bytes();
    dump(bytes, None).unwrap();
    assert_eq!(dump(bytes, None), Err(cairn_recorder::DumpError::Exists));
    // The last nanosecond has only the segments that the thread has not left yet.
    mark_value("last", MarkValue::None);
    dump(&[bytes, b".last"].concat(), Some(1)).unwrap();
}

pub(crate) fn check_in_memory(runner: &Runner) {
    let last = format!("{}.last", runner.path.display());
    let _ = std::fs::remove_file(&last);
    runner.run();
    check_last(&Spool::open(&runner.path));
    let spool = Spool::open(Path::new(&last));
    spool.check();
    assert!(spool.marks.iter().any(|mark| mark.text == "last"));
    assert!(spool.marks.len() < 5_000, "{} marks", spool.marks.len());
    std::fs::remove_file(last).unwrap();
}

/// Far more than the marks of a round take, so that the size is no limit.
const ROOM_BYTES: u64 = 64 << 20;
const ROUNDS: i64 = 6;

/// Writes rounds of marks with pauses that are longer than the ring's time. Each round writes where
/// the one before the last did.
pub(crate) fn child_by_age(path: &Path) {
    let mut options = options(path);
    options.keep = Keep::Last { bytes: ROOM_BYTES, nanos: 300_000_000 };
    start(&options).unwrap();
    for round in 0..ROUNDS {
        (0..MARKS / 4).for_each(|number| mark_value("round", MarkValue::Integer(round << 32 | number)));
        std::thread::sleep(std::time::Duration::from_millis(400));
    }
    mark_value("last", MarkValue::None);
    let dumped = [path.as_os_str().as_encoded_bytes(), b".dump"].concat();
    dump(&dumped, None).unwrap();
    stop(EndReason::Stopped);
}

pub(crate) fn check_by_age(runner: &Runner) {
    let dumped = format!("{}.dump", runner.path.display());
    let _ = std::fs::remove_file(&dumped);
    runner.run();
    let spool = Spool::open(&runner.path);
    spool.check();
    assert_eq!(spool.lost_events, 0);
    assert_eq!(spool.marks.len() as u64 + spool.overwritten, (ROUNDS * (MARKS / 4)) as u64 + 1);
    // A round is some 2.4 MiB. Without the limit all rounds would be there, 14 MiB of them.
    assert!(spool.marks.len() < MARKS as usize, "{} marks", spool.marks.len());
    let bytes = std::fs::metadata(&runner.path).unwrap().len();
    assert!(bytes <= 12 << 20, "{bytes} bytes");
    let round = |mark: &Mark| match mark.value {
        MarkValue::Integer(value) => Some(value >> 32),
        _ => None,
    };
    assert!(spool.marks.iter().filter_map(round).any(|round| round == ROUNDS - 1));
    // The last segment has a part of the last round, which a dump cannot cut off.
    let dump = Spool::open(Path::new(&dumped));
    assert!(dump.marks.iter().any(|mark| mark.text == "last"));
    assert!(dump.marks.len() < 5_000, "{} marks", dump.marks.len());
    std::fs::remove_file(dumped).unwrap();
}
