//! Walks on Darwin: of this thread, by frame pointers and by compact unwind info.
//!
//! | file | contents |
//! |---|---|
//! | `memory.rs` | reads this process's memory, and finds the bounds of this thread's stack |
//! | `registers.rs` | reads the registers of this place, and of a signal's context |
//! | `walk.rs` | whole walks, by the tables that dyld finds |
//!
//! There are no numbers for stacks here, no recorder and no hooks. The code is compiled for both
//! processors (`cargo xtask portability darwin`) and has never run, because the project has no
//! machine with Darwin.

mod memory;
mod registers;
mod walk;

pub use memory::{ThreadMemory, read_own_memory};
pub(crate) use registers::{address_mask, interrupted_call_site};
/// The registers of code that a signal has interrupted.
pub type Context = libc::ucontext_t;
pub use walk::{WalkedStack, walk_stack, walk_stack_at};

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("cairn-capture supports Darwin on x86-64 and arm64");
