//! Drains the spool of a running program into a packed recording.
//!
//! ```text
//!   program ── records ──> segment ── committed bytes ──> lane's pieces ── merged, paired ──> chunks ──> packed file
//!      ^                                                                                          |
//!      +──────────── free ring <──────── the segment, once what it held is in the file <──────────+
//! ```
//!
//! One thread calls [`Drain::step`] about once a millisecond, or a little less often while little
//! comes. The program sees the steps as the tick: it stamps its next events, so that the order of
//! events is known to about a step. Events of the last step wait for the next one, in which all
//! that was stamped before is there.
//!
//! A segment is given back when the packed file has what it held. So when this process is killed,
//! the packed file and the spool together still have everything; when the program is, nothing is
//! lost at all.

mod clock;
mod code_files;

pub use code_files::code_files_of;
mod output;
mod ring;

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::fs::File;
use std::io::BufWriter;
use std::path::Path;
use std::time::Duration;

use cairn_files::Directory;
use cairn_format::recording::control::EarlyEnd;
use cairn_format::recording::{EndReason, FileHeader, LossKind, SEGMENT_BYTES, Shape, control};

use self::clock::DrainClock;
use self::code_files::CodeFiles;
use self::output::{MergedRecords, Output};
use self::ring::SegmentRing;
use crate::clock::TimeScale;
use crate::error::{EndedEarly, Finding, RecordingError};
use crate::mapped_file::{SharedFile, hold, read_clocks};
use crate::model::{At, Events, ThreadId, Usage, Wanted};
use crate::spool::control_words::{self, RawEarlyEnd};
use crate::spool::follower::Follower;
use crate::spool::lane::SpoolBytes;
use crate::write::pack::{Packer, Totals};

/// Maximum segments that wait before chunks are cut short for them; 48, which are 3 MiB.
///
/// The program then writes again to pages that exist and are in a cache. It is about the size of a
/// chunk of allocations.
const FLUSH_SEGMENTS: usize = 48;
/// Approximate maximum bytes of a lane that wait to be merged; 4 MiB.
///
/// When this process has fallen behind, it catches up in parts.
const MOST_WAITING_BYTES: usize = 4 << 20;
/// Memory samples that wait for the events before them; 4096, more than 6 minutes of ten a second.
const MOST_USAGES: usize = 4096;

/// Drains one spool.
///
/// # Examples
///
/// ```no_run
/// use cairn_recording::Drain;
/// use std::path::Path;
/// use std::time::Duration;
///
/// # let mut child = std::process::Command::new("true").spawn().unwrap();
/// let mut drain = Drain::open(Path::new("program.spool"), Path::new("program.cairn"))?;
/// while child.try_wait().is_ok_and(|status| status.is_none()) {
///     drain.step()?;
///     std::thread::sleep(Duration::from_millis(1));
/// }
/// let (totals, _) = drain.finish()?;
/// println!("{} allocations", totals.allocations);
/// # Ok::<(), cairn_recording::RecordingError>(())
/// ```
pub struct Drain {
    shared: SharedFile,
    header: FileHeader,
    clock: DrainClock,
    ring: SegmentRing,
    follower: Follower,
    merged: MergedRecords,
    output: Output,
    /// Everything that was stamped until then is merged.
    merged_ticks: u64,
    /// Bytes of the last step.
    read_bytes: u64,
    /// Memory samples, each with the counter when it was taken, that are later than what is merged.
    usages: VecDeque<(u64, Usage)>,
    code_files: CodeFiles,
    ending: Ending,
}

/// State of the end of recording.
#[derive(Default)]
struct Ending {
    /// The program has ended: what is not there does not come.
    is_last: bool,
    /// The spool became shorter: what is in it now says nothing.
    is_cut: bool,
    /// Since when nothing is recorded, because the recording was paused.
    paused_since: Option<u64>,
    /// How the program ended, as the process that started it says.
    known: Option<EndReason>,
}

impl SpoolBytes for SharedFile {
    fn word(&self, offset: u64) -> Result<u64, RecordingError> {
        Ok(self.load(offset))
    }

    fn read(&self, offset: u64, end: u64, into: &mut Vec<u8>) -> Result<(), RecordingError> {
        into.clear();
        self.copy(offset, end, into);
        Ok(())
    }
}

/// How far a [`Drain`] is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Status {
    /// Bytes that the program holds, as of the last step.
    pub live_bytes: u64,
    /// Allocations so far.
    pub allocations: u64,
    /// Size of the packed file.
    pub packed_bytes: u64,
    /// Time of the last event that was merged.
    pub nanos: u64,
    /// Events that the program could not record.
    pub lost_events: u64,
    /// The program's own state.
    pub state: control::State,
    /// Why the recording ended before the program, if it did.
    pub early_end: Option<EarlyEnd>,
    /// Whether the last step found anything new.
    pub is_busy: bool,
    /// How much that was: a caller that waits longer between steps when it is little wakes less
    /// often.
    pub read_bytes: u64,
}

impl Drain {
    /// Begins to drain the spool at `spool` into a new file at `packed`.
    ///
    /// # Errors
    ///
    /// When the spool is not there yet or has no header yet (try again), or cannot be mapped, or
    /// the packed file cannot be made.
    pub fn open(spool: &Path, packed: &Path) -> Result<Self, RecordingError> {
        let split = |path: &Path, action| Directory::of(path).map_err(RecordingError::io(action));
        let (directory, name) = split(spool, format!("opening the spool {}", spool.display()))?;
        let (beside, packed_name) = split(packed, format!("creating the recording {}", packed.display()))?;
        Self::open_between((&directory, &name), (&beside, &packed_name))
    }

    /// Opens the two files like [`open`](Self::open), in an open directory.
    ///
    /// Neither is searched by a path, which may lead elsewhere by now. Only this user can read the
    /// packed file.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub fn open_in(directory: &Directory, spool: &OsStr, packed: &OsStr) -> Result<Self, RecordingError> {
        Self::open_between((directory, spool), (directory, packed))
    }

    fn open_between(
        (directory, spool): (&Directory, &OsStr),
        (beside, packed): (&Directory, &OsStr),
    ) -> Result<Self, RecordingError> {
        let action = || format!("opening the spool {}", directory.path().join(spool).display());
        let file = directory.modify(spool).map_err(RecordingError::io(action()))?;
        let mut shared = SharedFile::map(file).map_err(RecordingError::io(action()))?;
        shared.length();
        let mut control_segment = Vec::new();
        shared.copy(0, SEGMENT_BYTES as u64, &mut control_segment);
        let header = FileHeader::read(&control_segment)?;
        if header.shape != Shape::Spool {
            return Err(RecordingError::io(action())(std::io::ErrorKind::InvalidInput.into()));
        }
        let mut facts = control_words::facts(&control_segment);
        // Known for certain at the end alone.
        facts.retain(|fact| fact.name != control_words::PEAK_RESIDENT_FACT);
        let creating = || format!("creating the recording {}", beside.path().join(packed).display());
        let file = beside.create_new(packed).map_err(RecordingError::io(creating()))?;
        let packed_file = file.try_clone().map_err(RecordingError::io(creating()))?;
        // Before the packed file has a header: a process that finds one finds both held.
        shared.hold();
        hold(&file);
        let begun =
            Packer::new(BufWriter::with_capacity(1 << 18, file), &header, &facts).and_then(|mut packer| {
                // So that it is a recording from now on, which goes on in the spool.
                packer.flush_with_progress(std::iter::empty(), 0).map(|()| packer)
            });
        // One without a header is of no use, and in the way of the next try.
        let packer = begun.inspect_err(|_| drop(beside.remove(packed)))?;
        let clocks = [read_clocks(header.counter)];
        let hz = control_words::counter_hz(&facts);
        let scale = TimeScale::new(&header, &clocks, hz, &mut Vec::new());
        let ring = SegmentRing::new(&shared);
        let mut drain = Self {
            shared,
            header,
            clock: DrainClock::new(scale),
            ring,
            follower: Follower::new(header.start_counter),
            merged: MergedRecords::default(),
            output: Output::new(packed_file, packer),
            merged_ticks: 0,
            read_bytes: 0,
            usages: VecDeque::new(),
            code_files: CodeFiles::new(header.process, header.start_wall_nanos),
            ending: Ending::default(),
        };
        // When the disk is full already, what the program has is drained all the same, and used
        // again.
        let _ = drain.ring.reserve(&mut drain.shared);
        Ok(drain)
    }

    /// Sets how long what was read may wait until it is written; half a second if nothing else is
    /// said. Chunks are shorter, and the recording larger, when it is less.
    pub fn set_flush_after(&mut self, duration: Duration) {
        self.output.flush_after = duration;
    }

    /// Tells the program what to do next.
    pub fn command(&self, command: control::Command) {
        self.shared.store(control::COMMAND as u64, command.to_word());
    }

    /// Shows that the spool is drained: a program that has to wait for segments waits only then.
    fn tick(&self) {
        let tick = self.shared.load(control::TICK as u64);
        self.shared.store(control::TICK as u64, tick.wrapping_add(1));
    }

    /// Reads what is new, and hands on what can be put into order.
    ///
    /// # Errors
    ///
    /// When the packed file cannot be written. The spool still has what is not in it.
    pub fn step(&mut self) -> Result<Status, RecordingError> {
        if self.notice_cut() {
            return Ok(self.status(false));
        }
        self.tick();
        let now = self.read_clocks();
        let has_code = self.code_files.is_due();
        if has_code {
            // Addresses that were seen before these lines are in front of them.
            self.output.packer.write_tables();
        }
        let is_busy = self.read_new()?;
        if has_code {
            self.read_code_files(false);
        }
        self.tick();
        // All that was stamped before the step before this one began is there now.
        let horizon = std::mem::replace(&mut self.clock.now_ticks, now);
        if self.clock.scale.is_known() {
            self.merge_up_to(horizon);
        }
        self.note_pause();
        let drained = self.ring.drained();
        if drained >= FLUSH_SEGMENTS || self.output.is_due(drained > 0) {
            self.tick();
            self.flush()?;
        }
        // An error here means that the disk is full: the program counts what it loses.
        let _ = self.ring.reserve(&mut self.shared);
        self.shared.store(control::LIVE_BYTES as u64, self.output.packer.totals.live_bytes);
        Ok(self.status(is_busy))
    }

    /// Notes in the recording that it was stopped for a while.
    ///
    /// Blocks that were freed meanwhile seem to live.
    fn note_pause(&mut self) {
        let nanos = || self.clock.scale.nanos_of_ticks(self.clock.now_ticks);
        let since = self.ending.paused_since;
        match control::State::from_word(self.shared.load(control::STATE as u64)) {
            // A recording that began paused has no known loss.
            control::State::Paused if since.is_none() && self.output.packer.totals.allocations > 0 => {
                self.ending.paused_since = Some(nanos());
            }
            control::State::Recording => {
                if let Some(from) = since {
                    let to = nanos();
                    self.ending.paused_since = None;
                    self.output.packer.fact(crate::recording::PAUSE_FACT, &format!("{from}..{to}"));
                }
            }
            _ => {}
        }
    }

    /// Returns the recorder's memory in the program, the spool first.
    ///
    /// Each entry is address, bytes, and whether it is of a file; most of it is never touched.
    /// `None` where the program does not publish it, or is changing it at this moment.
    #[must_use]
    pub fn own_memory(&self) -> Option<Vec<(u64, u64, bool)>> {
        let load = |at: usize| self.shared.load(at as u64);
        let count = load(control::OWN_MEMORY_COUNT);
        let base = load(control::MAPPED_AT);
        if base == 0 || count == 0 || count > control::OWN_MEMORY_ENTRIES as u64 {
            return None;
        }
        let spool_bytes = load(control::CLAIMED_SEGMENTS).checked_mul(SEGMENT_BYTES as u64)?;
        let mut pieces = vec![(base, spool_bytes, true)];
        for entry in 0..count as usize {
            let at = control::OWN_MEMORY + entry * 16;
            pieces.push((load(at), load(at + 8), false));
        }
        (load(control::OWN_MEMORY_COUNT) == count).then_some(pieces)
    }

    /// Names the process on this machine, whose numbers may be others than in its container. The
    /// files in which its JIT compilers name their code are found by it.
    pub fn set_process(&mut self, process: u32) {
        self.code_files.set_process(process);
    }

    fn read_code_files(&mut self, is_last: bool) {
        let nanos = self.clock.scale.nanos_of_ticks(self.clock.now_ticks);
        let packer = &mut self.output.packer;
        self.code_files.read(nanos, is_last, |piece| packer.code_piece(&piece));
    }

    /// Adds the resources that the process uses now to the recording, and cairn's own part if
    /// known.
    ///
    /// Call it after a [`step`](Self::step).
    pub fn usage(&mut self, resident_bytes: u64, own_bytes: Option<u64>, page_faults: u64, threads: u32) {
        if !self.clock.scale.is_known() {
            return;
        }
        if self.usages.len() >= MOST_USAGES {
            self.usages.pop_front();
        }
        // The time is set when the events before it are merged.
        let at = At { thread: ThreadId(0), nanos: 0 };
        let usage = Usage { at, resident_bytes, own_bytes, page_faults, threads };
        self.usages.push_back((self.clock.now_ticks, usage));
    }

    fn status(&self, is_busy: bool) -> Status {
        let packer = &self.output.packer;
        Status {
            live_bytes: packer.totals.live_bytes,
            allocations: packer.totals.allocations,
            packed_bytes: packer.written_bytes(),
            nanos: self.follower.nanos(),
            lost_events: self.shared.load(control::LOST_EVENTS as u64),
            state: control::State::from_word(self.shared.load(control::STATE as u64)),
            early_end: EarlyEnd::from_word(self.shared.load(control::EARLY_END as u64)),
            is_busy,
            read_bytes: self.read_bytes,
        }
    }

    /// Returns whether the program has called `exec`, and that call has not failed.
    ///
    /// If the process has ended since, or announced another program, the program of this spool
    /// became another one.
    #[must_use]
    pub fn is_in_exec(&self) -> bool {
        self.shared.load(control::IN_EXEC as u64) != 0
    }

    /// Opens the packed file again: whatever its name leads to by now.
    ///
    /// # Errors
    ///
    /// When there are no more descriptors.
    pub fn packed_file(&self) -> std::io::Result<File> {
        self.output.file.try_clone()
    }

    /// Sets how the program ended, if the process that started it knows.
    ///
    /// The program itself leaves no record of a plain exit. An end in the recording takes
    /// precedence.
    pub fn ended(&mut self, reason: EndReason) {
        self.ending.known = Some(reason);
    }

    /// Ends the recording before the program ends: it records nothing more, and the recording says
    /// why. A reason that the program has given itself counts more.
    pub fn end_early(&self, cause: EarlyEnd) {
        self.command(control::Command::Pause);
        if self.shared.load(control::EARLY_END as u64) == 0 {
            let counter = read_clocks(self.header.counter).counter;
            self.shared.exchange(control::EARLY_END_COUNTER as u64, 0, counter);
            self.shared.exchange(control::EARLY_END as u64, 0, cause.to_word());
        }
    }

    /// Returns whether the spool was truncated. A write to the missing part ends the program with
    /// SIGBUS: so the file gets its length back at once, and the recording ends. The events read
    /// until then stay.
    fn notice_cut(&mut self) -> bool {
        let known = self.shared.known_length();
        if !self.ending.is_cut && self.shared.length() < known {
            self.ending.is_cut = true;
            if self.shared.reserve(known).is_ok() {
                // The words are gone, or older: there is no further segment.
                for word in [control::CLAIMED_SEGMENTS, control::BACKED_SEGMENTS] {
                    self.shared.raise(word as u64, known / SEGMENT_BYTES as u64);
                }
                self.end_early(EarlyEnd::FileCut);
            }
        }
        self.ending.is_cut
    }

    /// Why the recording ended before the program did, as the two have noted it.
    fn early_end(&self) -> Option<EndedEarly> {
        if self.ending.is_cut {
            return Some(EndedEarly { cause: EarlyEnd::FileCut, nanos: self.follower.nanos(), missed: 0 });
        }
        let word = |at: usize| self.shared.load(at as u64);
        // Whether the program has ended is known here; a recording that is left paused can go on by
        // command.
        let is_paused = self.ending.known.is_some()
            && control::State::from_word(word(control::STATE)) == control::State::Paused;
        let paused = RawEarlyEnd { cause: EarlyEnd::Paused, counter: 0, missed: 0 };
        let early = RawEarlyEnd::of_words(word).or(is_paused.then_some(paused))?;
        Some(early.ended(&self.clock.scale))
    }

    /// Reads a part of the data that the program left at its end.
    ///
    /// Repeated until nothing is left, it does the work of [`finish`](Self::finish), for callers
    /// that show the progress. [`Status::is_busy`] reports whether there is more.
    ///
    /// # Errors
    ///
    /// As [`step`](Self::step).
    pub fn read_rest(&mut self) -> Result<Status, RecordingError> {
        self.ending.is_last = true;
        if self.notice_cut() {
            return Ok(self.status(false));
        }
        self.read_clocks();
        self.read_new()?;
        self.merge_up_to(u64::MAX);
        if self.ring.drained() >= FLUSH_SEGMENTS {
            self.flush()?;
        }
        Ok(self.status(self.follower.unread_from().is_some()))
    }

    /// Reads what the program left when it ended, and closes the recording. The spool is not needed
    /// any more then. The findings are those of [`findings`](Self::findings), and what this last
    /// step found.
    ///
    /// # Errors
    ///
    /// As [`step`](Self::step).
    pub fn finish(mut self) -> Result<(Totals, Vec<Finding>), RecordingError> {
        while self.read_rest()?.is_busy {}
        self.merge_with_usages(u64::MAX);
        self.read_code_files(true);
        let lost_code_bytes = self.code_files.lost_bytes();
        let early = self.early_end();
        let reason = self.end_reason();
        let Self { output: Output { mut packer, mut findings, .. }, follower, clock, .. } = self;
        let missing = follower.missing_segments();
        findings.extend(missing.map(|(thread, count)| Finding::MissingSegments { thread, count }));
        for thread in &self.merged.lives.threads(&clock.scale) {
            packer.thread(thread);
        }
        packer.totals.unmatched_frees = follower.unmatched_frees();
        let clocks = read_clocks(self.header.counter);
        packer.clock(clock.scale.nanos(clocks.counter), clocks.wall_nanos);
        for (word, kind) in control_words::LOSSES {
            let count = self.shared.load(word as u64);
            if count > 0 && !(early.is_some() && kind == LossKind::NoStorage) {
                control_words::note_loss(kind, count, &mut findings);
            }
        }
        let peak = self.shared.load(control::PEAK_RESIDENT_BYTES as u64);
        if peak > 0 {
            packer.fact(control_words::PEAK_RESIDENT_FACT, &peak.to_string());
        }
        packer.totals.end_reason = reason;
        if lost_code_bytes > 0 {
            control_words::note_loss(LossKind::CodeNames, lost_code_bytes, &mut findings);
        }
        for finding in &findings {
            if let Finding::Lost { kind, count } = finding {
                packer.totals.lost.push((*kind, *count));
            }
        }
        if let Some(early) = early {
            packer.totals.end_early(early);
        }
        let (_, totals) = packer.close()?;
        Ok((totals, findings))
    }

    /// How the recording ended, by all that is known of it.
    fn end_reason(&self) -> Option<EndReason> {
        let state = control::State::from_word(self.shared.load(control::STATE as u64));
        let recorded = self.output.end;
        let is_exiting = self.shared.load(control::EXITING as u64) != 0;
        let unsaid = control_words::unsaid_end(state, is_exiting);
        let has_become_other = self.is_in_exec().then_some(EndReason::Exec);
        match self.ending.known {
            // Later events were not recorded, however the process ended then.
            _ if matches!(state, control::State::Paused | control::State::Full) => {
                recorded.or(Some(EndReason::Stopped))
            }
            // That a process is gone says less than its own word.
            Some(EndReason::Gone) => recorded.or(has_become_other).or(unsaid).or(self.ending.known),
            known => recorded.or(has_become_other).or(known).or(unsaid),
        }
    }

    /// Returns the findings of draining.
    #[must_use]
    pub fn findings(&self) -> &[Finding] {
        &self.output.findings
    }

    /// Reads the clocks; returns the counter, from the start.
    fn read_clocks(&mut self) -> u64 {
        let reading = self.clock.read(&self.header);
        if let Some((nanos, wall_nanos)) = reading.stored {
            self.output.packer.clock(nanos, wall_nanos);
        }
        reading.ticks
    }

    /// Copies newly committed bytes, unless too many wait already; returns true if there were any.
    fn read_new(&mut self) -> Result<bool, RecordingError> {
        self.follower.announce(self.ring.new_segments(&mut self.shared).into_iter());
        self.follower.open_announced(&self.shared)?;
        let (output, scale) = (&mut self.output, &self.clock.scale);
        self.read_bytes =
            self.follower.read_new(&self.shared, MOST_WAITING_BYTES, self.ending.is_last, |_, piece| {
                // Nothing of a segment of events alone is needed sooner than the events.
                if !piece.has_no_tables {
                    output.take_records(&piece.bytes, piece.offset, scale);
                }
            })?;
        Ok(self.read_bytes > 0 || self.follower.unread_from().is_some())
    }

    /// Merges what is not younger than that, and not behind what is still to be read.
    fn merge_up_to(&mut self, horizon: u64) {
        let limit = self.follower.begin_merge(horizon);
        self.merge_with_usages(limit.ticks);
        if horizon != u64::MAX {
            self.merged_ticks = self.merged_ticks.max(limit.ticks);
        }
        self.follower.end_merge(&limit);
    }

    /// Merges the events up to `horizon`, and inserts each memory sample at its time.
    ///
    /// A sample in front of older events would move their times to its own.
    fn merge_with_usages(&mut self, horizon: u64) {
        while let Some((ticks, mut usage)) = self.usages.pop_front_if(|(ticks, _)| *ticks <= horizon) {
            self.merge(ticks);
            usage.at.nanos = self.clock.scale.nanos_of_ticks(ticks).max(self.follower.nanos());
            self.output.packer.usage(&usage);
        }
        self.merge(horizon);
    }

    fn merge(&mut self, horizon: u64) {
        let scale = &self.clock.scale;
        self.follower.merge(horizon, scale, &Wanted::ALL, &mut self.output.packer, &mut self.merged);
        self.output.take_merged(&mut self.merged, scale);
        self.ring.take_merged(&mut self.merged.segments);
    }

    /// Writes all merged events to the file, and then returns their segments to the program.
    fn flush(&mut self) -> Result<(), RecordingError> {
        let until_nanos = self.clock.scale.nanos_of_ticks(self.merged_ticks).max(self.follower.nanos());
        self.output.flush(self.follower.progress(), until_nanos)?;
        self.shared.store(control::UNMATCHED_FREES as u64, self.follower.unmatched_frees());
        self.ring.give_back(&self.shared);
        Ok(())
    }
}
