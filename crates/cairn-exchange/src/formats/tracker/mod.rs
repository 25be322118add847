//! From a recording of call-stack-tracker to a heap.
//!
//! The tracker notes stacks, and neither sizes nor frees. Where it is called by an allocator's hook, as it is made for, each stack is one allocation: how
//! often each stack asked for memory is known exactly, and how much is not.

mod read;

pub(crate) use read::{NOTE, begins, read};
