//! Checks captures under timer signals without libgcc, which crashes when a signal interrupts its
//! unwinding.
//!
//! A stack that is reported as complete must end at the start of its thread, and any other must
//! have a reason.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};

use cairn_capture::{Stack, StackId, StopReason, capture, capture_interrupted};

use crate::checks::pcs;
use crate::libgcc;
use crate::report::{Counter, add, store_wrong};

/// The outermost return addresses of the threads so far, by libgcc.
static ENDS: [AtomicU64; 16] = [const { AtomicU64::new(0) }; 16];

/// Maximum distance from a known end; 512, to accept the other addresses of a first function. A
/// thread that is interrupted in its first function has another pc there, but a near one.
const NEAR_BYTES: u64 = 512;

/// Records the end of the calling thread's stacks. Must precede all other captures of the thread.
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

/// Checks a capture in the torture's malloc.
#[unsafe(no_mangle)]
pub extern "C" fn truth_torture_capture() {
    check(capture());
}

/// The torture's signal handler.
///
/// # Safety
///
/// - Only the kernel calls it, as a handler with three arguments.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn truth_torture_handler(
    _signal: i32,
    _information: *mut c_void,
    context: *const libc::ucontext_t,
) {
    add(Counter::InHandlers, 1);
    check(capture());
    // SAFETY: the caller, the kernel, passes the interrupted context of this thread.
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
        // The loader allocates before `main` runs.
        return;
    }
    let is_near = |end: &AtomicU64| end.load(Ordering::Relaxed).abs_diff(last) < NEAR_BYTES;
    if !ENDS.iter().any(is_near) {
        add(Counter::BadEnd, 1);
        store_wrong(pcs(stack).take(600), ENDS.iter().map(|end| end.load(Ordering::Relaxed)));
    }
}
