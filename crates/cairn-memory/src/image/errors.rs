//! Errors and findings of opening an image.

use std::fmt;
use std::io;
use std::path::PathBuf;

use cairn_format::AbsoluteAddress;

#[cfg(target_os = "linux")]
use crate::process;

/// The reason why an image cannot be opened.
#[derive(Debug)]
#[non_exhaustive]
pub enum ImageError {
    /// When the file cannot be read.
    Open {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// When the file is not a memory image.
    NotAnImage {
        /// The file.
        path: PathBuf,
        /// The detected kind of file.
        is: &'static str,
    },
    /// When even the beginning of the file is invalid.
    Damaged {
        /// The file.
        path: PathBuf,
        /// The offset of the damage.
        offset: u64,
        /// The kind of damage.
        problem: String,
    },
    /// When the image is a process that cannot be inspected.
    #[cfg(target_os = "linux")]
    Process(process::Error),
    /// When the image is a process, and processes of this system cannot be inspected.
    NoProcesses,
}

impl fmt::Display for ImageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open { path, source } => write!(f, "{}: {source}", path.display()),
            Self::NotAnImage { path, is } => {
                write!(
                    f,
                    "{}: {is}, not a core file or minidump; for plain bytes of memory use --raw",
                    path.display()
                )
            }
            Self::Damaged { path, offset, problem } => {
                write!(f, "{}: {problem} at byte {offset}", path.display())
            }
            #[cfg(target_os = "linux")]
            Self::Process(error) => error.fmt(f),
            Self::NoProcesses => {
                f.write_str("a running process is inspected on Linux only; write a dump of it, and open that")
            }
        }
    }
}

impl std::error::Error for ImageError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Open { source, .. } => Some(source),
            #[cfg(target_os = "linux")]
            Self::Process(error) => Some(error),
            _ => None,
        }
    }
}

/// A gap or contradiction in an image.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Finding {
    /// When the file is shorter than the memory that it states.
    Cut {
        /// The number of missing bytes.
        missing_bytes: u64,
        /// The stated number of bytes.
        stated_bytes: u64,
        /// The number of incomplete segments.
        segments: usize,
    },
    /// When a compressed file ends early or is damaged.
    PackedCut {
        /// The decompressor's message.
        problem: String,
    },
    /// When two segments claim the same addresses; the first one is used.
    Overlap {
        /// The start of the overlap.
        address: AbsoluteAddress,
        /// The ignored bytes of the second segment.
        bytes: u64,
    },
    /// When a table has fewer entries than it states.
    ShortTable {
        /// The name of the table.
        table: &'static str,
        /// The stated number of entries.
        stated: u64,
        /// The number of present entries.
        found: u64,
    },
    /// When a note extends past the end of the notes, or of the file.
    NoteCut {
        /// The note's offset in the file.
        offset: u64,
    },
    /// When a segment extends past the end of the address space.
    ImpossibleSegment {
        /// The segment's number.
        number: usize,
        /// The segment's address.
        address: AbsoluteAddress,
    },
    /// When a module's file on disk is of another build than the one that ran.
    DifferentFile {
        /// The file.
        path: PathBuf,
        /// The build id in the image.
        expected: String,
        /// The build id of the file, if it has one.
        found: Option<String>,
    },
    /// When a module without a build id has other ELF headers on disk than in the image.
    DifferentHeader {
        /// The file.
        path: PathBuf,
    },
    /// When the image has neither build id nor ELF header of a module.
    NotIdentified {
        /// The file.
        path: PathBuf,
        /// The number of missing bytes.
        bytes: u64,
    },
    /// When the image omits parts of a module, and no file can provide them.
    NotFilled {
        /// The file.
        path: PathBuf,
        /// The number of missing bytes.
        bytes: u64,
        /// The reason why no file was used.
        reason: &'static str,
    },
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cut { missing_bytes, stated_bytes, segments } => write!(
                f,
                "the file is cut short: {missing_bytes} of {stated_bytes} bytes of memory, in {segments} segments, \
                 are missing; only the present part was used"
            ),
            Self::PackedCut { problem } => {
                write!(
                    f,
                    "the compressed file could not be unpacked to its end: {problem}; only the unpacked part was used"
                )
            }
            Self::Overlap { address, bytes } => {
                write!(f, "two segments claim {address}; {bytes} bytes of the second were ignored")
            }
            Self::ShortTable { table, stated, found } => {
                write!(f, "the file states {stated} {table}, and has room for {found}")
            }
            Self::NoteCut { offset } => {
                write!(
                    f,
                    "the note at byte {offset} reaches past the end of the notes; it and the following notes were not read"
                )
            }
            Self::ImpossibleSegment { number, address } => {
                write!(
                    f,
                    "segment {number} at {address} reaches past the end of the address space; it was cut there"
                )
            }
            Self::DifferentFile { path, expected, found: Some(found) } => write!(
                f,
                "{} is of a different build than the one that ran: its build id is {found}, in the image is {expected}; it was \
                 not used",
                path.display()
            ),
            Self::DifferentFile { path, expected, found: None } => write!(
                f,
                "{} is of a different build than the one that ran: it has no build id, in the image is {expected}; it was not \
                 used",
                path.display()
            ),
            Self::DifferentHeader { path } => write!(
                f,
                "{} is of a different build than the one that ran: its ELF headers are not those in the image; it was not used",
                path.display()
            ),
            Self::NotIdentified { path, bytes } => {
                let path = path.display();
                write!(
                    f,
                    "nothing in the image says which build of {path} ran: its functions are not named"
                )?;
                if *bytes > 0 {
                    write!(f, ", and {bytes} bytes of it are missing")?;
                }
                write!(f, "; --allow-mismatch takes the names of the file on disk, which may be wrong")
            }
            Self::NotFilled { path, bytes, reason } => {
                write!(f, "{bytes} bytes of {} are not in the image: {reason}", path.display())
            }
        }
    }
}
