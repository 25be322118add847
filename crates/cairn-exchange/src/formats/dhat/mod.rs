//! DHAT's JSON, version 2, for valgrind's `dh_view.html`: for each stack what it allocated, held at the peak and at the end, and how long its
//! blocks lived. Times are microseconds.

mod write;

pub(crate) use write::write;
