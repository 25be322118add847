//! The stack of another thread: a signal stops it for a moment, and its handler hands over the
//! number of the stack that it interrupted.
//!
//! `cargo run -p cairn-examples --bin paused_thread`

#![allow(clippy::print_stdout, reason = "a program that prints")]

mod names;

use std::ffi::{c_int, c_void};
use std::hint::black_box;
use std::os::unix::thread::JoinHandleExt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use std::{mem, ptr, thread};

use cairn_capture::{Stack, StackId, capture_interrupted};
use names::Names;

static ANSWER: AtomicU32 = AtomicU32::new(0);
static IS_ANSWERED: AtomicBool = AtomicBool::new(false);
static IS_ASLEEP: AtomicBool = AtomicBool::new(false);

extern "C" fn on_question(_signal: c_int, _info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the context of the handler that this is.
    let stack = unsafe { capture_interrupted(context.cast()) };
    ANSWER.store(stack.id().number(), Ordering::Relaxed);
    IS_ANSWERED.store(true, Ordering::Release);
}

/// Returns what another thread is doing at this moment. The numbers mean the same in all threads.
/// One question at a time.
fn stack_of<T>(thread: &JoinHandle<T>) -> Stack {
    IS_ANSWERED.store(false, Ordering::Relaxed);
    // SAFETY: the thread was not joined, so it is there.
    unsafe { libc::pthread_kill(thread.as_pthread_t(), libc::SIGUSR1) };
    while !IS_ANSWERED.load(Ordering::Acquire) {
        thread::yield_now();
    }
    Stack::from_id(StackId::from_number(ANSWER.load(Ordering::Relaxed)).expect("the handler stored a stack"))
}

#[inline(never)]
fn wait_for_work() {
    IS_ASLEEP.store(true, Ordering::Release);
    loop {
        thread::sleep(black_box(Duration::from_secs(1)));
    }
}

fn main() {
    // SAFETY: zeros are a value of an action, and the handler only does what a handler may do.
    unsafe {
        let mut action: libc::sigaction = mem::zeroed();
        action.sa_sigaction = on_question as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
        libc::sigaction(libc::SIGUSR1, &action, ptr::null_mut());
    }
    let worker = thread::spawn(wait_for_work);
    while !IS_ASLEEP.load(Ordering::Acquire) {
        thread::yield_now();
    }
    let stack = stack_of(&worker);
    let names = Names::of_this_program().expect("the program can be read");
    for frame in stack.frames() {
        println!("{}", names.name(frame));
    }
    println!("{}", stack.stop_reason());
}
