//! The recordings of a running program: drained while it runs, shown on a status line, summarized
//! at its end.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cairn_files::Directory;
use cairn_format::recording::control::{Command, EarlyEnd};
use cairn_recording::{Drain, EndReason, Finding, Status, command_from_outside};
use cairn_run::{Announcement, End, Numbering, Program, terminal_takes_lines};

use super::chain::{Chain, Closed};
use super::holder::{self, Holder};
use super::own_share::OwnShare;
use super::summary;
use crate::commands::heap_text::{bytes, count, counted};
use crate::commands::unseen::hidden_by;
use crate::output::complain;

/// One recording.
struct Recording {
    process: u32,
    path: PathBuf,
    /// The PID in this namespace, once it is known, and the start time: PIDs are reused.
    seen_as: Option<(u32, u64)>,
    own_share: OwnShare,
    /// The packed file that is drained into; it replaces the spool at the end.
    fresh: PathBuf,
    /// The directory of both. Opened once: another user may own a directory above and could replace
    /// it.
    directory: io::Result<Directory>,
    drain: Option<Drain>,
    status: Option<Status>,
    /// It has reached its size limit.
    is_full: bool,
    /// The process has ended or become another program: the spool is complete.
    is_over: bool,
    /// How it ended, if that is visible from outside.
    end: Option<EndReason>,
    /// The result of packing, once that is done.
    packed: Option<io::Result<()>>,
    /// The packed recording, once that is done.
    packed_file: Option<File>,
    /// The program called `exec` before it was gone.
    became_other: bool,
}

impl Recording {
    fn new(process: u32, path: PathBuf) -> Self {
        let mut fresh = path.clone().into_os_string();
        fresh.push(".new");
        let fresh = PathBuf::from(fresh);
        // If it cannot be drained, it grows, and is packed at the end.
        let directory = Directory::of(&path).map(|(directory, _)| directory);
        let names = path.file_name().zip(fresh.file_name());
        let drain = directory
            .as_ref()
            .ok()
            .zip(names)
            .and_then(|(directory, (spool, packed))| Drain::open_in(directory, spool, packed).ok());
        Self {
            process,
            path,
            seen_as: None,
            own_share: OwnShare::default(),
            fresh,
            directory,
            drain,
            status: None,
            is_full: false,
            is_over: false,
            end: None,
            packed: None,
            packed_file: None,
            became_other: false,
        }
    }

    /// Drains new events. Recording ends at about `limit_bytes`.
    fn step(&mut self, limit_bytes: u64) {
        let Some(drain) = &mut self.drain else { return };
        match drain.step() {
            Ok(status) => {
                self.status = Some(status);
                if status.packed_bytes >= limit_bytes && !self.is_full {
                    self.is_full = true;
                    drain.end_early(EarlyEnd::MaxSize);
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

    /// Ends it because its time is over.
    fn pause(&self) {
        match &self.drain {
            Some(drain) => drain.end_early(EarlyEnd::TimeOver),
            // Fails for a process that has ended, which is no error.
            None => drop(command_from_outside(&self.path, Command::Pause)),
        }
    }

    /// Records the memory usage of the process, and whether it has ended.
    fn sample(&mut self) {
        if self.is_over || self.packed.is_some() {
            return;
        }
        if self.seen_as.is_none() {
            match holder::find(self.process, &self.path) {
                Holder::Process(process) => {
                    let started = Usage::of(process).map_or(0, |usage| usage.started);
                    self.seen_as = Some((process, started));
                    if let Some(drain) = &mut self.drain {
                        drain.set_process(process);
                    }
                }
                Holder::Unsure => return,
                Holder::Nobody => {
                    (self.is_over, self.end) = (true, Some(EndReason::Gone));
                    return;
                }
            }
        }
        let Some((process, started)) = self.seen_as else { return };
        match Usage::of(process).filter(|usage| usage.started == started) {
            Some(usage) => {
                if let Some(drain) = &mut self.drain
                    && usage.has_memory
                {
                    let own_bytes = self.own_share.bytes(process, drain);
                    drain.usage(usage.resident_bytes, own_bytes, usage.page_faults, usage.threads);
                }
            }
            None => self.is_over = true,
        }
        if self.is_over {
            self.end = Some(EndReason::Gone);
        }
    }

    /// True while a process writes to it.
    fn is_open(&self) -> bool {
        self.packed.is_none() && !self.is_over && self.seen_as.is_some()
    }

    /// Packs the recording in place of the spool, once.
    ///
    /// `reason` is how the program ended, if that is known.
    fn finish(&mut self, reason: Option<EndReason>) -> io::Result<()> {
        let packed = self.packed.take().unwrap_or_else(|| self.pack_now(reason));
        self.packed = Some(Ok(()));
        packed
    }

    fn pack_now(&mut self, reason: Option<EndReason>) -> io::Result<()> {
        let file = match self.drain.take() {
            Some(mut drain) => {
                let file = drain.packed_file()?;
                self.became_other = drain.is_in_exec();
                if let Some(reason) = reason {
                    drain.ended(reason);
                }
                let (_, findings) = drain.finish().map_err(io::Error::other)?;
                // Reports show the others: the recording contains them.
                for finding in findings.iter().filter(|finding| !matches!(finding, Finding::Lost { .. })) {
                    complain(&format_args!("{}: {finding}", self.path.display()));
                }
                file
            }
            None if self.status.is_none() => self.pack()?,
            None => return Err(io::Error::other("it could not be drained to its end")),
        };
        let (directory, fresh, name) = self.place()?;
        if !directory.is(fresh, &file) {
            let text = format!("{} was replaced by another file", self.fresh.display());
            return Err(io::Error::other(text));
        }
        directory.rename(fresh, name)?;
        self.packed_file = Some(file);
        Ok(())
    }

    fn pack(&self) -> io::Result<File> {
        let spool = cairn_recording::Recording::open(&self.path).map_err(io::Error::other)?;
        let (directory, fresh, _) = self.place()?;
        let file = directory.create_new(fresh)?;
        let mut out = BufWriter::new(&file);
        let packed =
            cairn_recording::pack(&spool, &mut out).map_err(io::Error::other).and_then(|_| out.flush());
        drop(out);
        if packed.is_err() {
            let _ = directory.remove(fresh);
        }
        packed.map(|()| file)
    }

    /// Says why packing has failed, and where the recording is.
    fn complain_of(&self, error: &io::Error) {
        let name = self.path.display();
        if self.path.exists() {
            complain(&format_args!("{name}: {error}; the recording is left as the program wrote it"));
        } else if self.fresh.exists() {
            complain(&format_args!(
                "{name}: {error}; what was recorded until then is in {}",
                self.fresh.display()
            ));
        } else {
            complain(&format_args!(
                "{name}: the recording was deleted or moved while the program ran; nothing of it is left here"
            ));
        }
    }

    /// Returns the directory, and the names of the packed file and of the spool in it.
    fn place(&self) -> io::Result<(&Directory, &OsStr, &OsStr)> {
        let directory =
            self.directory.as_ref().map_err(|error| io::Error::new(error.kind(), error.to_string()))?;
        let names = self.fresh.file_name().zip(self.path.file_name());
        let (fresh, name) = names.ok_or(io::ErrorKind::InvalidInput)?;
        Ok((directory, fresh, name))
    }
}

/// CPU time after which a program is considered loaded, in ticks; one second.
///
/// Nearly all programs need less.
const TICKS_OF_A_START: u64 = 100;

/// True if a process is past its start, where it opens its recording. That may take seconds on a
/// busy machine.
pub(super) fn has_run(process: u32) -> bool {
    Usage::of(process).is_some_and(|usage| usage.has_run)
}

/// The resource usage of a process, from the kernel.
pub(super) struct Usage {
    resident_bytes: u64,
    page_faults: u64,
    threads: u32,
    /// Start time, in ticks.
    pub(super) started: u64,
    /// False for a process, or a main thread, that has released its memory and is about to end.
    pub(super) has_memory: bool,
    /// It waits, or has used the processor for a while: its start is over.
    has_run: bool,
}

impl Usage {
    /// Reads the usage; nothing when the process has ended.
    pub(super) fn of(process: u32) -> Option<Self> {
        let text = fs::read(format!("/proc/{process}/stat")).ok()?;
        Self::parse(&String::from_utf8_lossy(&text))
    }

    fn parse(text: &str) -> Option<Self> {
        // The name in parentheses may contain anything. The state, the third field, follows it.
        let words: Vec<&str> = text.get(text.rfind(')')? + 1..)?.split_ascii_whitespace().collect();
        let number = |place: usize| words.get(place - 3)?.parse::<u64>().ok();
        let threads = number(20)? as u32;
        // The main thread may have ended before the others.
        if matches!(*words.first()?, "Z" | "X") && threads <= 1 {
            return None;
        }
        Some(Self {
            resident_bytes: number(24)?.saturating_mul(cairn_run::page_bytes()),
            page_faults: number(10)? + number(12)?,
            threads,
            started: number(22)?,
            has_memory: number(23)? > 0,
            has_run: matches!(*words.first()?, "S" | "T") || number(14)? + number(15)? >= TICKS_OF_A_START,
        })
    }
}

/// All recordings of a command.
pub(super) struct Recordings {
    all: Vec<Recording>,
    began: Instant,
    line: Option<StatusLine>,
    limit_bytes: u64,
    sampled: Instant,
    /// When the last recording began.
    newest: Instant,
    /// The process that the command started.
    started: Option<u32>,
    /// The executable it last ran, since its last recording began.
    runs: Option<PathBuf>,
    /// Recording is paused, for new recordings as well.
    is_paused: bool,
    /// Processes that announced that they cannot be recorded.
    unrecorded: Vec<u32>,
    /// The programs that the one process was before; `None` if several processes are recorded.
    chain: Option<Chain>,
    /// When the first program began that was not dropped.
    recorded_since: Option<Instant>,
}

/// The status line on the terminal.
struct StatusLine {
    shown: Instant,
    allocations: u64,
    has_text: bool,
}

impl Recordings {
    /// `started` is the process of a program that is started to be recorded.
    pub(super) fn new(started: Option<u32>, shows_status: bool, limit_bytes: u64) -> Self {
        let began = Instant::now();
        let line = shows_status.then_some(StatusLine { shown: began, allocations: 0, has_text: false });
        Self {
            all: Vec::new(),
            began,
            line,
            limit_bytes,
            sampled: began,
            newest: began,
            started,
            runs: None,
            is_paused: false,
            unrecorded: Vec::new(),
            chain: None,
            recorded_since: None,
        }
    }

    /// Gives the name of the first recording to that of the last program of the process.
    ///
    /// With `replaces`, that replaces a file of this name.
    pub(super) fn following_exec(mut self, replaces: bool) -> Self {
        self.chain = Some(Chain::new(replaces));
        self
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(super) fn add(&mut self, announced: Announcement) {
        let Announcement { process, path, numbering, failure } = announced;
        match failure {
            None => {
                // Its earlier executables were announced, or have ended.
                if self.started == Some(process) {
                    self.runs = None;
                }
                let path = self.follow_exec(process, path, numbering);
                self.recorded_since.get_or_insert_with(Instant::now);
                // It has become another program by `exec`.
                for one in self.all.iter_mut().filter(|one| one.process == process && !one.is_over) {
                    (one.is_over, one.end) = (true, Some(EndReason::Exec));
                }
                self.newest = Instant::now();
                self.all.push(Recording::new(process, path));
                if let Some(one) = self.all.last_mut() {
                    if self.is_paused {
                        one.pause();
                    }
                    one.step(self.limit_bytes);
                    one.sample();
                }
            }
            Some(reason) => {
                self.unrecorded.push(process);
                self.clear_line();
                complain(&format_args!("process {process} is not recorded: {}: {reason}", path.display()));
            }
        }
    }

    /// Closes the recording of the program that the process was before.
    ///
    /// Returns where the recording of the present program is then.
    fn follow_exec(&mut self, process: u32, path: PathBuf, numbering: Numbering) -> PathBuf {
        self.clear_line();
        let Some(chain) = &mut self.chain else { return path };
        // There is one open recording, that of the present program.
        if let Some(mut one) = self.all.pop_if(|one| one.process == process) {
            let finished = one.finish(Some(EndReason::Exec));
            match (finished, &one.packed_file, &one.directory) {
                (Ok(()), Some(file), Ok(directory)) => {
                    chain.leave(&Closed { file, path: &one.path, directory }, &path, numbering);
                }
                (finished, ..) => {
                    if let Err(error) = finished {
                        one.complain_of(&error);
                    }
                    chain.leave_broken(&one.path);
                }
            }
            // Shims do not count, also where they took all of the time.
            if chain.has_only_dropped() {
                self.recorded_since = None;
                self.is_paused = false;
            }
        }
        chain.place(process, path, numbering)
    }

    /// True if all recordings have ended.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn has_ended(&self) -> bool {
        use cairn_format::recording::control::State;
        let has_ended = |one: &Recording| one.status.is_some_and(|status| status.state == State::Ended);
        !self.all.is_empty() && self.all.iter().all(has_ended)
    }

    /// Counts the recorded children that still run.
    pub(super) fn open_children(&self) -> usize {
        let first = self.all.first().map(|one| one.process);
        self.all.iter().filter(|one| Some(one.process) != first && one.is_open()).count()
    }

    /// True if one of these processes has not announced the recording of its current executable.
    pub(super) fn awaits_any_of(&self, mut processes: impl Iterator<Item = u32>) -> bool {
        let is_open = |one: &Recording| one.packed.is_none() && !one.is_over && one.seen_as.is_some();
        let open = |process| self.all.iter().any(|one| one.process == process && is_open(one));
        // A process that became another program before it was examined will announce its next
        // recording.
        let is_in_exec = |one: &Recording| {
            one.packed.is_none() && !one.is_over && one.seen_as.is_none() && Usage::of(one.process).is_some()
        };
        processes.any(|process| !open(process) && !self.unrecorded.contains(&process))
            || self.all.iter().any(is_in_exec)
    }

    /// Prints a message below the status line.
    pub(super) fn say(&mut self, what: &dyn std::fmt::Display) {
        self.clear_line();
        complain(&format_args!("{what}"));
    }

    /// Returns the bytes that the last tick has read.
    pub(super) fn read_bytes(&self) -> u64 {
        let open = self.all.iter().filter(|one| one.packed.is_none());
        open.filter_map(|one| one.status).map(|status| status.read_bytes).sum()
    }

    /// Returns for how long the first program of note is recorded; programs that were dropped do
    /// not count.
    pub(super) fn recorded_for(&self) -> Option<Duration> {
        self.recorded_since.map(|since| since.elapsed())
    }

    /// True once all recordings are paused.
    pub(super) fn is_paused(&self) -> bool {
        self.is_paused
    }

    /// Pauses all recordings, and new ones as they come.
    pub(super) fn pause(&mut self) {
        self.is_paused = true;
        self.all.iter().filter(|one| !one.is_over && one.packed.is_none()).for_each(Recording::pause);
    }

    pub(super) fn tick(&mut self) {
        let limit_bytes = self.limit_bytes;
        /// Resolution of memory over time.
        const SAMPLE_INTERVAL: Duration = Duration::from_millis(100);
        // Programs that live for less have a few samples all the same.
        let is_sampled = self.sampled.elapsed() >= (self.newest.elapsed() / 4).min(SAMPLE_INTERVAL);
        if is_sampled {
            self.sampled = Instant::now();
        }
        let first = self.all.first().map(|one| one.process);
        // On each tick: a program that replaces a shell may end within a moment.
        if let Some(process) = self.started
            && let Ok(path) = fs::read_link(format!("/proc/{process}/exe"))
        {
            self.runs = Some(path);
        }
        for one in self.all.iter_mut().filter(|one| one.packed.is_none()) {
            one.step(limit_bytes);
            if is_sampled {
                one.sample();
            }
            // Ended children are closed, which saves descriptors. `finish` reports how the first
            // process ends.
            if one.is_over && Some(one.process) != first {
                one.packed = Some(one.pack_now(one.end));
                one.packed_file = None;
            }
        }
        /// Interval of the status line; people do not read faster.
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
        // A full-screen program owns the terminal now.
        let has_text = terminal_takes_lines();
        if has_text {
            let _ = write!(
                io::stderr(),
                "\r\x1b[Kcairn: {:.1} s, {} live, {rate:.0} allocations/s, recording {}",
                self.began.elapsed().as_secs_f64(),
                bytes(live),
                bytes(recorded)
            );
        }
        *line = StatusLine { shown: Instant::now(), allocations, has_text };
    }

    fn clear_line(&mut self) {
        if let Some(line) = &mut self.line
            && std::mem::take(&mut line.has_text)
        {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }

    /// Closes all recordings and prints the summary of the last program, unless `is_quiet`.
    /// Programs that it replaced by `exec` share one line, and children another one.
    pub(super) fn finish(mut self, end: End, is_quiet: bool) {
        self.clear_line();
        let first = self.all.first().map(|one| one.process);
        let last = self.all.iter().rposition(|one| Some(one.process) == first);
        let mut before = Vec::new();
        let mut main = None;
        for (index, one) in self.all.iter_mut().enumerate() {
            if Some(one.process) != first {
                // It may have ended since the last sample; its exit status is unknown here.
                one.sample();
            }
            let reason = match end {
                _ if Some(one.process) != first => one.end,
                _ if Some(index) != last => Some(EndReason::Exec),
                End::Status(_) => Some(EndReason::Exit),
                End::Signal(_) => None,
            };
            match one.finish(reason) {
                Ok(()) if Some(index) == last => {
                    if let (Some(chain), Ok(directory)) = (&mut self.chain, &one.directory) {
                        one.path = chain.claim(directory, &one.path);
                    }
                    main = Some((one.process, one.path.clone(), one.packed_file.take()));
                }
                Ok(()) if Some(one.process) == first => before.push(one.path.clone()),
                Ok(()) => {}
                Err(error) => {
                    one.complain_of(&error);
                    if Some(index) == last && one.path.exists() {
                        let spool = one.directory.as_ref().ok().zip(one.path.file_name());
                        let spool = spool.and_then(|(directory, name)| directory.read(name).ok());
                        main = Some((one.process, one.path.clone(), spool));
                    }
                }
            }
        }
        let became_other = last.and_then(|last| self.all.get(last)).is_some_and(|one| one.became_other);
        if is_quiet {
            return;
        }
        self.complain_of_lost_children(first);
        if !before.is_empty() {
            let programs = counted(before.len() as u64, "other program");
            complain(&format_args!("before, it was {programs}: {}", few(&before)));
        }
        if let Some(text) = self.chain.as_ref().and_then(Chain::text) {
            complain(&text);
        }
        let Some((process, path, Some(file))) = main else { return };
        let length = file.metadata().map_or(0, |data| data.len());
        complain(&format_args!("process {process} is recorded in {} ({})", path.display(), bytes(length)));
        // By its descriptor: the name may lead to another file by now, and sums are added to this
        // file.
        let opened = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        let outcome =
            cairn_recording::Recording::open(&opened).map_err(io::Error::other).and_then(|recording| {
                const UNRECORDED: &str = "it then became another program, which is not recorded";
                let runs = self.runs.as_deref().filter(|_| self.started == Some(process));
                if let Some(path) = runs.and_then(|path| replacement(&recording, path)) {
                    let why = Program::find(path.as_os_str()).ok().as_ref().and_then(hidden_by);
                    let why = why.map_or_else(|| path.display().to_string(), |obstacle| obstacle.to_string());
                    complain(&format_args!("{UNRECORDED}: {why}"));
                } else if became_other {
                    // It was too short to be seen, or another user's.
                    complain(&UNRECORDED);
                }
                summary::write(&mut crate::output::stderr(), recording, &path)
            });
        if let Err(error) = outcome
            && error.kind() != io::ErrorKind::BrokenPipe
        {
            complain(&format_args!("{}: {error}", path.display()));
        }
    }
}

impl Recordings {
    /// Names the children that became another program by `exec`, which has no recording.
    fn complain_of_lost_children(&self, first: Option<u32>) {
        let is_last = |index: usize, process: u32| {
            !self.all.iter().skip(index + 1).any(|later| later.process == process)
        };
        let lost: Vec<PathBuf> = self
            .all
            .iter()
            .enumerate()
            .filter(|(index, one)| {
                one.became_other && Some(one.process) != first && is_last(*index, one.process)
            })
            .map(|(_, one)| one.path.clone())
            .collect();
        if !lost.is_empty() {
            let children = if lost.len() == 1 { "child" } else { "children" };
            complain(&format_args!(
                "{} {children} became another program, which is not recorded: another user's, statically linked, or without LD_PRELOAD; before that: {}",
                count(lost.len() as u64),
                few(&lost)
            ));
        }
    }
}

/// Returns the executable `ran` if it is not the program of the last recording.
///
/// It replaced that program by `exec` and has no recording.
fn replacement(recording: &cairn_recording::Recording, ran: &Path) -> Option<PathBuf> {
    const DELETED: &[u8] = b" (deleted)";
    let name = |bytes: &'_ [u8]| bytes.strip_suffix(DELETED).unwrap_or(bytes).to_vec();
    let recorded = recording.fact("executable").filter(|path| !path.is_empty())?;
    let ran = name(ran.as_os_str().as_bytes());
    (ran != name(recorded)).then(|| OsString::from_vec(ran).into())
}

/// Lists the first names and the number of the others.
pub(super) fn few(paths: &[PathBuf]) -> String {
    const SHOWN: usize = 3;
    let names = paths.iter().take(SHOWN).map(|path| {
        path.file_name()
            .map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned())
    });
    let mut text = names.collect::<Vec<_>>().join(", ");
    if paths.len() > SHOWN {
        text.push_str(&format!(" and {} more", paths.len() - SHOWN));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(state: &str, threads: u32, memory: &str) -> Option<Usage> {
        Usage::parse(&format!(
            "12 (a) b) (c) {state} 1 1 1 0 -1 0 100 0 7 0 60 39 0 0 20 0 {threads} 0 4711 {memory} 18 1 1"
        ))
    }

    #[test]
    fn usage_is_known_until_the_process_begins_to_end() {
        let usage = stat("S", 3, "8192000 20").unwrap();
        assert_eq!((usage.threads, usage.started, usage.page_faults), (3, 4711, 107));
        assert_eq!((usage.resident_bytes, usage.has_memory), (20 * cairn_run::page_bytes(), true));
        // A process that is ready to run may still be loading.
        assert!(usage.has_run && stat("R", 1, "8192000 20").is_some_and(|usage| !usage.has_run));
        // A process that is ending has no memory for a moment, and so has a main thread that ended
        // before the others.
        assert!(stat("R", 1, "0 0").is_some_and(|usage| !usage.has_memory));
        assert!(stat("Z", 2, "0 0").is_some_and(|usage| !usage.has_memory));
        assert!(stat("Z", 1, "0 0").is_none());
    }
}
