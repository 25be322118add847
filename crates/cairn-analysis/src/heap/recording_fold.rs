//! From the events of a recording to what is read of it: the same for one that is read at once and
//! one that grows.

use super::aggregate::{Aggregator, LOST_STACK, Scope};
use super::heap_read::{HeapMark, HeapRead, MOST_MARK_BYTES, MOST_MARKS};
use super::resident::{ResidentOverTime, UsageSample};
use super::sampling::Sampling;
use super::slices::{SliceOptions, Slices, put_together};
use cairn_recording::{
    Alloc, Events, Free, Mapping, MappingKind, Mark, ObjectId, Recording, StackId, Thread, ThreadId, Usage,
};

/// Thirty years: what is said to be longer is no time.
pub(super) const MOST_NANOS: u64 = 30 * 366 * 86_400 * 1_000_000_000;

/// Adds up what it sees.
pub(super) struct RecordingFold {
    heap: Aggregator,
    /// By number, with their indices, which are in the order in which they were met.
    threads: Vec<(ThreadId, u32)>,
    /// Events of one thread come in runs.
    last_thread: Option<(ThreadId, u32)>,
    /// Time of the last allocation or free.
    last_nanos: u64,
    /// Time of the last sample.
    usage_nanos: u64,
    resident: ResidentOverTime,
    /// With the threads' indices as they were met.
    marks: Vec<HeapMark>,
    more_marks: u64,
    is_whole: bool,
}

impl RecordingFold {
    /// Creates the sums for events of `recording` as far as it is known now.
    ///
    /// The indices of threads in the scope are those of its threads.
    pub(super) fn new(
        recording: &Recording,
        sampling: Sampling,
        scope: Scope,
        slices: Option<&SliceOptions>,
    ) -> Self {
        let is_whole = scope.to_nanos == u64::MAX;
        let heap = Aggregator::new(0, 0, scope, sampling);
        let heap = match slices {
            Some(options) => heap.sliced(options),
            None => heap.described_by_frees(),
        };
        let mut fold = Self {
            heap,
            threads: Vec::new(),
            last_thread: None,
            last_nanos: 0,
            usage_nanos: 0,
            resident: ResidentOverTime::default(),
            marks: Vec::new(),
            more_marks: 0,
            is_whole,
        };
        fold.grow(recording);
        fold
    }

    /// Makes room for what `recording` knows by now.
    pub(super) fn grow(&mut self, recording: &Recording) {
        for thread in recording.threads() {
            if let Err(place) = self.threads.binary_search_by_key(&thread.id, |known| known.0) {
                self.threads.insert(place, (thread.id, self.threads.len() as u32));
            }
        }
        self.last_thread = None;
        self.heap.grow(recording.stacks().len(), self.threads.len());
    }

    /// Counts the blocks of this thread from now on, in a scope that lists its threads. False when
    /// some were left out before.
    ///
    /// A thread that the recording does not know yet is not counted; it has no events either.
    pub(super) fn count_thread(&mut self, thread: ThreadId) -> bool {
        self.index_of(thread).is_none_or(|index| self.heap.count_thread(index))
    }

    /// Time of the last thing that was seen.
    pub(super) fn seen_nanos(&self) -> u64 {
        self.last_nanos.max(self.usage_nanos)
    }

    /// Whether all is here that the other one has counted.
    pub(super) fn has_all_of(&self, other: &Self) -> bool {
        let ((allocations, live), (others, others_live)) = (self.heap.counted(), other.heap.counted());
        self.seen_nanos() >= other.seen_nanos()
            || allocations >= others && allocations.saturating_sub(live) >= others.saturating_sub(others_live)
    }

    /// True when some event was left out, because what it names was not known.
    pub(super) fn left_out_some(&self) -> bool {
        self.heap.anomalies().bad_numbers > 0
    }

    /// Returns the sums so far, of a recording that knows these threads and ends there.
    pub(super) fn read(&self, threads: &[Thread], end_nanos: Option<u64>, unmatched_frees: u64) -> HeapRead {
        let mut profile = self.heap.snapshot(self.end_of(end_nanos));
        let of_thread = |thread: &Thread| profile.threads.get(self.index_of(thread.id)? as usize).copied();
        profile.threads = threads.iter().map(|thread| of_thread(thread).unwrap_or_default()).collect();
        let order = self.order_of(threads);
        let marks = self.marks.iter().map(|mark| HeapMark { thread: order(mark.thread), ..mark.clone() });
        let most = self.resident.most();
        HeapRead {
            profile,
            unmatched_frees,
            most_resident_bytes: most.map(|most| most.sample.resident_bytes),
            page_faults: self.resident.samples().iter().map(|sample| sample.page_faults).max(),
            resident: most.cloned(),
            usage: self.resident.samples().to_vec(),
            marks: marks.collect(),
            more_marks: self.more_marks,
            findings: Vec::new(),
        }
    }

    /// Returns the slices of the time so far, where they are on.
    ///
    /// The recording knows these threads and ends there.
    pub(super) fn slices(&self, threads: &[Thread], end_nanos: Option<u64>) -> Option<Slices> {
        let mut slices = self.heap.slices(self.end_of(end_nanos))?;
        self.put_in_order(&mut slices, threads);
        Some(slices)
    }

    /// The same at the end, without a copy.
    pub(super) fn into_slices(mut self, threads: &[Thread], end_nanos: Option<u64>) -> Option<Slices> {
        let mut slices = self.heap.take_slices(self.end_of(end_nanos))?;
        self.put_in_order(&mut slices, threads);
        Some(slices)
    }

    fn put_in_order(&self, slices: &mut Slices, threads: &[Thread]) {
        let order = self.order_of(threads);
        slices.threads.iter_mut().for_each(|entry| entry.row = order(entry.row));
        put_together(&mut slices.threads);
    }

    fn end_of(&self, end_nanos: Option<u64>) -> u64 {
        let end = end_nanos.unwrap_or(0);
        // The end of a recording is known only as well as the clock; an unknown one must not make
        // time run on.
        if self.is_whole && end < MOST_NANOS { end.max(self.last_nanos) } else { self.last_nanos }
    }

    /// From the index that a thread has here to its place among these.
    fn order_of(&self, threads: &[Thread]) -> impl Fn(u32) -> u32 {
        let mut places = vec![u32::MAX; self.threads.len()];
        for (thread, place) in threads.iter().zip(0..) {
            if let Some(index) = self.index_of(thread.id).and_then(|index| places.get_mut(index as usize)) {
                *index = place;
            }
        }
        move |index| places.get(index as usize).copied().unwrap_or(u32::MAX)
    }

    #[inline]
    fn thread(&mut self, id: ThreadId) -> u32 {
        match self.last_thread {
            Some((last, index)) if last == id => index,
            _ => self.other_thread(id),
        }
    }

    fn other_thread(&mut self, id: ThreadId) -> u32 {
        let index = self.index_of(id).unwrap_or(u32::MAX);
        self.last_thread = Some((id, index));
        index
    }

    fn index_of(&self, id: ThreadId) -> Option<u32> {
        let place = self.threads.binary_search_by_key(&id, |known| known.0).ok()?;
        self.threads.get(place).map(|known| known.1)
    }
}

/// The index of a stack in the aggregator.
#[inline]
fn index_of(stack: StackId) -> u32 {
    if stack == StackId::LOST { LOST_STACK } else { stack.number() }
}

impl Events for RecordingFold {
    #[inline(always)]
    fn alloc(&mut self, event: &Alloc) {
        let thread = self.thread(event.at.thread);
        self.last_nanos = event.at.nanos;
        let stack = index_of(event.stack);
        self.heap.allocated(event.object.number(), stack, thread, event.size_bytes, event.at.nanos);
    }

    #[inline(always)]
    fn free(&mut self, event: &Free) {
        self.last_nanos = event.at.nanos;
        let stack = index_of(event.stack);
        self.heap.freed_as(event.object.number(), stack, event.size_bytes, event.at.nanos);
    }

    #[inline]
    fn prefetch_object(&mut self, object: ObjectId, _: StackId, _: u64) {
        self.heap.prefetch_object(object.number());
    }

    #[inline]
    fn prefetch_free(&mut self, object: ObjectId) {
        self.heap.prefetch_free(object.number());
    }

    fn mark(&mut self, event: &Mark<'_>) {
        if self.marks.len() >= MOST_MARKS {
            self.more_marks += 1;
            return;
        }
        let mut text = String::from_utf8_lossy(event.text).into_owned();
        text.truncate(text.floor_char_boundary(MOST_MARK_BYTES));
        let thread = self.thread(event.at.thread);
        self.marks.push(HeapMark { nanos: event.at.nanos, thread, text });
    }

    fn usage(&mut self, event: &Usage) {
        let sample = UsageSample {
            nanos: event.at.nanos,
            resident_bytes: event.program_bytes(),
            own_bytes: event.own_bytes,
            page_faults: event.page_faults,
            threads: event.threads,
        };
        self.usage_nanos = event.at.nanos;
        self.resident.sample(sample, self.heap.held_bytes());
    }

    fn mapping(&mut self, event: &Mapping) {
        let (address, size_bytes) = (event.address.value(), event.size_bytes);
        match event.kind {
            MappingKind::Map | MappingKind::Grow => {
                self.resident.map(address, size_bytes, index_of(event.stack));
            }
            MappingKind::Unmap | MappingKind::Shrink => self.resident.unmap(address, size_bytes),
            _ => {}
        }
    }

    fn is_enough(&self) -> bool {
        self.heap.is_past_end()
    }
}
