//! Files that have no name, or lose it before anything is in them.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use super::Directory;
use crate::random_number;

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

/// Creates a temporary file, and a path by which this process can open it again.
///
/// The file is that of [`unnamed_file`]; the path is valid for as long as it is open.
///
/// # Errors
///
/// As [`unnamed_file`].
pub fn reopenable_file() -> io::Result<(File, PathBuf)> {
    let file = unnamed_file()?;
    let path = PathBuf::from(format!("/dev/fd/{}", file.as_raw_fd()));
    Ok((file, path))
}
