//! One word of thread-local storage: the address of what a thread has learned.
//!
//! The first capture of the process takes the slot; that call takes a lock of the process, all
//! others take none. In a program that has all 64 slots in use before, captures are lost and
//! counted.

use super::environment::ThreadSlot;

static SLOT: ThreadSlot = ThreadSlot::new();

/// Reads this thread's word. Null before the first [`store`].
#[inline(always)]
pub(crate) fn load() -> *mut u8 {
    core::ptr::with_exposed_provenance_mut(SLOT.load() as usize)
}

/// Writes this thread's word; false when there is none.
#[must_use]
pub(crate) fn store(value: *mut u8) -> bool {
    // Once refused, no capture waits for that lock again.
    let is_taken = !SLOT.is_refused() && SLOT.take();
    if is_taken {
        SLOT.store(value.expose_provenance() as u64);
    }
    is_taken
}
