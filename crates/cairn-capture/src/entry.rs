//! Where a capture enters: hands over the caller's registers, so that no frame of ours is on the stack.

use crate::engine::{self, Frame};
use crate::process::PROCESS;
use crate::stack::Stack;
use crate::thread::{self, Access, ThreadState};
use crate::tree::StackId;
use crate::walk::{self, OwnMemory, Start};

/// The call stack of the caller, whose own frame is the innermost.
///
/// Safe to call from anywhere: in an allocator, in a signal handler, in a thread that is about to end.
#[inline(always)]
#[must_use]
pub fn capture() -> Stack {
    Stack::from_id(cairn_capture_here())
}

/// The number of the caller's stack.
///
/// A naked function: at its entry the stack pointer points at the return address, and the frame pointer and all saved
/// registers are still the caller's.
#[unsafe(naked)]
extern "C" fn cairn_capture_here() -> StackId {
    core::arch::naked_asm!(
        "mov rdi, qword ptr [rsp]",
        "lea rsi, [rsp + 8]",
        "mov rdx, rbp",
        "jmp {capture_from}",
        capture_from = sym capture_from,
    )
}

extern "C" fn capture_from(pc: u64, sp: u64, fp: u64) -> StackId {
    let state = match thread::acquire() {
        Access::Whole(state) => state,
        Access::Nested(state) => return nested(state, sp),
        Access::None => return lost(),
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
fn whole_walk(thread: &mut ThreadState, sp: u64) -> StackId {
    let memory = OwnMemory { low: thread.low, high: thread.high };
    thread.forget_stack();
    intern_walk(Start::Caller { sp }, memory, &mut thread.walked)
}

#[cold]
#[inline(never)]
fn nested(state: *mut ThreadState, sp: u64) -> StackId {
    // SAFETY: the interrupted capture does not touch `nested` (its `nested_busy` is ours), and these numbers are whole.
    let (memory, numbers) = unsafe { (OwnMemory { low: (*state).low, high: (*state).high }, &mut (*state).nested) };
    let stack = intern_walk(Start::Caller { sp }, memory, numbers);
    // SAFETY: acquired by our caller.
    unsafe { thread::release_nested(state) };
    stack
}

fn intern_walk(start: Start, memory: OwnMemory, numbers: &mut [u32]) -> StackId {
    let Some(count) = walk::walk(start, memory, numbers) else { return lost() };
    let outermost_first = numbers.get(..count).unwrap_or_default().iter().rev().copied();
    PROCESS.tree.descend(0, outermost_first).map_or_else(|_| lost(), StackId::from_node)
}

#[cold]
fn lost() -> StackId {
    PROCESS.lost.fetch_add(1, core::sync::atomic::Ordering::Relaxed);
    StackId::LOST
}
