//! Actions of several threads at once, and forks and ends of the recording during them.

use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use cairn_format::recording::MarkValue;
use cairn_recorder::{EndReason, Keep, dump, is_recording, mark, mark_value, pause, resume, start, stop};

use crate::support::Spool;
use crate::{Runner, options};

/// The path with a word behind it.
fn beside(path: &Path, word: impl std::fmt::Display) -> PathBuf {
    PathBuf::from(format!("{}.{word}", path.display()))
}

fn wait(process: i32) {
    let mut status = 0;
    // SAFETY: waits for our own child.
    assert_eq!(unsafe { libc::waitpid(process, &raw mut status, 0) }, process);
    assert_eq!(status, 0, "the child did not end well");
}

const STOPS: i64 = 100;

/// Recordings end and others begin while threads pause and resume.
pub(crate) fn stopping_child(path: &Path) {
    let mut number = 0;
    let mut begin = || {
        number += 1;
        let own = beside(path, number);
        start(&options(&own)).unwrap_or_else(|error| panic!("recording {number}: {error}"));
        own
    };
    let mut recorded = begin();
    for round in 0..STOPS {
        let barrier = Barrier::new(4);
        let shall_end = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    barrier.wait();
                    while !shall_end.load(Ordering::Relaxed) {
                        pause();
                        resume();
                    }
                });
            }
            barrier.wait();
            for _ in 0..1000 {
                std::hint::spin_loop();
            }
            stop(EndReason::Stopped);
            assert!(!is_recording(), "round {round}: it goes on after its end");
            std::fs::remove_file(&recorded).unwrap();
            recorded = begin();
            shall_end.store(true, Ordering::Relaxed);
        });
        resume();
        mark_value("round", MarkValue::Integer(round));
        let spool = Spool::open(&recorded);
        spool.check();
        let marks: Vec<_> = spool.marks.iter().map(|mark| mark.value).collect();
        assert_eq!((marks, spool.lost_events), (vec![MarkValue::Integer(round)], 0));
    }
    std::fs::remove_file(&recorded).unwrap();
}

pub(crate) fn check_stopping(runner: &Runner) {
    runner.run();
}

const FORKS: usize = 60;
const CHILD_THREADS: usize = 6;

/// In a forked child the first events come from several threads at once.
pub(crate) fn children_of_threads(path: &Path) {
    let mut options = options(path);
    options.follows_children = true;
    start(&options).unwrap();
    mark("parent");
    for _ in 0..FORKS {
        // SAFETY: this process has one thread.
        let process = unsafe { libc::fork() };
        if process == 0 {
            let barrier = Barrier::new(CHILD_THREADS);
            std::thread::scope(|scope| {
                for _ in 0..CHILD_THREADS {
                    scope.spawn(|| {
                        barrier.wait();
                        mark("thread of a child");
                    });
                }
            });
            // SAFETY: ends the process at once.
            unsafe { libc::_exit(0) };
        }
        wait(process);
        let own = beside(path, 1);
        let spool = Spool::open(&own);
        spool.check();
        assert_eq!((spool.marks.len(), spool.lost_events), (CHILD_THREADS, 0));
        std::fs::remove_file(&own).unwrap();
        assert!(!beside(path, 2).exists(), "one recording for each child");
    }
}

pub(crate) fn check_children_of_threads(runner: &Runner) {
    runner.run();
    let spool = Spool::open(&runner.path);
    spool.check();
    assert_eq!(spool.marks.len(), 1);
}

/// Another stack for each number: the bits choose the way.
#[inline(never)]
fn mark_by(number: i64, bits: u32) {
    match (bits, number >> bits.saturating_sub(1) & 1) {
        (0, _) => mark_value("new", MarkValue::Integer(number)),
        (_, 0) => left(number, bits),
        _ => right(number, bits),
    }
    std::hint::black_box(());
}

#[inline(never)]
fn left(number: i64, bits: u32) {
    mark_by(number, bits - 1);
    std::hint::black_box(0);
}

#[inline(never)]
fn right(number: i64, bits: u32) {
    mark_by(number, bits - 1);
    std::hint::black_box(1);
}

const DUMPS: u32 = 60;
const WRITERS: i64 = 3;

/// Copies while threads write: of a ring that is overwritten all the time, and of stacks that are
/// new.
pub(crate) fn dumping_child(path: &Path) {
    let mut options = options(Path::new(""));
    options.keep = Keep::Last { bytes: 1 << 20, nanos: u64::MAX };
    start(&options).unwrap();
    let shall_end = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..WRITERS {
            let shall_end = &shall_end;
            scope.spawn(move || {
                for number in 0.. {
                    if shall_end.load(Ordering::Relaxed) {
                        break;
                    }
                    let value = thread << 20 | number & 0xf_ffff;
                    // New ones now and then: memory without a file has room for that many.
                    if number % 16 == 0 { mark_by(value >> 4 | thread << 40, 16) } else { mark("known") }
                }
            });
        }
        for number in 0..DUMPS {
            let own = beside(path, number);
            dump(own.as_os_str().as_encoded_bytes(), None).unwrap();
        }
        shall_end.store(true, Ordering::Relaxed);
    });
}

pub(crate) fn check_dumping(runner: &Runner) {
    for number in 0..DUMPS {
        let _ = std::fs::remove_file(beside(&runner.path, number));
    }
    runner.run();
    for number in 0..DUMPS {
        let own = beside(&runner.path, number);
        let spool = Spool::open(&own);
        spool.check();
        std::fs::remove_file(own).unwrap();
    }
}

const CROWD: i64 = 48;
const CROWD_ROUNDS: i64 = 20;

/// Has more threads store new stacks at once than there are places to write tables from. No others
/// come later.
pub(crate) fn new_stacks_at_once(path: &Path) {
    start(&options(path)).unwrap();
    let barrier = Barrier::new(CROWD as usize);
    std::thread::scope(|scope| {
        for thread in 0..CROWD {
            let barrier = &barrier;
            let work = move || {
                for round in 0..CROWD_ROUNDS {
                    barrier.wait();
                    mark_by(round * CROWD + thread, 12);
                }
            };
            std::thread::Builder::new().stack_size(1 << 18).spawn_scoped(scope, work).unwrap();
        }
    });
}

pub(crate) fn check_new_stacks(runner: &Runner) {
    runner.run();
    let spool = Spool::open(&runner.path);
    spool.check();
    assert_eq!((spool.marks.len() as i64, spool.lost_events), (CROWD * CROWD_ROUNDS, 0));
}

/// How far a thread and a child that shares its memory have come.
static MARKED: AtomicU64 = AtomicU64::new(0);

extern "C" fn mark_in_child(_: *mut libc::c_void) -> libc::c_int {
    for _ in 0..10 {
        mark("in a child that shares the memory");
    }
    0
}

/// As `vfork`, which Rust cannot call: the child is on a stack of its own.
fn run_in_sharing_child() {
    let mut stack = vec![0_u64; 1 << 15];
    let top = stack.as_mut_ptr_range().end;
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: the stack is large enough, and the parent waits until the child has ended.
    let child = unsafe { libc::clone(mark_in_child, top.cast(), flags, std::ptr::null_mut()) };
    assert!(child > 0);
    wait(child);
}

const SHARING_MARKS: u64 = 30_000;

/// Records the first event of a thread in a child that shares its memory, as one of `vfork` does.
/// Another thread records at the same time.
pub(crate) fn sharing_child(path: &Path) {
    start(&options(path)).unwrap();
    let shall_end = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..SHARING_MARKS {
                mark("other");
                MARKED.fetch_add(1, Ordering::Relaxed);
            }
            while !shall_end.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_micros(20));
            }
        });
        while MARKED.load(Ordering::Relaxed) == 0 {
            std::thread::sleep(Duration::from_micros(20));
        }
        run_in_sharing_child();
        for _ in 0..SHARING_MARKS {
            mark("own");
        }
        // A thread that begins now must not take what this one goes on to use.
        scope.spawn(|| (0..SHARING_MARKS).for_each(|_| mark("late")));
        for _ in 0..SHARING_MARKS {
            mark("own");
        }
        shall_end.store(true, Ordering::Relaxed);
    });
}

pub(crate) fn check_sharing(runner: &Runner) {
    runner.run();
    let spool = Spool::open(&runner.path);
    spool.check();
    let count = |text: &str| spool.marks.iter().filter(|mark| mark.text == text).count() as u64;
    assert_eq!(spool.lost_events, 0);
    let counts = (count("other"), count("in a child that shares the memory"), count("own"), count("late"));
    assert_eq!(counts, (SHARING_MARKS, 10, 2 * SHARING_MARKS, SHARING_MARKS));
}

/// As many as the smallest ring has places.
const HOLDERS: usize = 16;
/// Rounds, each with another number of lost marks.
///
/// The logs that a thread examines first depend on all searches before.
const CROWDED_ROUNDS: u64 = 8;
const NO_PLACE: u64 = 625;

/// Takes all places of a ring for a while. The marks of a further thread are lost, but a later
/// thread finds all it needs.
pub(crate) fn crowded_child(path: &Path) {
    // Room for some hundred logs.
    let limit = libc::rlimit { rlim_cur: 1 << 30, rlim_max: 1 << 30 };
    // SAFETY: reads the variable.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limit) }, 0);
    let mut options = options(path);
    options.keep = Keep::Last { bytes: 1 << 20, nanos: u64::MAX };
    start(&options).unwrap();
    let spawn = |work: &(dyn Fn() + Sync)| {
        std::thread::scope(|scope| {
            std::thread::Builder::new().stack_size(1 << 17).spawn_scoped(scope, work).unwrap();
        });
        wait_until_alone();
    };
    for round in 0..CROWDED_ROUNDS {
        let (all, end) = (Barrier::new(HOLDERS + 1), Barrier::new(HOLDERS + 1));
        std::thread::scope(|scope| {
            for _ in 0..HOLDERS {
                let work = || {
                    mark("holds a place");
                    all.wait();
                    end.wait();
                };
                std::thread::Builder::new().stack_size(1 << 17).spawn_scoped(scope, work).unwrap();
            }
            all.wait();
            let work = || (0..NO_PLACE + round).for_each(|_| mark("no place"));
            std::thread::Builder::new()
                .stack_size(1 << 17)
                .spawn_scoped(scope, work)
                .unwrap()
                .join()
                .unwrap();
            end.wait();
        });
        wait_until_alone();
        spawn(&|| mark("a place again"));
    }
}

/// Waits until the kernel has removed all other threads. It does so some time after `join` returns.
fn wait_until_alone() {
    while std::fs::read_dir("/proc/self/task").unwrap().count() > 1 {
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub(crate) fn check_crowded(runner: &Runner) {
    runner.run();
    let spool = Spool::open(&runner.path);
    spool.check();
    let count = |text: &str| spool.marks.iter().filter(|mark| mark.text == text).count() as u64;
    let lost = (0..CROWDED_ROUNDS).map(|round| NO_PLACE + round).sum();
    // The ring holds the last marks of each thread, and no segment of it is full.
    assert_eq!(count("holds a place"), HOLDERS as u64 * CROWDED_ROUNDS);
    assert_eq!(count("a place again"), CROWDED_ROUNDS);
    // Holders have taken all places, and wait: each of the others is lost, and counted.
    assert_eq!((count("no place"), spool.lost_events), (0, lost));
}

/// Has the kernel refuse what a file system may not know.
fn forbid_fallocate() {
    let filter = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let refusal = libc::SECCOMP_RET_ERRNO | libc::EOPNOTSUPP as u32;
    let mut filters = [
        // The number of the call is the first word.
        filter(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        filter(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, libc::SYS_fallocate as u32),
        filter(libc::BPF_RET | libc::BPF_K, 0, 0, refusal),
        filter(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filters.len() as u16, filter: filters.as_mut_ptr() };
    // SAFETY: the filter is as the kernel wants it.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program), 0);
    }
}

const ZEROED_MARKS: i64 = 150_000;

/// A file system that cannot reserve storage: it is written, by several threads at once.
pub(crate) fn zeroed_child(path: &Path) {
    forbid_fallocate();
    start(&options(path)).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| (0..ZEROED_MARKS).for_each(|_| mark("a text of some thirty characters")));
        }
    });
}

pub(crate) fn check_zeroed(runner: &Runner) {
    runner.run();
    let spool = Spool::open(&runner.path);
    spool.check();
    assert_eq!((spool.marks.len() as i64, spool.lost_events), (6 * ZEROED_MARKS, 0));
}

const RESTARTS: u32 = 150;

/// Marks of each thread in a round. Some come after the end of one recording and before the begin
/// of the next.
const MARKS_OF_ROUND: i64 = 300;

/// One recording after another, while threads go on writing events.
pub(crate) fn restarting_child(path: &Path) {
    let rounds = AtomicU64::new(0);
    start(&options(&beside(path, 0))).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..WRITERS {
            let rounds = &rounds;
            scope.spawn(move || {
                // Large, so that many of them need a segment.
                let text = "x".repeat(2000);
                for number in 0.. {
                    while rounds.load(Ordering::Relaxed) as i64 <= number / MARKS_OF_ROUND {
                        std::thread::sleep(Duration::from_micros(20));
                    }
                    if rounds.load(Ordering::Relaxed) > u64::from(RESTARTS) {
                        break;
                    }
                    mark_value(&text, MarkValue::Integer(thread << 40 | number));
                }
            });
        }
        for number in 1..=RESTARTS {
            rounds.fetch_add(1, Ordering::Relaxed);
            for _ in 0..number % 8 * 1000 {
                std::hint::spin_loop();
            }
            stop(EndReason::Stopped);
            start(&options(&beside(path, number))).unwrap();
        }
        rounds.fetch_add(1, Ordering::Relaxed);
    });
    for number in 0..=RESTARTS {
        check_numbers(&beside(path, number));
    }
}

/// Checks that the marks of each thread are there in their order.
fn check_numbers(path: &Path) {
    let spool = Spool::open(path);
    spool.check();
    let mut last = std::collections::HashMap::new();
    for mark in &spool.marks {
        let MarkValue::Integer(value) = mark.value else { panic!("{mark:?}") };
        let before = last.insert(value >> 40, value);
        assert!(before.is_none_or(|before| before < value), "{before:x?} before {value:x}");
    }
    assert_eq!(spool.lost_events, 0);
    std::fs::remove_file(path).unwrap();
}

pub(crate) fn check_restarting(runner: &Runner) {
    runner.run();
}

const STARTS: u32 = 60;

/// Forks while another thread begins to record for the first time. The child can begin to record as
/// well.
pub(crate) fn forked_amid_start(path: &Path) {
    for number in 0..STARTS {
        // Each time a process that has recorded nothing.
        // SAFETY: this process has one thread.
        let process = unsafe { libc::fork() };
        if process == 0 {
            fork_amid_start(path, number);
        }
        wait(process);
    }
}

fn fork_amid_start(path: &Path, number: u32) -> ! {
    let (own, childs) = (beside(path, "parent"), beside(path, "child"));
    let barrier = Barrier::new(2);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            barrier.wait();
            start(&options(&own)).unwrap();
        });
        barrier.wait();
        let end = std::time::Instant::now() + Duration::from_micros(u64::from(number) * 10);
        while std::time::Instant::now() < end {
            std::hint::spin_loop();
        }
        // SAFETY: the child does only what recorder and kernel allow, and ends by _exit.
        let process = unsafe { libc::fork() };
        if process == 0 {
            let result = start(&options(&childs));
            mark("in the child's own recording");
            // SAFETY: ends the process at once.
            unsafe { libc::_exit(i32::from(result.is_err())) };
        }
        wait(process);
    });
    let spool = Spool::open(&childs);
    spool.check();
    assert_eq!(spool.marks.iter().filter(|mark| mark.text == "in the child's own recording").count(), 1);
    std::fs::remove_file(&childs).unwrap();
    std::fs::remove_file(&own).unwrap();
    // SAFETY: ends the process at once.
    unsafe { libc::_exit(0) };
}

pub(crate) fn check_forked_amid_start(runner: &Runner) {
    runner.run();
}

/// Forks while another thread holds the lock of the loader's list.
pub(crate) fn forked_amid_list(path: &Path) {
    /// Waits for the fork, under the lock.
    ///
    /// # Safety
    ///
    /// `barrier` points to a [`Barrier`] that lives longer than the call.
    unsafe extern "C" fn hold(
        _: *mut libc::dl_phdr_info,
        _: usize,
        barrier: *mut std::ffi::c_void,
    ) -> std::ffi::c_int {
        // SAFETY: the caller passes a `Barrier`.
        let barrier = unsafe { &*barrier.cast::<Barrier>() };
        barrier.wait();
        barrier.wait();
        1
    }
    let barrier = Barrier::new(2);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // SAFETY: the callback takes a `Barrier`, which lives longer than this thread.
            unsafe { libc::dl_iterate_phdr(Some(hold), (&raw const barrier).cast_mut().cast()) };
        });
        barrier.wait();
        // SAFETY: the child does only what recorder and kernel allow, and ends by _exit.
        let process = unsafe { libc::fork() };
        if process == 0 {
            let result = start(&options(path));
            mark("in the child");
            // SAFETY: ends the process at once.
            unsafe { libc::_exit(i32::from(result.is_err())) };
        }
        wait(process);
        barrier.wait();
    });
}

pub(crate) fn check_forked_amid_list(runner: &Runner) {
    runner.run();
    let spool = Spool::open(&runner.path);
    spool.check();
    assert_eq!(spool.marks.iter().filter(|mark| mark.text == "in the child").count(), 1);
    assert!(spool.modules.len() > 1, "the loader's list was not read");
}
