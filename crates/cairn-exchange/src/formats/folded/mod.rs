//! Folded stacks for flame graph tools: a line per stack, outermost function first, and a number.

mod write;

pub(crate) use write::{joined, write};
