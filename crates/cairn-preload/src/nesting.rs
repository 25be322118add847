//! Whether this thread is inside an allocator.
//!
//! The C library's allocator calls none of its functions by their public names. Others do: a
//! `calloc` that calls `malloc` comes back to our hook, and one allocation would be noted twice. So
//! with such an allocator the hooks note the outermost call only. With the C library's nothing of
//! this is touched.
//!
//! What is kept is where the stack was at the outermost call: what is called from there lies below.
//! So a call that was left by an exception or a jump needs no cleaning up.

use core::arch::global_asm;

use crate::arch::{load_nesting_word as mark, stack_pointer, store_nesting_word as set_inside};

// As cairn-capture keeps its word: `#[thread_local]` is not stable, and `std::thread_local!` may
// allocate.
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

/// Whether an allocator's function is among the callers.
#[inline(always)]
pub(crate) fn is_inside() -> bool {
    stack_pointer() < mark()
}

/// Enters an allocator from a frame whose stack pointer is `sp`; nothing when this thread is inside
/// one already.
#[cfg(feature = "allocators")]
pub(crate) fn enter(sp: u64) {
    if !is_inside() {
        set_inside(sp);
    }
}

/// Leaves it, and says whether it was that very frame that entered it.
#[cfg(feature = "allocators")]
pub(crate) fn leave(sp: u64) -> bool {
    let was_outermost = mark() == sp;
    if was_outermost {
        set_inside(0);
    }
    was_outermost
}

/// Calls `call`, and then `note` with what it returns, unless this thread is inside an allocator
/// already.
#[inline(never)]
pub(crate) fn outermost<R: Copy>(call: impl FnOnce() -> R, note: impl FnOnce(R)) -> R {
    if is_inside() {
        return call();
    }
    // What `call` calls has its frame below ours.
    set_inside(stack_pointer());
    let result = call();
    set_inside(0);
    note(result);
    result
}
