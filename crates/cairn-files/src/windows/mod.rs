//! Files below directories that stay where they are while they are open.
//!
//! Windows has no calls relative to an open directory that std offers, and no permission bits. A
//! file inherits the access rights of its directory: in a user's profile, where the temporary
//! and the cache directories lie, only this user and administrators have any.

mod directory;
mod names;
mod output;
mod unnamed;

pub use directory::Directory;
pub use output::{open_existing, open_output};
pub use unnamed::{reopenable_file, unnamed_file, unnamed_file_in};

/// Returns true if this crate refused because another user could interfere. Never on Windows, where
/// access rights are the system's alone.
#[must_use]
pub fn is_distrust(_error: &std::io::Error) -> bool {
    false
}
