//! Maps the bytes of an image file. With `process/ptrace.rs`, the only unsafe code of this crate.
//!
//! Mappings are private and read-only. If another process truncates a mapped file, a read beyond
//! the new end raises `SIGBUS`; every program that maps foreign files accepts this. A core that is
//! still being written is read up to its size at opening.

#![allow(unsafe_code, reason = "another process may change a mapped file; see above")]

use std::fs::File;
use std::io;
use std::ops::{Deref, Range};
use std::path::Path;

use memmap2::Mmap;

/// The bytes of a file.
#[derive(Debug)]
pub(crate) enum FileBytes {
    Mapped {
        map: Mmap,
        #[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "asked for holes on Linux alone"))]
        file: File,
    },
    Owned(Vec<u8>),
}

impl FileBytes {
    /// Maps a regular file. Refuses anything else (a FIFO, a device) without blocking on it.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        if !std::fs::metadata(path)?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        let mut options = File::options();
        #[cfg(target_os = "linux")]
        std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NONBLOCK);
        Self::map(options.read(true).open(path)?)
    }

    /// Maps an open file.
    pub(crate) fn map(file: File) -> io::Result<Self> {
        if file.metadata()?.len() == 0 {
            return Ok(Self::Owned(Vec::new()));
        }
        // SAFETY: the mapping is private and read-only, `Mmap` unmaps it only when dropped, and the
        // length comes from this descriptor, so the slice covers mapped pages. If another process
        // truncates the file, a read raises `SIGBUS` instead of returning wrong memory. Concurrent
        // writes may change bytes between reads, so no reader relies on reading the same value
        // twice.
        let map = unsafe { Mmap::map(&file) }?;
        Ok(Self::Mapped { map, file })
    }

    /// Returns the parts of a range with data: holes of a sparse file are zeros.
    ///
    /// Returns the whole range if the file system does not report holes.
    #[cfg(target_os = "linux")]
    pub(crate) fn data_in(&self, range: Range<u64>) -> Vec<Range<u64>> {
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

    /// Returns the whole range: zeros are read like other bytes.
    #[cfg(not(target_os = "linux"))]
    pub(crate) fn data_in(&self, range: Range<u64>) -> Vec<Range<u64>> {
        vec![range]
    }

    /// Releases the pages of a range.
    ///
    /// A pass over a large image then does not fill this process's memory.
    #[cfg(target_os = "linux")]
    pub(crate) fn done_with(&self, range: Range<usize>) {
        const PAGE: usize = 4096;
        let Self::Mapped { map, .. } = self else { return };
        let (from, to) = (range.start.next_multiple_of(PAGE), range.end.min(map.len()) / PAGE * PAGE);
        if from < to {
            // SAFETY: the mapping is private, read-only and file-backed, so its pages are clean,
            // and the kernel reloads a dropped page from the file with the same bytes. `from..to`
            // is inside the mapping, because `to` is at most `map.len()`.
            let _ =
                unsafe { map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, from, to - from) };
        }
    }

    /// Does nothing: the system takes the pages when it needs them.
    #[cfg(not(target_os = "linux"))]
    pub(crate) fn done_with(&self, _range: Range<usize>) {}

    /// Maps the pages of a range at once: one call instead of a fault for every few pages.
    #[cfg(target_os = "linux")]
    pub(crate) fn about_to_read(&self, range: Range<usize>) {
        const PAGE: usize = 4096;
        let Self::Mapped { map, .. } = self else { return };
        let (from, to) = (range.start / PAGE * PAGE, range.end.min(map.len()));
        if from < to {
            // Kernels before 5.14 refuse this, and page faults do the work.
            let _ = map.advise_range(memmap2::Advice::PopulateRead, from, to - from);
        }
    }

    /// Does nothing: page faults do the work.
    #[cfg(not(target_os = "linux"))]
    pub(crate) fn about_to_read(&self, _range: Range<usize>) {}
}

/// Finds the next data or hole; the second value is false if the file system does not report them.
#[cfg(target_os = "linux")]
fn seek(file: &File, from: u64, what: libc::c_int) -> (Option<u64>, bool) {
    let Ok(from) = libc::off_t::try_from(from) else { return (None, true) };
    // SAFETY: `lseek` touches no memory of this process. `file` is borrowed, so its descriptor is
    // open.
    let found = unsafe { libc::lseek(std::os::fd::AsRawFd::as_raw_fd(file), from, what) };
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
