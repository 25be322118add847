//! Reads recordings (`*.cairn`): what was loaded when, every stack, and every event in order.
//!
//! ```no_run
//! use cairn_recording::{Alloc, Events, Free, Recording, Wanted};
//!
//! /// How many bytes were in use at most?
//! #[derive(Default)]
//! struct Peak {
//!     now: u64,
//!     most: u64,
//! }
//!
//! impl Events for Peak {
//!     fn alloc(&mut self, event: &Alloc) {
//!         self.now += event.size_bytes;
//!         self.most = self.most.max(self.now);
//!     }
//!     fn free(&mut self, event: &Free) {
//!         self.now -= event.size_bytes;
//!     }
//! }
//!
//! let recording = Recording::open("program.4711.cairn")?;
//! let mut peak = Peak::default();
//! recording.read(&Wanted::HEAP, &mut peak)?;
//! println!("{} bytes", peak.most);
//! for finding in recording.findings() {
//!     eprintln!("note: {finding}");
//! }
//! # Ok::<(), cairn_recording::RecordingError>(())
//! ```
//!
//! A recording is a *spool*, as the program wrote it, or *packed*; both read alike. What a killed program or a full disk
//! left behind is read as far as it goes, and [`Finding`]s tell what is missing. Every byte may be a stranger's: sizes are
//! compared with what is there before memory is taken, numbers with their tables, and the memory that reading takes is a
//! multiple of the recording's length.
//!
//! | module | task |
//! |---|---|
//! | `source` | bytes from memory or a file |
//! | `model` | modules, stacks, threads and events, the same for every shape of file |
//! | `tables` | modules, addresses, stacks and threads while they are read |
//! | `clock` | converts the counter to nanoseconds and to the time of day |
//! | `spool` | reads spools: `reader` opens one, `merge` orders the lanes, `pairing` pairs frees with allocations across threads, `deliver` calls the visitor, `follow` reads what is new, `lives` separates threads that had one lane, `external_marks` adds marks from other processes |
//! | `packed` | reads packed recordings: `chunk` finds chunks, `columns` and `rows` read numbers, `heap_events`, `marks` and `times` decode events, `zstd_stream` decompresses, `progress` joins a packed recording with the rest of its spool |
//! | `write` | `drain` packs the spool of a running program, `pack` packs a whole recording |
//! | `summary` | sums of all events, stored behind them |
//! | `growth` | opens a recording that a program still writes |
//! | `prefetch` | loads memory before it is needed |
//! | `mapped_file` | memory shared with the program, and large tables; the one file with unsafe code |
//! | [`spool_builder`] | builds a spool from stacks and marks that were found in another way |

#![deny(unsafe_code)]

mod clock;
mod error;
mod growth;
#[cfg(target_os = "linux")]
mod mapped_file;
mod model;
mod packed;
mod prefetch;
mod source;
mod spool;
pub mod spool_builder;
mod summary;
mod tables;
mod write;

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cairn_format::recording::{FILE_HEADER_BYTES, FileHeader, SEGMENT_BYTES, Shape};

pub use clock::TimeScale;
pub use error::{EndedEarly, Finding, RecordingError};
pub use growth::{Growth, is_written};
pub use model::{
    Alloc, At, Change, Events, Fact, Free, Mapping, Mark, Module, ModuleId, ObjectId, PcId, Place,
    StackFrame, StackId, Thread, ThreadId, Usage, Wanted,
};
#[cfg(target_os = "linux")]
pub use spool::external_marks::{command_from_outside, command_in, mark_from_outside, mark_in};
pub use tables::StackTree;
#[cfg(target_os = "linux")]
pub use write::drain::{Drain, Status};
pub use write::pack::{Summary, pack};

pub use cairn_format::recording::{EndReason, LossKind, MappingKind, MarkValue, PcKind, control};

pub use growth::nanos_since_start;
pub use packed::columns::{Put, Take};
use packed::reader::Packed;
pub use prefetch::fetch;
use source::Source;
pub use spool::follow::{Live, is_running};
use spool::reader::{RawEarlyEnd, Spool};
pub use summary::{Detail, Kept};
use tables::{TableBuilder, Tables};

/// Times of allocations and frees in packed recordings are multiples of this. Their order is exact.
pub const HEAP_TIME_QUANTUM_NANOS: u64 = 10_000;

/// A recording, opened: its tables are read, its events are read on demand.
pub struct Recording {
    header: FileHeader,
    source: Source,
    layout: Layout,
    facts: Vec<Fact>,
    tables: Tables,
    scale: TimeScale,
    end: Option<(EndReason, u64)>,
    early: Option<RawEarlyEnd>,
    findings: Vec<Finding>,
    /// The times beyond which nothing is told.
    window: Option<(u64, u64)>,
    /// What follows in the program's spool.
    rest: Option<Rest>,
}

/// What a spool has behind the end of a packed recording that was not closed.
struct Rest {
    source: Source,
    spool: Spool,
    scale: TimeScale,
}

enum Layout {
    Spool(Spool),
    Packed(Box<Packed>),
}

impl Recording {
    /// Opens a file.
    ///
    /// # Errors
    ///
    /// When it cannot be read, or is no recording. A damaged one opens, with [`findings`](Self::findings).
    pub fn open(path: impl AsRef<Path>) -> Result<Self, RecordingError> {
        Self::open_path(path.as_ref(), None)
    }

    /// Opens a packed recording that was not closed because `cairn` itself was killed, together with the spool of the program that it
    /// was made of: every event is told once, from whichever has it. [`open`](Self::open) does this by itself where the two have the
    /// names that `cairn` gives them (the packed one that of the spool with `.new` behind it).
    ///
    /// What was packed has no addresses any more. So frees behind the end of the packed recording, of blocks from before it, find no
    /// block: they are counted as [unmatched](Outcome::unmatched_frees), and their blocks seem to live on. Where the two files meet, that
    /// count may be wrong by the few frees that came in another order than their threads'.
    ///
    /// A packed recording that was closed is whole, and the spool is not read; nor is one of another process, or one that somebody
    /// still drains. [`Finding::Continued`] tells when it was.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open), for either file.
    pub fn open_with_rest(packed: impl AsRef<Path>, spool: impl AsRef<Path>) -> Result<Self, RecordingError> {
        let mut recording = Self::from_source(open_source(packed.as_ref())?, None)?;
        recording.continue_in(spool.as_ref())?;
        Ok(recording)
    }

    /// Adds what the spool has that is not here; false when nothing is to be had from it.
    fn continue_in(&mut self, path: &Path) -> Result<bool, RecordingError> {
        let Layout::Packed(packed) = &mut self.layout else { return Ok(false) };
        if packed.summary.is_some() {
            return Ok(false);
        }
        let source = open_source(path)?;
        let mut first = Vec::new();
        source.read_at(0, SEGMENT_BYTES, &mut first)?;
        let Ok(header) = FileHeader::read(&first) else { return Ok(false) };
        if header.shape != Shape::Spool || !is_of_same(&header, &self.header) {
            return Ok(false);
        }
        let is_given_back = spool::reader::word(&first, control::FREE_GIVEN) > 0;
        if packed.progress.is_none() && is_given_back || is_drained_now(&source, &first)? {
            return Ok(false);
        }
        // Who drained it may have gone on, and closed it, since it was read here; from now on nobody does.
        let window = self.window;
        *self = Self { window, ..Self::from_source(self.source.again()?, None)? };
        source.read_at(0, SEGMENT_BYTES, &mut first)?;
        let Layout::Packed(packed) = &mut self.layout else { return Ok(false) };
        if packed.summary.is_some() {
            return Ok(true);
        }
        let is_given_back = spool::reader::word(&first, control::FREE_GIVEN) > 0;
        if packed.progress.is_none() && is_given_back {
            return Ok(false);
        }
        let cut = packed.end_at_progress();
        packed.unmatched_frees = spool::reader::word(&first, control::UNMATCHED_FREES);
        let mut findings = Vec::new();
        let part = spool::reader::Part::Rest(packed.lanes());
        let (mut scanned, _) = spool::reader::scan(&source, &header, part, &mut findings)?;
        let facts = &scanned.facts;
        let scale = TimeScale::new(&header, &scanned.tables.clocks, counter_hz(facts), &mut findings);
        let mut rest = scanned.tables.finish(&scale);
        let has_began_record = |number| scanned.tables.threads.has_began_record(number);
        let numbers = spool::lives::numbers_behind(&self.tables.threads, &rest.threads, has_began_record);
        let number = |id: u32| numbers.get(&id).copied().unwrap_or(id);
        scanned.spool.renumber_threads(number);
        rest.threads.iter_mut().for_each(|thread| thread.id = ThreadId(number(thread.id.0)));
        self.tables.absorb(rest);
        let bad_rows = scanned.tables.bad_rows;
        if bad_rows > 0 {
            findings.push(Finding::BadTableRows { count: bad_rows });
        }
        if let Some((reason, counter)) = scanned.end {
            self.end = Some((reason, self.header.start_counter.saturating_add(scale.nanos(counter))));
        }
        if let Some(early) = scanned.early {
            let ended = early.ended(&scale);
            let nanos =
                if ended.nanos == 0 { 0 } else { self.header.start_counter.saturating_add(ended.nanos) };
            self.early = Some(RawEarlyEnd { counter: nanos, ..early });
            self.findings.insert(0, Finding::EndedEarly(ended));
        }
        let has_end = self.end.is_some();
        self.findings.retain(|finding| match finding {
            Finding::NotClosed | Finding::NoIndex => false,
            Finding::NoEnd => !has_end,
            Finding::TornTail { offset, .. } | Finding::SkippedBytes { offset, .. } => *offset < cut,
            _ => true,
        });
        findings.retain(|finding| !matches!(finding, Finding::Drained { .. }));
        self.findings.append(&mut findings);
        self.findings.push(Finding::Continued { spool: path.to_owned() });
        self.rest = Some(Rest { source, spool: scanned.spool, scale });
        Ok(true)
    }

    /// Opens a part of the time of a file: reads of a spool only the blocks that may have something of it, some milliseconds in place
    /// of a second for each gigabyte. `choose` says which part, in nanoseconds from the start: from the first on, before the second.
    ///
    /// [`read`](Self::read) then tells the marks and rare events of that part, and no allocations and frees: these hang on all that came
    /// before. Modules and stacks are all there; [`findings`](Self::findings) are those of what was read.
    ///
    /// ```no_run
    /// # use cairn_recording::Recording;
    /// let second = |_: &_| (60_000_000_000, 61_000_000_000);
    /// let recording = Recording::open_window("program.4711.cairn", second)?;
    /// # Ok::<(), cairn_recording::RecordingError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub fn open_window(
        path: impl AsRef<Path>,
        choose: impl FnOnce(&TimeScale) -> (u64, u64),
    ) -> Result<Self, RecordingError> {
        Self::open_path(path.as_ref(), Some(Box::new(choose)))
    }

    /// Opens what is in memory.
    ///
    /// # Errors
    ///
    /// When it is no recording.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, RecordingError> {
        Self::from_source(Source::Bytes(bytes), None)
    }

    /// As [`open_window`](Self::open_window), of what is in memory.
    ///
    /// # Errors
    ///
    /// When it is no recording.
    pub fn from_bytes_window(
        bytes: Vec<u8>,
        choose: impl FnOnce(&TimeScale) -> (u64, u64),
    ) -> Result<Self, RecordingError> {
        Self::from_source(Source::Bytes(bytes), Some(Box::new(choose)))
    }

    /// Opens what comes out of a pipe, when it has come whole.
    ///
    /// # Errors
    ///
    /// When it cannot be read, or is no recording.
    pub fn from_reader(reader: impl Read) -> Result<Self, RecordingError> {
        Self::from_source(Source::from_reader(reader)?, None)
    }

    fn from_source(
        source: Source,
        mut choose: Option<Box<spool::reader::ChooseWindow<'_>>>,
    ) -> Result<Self, RecordingError> {
        let mut start = Vec::new();
        source.read_at(0, FILE_HEADER_BYTES, &mut start)?;
        let header = FileHeader::read(&start)?;
        let mut findings = Vec::new();
        let mut window = None;
        let (layout, facts, mut tables, end, early) = match header.shape {
            Shape::Spool => {
                let scanned;
                (scanned, window) = spool::reader::scan(
                    &source,
                    &header,
                    spool::reader::Part::window(&mut choose),
                    &mut findings,
                )?;
                let early = scanned.early;
                (Layout::Spool(scanned.spool), scanned.facts, scanned.tables, scanned.end, early)
            }
            Shape::Packed => {
                let opened = packed::reader::open(&source, &header, &mut findings)?;
                let early = opened.early;
                (Layout::Packed(Box::new(opened.packed)), opened.facts, opened.tables, opened.end, early)
            }
        };
        let scale = TimeScale::new(&header, &tables.clocks, counter_hz(&facts), &mut findings);
        if let Some(early) = early {
            findings.insert(0, Finding::EndedEarly(early.ended(&scale)));
        }
        if tables.bad_rows > 0 {
            findings.push(Finding::BadTableRows { count: tables.bad_rows });
        }
        if end.is_none() {
            findings.push(Finding::NoEnd);
        }
        if matches!(&layout, Layout::Packed(packed) if packed.summary.is_none()) {
            findings.push(Finding::NotClosed);
        }
        let window = choose.map_or(window, |choose| Some(choose(&scale)));
        let tables = tables.take_tables(&scale);
        Ok(Self { header, source, layout, facts, tables, scale, end, early, findings, window, rest: None })
    }

    /// A recording without events and tables, which [`Live`] fills.
    fn empty(source: Source) -> Result<Self, RecordingError> {
        let mut start = Vec::new();
        source.read_at(0, SEGMENT_BYTES, &mut start)?;
        let header = FileHeader::read(&start)?;
        let (layout, facts) = match header.shape {
            Shape::Spool => (Layout::Spool(Spool::empty()), spool::reader::facts(&start)),
            Shape::Packed => (Layout::Packed(Box::new(Packed::empty())), Vec::new()),
        };
        let (mut findings, tables) = (Vec::new(), TableBuilder::default());
        let scale = TimeScale::new(&header, &[], counter_hz(&facts), &mut findings);
        let tables = tables.finish(&scale);
        let (end, early, window, rest, findings) = (None, None, None, None, Vec::new());
        Ok(Self { header, source, layout, facts, tables, scale, end, early, findings, window, rest })
    }

    /// The same file, opened anew, whatever it is called by now: with what an opening finds, for one that was read by [`Live`].
    pub fn reopened(&self) -> Result<Self, RecordingError> {
        Self::from_source(self.source.again()?, None)
    }

    #[must_use]
    /// Whether the file at `path` is this recording, in whatever shape.
    pub fn is_at(&self, path: &Path) -> bool {
        header_of(path).is_some_and(|header| is_of_same(&header, &self.header))
    }

    /// Adds what a reader that followed the recording found, and that it has no end when it has none.
    pub fn add_findings(&mut self, findings: &[Finding]) {
        self.findings.extend_from_slice(findings);
        if self.end.is_none() {
            self.findings.push(Finding::NoEnd);
        }
    }

    /// What its first bytes say: the process, the processor, when it began.
    #[must_use]
    pub fn header(&self) -> &FileHeader {
        &self.header
    }

    /// The command line, the host and the like.
    #[must_use]
    pub fn facts(&self) -> &[Fact] {
        &self.facts
    }

    /// The fact of that name.
    #[must_use]
    pub fn fact(&self, name: &str) -> Option<&[u8]> {
        self.facts.iter().find(|fact| fact.name == name).map(|fact| fact.value.as_slice())
    }

    /// From nanoseconds since the start to the time of day.
    #[must_use]
    pub fn time_scale(&self) -> &TimeScale {
        &self.scale
    }

    /// Every load of a module, by number.
    #[must_use]
    pub fn modules(&self) -> &[Module] {
        &self.tables.modules
    }

    /// One of them.
    #[must_use]
    pub fn module(&self, id: ModuleId) -> Option<&Module> {
        self.tables.module(id)
    }

    /// Every thread, by number.
    #[must_use]
    pub fn threads(&self) -> &[Thread] {
        &self.tables.threads
    }

    /// One of them.
    #[must_use]
    pub fn thread(&self, id: ThreadId) -> Option<&Thread> {
        let index = self.tables.threads.binary_search_by_key(&id, |thread| thread.id).ok()?;
        self.tables.threads.get(index)
    }

    /// The stacks as a tree.
    #[must_use]
    pub fn stacks(&self) -> &StackTree {
        &self.tables.stacks
    }

    /// What a frame's number stands for. `None` when the file lost it.
    #[must_use]
    pub fn frame(&self, pc: PcId) -> Option<StackFrame> {
        self.tables.frame(pc)
    }

    /// The frames of a stack, innermost first.
    pub fn frames(&self, stack: StackId) -> impl Iterator<Item = StackFrame> + '_ {
        self.tables.stacks.pc_ids(stack).filter_map(|pc| self.tables.frame(pc))
    }

    /// Why the recording ended, and at how many nanoseconds; `None` when it has no end.
    #[must_use]
    pub fn end(&self) -> Option<(EndReason, u64)> {
        self.end.map(|(reason, counter)| (reason, self.scale.nanos(counter)))
    }

    /// Whether the recording ended, or was read, before its program did: then a block that was not
    /// freed is alive, and no leak.
    ///
    /// So it is of every reason but two: an exit, and a process that is gone by `_exit` or a
    /// signal. After an `exec` the process goes on as another program, and its blocks are gone with
    /// the one that was recorded. A recording without an end counts when the program still writes
    /// it; else the program was killed.
    #[must_use]
    pub fn ended_before_program(&self) -> bool {
        match self.end {
            Some((reason, _)) => !matches!(reason, EndReason::Exit | EndReason::Gone),
            None => self.growth().is_some(),
        }
    }

    /// When recording was stopped and then started again, in nanoseconds from the start: what was
    /// freed in between seems to live.
    #[must_use]
    pub fn pauses(&self) -> Vec<(u64, u64)> {
        let facts = self.facts.iter().filter(|fact| fact.name == PAUSE_FACT);
        facts.filter_map(|fact| parse_pause(std::str::from_utf8(&fact.value).ok()?)).collect()
    }

    /// Why and when the recording ended before its program did; `None` when it did not, or nothing says so. [`end`](Self::end) is then
    /// [`EndReason::Stopped`], and the same is the first of the [`findings`](Self::findings).
    #[must_use]
    pub fn ended_early(&self) -> Option<EndedEarly> {
        self.early.map(|early| early.ended(&self.scale))
    }

    /// What the recording holds in sum; `None` for a spool, and for a packed recording that was not closed.
    #[must_use]
    pub fn summary(&self) -> Option<&Summary> {
        match &self.layout {
            Layout::Spool(_) => None,
            Layout::Packed(packed) => packed.summary.as_ref(),
        }
    }

    /// What a reader should know of the file: losses, damages.
    #[must_use]
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// Hands events to a visitor, in order.
    ///
    /// The answer says how many frees were of blocks that are older than the recording; visitors do not see these.
    ///
    /// # Errors
    ///
    /// When the file cannot be read any more.
    pub fn read<E: Events>(&self, wanted: &Wanted, events: &mut E) -> Result<Outcome, RecordingError> {
        let mut findings = Vec::new();
        let wanted = &match self.window {
            None => *wanted,
            Some((since, until)) => Wanted {
                heap: false,
                since_nanos: wanted.since_nanos.max(since),
                until_nanos: wanted.until_nanos.min(until),
                ..*wanted
            },
        };
        let unmatched_frees = match &self.layout {
            Layout::Spool(spool) => spool.read(&self.source, &self.scale, wanted, events)?,
            Layout::Packed(packed) => {
                let end = packed.read(&self.source, wanted, events, &mut findings)?;
                match &self.rest {
                    Some(rest) if !events.is_enough() => {
                        let mut events = spool::deliver::Renumbered::new(events, end.slots);
                        let unmatched = rest.spool.read_from(
                            &rest.source,
                            &rest.scale,
                            wanted,
                            &mut events,
                            end.nanos,
                        )?;
                        unmatched.saturating_add(packed.unmatched_frees)
                    }
                    _ => match &packed.summary {
                        Some(summary) => summary.unmatched_frees,
                        None => packed.unmatched_frees,
                    },
                }
            }
        };
        Ok(Outcome { unmatched_frees, findings })
    }
}

/// What is to say after the events were read.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct Outcome {
    /// What could not be read of the events; [`Recording::findings`] tells of the tables.
    pub findings: Vec<Finding>,
    /// Frees of blocks that are older than the recording, or whose allocation was lost.
    pub unmatched_frees: u64,
}

/// Whether two files are of the same start of the same process.
fn is_of_same(one: &FileHeader, other: &FileHeader) -> bool {
    let identity =
        |header: &FileHeader| (header.process, header.start_wall_nanos, header.start_monotonic_nanos);
    identity(one) == identity(other)
}

/// The packed recording that is being made of the spool in a file, where there is one.
#[must_use]
pub fn drained_into(spool: &Path) -> Option<PathBuf> {
    let mut name = spool.as_os_str().to_owned();
    name.push(NEW);
    let packed = PathBuf::from(name);
    let (of_spool, of_packed) = (header_of(spool)?, header_of(&packed)?);
    let fits = of_spool.shape == Shape::Spool && of_packed.shape == Shape::Packed;
    (fits && is_of_same(&of_spool, &of_packed)).then_some(packed)
}

/// The spool that a packed recording is being made of, where its name tells.
#[must_use]
pub fn drained_from(packed: &Path) -> Option<PathBuf> {
    let spool = beside(packed, true)?;
    (drained_into(&spool)? == packed).then_some(spool)
}

/// Whether somebody drains the spool in a file at present.
#[must_use]
pub fn is_drained_at_present(spool: &Path) -> bool {
    let mut first = Vec::new();
    open_source(spool).is_ok_and(|source| {
        source.read_at(0, SEGMENT_BYTES, &mut first).is_ok()
            && is_drained_now(&source, &first).unwrap_or(false)
    })
}

/// What the first bytes of a file say, if it is a recording.
fn header_of(path: &Path) -> Option<FileHeader> {
    let mut start = Vec::new();
    let file = File::open(path).ok().filter(|file| file.metadata().is_ok_and(|facts| facts.is_file()))?;
    file.take(FILE_HEADER_BYTES as u64).read_to_end(&mut start).ok()?;
    FileHeader::read(&start).ok()
}

/// What is behind the name of a spool in that of the packed recording that is being made of it.
const NEW: &str = ".new";

/// The spool of a packed recording that was left before its end.
fn beside(path: &Path, is_left: bool) -> Option<PathBuf> {
    let name = path.file_name()?.to_str()?.strip_suffix(NEW).filter(|_| is_left)?;
    let spool = path.with_file_name(name);
    spool.is_file().then_some(spool)
}

/// Whether somebody drains this spool at present: then what is read here may be in the other file a moment later. The kernel knows who
/// holds the file, even one who gets no processor or is about to close the recording. Where it has no locks, the tick tells, which
/// changes about once in a millisecond.
fn is_drained_now(source: &Source, first: &[u8]) -> Result<bool, RecordingError> {
    const LOOKS: u32 = 4;
    if source.is_held() {
        return Ok(true);
    }
    let before = spool::reader::word(first, control::TICK);
    let mut bytes = Vec::new();
    for _ in 0..LOOKS {
        std::thread::sleep(Duration::from_millis(5));
        source.read_at(control::TICK as u64, 8, &mut bytes)?;
        if spool::reader::word(&bytes, 0) != before {
            return Ok(true);
        }
    }
    Ok(false)
}

fn open_source(path: &Path) -> Result<Source, RecordingError> {
    let file = File::open(path).map_err(RecordingError::io(format!("opening {}", path.display())))?;
    let is_file = file.metadata().is_ok_and(|metadata| metadata.is_file());
    // A pipe or a device has no places to read at.
    if is_file { Ok(Source::File(file)) } else { Source::from_reader(file) }
}

/// A fact of whoever drains the spool: `FROM..TO`, the nanoseconds between which nothing was
/// recorded.
const PAUSE_FACT: &str = "paused_nanos";

fn parse_pause(text: &str) -> Option<(u64, u64)> {
    let (from, to) = text.split_once("..")?;
    Some((from.parse().ok()?, to.parse().ok()?))
}

/// How fast the counter runs, where the recorder found out.
fn counter_hz(facts: &[Fact]) -> Option<u64> {
    let fact = facts.iter().find(|fact| fact.name == "counter_hz")?;
    std::str::from_utf8(&fact.value).ok()?.parse().ok()
}
