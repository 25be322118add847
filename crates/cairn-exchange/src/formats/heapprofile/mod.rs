//! Chrome's `.heapprofile`: a tree of functions, with the bytes allocated by each.

mod write;

pub(crate) use write::write;
