//! Whether this thread is inside an allocator.
//!
//! The C library's allocator calls none of its functions by their public names. Others do: a `calloc` that calls
//! `malloc` comes back to our hook, and one allocation would be noted twice. So with such an allocator the hooks note
//! the outermost call only. With the C library's nothing of this is touched.

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
pub(crate) fn is_inside() -> bool {
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
    word != 0
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
    set_inside(1);
    let result = call();
    set_inside(0);
    note(result);
    result
}
