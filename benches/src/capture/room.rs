//! Measures the space of captures: memory of a thread, and stack below the caller.

use std::hint::black_box;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{fs, thread};

const THREADS: usize = 100;

pub(crate) fn run() -> Result<(), String> {
    // The memory that all threads share exists before the first is measured.
    deep(100, &|| ());
    let without = thread_bytes(false)?;
    let with = thread_bytes(true)?;
    println!("| quantity | bytes |");
    println!("|---|---:|");
    println!("| memory per thread ({THREADS} threads, captures at 100 depths) | {:.0} |", with - without);
    let uses = thread::spawn(|| {
        let first = stack_use(|| black_box(cairn_capture::capture()));
        let first_here = stack_use(|| black_box(cairn_capture::capture()));
        // Not unrolled: each copy would be a place of its own.
        let mut again = 0;
        for _ in 0..black_box(40) {
            again = stack_use(capture_here);
        }
        let interrupted = stack_use(capture_context);
        let in_handler = stack_use_in_handler();
        [
            ("whole walk of an interrupted context, the context included", interrupted),
            ("its context alone", size_of::<libc::ucontext_t>()),
            ("whole walk from a call, out of a signal's handler", in_handler),
            ("first capture of a thread", first),
            ("first capture at a place", first_here),
            ("capture again", again),
        ]
    });
    for (what, bytes) in uses.join().map_err(|_| "the thread that captures panicked".to_owned())? {
        println!("| stack below the caller: {what} | {bytes} |");
    }
    Ok(())
}

#[inline(never)]
fn capture_here() -> cairn_capture::Stack {
    black_box(cairn_capture::capture())
}

/// As a signal handler does, but for the signal.
#[inline(never)]
fn capture_context() -> cairn_capture::Stack {
    // SAFETY: zeros are a context, which the next call fills.
    let mut context: libc::ucontext_t = unsafe { std::mem::zeroed() };
    // SAFETY: fills the context of this very frame, which is not left before the capture ends.
    black_box(unsafe {
        libc::getcontext(&raw mut context);
        cairn_capture::capture_interrupted(&raw const context)
    })
}

/// Result of the signal handler.
static IN_HANDLER: AtomicUsize = AtomicUsize::new(0);

extern "C" fn on_signal(_: i32) {
    // Not the first one, which makes the tables and probes the handler's own stack.
    for _ in 0..black_box(3) {
        IN_HANDLER.store(stack_use(capture_here), Ordering::Relaxed);
    }
}

/// Returns a stack with a signal's frame in it is walked as a whole each time.
fn stack_use_in_handler() -> usize {
    // SAFETY: the handler touches its own stack and an atomic.
    unsafe {
        libc::signal(libc::SIGUSR1, on_signal as extern "C" fn(i32) as libc::sighandler_t);
        libc::raise(libc::SIGUSR1);
    }
    IN_HANDLER.load(Ordering::Relaxed)
}

/// Captures at each of `depths` depths, then calls `at_the_bottom`.
#[inline(never)]
fn deep(levels: usize, at_the_bottom: &dyn Fn()) -> usize {
    black_box(cairn_capture::capture());
    if levels == 0 {
        at_the_bottom();
        return 0;
    }
    deep(levels - 1, at_the_bottom) + 1
}

#[inline(never)]
fn deep_without(levels: usize, at_the_bottom: &dyn Fn()) -> usize {
    black_box(levels);
    if levels == 0 {
        at_the_bottom();
        return 0;
    }
    deep_without(levels - 1, at_the_bottom) + 1
}

/// Memory that each of many threads adds while all are at the bottom of their stacks.
fn thread_bytes(captures: bool) -> Result<f64, String> {
    let barrier = Barrier::new(THREADS + 1);
    let before = resident_bytes()?;
    let mut after = Ok(0);
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let wait = || {
                    barrier.wait();
                    barrier.wait();
                };
                if captures { deep(100, &wait) } else { deep_without(100, &wait) }
            });
        }
        barrier.wait();
        after = resident_bytes();
        barrier.wait();
    });
    Ok((after? as f64 - before as f64) / THREADS as f64)
}

fn resident_bytes() -> Result<u64, String> {
    let text =
        fs::read_to_string("/proc/self/smaps_rollup").map_err(|error| format!("smaps_rollup: {error}"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("Anonymous:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kilobytes.map(|kilobytes| kilobytes * 1024).ok_or_else(|| "smaps_rollup: no Anonymous line".to_owned())
}

/// Returns the number of stack bytes that `capture` touches. Paints the stack below first and
/// inspects it afterwards. Below 128 it cannot tell.
#[inline(never)]
fn stack_use<R>(capture: impl Fn() -> R) -> usize {
    const PAINTED_WORDS: usize = 8192;
    const PAINT: u64 = 0x5ca1_ab1e_0ddb_a115;
    let (mut changed, words) = (0_u64, PAINTED_WORDS as u64);
    // SAFETY: writes below the stack pointer, where nothing lives yet, and no farther than a
    // thread's stack reaches. The red zone of this function is left alone.
    unsafe {
        core::arch::asm!(
            "lea {place}, [rsp - 128]",
            "2:",
            "sub {place}, 8",
            "mov qword ptr [{place}], {paint}",
            "dec {count}",
            "jnz 2b",
            place = out(reg) _,
            paint = in(reg) PAINT,
            count = inout(reg) words => _,
        );
    }
    black_box(capture());
    // SAFETY: reads what was written above.
    unsafe {
        core::arch::asm!(
            "lea {place}, [rsp - 128]",
            "mov {lowest}, {place}",
            "2:",
            "sub {place}, 8",
            "cmp qword ptr [{place}], {paint}",
            "cmovne {lowest}, {place}",
            "dec {count}",
            "jnz 2b",
            "mov {changed}, rsp",
            "sub {changed}, {lowest}",
            place = out(reg) _,
            lowest = out(reg) _,
            paint = in(reg) PAINT,
            count = inout(reg) words => _,
            changed = inout(reg) changed,
        );
    }
    changed as usize
}
