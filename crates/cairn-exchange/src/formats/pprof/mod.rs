//! pprof: a gzip-compressed protocol buffer, read by `go tool pprof` and by many services.
//!
//! The messages are those of `perftools.profiles`, of which only the fields that are used stand in `messages`.

mod messages;
mod read;
mod write;

pub(crate) use read::{begins, read};
pub(crate) use write::write;

/// As people call it.
pub(crate) const FORMAT: &str = "pprof";
