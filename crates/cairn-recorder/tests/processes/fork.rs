//! Children of all kinds: the parent's file holds what the parent did, and nothing else.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use cairn_capture::capture;
use cairn_recorder::{EndReason, heap, is_recording, mark, start, stop};

use crate::support::Spool;
use crate::{Runner, options};

const FORKS: usize = 20;

/// Forks in several ways while another thread records.
pub(crate) fn child(path: &Path) {
    start(&options(path)).unwrap();
    mark("parent begins");
    let shall_end = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !shall_end.load(Ordering::Relaxed) {
                heap::allocated_by(0x1000, 16, capture());
                heap::freeing(0x1000);
            }
        });
        for turn in 0..FORKS {
            mark("parent forks");
            let kinds: [fn() -> i32; 2] = [fork, raw_clone];
            let process = kinds[turn % 2]();
            if process == 0 {
                in_child();
            }
            wait(process);
            vfork_child();
        }
        shall_end.store(true, Ordering::Relaxed);
    });
    mark("parent ends");
    stop(EndReason::Exit);
}

fn fork() -> i32 {
    // SAFETY: the child does only what recorder and kernel allow, and ends by _exit.
    unsafe { libc::fork() }
}

/// Without the C library's knowledge.
fn raw_clone() -> i32 {
    // SAFETY: as a fork.
    unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) as i32 }
}

fn in_child() -> ! {
    for _ in 0..100 {
        mark("child");
        heap::allocated_by(0x2000, 16, capture());
        heap::freeing(0x2000);
    }
    let code = i32::from(is_recording());
    // A child of the child.
    let process = fork();
    if process != 0 {
        wait(process);
    }
    mark("child of the child");
    // SAFETY: ends the process at once.
    unsafe { libc::_exit(code) }
}

fn wait(process: i32) {
    let mut status = 0;
    // SAFETY: waits for our own child.
    assert_eq!(unsafe { libc::waitpid(process, &raw mut status, 0) }, process);
    assert_eq!(status, 0, "a child records, or died");
}

/// A child that shares the memory: it goes on as its parent's thread, until it execs.
fn vfork_child() {
    let mut command = std::process::Command::new("/bin/true");
    // SAFETY: none of these needs more than a vfork child has.
    unsafe {
        std::os::unix::process::CommandExt::pre_exec(&mut command, || {
            mark("before exec");
            Ok(())
        });
    }
    // With `pre_exec` std forks; without it, it spawns by vfork.
    assert!(command.status().unwrap().success());
    assert!(std::process::Command::new("/bin/true").status().unwrap().success());
}

pub(crate) fn check(runner: &Runner) {
    runner.run();
    let spool = Spool::open(&runner.path);
    spool.check();
    let count = |text: &str| spool.marks.iter().filter(|mark| mark.text == text).count();
    assert_eq!((count("parent begins"), count("parent forks"), count("parent ends")), (1, FORKS, 1));
    assert_eq!(spool.marks.len(), FORKS + 2, "{:?}", spool.marks);
    assert_eq!((spool.ends, spool.lost_events), (1, 0));
    let pairing = spool.pair();
    assert!(pairing.unmatched == 0 && pairing.live.is_empty() && pairing.local > 1000);
}

/// Returns the child's path, which lies beside the parent's.
fn own_path(path: &Path) -> PathBuf {
    PathBuf::from(format!("{}.1", path.display()))
}

pub(crate) fn child_with_own(path: &Path) {
    let mut options = options(path);
    options.follows_children = true;
    start(&options).unwrap();
    mark("parent");
    let process = fork();
    if process == 0 {
        mark("child");
        std::thread::spawn(|| mark("child's thread")).join().unwrap();
        std::process::exit(0);
    }
    wait(process);
    mark("parent");
}

pub(crate) fn check_with_own(runner: &Runner) {
    let own = own_path(&runner.path);
    let _ = std::fs::remove_file(&own);
    runner.run();
    let texts = |path: &Path| {
        let spool = Spool::open(path);
        spool.check();
        spool.marks.iter().map(|mark| mark.text.clone()).collect::<Vec<_>>()
    };
    assert_eq!(texts(&runner.path), ["parent", "parent"]);
    assert_eq!(texts(&own), ["child", "child's thread"]);
    assert_ne!(Spool::open(&own).header.process, Spool::open(&runner.path).header.process);
    let _ = std::fs::remove_file(own);
}
