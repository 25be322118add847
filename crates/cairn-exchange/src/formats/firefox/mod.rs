//! The Firefox Profiler's processed profiles.
//!
//! A profile is one JSON object: `meta`, and a list of threads, each with samples or allocations that refer to its tables of stacks, frames, functions
//! and texts. Newer versions have the tables once for all threads, in `shared`.

mod read;
mod tables;
mod write;

pub(crate) use read::{begins, read};
pub(crate) use write::{write, write_marks};

const FORMAT: &str = "Firefox Profiler";
