//! Files that have no name, or lose it before anything is in them.

use std::fs::File;
use std::io;
use std::path::Path;

use crate::{Directory, random_number};

/// Creates a temporary file without a name, for reading and writing by this user alone. Its storage
/// is released with the last descriptor.
///
/// # Errors
///
/// When no file can be made there.
pub fn unnamed_file() -> io::Result<File> {
    let directory = std::env::temp_dir();
    unnamed_file_in(&directory)
        .map_err(|error| io::Error::new(error.kind(), format!("a file in {}: {error}", directory.display())))
}

/// Creates a file without a name in this directory, as [`unnamed_file`] does in the usual one. It
/// shows whether files can be made there, and nobody sees it.
///
/// # Errors
///
/// When no file can be made there.
pub fn unnamed_file_in(path: &Path) -> io::Result<File> {
    let directory = Directory::open(path)?;
    match directory.create_unnamed() {
        Ok(file) => Ok(file),
        // Not every file system has files without names.
        Err(_) => {
            let name = format!(".cairn-{:016x}", random_number());
            let file = directory.create_new(name.as_ref())?;
            directory.remove(name.as_ref())?;
            Ok(file)
        }
    }
}
