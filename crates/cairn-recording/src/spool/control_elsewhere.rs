//! Refuses commands to programs, which are recorded on Linux.

use std::io;
use std::path::Path;

use cairn_format::recording::control;

use crate::error::RecordingError;

/// Marks a moment in the recording of a running program; on Linux only.
///
/// # Errors
///
/// [`RecordingError::Io`], always.
pub fn mark_from_outside(spool: &Path, _text: &[u8]) -> Result<(), RecordingError> {
    let action = format!("marking a moment in {}", spool.display());
    Err(RecordingError::Io { action, source: unsupported() })
}

/// Tells a running program to record or not to; on Linux only.
///
/// # Errors
///
/// [`Unsupported`](io::ErrorKind::Unsupported), always.
pub fn command_from_outside(path: &Path, _command: control::Command) -> io::Result<()> {
    Err(io::Error::new(io::ErrorKind::Unsupported, format!("{}: {}", path.display(), unsupported())))
}

fn unsupported() -> io::Error {
    io::Error::new(
        io::ErrorKind::Unsupported,
        "programs are controlled on Linux only, where they are recorded",
    )
}
