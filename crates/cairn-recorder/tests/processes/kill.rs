//! SIGKILL, or `TerminateProcess`, at random moments: every spool opens, no committed event is
//! lost, none is invented.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use cairn_capture::capture;
use cairn_format::recording::MarkValue;
use cairn_recorder::{heap, mark_value, start};

use crate::support::{Heap, Spool};
use crate::{Runner, options};

const THREADS: u64 = 3;
/// Events of each thread between two reports that they are committed. The second thread reports
/// each.
const REPORT_EVERY: [u64; THREADS as usize] = [64, 1, 7];

/// Each thread alternates an allocation, its free and a mark, all numbered.
pub(crate) fn child(path: &Path) {
    start(&options(path)).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || write_for_ever(thread));
        }
    });
}

fn write_for_ever(thread: u64) {
    let mut output = standard_output();
    for number in 0.. {
        let address = address(thread, number / 3);
        match number % 3 {
            0 => heap::allocated_by(address, size(number / 3), at_depth(number % 13)),
            1 => heap::freeing(address),
            _ => mark_value("kill", MarkValue::Integer((thread << 32 | number) as i64)),
        }
        if (number + 1) % REPORT_EVERY[thread as usize] == 0 {
            output.write_all(&(thread << 48 | (number + 1)).to_le_bytes()).unwrap();
        }
    }
}

/// The standard output without a buffer.
fn standard_output() -> std::mem::ManuallyDrop<std::fs::File> {
    // SAFETY: the standard output, which stays open.
    #[cfg(unix)]
    let output = unsafe { std::os::fd::FromRawFd::from_raw_fd(1) };
    // SAFETY: as above.
    #[cfg(windows)]
    let output = unsafe {
        use std::os::windows::io::{AsRawHandle, FromRawHandle};
        std::fs::File::from_raw_handle(std::io::stdout().as_raw_handle())
    };
    std::mem::ManuallyDrop::new(output)
}

#[inline(never)]
fn at_depth(depth: u64) -> cairn_capture::Stack {
    if depth > 0 { std::hint::black_box(at_depth(depth - 1)) } else { capture() }
}

fn address(thread: u64, block: u64) -> u64 {
    0x10_0000_0000 * (thread + 1) + block * 16
}

fn size(block: u64) -> u64 {
    1 + block % 9000
}

pub(crate) fn check(runner: &Runner) {
    let runs: u32 = std::env::var("CAIRN_KILL_RUNS").map_or(60, |text| text.parse().expect("a number"));
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    println!("kill: {runs} runs, random numbers from {random:#x}");
    let (mut events, mut without_file) = (0, 0);
    for run in 0..runs {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        // Kills every fourth run during the start, the others after the first events. The test does
        // not depend on the duration of a start.
        let (is_at_start, most_micros) = if run % 4 == 0 { (true, 4_000) } else { (false, 60_000) };
        match run_once(runner, is_at_start, (random >> 33) % most_micros) {
            Some(count) => events += count,
            None => without_file += 1,
        }
    }
    println!("kill: {events} events in all, {without_file} killed before there was a file");
    assert!(without_file < runs / 2 && events > u64::from(runs));
}

/// The number of events that were found; `None` when the process had no file yet.
fn run_once(runner: &Runner, is_at_start: bool, micros: u64) -> Option<u64> {
    let _ = std::fs::remove_file(&runner.path);
    let mut child = runner.command().stdout(Stdio::piped()).spawn().unwrap();
    let mut output = child.stdout.take().unwrap();
    let (begins, has_begun) = std::sync::mpsc::channel();
    let reader = std::thread::spawn(move || {
        let mut reported: HashMap<u64, u64> = HashMap::new();
        let mut bytes = [0; 8];
        while output.read_exact(&mut bytes).is_ok() {
            let word = u64::from_le_bytes(bytes);
            reported.insert(word >> 48, word & 0xffff_ffff_ffff);
            let _ = begins.send(());
        }
        reported
    });
    if !is_at_start {
        // An error says that it has ended, which the check will tell.
        let _ = has_begun.recv();
    }
    std::thread::sleep(Duration::from_micros(micros));
    child.kill().unwrap();
    child.wait().unwrap();
    let reported = reader.join().unwrap();
    if !runner.path.exists() {
        assert!(reported.is_empty(), "events were committed to a file that is not there");
        return None;
    }
    let spool = Spool::open(&runner.path);
    spool.check();
    assert_eq!(spool.lost_events, 0);
    Some(compare(&spool, &reported))
}

fn compare(spool: &Spool, reported: &HashMap<u64, u64>) -> u64 {
    let mut events = 0;
    let mut seen = 0;
    for ((number, _), sequence) in &spool.sequences {
        let marks: Vec<u64> = spool
            .marks
            .iter()
            .filter(|mark| mark.thread == *number)
            .map(|mark| match mark.value {
                MarkValue::Integer(value) => value as u64,
                other => panic!("{other:?}"),
            })
            .collect();
        let Some(&(_, first)) = sequence.heap.first() else { continue };
        let Heap::Alloc { address: start, .. } = first else { panic!("{first:?} comes first") };
        let thread = start / 0x10_0000_0000 - 1;
        // Nothing is out of order, missing within, or of other content.
        for (index, (_, event)) in (0..).zip(&sequence.heap) {
            let block = index / 2;
            match *event {
                Heap::Alloc { address: found, size: bytes, .. } if index % 2 == 0 => {
                    assert_eq!((found, bytes), (address(thread, block), size(block)));
                }
                Heap::Free { address: found, .. } if index % 2 == 1 => {
                    assert_eq!(found, address(thread, block))
                }
                other => panic!("{other:?} is event {index}"),
            }
        }
        for (index, &mark) in (0..).zip(&marks) {
            assert_eq!(mark, thread << 32 | (index * 3 + 2));
        }
        let (heap, marks) = (sequence.heap.len() as u64, marks.len() as u64);
        assert!(marks == heap / 2 || marks + 1 == heap.div_ceil(2), "{heap} heap events and {marks} marks");
        let found = heap + marks;
        let known = reported.get(&thread).copied().unwrap_or(0);
        let most = known + REPORT_EVERY[thread as usize];
        assert!((known..=most).contains(&found), "thread {thread}: {known} were reported, {found} are there");
        seen += u64::from(known > 0);
        events += found;
    }
    assert_eq!(seen, reported.len() as u64, "a thread that reported is missing");
    events
}
