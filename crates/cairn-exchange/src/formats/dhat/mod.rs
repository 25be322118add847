//! DHAT's JSON, version 2, for valgrind's `dh_view.html`: allocations, peak, end and lifetimes by
//! stack. Times are in microseconds.

mod write;

pub(crate) use write::write;
