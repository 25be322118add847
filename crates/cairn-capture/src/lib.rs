//! This thread's call stack, now.
#![no_std]
mod index;
mod mapping;
mod region;
mod thread_pointer;
mod tree;
pub use tree::StackId;
