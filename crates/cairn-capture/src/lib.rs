//! This thread's call stack, now, from anywhere: fast enough for malloc, safe enough for signal handlers.
//!
//! ```
//! let stack = cairn_capture::capture();
//! for frame in stack.frames() {
//!     println!("{frame:?}");
//! }
//! ```
#![no_std]
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
pub use entry::capture;
pub use process::while_unloading;
pub use stack::{Frames, Stack};
pub use tree::StackId;
