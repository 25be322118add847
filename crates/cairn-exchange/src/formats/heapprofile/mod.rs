//! Chrome's `.heapprofile`: a tree of functions, with the bytes that ended in each.

mod write;

pub(crate) use write::write;
