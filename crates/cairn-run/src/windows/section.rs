//! Named memory that processes share.

use std::ffi::{OsStr, c_void};
use std::sync::atomic::{AtomicU32, Ordering};
use std::{io, ptr};

use super::calls::{CloseHandle, CreateFileMappingW, MapViewOfFile, UnmapViewOfFile, wide};

/// Memory with a name, mapped: zeros at first.
#[derive(Debug)]
pub(super) struct Section {
    handle: *mut c_void,
    address: *mut u8,
    bytes: usize,
}

impl Section {
    /// Makes the memory. A name that exists is refused: another program made it.
    pub(super) fn make(name: &str, bytes: usize) -> io::Result<Self> {
        const READ_WRITE_PAGES: u32 = 4;
        const READ_WRITE: u32 = 6;
        const EXISTS: i32 = 183;
        let name = wide(OsStr::new(name));
        let no_file = ptr::without_provenance_mut(usize::MAX);
        // SAFETY: the name ends with NUL; the memory belongs to no file.
        let handle = unsafe {
            CreateFileMappingW(no_file, ptr::null(), READ_WRITE_PAGES, 0, bytes as u32, name.as_ptr())
        };
        let error = io::Error::last_os_error();
        if handle.is_null() {
            return Err(error);
        }
        let exists = error.raw_os_error() == Some(EXISTS);
        // SAFETY: the section was opened above and has that many bytes.
        let address = unsafe { MapViewOfFile(handle, READ_WRITE, 0, 0, bytes) };
        if address.is_null() {
            let error = io::Error::last_os_error();
            // SAFETY: opened above, and not used afterwards.
            unsafe { CloseHandle(handle) };
            return Err(error);
        }
        let section = Self { handle, address: address.cast(), bytes };
        if exists {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "another program made its memory"));
        }
        Ok(section)
    }

    /// Returns the address of the first byte.
    pub(super) fn address(&self) -> *mut u8 {
        self.address
    }

    /// Reads an aligned number, which other processes write at any time.
    pub(super) fn number(&self, at: usize) -> u32 {
        assert!(at.is_multiple_of(4) && at + 4 <= self.bytes, "{at} of {}", self.bytes);
        // SAFETY: aligned, and inside of the mapping, which begins with a page.
        unsafe { &*self.address.add(at).cast::<AtomicU32>() }.load(Ordering::Acquire)
    }
}

impl Drop for Section {
    fn drop(&mut self) {
        // SAFETY: mapped and opened by `make`, and not used afterwards.
        unsafe {
            UnmapViewOfFile(self.address.cast());
            CloseHandle(self.handle);
        }
    }
}
