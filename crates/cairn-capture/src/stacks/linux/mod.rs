//! Linux: its memory, its threads, its modules, and the runtimes whose frames are read there.

pub(crate) mod console;
#[cfg_attr(target_arch = "x86_64", path = "context_x86_64.rs")]
#[cfg_attr(target_arch = "aarch64", path = "context_aarch64.rs")]
mod context_of_signal;
pub(crate) mod generated;
mod headerless;
pub(crate) mod loader;
pub(crate) mod mapping;
mod module_table;
pub(crate) mod modules;
pub(crate) mod own_memory;
// Python frames are merged, and code of JIT compilers is stepped by its shape or by registered
// tables, on x86-64 only. Elsewhere the whole walk captures such code, by its frame pointer.
#[cfg(target_arch = "x86_64")]
pub(crate) mod python;
#[cfg(target_arch = "x86_64")]
pub(crate) mod registered;
#[cfg(target_arch = "x86_64")]
pub(crate) mod runtimes;
pub(crate) mod stack_bounds;
pub(crate) mod thread_pointer;
pub(crate) mod threads;
#[cfg_attr(target_arch = "x86_64", path = "words_x86_64.rs")]
#[cfg_attr(target_arch = "aarch64", path = "words_aarch64.rs")]
mod words;

/// The registers of interrupted code.
pub(crate) mod context {
    pub(crate) use super::context_of_signal::{
        interrupted_call_site, interrupted_sp, take_interrupted_registers,
    };
    /// The registers of code that a signal has interrupted.
    pub type Context = libc::ucontext_t;
}
