//! The errors of the player.

use std::{fmt, io};

use cairn_recording::RecordingError;

/// The reason why a recording cannot be played.
#[derive(Debug)]
#[non_exhaustive]
pub enum PlayError {
    /// When the file cannot be read.
    Io(io::Error),
    /// When a cairn recording cannot be read.
    Recording(RecordingError),
    /// When the bytes are not those of a known recording.
    NoRecording {
        /// The kind that the bytes resemble.
        problem: &'static str,
    },
    /// When the recording cannot be followed while it is written.
    CannotFollow {
        /// The reason.
        problem: &'static str,
    },
    /// When a recording loads more modules than any program does.
    TooManyModules {
        /// The number of loads.
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
                "not a recording: {problem}; cairn plays its own recordings (*.cairn) and those of call-stack-tracker"
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
