//! This thread's call stack, now, from anywhere: fast enough for malloc, safe enough for signal handlers.
//!
//! ```
//! let stack = cairn_capture::capture();
//! for frame in stack.frames() {
//!     println!("{frame:?}");
//! }
//! ```
//!
//! In a signal handler it is the same call, or [`capture_interrupted`] for the stack that the signal interrupted.
//!
//! Nothing here allocates from the heap, takes a lock, or formats text. A capture that is interrupted by a signal whose
//! handler captures as well is safe at every instruction. Memory comes from the kernel, once per thread and when a table
//! is full; in steady state there is no system call.
//!
//! x86-64 and AArch64, Linux with glibc 2.35 or later. On AArch64 every capture walks the whole stack: exact, and some
//! hundred times slower.
#![no_std]
#![cfg_attr(
    not(target_arch = "x86_64"),
    allow(dead_code, reason = "the tables are made for the hot path, which is x86-64's")
)]

mod arch;
#[cfg(target_arch = "aarch64")]
use arch::engine;
#[cfg(target_arch = "x86_64")]
mod engine;
mod entry;
mod index;
mod mapping;
mod modules;
mod pcs;
mod process;
mod region;
mod stack;
mod stack_bounds;
mod thread;
mod thread_pointer;
mod tree;
mod walk;

pub use cairn_unwind::StopReason;
pub use entry::{Statistics, capture, capture_interrupted, statistics};
pub use process::while_unloading;
pub use stack::{Frames, Stack};
pub use tree::StackId;
