//! Files that the system removes when they are closed.

use std::fs::File;
use std::io;
use std::os::windows::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::random_number;

/// `FILE_FLAG_DELETE_ON_CLOSE`.
const DELETE_ON_CLOSE: u32 = 0x0400_0000;
/// `FILE_ATTRIBUTE_TEMPORARY`: is written to the disk only when memory is short.
const TEMPORARY: u32 = 0x100;
/// `FILE_SHARE_READ` and `FILE_SHARE_DELETE`: others may read it, and it may be removed meanwhile.
const SHARE_READ: u32 = 1;
const SHARE_DELETE: u32 = 4;

/// Creates a temporary file that nobody else can open. It is removed when it is closed, also by the
/// end of the process.
///
/// # Errors
///
/// When no file can be made there.
pub fn unnamed_file() -> io::Result<File> {
    let directory = std::env::temp_dir();
    unnamed_file_in(&directory)
        .map_err(|error| io::Error::new(error.kind(), format!("a file in {}: {error}", directory.display())))
}

/// Creates such a file in this directory, as [`unnamed_file`] does in the usual one. It shows
/// whether files can be made there.
///
/// # Errors
///
/// When no file can be made there.
pub fn unnamed_file_in(path: &Path) -> io::Result<File> {
    create(path, 0).map(|(file, _)| file)
}

/// Creates a temporary file, and a path by which this process can open it again.
///
/// The file is that of [`unnamed_file`]; the path is valid for as long as it is open.
///
/// # Errors
///
/// As [`unnamed_file`].
pub fn reopenable_file() -> io::Result<(File, PathBuf)> {
    create(&std::env::temp_dir(), SHARE_READ | SHARE_DELETE)
}

fn create(directory: &Path, shared: u32) -> io::Result<(File, PathBuf)> {
    let path = std::path::absolute(directory)?.join(format!(".cairn-{:016x}", random_number()));
    let mut options = File::options();
    options.read(true).write(true).create_new(true);
    options.share_mode(shared).attributes(TEMPORARY).custom_flags(DELETE_ON_CLOSE);
    Ok((options.open(&path)?, path))
}
