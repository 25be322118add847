//! Imports a heap from a recording of call-stack-tracker.
//!
//! The tracker records stacks, but neither sizes nor frees. If an allocator's hook calls it, as
//! intended, each stack is one allocation: the number of allocations per stack is exact, and sizes
//! are unknown.

mod read;

pub(crate) use read::{NOTE, begins, read};
