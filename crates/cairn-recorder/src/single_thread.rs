//! Counting without a locked instruction while the process has one thread.
//!
//! A locked one takes some twenty times as long as another: most of what a free costs whose block is not in its thread's
//! table. The C library says whether there are other threads, in a variable that its own allocator goes by. It is looked up
//! weakly: one that does not have it counts as many threads.

use core::sync::atomic::{AtomicU32, Ordering};

#[cfg(target_arch = "x86_64")]
core::arch::global_asm!(".weak __libc_single_threaded");

/// Adds one, and returns what was there before. A signal handler that comes between counts too: it is one instruction.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn count_up(counter: &AtomicU32) -> u32 {
    let is_single: *const u8;
    // SAFETY: reads the linker's entry for the variable.
    unsafe {
        core::arch::asm!(
            "mov {place}, qword ptr [rip + __libc_single_threaded@GOTPCREL]",
            place = out(reg) is_single,
            options(nostack, preserves_flags, readonly, pure),
        );
    }
    // SAFETY: null, or the C library's variable. Volatile: it changes behind the compiler's back, by calls of this thread.
    if is_single.is_null() || unsafe { is_single.read_volatile() } == 0 {
        return counter.fetch_add(1, Ordering::Relaxed);
    }
    let mut before = 1_u32;
    // SAFETY: the counter's own memory, which no other thread can change at this moment.
    unsafe {
        core::arch::asm!(
            "xadd dword ptr [{counter}], {before:e}",
            counter = in(reg) counter.as_ptr(),
            before = inout(reg) before,
            options(nostack),
        );
    }
    before
}

/// Adds one, and returns what was there before.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
pub(crate) fn count_up(counter: &AtomicU32) -> u32 {
    counter.fetch_add(1, Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::thread;

    use super::*;

    #[test]
    fn counts_each_call_once() {
        let counter = AtomicU32::new(u32::MAX);
        assert_eq!(count_up(&counter), u32::MAX);
        assert_eq!(count_up(&counter), 0);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..100_000 {
                        count_up(&counter);
                    }
                });
            }
        });
        assert_eq!(counter.load(Ordering::Relaxed), 400_001);
    }
}
