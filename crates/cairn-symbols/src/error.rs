//! The errors of this crate.

use std::error::Error as StdError;
use std::fmt;
use std::path::PathBuf;

/// Reports a file whose symbols cannot be read.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// When the file cannot be read, or is not an executable format.
    Open {
        /// The file.
        path: PathBuf,
        /// The cause.
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
