//! Where a capture enters: hands over the caller's registers, so that no frame of ours is on the stack.

use crate::CallSite;
use crate::arch::{cairn_capture_here, interrupted_sp};
use crate::engine::{self, Frame};
use crate::own_memory;
use crate::process::PROCESS;
use crate::stack::Stack;
use crate::stack_bounds;
use crate::thread::{self, Access, ThreadState};
use crate::tree::StackId;
use crate::walk::{self, OwnMemory, Start, WalkRoom};

/// The call stack of the caller, whose own frame is the innermost.
///
/// Safe to call from anywhere: in an allocator, in a signal handler, in a thread that is about to end.
#[inline(always)]
#[must_use]
pub fn capture() -> Stack {
    Stack::from_id(cairn_capture_here())
}

/// The call stack from `site` outwards, without the frames of the functions that it called: a hook in front of `malloc`
/// notes at its first instruction where it was called from, and none of its own frames ever shows.
///
/// ```
/// use cairn_capture::{CallSite, Stack, capture_at};
/// use cairn_format::Frame;
/// # #[cfg(target_arch = "x86_64")]
/// # {
///
/// /// In place of `malloc`: its argument stays where it is, and the caller's registers become three more.
/// #[unsafe(naked)]
/// unsafe extern "C" fn hooked_malloc(size: usize) -> u64 {
///     core::arch::naked_asm!(
///         ".cfi_startproc",
///         "mov rsi, [rsp]",
///         "lea rdx, [rsp + 8]",
///         "mov rcx, rbp",
///         "jmp {hook}",
///         ".cfi_endproc",
///         hook = sym hook,
///     )
/// }
///
/// extern "C" fn hook(size: usize, pc: u64, sp: u64, fp: u64) -> u64 {
///     let _ = size;
///     // SAFETY: the caller's registers, and it waits for this function.
///     let stack = unsafe { capture_at(CallSite { pc, sp, fp }) };
///     u64::from(stack.id().number())
/// }
///
/// #[inline(never)]
/// fn caller() -> Stack {
///     // SAFETY: takes any size.
///     let number = unsafe { hooked_malloc(16) };
///     Stack::from_id(cairn_capture::StackId::from_number(number as u32).unwrap())
/// }
/// let own = caller as *const () as u64;
/// let innermost = caller().frames().next().and_then(Frame::address).unwrap();
/// assert!((own..own + 200).contains(&innermost.value()), "no frame of the hook is there");
/// # }
/// ```
///
/// # Safety
///
/// - `site` is of a call on this thread that has not returned, of the function that calls this one or one further out.
/// - The functions in between have unwind tables, as compilers write them.
#[inline(always)]
#[must_use]
pub unsafe fn capture_at(site: CallSite) -> Stack {
    Stack::from_id(capture_inline(site.pc, site.sp, site.fp))
}

/// The call stack of the code that a signal interrupted; its innermost frame is the
/// [`ProgramCounter`](cairn_format::Frame::ProgramCounter) of the interrupted instruction. `context` is the third
/// argument of the signal's handler.
///
/// Works after a stack overflow too, when the handler runs on its own stack.
///
/// # Safety
///
/// - `context` is a context of this thread, which has not been resumed since.
#[must_use]
pub unsafe fn capture_interrupted(context: *const libc::ucontext_t) -> Stack {
    // SAFETY: by contract.
    let context = unsafe { &*context };
    let sp = interrupted_sp(context);
    Stack::from_id(match thread::acquire(sp) {
        Access::Whole(state) => {
            // SAFETY: acquired, so nothing else refers to it until the release.
            let thread = unsafe { &mut *state };
            // A stack that cannot be entered is read through the kernel.
            let _ = stack_bounds::enter(thread, sp);
            let memory = OwnMemory::around(thread, sp);
            let stack = intern_walk(Start::Interrupted(context), memory, &mut thread.walked);
            // SAFETY: acquired above.
            unsafe { thread::release(state) };
            stack
        }
        Access::Nested(state) => nested(state, Start::Interrupted(context)),
        Access::None => lost(),
    })
}

/// What the captures of this process cost, and what they lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Statistics {
    /// Captures for which there was no room, or that came while two others of the same thread were under way.
    pub lost: u32,
    /// Captures that walked the whole stack: all of [`capture_interrupted`], and those of [`capture`] where a stack is
    /// unusual. They take a hundred times as long as the others.
    pub whole_walks: u64,
    /// Bytes of memory that hold all stacks, without what each thread caches.
    pub memory_bytes: usize,
}

/// What the captures of this process cost so far, and what they lost.
#[must_use]
pub fn statistics() -> Statistics {
    Statistics {
        lost: PROCESS.lost.load(core::sync::atomic::Ordering::Relaxed),
        whole_walks: PROCESS.whole_walks.load(core::sync::atomic::Ordering::Relaxed),
        memory_bytes: PROCESS.tree.memory_bytes() + PROCESS.pcs.memory_bytes(),
    }
}

/// What the naked function in [`crate::arch`] jumps to, with the registers of the caller of [`capture`].
pub(crate) extern "C" fn capture_from(pc: u64, sp: u64, fp: u64) -> StackId {
    capture_inline(pc, sp, fp)
}

/// Into a hook, which so saves and restores its caller's registers once: a tenth of what a short stack takes.
#[inline(always)]
fn capture_inline(pc: u64, sp: u64, fp: u64) -> StackId {
    let state = match thread::acquire(sp) {
        Access::Whole(state) => state,
        other => return without_state(other, sp),
    };
    // SAFETY: acquired, so nothing else refers to it until the release.
    let thread = unsafe { &mut *state };
    // SAFETY: the caller's frame, which lives at least until this function returns.
    let node = match unsafe { engine::capture(thread, Frame { pc, sp, fp }) } {
        Ok(node) => StackId::from_node(node),
        Err(engine::Unusual) => whole_walk(thread, sp),
    };
    // SAFETY: acquired above.
    unsafe { thread::release(state) };
    node
}

#[cold]
#[inline(never)]
fn without_state(access: Access, sp: u64) -> StackId {
    match access {
        Access::Nested(state) => nested(state, Start::Caller { sp }),
        _ => lost(),
    }
}

#[cold]
#[inline(never)]
fn whole_walk(thread: &mut ThreadState, sp: u64) -> StackId {
    let memory = OwnMemory::around(thread, sp);
    intern_walk(Start::Caller { sp }, memory, &mut thread.walked)
}

/// A handler that is further away than this from what it interrupted has a stack of its own.
const NESTED_BYTES: u64 = 1 << 20;

#[cold]
#[inline(never)]
fn nested(state: *mut ThreadState, start: Start<'_>) -> StackId {
    // SAFETY: the interrupted capture does not touch `nested` (its `nested_busy` is ours), and these numbers are whole.
    let (low, high, room) = unsafe { ((*state).low, (*state).high, &mut (*state).nested) };
    // The handler's frames lie below what the interrupted capture asked for; one question answers for all of them.
    let sp = start.sp();
    let is_below = sp < low && low < high && low - sp < NESTED_BYTES;
    let low = if is_below && own_memory::is_readable(sp, low) { sp } else { low };
    let memory = OwnMemory { low, high };
    let stack = intern_walk(start, memory, room);
    // SAFETY: acquired by our caller.
    unsafe { thread::release_nested(state) };
    stack
}

#[inline(never)]
fn intern_walk(start: Start<'_>, memory: OwnMemory, room: &mut WalkRoom) -> StackId {
    PROCESS.whole_walks.fetch_add(1, core::sync::atomic::Ordering::Relaxed);
    let Some(count) = walk::walk(start, memory, room) else { return lost() };
    let outermost_first = room.numbers(count).iter().rev().copied();
    PROCESS.tree.descend(0, outermost_first).map_or_else(|_| lost(), StackId::from_node)
}

#[cold]
fn lost() -> StackId {
    PROCESS.lost.fetch_add(1, core::sync::atomic::Ordering::Relaxed);
    StackId::LOST
}
