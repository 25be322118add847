//! Reads recordings (`*.cairn`): what was loaded when, every stack, and every event in order.
//!
//! ```no_run
//! use cairn_analysis::recording::{Alloc, Events, Free, Recording, Wanted};
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
//! # Ok::<(), cairn_analysis::recording::RecordingError>(())
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
//! | `spool` | from blocks to streams of records |
//! | `merge` | one order for the streams |
//! | `pairing` | which allocation a free belongs to |
//! | `deliver` | from records to events |
//! | `tables` | modules, stacks, threads while they are read |
//! | `clock` | from the counter to the time of day |
//! | `drain` | from the spool of a running program to a packed recording |
//! | `mapped_file` | the memory shared with the program |
//! | `outside` | marks from outside of the program |
//! | `packer` | from events to a packed recording |
//! | `packed` | and back |
//! | `chunk` | chunks of bytes and where they are |
//! | `heap`, `marks`, `rows`, `columns` | what is in them |

mod chunk;
mod clock;
mod columns;
mod deliver;
#[cfg(target_os = "linux")]
mod drain;
mod error;
mod heap;
#[cfg(target_os = "linux")]
mod mapped_file;
mod marks;
mod merge;
mod model;
#[cfg(target_os = "linux")]
mod outside;
mod packed;
mod packer;
mod pairing;
mod rows;
mod source;
mod spool;
mod tables;

use std::fs::File;
use std::io::Read;
use std::path::Path;

use cairn_format::recording::{FILE_HEADER_BYTES, FileHeader, Shape};

pub use clock::TimeScale;
#[cfg(target_os = "linux")]
pub use drain::{Drain, Status};
pub use error::{Finding, RecordingError};
pub use model::{
    Alloc, At, Change, Events, Fact, Free, Mapping, Mark, Module, ModuleId, ObjectId, PcId, Place,
    StackFrame, StackId, Thread, ThreadId, Usage, Wanted,
};
#[cfg(target_os = "linux")]
pub use outside::mark_from_outside;
pub use packer::{Summary, pack};
pub use tables::StackTree;

pub use cairn_format::recording::{EndReason, LossKind, MappingKind, MarkValue, PcKind, control};

use packed::Packed;
use source::Source;
use spool::Spool;
use tables::Tables;

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
    findings: Vec<Finding>,
}

enum Layout {
    Spool(Spool),
    Packed(Packed),
}

impl Recording {
    /// Opens a file.
    ///
    /// # Errors
    ///
    /// When it cannot be read, or is no recording. A damaged one opens, with [`findings`](Self::findings).
    pub fn open(path: impl AsRef<Path>) -> Result<Self, RecordingError> {
        let path = path.as_ref();
        let file = File::open(path).map_err(RecordingError::io(format!("opening {}", path.display())))?;
        let is_file = file.metadata().is_ok_and(|metadata| metadata.is_file());
        // A pipe or a device has no places to read at.
        if is_file { Self::from_source(Source::File(file)) } else { Self::from_reader(file) }
    }

    /// Opens what is in memory.
    ///
    /// # Errors
    ///
    /// When it is no recording.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, RecordingError> {
        Self::from_source(Source::Bytes(bytes))
    }

    /// Opens what comes out of a pipe, when it has come whole.
    ///
    /// # Errors
    ///
    /// When it cannot be read, or is no recording.
    pub fn from_reader(reader: impl Read) -> Result<Self, RecordingError> {
        Self::from_source(Source::from_reader(reader)?)
    }

    fn from_source(source: Source) -> Result<Self, RecordingError> {
        let mut start = Vec::new();
        source.read_at(0, FILE_HEADER_BYTES, &mut start)?;
        let header = FileHeader::read(&start)?;
        let mut findings = Vec::new();
        let (layout, facts, tables, end) = match header.shape {
            Shape::Spool => {
                let scanned = spool::scan(&source, &header, &mut findings)?;
                (Layout::Spool(scanned.spool), scanned.facts, scanned.tables, scanned.end)
            }
            Shape::Packed => {
                let opened = packed::open(&source, &header, &mut findings)?;
                (Layout::Packed(opened.packed), opened.facts, opened.tables, opened.end)
            }
        };
        let scale = TimeScale::new(&header, &tables.clocks, counter_hz(&facts), &mut findings);
        if tables.bad_rows > 0 {
            findings.push(Finding::BadTableRows { count: tables.bad_rows });
        }
        if end.is_none() {
            findings.push(Finding::NoEnd);
        }
        if matches!(&layout, Layout::Packed(packed) if packed.summary.is_none()) {
            findings.push(Finding::NotClosed);
        }
        let tables = tables.finish(&scale);
        Ok(Self { header, source, layout, facts, tables, scale, end, findings })
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
        let unmatched_frees = match &self.layout {
            Layout::Spool(spool) => spool.read(&self.source, &self.scale, wanted, events)?,
            Layout::Packed(packed) => {
                packed.read(&self.source, wanted, events, &mut findings)?;
                packed.summary.as_ref().map_or(0, |summary| summary.unmatched_frees)
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

/// How fast the counter runs, where the recorder found out.
fn counter_hz(facts: &[Fact]) -> Option<u64> {
    let fact = facts.iter().find(|fact| fact.name == "counter_hz")?;
    std::str::from_utf8(&fact.value).ok()?.parse().ok()
}
