//! The bytes of a file, mapped. The one file of this crate with unsafe code.

#![allow(unsafe_code, reason = "a file mapping is memory that others may change")]

use std::fs::File;
use std::io;
use std::ops::{Deref, Range};
use std::path::Path;
use std::sync::Arc;

use memmap2::Mmap;

/// The bytes of a regular file, or bytes at hand that stand for one.
#[derive(Debug)]
pub(crate) enum FileBytes {
    Mapped(Mmap),
    Owned(Vec<u8>),
    /// A part of other bytes: one program of a file that holds several.
    Part(Arc<FileBytes>, Range<usize>),
}

impl FileBytes {
    /// Maps a regular file. Anything else that may lie at the path (a FIFO, a device) is refused without waiting for it.
    ///
    /// The file must not be shortened while it is mapped: reading the part that went away ends the process. That is the
    /// contract of every program that maps files it did not write; tools replace programs by renaming.
    pub(crate) fn map(path: &Path) -> io::Result<Self> {
        Self::map_file(&open_regular(path)?)
    }

    /// Maps an open file.
    pub(crate) fn map_file(file: &File) -> io::Result<Self> {
        if file.metadata()?.len() == 0 {
            return Ok(Self::Owned(Vec::new()));
        }
        // SAFETY: the mapping is read-only and private. Users must not shorten the file meanwhile, as the type's documentation states.
        // Bytes that are written meanwhile are read with any value, and every reader here checks all that it reads.
        unsafe { Mmap::map(file) }.map(Self::Mapped)
    }
}

impl Deref for FileBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Owned(bytes) => bytes,
            Self::Part(whole, range) => whole.get(range.clone()).unwrap_or_default(),
        }
    }
}

/// Opens a file for reading if it is a regular one.
pub(crate) fn open_regular(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.read(true);
    #[cfg(target_os = "linux")]
    {
        use std::os::unix::fs::OpenOptionsExt;
        // Opening a FIFO for reading waits for a writer otherwise.
        const O_NONBLOCK: i32 = 0o4000;
        options.custom_flags(O_NONBLOCK);
    }
    // Asked before it is opened, too: opening alone can have effects on a device.
    if !std::fs::metadata(path)?.is_file() {
        return Err(not_regular());
    }
    let file = options.open(path)?;
    if !file.metadata()?.is_file() {
        return Err(not_regular());
    }
    Ok(file)
}

fn not_regular() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")
}
