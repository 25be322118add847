//! Captures a stack at every malloc, calloc and realloc of the main thread.
//!
//! ```text
//! LD_PRELOAD=libcairn_bench_malloc_hook.so CAIRN_BENCH_UNWINDER=libunwind CAIRN_BENCH_REPORT=/tmp/report program
//! ```
//!
//! `CAIRN_BENCH_UNWINDER` is a name of `cairn_bench_unwinders::UNWINDERS`, `none` (the hook alone),
//! or `cairn-count`, which counts different stacks and frames, and is not for timing. With the
//! feature `counters` the latter also reports how captures were answered. The report is one line of
//! `name=value` words; its CPU time is that between this library's constructor and the program's
//! exit.

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::fmt::Write as _;
use std::fs;

use cairn_bench_unwinders::{Capture, by_name};

/// Cells that only the main thread touches.
struct MainThread<T>(UnsafeCell<T>);

// SAFETY: see `State`: only the main thread goes beyond the check of `thread_pointer`.
unsafe impl<T> Sync for MainThread<T> {}

struct HookState {
    /// The main thread's; zero before the constructor has run and after the destructor.
    thread_pointer: usize,
    /// A capture is under way: its own allocations are not captured.
    is_busy: bool,
    capture: Capture,
    captures: u64,
    start_nanos: u64,
}

static STATE: MainThread<HookState> = MainThread(UnsafeCell::new(HookState {
    thread_pointer: 0,
    is_busy: false,
    capture: nothing,
    captures: 0,
    start_nanos: 0,
}));

extern "C" fn nothing() -> u64 {
    0
}

const COUNTED_IDS: usize = 1 << 26;

struct Counts {
    seen: [u64; COUNTED_IDS / 64],
    unique: u64,
    frames: u64,
    /// Frames that differ from those of the stack before, counted from the outermost one inwards.
    changed: u64,
    /// The stack before, outermost frame last.
    last: [u64; MAX_COMPARED],
    last_count: usize,
}

/// Frames of a stack that are compared with the stack before.
const MAX_COMPARED: usize = 1 << 12;

static COUNTS: MainThread<Counts> = MainThread(UnsafeCell::new(Counts {
    seen: [0; COUNTED_IDS / 64],
    unique: 0,
    frames: 0,
    changed: 0,
    last: [0; MAX_COMPARED],
    last_count: 0,
}));

/// Captures with cairn and counts.
extern "C" fn count() -> u64 {
    let stack = cairn_capture::capture();
    // SAFETY: only the main thread captures, and a capture inside this one is held off by
    // `is_busy`.
    let counts = unsafe { &mut *COUNTS.0.get() };
    let id = stack.id().number() as usize;
    if let Some(word) = counts.seen.get_mut(id / 64) {
        counts.unique += u64::from(*word >> (id % 64) & 1 == 0);
        *word |= 1 << (id % 64);
    }
    let mut present = [0; MAX_COMPARED];
    let mut count = 0;
    for (place, frame) in present.iter_mut().zip(stack.frames()) {
        *place = frame.address().map_or(0, |address| address.value());
        count += 1;
    }
    let before = counts.last[..counts.last_count].iter().rev();
    let same = present[..count].iter().rev().zip(before).take_while(|(one, other)| one == other).count();
    counts.frames += count as u64;
    counts.changed += (count - same) as u64;
    (counts.last, counts.last_count) = (present, count);
    id as u64
}

#[inline(always)]
fn thread_pointer() -> usize {
    let pointer;
    // SAFETY: the first word of the thread control block is its own address, by the ABI.
    unsafe {
        core::arch::asm!("mov {}, qword ptr fs:[0]", out(reg) pointer, options(nostack, preserves_flags, readonly));
    }
    pointer
}

#[inline(always)]
fn on_allocation() {
    let state = STATE.0.get();
    // SAFETY: what other threads read here does not change while they run, and they go no further.
    unsafe {
        if (*state).thread_pointer != thread_pointer() || (*state).is_busy {
            return;
        }
        (*state).is_busy = true;
        std::hint::black_box(((*state).capture)());
        (*state).captures += 1;
        (*state).is_busy = false;
    }
}

unsafe extern "C" {
    fn __libc_malloc(size: usize) -> *mut c_void;
    fn __libc_calloc(count: usize, size: usize) -> *mut c_void;
    fn __libc_realloc(block: *mut c_void, size: usize) -> *mut c_void;
}

/// # Safety
///
/// - The arguments are valid for the C library's `malloc`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc(size: usize) -> *mut c_void {
    on_allocation();
    // SAFETY: the caller promises what the C library's function requires.
    unsafe { __libc_malloc(size) }
}

/// # Safety
///
/// - The arguments are valid for the C library's `calloc`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn calloc(count: usize, size: usize) -> *mut c_void {
    on_allocation();
    // SAFETY: the caller promises what the C library's function requires.
    unsafe { __libc_calloc(count, size) }
}

/// # Safety
///
/// - The arguments are valid for the C library's `realloc`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn realloc(block: *mut c_void, size: usize) -> *mut c_void {
    on_allocation();
    // SAFETY: the caller promises what the C library's function requires.
    unsafe { __libc_realloc(block, size) }
}

/// The environment variable with the argument of `cairn_capture::follow_after`.
const FOLLOW_AFTER: &str = "CAIRN_BENCH_FOLLOW_AFTER";

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;

extern "C" fn start() {
    if let Some(captures) = std::env::var(FOLLOW_AFTER).ok().and_then(|text| text.parse().ok()) {
        cairn_capture::follow_after(captures);
    }
    let Ok(name) = std::env::var("CAIRN_BENCH_UNWINDER") else { return };
    let capture: Result<Capture, String> = match (name.as_str(), by_name(&name)) {
        ("none", _) => Ok(nothing),
        ("cairn-count", _) => Ok(count),
        (_, Some(unwinder)) => (unwinder.prepare)().map(|()| unwinder.capture),
        (_, None) => Err("no such unwinder".to_owned()),
    };
    match capture {
        // SAFETY: before `main`, no other thread is there.
        Ok(capture) => unsafe {
            let state = STATE.0.get();
            (*state).capture = capture;
            (*state).start_nanos = cpu_nanos();
            (*state).thread_pointer = thread_pointer();
        },
        Err(why) => report(&format!("missing={why}")),
    }
}

extern "C" fn end() {
    let state = STATE.0.get();
    // SAFETY: the destructor runs on the thread that exits; the others stop at the zero.
    let (captures, start_nanos) = unsafe {
        if (*state).thread_pointer == 0 {
            return;
        }
        (*state).thread_pointer = 0;
        ((*state).captures, (*state).start_nanos)
    };
    let mut line = format!("captures={captures} cpu_nanos={}", cpu_nanos() - start_nanos);
    // SAFETY: no capture is under way any more.
    let counts = unsafe { &*COUNTS.0.get() };
    if counts.unique > 0 {
        let statistics = cairn_capture::statistics();
        let _ = write!(
            line,
            " unique={} frames={} changed={} memory_bytes={} lost={} whole_walks={}",
            counts.unique,
            counts.frames,
            counts.changed,
            statistics.memory_bytes,
            statistics.lost,
            statistics.whole_walks
        );
        #[cfg(feature = "counters")]
        for (name, count) in cairn_capture::counts() {
            let _ = write!(line, " {name}={count}");
        }
    }
    report(&line);
}

fn report(line: &str) {
    if let Ok(path) = std::env::var("CAIRN_BENCH_REPORT") {
        // Without a report, the benchmark says so.
        let _ = fs::write(path, line);
    }
}

fn cpu_nanos() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes to the variable.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
