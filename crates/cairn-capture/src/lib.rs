//! This thread's call stack, now.
#![no_std]
mod index;
mod mapping;
mod region;
mod tree;
pub use tree::StackId;
