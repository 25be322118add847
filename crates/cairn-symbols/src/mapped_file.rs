//! Maps the bytes of a file. The only file of this crate with unsafe code.

#![allow(unsafe_code, reason = "a file mapping is memory that others may change")]

use std::fs::File;
use std::io;
use std::ops::{Deref, Range};
use std::path::Path;
use std::sync::Arc;

use memmap2::Mmap;

/// The bytes of a regular file, or bytes in memory that replace one.
#[derive(Debug)]
pub(crate) enum FileBytes {
    Mapped(Mmap),
    Owned(Vec<u8>),
    /// A range of other bytes: one program of a file that holds several.
    Part(Arc<FileBytes>, Range<usize>),
}

impl FileBytes {
    /// Maps a regular file. Refuses anything else (a FIFO, a device) without blocking on it.
    ///
    /// No process may truncate the file while it is mapped: reading beyond the new end raises
    /// `SIGBUS`. Every program that maps foreign files accepts this; tools replace programs by
    /// renaming.
    pub(crate) fn map(path: &Path) -> io::Result<Self> {
        Self::map_file(&open_regular(path)?)
    }

    /// Maps an open file.
    pub(crate) fn map_file(file: &File) -> io::Result<Self> {
        if file.metadata()?.len() == 0 {
            return Ok(Self::Owned(Vec::new()));
        }
        // SAFETY: the mapping is private and read-only, `Mmap` unmaps it only when dropped, and the
        // length comes from this descriptor, so the slice covers mapped pages. If another process
        // truncates the file, a read raises `SIGBUS` instead of returning wrong memory. Concurrent
        // writes may change bytes between reads, so no reader relies on reading the same value
        // twice.
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
        // Without this, opening a FIFO waits for a writer.
        const O_NONBLOCK: i32 = 0o4000;
        options.custom_flags(O_NONBLOCK);
    }
    // Checked before opening, too: opening a device can have side effects.
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
