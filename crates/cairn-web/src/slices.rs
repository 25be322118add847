//! What happened in each slice of time, by call, by class of size, by thread, and by class of lifetime.
//!
//! The brush of the page chooses a stretch of time, and everything follows: for that the page holds changes instead of sums.
//! The time of the recording is cut into equal slices, and each row has an entry for each slice in which something of it happened.
//! All columns of an entry are sums, so that two slices become one by addition, and any stretch of slices is exact.

use std::collections::HashMap;

use cairn_analysis::heap::{
    HeapRead, HeapRecording, LIFETIME_CLASSES, LOST_STACK, SIZE_CLASSES, Sampling, Scope, lifetime_class,
    size_class,
};
use cairn_analysis::recording::{Alloc, Events, Free, Mark, StackId, ThreadId, Wanted};

use crate::frames::Frames;
use crate::{PageError, PageOptions};

/// Entries that are kept before the slices are made twice as wide: memory is bounded whatever the recording holds.
const MOST_ENTRIES: usize = 4 << 20;

/// Marks that the page shows, and how much of the text of each.
pub(crate) const MOST_MARKS: usize = 2000;

/// An object's number may be so far above all that were seen, as for [`cairn_analysis::heap::Aggregator`].
const OBJECT_SLACK: usize = 1 << 16;

/// What happened to one row in one slice.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) row: u32,
    pub(crate) slice: u32,
    pub(crate) allocated_bytes: u64,
    /// In [`Sampling::blocks`]' unit.
    pub(crate) allocations: u64,
    /// Allocated less freed.
    pub(crate) grown_bytes: i64,
    /// Of what was allocated here, what was never freed.
    pub(crate) leaked_bytes: u64,
    pub(crate) temporary: u64,
}

impl Entry {
    fn add(&mut self, other: &Self) {
        self.allocated_bytes = self.allocated_bytes.saturating_add(other.allocated_bytes);
        self.allocations = self.allocations.saturating_add(other.allocations);
        self.grown_bytes = self.grown_bytes.saturating_add(other.grown_bytes);
        self.leaked_bytes = self.leaked_bytes.saturating_add(other.leaked_bytes);
        self.temporary = self.temporary.saturating_add(other.temporary);
    }
}

/// A mark of the program.
pub(crate) struct MarkTold {
    pub(crate) nanos: u64,
    pub(crate) thread: u32,
    pub(crate) text: String,
}

/// Everything that the second pass finds.
pub(crate) struct Slices {
    pub(crate) count: usize,
    pub(crate) slice_nanos: u64,
    /// By row, then by slice.
    pub(crate) entries: Vec<Entry>,
    pub(crate) rows: Rows,
    pub(crate) marks: Vec<MarkTold>,
    /// Marks that were not kept.
    pub(crate) more_marks: u64,
}

/// Which rows there are: calls first, then classes of sizes, threads, and classes of lifetimes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rows {
    pub(crate) calls: usize,
    pub(crate) threads: usize,
}

impl Rows {
    fn size(self, size_bytes: u64) -> usize {
        self.calls + size_class(size_bytes)
    }

    fn thread(self, thread: usize) -> usize {
        self.calls + SIZE_CLASSES + thread
    }

    fn lifetime(self, nanos: u64) -> usize {
        self.calls + SIZE_CLASSES + self.threads + lifetime_class(nanos)
    }

    fn len(self) -> usize {
        self.calls + SIZE_CLASSES + self.threads + LIFETIME_CLASSES
    }
}

impl Slices {
    /// Makes each two slices one.
    pub(crate) fn halve(&mut self) {
        self.count = self.count.div_ceil(2);
        self.slice_nanos = self.slice_nanos.saturating_mul(2);
        for entry in &mut self.entries {
            entry.slice /= 2;
        }
        put_together(&mut self.entries);
    }
}

/// Sorts entries by row and slice, and adds up those of the same.
fn put_together(entries: &mut Vec<Entry>) {
    entries.sort_unstable_by_key(|entry| (entry.row, entry.slice));
    entries.dedup_by(|next, kept| {
        let same = (next.row, next.slice) == (kept.row, kept.slice);
        if same {
            kept.add(next);
        }
        same
    });
}

/// Reads the events once more.
pub(crate) fn read(
    heap: &HeapRecording,
    read: &HeapRead,
    frames: &Frames,
    options: &PageOptions,
) -> Result<Slices, PageError> {
    let threads: Vec<ThreadId> = heap.recording().threads().iter().map(|thread| thread.id).collect();
    let rows = Rows { calls: frames.nodes.len(), threads: threads.len() };
    let end_nanos = read.profile.end_nanos;
    let count = options.most_slices.clamp(1, 1 << 12).next_power_of_two();
    let mut visitor = Visitor {
        frames,
        scope: &options.scope,
        sampling: read.profile.sampling,
        last_objects: vec![NO_OBJECT; threads.len()],
        threads,
        rows,
        blocks: Vec::new(),
        now: vec![Entry::default(); rows.len()],
        touched: Vec::new(),
        entries: Vec::new(),
        entries_put_together: 0,
        slice: 0,
        slice_nanos: (end_nanos / count as u64 + 1).max(1),
        now_nanos: 0,
        end_nanos,
        marks: Vec::new(),
        more_marks: 0,
    };
    let wanted = Wanted::ALL.between(0, end_nanos.saturating_add(1));
    heap.recording().read(&wanted, &mut visitor)?;
    Ok(visitor.finish())
}

const NO_OBJECT: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Block {
    size_bytes: u64,
    born_nanos: u64,
    /// [`FREE`], [`UNCOUNTED`], or the row of the call.
    row: u32,
    thread: u32,
}

const FREE: u32 = u32::MAX;
const UNCOUNTED: u32 = u32::MAX - 1;

struct Visitor<'a> {
    frames: &'a Frames,
    scope: &'a Scope,
    sampling: Sampling,
    threads: Vec<ThreadId>,
    /// By thread: the object that it allocated last.
    last_objects: Vec<u32>,
    rows: Rows,
    blocks: Vec<Block>,
    /// By row: what happened in the present slice.
    now: Vec<Entry>,
    /// The rows to which something did.
    touched: Vec<u32>,
    entries: Vec<Entry>,
    /// How many entries were left when equal ones were put together last.
    entries_put_together: usize,
    slice: u32,
    slice_nanos: u64,
    now_nanos: u64,
    end_nanos: u64,
    marks: Vec<MarkTold>,
    more_marks: u64,
}

impl Visitor<'_> {
    #[inline]
    fn clock(&mut self, nanos: u64) {
        // Time that goes back stands still.
        self.now_nanos = self.now_nanos.max(nanos).min(self.end_nanos);
        let slice = (self.now_nanos / self.slice_nanos) as u32;
        if slice != self.slice {
            self.close_slice();
            self.slice = (self.now_nanos / self.slice_nanos) as u32;
        }
    }

    #[cold]
    fn close_slice(&mut self) {
        for row in self.touched.drain(..) {
            if let Some(entry) = self.now.get_mut(row as usize) {
                let done = Entry { row, slice: self.slice, ..std::mem::take(entry) };
                self.entries.push(done);
            }
        }
        while self.entries.len() > MOST_ENTRIES && self.entries.len() > self.entries_put_together * 2 {
            self.slice_nanos = self.slice_nanos.saturating_mul(2);
            self.entries.iter_mut().for_each(|entry| entry.slice /= 2);
            put_together(&mut self.entries);
            self.entries_put_together = self.entries.len();
        }
    }

    #[inline]
    fn change(&mut self, row: usize, change: impl FnOnce(&mut Entry)) {
        let Some(entry) = self.now.get_mut(row) else { return };
        // A row that was touched is marked by the field that is not used before its slice is closed.
        if entry.row == 0 {
            entry.row = 1;
            self.touched.push(row as u32);
        }
        change(entry);
    }

    /// The rows of a block: its call, its size, its thread.
    fn rows_of(&self, block: &Block) -> [usize; 3] {
        [block.row as usize, self.rows.size(block.size_bytes), self.rows.thread(block.thread as usize)]
    }

    fn release(&mut self, object: usize) {
        let Some(place) = self.blocks.get_mut(object) else { return };
        let block = *place;
        place.row = FREE;
        if block.row == FREE || block.row == UNCOUNTED {
            return;
        }
        let weight = self.sampling.stands_for(block.size_bytes);
        let last = self.last_objects.get(block.thread as usize).copied();
        let is_temporary = last == Some(object as u32) && !self.sampling.is_estimate();
        for row in self.rows_of(&block) {
            self.change(row, |entry| {
                entry.grown_bytes = entry.grown_bytes.saturating_sub_unsigned(weight.value);
                entry.temporary += u64::from(is_temporary);
            });
        }
        let lifetime = self.rows.lifetime(self.now_nanos.saturating_sub(block.born_nanos));
        self.change(lifetime, |entry| {
            entry.allocated_bytes = entry.allocated_bytes.saturating_add(weight.value);
            entry.allocations = entry.allocations.saturating_add(weight.blocks);
        });
    }

    fn finish(mut self) -> Slices {
        self.close_slice();
        let mut leaked: HashMap<(u32, u32), u64> = HashMap::new();
        for block in self.blocks.iter().filter(|block| block.row != FREE && block.row != UNCOUNTED) {
            let bytes = self.sampling.stands_for(block.size_bytes).value;
            let slice = (block.born_nanos / self.slice_nanos) as u32;
            for row in self.rows_of(block) {
                let sum = leaked.entry((row as u32, slice)).or_default();
                *sum = sum.saturating_add(bytes);
            }
        }
        let leaks = leaked.into_iter().map(|((row, slice), leaked_bytes)| Entry {
            row,
            slice,
            leaked_bytes,
            ..Entry::default()
        });
        self.entries.extend(leaks);
        put_together(&mut self.entries);
        let count = (self.end_nanos / self.slice_nanos + 1) as usize;
        Slices {
            count,
            slice_nanos: self.slice_nanos,
            entries: self.entries,
            rows: self.rows,
            marks: self.marks,
            more_marks: self.more_marks,
        }
    }
}

impl Events for Visitor<'_> {
    fn alloc(&mut self, event: &Alloc) {
        self.clock(event.at.nanos);
        let object = event.object.index();
        if object >= self.blocks.len() {
            if object > self.blocks.len().saturating_add(OBJECT_SLACK) || event.object.number() == NO_OBJECT {
                return;
            }
            let free = Block { size_bytes: 0, born_nanos: 0, row: FREE, thread: 0 };
            self.blocks.resize(object + 1, free);
        }
        self.release(object);
        let stack = if event.stack == StackId::LOST { LOST_STACK } else { event.stack.number() };
        let Ok(thread) = self.threads.binary_search(&event.at.thread) else { return };
        if let Some(last) = self.last_objects.get_mut(thread) {
            *last = event.object.number();
        }
        let is_counted = self.scope.counts(self.now_nanos, event.size_bytes, stack, thread as u32);
        let row = if is_counted { self.frames.end_of(stack).unwrap_or(UNCOUNTED) } else { UNCOUNTED };
        let block =
            Block { size_bytes: event.size_bytes, born_nanos: self.now_nanos, row, thread: thread as u32 };
        if let Some(place) = self.blocks.get_mut(object) {
            *place = block;
        }
        if row == UNCOUNTED {
            return;
        }
        let weight = self.sampling.stands_for(block.size_bytes);
        for row in self.rows_of(&block) {
            self.change(row, |entry| {
                entry.allocated_bytes = entry.allocated_bytes.saturating_add(weight.value);
                entry.allocations = entry.allocations.saturating_add(weight.blocks);
                entry.grown_bytes = entry.grown_bytes.saturating_add_unsigned(weight.value);
            });
        }
    }

    fn free(&mut self, event: &Free) {
        self.clock(event.at.nanos);
        self.release(event.object.index());
    }

    fn mark(&mut self, event: &Mark<'_>) {
        if self.marks.len() >= MOST_MARKS {
            self.more_marks += 1;
            return;
        }
        let thread = self.threads.binary_search(&event.at.thread).unwrap_or(usize::MAX);
        self.marks.push(MarkTold {
            nanos: event.at.nanos,
            thread: thread.min(u32::MAX as usize) as u32,
            text: String::from_utf8_lossy(event.text).into_owned(),
        });
    }
}
