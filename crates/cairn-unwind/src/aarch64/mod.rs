//! AArch64, the Arm procedure call standard, little-endian.
//!
//! ```text
//!   CFA    -> | caller's frame |
//!             | ...            |
//!             | saved x30      |   the return address, unless the function is a leaf
//!   x29    -> | saved x29      |   frame record: it may lie anywhere in the frame
//!             | ...            | <- sp
//! ```
//!
//! Three things differ from x86-64. The call pushes nothing: the return address of a leaf function
//! is in x30 (the link register) and its CFA may equal its stack pointer. Return addresses may
//! carry a signature in their high bits (pointer authentication), which
//! [`Registers::with_address_mask`](crate::Registers::with_address_mask) strips. And Linux's signal
//! trampoline has no unwind tables in newer kernels, so its frame is recognised by its contents:
//! see `step.rs`.

mod code;
mod registers;
mod rule;
mod step;

pub use registers::{PC, REGISTER_COUNT, SP, X29, X30};
pub use rule::{Aarch64Rule, Aarch64RuleKind};
pub use step::Aarch64;
