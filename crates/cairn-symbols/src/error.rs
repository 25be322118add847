//! Why a file's symbols could not be had.

use std::error::Error as StdError;
use std::fmt;
use std::path::PathBuf;

/// Why symbols could not be had.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The file could not be read, or is no executable format.
    Open {
        /// The file.
        path: PathBuf,
        /// What failed.
        source: Box<dyn StdError + Send + Sync>,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open { path, source } => write!(f, "{}: cannot read symbols: {source}", path.display()),
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Open { source, .. } => Some(&**source),
        }
    }
}
