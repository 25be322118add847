//! Stores one file's answers on disk and maps them: a second run on a program takes milliseconds.
//!
//! `docs/book/reference/symbol-index.md` describes the bytes. An index holds the answers of symbol
//! tables and debug information for every address, with names as the linker stores them, before any
//! formatting.

mod build;
mod cache;
#[cfg_attr(not(any(target_os = "linux", windows)), path = "cache_files_disabled.rs")]
mod cache_files;
mod format;
mod indexer;

pub(crate) use build::build;
pub(crate) use cache::{Cache, Identity};
pub(crate) use format::{Answer, Index};
pub(crate) use indexer::Indexer;
