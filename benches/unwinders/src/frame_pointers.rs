//! The fastest walk there could be in a program built with frame pointers: two loads and the checks
//! that keep it from crashing, namely that each frame lies above the last one and inside the stack.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::{FRAMES, MAX_FRAMES};

static STACK_TOP: AtomicU64 = AtomicU64::new(0);

/// Learns where this thread's stack ends.
pub(crate) fn prepare() -> Result<(), String> {
    // SAFETY: zeros are a value of this type, which the next call fills.
    let mut attributes: libc::pthread_attr_t = unsafe { std::mem::zeroed() };
    let (mut low, mut size) = (std::ptr::null_mut(), 0);
    // SAFETY: asks about the calling thread, into variables of the right types.
    let status = unsafe {
        libc::pthread_getattr_np(libc::pthread_self(), &raw mut attributes)
            | libc::pthread_attr_getstack(&raw const attributes, &raw mut low, &raw mut size)
    };
    if status != 0 {
        return Err("the stack's bounds are unknown".to_owned());
    }
    // SAFETY: filled above.
    unsafe { libc::pthread_attr_destroy(&raw mut attributes) };
    STACK_TOP.store(low as u64 + size as u64, Ordering::Relaxed);
    Ok(())
}

/// Naked, so that the frame pointer is still the caller's.
#[unsafe(naked)]
pub(crate) extern "C" fn capture() -> u64 {
    core::arch::naked_asm!(
        "mov rdi, rbp",
        "mov rsi, rsp",
        "jmp {walk}",
        walk = sym walk,
    )
}

extern "C" fn walk(fp: u64, sp: u64) -> u64 {
    let high = STACK_TOP.load(Ordering::Relaxed);
    let frames = FRAMES.as_mut_ptr();
    // SAFETY: sp points at the return address into the caller.
    unsafe { frames.write(*(sp as *const usize)) };
    let (mut fp, mut low, mut count) = (fp, sp, 1);
    while fp.wrapping_sub(low) < high.wrapping_sub(low).wrapping_sub(8)
        && fp.is_multiple_of(8)
        && count < MAX_FRAMES
    {
        // SAFETY: low <= fp < high - 8, aligned: both words lie in the stack.
        let (outer_fp, pc) = unsafe { (*(fp as *const u64), *(fp as *const usize).add(1)) };
        // SAFETY: count is below the capacity.
        unsafe { frames.add(count).write(pc) };
        count += 1;
        low = fp + 16;
        fp = outer_fp;
    }
    count as u64
}
