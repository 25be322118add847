//! Accesses one word of thread-local storage without calling a function.
//!
//! A slot of `TlsAlloc` is a word of the thread's environment block, if its number is below 64. The
//! first capture of the process takes the slot; that call takes a lock of the process, all others
//! take none. In a program that has all 64 slots in use before, captures are lost and counted.

use core::sync::atomic::{AtomicU32, Ordering};

use super::calls::{TlsAlloc, TlsFree, environment_word};

/// Place of the slots in the environment block, and their number.
const SLOTS: usize = 0x1480;
const SLOT_COUNT: u32 = 64;
/// States of [`SLOT`] besides a number plus [`FIRST`].
const UNKNOWN: u32 = 0;
const ABSENT: u32 = 1;
const FIRST: u32 = 2;

static SLOT: AtomicU32 = AtomicU32::new(UNKNOWN);

/// Reads this thread's word. Null before the first [`store`].
#[inline(always)]
pub(crate) fn load() -> *mut u8 {
    match SLOT.load(Ordering::Relaxed).checked_sub(FIRST) {
        // SAFETY: the slot is one of the 64 words, by `take_slot`.
        Some(slot) => {
            core::ptr::with_exposed_provenance_mut(unsafe { environment_word(place(slot)) } as usize)
        }
        None => core::ptr::null_mut(),
    }
}

/// Writes this thread's word; false when there is none.
#[must_use]
pub(crate) fn store(value: *mut u8) -> bool {
    let Some(slot) = take_slot() else { return false };
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
    true
}

#[inline(always)]
const fn place(slot: u32) -> usize {
    SLOTS + 8 * slot as usize
}

#[cold]
fn take_slot() -> Option<u32> {
    let known = SLOT.load(Ordering::Relaxed);
    if known != UNKNOWN {
        return known.checked_sub(FIRST);
    }
    // SAFETY: the call takes no argument.
    let slot = unsafe { TlsAlloc() };
    let found = if slot < SLOT_COUNT { slot + FIRST } else { ABSENT };
    match SLOT.compare_exchange(UNKNOWN, found, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => found.checked_sub(FIRST),
        Err(other) => {
            // SAFETY: the slot was taken above, and nothing has used it.
            unsafe { TlsFree(slot) };
            other.checked_sub(FIRST)
        }
    }
}
