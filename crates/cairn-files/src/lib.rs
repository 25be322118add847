//! Makes and opens files so that no other user of the machine can redirect, swap or read them.
//!
//! A path is walked once, directory by directory, to an open [`Directory`]; links that another user
//! may have planted are refused on the way. All that follows is relative to that directory and by
//! descriptor, so that nothing can be swapped between a check and its use. Files have mode 0600
//! from their creation on. On Windows the access rights of directories decide who reads a file.
//! `docs/design/0007-files.md` has the reasons.
//!
//! ```no_run
//! use std::io::Write;
//!
//! let mut file = cairn_files::NewFile::create("report.html".as_ref())?;
//! file.file_mut().write_all(b"<!doctype html>")?;
//! file.commit(cairn_files::Existing::Refuse)?;
//! # Ok::<(), std::io::Error>(())
//! ```

#![forbid(unsafe_code)]

mod facts;
mod new_file;
mod output;
mod positions;
#[cfg_attr(windows, path = "windows/mod.rs")]
#[cfg_attr(not(windows), path = "unix/mod.rs")]
mod system;

pub use facts::Facts;
pub use new_file::{Existing, NewFile};
pub use output::Output;
pub use positions::read_exact_at;
#[cfg(not(windows))]
pub use system::effective_user;
pub use system::{
    Directory, is_distrust, open_existing, open_output, reopenable_file, unnamed_file, unnamed_file_in,
};

/// Returns a number that other users cannot guess.
fn random_number() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    // The standard library seeds each of these from the kernel's random numbers.
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}
