//! The index of one file's answers, kept on disk and mapped: the second look at a program takes milliseconds.
//!
//! `docs/book/reference/symbol-index.md` describes the bytes. An index holds what the symbol tables and the debug information answer for
//! every address, and nothing that depends on how it is printed: names are as the linker has them.

mod build;
mod cache;
#[cfg(target_os = "linux")]
mod cache_files;
mod format;
#[cfg(not(target_os = "linux"))]
mod no_cache_files;

pub(crate) use build::build;
pub(crate) use cache::{Cache, Identity};
pub(crate) use format::{Answer, Index};
