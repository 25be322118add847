//! Records moments that the program marks, each with the stack of the marking call.
//!
//! The first mark of a program that has not called [`start`](crate::start) starts a recording: at
//! the path in the environment variable `CAIRN_RECORDING`, or as `PROGRAM.PID.cairn` in the working
//! directory.

use cairn_capture::{Context, Stack, capture, capture_interrupted};
use cairn_format::recording::{MAX_MARK_TEXT_BYTES, MarkValue, RecordSink};

use crate::clock;
use crate::lanes;
use crate::mode::{self, Mode};
use crate::start::start_lazily;

/// Marks this moment, with the caller's stack.
#[inline(always)]
pub fn mark(text: &str) {
    mark_stack(capture(), 0, MarkValue::None, text.as_bytes());
}

/// Marks this moment with a number, and with the caller's stack.
#[inline(always)]
pub fn mark_value(text: &str, value: MarkValue) {
    mark_stack(capture(), 0, value, text.as_bytes());
}

/// Marks this moment with the stack that a signal interrupted. `context` is the third argument of
/// the signal's handler.
///
/// # Safety
///
/// As for [`capture_interrupted`].
pub unsafe fn capture_from_context(context: *const Context, text: &[u8]) {
    // SAFETY: the contract of this function is that of `capture_interrupted`.
    let stack = unsafe { capture_interrupted(context) };
    mark_stack(stack, 0, MarkValue::None, text);
}

/// Marks this moment with a stack that was captured before, without its `skip` innermost frames.
pub fn mark_stack(stack: Stack, skip: u16, value: MarkValue, text: &[u8]) {
    if !mode::is_on() {
        start_lazily();
    }
    let counter = clock::counter();
    let slots = 4 + text.len().min(MAX_MARK_TEXT_BYTES).div_ceil(8);
    let write = |sink: &mut RecordSink<'_>| sink.mark(counter, stack.id().number(), skip, value, text);
    // The first mark of a forked child notices the fork here.
    if !lanes::append_with_clocks(counter, slots, write) && mode::mode() == Mode::Child {
        start_lazily();
        lanes::append_with_clocks(counter, slots, write);
    }
}
