//! Reads the counter that stamps use, and the clocks that translate it into time.

use cairn_format::recording::{Clock, CounterKind};

use crate::os;

/// Kind of the counter that [`counter`] reads.
#[cfg(target_arch = "x86_64")]
pub(crate) const KIND: CounterKind = CounterKind::TimeStampCounter;
#[cfg(target_arch = "aarch64")]
pub(crate) const KIND: CounterKind = CounterKind::VirtualCounter;

/// Reads the processor's counter. The read is not ordered against the instructions around it:
/// stamps are exact to some ten nanoseconds at best, and a barrier would double the cost.
#[inline(always)]
pub(crate) fn counter() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has the instruction, and it changes registers only. A process
    // that forbids it to itself (strict seccomp) must not record; see `forbid_system_calls`.
    unsafe {
        core::arch::x86_64::_rdtsc()
    }
    #[cfg(target_arch = "aarch64")]
    {
        let count: u64;
        // SAFETY: reads a register that Linux allows programs to read, and changes nothing else.
        unsafe {
            core::arch::asm!("mrs {}, cntvct_el0", out(reg) count, options(nomem, nostack, preserves_flags))
        };
        count
    }
}

/// Returns the counter's frequency in hertz, which only AArch64 states.
pub(crate) fn stated_hz() -> Option<u64> {
    #[cfg(target_arch = "x86_64")]
    return None;
    #[cfg(target_arch = "aarch64")]
    {
        let hz: u64;
        // SAFETY: reads a register that Linux allows programs to read, and changes nothing else.
        unsafe {
            core::arch::asm!("mrs {}, cntfrq_el0", out(reg) hz, options(nomem, nostack, preserves_flags))
        };
        Some(hz).filter(|&hz| hz != 0)
    }
}

/// Attempts to read the clocks without an interruption between them; 3, because rarely two fail. A
/// page fault or a timer interrupt disturbs an attempt.
const READING_ATTEMPTS: u32 = 3;

/// Reads counter and clocks at one moment. The counter is read on both sides of the monotonic
/// clock, and the closest pair of [`READING_ATTEMPTS`] counts, so that the two agree to some ten
/// nanoseconds also where the kernel interrupts this thread: the time scale of a short recording
/// depends on it.
pub(crate) fn reading() -> Clock {
    let mut best = (u64::MAX, 0, 0);
    for _ in 0..READING_ATTEMPTS {
        let before = counter();
        let monotonic_nanos = os::monotonic_nanos();
        let width = counter().wrapping_sub(before);
        if width < best.0 {
            best = (width, before.wrapping_add(width / 2), monotonic_nanos);
        }
    }
    let (_, counter, monotonic_nanos) = best;
    Clock { counter, monotonic_nanos, wall_nanos: os::wall_nanos() }
}
