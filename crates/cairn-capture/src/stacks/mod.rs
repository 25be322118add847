//! Captures: the part that is the same on Linux and Windows, and a folder for each system.
//!
//! Dependencies point downwards:
//!
//! ```text
//!   entry  stack  table  text  thread_memory      the public API
//!   engine                                        the hot path
//!   thread  walk                                  the state of a thread; whole walks
//!   process                                       the state of the process
//!   tree  pcs                                     stacks and addresses
//!   index  region  stack_memory                   tables that grow; readable memory
//!   own_pieces                                    the list of the crate's memory
//!   arch                                          the processor
//!   counters                                      counts for benchmarks, in no other build
//! ```
//!
//! `linux` and `windows` have files of equal names:
//!
//! | file | contents |
//! |---|---|
//! | `mapping.rs` | memory from the kernel |
//! | `own_memory.rs` | reads memory that may be unreadable |
//! | `modules.rs` | where code and its tables lie |
//! | `generated.rs` | code of no module |
//! | `runtimes.rs` | steps out of code that runtimes make |
//! | `stack_bounds.rs` | the readable part of this thread's stack |
//! | `thread_pointer.rs` | one word of thread-local storage |
//! | `threads.rs` | numbers of threads |
//! | `console.rs` | writes text |
//! | `context` | the registers of interrupted code |
//!
//! Linux alone has Python frames (`python`), tables that programs register (`registered`), programs
//! without `.eh_frame_hdr` (`headerless`), the interface of the loader (`loader`), and a table of
//! modules for C libraries without `_dl_find_object` (`module_table`).

mod arch;
mod counters;
mod engine;
mod entry;
mod index;
#[cfg(target_os = "linux")]
mod linux;
mod module_state;
mod own_pieces;
mod pc_kind;
mod pcs;
mod process;
mod region;
mod stack;
mod stack_memory;
mod table;
mod text;
mod thread;
mod thread_memory;
mod tree;
mod walk;
#[cfg(windows)]
mod windows;

#[cfg(target_os = "linux")]
use linux as system;
#[cfg(windows)]
use windows as system;

#[cfg(any(windows, target_arch = "x86_64"))]
use system::runtimes;
use system::{
    console, context, generated, mapping, modules, own_memory, stack_bounds, thread_pointer, threads,
};

pub(crate) use arch::address_mask;
pub use arch::cairn_capture_here;
pub use context::Context;
pub(crate) use context::interrupted_call_site;
#[cfg(feature = "counters")]
pub use counters::counts;
pub use entry::{Statistics, capture, capture_at, capture_interrupted, statistics};
#[cfg(target_os = "linux")]
pub use linux::loader::{ListedModule, LoaderNamespace, loader_namespaces};
#[cfg(target_os = "linux")]
pub use linux::modules::prepare_modules;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub use linux::python::{
    CodeContents, PythonSymbols, observe_unread_python_stacks, python_code, read_python_frames,
    unread_python_stacks,
};
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub use linux::registered::{add_frame_table, remove_frame_table};
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub use linux::runtimes::{step_through_luajit, step_through_php};
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
use linux::{python, registered};
pub use own_memory::read_bytes as read_own_memory;
pub use own_pieces::{own_memory as visit_own_memory, own_memory_changes};
#[cfg(target_os = "linux")]
pub use process::after_fork_in_child;
#[cfg(windows)]
pub use process::forget_module;
pub use process::{follow_after, forget_stacks, take_less_room, while_unloading};
pub use stack::{Frames, Stack, StackId};
pub use table::{
    FrameId, LoadedModule, ModuleIdentity, NewStacks, StackCursor, StackRow, observe_new_stacks,
};
pub use text::WriteError;
pub use thread_memory::ThreadMemory;
#[cfg(windows)]
pub use windows::environment;
#[cfg(windows)]
pub use windows::registered::{
    FindFunction, add_function_table, add_function_table_callback, remove_function_table,
};
