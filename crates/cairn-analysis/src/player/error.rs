//! Why a recording cannot be played.

use std::{fmt, io};

use cairn_recording::RecordingError;

/// Why a recording cannot be played.
#[derive(Debug)]
#[non_exhaustive]
pub enum PlayError {
    /// The file cannot be read.
    Io(io::Error),
    /// A recording of cairn's cannot be read.
    Recording(RecordingError),
    /// The bytes are those of no recording that is known here.
    NoRecording {
        /// What they look like.
        problem: &'static str,
    },
    /// The recording cannot be played while it is written.
    CannotFollow {
        /// Why.
        problem: &'static str,
    },
    /// More modules are loaded than any program has.
    TooManyModules {
        /// How many.
        count: usize,
    },
}

impl fmt::Display for PlayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => error.fmt(f),
            Self::Recording(error) => error.fmt(f),
            Self::NoRecording { problem } => write!(
                f,
                "no recording: {problem}; cairn plays its own recordings (*.cairn) and those of call-stack-tracker"
            ),
            Self::CannotFollow { problem } => {
                write!(f, "cannot be followed: {problem}; play it without --follow")
            }
            Self::TooManyModules { count } => {
                write!(f, "the recording loads {count} modules, more than any program does")
            }
        }
    }
}

impl std::error::Error for PlayError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io(error) => Some(error),
            Self::Recording(error) => Some(error),
            Self::NoRecording { .. } | Self::CannotFollow { .. } | Self::TooManyModules { .. } => None,
        }
    }
}
