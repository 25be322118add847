//! What can go wrong between tools.

use std::{error, fmt, io};

use cairn_format::unpack::{Size, UnpackLimit};
use cairn_recording::RecordingError;

/// Why a file cannot be written or read.
#[derive(Debug)]
#[non_exhaustive]
pub enum ExchangeError {
    /// The output cannot be written, or the input cannot be read.
    Io {
        /// What was being done.
        action: &'static str,
        /// The system's reason.
        source: io::Error,
    },
    /// The recording that is written from cannot be read.
    Recording(RecordingError),
    /// The input contradicts its format.
    Malformed {
        /// The format, as people call it.
        format: &'static str,
        /// Where: `byte 17`, `line 3`, `threads[0].stackTable.prefix[7]`.
        place: String,
        /// What is wrong there.
        problem: String,
    },
    /// The input would take more memory than a sound one of its size, as an archive does that is made to fill the machine.
    TooLarge {
        /// The format, as people call it.
        format: &'static str,
        /// How much is kept at most of a file of this size.
        limit: UnpackLimit,
    },
    /// The input unpacks to more bytes than a sound one of its size, as an archive does that is
    /// made to keep a reader busy.
    UnpacksTooFar {
        /// The format, as people call it.
        format: &'static str,
        /// How much may come out of a file of this size.
        limit: UnpackLimit,
    },
    /// The bytes are of no format that is known here.
    Unknown,
    /// The file is sound, but has nothing of a heap.
    NoHeap {
        /// The format, as people call it.
        format: &'static str,
        /// What it counts instead.
        counts: String,
    },
    /// What was named is a pipe or a directory, and it has to be read more than once.
    NoFile,
    /// The format cannot hold what is there.
    CannotHold {
        /// The format, as people call it.
        format: &'static str,
        /// Why not, and what to do.
        reason: &'static str,
    },
}

impl ExchangeError {
    pub(crate) const fn writing(source: io::Error) -> Self {
        Self::Io { action: "writing the export", source }
    }

    pub(crate) const fn reading(source: io::Error) -> Self {
        Self::Io { action: "reading the file", source }
    }

    pub(crate) fn at_byte(format: &'static str, byte: u64, problem: impl Into<String>) -> Self {
        Self::Malformed { format, place: format!("byte {byte}"), problem: problem.into() }
    }

    pub(crate) fn at_line(format: &'static str, line: u64, problem: impl Into<String>) -> Self {
        Self::Malformed { format, place: format!("line {line}"), problem: problem.into() }
    }
}

impl fmt::Display for ExchangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io { action, source } => write!(f, "{action}: {source}"),
            Self::Recording(error) => error.fmt(f),
            Self::Malformed { format, place, problem } => {
                write!(f, "no sound {format} file: {place}: {problem}")
            }
            Self::TooLarge { format, limit } => write!(
                f,
                "the {format} file would take more than {} of memory, which no sound one of its size ({}) does; \
                 raise the limit with --max-unpacked SIZE",
                Size(limit.limit_bytes),
                Size(limit.packed_bytes)
            ),
            Self::UnpacksTooFar { format, limit } => write!(f, "the {format} file {limit}"),
            Self::Unknown => write!(
                f,
                "of no format that is known here: there are cairn's recordings, heaptrack's files (version 3), pprof's profiles, processed \
                 profiles of the Firefox Profiler and recordings of call-stack-tracker"
            ),
            Self::NoHeap { format, counts } => {
                write!(f, "a {format} file that is of no heap: what it counts is {counts}")
            }
            Self::NoFile => {
                f.write_str("no file: it is read several times; write what comes from a pipe to a file first")
            }
            Self::CannotHold { format, reason } => write!(f, "{format} cannot hold this: {reason}"),
        }
    }
}

impl error::Error for ExchangeError {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            Self::Recording(error) => Some(error),
            _ => None,
        }
    }
}

impl From<RecordingError> for ExchangeError {
    fn from(error: RecordingError) -> Self {
        Self::Recording(error)
    }
}
