//! The events of a heap recording once more, for formats that need their order: those that a scope counts, and no others.

use cairn_analysis::heap::{LOST_STACK, Scope};
use cairn_recording::{Alloc, Events, Free, StackId, ThreadId, Usage, Wanted};

use crate::dispatch::target::{EventSource, HeapEvents, LiveBlock};
use crate::error::ExchangeError;
use crate::model::changes::Moved;

/// A block, when it is allocated.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Block {
    /// Given again once it was freed.
    pub(crate) object: u32,
    /// The recording's number of the stack.
    pub(crate) stack: u32,
    pub(crate) size_bytes: u64,
    pub(crate) nanos: u64,
}

/// Takes the events, in order.
pub(crate) trait Blocks {
    fn allocated(&mut self, block: Block) -> Result<(), ExchangeError>;

    fn freed(&mut self, object: u32, nanos: u64) -> Result<(), ExchangeError>;

    /// What the process used was sampled.
    fn used(&mut self, _nanos: u64, _resident_bytes: u64) -> Result<(), ExchangeError> {
        Ok(())
    }
}

/// Reads the recording and gives each event of the scope to `blocks`; the first error of it ends the reading.
pub(crate) fn replay(heap: &HeapEvents<'_>, blocks: &mut dyn Blocks) -> Result<(), ExchangeError> {
    let scope = heap.scope;
    let recording = match heap.source {
        EventSource::Recording(recording) => recording.recording(),
        EventSource::Imported(file) => {
            let mut visitor =
                Visitor { scope, blocks, threads: Vec::new(), counted: Vec::new(), failed: None };
            file.replay(|moved| visitor.moved(moved))?;
            return visitor.failed.map_or(Ok(()), Err);
        }
        EventSource::Live(live) => {
            for (block, object) in live.iter().zip(0_u32..) {
                let &LiveBlock { stack, size_bytes } = block;
                if scope.counts(0, size_bytes, stack, 0) {
                    blocks.allocated(Block { object, stack, size_bytes, nanos: 0 })?;
                }
            }
            return Ok(());
        }
    };
    let threads: Vec<ThreadId> = recording.threads().iter().map(|thread| thread.id).collect();
    let mut visitor = Visitor { scope, blocks, threads, counted: Vec::new(), failed: None };
    recording.read(&Wanted::ALL.between(0, scope.to_nanos.saturating_add(1)), &mut visitor)?;
    visitor.failed.map_or(Ok(()), Err)
}

struct Visitor<'a> {
    scope: &'a Scope,
    blocks: &'a mut dyn Blocks,
    threads: Vec<ThreadId>,
    /// By object: whether the block that has the number now is one of those that are counted.
    counted: Vec<bool>,
    failed: Option<ExchangeError>,
}

impl Visitor<'_> {
    fn note(&mut self, outcome: Result<(), ExchangeError>) {
        if let Err(error) = outcome {
            self.failed.get_or_insert(error);
        }
    }
}

impl Visitor<'_> {
    fn moved(&mut self, moved: Moved) {
        match moved {
            Moved::Allocated { object, stack, thread, size_bytes, nanos } => {
                let counts =
                    nanos <= self.scope.to_nanos && self.scope.counts(nanos, size_bytes, stack, thread);
                if self.counted.len() <= object as usize {
                    self.counted.resize(object as usize + 1, false);
                }
                self.counted[object as usize] = counts;
                if counts && self.failed.is_none() {
                    let outcome = self.blocks.allocated(Block { object, stack, size_bytes, nanos });
                    self.note(outcome);
                }
            }
            Moved::Used { nanos, resident_bytes } => {
                if nanos <= self.scope.to_nanos && self.failed.is_none() {
                    let outcome = self.blocks.used(nanos, resident_bytes);
                    self.note(outcome);
                }
            }
            Moved::Freed { object, nanos } => {
                let is_in_time = nanos <= self.scope.to_nanos;
                let counted = is_in_time && self.counted.get_mut(object as usize).is_some_and(std::mem::take);
                if counted && self.failed.is_none() {
                    let outcome = self.blocks.freed(object, nanos);
                    self.note(outcome);
                }
            }
        }
    }
}

impl Events for Visitor<'_> {
    fn alloc(&mut self, event: &Alloc) {
        let stack = if event.stack == StackId::LOST { LOST_STACK } else { event.stack.number() };
        let thread = self.threads.binary_search(&event.at.thread).map_or(u32::MAX, |index| index as u32);
        let (object, size_bytes, nanos) = (event.object.number(), event.size_bytes, event.at.nanos);
        self.moved(Moved::Allocated { object, stack, thread, size_bytes, nanos });
    }

    fn free(&mut self, event: &Free) {
        self.moved(Moved::Freed { object: event.object.number(), nanos: event.at.nanos });
    }

    fn usage(&mut self, event: &Usage) {
        self.moved(Moved::Used { nanos: event.at.nanos, resident_bytes: event.program_bytes() });
    }

    fn is_enough(&self) -> bool {
        self.failed.is_some()
    }
}
