//! The time of a recording, cut into equal slices, and what happened in each: to each stack, class
//! of size, thread, and class of lifetime.
//!
//! Sums are of one stretch of time. A view in which a stretch is chosen needs changes instead: of a
//! few hundred slices, each with what was allocated and freed in it, any stretch is added up in
//! milliseconds, and is exact, as all columns of an [`SliceEntry`] are sums.
//! [`HeapRecording::read_sliced`](super::HeapRecording::read_sliced) gives them with the profile in
//! one pass; [`Aggregator::sliced`](super::Aggregator::sliced) is for those who feed events
//! themselves, also while a program runs.
//!
//! ```
//! use cairn_analysis::heap::slices::SliceOptions;
//! use cairn_analysis::heap::{Aggregator, Sampling, Scope};
//!
//! let mut options = SliceOptions::default();
//! options.end_nanos = Some(1000);
//! let mut heap = Aggregator::new(1, 1, Scope::default(), Sampling::All).sliced(&options);
//! heap.allocated(0, 0, 0, 4096, 100); // object 0, stack 0, thread 0, 4096 bytes, at 100 ns
//! heap.allocated(1, 0, 0, 24, 110);
//! heap.freed(0, 900);
//! let slices = heap.slices(1000).expect("they were asked for");
//! let of = |nanos: u64| slices.stacks.iter().find(|entry| u64::from(entry.slice) == nanos / slices.slice_nanos);
//! assert_eq!(of(100).map(|entry| entry.grown_bytes), Some(4096));
//! assert_eq!(of(900).map(|entry| entry.grown_bytes), Some(-4096));
//! assert_eq!(of(110).map(|entry| entry.leaked_bytes), Some(24));
//! ```
//!
//! # How
//!
//! The sums that an aggregator has anyway are read where a slice ends, and their growth since the
//! slice before is its entry. An event costs the setting of one bit, which marks its stack for
//! that read. Leaks are known at the end only: then, or whenever an answer is wanted, the blocks
//! that live are visited.
//!
//! How long a program will run is not known while it runs, and how much happens in a slice never
//! is. So slices become twice as wide, each two of them one, when there are too many of them, or
//! too many entries: memory is bounded whatever the recording holds.

use super::aggregate::LOST_STACK;
use super::sums::{Row, Weight};
use super::{LIFETIME_CLASSES, Lifetimes, SIZE_CLASSES, Sampling, Sums, size_class};

/// First width of a slice where the end is not known; 4096 ns.
///
/// A program of a millisecond still has its slices.
const FIRST_SLICE_NANOS: u64 = 1 << 12;

/// Sums of one row in one slice.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct SliceEntry {
    /// Number of the row in its list.
    ///
    /// A stack, a [class of size](super::size_class), a thread's index, or a [class of
    /// lifetime](super::lifetime_class); [`LOST_STACK`] for allocations whose stack was lost.
    pub row: u32,
    /// The slice, counted from the start of the recording.
    pub slice: u32,
    /// Bytes that were allocated; of lifetimes, bytes of the blocks that were freed.
    pub allocated_bytes: u64,
    /// Blocks that were allocated; of lifetimes, blocks that were freed.
    ///
    /// The unit is that of [`Sampling::represents`].
    pub allocations: u64,
    /// Bytes allocated less bytes freed.
    pub grown_bytes: i64,
    /// Bytes that were allocated here and never freed.
    pub leaked_bytes: u64,
    /// Blocks that were freed before their thread allocated another one.
    pub temporary: u64,
}

impl SliceEntry {
    /// Adds what happened in another slice or to another row.
    pub fn add(&mut self, other: &Self) {
        self.allocated_bytes = self.allocated_bytes.saturating_add(other.allocated_bytes);
        self.allocations = self.allocations.saturating_add(other.allocations);
        self.grown_bytes = self.grown_bytes.saturating_add(other.grown_bytes);
        self.leaked_bytes = self.leaked_bytes.saturating_add(other.leaked_bytes);
        self.temporary = self.temporary.saturating_add(other.temporary);
    }
}

/// Sorts entries by row and slice, and adds up those of the same.
pub fn put_together(entries: &mut Vec<SliceEntry>) {
    entries.sort_unstable_by_key(|entry| (entry.row, entry.slice));
    entries.dedup_by(|next, retained| {
        let same = (next.row, next.slice) == (retained.row, retained.slice);
        if same {
            retained.add(next);
        }
        same
    });
}

/// How time is cut.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct SliceOptions {
    /// Slices, at most; at least two.
    pub most_slices: usize,
    /// When the recording ends, where that is known: then there are nearly as many slices as may
    /// be. Else there are at least half as many, once there is time for them.
    pub end_nanos: Option<u64>,
    /// Entries, at most, as far as wider slices can bring that about.
    pub most_entries: usize,
}

impl Default for SliceOptions {
    /// 256 slices of a recording whose end is not known.
    fn default() -> Self {
        Self { most_slices: 256, end_nanos: None, most_entries: 4 << 20 }
    }
}

/// Sums of each slice of time. Each list is in the order of rows, then of slices.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Slices {
    /// How many slices there are.
    pub count: usize,
    /// Width of a slice.
    pub slice_nanos: u64,
    /// By stack; [`LOST_STACK`] comes last.
    pub stacks: Vec<SliceEntry>,
    /// By [class of size](super::size_class).
    pub sizes: Vec<SliceEntry>,
    /// By the thread that allocated, whichever freed.
    pub threads: Vec<SliceEntry>,
    /// By [class of lifetime](super::lifetime_class): what was freed after such a time, in the
    /// slice of the free.
    pub lifetimes: Vec<SliceEntry>,
}

impl Slices {
    /// Makes each two slices one.
    pub fn halve(&mut self) {
        self.count = self.count.div_ceil(2);
        self.slice_nanos = self.slice_nanos.saturating_mul(2);
        for entries in [&mut self.stacks, &mut self.sizes, &mut self.threads, &mut self.lifetimes] {
            entries.iter_mut().for_each(|entry| entry.slice /= 2);
            // Entries that were in order still are.
            put_together(entries);
        }
    }

    /// How many entries there are in all lists.
    #[must_use]
    pub fn entries(&self) -> usize {
        self.stacks.len() + self.sizes.len() + self.threads.len() + self.lifetimes.len()
    }
}

/// The rows of an aggregator, as they are when a slice ends.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a, T> {
    /// The first one is of lost stacks.
    pub(super) stacks: &'a [Row],
    pub(super) sizes: &'a [Row],
    pub(super) threads: T,
    pub(super) lifetimes: &'a [Lifetimes],
    pub(super) sampling: Sampling,
}

/// A block that lives.
#[derive(Clone, Copy, Debug)]
pub(super) struct LiveBlock {
    /// Index of the row.
    pub(super) stack: u32,
    pub(super) thread: u32,
    pub(super) size_bytes: u64,
    pub(super) born_nanos: u64,
}

/// Cuts time into slices.
#[derive(Clone, Debug)]
pub(super) struct Slicer {
    most_slices: u64,
    most_entries: usize,
    slice_nanos: u64,
    /// The present one.
    slice: u32,
    /// By stack: a bit, set when something happened to it in the present slice.
    touched: Vec<u64>,
    before: Before,
    slices: Slices,
    /// How many entries were left when equal ones were put together last.
    entries_put_together: usize,
}

/// Sums of each row at the end of the slice before.
#[derive(Clone, Debug)]
struct Before {
    stacks: Vec<Seen>,
    sizes: Vec<Seen>,
    threads: Vec<Seen>,
    lifetimes: Vec<Seen>,
}

/// The sums of a row that change from slice to slice.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
struct Seen {
    allocated_bytes: u64,
    allocations: u64,
    live_bytes: u64,
    temporary: u64,
}

impl Seen {
    fn of(sums: &Sums) -> Self {
        let Sums { allocated_bytes, allocations, live_bytes, temporary, .. } = *sums;
        Self { allocated_bytes, allocations, live_bytes, temporary }
    }

    /// Returns the difference from `before`. Sums wrap, and so do differences.
    fn since(&self, before: &Self, row: u32, slice: u32, sampling: Sampling) -> SliceEntry {
        let temporary = self.temporary.wrapping_sub(before.temporary);
        SliceEntry {
            row,
            slice,
            allocated_bytes: self.allocated_bytes.wrapping_sub(before.allocated_bytes),
            allocations: self.allocations.wrapping_sub(before.allocations),
            grown_bytes: self.live_bytes.wrapping_sub(before.live_bytes).cast_signed(),
            leaked_bytes: 0,
            // Whether another allocation came between is not known when not all are there.
            temporary: if sampling.is_estimate() { 0 } else { temporary },
        }
    }
}

impl Slicer {
    /// For as many rows of stacks, the one of lost ones included, and threads.
    pub(super) fn new(stack_rows: usize, threads: usize, options: &SliceOptions) -> Self {
        let most_slices = options.most_slices.clamp(2, 1 << 20) as u64;
        let of_known_end = |end: u64| (end / most_slices + 1).max(1);
        let none = |rows| vec![Seen::default(); rows];
        Self {
            most_slices,
            most_entries: options.most_entries,
            slice_nanos: options.end_nanos.map_or(FIRST_SLICE_NANOS, of_known_end),
            slice: 0,
            touched: vec![0; stack_rows.div_ceil(64)],
            before: Before {
                stacks: none(stack_rows),
                sizes: none(SIZE_CLASSES),
                threads: none(threads),
                lifetimes: none(LIFETIME_CLASSES),
            },
            slices: Slices::default(),
            entries_put_together: 0,
        }
    }

    /// Makes room for further rows.
    pub(super) fn grow(&mut self, stack_rows: usize, threads: usize) {
        self.touched.resize(stack_rows.div_ceil(64), 0);
        self.before.stacks.resize(stack_rows, Seen::default());
        self.before.threads.resize(threads, Seen::default());
    }

    /// Something happened to a stack in the present slice.
    #[inline]
    pub(super) fn touch(&mut self, stack_row: usize) {
        if let Some(bits) = self.touched.get_mut(stack_row / 64) {
            *bits |= 1 << (stack_row % 64);
        }
    }

    /// From this time on [`advance`](Self::advance) is to be called.
    pub(super) fn next_nanos(&self) -> u64 {
        (u64::from(self.slice) + 1).saturating_mul(self.slice_nanos)
    }

    /// Ends the present slice when `nanos` is past it. `rows` are as they were before anything that
    /// happens then.
    #[cold]
    pub(super) fn advance<'a>(&mut self, nanos: u64, rows: Rows<'a, impl Iterator<Item = &'a Row>>) {
        if nanos < self.next_nanos() {
            return;
        }
        self.close(rows);
        self.slice = self.slice_at(nanos);
    }

    /// The slice of a time; wider slices where it would be one too many.
    fn slice_at(&mut self, nanos: u64) -> u32 {
        let mut doublings = 0;
        while nanos / self.slice_nanos >= self.most_slices {
            self.slice_nanos = self.slice_nanos.saturating_mul(2);
            doublings += 1;
        }
        self.widen(doublings);
        (nanos / self.slice_nanos) as u32
    }

    fn widen(&mut self, doublings: u32) {
        if doublings == 0 {
            return;
        }
        let lists = &mut self.slices;
        for entries in [&mut lists.stacks, &mut lists.sizes, &mut lists.threads, &mut lists.lifetimes] {
            entries
                .iter_mut()
                .for_each(|entry| entry.slice = entry.slice.checked_shr(doublings).unwrap_or(0));
            put_together(entries);
        }
        self.entries_put_together = self.slices.entries();
    }

    fn close<'a>(&mut self, rows: Rows<'a, impl Iterator<Item = &'a Row>>) {
        let (slice, sampling) = (self.slice, rows.sampling);
        for (word, bits) in self.touched.iter_mut().enumerate() {
            let mut left = std::mem::take(bits);
            while left != 0 {
                let index = word * 64 + left.trailing_zeros() as usize;
                left &= left - 1;
                let (Some(row), Some(before)) = (rows.stacks.get(index), self.before.stacks.get_mut(index))
                else {
                    continue;
                };
                let number = stack_of_row(index);
                let seen = Seen::of(row.running());
                self.slices.stacks.push(seen.since(before, number, slice, sampling));
                *before = seen;
            }
        }
        let lifetimes = rows.lifetimes.iter().map(|lifetime| Seen {
            allocated_bytes: lifetime.bytes,
            allocations: lifetime.blocks,
            ..Seen::default()
        });
        let sums = |row: &Row| Seen::of(row.running());
        let Self { before, slices, .. } = self;
        changes(&mut before.sizes, rows.sizes.iter().map(sums), slice, sampling, &mut slices.sizes);
        changes(&mut before.threads, rows.threads.map(sums), slice, sampling, &mut slices.threads);
        changes(&mut before.lifetimes, lifetimes, slice, sampling, &mut slices.lifetimes);
        while self.slices.entries() > self.most_entries
            && self.slices.entries() > self.entries_put_together.saturating_mul(2)
        {
            self.slice_nanos = self.slice_nanos.saturating_mul(2);
            self.widen(1);
        }
    }

    /// The slices up to `end_nanos`, which is no earlier than anything that happened.
    pub(super) fn finish<'a>(
        mut self,
        end_nanos: u64,
        rows: Rows<'a, impl Iterator<Item = &'a Row>>,
        live: impl Iterator<Item = LiveBlock> + Clone,
    ) -> Slices {
        let (stack_rows, sampling) = (rows.stacks.len(), rows.sampling);
        self.close(rows);
        self.slice = self.slice_at(end_nanos);
        let (slices, slice_nanos) = (&mut self.slices, self.slice_nanos);
        slices.slice_nanos = slice_nanos;
        slices.count = self.slice as usize + 1;
        let leak = |block: &LiveBlock| {
            let slice = (block.born_nanos / slice_nanos) as usize;
            (slice, sampling.weigh(block.size_bytes))
        };
        let count = slices.count;
        let of_stacks = live.clone().map(|block| (block.stack as usize, leak(&block)));
        let of_sizes = live.clone().map(|block| (size_class(block.size_bytes), leak(&block)));
        let of_threads = live.map(|block| (block.thread as usize, leak(&block)));
        add_leaks(&mut slices.stacks, of_stacks, stack_rows, count, stack_of_row);
        add_leaks(&mut slices.sizes, of_sizes, SIZE_CLASSES, count, |row| row as u32);
        add_leaks(&mut slices.threads, of_threads, self.before.threads.len(), count, |row| row as u32);
        put_together(&mut slices.lifetimes);
        self.slices
    }
}

/// The first row is of lost stacks.
const fn stack_of_row(row: usize) -> u32 {
    const { assert!(LOST_STACK == u32::MAX) };
    (row as u32).wrapping_sub(1)
}

/// Entries of the rows that are not as they were.
fn changes(
    before: &mut [Seen],
    now: impl Iterator<Item = Seen>,
    slice: u32,
    sampling: Sampling,
    into: &mut Vec<SliceEntry>,
) {
    for (row, (before, now)) in before.iter_mut().zip(now).enumerate() {
        if *before != now {
            into.push(now.since(before, row as u32, slice, sampling));
            *before = now;
        }
    }
}

/// Adds what was never freed to the slices in which it was allocated.
///
/// By row, then by slice: two passes over the blocks put them in the order of rows, and each row
/// then adds up its own. A table of hashes would do it in one, at the mercy of who made the
/// recording.
fn add_leaks(
    entries: &mut Vec<SliceEntry>,
    live: impl Iterator<Item = (usize, (usize, Weight))> + Clone,
    rows: usize,
    slices: usize,
    number: impl Fn(usize) -> u32,
) {
    let mut ends = vec![0_usize; rows + 1];
    let known = live.filter(|&(row, (slice, _))| row < rows && slice < slices);
    for (row, _) in known.clone() {
        ends[row] += 1;
    }
    let mut sum = 0;
    for end in &mut ends {
        sum += std::mem::replace(end, sum);
    }
    let mut ordered = vec![(0_u32, 0_u64); sum];
    for (row, (slice, weight)) in known {
        ordered[ends[row]] = (slice as u32, weight.bytes);
        ends[row] += 1;
    }
    let mut begin = 0;
    for (row, &end) in ends.iter().take(rows).enumerate() {
        let of_row = &mut ordered[begin..end];
        begin = end;
        of_row.sort_unstable_by_key(|&(slice, _)| slice);
        for of_slice in of_row.chunk_by(|a, b| a.0 == b.0) {
            let leaked_bytes = of_slice.iter().fold(0_u64, |sum, (_, bytes)| sum.saturating_add(*bytes));
            entries.push(SliceEntry {
                row: number(row),
                slice: of_slice[0].0,
                leaked_bytes,
                ..SliceEntry::default()
            });
        }
    }
    put_together(entries);
}
