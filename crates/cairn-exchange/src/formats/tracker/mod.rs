//! Imports a heap from a recording of call-stack-tracker, and writes one.
//!
//! The tracker records stacks, but neither sizes nor frees. If an allocator's hook calls it, as
//! intended, each stack is one allocation: the number of allocations per stack is exact, and sizes
//! are unknown.

mod read;
mod write;

pub use write::write;

pub(crate) use read::{NOTE, begins, read};
