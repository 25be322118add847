//! A word of each thread: whether it is inside a hook.
//!
//! Functions of the heap call each other: a reallocation in wine allocates, copies and frees. The
//! recorder calls the system, which may allocate. Only the outermost call is an event of the
//! program.
//!
//! The word holds the stack pointer of the outermost call; all frames of that call lie below. It is
//! a slot of `TlsAlloc`, zero in each new thread, which one instruction reads.

use core::sync::atomic::{AtomicUsize, Ordering};

use crate::calls::{TlsAlloc, environment_word, set_environment_word};

/// Place of the first slot in the environment block, and the number of slots there.
const SLOTS: usize = 0x1480;
const SLOT_COUNT: u32 = 64;

/// Place of the word in the environment block; 0 before [`take_word`].
static PLACE: AtomicUsize = AtomicUsize::new(0);

/// Takes a slot; returns false if none of the first 64 is free.
pub(crate) fn take_word() -> bool {
    // SAFETY: the call takes no argument.
    let slot = unsafe { TlsAlloc() };
    if slot < SLOT_COUNT {
        PLACE.store(SLOTS + 8 * slot as usize, Ordering::Relaxed);
    }
    slot < SLOT_COUNT
}

#[inline(always)]
fn stack_pointer() -> u64 {
    let sp;
    // SAFETY: the instruction copies a register.
    unsafe { core::arch::asm!("mov {}, rsp", out(reg) sp, options(nomem, nostack, preserves_flags)) };
    sp
}

#[inline(always)]
fn mark() -> u64 {
    // SAFETY: hooks are written after `take_word` has succeeded, so the place is one of the slots.
    unsafe { environment_word(PLACE.load(Ordering::Relaxed)) }
}

#[inline(always)]
fn set_mark(sp: u64) {
    // SAFETY: as in `mark`; the slot was taken for this word.
    unsafe { set_environment_word(PLACE.load(Ordering::Relaxed), sp) };
}

/// Returns true when another hook is among the callers.
#[inline(always)]
pub(crate) fn is_inside() -> bool {
    stack_pointer() < mark()
}

/// Calls `work` as the outermost call of this thread.
#[inline(always)]
pub(crate) fn outermost<R>(work: impl FnOnce() -> R) -> R {
    set_mark(stack_pointer());
    let result = work();
    set_mark(0);
    result
}

/// Leaves a hook whose frame begins at `frame`, because an exception unwinds it.
pub(crate) fn unwind_frame(frame: u64) {
    // The mark of an outer hook, which goes on, lies above this frame.
    if mark() <= frame {
        set_mark(0);
    }
}
