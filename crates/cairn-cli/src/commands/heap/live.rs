//! The recordings of a program that runs: drained while it runs, told of on one line of a terminal, summed up at its end.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use cairn_analysis::format::recording::control::Command;
use cairn_analysis::recording::{self, Drain, Status};
use cairn_run::Announcement;

use super::{control, summary};
use crate::output::complain;

/// One file of it.
struct Recording {
    process: u32,
    path: PathBuf,
    /// What is drained into; it takes the place of the file at the end.
    fresh: PathBuf,
    drain: Option<Drain>,
    status: Option<Status>,
    /// It has grown to its limit.
    is_full: bool,
}

impl Recording {
    fn new(process: u32, path: PathBuf) -> Self {
        let mut fresh = path.clone().into_os_string();
        fresh.push(".new");
        let fresh = PathBuf::from(fresh);
        // Where it cannot be drained, it grows, and is packed at the end.
        let drain = Drain::open(&path, &fresh).ok();
        Self { process, path, fresh, drain, status: None, is_full: false }
    }

    /// Reads what is new; with `limit_bytes`, no more than about so much is kept.
    fn step(&mut self, limit_bytes: u64) {
        let Some(drain) = &mut self.drain else { return };
        match drain.step() {
            Ok(status) => {
                self.status = Some(status);
                if status.packed_bytes >= limit_bytes && !self.is_full {
                    self.is_full = true;
                    drain.command(Command::Pause);
                    complain(&format_args!(
                        "{}: as large as it may be; recording ends here",
                        self.path.display()
                    ));
                }
            }
            Err(error) => {
                self.drain = None;
                complain(&format_args!(
                    "{error}; what was recorded until now is in {}, what follows in {}",
                    self.fresh.display(),
                    self.path.display()
                ));
            }
        }
    }

    fn pause(&self) {
        match &self.drain {
            Some(drain) => drain.command(Command::Pause),
            // A process that has ended needs no telling.
            None => drop(control::give(&self.path, Command::Pause)),
        }
    }

    /// Makes the packed recording, in the place of the spool.
    fn finish(&mut self) -> io::Result<recording::Recording> {
        match self.drain.take() {
            Some(drain) => {
                drain.finish().map_err(io::Error::other)?;
            }
            None if self.status.is_none() => self.pack()?,
            None => return Err(io::Error::other("it could not be drained to its end")),
        }
        // As the recorder makes its file: what a program does is its user's affair.
        fs::set_permissions(&self.fresh, fs::Permissions::from_mode(0o600))?;
        fs::rename(&self.fresh, &self.path)?;
        recording::Recording::open(&self.path).map_err(io::Error::other)
    }

    fn pack(&self) -> io::Result<()> {
        let spool = recording::Recording::open(&self.path).map_err(io::Error::other)?;
        let mut out = BufWriter::new(File::create_new(&self.fresh)?);
        let packed = recording::pack(&spool, &mut out).map_err(io::Error::other).and_then(|_| out.flush());
        if packed.is_err() {
            let _ = fs::remove_file(&self.fresh);
        }
        packed
    }
}

/// All of them.
pub(super) struct Recordings {
    all: Vec<Recording>,
    began: Instant,
    line: Option<Line>,
    limit_bytes: u64,
}

/// The line on the terminal.
struct Line {
    shown: Instant,
    allocations: u64,
    has_text: bool,
}

impl Recordings {
    pub(super) fn new(shows_status: bool, limit_bytes: u64) -> Self {
        let began = Instant::now();
        let line = shows_status.then_some(Line { shown: began, allocations: 0, has_text: false });
        Self { all: Vec::new(), began, line, limit_bytes }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(super) fn add(&mut self, announced: Announcement) {
        let Announcement { process, path, failure } = announced;
        match failure {
            None => self.all.push(Recording::new(process, path)),
            Some(reason) => {
                self.clear_line();
                complain(&format_args!("process {process} is not recorded: {}: {reason}", path.display()));
            }
        }
    }

    pub(super) fn pause(&self) {
        self.all.iter().for_each(Recording::pause);
    }

    pub(super) fn tick(&mut self) {
        let limit_bytes = self.limit_bytes;
        self.all.iter_mut().for_each(|one| one.step(limit_bytes));
        /// Faster than this nobody reads.
        const INTERVAL: Duration = Duration::from_millis(250);
        let Some(line) = &mut self.line else { return };
        let elapsed = line.shown.elapsed();
        if elapsed < INTERVAL {
            return;
        }
        let statuses = || self.all.iter().filter_map(|one| one.status);
        let live: u64 = statuses().map(|status| status.live_bytes).sum();
        let allocations: u64 = statuses().map(|status| status.allocations).sum();
        let recorded: u64 = statuses().map(|status| status.packed_bytes).sum();
        let rate = allocations.saturating_sub(line.allocations) as f64 / elapsed.as_secs_f64();
        let _ = write!(
            io::stderr(),
            "\r\x1b[Kcairn: {:.1} s, {} live, {rate:.0} allocations/s, recording {}",
            self.began.elapsed().as_secs_f64(),
            size(live),
            size(recorded)
        );
        *line = Line { shown: Instant::now(), allocations, has_text: true };
    }

    fn clear_line(&mut self) {
        if let Some(line) = &mut self.line
            && std::mem::take(&mut line.has_text)
        {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }

    /// Closes all of them, and sums them up unless `is_quiet`. A program that became another one several times has a short
    /// line for each but the last.
    pub(super) fn finish(mut self, is_quiet: bool) {
        self.clear_line();
        let count = self.all.len();
        for (index, one) in self.all.iter_mut().enumerate() {
            let outcome = one.finish().and_then(|recording| {
                if is_quiet {
                    return Ok(());
                }
                let (process, path) = (one.process, &one.path);
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
                complain(&format_args!("{}: {error}; the recording is left as it is", one.path.display()));
            }
        }
    }
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
