//! Threads that come and go, recording that pauses, and recording that nobody has started.

use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

use cairn_capture::capture;
use cairn_format::recording::{MarkValue, control};
use cairn_recorder::{heap, is_recording, mark, mark_value, pause, resume, start, thread_ended};

use crate::support::{Heap, Spool};
use crate::{Runner, options};

const SHORT: i64 = 3000;

pub(crate) fn child(path: &Path) {
    start(&options(path)).unwrap();
    for number in 0..SHORT {
        let work = move || {
            mark_value("short", MarkValue::Integer(number));
            if number % 2 == 0 {
                thread_ended();
            }
        };
        std::thread::spawn(work).join().unwrap();
    }
}

pub(crate) fn check(runner: &Runner) {
    runner.run();
    let spool = Spool::open(&runner.path);
    spool.check();
    let mut numbers: Vec<i64> = spool
        .marks
        .iter()
        .map(|mark| match mark.value {
            MarkValue::Integer(value) => value,
            other => panic!("{other:?}"),
        })
        .collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..SHORT).collect::<Vec<_>>());
    assert!(spool.segments_used < 60, "{} segments for threads that were one at a time", spool.segments_used);
    let began: usize = spool.sequences.values().map(|sequence| sequence.kernel_threads.len()).sum();
    assert_eq!(began as i64, SHORT, "each says that it begins");
    let threads: std::collections::HashSet<u32> = spool.marks.iter().map(|mark| mark.kernel_thread).collect();
    // Windows gives the number of a thread that has ended to the next one.
    assert!(threads.len() as i64 > SHORT / 2 || cfg!(windows), "{} kernel threads", threads.len());
}

pub(crate) fn pausing_child(path: &Path) {
    let mut options = options(path);
    options.is_paused = true;
    start(&options).unwrap();
    assert!(!is_recording());
    mark("not yet");
    resume();
    let (same, moved) = (0x10_0000, 0x20_0000);
    for address in [same, moved] {
        heap::allocated_by(address, 64, capture());
    }
    pause();
    // Unseen: the block is freed, and another block gets the address.
    heap::freeing(moved);
    resume();
    std::thread::spawn(move || heap::allocated_by(moved, 128, capture())).join().unwrap();
    heap::freeing(moved);
    heap::freeing(same);
    // As the parent process asks for it.
    let word = |value: control::Command| {
        let mut file = std::fs::File::options().write(true).open(path).unwrap();
        file.seek(SeekFrom::Start(control::COMMAND as u64)).unwrap();
        file.write_all(&value.to_word().to_le_bytes()).unwrap();
        file.seek(SeekFrom::Start(control::TICK as u64)).unwrap();
        file.write_all(&[1 + value.to_word() as u8]).unwrap();
    };
    word(control::Command::Pause);
    heap::allocated_by(0x30_0000, 16, capture());
    assert!(!is_recording(), "the tick was seen");
    heap::allocated_by(0x40_0000, 16, capture());
    word(control::Command::Record);
    heap::allocated_by(0x50_0000, 16, capture());
    assert!(is_recording());
}

pub(crate) fn check_pausing(runner: &Runner) {
    runner.run();
    let spool = Spool::open(&runner.path);
    spool.check();
    assert!(spool.marks.is_empty(), "{:?}", spool.marks);
    let allocated: Vec<u64> = spool
        .sequences
        .values()
        .flat_map(|sequence| &sequence.heap)
        .filter_map(|(_, event)| match event {
            Heap::Alloc { address, .. } => Some(*address),
            _ => None,
        })
        .collect();
    assert!(allocated.contains(&0x30_0000), "the event that saw the tick is there");
    assert!(!allocated.contains(&0x40_0000) && allocated.contains(&0x50_0000), "{allocated:x?}");
    let pairing = spool.pair();
    let mut live = pairing.live.clone();
    live.sort_unstable();
    // The free after the pause is the other thread's block's.
    assert_eq!(live, [(0x20_0000, 64), (0x30_0000, 16), (0x50_0000, 16)]);
    assert_eq!((pairing.local, pairing.remote), (0, 2));
}

/// Pauses and resumes in several threads at once; the last call counts.
pub(crate) fn switching_child(path: &Path) {
    start(&options(path)).unwrap();
    for round in 0..SWITCHING_ROUNDS {
        std::thread::scope(|scope| {
            for number in 0..4 {
                scope.spawn(move || {
                    for step in 0..500 {
                        if (step + number) % 2 == 0 { pause() } else { resume() }
                    }
                });
            }
        });
        let has_to_record = round % 2 == 0;
        if has_to_record {
            resume()
        } else {
            pause()
        }
        mark_value("switched", MarkValue::Integer(round));
        assert_eq!(is_recording(), has_to_record, "round {round}");
    }
}

const SWITCHING_ROUNDS: i64 = 200;

pub(crate) fn check_switching(runner: &Runner) {
    runner.run();
    let spool = Spool::open(&runner.path);
    spool.check();
    let marks: Vec<_> = spool.marks.iter().map(|mark| mark.value).collect();
    let expected: Vec<_> = (0..SWITCHING_ROUNDS).step_by(2).map(MarkValue::Integer).collect();
    assert_eq!(marks, expected);
}

/// Several threads mark at once, and nobody has started anything.
pub(crate) fn lazy_child(_: &Path) {
    let barrier = std::sync::Barrier::new(LAZY_THREADS);
    std::thread::scope(|scope| {
        for _ in 0..LAZY_THREADS {
            scope.spawn(|| {
                barrier.wait();
                mark("lazy");
            });
        }
    });
}

const LAZY_THREADS: usize = 8;

/// Runs many times, because the threads that race for the start differ each time.
pub(crate) fn check_lazy(runner: &Runner) {
    for round in 0..LAZY_ROUNDS {
        let (status, _) = runner.run_to_any_end(runner.command().env("CAIRN_RECORDING", &runner.path));
        assert!(status.success());
        let spool = Spool::open(&runner.path);
        spool.check();
        let lost = spool.lost_events;
        assert_eq!((spool.marks.len(), lost), (LAZY_THREADS, 0), "round {round}");
        std::fs::remove_file(&runner.path).unwrap();
    }
}

const LAZY_ROUNDS: usize = 100;
