//! The signals that end `cairn top`, and a terminal that goes away.

use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::terminal::restore;

/// Notes signals that end the command, for the loop that checks them.
pub(super) struct Signals(Arc<AtomicUsize>);

impl Signals {
    pub(super) fn watch() -> io::Result<Self> {
        let last = Arc::new(AtomicUsize::new(0));
        for signal in [SIGTERM, SIGINT, SIGHUP] {
            signal_hook::flag::register_usize(signal, Arc::clone(&last), signal as usize)?;
        }
        let signals = Self(last);
        let watched = Self(Arc::clone(&signals.0));
        std::thread::spawn(move || watched.insist());
        Ok(signals)
    }

    /// Ends the command if the loop does not.
    ///
    /// A read from a terminal that is gone may block for ever.
    fn insist(&self) {
        const PATIENCE: Duration = Duration::from_secs(1);
        loop {
            std::thread::sleep(PATIENCE);
            // A terminal that was closed takes no output any more.
            let is_gone = !io::stdin().is_terminal();
            if is_gone || self.status().is_some() {
                std::thread::sleep(PATIENCE);
                restore();
                std::process::exit(self.status().unwrap_or(128 + SIGHUP as u8).into());
            }
        }
    }

    /// The exit status for the signal that came, if one did.
    pub(super) fn status(&self) -> Option<u8> {
        match self.0.load(Ordering::Relaxed) {
            0 => None,
            signal => Some(128 + signal as u8),
        }
    }
}
