//! Why a recording cannot be played.

use std::fmt;

/// Why a recording cannot be played.
#[derive(Debug)]
#[non_exhaustive]
pub enum PlayError {
    /// The bytes are those of no recording that is known here.
    NoRecording {
        /// What they look like.
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
            Self::NoRecording { problem } => write!(
                f,
                "no recording: {problem}; cairn plays its own recordings (*.cairn) and those of call-stack-tracker"
            ),
            Self::TooManyModules { count } => {
                write!(f, "the recording loads {count} modules, more than any program does")
            }
        }
    }
}

impl std::error::Error for PlayError {}
