//! The lock of a list: spins, or does what the program says.
//!
//! Held for a few stores. On a device with one core and allocations in interrupt handlers, spinning would be for ever: such a
//! program gives functions that switch interrupts off and on ([`Critical`]).

use core::sync::atomic::{AtomicUsize, Ordering};

/// What to do around the few stores that change a list.
#[derive(Clone, Copy, Debug)]
pub struct Critical {
    /// Begins; what it answers is handed to `leave`: the state of interrupts, say.
    pub enter: fn() -> usize,
    /// Ends.
    pub leave: fn(usize),
}

const FREE: usize = 0;

/// 0, or who has it.
#[derive(Debug)]
pub(crate) struct Lock(AtomicUsize);

impl Lock {
    pub(crate) const fn new() -> Self {
        Self(AtomicUsize::new(FREE))
    }

    /// Waits for it. `holder` is not 0, and tells threads apart as far as the caller can.
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
