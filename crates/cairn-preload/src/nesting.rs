//! Detects calls of an allocator by itself.
//!
//! The C library's allocator calls none of its functions by their public names. Others do: a
//! `calloc` that calls `malloc` comes back to our hook, and one allocation would be noted twice. So
//! with such an allocator the hooks note the outermost call only. The C library's allocator needs
//! none of this.
//!
//! The thread's word holds the stack pointer of the outermost call: frames below it belong to that
//! call. So a call that ends by an exception or a jump needs no cleanup.

use core::arch::global_asm;

use crate::arch::{load_nesting_word as mark, stack_pointer, store_nesting_word as set_inside};

// Laid out in assembly as the word of cairn-recorder: `#[thread_local]` is not stable, and
// `std::thread_local!` may allocate.
global_asm!(
    ".pushsection .tbss.cairn_preload_is_inside,\"awT\",%nobits",
    ".globl cairn_preload_is_inside",
    ".hidden cairn_preload_is_inside",
    ".type cairn_preload_is_inside, %object",
    ".size cairn_preload_is_inside, 8",
    ".balign 8",
    "cairn_preload_is_inside:",
    ".zero 8",
    ".popsection",
);

/// Returns true when a function of the allocator is among the callers.
#[inline(always)]
pub(crate) fn is_inside() -> bool {
    stack_pointer() < mark()
}

/// Enters an allocator from a frame whose stack pointer is `sp`. It does nothing when this thread
/// is inside one already.
#[cfg(feature = "allocators")]
pub(crate) fn enter(sp: u64) {
    if !is_inside() {
        set_inside(sp);
    }
}

/// Leaves the allocator; returns true when this frame has entered it.
#[cfg(feature = "allocators")]
pub(crate) fn leave(sp: u64) -> bool {
    let was_outermost = mark() == sp;
    if was_outermost {
        set_inside(0);
    }
    was_outermost
}

/// Calls `call`, and then `note` with its result. Inside an allocator, it does not call `note`.
#[inline(never)]
pub(crate) fn outermost<R: Copy>(call: impl FnOnce() -> R, note: impl FnOnce(R)) -> R {
    outermost_inline(call, note)
}

/// Does the same as [`outermost`], in the frame of its caller.
#[inline(always)]
pub(crate) fn outermost_inline<R: Copy>(call: impl FnOnce() -> R, note: impl FnOnce(R)) -> R {
    if is_inside() {
        return call();
    }
    // Frames of functions that `call` calls lie below this one.
    set_inside(stack_pointer());
    let result = call();
    set_inside(0);
    note(result);
    result
}
