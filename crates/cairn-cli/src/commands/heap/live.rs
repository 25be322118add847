//! The recordings of a program that runs: drained while it runs, told of on one line of a terminal, summed up at its end.

use std::fs::{self, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cairn_analysis::format::recording::control::Command;
use cairn_run::Announcement;

use super::{control, summary};
use crate::output::complain;

/// One file of it.
struct Recording {
    process: u32,
    path: PathBuf,
}

/// All of them.
pub(super) struct Recordings {
    all: Vec<Recording>,
    began: Instant,
    status: Option<Status>,
}

/// The line on the terminal.
struct Status {
    shown: Instant,
    has_text: bool,
}

impl Recordings {
    pub(super) fn new(shows_status: bool) -> Self {
        let began = Instant::now();
        let status = shows_status.then_some(Status { shown: began, has_text: false });
        Self { all: Vec::new(), began, status }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(super) fn add(&mut self, announced: Announcement) {
        let Announcement { process, path, failure } = announced;
        match failure {
            None => self.all.push(Recording { process, path }),
            Some(reason) => {
                self.clear_status();
                complain(&format_args!("process {process} is not recorded: {}: {reason}", path.display()));
            }
        }
    }

    pub(super) fn pause(&self) {
        for recording in &self.all {
            // A process that has ended needs no telling.
            let _ = control::give(&recording.path, Command::Pause);
        }
    }

    pub(super) fn tick(&mut self) {
        /// Faster than this nobody reads.
        const INTERVAL: Duration = Duration::from_millis(250);
        let Some(status) = &mut self.status else { return };
        if status.shown.elapsed() < INTERVAL {
            return;
        }
        status.shown = Instant::now();
        status.has_text = true;
        let bytes: u64 =
            self.all.iter().filter_map(|one| fs::metadata(&one.path).ok()).map(|facts| facts.len()).sum();
        let text = format!("{:.1} s, recording {}", self.began.elapsed().as_secs_f64(), size(bytes));
        let _ = write!(io::stderr(), "\r\x1b[Kcairn: {text}");
    }

    fn clear_status(&mut self) {
        if let Some(status) = &mut self.status
            && std::mem::take(&mut status.has_text)
        {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }

    /// Packs all of them, and sums them up unless `is_quiet`. A program that became another one several times has a short
    /// line for each but the last.
    pub(super) fn finish(mut self, is_quiet: bool) {
        self.clear_status();
        let count = self.all.len();
        for (index, Recording { process, path }) in self.all.iter().enumerate() {
            let outcome = pack_in_place(path).and_then(|recording| {
                if is_quiet {
                    return Ok(());
                }
                let bytes = fs::metadata(path)?.len();
                complain(&format_args!(
                    "process {process} is recorded in {} ({})",
                    path.display(),
                    size(bytes)
                ));
                // The one that it was at the end, and everything that a person can still read.
                if index + 1 == count {
                    summary::write(&mut io::stderr().lock(), &recording, path)?;
                }
                Ok(())
            });
            if let Err(error) = outcome {
                complain(&format_args!("{}: {error}; the recording is left as it is", path.display()));
            }
        }
    }
}

/// Replaces the spool at `path` by the packed recording that it makes.
fn pack_in_place(path: &Path) -> io::Result<cairn_analysis::recording::Recording> {
    use cairn_analysis::recording::{Recording, pack};
    let spool = Recording::open(path).map_err(io::Error::other)?;
    let mut fresh = path.as_os_str().to_owned();
    fresh.push(".new");
    // As the recorder makes its file: what a program does is its user's affair.
    let packed = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&fresh)
        .and_then(|file| {
            let mut out = BufWriter::new(file);
            pack(&spool, &mut out).map_err(io::Error::other)?;
            out.flush()
        })
        .and_then(|()| fs::rename(&fresh, path));
    if let Err(error) = packed {
        let _ = fs::remove_file(&fresh);
        return Err(error);
    }
    Recording::open(path).map_err(io::Error::other)
}

/// In the unit that makes it short.
pub(super) fn size(bytes: u64) -> String {
    let mut value = bytes as f64;
    for unit in ["B", "KiB", "MiB", "GiB"] {
        if value < 1024.0 {
            return if unit == "B" { format!("{bytes} B") } else { format!("{value:.1} {unit}") };
        }
        value /= 1024.0;
    }
    format!("{value:.1} TiB")
}
