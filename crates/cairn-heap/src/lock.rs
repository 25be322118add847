//! The lock of a list: spins, or calls functions of the program.
//!
//! Held for a few stores. On a device with one core and allocations in interrupt handlers, a spin
//! lock could never be released: such a program sets functions that disable and enable interrupts
//! ([`Critical`]), or implements the crate `critical-section`.

use core::sync::atomic::Ordering;

use crate::atomic::SwapUsize;

/// Functions that are called around the few stores that change a list.
#[derive(Clone, Copy, Debug)]
pub struct Critical {
    /// Begins; returns a value for `leave`, such as the state of interrupts.
    pub enter: fn() -> usize,
    /// Ends.
    pub leave: fn(usize),
}

/// True if the crate `critical-section` guards lists. The feature selects it, and so does a
/// processor without compare-and-swap.
pub(crate) const HAS_CRITICAL_SECTION: bool =
    cfg!(any(feature = "critical-section", not(target_has_atomic = "ptr")));

/// Runs `change` in the program's critical section. Only for [`HAS_CRITICAL_SECTION`].
#[inline(always)]
pub(crate) fn in_critical_section<R>(change: impl FnOnce() -> R) -> R {
    #[cfg(any(feature = "critical-section", not(target_has_atomic = "ptr")))]
    return critical_section::with(|_| change());
    #[cfg(not(any(feature = "critical-section", not(target_has_atomic = "ptr"))))]
    change()
}

const FREE: usize = 0;

/// The holder of the lock; 0 for none.
#[derive(Debug)]
pub(crate) struct Lock(SwapUsize);

impl Lock {
    pub(crate) const fn new() -> Self {
        Self(SwapUsize::new(FREE))
    }

    /// Waits for the lock. `holder` is nonzero, and differs between threads as far as the caller
    /// can tell.
    pub(crate) fn acquire(&self, holder: usize) {
        while self.0.compare_exchange_weak(FREE, holder, Ordering::Acquire, Ordering::Relaxed).is_err() {
            core::hint::spin_loop();
        }
    }

    pub(crate) fn is_held_by(&self, holder: usize) -> bool {
        self.0.load(Ordering::Relaxed) == holder
    }

    pub(crate) fn release(&self) {
        self.0.store(FREE, Ordering::Release);
    }
}
