//! The entry of a capture. At its first instruction the stack pointer points to the return address,
//! and the frame pointer and all callee-saved registers have the caller's values.

use crate::stacks::entry::capture_from;
use crate::stacks::stack::StackId;

/// Captures the caller's stack. Public for the C API, whose function of another name jumps here.
#[doc(hidden)]
#[unsafe(naked)]
pub extern "C" fn cairn_capture_here() -> StackId {
    #[cfg(not(windows))]
    core::arch::naked_asm!(
        // A signal handler that interrupts this function and captures needs its unwind row.
        ".cfi_startproc",
        "mov rdi, qword ptr [rsp]",
        "lea rsi, [rsp + 8]",
        "mov rdx, rbp",
        "jmp {capture_from}",
        ".cfi_endproc",
        capture_from = sym capture_from,
    );
    // Other registers hold the arguments, and a function without an entry in the tables is a leaf.
    #[cfg(windows)]
    core::arch::naked_asm!(
        "mov rcx, qword ptr [rsp]",
        "lea rdx, [rsp + 8]",
        "mov r8, rbp",
        "jmp {capture_from}",
        capture_from = sym capture_from,
    )
}
