//! Captures under torture: no time to ask libgcc there (it crashes when a signal comes while it unwinds), so a stack that
//! claims to be whole must end where its thread began, and any other must say why it is cut.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};

use cairn_capture::{Stack, StackId, StopReason, capture, capture_interrupted};

use crate::checks::pcs;
use crate::libgcc;
use crate::report::{Counter, add, keep_wrong};

/// The outermost return addresses of the threads that came by, by libgcc.
static ENDS: [AtomicU64; 16] = [const { AtomicU64::new(0) }; 16];

/// A thread that is interrupted in its very first function has another pc there, but not far away.
const NEAR_BYTES: u64 = 512;

/// Tells where stacks of the calling thread end. Comes before all other captures in the thread's life.
#[unsafe(no_mangle)]
pub extern "C" fn truth_torture_begin() {
    let mut last = 0;
    libgcc::walk(&mut |pc| {
        last = pc;
        true
    });
    for end in &ENDS {
        let found = end.compare_exchange(0, last, Ordering::Relaxed, Ordering::Relaxed);
        if found.is_ok() || found == Err(last) {
            return;
        }
    }
}

/// What the torture's malloc calls.
#[unsafe(no_mangle)]
pub extern "C" fn truth_torture_capture() {
    check(capture());
}

/// The torture's signal handler.
///
/// # Safety
///
/// Only the kernel calls it, as a handler with three arguments.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn truth_torture_handler(
    _signal: i32,
    _information: *mut c_void,
    context: *const libc::ucontext_t,
) {
    add(Counter::InHandlers, 1);
    check(capture());
    // SAFETY: the kernel passes the interrupted context of this thread.
    check(unsafe { capture_interrupted(context) });
}

fn check(stack: Stack) {
    if stack.id() == StackId::LOST {
        add(Counter::Lost, 1);
        return;
    }
    add(Counter::Stacks, 1);
    let mut last = 0;
    let mut count = 0;
    for pc in pcs(stack) {
        last = pc;
        count += 1;
    }
    add(Counter::Frames, count);
    if stack.stop_reason() != StopReason::EndOfStack {
        add(Counter::Cut, 1);
        return;
    }
    if ENDS[0].load(Ordering::Relaxed) == 0 {
        // The loader allocates before there is a main.
        return;
    }
    let is_near = |end: &AtomicU64| end.load(Ordering::Relaxed).abs_diff(last) < NEAR_BYTES;
    if !ENDS.iter().any(is_near) {
        add(Counter::BadEnd, 1);
        keep_wrong(pcs(stack).take(600), ENDS.iter().map(|end| end.load(Ordering::Relaxed)));
    }
}
