//! A recording that was opened: its tables, and its events on demand.

use std::path::Path;

use cairn_format::recording::{EndReason, FileHeader};

use crate::clock::TimeScale;
use crate::error::{EndedEarly, Finding, RecordingError};
use crate::files::{header_of, is_of_same};
use crate::generated::{CodePiece, GeneratedCode};
use crate::growth::Growth;
use crate::model::{Events, Fact, Module, ModuleId, PcId, StackFrame, StackId, Thread, ThreadId, Wanted};
use crate::packed::reader::Packed;
use crate::source::Source;
use crate::spool::control_words::{PEAK_RESIDENT_FACT, RawEarlyEnd};
use crate::spool::deliver::Renumbered;
use crate::spool::reader::Spool;
use crate::tables::{Interpreter, StackTree, Tables};
use crate::write::pack::Totals;

/// A recording, opened: its tables are read, its events are read on demand.
pub struct Recording {
    pub(crate) header: FileHeader,
    pub(crate) source: Source,
    pub(crate) layout: Layout,
    pub(crate) facts: Vec<Fact>,
    pub(crate) tables: Tables,
    pub(crate) scale: TimeScale,
    pub(crate) end: Option<(EndReason, u64)>,
    pub(crate) early: Option<RawEarlyEnd>,
    pub(crate) findings: Vec<Finding>,
    /// The times beyond which no event is handed on.
    pub(crate) window: Option<(u64, u64)>,
    /// Remaining events in the program's spool.
    pub(crate) rest: Option<Rest>,
}

/// Contents of a spool behind the end of a packed recording that was not closed.
pub(crate) struct Rest {
    pub(crate) source: Source,
    pub(crate) spool: Spool,
    pub(crate) scale: TimeScale,
}

/// The reader of a recording's events.
pub(crate) enum Layout {
    Spool(Spool),
    Packed(Box<Packed>),
}

impl Recording {
    /// Whether the file at `path` is this recording, in whatever shape.
    #[must_use]
    pub fn is_at(&self, path: &Path) -> bool {
        header_of(path).is_some_and(|header| is_of_same(&header, &self.header))
    }

    /// Adds what a reader that followed the recording found, and that it has no end when it has
    /// none.
    pub fn add_findings(&mut self, findings: &[Finding]) {
        self.findings.extend_from_slice(findings);
        if self.end.is_none() {
            self.findings.push(Finding::NoEnd);
        }
    }

    /// Returns the file header: the process, the processor, the start time.
    #[must_use]
    pub fn header(&self) -> &FileHeader {
        &self.header
    }

    /// The command line, the host and the like.
    #[must_use]
    pub fn facts(&self) -> &[Fact] {
        &self.facts
    }

    /// Returns the most resident memory of the process, by the kernel's count at its `exit`.
    ///
    /// Cairn's own memory is included. `None` for a process that ended in another way.
    #[must_use]
    pub fn peak_resident_bytes(&self) -> Option<u64> {
        std::str::from_utf8(self.fact(PEAK_RESIDENT_FACT)?).ok()?.parse().ok()
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

    /// The names of code that JIT compilers made.
    #[must_use]
    pub fn generated_code(&self) -> &GeneratedCode {
        &self.tables.generated
    }

    /// Adds names of generated code that were read elsewhere, as of the end of the recording.
    pub fn add_generated_code(&mut self, pieces: impl IntoIterator<Item = CodePiece>) {
        let known = self.tables.generated.pieces().len() as u64;
        for (index, piece) in (known..).zip(pieces) {
            self.tables.generated.add(index, piece);
        }
    }

    /// The stacks as a tree.
    #[must_use]
    pub fn stacks(&self) -> &StackTree {
        &self.tables.stacks
    }

    /// The interpreters in the process, in no order.
    #[must_use]
    pub fn interpreters(&self) -> &[Interpreter] {
        &self.tables.interpreters
    }

    /// The frame of a number. `None` when the file lost it.
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

    /// Returns whether the recording ended, or was read, before its program did.
    ///
    /// Then a block that was not freed is alive, and no leak.
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

    /// Returns when recording was stopped and started again, in nanoseconds from the start.
    ///
    /// Blocks that were freed in between seem to live.
    #[must_use]
    pub fn pauses(&self) -> Vec<(u64, u64)> {
        let facts = self.facts.iter().filter(|fact| fact.name == PAUSE_FACT);
        facts.filter_map(|fact| parse_pause(std::str::from_utf8(&fact.value).ok()?)).collect()
    }

    /// Why and when the recording ended before its program did; `None` when it did not, or nothing
    /// says so. [`end`](Self::end) is then [`EndReason::Stopped`], and the same is the first of the
    /// [`findings`](Self::findings).
    #[must_use]
    pub fn ended_early(&self) -> Option<EndedEarly> {
        self.early.map(|early| early.ended(&self.scale))
    }

    /// Returns the totals of the recording.
    ///
    /// `None` for a spool, and for a packed recording that was not closed.
    #[must_use]
    pub fn totals(&self) -> Option<&Totals> {
        match &self.layout {
            Layout::Spool(_) => None,
            Layout::Packed(packed) => packed.totals.as_ref(),
        }
    }

    /// Returns the findings about the file: losses and damages.
    #[must_use]
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// Up to which moment the recording was read, when the program still writes it.
    #[must_use]
    pub fn growth(&self) -> Option<Growth> {
        self.findings.iter().find_map(|finding| match finding {
            Finding::Growing(growth) => Some(*growth),
            _ => None,
        })
    }

    /// Hands events to a visitor, in order.
    ///
    /// The answer says how many frees were of blocks that are older than the recording; visitors do
    /// not see these.
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
            Layout::Spool(spool) => spool.read(&self.source, &self.scale, wanted, events, 0)?,
            Layout::Packed(packed) => {
                let end = packed.read(&self.source, wanted, events, &mut findings)?;
                match &self.rest {
                    Some(Rest { source, spool, scale }) if !events.is_enough() => {
                        let nanos = end.nanos;
                        let mut events = Renumbered::new(events, end.into_slots());
                        let unmatched = spool.read(source, scale, wanted, &mut events, nanos)?;
                        unmatched.saturating_add(packed.unmatched_frees)
                    }
                    _ => match &packed.totals {
                        Some(totals) => totals.unmatched_frees,
                        None => packed.unmatched_frees,
                    },
                }
            }
        };
        Ok(Outcome { unmatched_frees, findings })
    }
}

/// Result of reading the events.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct Outcome {
    /// Problems of reading the events; [`Recording::findings`] has those of the tables.
    pub findings: Vec<Finding>,
    /// Frees of blocks that are older than the recording, or whose allocation was lost.
    pub unmatched_frees: u64,
}

/// Name of the fact that lists the pauses: `FROM..TO`, in nanoseconds.
///
/// The process that drains the spool writes it; nothing was recorded between the two.
pub(crate) const PAUSE_FACT: &str = "paused_nanos";

fn parse_pause(text: &str) -> Option<(u64, u64)> {
    let (from, to) = text.split_once("..")?;
    Some((from.parse().ok()?, to.parse().ok()?))
}
