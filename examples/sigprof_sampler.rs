//! A sampling profiler in one file: every few milliseconds of processor time a signal notes which
//! stack it interrupted; afterwards the stacks are counted and named.
//!
//! `cargo run --release -p cairn-examples --bin sigprof_sampler`

#![allow(clippy::print_stdout, reason = "a program that prints")]

mod names;

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::hint::black_box;
use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use cairn_capture::{Stack, StackId, capture_interrupted};
use names::Names;

/// A stack is a number, so a sample is one word.
static SAMPLES: [AtomicU32; 10_000] = [const { AtomicU32::new(0) }; 10_000];
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Runs on whatever the program was doing.
extern "C" fn on_tick(_signal: c_int, _info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the context of the handler that this is.
    let stack = unsafe { capture_interrupted(context.cast()) };
    if let Some(sample) = SAMPLES.get(COUNT.fetch_add(1, Ordering::Relaxed)) {
        sample.store(stack.id().number(), Ordering::Relaxed);
    }
}

fn main() {
    start(1000);
    while COUNT.load(Ordering::Relaxed) < 50 {
        busy(200_000);
    }
    start(0);
    report();
}

/// Requests a signal every `microseconds` of processor time; none for 0.
fn start(period_micros: libc::suseconds_t) {
    // SAFETY: zeros are a value of all three; the handler only does what a handler may do.
    unsafe {
        let mut action: libc::sigaction = mem::zeroed();
        action.sa_sigaction = on_tick as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
        libc::sigaction(libc::SIGPROF, &action, ptr::null_mut());
        let period = libc::timeval { tv_sec: 0, tv_usec: period_micros };
        let timer = libc::itimerval { it_interval: period, it_value: period };
        libc::setitimer(libc::ITIMER_PROF, &timer, ptr::null_mut());
    }
}

/// Something to find.
#[inline(never)]
fn busy(rounds: u64) -> u64 {
    (0..rounds).fold(0, |sum, round| black_box(sum ^ round).wrapping_mul(31))
}

fn report() {
    let names = Names::of_this_program().expect("the program can be read");
    let count = COUNT.load(Ordering::Relaxed).min(SAMPLES.len());
    let mut by_stack: HashMap<StackId, usize> = HashMap::new();
    for sample in &SAMPLES[..count] {
        let id = StackId::from_number(sample.load(Ordering::Relaxed)).expect("every sample is a stack");
        *by_stack.entry(id).or_default() += 1;
    }
    // Each stack is named once, however often it was seen; what differs by the instruction alone
    // then becomes one.
    let mut by_path: HashMap<String, usize> = HashMap::new();
    for (id, count) in by_stack {
        let path: Vec<String> = Stack::from_id(id).frames().map(|frame| names.name(frame)).collect();
        *by_path.entry(path.join(" < ")).or_default() += count;
    }
    let mut paths: Vec<_> = by_path.into_iter().collect();
    paths.sort_by_key(|&(_, count)| std::cmp::Reverse(count));
    println!("{count} samples");
    for (path, count) in paths.iter().take(5) {
        println!("{count:>6} {path}");
    }
}
