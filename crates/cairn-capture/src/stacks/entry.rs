//! Entry points of captures. They receive the caller's registers, so that no frame of this crate is
//! part of a stack.

use crate::CallSite;
use crate::stacks::arch::cairn_capture_here;
use crate::stacks::context::{Context, interrupted_sp};
use crate::stacks::engine;
use crate::stacks::own_memory;
use crate::stacks::process::{Process, process};
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
use crate::stacks::python;
use crate::stacks::stack::{Stack, StackId};
use crate::stacks::stack_memory::StackMemory;
use crate::stacks::thread::{self, Access, ThreadBlock};
use crate::stacks::walk::{self, Start, WalkRoom};

/// Captures the call stack of the caller, whose own frame is the innermost.
///
/// Safe to call from anywhere: in an allocator, in a signal handler, in a thread that is about to
/// end.
#[inline(always)]
#[must_use]
pub fn capture() -> Stack {
    Stack::from_id(cairn_capture_here())
}

/// Captures the call stack from `site` outwards, without the frames of the functions called there.
///
/// A hook in front of `malloc` saves its caller's registers at its first instruction, and none of
/// its own frames is in the stack.
///
/// ```
/// use cairn_capture::{CallSite, Stack, capture_at};
/// use cairn_format::Frame;
/// # #[cfg(target_arch = "x86_64")]
/// # {
///
/// /// In place of `malloc`: leaves its argument in place, and adds the caller's registers as three
/// /// more.
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
///     // SAFETY: these are the registers of the caller, which waits for this function to return.
///     let stack = unsafe { capture_at(CallSite { pc, sp, fp }) };
///     u64::from(stack.id().number())
/// }
///
/// #[inline(never)]
/// fn caller() -> Stack {
///     // SAFETY: the hook accepts any size.
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
/// - `site` is the site of a call on this thread that has not returned, in the function that calls
///   this one or further out.
/// - The functions in between have unwind tables, as compilers emit them.
#[inline(always)]
#[must_use]
pub unsafe fn capture_at(site: CallSite) -> Stack {
    Stack::from_id(capture_inline(site.pc, site.sp, site.fp))
}

/// Captures the call stack of the code that a signal interrupted.
///
/// The innermost frame is the [`ProgramCounter`](cairn_format::Frame::ProgramCounter) of the
/// interrupted instruction. `context` is the third argument of the signal's handler. This works
/// after a stack overflow too, when the handler runs on its own stack.
///
/// # Safety
///
/// - `context` points to a context of this thread that has not been resumed since.
#[must_use]
pub unsafe fn capture_interrupted(context: *const Context) -> Stack {
    // SAFETY: the caller promises a pointer to a context that has not been resumed, so it is valid
    // and does not change.
    let context = unsafe { &*context };
    let (process, start, sp) = (process(), Start::Interrupted(context), interrupted_sp(context));
    Stack::from_id(match thread::acquire(sp) {
        Access::Whole(block) => {
            // SAFETY: acquired above, not released yet, and the only reference to the state.
            let memory = unsafe { block.state() }.enter_stack(sp);
            // SAFETY: acquired above, not released yet, and the only reference to the room.
            let stack = intern_walk(process, start, memory, unsafe { block.walk_room() });
            block.release();
            stack
        }
        Access::Nested(block) => nested_capture(process, block, start),
        Access::None => lost(process),
    })
}

/// Counts of the captures of this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Statistics {
    /// Captures that failed for lack of memory, or inside two unfinished captures of the same
    /// thread.
    pub lost: u32,
    /// Captures that walked the whole stack. These are all of [`capture_interrupted`], and those of
    /// [`capture`] that the hot path cannot handle. They take a hundred times as long as the
    /// others.
    pub whole_walks: u64,
    /// Bytes of memory that hold all stacks, without the caches of the threads.
    pub memory_bytes: usize,
}

/// Returns the counts of the captures of this process so far.
#[must_use]
pub fn statistics() -> Statistics {
    let process = process();
    let (lost, whole_walks) = process.counts();
    Statistics { lost, whole_walks, memory_bytes: process.memory_bytes() }
}

/// Continues the naked function in [`crate::stacks::arch`], with the registers of [`capture`]'s
/// caller.
pub(crate) extern "C" fn capture_from(pc: u64, sp: u64, fp: u64) -> StackId {
    capture_inline(pc, sp, fp)
}

/// Captures inline in a hook, which then saves and restores its caller's registers only once. That
/// saves a tenth of the time of a short stack.
#[inline(always)]
fn capture_inline(pc: u64, sp: u64, fp: u64) -> StackId {
    let process = process();
    let block = match thread::acquire(sp) {
        Access::Whole(block) => block,
        other => return capture_without_state(process, other, sp),
    };
    // SAFETY: acquired above, not released yet, and the only reference to the state.
    let state = unsafe { block.state() };
    // SAFETY: `capture_at` and the naked entry promise a live frame of this thread, which waits for
    // this function; functions that it has called, such as this one, write only below its sp.
    let stack = match unsafe { engine::capture(process, state, CallSite { pc, sp, fp }) } {
        Ok(node) => StackId::from_node(node),
        Err(engine::NeedsWholeWalk) => whole_walk(process, block, sp),
    };
    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    let stack = match python::is_active() {
        // SAFETY: as for `engine::capture`, whose answer is this stack; the block is acquired.
        true => unsafe { with_python_frames(process, block, stack, CallSite { pc, sp, fp }) },
        false => stack,
    };
    block.release();
    stack
}

/// # Safety
///
/// - `stack` was captured just now for `site`, a live frame of this thread.
/// - The caller has acquired the block, and uses neither its state nor its rooms.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
unsafe fn with_python_frames(
    process: &Process,
    block: &ThreadBlock,
    stack: StackId,
    site: CallSite,
) -> StackId {
    if stack == StackId::LOST {
        return stack;
    }
    // SAFETY: the caller has acquired the block, and this is the only reference to its part.
    let Some(thread) = (unsafe { block.python_thread() }) else { return stack };
    // SAFETY: the caller promises a stack that was captured just now, and an acquired block.
    let node = unsafe { python::with_python_frames(process, block, thread, stack.number(), site) };
    StackId::from_node(node)
}

#[cold]
#[inline(never)]
fn capture_without_state(process: &Process, access: Access, sp: u64) -> StackId {
    match access {
        Access::Nested(block) => nested_capture(process, block, Start::Caller { sp }),
        _ => lost(process),
    }
}

#[cold]
#[inline(never)]
fn whole_walk(process: &Process, block: &ThreadBlock, sp: u64) -> StackId {
    // SAFETY: our caller has acquired the block, releases it afterwards, and does not use its own
    // reference to the state any more.
    let memory = unsafe { block.state() }.stack_around(sp);
    // SAFETY: as above; this is the only reference to the room.
    intern_walk(process, Start::Caller { sp }, memory, unsafe { block.walk_room() })
}

/// Maximum distance of a handler's frames from the interrupted capture's. Beyond it, the handler
/// has a stack of its own.
const NESTED_BYTES: u64 = 1 << 20;

#[cold]
#[inline(never)]
fn nested_capture(process: &Process, block: &ThreadBlock, start: Start<'_>) -> StackId {
    let StackMemory { low, high } = block.published_stack();
    // The handler's frames lie below the part that the interrupted capture found readable. One
    // query covers all of them.
    let sp = start.sp();
    let is_below = sp < low && low < high && low - sp < NESTED_BYTES;
    let low = if is_below && own_memory::is_readable(sp, low) { sp } else { low };
    // SAFETY: our caller has acquired the block as `Nested`, and it is not released yet; this is
    // the only reference to the room.
    let room = unsafe { block.nested_walk_room() };
    let stack = intern_walk(process, start, StackMemory { low, high }, room);
    block.release_nested();
    stack
}

#[inline(never)]
fn intern_walk(process: &Process, start: Start<'_>, memory: StackMemory, room: &mut WalkRoom) -> StackId {
    process.count_whole_walk();
    let Some(count) = walk::walk(process, start, memory, room, &mut |_, _| ()) else { return lost(process) };
    let outermost_first = room.numbers(count).iter().rev().copied();
    process.intern(outermost_first).map_or_else(|_| lost(process), StackId::from_node)
}

#[cold]
fn lost(process: &Process) -> StackId {
    process.count_lost();
    StackId::LOST
}
