//! The entry: at its first instruction the stack pointer points at the return address, and the frame pointer and all
//! saved registers are still the caller's.

use crate::entry::capture_from;
use crate::tree::StackId;

/// The number of the caller's stack. Public for the C API, whose function of another name jumps here.
#[doc(hidden)]
#[unsafe(naked)]
pub extern "C" fn cairn_capture_here() -> StackId {
    core::arch::naked_asm!(
        // Whoever interrupts this function and wants the stack needs its row.
        ".cfi_startproc",
        "mov rdi, qword ptr [rsp]",
        "lea rsi, [rsp + 8]",
        "mov rdx, rbp",
        "jmp {capture_from}",
        ".cfi_endproc",
        capture_from = sym capture_from,
    )
}
