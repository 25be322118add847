//! Whether this thread is inside an allocator.
//!
//! The C library's allocator calls none of its functions by their public names. Others do: a `calloc` that calls
//! `malloc` comes back to our hook, and one allocation would be noted twice. So with such an allocator the hooks note
//! the outermost call only. With the C library's nothing of this is touched.
//!
//! What is kept is where the stack was at the outermost call: what is called from there lies below. So a call that was left by an
//! exception or a jump needs no cleaning up.

use core::arch::{asm, global_asm};

// As cairn-capture keeps its word: `#[thread_local]` is not stable, and `std::thread_local!` may allocate.
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

#[inline(always)]
fn mark() -> u64 {
    let word: u64;
    // SAFETY: reads this thread's word.
    unsafe {
        asm!(
            "mov {word}, qword ptr [rip + cairn_preload_is_inside@gottpoff]",
            "mov {word}, qword ptr fs:[{word}]",
            word = out(reg) word,
            options(nostack, readonly, preserves_flags),
        );
    }
    word
}

#[inline(always)]
fn stack_pointer() -> u64 {
    let sp: u64;
    // SAFETY: reads a register.
    unsafe { asm!("mov {sp}, rsp", sp = out(reg) sp, options(nomem, nostack, preserves_flags)) };
    sp
}

/// Whether an allocator's function is among the callers.
#[inline(always)]
pub(crate) fn is_inside() -> bool {
    stack_pointer() < mark()
}

/// Enters an allocator from a frame whose stack pointer is `sp`; nothing when this thread is inside one already.
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

#[inline(always)]
fn set_inside(word: u64) {
    // SAFETY: writes this thread's word.
    unsafe {
        asm!(
            "mov {place}, qword ptr [rip + cairn_preload_is_inside@gottpoff]",
            "mov qword ptr fs:[{place}], {word}",
            place = out(reg) _,
            word = in(reg) word,
            options(nostack, preserves_flags),
        );
    }
}

/// Calls `call`, and then `note` with what it returns, unless this thread is inside an allocator already.
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
