//! Properties of files that need no open file.

use std::time::SystemTime;

/// Properties of a directory entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Facts {
    /// True for a regular file.
    pub is_file: bool,
    /// Its length.
    pub bytes: u64,
    /// When it was written to last.
    pub modified: SystemTime,
}
