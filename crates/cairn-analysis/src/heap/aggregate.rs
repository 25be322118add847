//! From events to sums: one pass, one core, memory for what is live and not for what has been.
//!
//! Long because an allocation and its free change the same sums, and are read side by side.

use std::ops::RangeInclusive;

use super::blocks::{Blocks, Described, NO_ORIGIN, ObjectState};
use super::classes::{LIFETIME_CLASSES, Lifetimes, SIZE_CLASSES, lifetime_class, size_class};
use super::sampling::{Errors, Sampling, Variance, Variances};
use super::slices::{LiveBlock, Rows, SliceOptions, Slicer, Slices};
use super::sums::{Row, Sums, Weight};
use super::timeline::{Bin, Timeline};

/// Which blocks are counted, and until when.
///
/// Whatever is counted, the *peak* is the moment at which the whole program held most within the
/// time that is looked at.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Scope {
    /// Blocks that were allocated earlier are not counted. Nanoseconds from the start of the
    /// recording.
    pub from_nanos: u64,
    /// Nothing later is looked at.
    pub to_nanos: u64,
    /// Only blocks of these sizes are counted.
    pub sizes: RangeInclusive<u64>,
    /// Only blocks of threads of these indices are counted; of all when there is no list.
    pub threads: Option<Vec<u32>>,
    /// Only blocks of stacks for which this holds `true` are counted; of all when there is no list.
    pub stacks: Option<Vec<bool>>,
}

impl Default for Scope {
    /// Everything.
    fn default() -> Self {
        Self { from_nanos: 0, to_nanos: u64::MAX, sizes: 0..=u64::MAX, threads: None, stacks: None }
    }
}

impl Scope {
    /// True when a block that was allocated then, by the thread of this index, is counted.
    #[must_use]
    pub fn counts(&self, nanos: u64, size_bytes: u64, stack: u32, thread: u32) -> bool {
        let has_thread = |list: &Vec<u32>| list.contains(&thread);
        self.has(nanos, size_bytes, stack) && self.threads.as_ref().is_none_or(has_thread)
    }

    fn has(&self, nanos: u64, size_bytes: u64, stack: u32) -> bool {
        let has_stack = |list: &Vec<bool>| list.get(stack as usize).copied().unwrap_or(false);
        nanos >= self.from_nanos
            && self.sizes.contains(&size_bytes)
            && self.stacks.as_ref().is_none_or(has_stack)
    }
}

/// The stack of an allocation whose stack was lost.
pub const LOST_STACK: u32 = u32::MAX;

/// Adds up heap events.
///
/// Blocks are named by *objects*: small numbers that are given again once a block was freed, lowest
/// first or latest first. Stacks and threads are indices below the numbers given to
/// [`new`](Self::new).
///
/// ```
/// use cairn_analysis::heap::{Aggregator, Scope, Sampling};
///
/// let mut heap = Aggregator::new(2, 1, Scope::default(), Sampling::All);
/// heap.allocated(0, 0, 0, 1000, 10); // object 0, stack 0, thread 0, 1000 bytes, at 10 ns
/// heap.allocated(1, 1, 0, 24, 20);
/// heap.freed(0, 30);
/// let profile = heap.finish(40);
/// assert_eq!(profile.totals.allocations, 2);
/// assert_eq!((profile.totals.peak_bytes, profile.peak_nanos), (1024, 20));
/// assert_eq!(profile.stacks[0].peak_bytes, 1000);
/// assert_eq!((profile.stacks[1].live_blocks, profile.stacks[1].live_bytes), (1, 24));
/// ```
#[derive(Debug)]
pub struct Aggregator {
    blocks: Blocks,
    /// Rows by stack, the first one for lost ones, see [`place_of`].
    ///
    /// Each is one more than the index of its row, 0 where it has none.
    places: Vec<u32>,
    /// Rows of stacks with events.
    ///
    /// Most stacks of a program made no request: they are only on the way to others. So rows are
    /// for those that did, in the order in which they did; for all of them where time is
    /// [sliced](Self::sliced) or errors are added up.
    stacks: Vec<Row>,
    threads: Vec<Thread>,
    /// The one thread that counted blocks are of, [`NOBODY`] or [`SEVERAL`]. The row of a thread
    /// that is alone is that of all blocks, and not counted apart.
    sole_thread: u32,
    sizes: [Row; SIZE_CLASSES],
    lifetimes: [Lifetimes; LIFETIME_CLASSES],
    held: Held,
    timeline: Timeline,
    /// Events in the last bin since it was last read.
    bin: Bin,
    /// Events from this time on need a look at the clock: the next bin, or the end of the scope.
    next_nanos: u64,
    now_nanos: u64,
    scope: Scope,
    /// Whether the scope's sizes, times and stacks let everything in.
    counts_all: bool,
    sampling: Sampling,
    variances: Option<SampledErrors>,
    slicer: Option<Box<Slicer>>,
    anomalies: Anomalies,
    past_end: bool,
}

/// There are no more stacks, so that none has the row of [`NO_ROW`].
const MAX_STACKS: usize = NO_ROW as usize - 2;
/// Not the index of a row.
const NO_ROW: u32 = u32::MAX;
/// Not an object.
const NO_OBJECT: u32 = u32::MAX;

/// Not a thread: there was no counted block yet, or some of several threads.
const NOBODY: u32 = u32::MAX;
const SEVERAL: u32 = u32::MAX - 1;

/// The place of a stack. Lost ones have the first, so that it stays where it is when there are more
/// stacks.
#[inline]
const fn place_of(stack: u32) -> u32 {
    const { assert!(LOST_STACK == u32::MAX) };
    stack.wrapping_add(1)
}

#[derive(Clone, Copy, Debug)]
struct Thread {
    row: Row,
    /// The object that the thread allocated last.
    last_object: u32,
    /// The origin of the block that was counted last.
    origin: u32,
    counts: bool,
}

impl Thread {
    fn new(scope: &Scope, index: usize) -> Self {
        let counts = counts_thread(scope, index);
        Self { row: Row::default(), last_object: NO_OBJECT, origin: NO_ORIGIN, counts }
    }
}

/// Memory that the program holds in total, counted or not.
#[derive(Clone, Copy, Default, Debug)]
struct Held {
    blocks: u64,
    bytes: u64,
    peak_bytes: u64,
    peak_blocks: u64,
    peak_nanos: u64,
    /// How many times the peak was exceeded.
    peak: u64,
}

#[derive(Debug)]
struct SampledErrors {
    mean_bytes: u64,
    stacks: Vec<Variances>,
    threads: Vec<Variances>,
    sizes: Vec<Variances>,
}

/// Contradictory events. A recorder never writes them; a damaged recording can hold them.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Anomalies {
    /// Frees of objects that were not live.
    pub unknown_frees: u64,
    /// Allocations of objects that were live already; the older block counts as freed then.
    pub reused_objects: u64,
    /// Allocations that were left out because their object, stack or thread cannot be.
    pub bad_numbers: u64,
}

/// The answer to "where does the memory go": sums by stack, thread, size and time.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct HeapProfile {
    /// Sums of all that was counted.
    pub totals: Sums,
    /// How far off [`totals`](Self::totals) may be, in a sampled recording.
    pub errors: Errors,
    /// By stack.
    pub stacks: Vec<Sums>,
    /// Sums of the allocations whose stack was lost.
    pub lost_stack: Sums,
    /// For each of [`stacks`](Self::stacks), in a sampled recording; else empty.
    pub stack_errors: Vec<Errors>,
    /// By the thread that allocated.
    pub threads: Vec<Sums>,
    /// By [class of size](super::size_class).
    pub sizes: Vec<Sums>,
    /// Blocks that were freed, by [class of lifetime](super::lifetime_class).
    pub lifetimes: Vec<Lifetimes>,
    /// Memory that the whole program held over time, counted or not.
    pub timeline: Timeline,
    /// When the whole program held most.
    pub peak_nanos: u64,
    /// Bytes that the whole program held then, counted or not.
    pub peak_bytes_of_all: u64,
    /// Bytes that the whole program held at the end of the scope, counted or not.
    pub live_bytes_of_all: u64,
    /// Until when events were looked at.
    pub end_nanos: u64,
    /// How the allocations were chosen.
    pub sampling: Sampling,
    /// Contradictory events.
    pub anomalies: Anomalies,
}

impl HeapProfile {
    /// Creates a profile that has only the sums of stacks.
    ///
    /// It has no threads, sizes, lifetimes and times.
    #[must_use]
    pub fn of_sums(stacks: Vec<Sums>, end_nanos: u64) -> Self {
        let mut totals = Sums::default();
        for sums in &stacks {
            totals.add(sums);
        }
        let mut profile = Aggregator::new(0, 0, Scope::default(), Sampling::All).finish(end_nanos);
        profile.peak_nanos = end_nanos;
        profile.peak_bytes_of_all = totals.peak_bytes;
        profile.live_bytes_of_all = totals.live_bytes;
        Self { totals, stacks, ..profile }
    }

    /// Returns the sums of these stacks alone, without those by thread, size and lifetime.
    #[must_use]
    pub fn of_stacks(&self, counted: &[bool]) -> Self {
        let mut profile = self.clone();
        profile.keep_stacks(counted);
        profile
    }

    /// Leaves only the sums of these stacks, and nothing by thread, size and lifetime.
    pub(super) fn keep_stacks(&mut self, counted: &[bool]) {
        self.totals = Sums::default();
        self.lost_stack = Sums::default();
        for (stack, sums) in self.stacks.iter_mut().enumerate() {
            if counted.get(stack).copied().unwrap_or(false) {
                self.totals.add(sums);
            } else {
                *sums = Sums::default();
            }
        }
        self.threads.clear();
        self.sizes.clear();
        self.lifetimes.clear();
    }
}

impl Aggregator {
    /// An aggregator for events of stacks and threads with indices below these numbers.
    #[must_use]
    pub fn new(stacks: usize, threads: usize, scope: Scope, sampling: Sampling) -> Self {
        let stacks = stacks.min(MAX_STACKS);
        let variances = match sampling {
            Sampling::All => None,
            Sampling::Poisson { mean_bytes } => Some(SampledErrors {
                mean_bytes,
                stacks: vec![Variances::default(); stacks + 1],
                threads: vec![Variances::default(); threads],
                sizes: vec![Variances::default(); SIZE_CLASSES],
            }),
        };
        let mut heap = Self {
            blocks: Blocks::new(),
            places: vec![0; stacks + 1],
            stacks: Vec::new(),
            threads: (0..threads).map(|index| Thread::new(&scope, index)).collect(),
            sole_thread: NOBODY,
            sizes: [Row::default(); SIZE_CLASSES],
            lifetimes: [Lifetimes::default(); LIFETIME_CLASSES],
            held: Held::default(),
            timeline: Timeline::default(),
            bin: Bin::default(),
            next_nanos: 0,
            now_nanos: 0,
            counts_all: scope.from_nanos == 0 && scope.sizes == (0..=u64::MAX) && scope.stacks.is_none(),
            scope,
            sampling,
            variances,
            slicer: None,
            anomalies: Anomalies::default(),
            past_end: false,
        };
        if heap.variances.is_some() {
            heap.keep_all_rows();
        }
        heap
    }

    /// Gives a row to every stack, in their order, and to every thread.
    ///
    /// This is for readers of rows while events come in.
    fn keep_all_rows(&mut self) {
        let rows = self.places.len();
        self.places = (1..=rows as u32).collect();
        self.stacks.resize(rows, Row::default());
        self.sole_thread = SEVERAL;
    }

    fn keeps_all_rows(&self) -> bool {
        self.variances.is_some() || self.slicer.is_some()
    }

    /// The same, which also cuts the time into [slices]. Nothing may have been fed yet.
    ///
    /// [slices]: super::slices
    #[must_use]
    pub fn sliced(mut self, options: &SliceOptions) -> Self {
        self.slicer = Some(Box::new(Slicer::new(self.places.len(), self.threads.len(), options)));
        self.keep_all_rows();
        self.next_nanos = 0;
        self
    }

    /// The same for frees that [describe](Self::freed_as) their blocks, without slices.
    ///
    /// Sizes and stacks of blocks take no memory then. Nothing may have been fed yet.
    pub(super) fn described_by_frees(mut self) -> Self {
        self.blocks.forget_descriptions();
        self
    }

    /// True once an event came that is past the end of the scope: nothing that follows changes
    /// anything.
    #[must_use]
    pub fn is_past_end(&self) -> bool {
        self.past_end
    }

    /// Returns the bytes that the whole program holds now, counted or not.
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        self.held.bytes
    }

    /// A block was allocated.
    #[inline(always)]
    pub fn allocated(&mut self, object: u32, stack: u32, thread: u32, size_bytes: u64, nanos: u64) {
        if !self.clock(nanos) {
            return;
        }
        match self.blocks.state(object) {
            Some(ObjectState::Free) => {}
            Some(state) => self.free_reused(object, state),
            None if self.blocks.meet(object) => {}
            None => {
                self.anomalies.bad_numbers += 1;
                return;
            }
        }
        self.hold(object, stack, thread, size_bytes);
    }

    /// Frees the older block of an object that is given twice.
    ///
    /// Where only frees describe blocks it is not known, and counts as live from then on. Readers
    /// of recordings never give an object twice.
    #[cold]
    fn free_reused(&mut self, object: u32, state: ObjectState) {
        self.anomalies.reused_objects += 1;
        if let Some(block) = self.blocks.described(object) {
            self.release(object, state, block);
        }
    }

    #[inline]
    fn hold(&mut self, object: u32, stack: u32, thread: u32, size_bytes: u64) {
        let (Some(&place), Some(of_thread)) =
            (self.places.get(place_of(stack) as usize), self.threads.get_mut(thread as usize))
        else {
            self.anomalies.bad_numbers += 1;
            return;
        };
        let weight = self.sampling.weigh(size_bytes);
        let counted =
            of_thread.counts && (self.counts_all || self.scope.has(self.now_nanos, size_bytes, stack));
        of_thread.last_object = object;
        if counted {
            self.blocks.add_to_origin(&mut of_thread.origin, thread, self.now_nanos);
        }
        let origin = of_thread.origin;
        let row = if counted { self.count(place, stack, thread, size_bytes, weight) } else { NO_ROW };
        self.blocks.put(object, counted, origin, Described::new(size_bytes, row));
        self.held.grow(weight, self.now_nanos);
        self.bin.most_bytes = self.bin.most_bytes.max(self.held.bytes);
        self.bin.allocations = self.bin.allocations.wrapping_add(weight.blocks);
        self.bin.allocated_bytes = self.bin.allocated_bytes.wrapping_add(weight.bytes);
    }

    /// Adds an allocation to its rows; answers with the index of that of its stack.
    #[inline]
    fn count(&mut self, place: u32, stack: u32, thread: u32, size_bytes: u64, weight: Weight) -> u32 {
        let row = match place.checked_sub(1) {
            Some(row) => row,
            None => self.new_row(stack),
        };
        let peak = self.held.peak;
        if let Some(of_stack) = self.stacks.get_mut(row as usize) {
            of_stack.allocated(weight, peak);
        }
        if thread != self.sole_thread {
            if self.sole_thread != SEVERAL {
                self.other_thread(thread);
            }
            if self.sole_thread == SEVERAL
                && let Some(of_thread) = self.threads.get_mut(thread as usize)
            {
                of_thread.row.allocated(weight, peak);
            }
        }
        self.sizes[size_class(size_bytes)].allocated(weight, peak);
        if let Some(slicer) = &mut self.slicer {
            slicer.touch(row as usize);
        }
        if let Some(sampled) = &mut self.variances {
            sampled.each(row as usize, thread, size_bytes, |row, variance| row.allocated(variance, peak));
        }
        row
    }

    #[cold]
    fn new_row(&mut self, stack: u32) -> u32 {
        /// Rows are whole cache lines, which are copied where a vector grows: unused room costs
        /// nothing.
        const ROWS_AT_ONCE: usize = 1 << 16;
        let row = self.stacks.len() as u32;
        if self.stacks.len() == self.stacks.capacity() {
            self.stacks.reserve(self.places.len().min(ROWS_AT_ONCE).max(self.stacks.len()));
        }
        self.stacks.push(Row::default());
        // The caller has seen that the place is there.
        if let Some(place) = self.places.get_mut(place_of(stack) as usize) {
            *place = row + 1;
        }
        row
    }

    /// Another thread than before has a counted block: from the second one on, each has a row of
    /// its own.
    #[cold]
    fn other_thread(&mut self, thread: u32) {
        match self.sole_thread {
            NOBODY => self.sole_thread = thread,
            SEVERAL => {}
            sole => {
                let all = Row::of(self.all(), self.held.peak);
                if let Some(of_thread) = self.threads.get_mut(sole as usize) {
                    of_thread.row = all;
                }
                self.sole_thread = SEVERAL;
            }
        }
    }

    /// Returns the sums of all counted blocks, as if no event followed. The classes of sizes are
    /// the fewest rows, so it adds up these.
    fn all(&self) -> Sums {
        let mut all = Sums::default();
        self.sizes.iter().for_each(|row| all.add(&row.finish(self.held.peak)));
        all
    }

    /// Asks for the memory that this object will need when something happens to it soon.
    #[inline]
    pub(super) fn prefetch_object(&self, object: u32) {
        self.blocks.prefetch(object);
    }

    /// Asks for what a free of this object will need, once the object itself is in the caches.
    #[inline]
    pub(super) fn prefetch_free(&self, object: u32) {
        self.blocks.prefetch_origin(object);
    }

    /// A block was freed.
    #[inline]
    pub fn freed(&mut self, object: u32, nanos: u64) {
        if !self.clock(nanos) {
            return;
        }
        match (self.blocks.described(object), self.blocks.take(object)) {
            (Some(block), Some(state)) if state != ObjectState::Free => self.release(object, state, block),
            _ => self.anomalies.unknown_frees += 1,
        }
    }

    /// A block was freed, which was allocated with this stack and size.
    #[inline(always)]
    pub(super) fn freed_as(&mut self, object: u32, stack: u32, size_bytes: u64, nanos: u64) {
        if !self.clock(nanos) {
            return;
        }
        match self.blocks.take(object) {
            Some(ObjectState::Free) | None => self.anomalies.unknown_frees += 1,
            Some(state) => {
                let place = self.places.get(place_of(stack) as usize).copied().unwrap_or(0);
                self.release(object, state, Described::new(size_bytes, place.wrapping_sub(1)));
            }
        }
    }

    /// Subtracts a block that was there in this state, from its rows too if it was counted.
    #[inline]
    fn release(&mut self, object: u32, state: ObjectState, block: Described) {
        let size_bytes = block.size_bytes();
        let weight = self.sampling.weigh(size_bytes);
        if let ObjectState::Counted(origin) = state {
            self.uncount(object, origin, block.row, size_bytes, weight);
        }
        self.held.shrink(weight);
    }

    /// Subtracts a block from its rows; `number` is that of its origin.
    #[inline]
    fn uncount(&mut self, object: u32, number: u32, row_of_stack: u32, size_bytes: u64, weight: Weight) {
        let Some(origin) = self.blocks.remove_from_origin(number) else { return };
        let peak = self.held.peak;
        let thread = self.threads.get_mut(origin.thread as usize);
        if let (Some(row), Some(thread)) = (self.stacks.get_mut(row_of_stack as usize), thread) {
            if origin.blocks == 0 && number != thread.origin {
                self.blocks.retire(number);
            }
            let temporary = thread.last_object == object;
            row.freed(weight, temporary, peak);
            if self.sole_thread == SEVERAL {
                thread.row.freed(weight, temporary, peak);
            }
            self.sizes[size_class(size_bytes)].freed(weight, temporary, peak);
            let lifetime = &mut self.lifetimes[lifetime_class(self.now_nanos - origin.nanos)];
            // Invalid sums wrap, as all sums do.
            lifetime.blocks = lifetime.blocks.wrapping_add(weight.blocks);
            lifetime.bytes = lifetime.bytes.wrapping_add(weight.bytes);
            if let Some(slicer) = &mut self.slicer {
                slicer.touch(row_of_stack as usize);
            }
            if let Some(sampled) = &mut self.variances {
                sampled.each(row_of_stack as usize, origin.thread, size_bytes, |row, variance| {
                    row.freed(variance, peak);
                });
            }
        }
    }

    /// Sets the time; false when it is past the end of the scope. Time never goes back.
    #[inline]
    fn clock(&mut self, nanos: u64) -> bool {
        if nanos >= self.next_nanos {
            return self.clock_at_next(nanos);
        }
        self.now_nanos = self.now_nanos.max(nanos);
        !self.past_end
    }

    #[cold]
    fn clock_at_next(&mut self, nanos: u64) -> bool {
        if self.past_end || nanos > self.scope.to_nanos {
            self.past_end = true;
            return false;
        }
        self.now_nanos = self.now_nanos.max(nanos);
        if let Some(mut slicer) = self.slicer.take() {
            slicer.advance(self.now_nanos, self.rows());
            self.slicer = Some(slicer);
        }
        self.start_bin(self.now_nanos);
        true
    }

    fn rows(&self) -> Rows<'_, impl Iterator<Item = &Row>> {
        Rows {
            stacks: &self.stacks,
            sizes: &self.sizes,
            threads: self.threads.iter().map(|thread| &thread.row),
            lifetimes: &self.lifetimes,
            sampling: self.sampling,
        }
    }

    /// Returns the sums of each slice of time up to `end_nanos`, where [slices](Self::sliced) are
    /// on.
    ///
    /// The aggregator is unchanged and accepts further events, so this serves a program that still
    /// runs. It visits all blocks that live.
    #[must_use]
    pub fn slices(&self, end_nanos: u64) -> Option<Slices> {
        Some(self.slices_of(self.slicer.as_deref()?.clone(), end_nanos))
    }

    /// The same at the end: nothing is copied, and no slices are cut from now on.
    pub(super) fn take_slices(&mut self, end_nanos: u64) -> Option<Slices> {
        let slicer = self.slicer.take()?;
        Some(self.slices_of(*slicer, end_nanos))
    }

    fn slices_of(&self, slicer: Slicer, end_nanos: u64) -> Slices {
        let live = self.blocks.counted().map(|(origin, block)| LiveBlock {
            stack: block.row,
            thread: origin.thread,
            size_bytes: block.size_bytes(),
            born_nanos: origin.nanos,
        });
        slicer.finish(self.end_of(end_nanos), self.rows(), live)
    }

    /// The end, if it is no later than that of the scope and no earlier than what was fed.
    fn end_of(&self, end_nanos: u64) -> u64 {
        end_nanos.min(self.scope.to_nanos).max(self.now_nanos)
    }

    fn start_bin(&mut self, nanos: u64) {
        self.close_bin();
        let bin_end = self.timeline.advance(nanos, self.held.bytes, self.held.blocks);
        let slice_end = self.slicer.as_ref().map_or(u64::MAX, |slicer| slicer.next_nanos());
        self.next_nanos = bin_end.min(slice_end).min(self.scope.to_nanos.saturating_add(1));
    }

    fn close_bin(&mut self) {
        let (bytes, blocks) = (self.held.bytes, self.held.blocks);
        let latest = std::mem::take(&mut self.bin);
        if let Some(bin) = self.timeline.last() {
            bin.add(&latest);
            bin.last_bytes = bytes;
            bin.last_blocks = blocks;
        }
    }

    /// Makes room for events of stacks and threads with indices below these numbers.
    ///
    /// This serves a recording that grows while it is read; it never shrinks. Threads that come
    /// later are counted unless the scope lists its threads.
    ///
    /// ```
    /// use cairn_analysis::heap::{Aggregator, Scope, Sampling};
    ///
    /// let mut heap = Aggregator::new(1, 1, Scope::default(), Sampling::All);
    /// heap.grow(2, 2);
    /// heap.allocated(0, 1, 1, 1000, 10); // the second stack, the second thread
    /// assert_eq!(heap.snapshot(20).stacks[1].live_bytes, 1000);
    /// heap.freed(0, 30);
    /// assert_eq!(heap.finish(40).stacks[1].live_bytes, 0);
    /// ```
    pub fn grow(&mut self, stacks: usize, threads: usize) {
        let rows = (stacks.min(MAX_STACKS) + 1).max(self.places.len());
        if self.keeps_all_rows() {
            self.places.extend(self.places.len() as u32 + 1..=rows as u32);
            self.stacks.resize(rows, Row::default());
        } else {
            self.places.resize(rows, 0);
        }
        for index in self.threads.len()..threads {
            self.threads.push(Thread::new(&self.scope, index));
        }
        if let Some(sampled) = &mut self.variances {
            sampled.stacks.resize(rows, Variances::default());
            sampled.threads.resize(self.threads.len(), Variances::default());
        }
        if let Some(slicer) = &mut self.slicer {
            slicer.grow(rows, self.threads.len());
        }
    }

    /// Counts the blocks of this thread from now on. False when some were left out before.
    pub(super) fn count_thread(&mut self, index: u32) -> bool {
        let Some(thread) = self.threads.get_mut(index as usize) else { return true };
        let was_counted = std::mem::replace(&mut thread.counts, true);
        was_counted || thread.last_object == NO_OBJECT
    }

    /// How many allocations were counted, and how many of their blocks are live; of a sample, as
    /// they are.
    pub(super) fn counted(&self) -> (u64, u64) {
        let all = self.all();
        (all.allocations, all.live_blocks)
    }

    /// Contradictory events so far.
    #[must_use]
    pub fn anomalies(&self) -> Anomalies {
        self.anomalies
    }

    /// The sums, and the [slices](Self::slices) where they were asked for.
    #[must_use]
    pub fn finish_sliced(mut self, end_nanos: u64) -> (HeapProfile, Option<Slices>) {
        let slices = self.take_slices(end_nanos);
        (self.finish(end_nanos), slices)
    }

    /// The sums, as of `end_nanos`, or of the end of the scope if that is earlier.
    #[must_use]
    pub fn finish(self, end_nanos: u64) -> HeapProfile {
        self.snapshot(end_nanos)
    }

    /// The sums as they are now, as [`finish`](Self::finish) gives them at the end; more events may
    /// follow. Costs as much as there are stacks, whatever the number of blocks and events.
    #[must_use]
    pub fn snapshot(&self, end_nanos: u64) -> HeapProfile {
        let end_nanos = self.end_of(end_nanos);
        let mut timeline = self.timeline.clone();
        let close = |timeline: &mut Timeline| {
            if let Some(bin) = timeline.last() {
                (bin.last_bytes, bin.last_blocks) = (self.held.bytes, self.held.blocks);
            }
        };
        if let Some(bin) = timeline.last() {
            bin.add(&self.bin);
        }
        close(&mut timeline);
        if end_nanos >= self.next_nanos || timeline.bins.is_empty() {
            timeline.advance(end_nanos, self.held.bytes, self.held.blocks);
            close(&mut timeline);
        }
        let sampling = self.sampling;
        let peak = self.held.peak;
        let finish = |row: &Row| in_blocks(row.finish(peak), sampling);
        let of_place = |place: &u32| {
            let row = place.checked_sub(1).and_then(|row| self.stacks.get(row as usize));
            row.map(finish).unwrap_or_default()
        };
        let lost_stack = self.places.first().map(of_place).unwrap_or_default();
        let totals = in_blocks(self.all(), sampling);
        let mut threads: Vec<Sums> = self.threads.iter().map(|thread| finish(&thread.row)).collect();
        if let Some(alone) = threads.get_mut(self.sole_thread as usize) {
            *alone = totals;
        }
        let (errors, stack_errors) =
            self.variances.as_ref().map_or_else(Default::default, |sampled| sampled.finish(peak));
        let in_whole_blocks =
            |lifetime: &Lifetimes| Lifetimes { blocks: sampling.blocks(lifetime.blocks), ..*lifetime };
        for bin in &mut timeline.bins {
            bin.allocations = sampling.blocks(bin.allocations);
            bin.last_blocks = sampling.blocks(bin.last_blocks);
        }
        HeapProfile {
            totals,
            errors,
            stacks: self.places.iter().skip(1).map(of_place).collect(),
            lost_stack,
            stack_errors,
            threads,
            sizes: self.sizes.iter().map(finish).collect(),
            lifetimes: self.lifetimes.iter().map(in_whole_blocks).collect(),
            timeline,
            peak_nanos: self.held.peak_nanos,
            peak_bytes_of_all: self.held.peak_bytes,
            live_bytes_of_all: self.held.bytes,
            end_nanos,
            sampling,
            anomalies: self.anomalies,
        }
    }
}

fn counts_thread(scope: &Scope, index: usize) -> bool {
    scope.threads.as_ref().is_none_or(|list| list.iter().any(|&thread| thread as usize == index))
}

fn in_blocks(sums: Sums, sampling: Sampling) -> Sums {
    Sums {
        allocations: sampling.blocks(sums.allocations),
        live_blocks: sampling.blocks(sums.live_blocks),
        peak_blocks: sampling.blocks(sums.peak_blocks),
        // Whether another allocation came between is not known when not all are there.
        temporary: if sampling.is_estimate() { 0 } else { sums.temporary },
        ..sums
    }
}

impl Held {
    #[inline]
    fn grow(&mut self, weight: Weight, nanos: u64) {
        self.blocks = self.blocks.wrapping_add(weight.blocks);
        self.bytes = self.bytes.wrapping_add(weight.bytes);
        if self.bytes > self.peak_bytes {
            self.peak_bytes = self.bytes;
            self.peak_blocks = self.blocks;
            self.peak_nanos = nanos;
            self.peak += 1;
        }
    }

    #[inline]
    fn shrink(&mut self, weight: Weight) {
        self.blocks = self.blocks.wrapping_sub(weight.blocks);
        self.bytes = self.bytes.wrapping_sub(weight.bytes);
    }
}

impl SampledErrors {
    #[cold]
    fn each(
        &mut self,
        stack: usize,
        thread: u32,
        size_bytes: u64,
        change: impl Fn(&mut Variances, Variance),
    ) {
        let variance = Variance::of(size_bytes, self.mean_bytes);
        let rows = [
            self.stacks.get_mut(stack),
            self.threads.get_mut(thread as usize),
            self.sizes.get_mut(size_class(size_bytes)),
        ];
        rows.into_iter().flatten().for_each(|row| change(row, variance));
    }

    fn finish(&self, peak: u64) -> (Errors, Vec<Errors>) {
        let mut total = Variances::default();
        self.sizes.iter().for_each(|row| total.merge(row, peak));
        (total.errors(peak), self.stacks.iter().skip(1).map(|row| row.errors(peak)).collect())
    }
}
