//! Messages of the libraries below, on standard error.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use log::{Level, LevelFilter, Log, Metadata, Record};

use crate::commands::complain;

/// Time after which a message that is the same as the last one is shown again.
///
/// An executor whose scheduler is gone would repeat itself 20 times a second.
const REPEATED_AFTER: Duration = Duration::from_secs(30);

struct Messages {
    last: Mutex<Option<(String, Instant)>>,
}

/// Shows warnings and errors from now on, or everything of interest.
pub(super) fn show(is_verbose: bool) {
    static MESSAGES: Messages = Messages { last: Mutex::new(None) };
    if log::set_logger(&MESSAGES).is_ok() {
        log::set_max_level(if is_verbose { LevelFilter::Info } else { LevelFilter::Warn });
    }
}

impl Log for Messages {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("ballista") || metadata.level() == Level::Error
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let text = format!("{}: {}", record.level().as_str().to_lowercase(), record.args());
        let mut last = self.last.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let is_repeated =
            last.as_ref().is_some_and(|(shown, at)| *shown == text && at.elapsed() < REPEATED_AFTER);
        if !is_repeated {
            complain(&text);
            *last = Some((text, Instant::now()));
        }
    }

    fn flush(&self) {}
}
