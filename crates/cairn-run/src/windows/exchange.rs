//! Memory shared with the library: what is requested, and the answer.
//!
//! The layout is in `cairn-hooks-windows/src/exchange.rs`.

use std::ffi::{OsStr, c_void};
use std::io;
use std::path::{Path, PathBuf};
use std::ptr;

use super::calls::{CloseHandle, CreateFileMappingW, MapViewOfFile, UnmapViewOfFile, wide};

const MAGIC: &[u8; 8] = b"cairnhp1";
const BYTES: usize = 8192;
const PATH: usize = 64;
const TEXT: usize = 4160;

/// The library's answer.
#[derive(Debug)]
pub(super) enum Answer {
    /// The library was not loaded, or could not open the memory.
    None,
    /// It records to this file.
    Recording(PathBuf),
    /// It cannot record, for this reason.
    Refused(String),
}

/// The section of one process, mapped.
pub(super) struct Exchange {
    section: *mut c_void,
    address: *mut u8,
}

impl Exchange {
    /// Makes the section of that process, with the path of its recording.
    pub(super) fn make(process: u32, recording: &Path) -> io::Result<Self> {
        const READ_WRITE_PAGES: u32 = 4;
        const READ_WRITE: u32 = 6;
        const EXISTS: i32 = 183;
        // Percent signs of the path are no fields.
        let path = recording.as_os_str().as_encoded_bytes().iter().copied();
        let path: Vec<u8> = path.flat_map(|byte| [byte].repeat(1 + usize::from(byte == b'%'))).collect();
        if path.len() > TEXT - PATH {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the path is too long"));
        }
        let name = wide(OsStr::new(&format!(r"Local\cairn-heap-{process}")));
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
        let mut exchange = Self { section, address: address.cast() };
        if exists {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "another program made its memory"));
        }
        let bytes = exchange.bytes_mut();
        bytes[PATH..PATH + path.len()].copy_from_slice(&path);
        bytes[8..12].copy_from_slice(&(path.len() as u32).to_le_bytes());
        bytes[..8].copy_from_slice(MAGIC);
        Ok(exchange)
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: `make` has mapped that many bytes; the process does not run yet.
        unsafe { std::slice::from_raw_parts_mut(self.address, BYTES) }
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: `make` has mapped that many bytes; the library has written before it returned.
        unsafe { std::slice::from_raw_parts(self.address, BYTES) }
    }

    fn number(&self, at: usize) -> u32 {
        self.bytes()
            .get(at..)
            .and_then(|rest| rest.first_chunk())
            .map_or(0, |bytes| u32::from_le_bytes(*bytes))
    }

    /// Reads the answer, after the library was loaded.
    pub(super) fn answer(&self) -> Answer {
        let length = (self.number(16) as usize).min(BYTES - TEXT);
        let text = String::from_utf8_lossy(self.bytes().get(TEXT..TEXT + length).unwrap_or_default());
        match self.number(12) {
            1 => Answer::Recording(PathBuf::from(text.into_owned())),
            2 => Answer::Refused(text.into_owned()),
            _ => Answer::None,
        }
    }
}

impl Drop for Exchange {
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
    fn exchange_holds_a_path_and_answers_nothing_yet() {
        let process = std::process::id();
        let exchange = Exchange::make(process, Path::new(r"C:\100%\测试.cairn")).unwrap();
        let path = r"C:\100%%\测试.cairn".as_bytes();
        assert_eq!(exchange.number(8) as usize, path.len());
        assert_eq!(&exchange.bytes()[PATH..PATH + path.len()], path);
        assert!(matches!(exchange.answer(), Answer::None));
        let second = Exchange::make(process, Path::new("a")).err().unwrap();
        assert_eq!(second.kind(), io::ErrorKind::AlreadyExists);
        let long = "a".repeat(5000);
        assert!(Exchange::make(1, Path::new(&long)).is_err());
    }
}
