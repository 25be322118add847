//! The counter that events are stamped with, and the clocks that it is compared with.

use cairn_format::recording::{Clock, CounterKind};

/// What [`counter`] reads on this processor.
#[cfg(target_arch = "x86_64")]
pub(crate) const KIND: CounterKind = CounterKind::TimeStampCounter;
#[cfg(target_arch = "aarch64")]
pub(crate) const KIND: CounterKind = CounterKind::VirtualCounter;

/// The processor's counter. Not ordered against the instructions around it: a stamp is exact to some ten nanoseconds
/// at best, and a barrier would cost as much again.
#[inline(always)]
pub(crate) fn counter() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has the instruction; where the kernel forbids it to programs, none of this works.
    unsafe {
        core::arch::x86_64::_rdtsc()
    }
    #[cfg(target_arch = "aarch64")]
    {
        let count: u64;
        // SAFETY: reads a register that Linux lets programs read.
        unsafe {
            core::arch::asm!("mrs {}, cntvct_el0", out(reg) count, options(nomem, nostack, preserves_flags))
        };
        count
    }
}

/// All three clocks. The counter is read between the others, so that neither is far off.
pub(crate) fn reading() -> Clock {
    let monotonic_nanos = nanos(libc::CLOCK_MONOTONIC);
    let counter = counter();
    let wall_nanos = nanos(libc::CLOCK_REALTIME);
    Clock { counter, monotonic_nanos, wall_nanos }
}

fn nanos(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes to the variable. Safe in signal handlers, and no cancellation point.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
