//! The errors of this crate.

use std::{error, fmt, io};

use cairn_format::unpack::{Size, UnpackLimit};
use cairn_recording::RecordingError;

/// The reason why a file cannot be written or read.
#[derive(Debug)]
#[non_exhaustive]
pub enum ExchangeError {
    /// When the output cannot be written, or the input cannot be read.
    Io {
        /// The failed operation.
        action: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// When the recording to export cannot be read.
    Recording(RecordingError),
    /// When the input violates its format.
    Malformed {
        /// The name of the format.
        format: &'static str,
        /// The position: `byte 17`, `line 3`, `threads[0].stackTable.prefix[7]`.
        place: String,
        /// The violation.
        problem: String,
    },
    /// When the input would take more memory than a valid file of its size, as a decompression bomb
    /// does.
    TooLarge {
        /// The name of the format.
        format: &'static str,
        /// The maximum memory for a file of this size.
        limit: UnpackLimit,
    },
    /// When the input unpacks to more bytes than a valid file of its size, as a decompression bomb
    /// does.
    UnpacksTooFar {
        /// The name of the format.
        format: &'static str,
        /// The maximum unpacked bytes for a file of this size.
        limit: UnpackLimit,
    },
    /// When the bytes are of an unknown format.
    Unknown,
    /// When the file is valid, but has no heap data.
    NoHeap {
        /// The name of the format.
        format: &'static str,
        /// The data that it has instead.
        counts: String,
    },
    /// When the input is a pipe or a directory, but must be read more than once.
    NoFile,
    /// When the format cannot represent the data.
    CannotHold {
        /// The name of the format.
        format: &'static str,
        /// The reason, and an alternative.
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
                write!(f, "invalid {format} file: {place}: {problem}")
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
                write!(f, "a {format} file without heap data; it has {counts}")
            }
            Self::NoFile => {
                f.write_str("not a regular file, but it is read several times; write the output of a pipe to a file first")
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
