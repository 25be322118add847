//! Programs that run under `cairn heap` are read meanwhile; in the end their sums are those of the
//! whole recording.

#![cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]

#[allow(dead_code, reason = "it serves other tests too")]
mod support;

use std::collections::hash_map::RandomState;
use std::fs;
use std::hash::BuildHasher;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use cairn_analysis::heap::{HeapRecording, LiveHeap, Scope};
use cairn_recording::Recording;
use support::{cairn, compile, scratch};

/// Only what never comes takes so long, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(300);
/// Argument of programs that run until the test ends them.
const LONG: &str = "600000";

/// Starts a command that records into `directory`, and waits until there is a recording.
#[allow(clippy::zombie_processes, reason = "the caller waits for it; a failing test ends all")]
fn start(command: &mut Command, directory: &Path) -> (Child, PathBuf) {
    let child = command.current_dir(directory).stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
    let began = Instant::now();
    loop {
        let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
        let mut found = entries.filter(|path| path.extension().is_some_and(|end| end == "cairn"));
        if let Some(path) = found.next().filter(|path| Recording::open(path).is_ok()) {
            return (child, path);
        }
        assert!(began.elapsed() < PATIENCE, "nothing is recorded");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Lets the programs in a directory come to their end.
fn stop(directory: &Path) {
    fs::write(directory.join("stop"), "").unwrap();
}

/// Follows the recording that `child` writes, at random moments.
///
/// Calls `end` to end the program after enough reads, and compares.
fn follow(mut child: Child, path: &Path, end: impl Fn()) {
    let mut heap = LiveHeap::open(path).unwrap();
    let (mut attempts, mut grown, mut last) = (0, 0, 0);
    let began = Instant::now();
    while !heap.update().unwrap().has_ended {
        let allocations = heap.snapshot().profile.totals.allocations;
        assert!(allocations >= last);
        grown += u32::from(allocations > last);
        (last, attempts) = (allocations, attempts + 1);
        if allocations > 3_000 && grown > 3 {
            end();
        }
        assert!(began.elapsed() < PATIENCE, "its end is not seen");
        let pause = RandomState::new().hash_one(attempts) % 200;
        std::thread::sleep(Duration::from_millis(pause));
    }
    child.wait().unwrap();
    assert!(grown > 1, "{grown} of {attempts} reads found new events");
    let whole = HeapRecording::new(Recording::open(path).unwrap());
    let read = whole.read(Scope::default()).unwrap();
    let live = heap.snapshot();
    assert!(read.profile.totals.allocations > 3_000);
    assert_eq!((live.profile.totals, live.profile.sampling), (read.profile.totals, read.profile.sampling));
    // Both are some pages long.
    assert!(live.profile == read.profile, "the sums are equal in all, and not in all parts");
    assert_eq!(live.resident, read.resident);
    let differing: Vec<_> = live.usage.iter().zip(&read.usage).filter(|(live, read)| live != read).collect();
    assert_eq!((differing, live.usage.len()), (Vec::new(), read.usage.len()));
    assert_eq!((&live.marks, live.more_marks), (&read.marks, read.more_marks));
    assert_eq!(live.unmatched_frees, read.unmatched_frees);
    assert_eq!((live.most_resident_bytes, live.page_faults), (read.most_resident_bytes, read.page_faults));
    assert_eq!(*heap.stacks(), *whole.stacks());
    assert_eq!(heap.about(), whole.about());
}

#[test]
fn programs_are_followed_to_their_end() {
    for (test, threads) in [("live-one", "1"), ("live-six", "6")] {
        let directory = scratch(test);
        let program = compile(&directory, "live.c", "program", &[]);
        let mut command = cairn();
        command.args(["heap", "--quiet", "--mmap", "--"]).arg(&program).args([threads, LONG, "stop"]);
        let (child, path) = start(&mut command, &directory);
        follow(child, &path, || stop(&directory));
    }
}

#[test]
fn sampled_programs_are_followed_to_their_end() {
    let directory = scratch("live-sampled");
    let program = compile(&directory, "live.c", "program", &[]);
    let mut command = cairn();
    command.args(["heap", "--quiet", "--sample", "1KiB", "--"]).arg(&program).args(["3", LONG, "stop"]);
    let (child, path) = start(&mut command, &directory);
    follow(child, &path, || stop(&directory));
}

/// The process that a recording is of.
fn process_of(path: &Path) -> String {
    Recording::open(path).unwrap().header().process.to_string()
}

#[test]
fn killed_programs_are_followed_to_their_end() {
    let directory = scratch("live-killed");
    let program = compile(&directory, "live.c", "program", &[]);
    let mut command = cairn();
    command.args(["heap", "--quiet", "--"]).arg(&program).args(["4", LONG]);
    let (child, path) = start(&mut command, &directory);
    let process = process_of(&path);
    follow(child, &path, || {
        let _ = Command::new("kill").args(["-9", &process]).stderr(Stdio::null()).status();
    });
}

#[test]
fn undrained_programs_are_followed_to_their_end() {
    for (test, is_killed) in [("live-alone", false), ("live-alone-killed", true)] {
        let directory = scratch(test);
        let program = compile(&directory, "live.c", "program", &[]);
        let library = cairn_run::Library::unpack().unwrap();
        let mut command = Command::new(&program);
        command
            .args(["4", LONG, "stop"])
            .env("LD_PRELOAD", library.path())
            .env("CAIRN_HEAP", "output=%n.%p.cairn");
        let (child, path) = start(&mut command, &directory);
        let process = child.id().to_string();
        // A killed child is there until it is waited for, and its recording ends all the same.
        follow(child, &path, || {
            if is_killed {
                let _ = Command::new("kill").args(["-9", &process]).stderr(Stdio::null()).status();
            } else {
                stop(&directory);
            }
        });
    }
}
