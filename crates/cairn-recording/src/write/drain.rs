//! Drains the spool of a running program into a packed recording.
//!
//! ```text
//!   program ── records ──> block ── committed bytes ──> stream's queue ── merged, paired ──> chunks ──> packed file
//!      ^                                                                                        |
//!      +──────────── free ring <──────── the block, once what it held is in the file <──────────+
//! ```
//!
//! One thread calls [`Drain::step`] about once a millisecond, or a little less often while little comes. The steps are what the program sees as the tick: it stamps
//! its next events, so that the order of events is known to about a step. Events of the last step wait for the next one, in
//! which all that was stamped before is there.
//!
//! A block is given back when the packed file has what it held. So when this process is killed, the packed file and the
//! spool together still have everything; when the program is, nothing is lost at all.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ffi::OsStr;
use std::fs::File;
use std::io::BufWriter;
use std::path::Path;
use std::time::{Duration, Instant};

use cairn_files::Directory;
use cairn_format::AbsoluteAddress;
use cairn_format::recording::control::EarlyEnd;
use cairn_format::recording::{
    BadRecord, EndReason, FileHeader, Lane, LossKind, Record, Records, SEGMENT_BYTES, SEGMENT_HEADER_BYTES,
    SegmentHeader, Shape, ThreadEvent, control,
};

use crate::clock::TimeScale;
use crate::error::{EndedEarly, Finding, RecordingError};
use crate::mapped_file::{SharedFile, hold, read_clocks};
use crate::model::{At, Events, Module, ModuleId, Thread, ThreadId, Usage, Wanted};
use crate::packed::progress::Progress;
use crate::spool::deliver::Delivery;
use crate::spool::lives::Lives;
use crate::spool::merge::{Feed, Merger, NextBlock};
use crate::spool::pairing::Pairing;
use crate::spool::reader::{self, RawEarlyEnd};
use crate::tables::TableBuilder;
use crate::write::pack::{Packer, Summary};

/// What is kept ready for the program to write to.
const AHEAD_BLOCKS: u64 = 256;
/// So many blocks wait at most until chunks are cut short for them: three mebibytes, so that the program writes to pages again that are
/// there and in a cache, and about as much as a chunk of allocations holds.
const FLUSH_BLOCKS: usize = 48;
/// And so long does anything wait.
const FLUSH_AFTER: Duration = Duration::from_millis(500);
/// So much of a stream waits at most to be merged, about: when this process has fallen behind, it catches up in parts.
const MOST_WAITING_BYTES: usize = 4 << 20;
/// The clocks are compared so often.
const CLOCK_NANOS: u64 = 50_000_000;
/// And the comparison is kept in the recording so often.
const KEPT_CLOCK_NANOS: u64 = 10_000_000_000;
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
/// let (summary, _) = drain.finish()?;
/// println!("{} allocations", summary.allocations);
/// # Ok::<(), cairn_recording::RecordingError>(())
/// ```
pub struct Drain {
    shared: SharedFile,
    /// Another descriptor of what the packer writes to.
    packed_file: File,
    header: FileHeader,
    scale: TimeScale,
    tables: TableBuilder,
    packer: Packer<BufWriter<File>>,
    pairing: Option<Pairing>,
    merger: Merger,
    queues: Queues,
    streams: HashMap<(u32, bool), u32>,
    blocks: Vec<StreamBlocks>,
    /// Claimed blocks whose header is not there yet.
    opening: Vec<u32>,
    seen_blocks: u64,
    seen_taken: u64,
    given: u64,
    drained: Vec<u32>,
    last_flush: Instant,
    flush_after: Duration,
    last_clock_nanos: u64,
    last_kept_clock_nanos: u64,
    /// The counter when the step before began.
    horizon: u64,
    /// When the first block was taken that is there and was left for later; `u64::MAX` for none. Nothing behind it can be put into order.
    unread_from: u64,
    /// Merging up to there took nothing from what waits.
    is_stuck: bool,
    /// The program has ended: what is not there does not come.
    is_last: bool,
    /// The spool became shorter: what is in it now says nothing.
    is_cut: bool,
    /// In the last step.
    read_bytes: u64,
    merged_nanos: u64,
    /// Everything that was stamped until then is merged.
    merged_ticks: u64,
    /// Memory samples, each with the counter when it was taken, that are later than what is merged.
    usages: VecDeque<(u64, Usage)>,
    /// Since when nothing is recorded, because somebody stopped it.
    paused_since: Option<u64>,
    end: Option<(EndReason, u64)>,
    /// How the program ended, as whoever started it says.
    known_end: Option<EndReason>,
    findings: Vec<Finding>,
}

/// The blocks of a stream that are not read to their end, by sequence.
#[derive(Default)]
struct StreamBlocks {
    blocks: BTreeMap<u32, OpenBlock>,
    /// What follows the last block that was read to its end.
    next_sequence: Option<u32>,
    /// How many blocks never came.
    missing: u64,
}

struct OpenBlock {
    number: u32,
    kernel_thread: u32,
    counter: u64,
    ticks: u64,
    read_bytes: u64,
    has_no_tables: bool,
}

/// What was read and not merged yet, for each stream.
#[derive(Default)]
struct Queues {
    streams: Vec<VecDeque<Piece>>,
    /// By stream: how many bytes these are.
    waiting: Vec<usize>,
    /// Whose last piece was merged.
    merged: Vec<u32>,
    /// By stream: the block whose last piece is being merged.
    current: Vec<Option<u32>>,
    /// By stream: the piece that was handed on last.
    handed: Vec<Handed>,
    findings: Vec<Finding>,
    spare: Vec<Vec<u8>>,
    /// Rarer records that were met while merging, one behind the other, each with where it ends.
    rare: Vec<u8>,
    rare_ends: Vec<usize>,
    /// The threads of what was merged.
    lives: Lives,
    /// The records of threads that are not in the packed recording yet: numbers, and names where
    /// the record is a name.
    told: Vec<(u32, Option<Vec<u8>>)>,
}

/// Which part of a lane a piece was.
#[derive(Clone, Copy)]
struct Handed {
    /// The recorder's number.
    thread: u32,
    is_nested: bool,
    /// The number of the thread in the recording, behind what was read last.
    life: u32,
    sequence: u32,
    offset: usize,
    length: usize,
    is_last: bool,
    is_looked_through: bool,
}

impl Handed {
    /// Where the lane goes on when so much of the piece is merged.
    fn progress(self, (position, ticks, is_moving): (usize, u64, bool)) -> Progress {
        let Self { thread, is_nested, sequence, offset, length, is_last, .. } = self;
        let (sequence, offset) = if position >= length && is_last {
            (sequence.saturating_add(1), SEGMENT_HEADER_BYTES)
        } else {
            (sequence, offset + position.min(length))
        };
        Progress { thread, is_nested, sequence, offset: offset as u32, ticks, is_moving }
    }
}

struct Piece {
    sequence: u32,
    bytes: Vec<u8>,
    ticks: u64,
    offset: usize,
    /// The kernel's number of the thread and the counter, when the block begins here.
    begins: Option<(u32, u64)>,
    /// The block, when nothing follows in it.
    last_of: Option<u32>,
    /// Its rarer records were read.
    is_looked_through: bool,
}

impl Queues {
    fn push(&mut self, stream: usize, piece: Piece) {
        if let (Some(queue), Some(waiting)) = (self.streams.get_mut(stream), self.waiting.get_mut(stream)) {
            *waiting += piece.bytes.len();
            queue.push_back(piece);
        }
    }

    fn waiting_bytes(&self) -> usize {
        self.waiting.iter().sum()
    }
}

impl Feed for Queues {
    fn more(&mut self, stream: u32, bytes: &mut Vec<u8>) -> Option<NextBlock> {
        let stream = stream as usize;
        if let Some(block) = self.current.get_mut(stream).and_then(Option::take) {
            self.merged.push(block);
        }
        let piece = self.streams.get_mut(stream)?.pop_front()?;
        if let Some(waiting) = self.waiting.get_mut(stream) {
            *waiting = waiting.saturating_sub(piece.bytes.len());
        }
        let handed = self.handed.get_mut(stream)?;
        if let Some((kernel_thread, counter)) = piece.begins {
            let lane = (handed.thread, handed.is_nested);
            handed.life = self.lives.block(lane, kernel_thread, counter);
        }
        (handed.sequence, handed.offset) = (piece.sequence, piece.offset);
        (handed.length, handed.is_last) = (piece.bytes.len(), piece.last_of.is_some());
        handed.is_looked_through = piece.is_looked_through;
        let thread = handed.life;
        self.spare.push(std::mem::replace(bytes, piece.bytes));
        if let Some(current) = self.current.get_mut(stream) {
            *current = piece.last_of;
        }
        Some(NextBlock { ticks: piece.ticks, offset: piece.offset, thread })
    }

    fn thread(&mut self, stream: u32, counter: u64, event: ThreadEvent<'_>) -> Option<u32> {
        let handed = self.handed.get_mut(stream as usize)?;
        handed.life = self.lives.record((handed.thread, handed.is_nested), counter, event)?;
        let name = if let ThreadEvent::Named(name) = event { Some(name.to_vec()) } else { None };
        self.told.push((handed.life, name));
        Some(handed.life)
    }

    fn met(&mut self, stream: u32, record: &[u8]) {
        if self.handed.get(stream as usize).is_some_and(|handed| !handed.is_looked_through) {
            self.rare.extend_from_slice(record);
            self.rare_ends.push(self.rare.len());
        }
    }

    fn damaged(&mut self, _: u32, error: BadRecord, lost_bytes: u64) {
        // Where the block was says nothing: it will be used again.
        self.findings.push(Finding::DamagedRecords { offset: 0, error, lost_bytes });
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
    /// What the program could not record.
    pub lost_events: u64,
    /// What the program says of itself.
    pub state: control::State,
    /// Why the recording ended before the program, if it did.
    pub early_end: Option<EarlyEnd>,
    /// Whether the last step found anything new.
    pub is_busy: bool,
    /// How much that was: who waits longer between steps when it is little, is woken less.
    pub read_bytes: u64,
}

impl Drain {
    /// Begins to drain the spool at `spool` into a new file at `packed`.
    ///
    /// # Errors
    ///
    /// When the spool is not there yet or has no header yet (try again), or cannot be mapped, or the packed file cannot be
    /// made.
    pub fn open(spool: &Path, packed: &Path) -> Result<Self, RecordingError> {
        let split = |path: &Path, action| Directory::of(path).map_err(RecordingError::io(action));
        let (directory, name) = split(spool, format!("opening the spool {}", spool.display()))?;
        let (beside, packed_name) = split(packed, format!("creating the recording {}", packed.display()))?;
        Self::open_between((&directory, &name), (&beside, &packed_name))
    }

    /// As [`open`](Self::open), where both files lie in an open directory: neither is sought by a path, which may lead elsewhere by
    /// now. The packed file can be read by this user alone.
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
        let mut control_block = Vec::new();
        shared.copy(0, SEGMENT_BYTES as u64, &mut control_block);
        let header = FileHeader::read(&control_block)?;
        if header.shape != Shape::Spool {
            return Err(RecordingError::io(action())(std::io::ErrorKind::InvalidInput.into()));
        }
        let facts = reader::facts(&control_block);
        let creating = || format!("creating the recording {}", beside.path().join(packed).display());
        let file = beside.create_new(packed).map_err(RecordingError::io(creating()))?;
        let packed_file = file.try_clone().map_err(RecordingError::io(creating()))?;
        // Before the packed file has a header: who finds one finds both held.
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
        let scale = TimeScale::new(&header, &clocks, crate::counter_hz(&facts), &mut Vec::new());
        let mut drain = Self {
            shared,
            packed_file,
            header,
            scale,
            tables: TableBuilder::default(),
            packer,
            pairing: Some(Pairing::new()),
            merger: Merger::new(header.start_counter),
            queues: Queues::default(),
            streams: HashMap::new(),
            blocks: Vec::new(),
            opening: Vec::new(),
            seen_blocks: 1,
            seen_taken: 0,
            given: 0,
            drained: Vec::new(),
            last_flush: Instant::now(),
            flush_after: FLUSH_AFTER,
            last_clock_nanos: 0,
            last_kept_clock_nanos: 0,
            horizon: 0,
            unread_from: u64::MAX,
            is_stuck: false,
            is_last: false,
            is_cut: false,
            read_bytes: 0,
            merged_nanos: 0,
            merged_ticks: 0,
            usages: VecDeque::new(),
            paused_since: None,
            end: None,
            known_end: None,
            findings: Vec::new(),
        };
        drain.given = drain.shared.load(control::FREE_GIVEN as u64);
        drain.seen_taken = drain.shared.load(control::FREE_TAKEN as u64);
        // When the disk is full already, what the program has is drained all the same, and used again.
        let _ = drain.reserve_ahead();
        Ok(drain)
    }

    /// How long what was read may wait until it is written; half a second if nothing else is said. Chunks are shorter, and the
    /// recording larger, when it is less.
    pub fn set_flush_after(&mut self, duration: Duration) {
        self.flush_after = duration;
    }

    /// Tells the program what to do next.
    pub fn command(&self, command: control::Command) {
        self.shared.store(control::COMMAND as u64, command.to_word());
    }

    /// Says that somebody is here: a program that has to wait for blocks waits only for one who is.
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
        let clocks = self.read_clocks();
        let is_busy = self.read_new();
        self.tick();
        // All that was stamped before the step before this one began is there now.
        let horizon = std::mem::replace(&mut self.horizon, clocks);
        if self.scale.is_known() {
            self.merge_up_to(horizon);
        }
        self.note_pause();
        let has_waited = self.last_flush.elapsed() >= self.flush_after;
        if self.drained.len() >= FLUSH_BLOCKS
            || (has_waited && (self.packer.has_unwritten() || !self.drained.is_empty()))
        {
            self.tick();
            self.flush()?;
        }
        // An error here means that the disk is full: the program counts what it loses.
        let _ = self.reserve_ahead();
        self.shared.store(control::LIVE_BYTES as u64, self.packer.summary.live_bytes);
        Ok(self.status(is_busy))
    }

    /// Keeps in the recording that it was stopped for a while: blocks that were freed meanwhile
    /// seem to live.
    fn note_pause(&mut self) {
        let nanos = || self.scale.nanos_of_ticks(self.horizon);
        match control::State::from_word(self.shared.load(control::STATE as u64)) {
            // What began paused has missed nothing that it knows of.
            control::State::Paused if self.paused_since.is_none() && self.packer.summary.allocations > 0 => {
                self.paused_since = Some(nanos());
            }
            control::State::Recording => {
                if let Some(from) = self.paused_since {
                    let to = nanos();
                    self.paused_since = None;
                    self.packer.fact(crate::PAUSE_FACT, &format!("{from}..{to}"));
                }
            }
            _ => {}
        }
    }

    /// The memory of the recorder in the program, the spool first, as address, bytes and whether it
    /// is of a file; most of it is never touched. `None` where the program does not tell, or is
    /// just changing it.
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

    /// Adds what the process uses at this moment to the recording, and how much of that is cairn's
    /// own, where it is known. Call it after a [`step`](Self::step).
    pub fn usage(&mut self, resident_bytes: u64, own_bytes: Option<u64>, page_faults: u64, threads: u32) {
        if !self.scale.is_known() {
            return;
        }
        if self.usages.len() >= MOST_USAGES {
            self.usages.pop_front();
        }
        // The time is set when the events before it are merged.
        let at = At { thread: ThreadId(0), nanos: 0 };
        let usage = Usage { at, resident_bytes, own_bytes, page_faults, threads };
        self.usages.push_back((self.horizon, usage));
    }

    fn status(&self, is_busy: bool) -> Status {
        Status {
            live_bytes: self.packer.summary.live_bytes,
            allocations: self.packer.summary.allocations,
            packed_bytes: self.packer.written_bytes(),
            nanos: self.merged_nanos,
            lost_events: self.shared.load(control::LOST_EVENTS as u64),
            state: control::State::from_word(self.shared.load(control::STATE as u64)),
            early_end: EarlyEnd::from_word(self.shared.load(control::EARLY_END as u64)),
            is_busy,
            read_bytes: self.read_bytes,
        }
    }

    /// Opens the packed file again: whatever its name leads to by now.
    ///
    /// # Errors
    ///
    /// When there are no more descriptors.
    pub fn packed_file(&self) -> std::io::Result<File> {
        self.packed_file.try_clone()
    }

    /// Says how the program ended, where whoever started it knows: the program itself leaves no word of a plain exit. What
    /// the recording says of its own end counts more.
    pub fn ended(&mut self, reason: EndReason) {
        self.known_end = Some(reason);
    }

    /// Ends the recording before the program ends: it records nothing more, and the recording says why. A reason that the program
    /// has given itself counts more.
    pub fn end_early(&self, cause: EarlyEnd) {
        self.command(control::Command::Pause);
        if self.shared.load(control::EARLY_END as u64) == 0 {
            let counter = read_clocks(self.header.counter).counter;
            self.shared.exchange(control::EARLY_END_COUNTER as u64, 0, counter);
            self.shared.exchange(control::EARLY_END as u64, 0, cause.to_word());
        }
    }

    /// Whether the spool was truncated. The program is ended by SIGBUS when it writes to what is not there: so the file gets its length
    /// back at once, and the recording ends. What was read until then stays.
    fn notice_cut(&mut self) -> bool {
        let known = self.shared.known_length();
        if !self.is_cut && self.shared.length() < known {
            self.is_cut = true;
            if self.shared.reserve(known).is_ok() {
                // The words are gone, or older: there is no further block.
                for word in [control::CLAIMED_SEGMENTS, control::BACKED_SEGMENTS] {
                    self.shared.raise(word as u64, known / SEGMENT_BYTES as u64);
                }
                self.end_early(EarlyEnd::FileCut);
            }
        }
        self.is_cut
    }

    /// Why the recording ended before the program did, as the two have noted it.
    fn early_end(&self) -> Option<EndedEarly> {
        if self.is_cut {
            return Some(EndedEarly { cause: EarlyEnd::FileCut, nanos: self.merged_nanos, missed: 0 });
        }
        let word = |at: usize| self.shared.load(at as u64);
        // Whether the program has ended is known here; a recording that is left paused goes on if anybody wants it to.
        let is_paused = self.known_end.is_some()
            && control::State::from_word(word(control::STATE)) == control::State::Paused;
        let paused = RawEarlyEnd { cause: EarlyEnd::Paused, counter: 0, missed: 0 };
        let early = RawEarlyEnd::of_words(word).or(is_paused.then_some(paused))?;
        Some(early.ended(&self.scale))
    }

    /// Reads a part of what the program left when it ended, as [`finish`](Self::finish) does until there is nothing left: for those
    /// who want to tell how far that is. [`Status::is_busy`] says whether there is more.
    ///
    /// # Errors
    ///
    /// As [`step`](Self::step).
    pub fn read_rest(&mut self) -> Result<Status, RecordingError> {
        self.is_last = true;
        if self.notice_cut() {
            return Ok(self.status(false));
        }
        self.read_clocks();
        self.read_new();
        self.merge_up_to(u64::MAX);
        if self.drained.len() >= FLUSH_BLOCKS {
            self.flush()?;
        }
        Ok(self.status(self.unread_from != u64::MAX))
    }

    /// Reads what the program left when it ended, and closes the recording. The spool is not needed any more then. The
    /// findings are those of [`findings`](Self::findings), and what this last step found.
    ///
    /// # Errors
    ///
    /// As [`step`](Self::step).
    pub fn finish(mut self) -> Result<(Summary, Vec<Finding>), RecordingError> {
        while self.read_rest()?.is_busy {}
        self.merge_with_usages(u64::MAX);
        for (blocks, handed) in self.blocks.iter().zip(&self.queues.handed) {
            if blocks.missing > 0 {
                let finding = Finding::MissingSegments { thread: handed.thread, count: blocks.missing };
                self.findings.push(finding);
            }
        }
        for thread in &self.queues.lives.threads(&self.scale) {
            self.packer.thread(thread);
        }
        let pairing = self.pairing.take();
        self.packer.summary.unmatched_frees = pairing.map_or(0, |pairing| pairing.unmatched_frees());
        let clocks = read_clocks(self.header.counter);
        self.packer.clock(self.scale.nanos(clocks.counter), clocks.wall_nanos);
        let early = self.early_end();
        for (word, kind) in reader::LOSSES {
            let count = self.shared.load(word as u64);
            if count > 0 && !(early.is_some() && kind == LossKind::NoStorage) {
                reader::note_loss(kind, count, &mut self.findings);
            }
        }
        let state = control::State::from_word(self.shared.load(control::STATE as u64));
        let reason = self.end.map(|(reason, _)| reason);
        let is_exiting = self.shared.load(control::EXITING as u64) != 0;
        let unsaid = reader::unsaid_end(state, is_exiting);
        self.packer.summary.end_reason = match self.known_end {
            // What followed was not recorded, however the process ended then.
            _ if matches!(state, control::State::Paused | control::State::Full) => {
                reason.or(Some(EndReason::Stopped))
            }
            // Who only sees that a process is gone knows less than its own word tells.
            Some(EndReason::Gone) => reason.or(unsaid).or(self.known_end),
            known => reason.or(known).or(unsaid),
        };
        for finding in &self.findings {
            if let Finding::Lost { kind, count } = finding {
                self.packer.summary.lost.push((*kind, *count));
            }
        }
        if let Some(early) = early {
            self.packer.summary.end_early(early);
        }
        let (_, summary) = self.packer.close()?;
        Ok((summary, self.findings))
    }

    /// What was noticed while draining.
    #[must_use]
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    fn read_clocks(&mut self) -> u64 {
        let clocks = read_clocks(self.header.counter);
        let nanos = clocks.monotonic_nanos.saturating_sub(self.header.start_monotonic_nanos);
        if !self.scale.is_known() || nanos >= self.last_clock_nanos.saturating_add(CLOCK_NANOS) {
            self.last_clock_nanos = nanos;
            self.scale.push(&self.header, &clocks);
            if nanos >= self.last_kept_clock_nanos.saturating_add(KEPT_CLOCK_NANOS) {
                self.last_kept_clock_nanos = nanos;
                self.packer.clock(nanos, clocks.wall_nanos);
            }
        }
        clocks.counter.saturating_sub(self.header.start_counter)
    }

    /// Copies what was committed since the last time, as far as there is not too much already; true when there was anything.
    fn read_new(&mut self) -> bool {
        self.find_blocks();
        self.read_bytes = 0;
        self.unread_from = u64::MAX;
        let mut is_busy = false;
        for stream in 0..self.blocks.len() {
            loop {
                if let Some(ticks) = self.held_back(stream) {
                    self.unread_from = self.unread_from.min(ticks);
                    is_busy = true;
                    break;
                }
                if self.read_front(stream, &mut is_busy) != Some(true) {
                    break;
                }
            }
        }
        is_busy
    }

    /// When the next block of a stream was taken, if it is to be left for later.
    fn held_back(&self, stream: usize) -> Option<u64> {
        let (_, block) = self.blocks.get(stream)?.blocks.first_key_value()?;
        // Of a block that was begun something may wait that is older than what is left of it.
        let is_begun = block.read_bytes > SEGMENT_HEADER_BYTES as u64;
        let waiting_bytes = self.queues.waiting.get(stream).copied().unwrap_or(0);
        (!is_begun && waiting_bytes >= MOST_WAITING_BYTES).then_some(block.ticks)
    }

    /// Merges what is not younger than that, and not behind what is still to be read.
    fn merge_up_to(&mut self, horizon: u64) {
        // Blocks with times that cannot be would keep what waits from being merged for ever; memory counts more than their order then.
        let unread_from = if std::mem::take(&mut self.is_stuck) { u64::MAX } else { self.unread_from };
        let waited_bytes = self.queues.waiting_bytes();
        self.merge_with_usages(horizon.min(unread_from));
        if horizon != u64::MAX {
            self.merged_ticks = self.merged_ticks.max(horizon.min(unread_from));
        }
        let is_limited = unread_from != u64::MAX && unread_from <= horizon;
        self.is_stuck = is_limited && waited_bytes <= self.queues.waiting_bytes();
    }

    /// Blocks that were taken since the last time: from the end of the file, or from the free ring.
    fn find_blocks(&mut self) {
        let claimed = self.shared.load(control::CLAIMED_SEGMENTS as u64);
        if claimed > self.shared.known_length() / SEGMENT_BYTES as u64 {
            self.shared.length();
        }
        let claimed = claimed.min(self.shared.known_length() / SEGMENT_BYTES as u64);
        self.opening.extend(self.seen_blocks as u32..claimed.max(self.seen_blocks) as u32);
        self.seen_blocks = self.seen_blocks.max(claimed);
        let taken = self.shared.load(control::FREE_TAKEN as u64).min(self.given);
        while self.seen_taken < taken {
            let block = self.ring_entry(self.seen_taken);
            self.opening.push(block);
            self.seen_taken += 1;
        }
        let opening = std::mem::take(&mut self.opening);
        for block in opening {
            if !self.open_block(block) {
                self.opening.push(block);
            }
        }
    }

    /// False when its header is not there yet.
    fn open_block(&mut self, number: u32) -> bool {
        let offset = u64::from(number) * SEGMENT_BYTES as u64;
        let mut bytes = Vec::with_capacity(SEGMENT_HEADER_BYTES);
        if self.shared.load(offset + SegmentHeader::COMMITTED_OFFSET as u64) == 0 {
            return false;
        }
        self.shared.copy(offset, offset + SEGMENT_HEADER_BYTES as u64, &mut bytes);
        let Ok(header) = SegmentHeader::read(&bytes) else { return false };
        let key = (header.thread, header.lane == Lane::Nested);
        let stream = *self.streams.entry(key).or_insert_with(|| {
            self.blocks.push(StreamBlocks::default());
            self.queues.streams.push(VecDeque::new());
            self.queues.waiting.push(0);
            self.queues.current.push(None);
            self.queues.handed.push(Handed {
                thread: header.thread,
                is_nested: header.lane == Lane::Nested,
                life: 0,
                sequence: 0,
                offset: SEGMENT_HEADER_BYTES,
                length: 0,
                is_last: false,
                is_looked_through: true,
            });
            self.merger.add_stream()
        });
        let ticks = header.counter.saturating_sub(self.header.start_counter);
        let block = OpenBlock {
            number,
            kernel_thread: header.kernel_thread,
            counter: header.counter,
            ticks,
            read_bytes: SEGMENT_HEADER_BYTES as u64,
            has_no_tables: header.has_no_tables,
        };
        if let Some(stream) = self.blocks.get_mut(stream as usize) {
            stream.blocks.insert(header.sequence, block);
        }
        true
    }

    /// Reads on in the first block of a stream; `None` when the stream has no block, true when it is read to its end.
    fn read_front(&mut self, stream: usize, is_busy: &mut bool) -> Option<bool> {
        let blocks = self.blocks.get_mut(stream)?;
        let (&sequence, _) = blocks.blocks.first_key_value()?;
        // A thread takes its next block when it has committed all of this one: so ask for that before the length. Behind a block that
        // never got a header, others are only read when it cannot come any more.
        let is_followed = sequence.checked_add(1).is_some_and(|next| blocks.blocks.contains_key(&next));
        let is_final = is_followed || self.is_last;
        let mut entry = blocks.blocks.first_entry()?;
        let block = entry.get_mut();
        let offset = u64::from(block.number) * SEGMENT_BYTES as u64;
        let committed = self.shared.load(offset + SegmentHeader::COMMITTED_OFFSET as u64);
        let committed = (committed & !7).min(SEGMENT_BYTES as u64).max(block.read_bytes);
        if committed > block.read_bytes || is_final {
            *is_busy |= committed > block.read_bytes;
            self.read_bytes += committed - block.read_bytes;
            let mut bytes = self.queues.spare.pop().unwrap_or_default();
            bytes.clear();
            self.shared.copy(offset + block.read_bytes, offset + committed, &mut bytes);
            let piece = Piece {
                sequence,
                ticks: block.ticks,
                offset: block.read_bytes as usize,
                begins: (block.read_bytes == SEGMENT_HEADER_BYTES as u64)
                    .then_some((block.kernel_thread, block.counter)),
                last_of: is_final.then_some(block.number),
                // Of what a block of events alone has, nothing is needed sooner than the events.
                is_looked_through: !block.has_no_tables,
                bytes,
            };
            block.read_bytes = committed;
            if is_final {
                entry.remove();
                let missing = sequence.saturating_sub(blocks.next_sequence.unwrap_or(sequence));
                blocks.missing += u64::from(missing);
                blocks.next_sequence = sequence.checked_add(1);
            }
            if piece.is_looked_through {
                self.read_tables(&piece);
            }
            self.queues.push(stream, piece);
        }
        Some(is_final)
    }

    fn read_tables(&mut self, piece: &Piece) {
        let mut records = Records::new(&piece.bytes, piece.offset);
        loop {
            records.skip_frequent();
            match records.next() {
                Some(Ok(placed)) => self.read_rare(&placed.record),
                // What cannot be read is told when it is merged.
                Some(Err(_)) | None => return,
            }
        }
    }

    /// What merging met of them.
    fn read_rare_met(&mut self) {
        if self.queues.rare_ends.is_empty() {
            return;
        }
        let (bytes, ends) =
            (std::mem::take(&mut self.queues.rare), std::mem::take(&mut self.queues.rare_ends));
        let mut begin = 0;
        for end in ends {
            for placed in Records::new(bytes.get(begin..end).unwrap_or_default(), 0).flatten() {
                self.read_rare(&placed.record);
            }
            begin = end;
        }
    }

    fn read_rare(&mut self, record: &Record<'_>) {
        // The clocks are read here; keeping the program's as well would only make the list long. And stacks are written and forgotten.
        if !matches!(record, Record::Clock(_) | Record::Pc { .. } | Record::TreeWords { .. }) {
            self.tables.record(record);
        }
        match *record {
            Record::Pc { number, kind, address, module } => {
                let start = self.tables.raw_modules().get(&module).map(|module| module.start);
                self.packer.pc(number, kind, address, module, start);
            }
            Record::TreeWords { first, words } => self.packer.words(first, words),
            Record::ModuleLoaded(module) => self.pack_module(module.number),
            Record::ModuleUnloaded { number, .. } => self.pack_module(number),
            Record::Loss { kind, count } => reader::note_loss(kind, count, &mut self.findings),
            Record::End { reason, counter } => self.end = Some((reason, counter)),
            _ => {}
        }
    }

    /// For a recording that is not closed; the last word on threads is written at the end.
    fn pack_threads(&mut self) {
        for (number, name) in std::mem::take(&mut self.queues.told) {
            if let Some(thread) = self.queues.lives.thread(number, &self.scale) {
                let name = name.unwrap_or_default();
                self.packer.thread(&Thread { name, earlier_names: Vec::new(), ..thread });
            }
        }
    }

    fn pack_module(&mut self, number: u32) {
        let Some(module) = self.tables.raw_modules().get(&number).filter(|module| module.end != 0) else {
            return;
        };
        let module = Module {
            id: ModuleId(number),
            path: module.path.clone(),
            build_id: module.build_id.clone(),
            start: AbsoluteAddress::new(module.start),
            end: AbsoluteAddress::new(module.end),
            bias: module.bias,
            loaded_nanos: self.scale.nanos(module.loaded),
            unloaded_nanos: module.unloaded.map(|counter| self.scale.nanos(counter)),
        };
        self.packer.module(&module);
    }

    /// Merges the events up to `horizon`, and puts each memory sample between those before and
    /// those behind it. A sample in front of older events would move their times to its own.
    fn merge_with_usages(&mut self, horizon: u64) {
        while let Some((ticks, mut usage)) = self.usages.pop_front_if(|(ticks, _)| *ticks <= horizon) {
            self.merge(ticks);
            usage.at.nanos = self.scale.nanos_of_ticks(ticks).max(self.merged_nanos);
            self.packer.usage(&usage);
        }
        self.merge(horizon);
    }

    fn merge(&mut self, horizon: u64) {
        let Some(pairing) = self.pairing.take() else { return };
        let mut delivery =
            Delivery::resume(&self.scale, Wanted::ALL, &mut self.packer, pairing, self.merged_nanos);
        for stream in 0..self.blocks.len() as u32 {
            self.merger.wake(stream, &mut self.queues);
        }
        self.merger.run(horizon, &mut self.queues, &mut delivery, |_| false);
        let (pairing, nanos) = delivery.into_parts();
        self.pairing = Some(pairing);
        self.merged_nanos = nanos;
        self.read_rare_met();
        self.pack_threads();
        self.drained.append(&mut self.queues.merged);
        self.findings.append(&mut self.queues.findings);
        // Memory for a burst is given back when it is over.
        self.queues.spare.truncate(64);
    }

    /// Everything that was merged goes to the file, and then the blocks that it came from go back to the program.
    fn flush(&mut self) -> Result<(), RecordingError> {
        let (merger, queues) = (&self.merger, &self.queues);
        let lanes = queues.handed.iter().zip(0..);
        let progress = lanes.filter_map(|(handed, lane)| Some(handed.progress(merger.place(lane)?)));
        let until_nanos = self.scale.nanos_of_ticks(self.merged_ticks).max(self.merged_nanos);
        self.packer.flush_with_progress(progress, until_nanos)?;
        self.last_flush = Instant::now();
        let unmatched_frees = self.pairing.as_ref().map_or(0, Pairing::unmatched_frees);
        self.shared.store(control::UNMATCHED_FREES as u64, unmatched_frees);
        // Not over entries that the program has taken since they were looked at: which blocks these are has still to be read.
        let unseen = (self.given - self.seen_taken).min(control::FREE_RING_ENTRIES as u64);
        let room = control::FREE_RING_ENTRIES as u64 - unseen;
        let count = self.drained.len().min(room as usize);
        for block in self.drained.drain(..count) {
            let offset = u64::from(block) * SEGMENT_BYTES as u64;
            // Without a header the block is empty until the next thread that takes it writes one; whenever this process is killed, it
            // is either that or whole.
            self.shared.store(offset + SegmentHeader::COMMITTED_OFFSET as u64, 0);
            for word in 0..SEGMENT_HEADER_BYTES as u64 / 8 {
                self.shared.store(offset + word * 8, 0);
            }
            let at = control::FREE_RING as u64 + self.given % control::FREE_RING_ENTRIES as u64 * 4;
            let (word, shift) = (at & !7, at % 8 * 8);
            let others = self.shared.load(word) & !(u64::from(u32::MAX) << shift);
            self.shared.store(word, others | u64::from(block) << shift);
            self.given += 1;
        }
        self.shared.store(control::FREE_GIVEN as u64, self.given);
        Ok(())
    }

    fn ring_entry(&self, number: u64) -> u32 {
        let at = control::FREE_RING as u64 + number % control::FREE_RING_ENTRIES as u64 * 4;
        (self.shared.load(at & !7) >> (at % 8 * 8)) as u32
    }

    /// Sees to it that the program finds storage without a system call.
    fn reserve_ahead(&mut self) -> Result<(), RecordingError> {
        let claimed = self.shared.load(control::CLAIMED_SEGMENTS as u64).max(1);
        let backed = self.shared.load(control::BACKED_SEGMENTS as u64);
        let free = self.given.saturating_sub(self.shared.load(control::FREE_TAKEN as u64));
        let wanted = claimed + AHEAD_BLOCKS.saturating_sub(free);
        if wanted <= backed {
            return Ok(());
        }
        // In steps, so that the file system is asked rarely.
        let wanted = wanted.next_multiple_of(64);
        let failed = RecordingError::io("reserving storage for the spool");
        self.shared.reserve(wanted * SEGMENT_BYTES as u64).map_err(failed)?;
        let present = self.shared.length() / SEGMENT_BYTES as u64;
        // The program extends the file, too.
        self.shared.raise(control::BACKED_SEGMENTS as u64, present);
        Ok(())
    }
}
