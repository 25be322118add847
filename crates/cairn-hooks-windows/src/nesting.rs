//! A word of each thread: whether it is inside a hook.
//!
//! Functions of the heap call each other: a reallocation in wine allocates, copies and frees. The
//! recorder calls the system, which may allocate. Only the outermost call is an event of the
//! program.
//!
//! The word holds the stack pointer of the outermost call; all frames of that call lie below. It is
//! a slot of `TlsAlloc`, zero in each new thread, which one instruction reads.

use cairn_recorder::environment::ThreadSlot;

static SLOT: ThreadSlot = ThreadSlot::new();

/// Takes a slot; returns false if none of the first 64 is free.
pub(crate) fn take_word() -> bool {
    SLOT.take()
}

#[inline(always)]
fn stack_pointer() -> u64 {
    let sp;
    // SAFETY: the instruction copies a register.
    unsafe { core::arch::asm!("mov {}, rsp", out(reg) sp, options(nomem, nostack, preserves_flags)) };
    sp
}

/// Returns true when another hook is among the callers.
#[inline(always)]
pub(crate) fn is_inside() -> bool {
    stack_pointer() < SLOT.load()
}

/// Calls `work` as the outermost call of this thread.
#[inline(always)]
pub(crate) fn outermost<R>(work: impl FnOnce() -> R) -> R {
    SLOT.store(stack_pointer());
    let result = work();
    SLOT.store(0);
    result
}

/// Leaves a hook whose frame begins at `frame`, because an exception unwinds it.
pub(crate) fn unwind_frame(frame: u64) {
    // The mark of an outer hook, which goes on, lies above this frame.
    if SLOT.load() <= frame {
        SLOT.store(0);
    }
}
