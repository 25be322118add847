//! Folded stacks: a line for each stack, outermost function first, and one number. Read by every flame graph tool.

mod write;

pub(crate) use write::{joined, write};
