//! Standard input for commands that need a file: `-` in place of a path.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use crate::new_file::DASH;

/// A file that is read by its path; for `-`, a copy of standard input.
#[derive(Debug)]
pub(crate) struct InputFile {
    path: PathBuf,
    /// Has no name, and lives until this is dropped. The path leads to it.
    copy: Option<File>,
}

impl InputFile {
    /// Returns the file at `path`, or copies standard input to a temporary file.
    ///
    /// # Errors
    ///
    /// When standard input cannot be read, or there is no room for it.
    pub(crate) fn new(path: &Path) -> io::Result<Self> {
        if path != Path::new(DASH) {
            return Ok(Self { path: path.to_owned(), copy: None });
        }
        let mut copy = cairn_files::unnamed_file()?;
        io::copy(&mut io::stdin().lock(), &mut copy)
            .map_err(|error| io::Error::new(error.kind(), format!("standard input: {error}")))?;
        let path = PathBuf::from(format!("/proc/self/fd/{}", copy.as_raw_fd()));
        Ok(Self { path, copy: Some(copy) })
    }

    /// Returns the path by which the file can be opened.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Makes an error of a message about this file, which calls a copy by the name that users know.
    pub(crate) fn error(&self, message: &dyn std::fmt::Display) -> io::Error {
        let message = message.to_string();
        io::Error::other(match &self.copy {
            Some(_) => message.replace(&*self.path.to_string_lossy(), "standard input"),
            None => message,
        })
    }
}
