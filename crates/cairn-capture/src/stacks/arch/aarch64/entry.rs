//! The entry of a capture. At its first instruction the return address is in the link register, and
//! the stack pointer, the frame pointer and all callee-saved registers have the caller's values.

use crate::stacks::entry::capture_from;
use crate::stacks::stack::StackId;

/// Captures the caller's stack. Public for the C API, whose function of another name jumps here.
#[doc(hidden)]
#[unsafe(naked)]
pub extern "C" fn cairn_capture_here() -> StackId {
    core::arch::naked_asm!(
        // A signal handler that interrupts this function and captures needs its unwind row.
        ".cfi_startproc",
        "mov x0, x30",
        "mov x1, sp",
        "mov x2, x29",
        "b {capture_from}",
        ".cfi_endproc",
        capture_from = sym capture_from,
    )
}
