//! What a recording of a heap comes down to: the totals, and the stacks that matter most.
//!
//! ```no_run
//! use cairn_analysis::heap_summary::HeapSummary;
//! use cairn_analysis::recording::Recording;
//!
//! let recording = Recording::open("program.4711.cairn")?;
//! let summary = HeapSummary::of(&recording)?;
//! println!("peak {} bytes, leaked {} bytes", summary.peak_bytes, summary.leaked.bytes);
//! for (stack, held) in summary.most(5, |stack| stack.at_peak.bytes) {
//!     println!("{} bytes by stack {}", held.at_peak.bytes, stack.number());
//! }
//! # Ok::<(), cairn_analysis::recording::RecordingError>(())
//! ```
//!
//! The events are read twice: the first time tells when the peak was, the second what was alive then. Memory is that of
//! the stacks, the threads and the blocks that are alive at once, whatever the number of events.

use std::collections::HashMap;

use crate::recording::{Alloc, Events, Free, Recording, RecordingError, StackId, ThreadId, Wanted};

/// So many blocks, with so many bytes in all.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Amount {
    /// Blocks.
    pub blocks: u64,
    /// Bytes.
    pub bytes: u64,
}

impl Amount {
    fn add(&mut self, bytes: u64) {
        self.blocks += 1;
        self.bytes = self.bytes.saturating_add(bytes);
    }

    fn subtract(&mut self, bytes: u64) {
        self.blocks = self.blocks.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}

/// What one stack allocated.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct StackAmounts {
    /// In all.
    pub allocated: Amount,
    /// Alive when most bytes were.
    pub at_peak: Amount,
    /// Not freed at the end.
    pub leaked: Amount,
    /// Freed before its thread allocated anything else.
    pub temporary: Amount,
}

/// See the [module](self).
#[derive(Clone, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct HeapSummary {
    /// In all; a reallocation is one, too.
    pub allocated: Amount,
    /// The most bytes that were alive at once.
    pub peak_bytes: u64,
    /// When that was, in nanoseconds since the start.
    pub peak_nanos: u64,
    /// Not freed at the end.
    pub leaked: Amount,
    /// Freed before their thread allocated anything else.
    pub temporary: Amount,
    /// Frees of blocks that are older than the recording.
    pub unmatched_frees: u64,
    /// When the last event was.
    pub end_nanos: u64,
    stacks: Vec<StackAmounts>,
    lost_stack: StackAmounts,
}

impl HeapSummary {
    /// Reads the events of `recording`.
    ///
    /// # Errors
    ///
    /// When the file cannot be read any more.
    pub fn of(recording: &Recording) -> Result<Self, RecordingError> {
        let mut first = FirstPass { summary: Self::default(), ..FirstPass::default() };
        let outcome = recording.read(&Wanted::HEAP, &mut first)?;
        let mut second = SecondPass { left: first.peak_event, summary: first.summary };
        recording.read(&Wanted::HEAP, &mut second)?;
        let mut summary = second.summary;
        summary.leaked = first.alive;
        summary.unmatched_frees = outcome.unmatched_frees;
        Ok(summary)
    }

    /// What `stack` itself allocated, its callees not counted.
    #[must_use]
    pub fn stack(&self, stack: StackId) -> StackAmounts {
        if stack == StackId::LOST {
            return self.lost_stack;
        }
        self.stacks.get(stack.index()).copied().unwrap_or_default()
    }

    /// The `count` stacks with the most of what `key` answers, most first; none that have nothing.
    pub fn most(&self, count: usize, key: impl Fn(&StackAmounts) -> u64) -> Vec<(StackId, StackAmounts)> {
        let numbered = self.stacks.iter().enumerate();
        let numbered = numbered.map(|(index, amounts)| (StackId::from_number(index as u32), *amounts));
        let mut all: Vec<_> = numbered
            .chain([(StackId::LOST, self.lost_stack)])
            .filter(|(_, amounts)| key(amounts) > 0)
            .collect();
        all.sort_by_key(|(stack, amounts)| (std::cmp::Reverse(key(amounts)), *stack));
        all.truncate(count);
        all
    }

    fn amounts(&mut self, stack: StackId) -> &mut StackAmounts {
        if stack == StackId::LOST {
            return &mut self.lost_stack;
        }
        let index = stack.index();
        if index >= self.stacks.len() {
            self.stacks.resize(index + 1, StackAmounts::default());
        }
        &mut self.stacks[index]
    }
}

/// Everything but what was alive at the peak.
#[derive(Default)]
struct FirstPass {
    summary: HeapSummary,
    alive: Amount,
    event: u64,
    /// How many events there were up to the peak, with it.
    peak_event: u64,
    /// The event of the last allocation of each thread.
    latest: HashMap<ThreadId, u64>,
    /// The event that made each block, by the block's number, which is used again.
    made: Vec<u64>,
}

impl Events for FirstPass {
    fn alloc(&mut self, event: &Alloc) {
        self.event += 1;
        self.alive.add(event.size_bytes);
        self.summary.allocated.add(event.size_bytes);
        self.summary.end_nanos = event.at.nanos;
        let amounts = self.summary.amounts(event.stack);
        amounts.allocated.add(event.size_bytes);
        amounts.leaked.add(event.size_bytes);
        if self.alive.bytes > self.summary.peak_bytes {
            self.summary.peak_bytes = self.alive.bytes;
            self.summary.peak_nanos = event.at.nanos;
            self.peak_event = self.event;
        }
        self.latest.insert(event.at.thread, self.event);
        let index = event.object.index();
        if index >= self.made.len() {
            self.made.resize(index + 1, 0);
        }
        self.made[index] = self.event;
    }

    fn free(&mut self, event: &Free) {
        self.event += 1;
        self.alive.subtract(event.size_bytes);
        self.summary.end_nanos = event.at.nanos;
        let is_temporary =
            !event.is_move && self.latest.get(&event.at.thread) == self.made.get(event.object.index());
        let amounts = self.summary.amounts(event.stack);
        amounts.leaked.subtract(event.size_bytes);
        if is_temporary {
            amounts.temporary.add(event.size_bytes);
            self.summary.temporary.add(event.size_bytes);
        }
    }
}

/// What was alive at the peak.
struct SecondPass {
    /// So many events are to come up to the peak.
    left: u64,
    summary: HeapSummary,
}

impl Events for SecondPass {
    fn alloc(&mut self, event: &Alloc) {
        if self.left > 0 {
            self.left -= 1;
            self.summary.amounts(event.stack).at_peak.add(event.size_bytes);
        }
    }

    fn free(&mut self, event: &Free) {
        if self.left > 0 {
            self.left -= 1;
            self.summary.amounts(event.stack).at_peak.subtract(event.size_bytes);
        }
    }

    fn is_enough(&self) -> bool {
        self.left == 0
    }
}
