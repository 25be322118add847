//! Windows: its memory, its threads and its modules.
//!
//! Everything comes from system calls of ntdll that take no lock and allocate nothing, and from the
//! thread's own environment block. The loader is not asked: its functions take its lock, and a
//! capture may run inside of it.

pub(crate) mod calls;
pub(crate) mod console;
pub(crate) mod context;
pub mod environment;
pub(crate) mod generated;
pub(crate) mod mapping;
pub(crate) mod modules;
pub(crate) mod own_memory;
pub(crate) mod registered;
pub(crate) mod runtimes;
pub(crate) mod stack_bounds;
pub(crate) mod thread_pointer;
pub(crate) mod threads;

#[cfg(not(target_arch = "x86_64"))]
compile_error!("cairn-capture supports Windows on x86-64");
