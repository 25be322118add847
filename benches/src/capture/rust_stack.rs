//! fixed_stack.cpp in Rust: every frame of a different function, and captures timed at the bottom.

use std::ffi::{c_int, c_void};
use std::hint::black_box;

use crate::capture::fixed::Job;

trait Level {
    const NUMBER: usize;
    fn frame(job: &Job, a: usize, b: usize) -> usize;
}

/// One level around another.
struct In<Inner>(Inner);
struct Innermost;

impl Level for Innermost {
    const NUMBER: usize = 0;

    #[inline(never)]
    fn frame(job: &Job, a: usize, b: usize) -> usize {
        time_captures(job);
        black_box(a) * b
    }
}

impl<Inner: Level> Level for In<Inner> {
    const NUMBER: usize = Inner::NUMBER + 1;

    /// Frames of different sizes that keep different registers, as in the C++ program.
    #[inline(never)]
    fn frame(job: &Job, a: usize, b: usize) -> usize {
        let mut words = [a; 4];
        if Self::NUMBER % 3 == 0 {
            black_box(&mut words);
        }
        let inner = Inner::frame(job, a + Self::NUMBER, if Self::NUMBER % 2 == 0 { a } else { b });
        match Self::NUMBER % 4 {
            0 => inner + words[0],
            1 => inner.wrapping_mul(a) + words[1],
            _ => inner.wrapping_mul(a) + b * Self::NUMBER + words[2],
        }
    }
}

#[inline(never)]
fn time_captures(job: &Job) {
    for round in 0..job.rounds() {
        for index in 0..job.count() {
            let (capture, calls) = job.capture(index);
            let start = now_nanos();
            let mut result = 0;
            for _ in 0..calls {
                result = capture();
            }
            job.record(round, index, (now_nanos() - start) as f64 / f64::from(calls), result);
        }
    }
}

/// Measures this thread's own time; other programs do not count.
pub(crate) fn now_nanos() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes to the variable.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

type In2<L> = In<In<L>>;
type In8<L> = In2<In2<In2<In2<L>>>>;
type In10<L> = In2<In8<L>>;
type In20<L> = In10<In10<L>>;
/// Number of frames around those of `Level`. The capture's shim, `time_captures`, `outermost`, and
/// two of the C library.
type Levels14 = In8<Innermost>;
type Levels34 = In20<Levels14>;
type Levels104 = In10<In20<In20<In20<Levels34>>>>;
const _: () =
    assert!(Levels14::NUMBER == 14 - 6 && Levels34::NUMBER == 34 - 6 && Levels104::NUMBER == 104 - 6);

struct Thread {
    job: *mut Job,
    depth: c_int,
    prepare: extern "C" fn(),
}

extern "C" fn outermost(argument: *mut c_void) -> *mut c_void {
    // SAFETY: what `run_fixed_stack` passed, which waits for this thread.
    let (thread, job) = unsafe {
        let thread = &*argument.cast::<Thread>();
        (thread, &*thread.job)
    };
    (thread.prepare)();
    let frame = match thread.depth {
        14 => Levels14::frame,
        34 => Levels34::frame,
        104 => Levels104::frame,
        _ => return argument,
    };
    black_box(black_box(frame)(job, 1, 2));
    std::ptr::null_mut()
}

/// Runs the job at that depth on a thread of its own, after `prepare`. Returns 0 on success.
pub(crate) extern "C" fn run_fixed_stack(job: *mut Job, depth: c_int, prepare: extern "C" fn()) -> c_int {
    let mut thread = Thread { job, depth, prepare };
    let mut id = 0;
    let mut answer = std::ptr::null_mut();
    // SAFETY: the argument outlives the thread, which is waited for here.
    let status = unsafe {
        libc::pthread_create(&raw mut id, std::ptr::null(), outermost, (&raw mut thread).cast())
            | libc::pthread_join(id, &raw mut answer)
    };
    status | c_int::from(!answer.is_null())
}
