//! Memory of a whole run, in which the libraries count the children that they cannot record.
//!
//! The layout is in `cairn-hooks-windows/src/run.rs`.

use std::ffi::{OsStr, c_void};
use std::sync::atomic::{AtomicU32, Ordering};
use std::{io, ptr};

use super::calls::{CloseHandle, CreateFileMappingW, MapViewOfFile, UnmapViewOfFile, wide};

const MAGIC: &[u8; 8] = b"cairnrn1";
const BYTES: usize = 576;
const COUNTS: usize = 8;
const ERROR: usize = 24;
const TEXT_STATE: usize = 28;
const TEXT_LENGTH: usize = 32;
const TEXT: usize = 64;

/// The memory, mapped.
#[derive(Debug)]
pub(super) struct Run {
    section: *mut c_void,
    address: *mut u8,
}

/// Children that were not recorded, for one reason.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unrecorded {
    /// Number of them.
    pub count: u32,
    /// Why, as a clause that follows a colon.
    pub reason: String,
}

impl Run {
    /// Makes the memory of the run that this process starts.
    pub(super) fn make() -> io::Result<Self> {
        const READ_WRITE_PAGES: u32 = 4;
        const READ_WRITE: u32 = 6;
        const EXISTS: i32 = 183;
        let name = wide(OsStr::new(&format!(r"Local\cairn-heap-run-{}", std::process::id())));
        let no_file = ptr::without_provenance_mut(usize::MAX);
        // SAFETY: the name ends with NUL; the memory belongs to no file.
        let section = unsafe {
            CreateFileMappingW(no_file, ptr::null(), READ_WRITE_PAGES, 0, BYTES as u32, name.as_ptr())
        };
        let error = io::Error::last_os_error();
        if section.is_null() {
            return Err(error);
        }
        let exists = error.raw_os_error() == Some(EXISTS);
        // SAFETY: the section was opened above and has that many bytes.
        let address = unsafe { MapViewOfFile(section, READ_WRITE, 0, 0, BYTES) };
        if address.is_null() {
            let error = io::Error::last_os_error();
            // SAFETY: opened above, and not used afterwards.
            unsafe { CloseHandle(section) };
            return Err(error);
        }
        let run = Self { section, address: address.cast() };
        if exists {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "another program made its memory"));
        }
        // SAFETY: the memory has that many bytes, and no other process has opened it yet.
        unsafe { ptr::copy_nonoverlapping(MAGIC.as_ptr(), run.address, MAGIC.len()) };
        Ok(run)
    }

    fn number(&self, at: usize) -> u32 {
        // SAFETY: aligned, inside of the mapping, and accessed by atomics everywhere.
        unsafe { &*self.address.add(at).cast::<AtomicU32>() }.load(Ordering::Acquire)
    }

    /// Returns the reason of the first library that could not record.
    fn text(&self) -> String {
        const WRITTEN: u32 = 2;
        if self.number(TEXT_STATE) != WRITTEN {
            return String::new();
        }
        let length = (self.number(TEXT_LENGTH) as usize).min(BYTES - TEXT);
        // SAFETY: inside of the mapping; nothing writes to it after that state.
        let bytes = unsafe { std::slice::from_raw_parts(self.address.add(TEXT), length) };
        format!(": {}", String::from_utf8_lossy(bytes))
    }

    /// Returns the children that were not recorded until now.
    pub(super) fn unrecorded(&self) -> Vec<Unrecorded> {
        let loading = match self.number(ERROR) {
            0 => String::new(),
            error => format!(": {}", io::Error::from_raw_os_error(error.cast_signed())),
        };
        let reasons = [
            "programs of 32 bits or for another processor".to_owned(),
            "debugged by the program that started them".to_owned(),
            format!("the recording library could not be loaded{loading}"),
            format!("the recording library refuses{}", self.text()),
        ];
        let counted = reasons.into_iter().enumerate();
        counted
            .map(|(index, reason)| Unrecorded { count: self.number(COUNTS + 4 * index), reason })
            .filter(|unrecorded| unrecorded.count > 0)
            .collect()
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        // SAFETY: mapped and opened by `make`, and not used afterwards.
        unsafe {
            UnmapViewOfFile(self.address.cast());
            CloseHandle(self.section);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_counts_what_libraries_write() {
        let run = Run::make().unwrap();
        assert_eq!(run.unrecorded(), []);
        for (at, number) in [(COUNTS, 2_u32), (COUNTS + 12, 1), (TEXT_LENGTH, 3), (TEXT_STATE, 2)] {
            // SAFETY: aligned, and inside of the mapping.
            unsafe { &*run.address.add(at).cast::<AtomicU32>() }.store(number, Ordering::Release);
        }
        // SAFETY: inside of the mapping.
        unsafe { ptr::copy_nonoverlapping(b"why".as_ptr(), run.address.add(TEXT), 3) };
        assert_eq!(Run::make().unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        let shown: Vec<_> = run.unrecorded().into_iter().map(|one| (one.count, one.reason)).collect();
        let expected = [
            (2, "programs of 32 bits or for another processor".to_owned()),
            (1, "the recording library refuses: why".to_owned()),
        ];
        assert_eq!(shown, expected);
    }
}
