//! The entry: at its first instruction the return address is in the link register, and the stack pointer, the frame
//! pointer and all saved registers are still the caller's.

use crate::entry::capture_from;
use crate::tree::StackId;

/// The number of the caller's stack.
#[unsafe(naked)]
pub(crate) extern "C" fn capture_here() -> StackId {
    core::arch::naked_asm!(
        "mov x0, x30",
        "mov x1, sp",
        "mov x2, x29",
        "b {capture_from}",
        capture_from = sym capture_from,
    )
}
