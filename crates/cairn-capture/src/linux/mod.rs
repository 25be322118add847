//! Captures on Linux.
//!
//! Dependencies point downwards:
//!
//! ```text
//!   entry  stack  table  text  thread_memory      the public API
//!   engine                                        the hot path
//!   thread  walk                                  the state of a thread; whole walks
//!   python                                        Python frames, and how they are merged (x86-64)
//!   runtimes  registered                          steps out of code that runtimes make (x86-64)
//!   process                                       the state of the process
//!   tree  pcs  modules  headerless  generated     stacks, addresses, and where code and its tables lie
//!   index  region  stack_memory  stack_bounds     tables that grow; readable memory
//!   arch  mapping  own_memory  thread_pointer     the processor and the kernel
//!   counters                                      counts for benchmarks, in no other build
//! ```

mod arch;
mod counters;
mod engine;
mod entry;
mod generated;
mod headerless;
mod index;
mod mapping;
mod module_state;
mod modules;
mod own_memory;
mod pc_kind;
mod pcs;
mod process;
// Python frames are merged, and code of JIT compilers is stepped by its shape or by registered
// tables, on x86-64 only. Elsewhere the whole walk captures such code, by its frame pointer.
#[cfg(target_arch = "x86_64")]
mod python;
mod region;
#[cfg(target_arch = "x86_64")]
mod registered;
#[cfg(target_arch = "x86_64")]
mod runtimes;
mod stack;
mod stack_bounds;
mod stack_memory;
mod table;
mod text;
mod thread;
mod thread_memory;
mod thread_pointer;
mod tree;
mod walk;

pub use arch::cairn_capture_here;
pub(crate) use arch::{address_mask, interrupted_call_site};
#[cfg(feature = "counters")]
pub use counters::counts;
pub use entry::{Statistics, capture, capture_at, capture_interrupted, statistics};
pub use mapping::{own_memory, own_memory_changes};
pub use own_memory::read_bytes as read_own_memory;
pub use process::{after_fork_in_child, follow_after, forget_stacks, take_less_room, while_unloading};
#[cfg(target_arch = "x86_64")]
pub use python::{
    CodeContents, PythonSymbols, observe_unread_python_stacks, python_code, read_python_frames,
    unread_python_stacks,
};
#[cfg(target_arch = "x86_64")]
pub use registered::{add_frame_table, remove_frame_table};
#[cfg(target_arch = "x86_64")]
pub use runtimes::{step_through_luajit, step_through_php};
pub use stack::{Frames, Stack, StackId};
pub use table::{
    FrameId, LoadedModule, ModuleIdentity, NewStacks, StackCursor, StackRow, observe_new_stacks,
};
pub use text::WriteError;
pub use thread_memory::ThreadMemory;
