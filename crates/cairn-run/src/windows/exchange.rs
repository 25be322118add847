//! Memory shared with the library: what is requested, and the answer.
//!
//! The layout is in `cairn-hooks-windows/src/exchange.rs`.

use std::io;
use std::path::{Path, PathBuf};

use super::calls::wide;
use super::section::Section;

const MAGIC: &[u8; 8] = b"cairnhp2";
const BYTES: usize = 12288;
const PATH: usize = 64;
const TEXT: usize = 4160;
const LIBRARY: usize = 8192;

/// Name of a recording in the directory of all, with fields that the library fills.
const NAME_IN_DIRECTORY: &[u8] = br"\%n.%p.cairn";

/// Requests to the library.
#[derive(Clone, Copy)]
pub(super) struct Request<'a> {
    /// Absolute path of the recording; with children, of the directory of all recordings.
    pub(super) path: &'a Path,
    /// Path of the library, for children.
    pub(super) library: &'a Path,
    /// Whether children are recorded.
    pub(super) children: bool,
    /// Whether mappings are recorded.
    pub(super) mappings: bool,
}

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
pub(super) struct Exchange(Section);

impl Exchange {
    /// Makes the section of that process.
    pub(super) fn make(process: u32, request: Request<'_>) -> io::Result<Self> {
        // Percent signs of the path are no fields.
        let path = request.path.as_os_str().as_encoded_bytes().iter().copied();
        let mut path: Vec<u8> = path.flat_map(|byte| [byte].repeat(1 + usize::from(byte == b'%'))).collect();
        if request.children {
            path.extend_from_slice(NAME_IN_DIRECTORY);
        }
        let library: Vec<u8> =
            wide(request.library.as_os_str()).into_iter().flat_map(u16::to_le_bytes).collect();
        if path.len() > TEXT - PATH || library.len() > BYTES - LIBRARY {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the path is too long"));
        }
        let mut exchange = Self(Section::make(&format!(r"Local\cairn-heap-{process}"), BYTES)?);
        let bytes = exchange.bytes_mut();
        bytes[PATH..PATH + path.len()].copy_from_slice(&path);
        bytes[LIBRARY..LIBRARY + library.len()].copy_from_slice(&library);
        bytes[8..12].copy_from_slice(&(path.len() as u32).to_le_bytes());
        let requests = u32::from(request.children) | u32::from(request.mappings) << 1;
        bytes[20..24].copy_from_slice(&requests.to_le_bytes());
        bytes[24..28].copy_from_slice(&std::process::id().to_le_bytes());
        bytes[..8].copy_from_slice(MAGIC);
        Ok(exchange)
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: `make` has mapped that many bytes; the process does not run yet.
        unsafe { std::slice::from_raw_parts_mut(self.0.address(), BYTES) }
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: `make` has mapped that many bytes; the library has written before it returned.
        unsafe { std::slice::from_raw_parts(self.0.address(), BYTES) }
    }

    /// Reads the answer, after the library was loaded.
    pub(super) fn answer(&self) -> Answer {
        let length = (self.0.number(16) as usize).min(LIBRARY - TEXT);
        let text = String::from_utf8_lossy(self.bytes().get(TEXT..TEXT + length).unwrap_or_default());
        match self.0.number(12) {
            1 => Answer::Recording(PathBuf::from(text.into_owned())),
            2 => Answer::Refused(text.into_owned()),
            _ => Answer::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exchange_holds_a_path_and_answers_nothing_yet() {
        let process = std::process::id();
        let request = |path, children| Request {
            path: Path::new(path),
            library: Path::new(r"C:\库.dll"),
            children,
            mappings: false,
        };
        let pattern = r"C:\100%%\测试\%n.%p.cairn";
        let exchange = Exchange::make(process, request(r"C:\100%\测试", true)).unwrap();
        assert_eq!(exchange.0.number(8) as usize, pattern.len());
        assert_eq!(&exchange.bytes()[PATH..PATH + pattern.len()], pattern.as_bytes());
        assert_eq!((exchange.0.number(20), exchange.0.number(24)), (1, process));
        assert_eq!(exchange.bytes()[LIBRARY..LIBRARY + 6], [b'C', 0, b':', 0, b'\\', 0]);
        assert!(matches!(exchange.answer(), Answer::None));
        let second = Exchange::make(process, request("a", false)).err().unwrap();
        assert_eq!(second.kind(), io::ErrorKind::AlreadyExists);
        let long = "a".repeat(5000);
        assert!(Exchange::make(1, request(&long, false)).is_err());
    }
}
