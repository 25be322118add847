//! Darwin: walks of this thread, by frame pointers and by compact unwind info.
//!
//! | file | what |
//! |---|---|
//! | `memory.rs` | this process's memory, and how far this thread's stack goes |
//! | `registers.rs` | the registers of this place, and of a signal's context |
//! | `walk.rs` | whole walks, by the tables that dyld knows |
//!
//! There are no numbers for stacks here, no recorder and no hooks. It is compiled for both processors (`cargo xtask portability darwin`)
//! and has never run: there is no Darwin where it is tested.

mod memory;
mod registers;
mod walk;

pub use memory::{ThreadMemory, read_own_memory};
pub(crate) use registers::{address_mask, interrupted_call_site};
pub use walk::{WalkedStack, walk_stack, walk_stack_at};

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("cairn-capture knows Darwin on x86-64 and arm64");
