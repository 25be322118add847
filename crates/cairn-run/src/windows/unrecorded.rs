//! Memory of a whole run, in which the libraries count the children that they cannot record.
//!
//! The layout is in `cairn-hooks-windows/src/run.rs`.

use std::{io, ptr};

use super::section::Section;

const MAGIC: &[u8; 8] = b"cairnrn1";
const BYTES: usize = 576;
const COUNTS: usize = 8;
const ERROR: usize = 24;
const TEXT_STATE: usize = 28;
const TEXT_LENGTH: usize = 32;
const TEXT: usize = 64;

/// The memory, mapped.
#[derive(Debug)]
pub(super) struct Run(Section);

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
        let section = Section::make(&format!(r"Local\cairn-heap-run-{}", std::process::id()), BYTES)?;
        // SAFETY: the memory has that many bytes, and no other process has opened it yet.
        unsafe { ptr::copy_nonoverlapping(MAGIC.as_ptr(), section.address(), MAGIC.len()) };
        Ok(Self(section))
    }

    /// Returns the reason of the first library that could not record.
    fn text(&self) -> String {
        const WRITTEN: u32 = 2;
        if self.0.number(TEXT_STATE) != WRITTEN {
            return String::new();
        }
        let length = (self.0.number(TEXT_LENGTH) as usize).min(BYTES - TEXT);
        // SAFETY: inside of the mapping; nothing writes to it after that state.
        let bytes = unsafe { std::slice::from_raw_parts(self.0.address().add(TEXT), length) };
        format!(": {}", String::from_utf8_lossy(bytes))
    }

    /// Returns the children that were not recorded until now.
    pub(super) fn unrecorded(&self) -> Vec<Unrecorded> {
        let loading = match self.0.number(ERROR) {
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
            .map(|(index, reason)| Unrecorded { count: self.0.number(COUNTS + 4 * index), reason })
            .filter(|unrecorded| unrecorded.count > 0)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn run_counts_what_libraries_write() {
        let run = Run::make().unwrap();
        assert_eq!(run.unrecorded(), []);
        for (at, number) in [(COUNTS, 2_u32), (COUNTS + 12, 1), (TEXT_LENGTH, 3), (TEXT_STATE, 2)] {
            // SAFETY: aligned, and inside of the mapping.
            unsafe { &*run.0.address().add(at).cast::<AtomicU32>() }.store(number, Ordering::Release);
        }
        // SAFETY: inside of the mapping.
        unsafe { ptr::copy_nonoverlapping(b"why".as_ptr(), run.0.address().add(TEXT), 3) };
        assert_eq!(Run::make().unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        let shown: Vec<_> = run.unrecorded().into_iter().map(|one| (one.count, one.reason)).collect();
        let expected = [
            (2, "programs of 32 bits or for another processor".to_owned()),
            (1, "the recording library refuses: why".to_owned()),
        ];
        assert_eq!(shown, expected);
    }
}
