//! One word of thread-local storage: the address of the thread's log.
//!
//! The start of the first recording takes the slot; that call takes a lock of the process, all
//! others take none. A program that has all 64 slots in use is not recorded.

use cairn_capture::environment::ThreadSlot;

static SLOT: ThreadSlot = ThreadSlot::new();

/// Takes the slot; returns false where there is none.
pub(crate) fn take() -> bool {
    SLOT.take()
}

/// Reads this thread's word. Null before the first [`store`].
#[inline(always)]
pub(crate) fn load() -> *mut u8 {
    core::ptr::with_exposed_provenance_mut(SLOT.load() as usize)
}

/// Writes this thread's word, after [`take`].
#[inline(always)]
pub(crate) fn store(value: *mut u8) {
    SLOT.store(value.expose_provenance() as u64);
}
