//! The bytes of an image file, mapped. The one file with unsafe code of this room.
//!
//! What it promises: the mapping is read-only and private. What it cannot prevent: whoever makes the file shorter while it is
//! mapped ends this process with SIGBUS. That is the contract of every program that maps files which it did not write; a
//! core that is still being written is read as far as it goes when it is opened.

#![allow(unsafe_code, reason = "a file mapping is memory that others may change; see above")]

use std::fs::File;
use std::io;
use std::ops::{Deref, Range};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use memmap2::Mmap;

/// The bytes of a file.
#[derive(Debug)]
pub(super) enum FileBytes {
    Mapped { map: Mmap, file: File },
    Owned(Vec<u8>),
}

impl FileBytes {
    /// Maps a regular file. Anything else that may lie at the path (a FIFO, a device) is refused without waiting for it.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        if !std::fs::metadata(path)?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        Self::map(File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)?)
    }

    /// Maps an open file.
    pub(super) fn map(file: File) -> io::Result<Self> {
        if file.metadata()?.len() == 0 {
            return Ok(Self::Owned(Vec::new()));
        }
        // SAFETY: the mapping is read-only and private. Users must not shorten the file meanwhile, as the type's documentation states.
        // Bytes that are written meanwhile are read with any value, and every reader here checks all that it reads.
        let map = unsafe { Mmap::map(&file) }?;
        Ok(Self::Mapped { map, file })
    }

    /// The parts of a stretch of the file that hold data: a sparse file's holes read as zeros and need no look. All of it
    /// where the file system does not tell.
    pub(super) fn data_in(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let Self::Mapped { file, .. } = self else { return vec![range] };
        let mut found = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let (Some(data), known) = seek(file, at, libc::SEEK_DATA) else { break };
            if !known {
                found.push(at..range.end);
                break;
            }
            let (hole, _) = seek(file, data, libc::SEEK_HOLE);
            let end = hole.unwrap_or(range.end).min(range.end);
            if data < end {
                found.push(data..end);
            }
            if end <= at {
                break;
            }
            at = end;
        }
        found
    }

    /// Lets the kernel take back the pages of a stretch that nobody needs soon, so that a pass over a large image does not
    /// fill this process with it.
    pub(super) fn done_with(&self, range: Range<usize>) {
        const PAGE: usize = 4096;
        let Self::Mapped { map, .. } = self else { return };
        let (from, to) = (range.start.next_multiple_of(PAGE), range.end.min(map.len()) / PAGE * PAGE);
        if from < to {
            // SAFETY: a private, read-only mapping of a file: what is dropped is read from the file again.
            let _ =
                unsafe { map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, from, to - from) };
        }
    }

    /// Has the kernel map the pages of a stretch at once: one call in place of a fault for every few of them.
    pub(super) fn about_to_read(&self, range: Range<usize>) {
        const PAGE: usize = 4096;
        let Self::Mapped { map, .. } = self else { return };
        let (from, to) = (range.start / PAGE * PAGE, range.end.min(map.len()));
        if from < to {
            // Refused by kernels before 5.14, where the faults do it.
            let _ = map.advise_range(memmap2::Advice::PopulateRead, from, to - from);
        }
    }
}

/// Where the next data or hole is; the second is false when the file system does not tell.
fn seek(file: &File, from: u64, what: libc::c_int) -> (Option<u64>, bool) {
    let Ok(from) = libc::off_t::try_from(from) else { return (None, true) };
    // SAFETY: the descriptor is ours; the call touches no memory.
    let found = unsafe { libc::lseek(file.as_raw_fd(), from, what) };
    match u64::try_from(found) {
        Ok(found) => (Some(found), true),
        Err(_) if io::Error::last_os_error().raw_os_error() == Some(libc::ENXIO) => (None, true),
        Err(_) => (Some(from as u64), false),
    }
}

impl Deref for FileBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Mapped { map, .. } => map,
            Self::Owned(bytes) => bytes,
        }
    }
}
