//! Replaces the signals that end `cairn top`. A console sends Ctrl-C as a key, and ends the process
//! when it is closed.

use std::io;

/// No signals.
pub(super) struct Signals;

impl Signals {
    #[allow(clippy::unnecessary_wraps, reason = "the signature of other systems")]
    pub(super) fn watch() -> io::Result<Self> {
        Ok(Self)
    }

    /// The exit status for the signal that came: none does.
    #[allow(clippy::unused_self, reason = "the signature of other systems")]
    pub(super) fn status(&self) -> Option<u8> {
        None
    }
}
