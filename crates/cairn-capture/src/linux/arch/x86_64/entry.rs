//! The entry of a capture. At its first instruction the stack pointer points to the return address,
//! and the frame pointer and all callee-saved registers have the caller's values.

use crate::linux::entry::capture_from;
use crate::linux::stack::StackId;

/// Captures the caller's stack. Public for the C API, whose function of another name jumps here.
#[doc(hidden)]
#[unsafe(naked)]
pub extern "C" fn cairn_capture_here() -> StackId {
    core::arch::naked_asm!(
        // A signal handler that interrupts this function and captures needs its unwind row.
        ".cfi_startproc",
        "mov rdi, qword ptr [rsp]",
        "lea rsi, [rsp + 8]",
        "mov rdx, rbp",
        "jmp {capture_from}",
        ".cfi_endproc",
        capture_from = sym capture_from,
    )
}
