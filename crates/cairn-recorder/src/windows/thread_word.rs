//! One word of thread-local storage: the address of the thread's log.
//!
//! A slot of `TlsAlloc` is a word of the thread's environment block, if its number is below 64: one
//! load finds it. The start of the first recording takes the slot; that call takes a lock of the
//! process, all others take none. A program that has all 64 slots in use is not recorded.

use core::sync::atomic::{AtomicU32, Ordering};

use super::calls::{TlsAlloc, TlsFree, environment_word};

/// Place of the slots in the environment block, and their number.
const SLOTS: usize = 0x1480;
const SLOT_COUNT: u32 = 64;
/// State of [`SLOT`] besides a number plus [`FIRST`].
const UNKNOWN: u32 = 0;
const FIRST: u32 = 1;

static SLOT: AtomicU32 = AtomicU32::new(UNKNOWN);

/// Takes the slot; returns false where there is none.
pub(crate) fn take() -> bool {
    if SLOT.load(Ordering::Relaxed) != UNKNOWN {
        return true;
    }
    // SAFETY: the call takes no argument.
    let slot = unsafe { TlsAlloc() };
    let is_found = slot < SLOT_COUNT;
    let is_first = is_found
        && SLOT.compare_exchange(UNKNOWN, slot + FIRST, Ordering::Relaxed, Ordering::Relaxed).is_ok();
    if !is_first && slot != u32::MAX {
        // SAFETY: the slot was taken above, and nothing has used it.
        unsafe { TlsFree(slot) };
    }
    is_found
}

/// Reads this thread's word. Null before the first [`store`].
#[inline(always)]
pub(crate) fn load() -> *mut u8 {
    match SLOT.load(Ordering::Relaxed).checked_sub(FIRST) {
        // SAFETY: the slot is one of the 64 words, by `take`.
        Some(slot) => {
            core::ptr::with_exposed_provenance_mut(unsafe { environment_word(place(slot)) } as usize)
        }
        None => core::ptr::null_mut(),
    }
}

/// Writes this thread's word, after [`take`].
#[inline(always)]
pub(crate) fn store(value: *mut u8) {
    let Some(slot) = SLOT.load(Ordering::Relaxed).checked_sub(FIRST) else { return };
    // SAFETY: the slot is one of the 64 words, which belongs to this module; no other thread has
    // access.
    unsafe {
        core::arch::asm!(
            "mov qword ptr gs:[{place}], {value}",
            place = in(reg) place(slot),
            value = in(reg) value.expose_provenance(),
            options(nostack, preserves_flags),
        );
    }
}

#[inline(always)]
const fn place(slot: u32) -> usize {
    SLOTS + 8 * slot as usize
}
