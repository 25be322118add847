//! The thread's environment block: its numbers, its last error, and words of thread-local storage.
//!
//! One instruction accesses each of them, without a lock and without a call. The libraries that are
//! put into programs on top of this crate use the same functions.

use core::sync::atomic::{AtomicUsize, Ordering};

use super::calls::{TlsAlloc, TlsFree};

pub use super::threads::has_ended;

/// Places in the block.
const PROCESS_ID: usize = 0x40;
const THREAD_ID: usize = 0x48;
const LAST_ERROR: usize = 0x68;

/// Reads a word of this thread's environment block.
///
/// # Safety
///
/// - `offset` is a multiple of 8 within the block, which has 6,000 bytes.
#[inline(always)]
pub unsafe fn environment_word(offset: usize) -> u64 {
    let value;
    // SAFETY: the instruction reads the thread's own block, as the caller promises.
    unsafe {
        core::arch::asm!(
            "mov {value}, qword ptr gs:[{offset}]",
            value = out(reg) value,
            offset = in(reg) offset,
            options(nostack, preserves_flags, readonly),
        );
    }
    value
}

/// Returns the number of this process.
#[must_use]
pub fn process_id() -> u32 {
    // SAFETY: the place lies within the block.
    unsafe { environment_word(PROCESS_ID) as u32 }
}

/// Returns the number of this thread.
#[must_use]
pub fn thread_id() -> u32 {
    // SAFETY: the place lies within the block.
    unsafe { environment_word(THREAD_ID) as u32 }
}

/// Returns the last error of this thread.
#[must_use]
pub fn last_error() -> u32 {
    // SAFETY: the place lies within the block.
    unsafe { environment_word(LAST_ERROR) as u32 }
}

/// Restores the last error when it goes out of scope.
///
/// The program must not see errors that it did not cause.
#[derive(Debug)]
pub struct LastErrorGuard(u32);

impl LastErrorGuard {
    /// Notes the last error of this thread.
    #[expect(clippy::new_without_default, reason = "it is named for what it does until its end")]
    #[must_use]
    pub fn new() -> Self {
        Self(last_error())
    }
}

impl Drop for LastErrorGuard {
    fn drop(&mut self) {
        // SAFETY: the instruction writes the thread's last error alone.
        unsafe {
            core::arch::asm!(
                "mov dword ptr gs:[0x68], {saved:e}",
                saved = in(reg) self.0,
                options(nostack, preserves_flags),
            );
        }
    }
}

/// Place of the first slot in the block, and the number of slots there.
const SLOTS: usize = 0x1480;
const SLOT_COUNT: u32 = 64;
/// States of a [`ThreadSlot`] that are no place.
const UNKNOWN: usize = 0;
const REFUSED: usize = 1;

/// A word of each thread, zero in a new one: a slot of `TlsAlloc` whose number is below 64.
#[derive(Debug)]
pub struct ThreadSlot {
    /// Place in the block, or a state.
    place: AtomicUsize,
}

impl ThreadSlot {
    /// A slot that is not taken yet.
    #[expect(clippy::new_without_default, reason = "slots are statics")]
    #[must_use]
    pub const fn new() -> Self {
        Self { place: AtomicUsize::new(UNKNOWN) }
    }

    /// Takes a slot, once; false where all 64 are in use. The call takes a lock of the process.
    #[cold]
    pub fn take(&self) -> bool {
        let known = self.place.load(Ordering::Relaxed);
        if known >= SLOTS {
            return true;
        }
        // SAFETY: the call takes no argument.
        let slot = unsafe { TlsAlloc() };
        let found = if slot < SLOT_COUNT { SLOTS + 8 * slot as usize } else { REFUSED };
        let is_first =
            self.place.compare_exchange(known, found, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if slot != u32::MAX && (!is_first || found == REFUSED) {
            // SAFETY: the slot was taken above, and nothing has used it.
            unsafe { TlsFree(slot) };
        }
        // Another thread may have been first.
        self.place.load(Ordering::Relaxed) >= SLOTS
    }

    /// True when [`take`](Self::take) has found no slot.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        self.place.load(Ordering::Relaxed) == REFUSED
    }

    /// Reads this thread's word; 0 before [`take`](Self::take).
    #[inline(always)]
    #[must_use]
    pub fn load(&self) -> u64 {
        match self.place.load(Ordering::Relaxed) {
            // SAFETY: the place is that of a slot, by `take`.
            place @ SLOTS.. => unsafe { environment_word(place) },
            _ => 0,
        }
    }

    /// Writes this thread's word, after [`take`](Self::take).
    #[inline(always)]
    pub fn store(&self, value: u64) {
        let place = self.place.load(Ordering::Relaxed);
        if place < SLOTS {
            return;
        }
        // SAFETY: the instruction writes the word of a slot, which belongs to this value; no other
        // thread has access.
        unsafe {
            core::arch::asm!(
                "mov qword ptr gs:[{place}], {value}",
                place = in(reg) place,
                value = in(reg) value,
                options(nostack, preserves_flags),
            );
        }
    }
}
