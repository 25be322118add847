//! x86-64, System V calling convention.
//!
//! ```text
//!   higher    | ...            |
//!   CFA    -> | caller's frame |
//!   CFA-8     | return address |   pushed by the call
//!   CFA-16    | saved rbp      |   if the function saves it
//!             | ...            | <- rsp
//! ```

mod code;
pub mod luajit;
pub mod php;
mod registers;
mod rule;
mod step;

pub use registers::{
    R8, R9, R10, R11, R12, R13, R14, R15, RAX, RBP, RBX, RCX, RDI, RDX, REGISTER_COUNT, RIP, RSI, RSP,
};
pub use rule::{X86_64Rule, X86_64RuleKind};
pub use step::X86_64;
