//! pprof: a gzip-compressed protocol buffer, read by `go tool pprof` and by many services.
//!
//! `messages` has the used fields of `perftools.profiles`.

mod messages;
mod read;
mod write;

pub(crate) use read::{begins, read};
pub(crate) use write::write;

/// Name of the format in messages.
pub(crate) const FORMAT: &str = "pprof";
