//! The entry: at its first instruction the stack pointer points at the return address, and the frame pointer and all
//! saved registers are still the caller's.

use crate::entry::capture_from;
use crate::tree::StackId;

/// The number of the caller's stack.
#[unsafe(naked)]
pub(crate) extern "C" fn capture_here() -> StackId {
    core::arch::naked_asm!(
        "mov rdi, qword ptr [rsp]",
        "lea rsi, [rsp + 8]",
        "mov rdx, rbp",
        "jmp {capture_from}",
        capture_from = sym capture_from,
    )
}
