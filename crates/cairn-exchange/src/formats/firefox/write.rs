//! Exports to the processed profile: allocations and frees with times, memory tracks, and marks.
//!
//! A browser can hold a few million events. If there are more, the blocks with the shortest
//! lifetimes are omitted, so memory retained over longer periods stays exact. A block's lifetime is
//! known at its free, so the events are read twice: the first pass sets a bit per omitted
//! allocation. Storing the events instead would take memory in proportion to their number.

use std::collections::HashMap;
use std::io::Write;
use std::time::Duration;

use cairn_analysis::heap::{HeapProfile, lifetime_class_range};
use fxprof_processed_profile::{
    CategoryHandle, CounterHandle, CpuDelta, Frame, FrameFlags, FrameInfo, MarkerTiming, ProcessHandle,
    ReferenceTimestamp, SamplingInterval, StackHandle, StringHandle, ThreadHandle, Timestamp,
};

use super::tables;
use crate::dispatch::target::HeapEvents;
use crate::error::ExchangeError;
use crate::model::events::{AllocatedBlock, EventSink, replay};
use crate::model::marks::MarkAt;
use crate::model::profile::Profile;

/// Maximum bins of the memory track; each has up to two points.
const MOST_BINS: u64 = 10_000;

/// Writes the events of the scope; returns sentences about omitted data.
pub(crate) fn write(
    heap: &HeapEvents<'_>,
    profile: &Profile,
    most_blocks: u64,
    output: &mut dyn Write,
) -> Result<Vec<String>, ExchangeError> {
    let sums = heap.sums;
    let least_nanos = least_lifetime(sums, most_blocks);
    let mut short = ShortLived { least_nanos, ..ShortLived::default() };
    if least_nanos > 0 {
        replay(heap, &mut short)?;
    }
    let mut file = FileBuilder::new(profile);
    let thread = file.allocations(profile);
    let memory = file.file.add_counter(file.process, "malloc", "Memory", "Bytes in blocks");
    let resident = file.file.add_counter(file.process, "resident", "Memory", "Resident memory");
    // Viewers drop the first point of a track, taking it for the state before the recording.
    for counter in [memory, resident] {
        file.file.add_counter_sample(counter, Timestamp::from_nanos_since_reference(0), 0.0, 0);
    }
    let mut writer = EventWriter {
        stacks: heap.stacks,
        thread,
        short,
        allocations: 0,
        live: Vec::new(),
        memory,
        resident,
        resident_bytes: 0,
        track: Track { step_nanos: sums.end_nanos / MOST_BINS, ..Track::default() },
        file,
    };
    replay(heap, &mut writer)?;
    writer.end_of_bin();
    let (blocks, bytes) = (writer.short.blocks, writer.short.bytes);
    tables::write(&writer.file.file, profile, output)?;
    let mut losses = vec!["in the Firefox Profiler, all allocations are on one thread".to_owned()];
    if blocks > 0 {
        losses.push(format!(
            "{blocks} allocations of {bytes} bytes that were freed within {least_nanos} ns are omitted from the allocations (the memory track includes them; --full writes all)"
        ));
    }
    Ok(losses)
}

/// Writes marks and module events.
pub(crate) fn write_marks(
    profile: &Profile,
    marks: &[MarkAt],
    output: &mut dyn Write,
) -> Result<(), ExchangeError> {
    let mut file = FileBuilder::new(profile);
    let threads = file.threads_of(marks);
    for mark in marks {
        let Some(&thread) = threads.get(&mark.thread) else { continue };
        let stack = file.stack_of_thread(profile, thread, mark.stack);
        let at = Timestamp::from_nanos_since_reference(mark.nanos);
        file.file.add_sample(thread, at, stack, CpuDelta::ZERO, 1);
        let name = file.file.intern_string(&mark.text);
        let marker = file.file.add_marker(thread, MarkerTiming::Instant(at), MarkMarker(name));
        file.file.set_marker_stack(thread, marker, stack);
    }
    tables::write(&file.file, profile, output)
}

/// A mark, or the load or unload of a module.
struct MarkMarker(StringHandle);

impl fxprof_processed_profile::StaticSchemaMarker for MarkMarker {
    const UNIQUE_MARKER_TYPE_NAME: &'static str = "cairn-mark";
    const FIELDS: &'static [fxprof_processed_profile::StaticSchemaMarkerField] = &[];

    fn name(&self, _profile: &mut fxprof_processed_profile::Profile) -> StringHandle {
        self.0
    }

    fn category(&self, _profile: &mut fxprof_processed_profile::Profile) -> CategoryHandle {
        CategoryHandle::OTHER
    }

    fn string_field_value(&self, _field_index: u32) -> StringHandle {
        self.0
    }

    fn number_field_value(&self, _field_index: u32) -> f64 {
        0.0
    }
}

/// Returns the shortest lifetime to include: the lowest class with at most `most` allocations above
/// it.
fn least_lifetime(sums: &HeapProfile, most: u64) -> u64 {
    let mut blocks = sums.totals.live_blocks;
    for (class, lifetimes) in sums.lifetimes.iter().enumerate().rev() {
        blocks = blocks.saturating_add(lifetimes.blocks);
        if blocks > most {
            return lifetime_class_range(class).1;
        }
    }
    0
}

/// The file under construction.
struct FileBuilder {
    file: fxprof_processed_profile::Profile,
    process: ProcessHandle,
    stacks: Vec<Option<StackHandle>>,
}

impl FileBuilder {
    fn new(profile: &Profile) -> Self {
        let started = ReferenceTimestamp::from_duration_since_unix_epoch(Duration::from_nanos(
            profile.started_wall_nanos,
        ));
        let name = if profile.title.is_empty() { "a recording of cairn" } else { &profile.title };
        let mut file =
            fxprof_processed_profile::Profile::new(name, started, SamplingInterval::from_millis(1));
        let process = file.add_process(name, profile.process, Timestamp::from_nanos_since_reference(0));
        file.set_process_end_time(process, Timestamp::from_nanos_since_reference(profile.duration_nanos));
        Self { file, process, stacks: Vec::new() }
    }

    /// Adds the thread with all allocations and stacks: the format allows them on the first thread
    /// only.
    fn allocations(&mut self, profile: &Profile) -> ThreadHandle {
        let start = Timestamp::from_nanos_since_reference(0);
        let end = Timestamp::from_nanos_since_reference(profile.duration_nanos);
        let thread = self.file.add_thread(self.process, profile.process, start, true);
        self.file.set_thread_name(thread, "allocations");
        self.file.set_thread_end_time(thread, end);
        // Viewers hide threads without samples.
        for at in [start, end] {
            self.file.add_sample(thread, at, None, CpuDelta::ZERO, 0);
        }
        for stack in &profile.stacks {
            let caller = stack.caller.and_then(|caller| self.stacks.get(caller as usize).copied().flatten());
            let stack = self.with_frames(profile, thread, caller, stack.location);
            self.stacks.push(stack);
        }
        thread
    }

    fn with_frames(
        &mut self,
        profile: &Profile,
        thread: ThreadHandle,
        caller: Option<StackHandle>,
        location: u32,
    ) -> Option<StackHandle> {
        let mut stack = caller;
        let Some(location) = profile.locations.get(location as usize) else { return stack };
        for line in location.lines.iter().rev() {
            let label = self.file.intern_string(&tables::label(*line, location.module));
            let info = FrameInfo {
                frame: Frame::Label(label),
                category_pair: CategoryHandle::OTHER.into(),
                flags: FrameFlags::empty(),
            };
            let frame = self.file.intern_frame(thread, info);
            stack = Some(self.file.intern_stack(thread, stack, frame));
        }
        stack
    }

    fn threads_of(&mut self, marks: &[MarkAt]) -> HashMap<u32, ThreadHandle> {
        let mut threads = HashMap::new();
        for mark in marks {
            if !threads.contains_key(&mark.thread) {
                let start = Timestamp::from_nanos_since_reference(mark.nanos);
                let thread = self.file.add_thread(self.process, mark.thread, start, threads.is_empty());
                self.file.set_thread_name(thread, &mark.thread_name);
                threads.insert(mark.thread, thread);
            }
        }
        threads
    }

    fn stack_of_thread(
        &mut self,
        profile: &Profile,
        thread: ThreadHandle,
        stack: Option<u32>,
    ) -> Option<StackHandle> {
        let locations: Vec<u32> = profile.locations_of(stack).collect();
        locations
            .iter()
            .rev()
            .fold(None, |caller, &location| self.with_frames(profile, thread, caller, location))
    }
}

/// Selects the allocations that are too short-lived to include.
#[derive(Default)]
struct ShortLived {
    least_nanos: u64,
    /// One bit per allocation, by number.
    left_out: Vec<u64>,
    allocations: u64,
    /// By object: number and size of its current block, and its allocation time.
    live: Vec<(u64, u64, u64)>,
    blocks: u64,
    bytes: u64,
}

impl ShortLived {
    fn has(&self, number: u64) -> bool {
        let word = self.left_out.get((number / 64) as usize);
        word.is_some_and(|word| word >> (number % 64) & 1 == 1)
    }
}

impl EventSink for ShortLived {
    fn allocated(&mut self, block: AllocatedBlock) -> Result<(), ExchangeError> {
        *at_index(&mut self.live, block.object as usize) = (self.allocations, block.size_bytes, block.nanos);
        self.allocations += 1;
        Ok(())
    }

    fn freed(&mut self, object: u32, nanos: u64) -> Result<(), ExchangeError> {
        let (number, size_bytes, born_nanos) = *at_index(&mut self.live, object as usize);
        if nanos.saturating_sub(born_nanos) <= self.least_nanos {
            *at_index(&mut self.left_out, (number / 64) as usize) |= 1 << (number % 64);
            self.blocks += 1;
            self.bytes = self.bytes.saturating_add(size_bytes);
        }
        Ok(())
    }
}

/// Returns the entry at an index, and extends the list if necessary.
fn at_index<T: Clone + Default>(list: &mut Vec<T>, index: usize) -> &mut T {
    if list.len() <= index {
        list.resize(index + 1, T::default());
    }
    &mut list[index]
}

struct EventWriter<'a> {
    stacks: &'a HashMap<u32, Option<u32>>,
    thread: ThreadHandle,
    short: ShortLived,
    allocations: u64,
    /// By object: its size, and whether it is included.
    live: Vec<(u64, bool)>,
    memory: CounterHandle,
    resident: CounterHandle,
    resident_bytes: u64,
    track: Track,
    file: FileBuilder,
}

impl EventWriter<'_> {
    fn sample(&mut self, nanos: u64, stack: Option<StackHandle>, object: u32, change: i64) {
        // Resembles an address: aligned, and not 0.
        let address = (u64::from(object) + 1) << 4;
        let at = Timestamp::from_nanos_since_reference(nanos);
        self.file.file.add_allocation_sample(self.thread, at, stack, address, change);
    }

    fn held(&mut self, nanos: u64, change: i64) {
        if self.track.is_full(nanos) {
            self.end_of_bin();
        }
        self.track.change(nanos, change);
    }

    fn end_of_bin(&mut self) {
        for (nanos, change, events) in self.track.take().into_iter().filter(|point| point.2 > 0) {
            let at = Timestamp::from_nanos_since_reference(nanos);
            self.file.file.add_counter_sample(self.memory, at, change as f64, events);
        }
    }
}

impl EventSink for EventWriter<'_> {
    fn allocated(&mut self, block: AllocatedBlock) -> Result<(), ExchangeError> {
        let AllocatedBlock { object, stack, size_bytes, nanos } = block;
        self.held(nanos, signed(size_bytes));
        let is_shown = !self.short.has(self.allocations);
        self.allocations += 1;
        *at_index(&mut self.live, object as usize) = (size_bytes, is_shown);
        if is_shown {
            let stack = self.stacks.get(&stack).copied().flatten();
            let stack = stack.and_then(|stack| self.file.stacks.get(stack as usize).copied().flatten());
            self.sample(nanos, stack, object, signed(size_bytes));
        }
        Ok(())
    }

    fn freed(&mut self, object: u32, nanos: u64) -> Result<(), ExchangeError> {
        let (size_bytes, is_shown) = *at_index(&mut self.live, object as usize);
        self.held(nanos, -signed(size_bytes));
        if is_shown {
            self.sample(nanos, None, object, -signed(size_bytes));
        }
        Ok(())
    }

    fn used(&mut self, nanos: u64, resident_bytes: u64) -> Result<(), ExchangeError> {
        let change = signed(resident_bytes).saturating_sub(signed(self.resident_bytes));
        self.resident_bytes = resident_bytes;
        let at = Timestamp::from_nanos_since_reference(nanos);
        self.file.file.add_counter_sample(self.resident, at, change as f64, 1);
        Ok(())
    }
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// Bin of the memory track; merges changes to limit the points.
///
/// It preserves the maximum between them.
#[derive(Clone, Copy, Default)]
struct Track {
    step_nanos: u64,
    /// Times of the bin's start, its maximum, and its last change.
    nanos: [u64; 3],
    /// Change since the start: at the maximum, and at the end.
    change: [i64; 2],
    /// Events up to the maximum, and after it.
    events: [u32; 2],
}

impl Track {
    fn is_full(&self, nanos: u64) -> bool {
        nanos.saturating_sub(self.nanos[0]) > self.step_nanos
    }

    fn change(&mut self, nanos: u64, change: i64) {
        if self.events == [0, 0] {
            self.nanos = [nanos; 3];
        }
        self.nanos[2] = nanos;
        self.change[1] = self.change[1].saturating_add(change);
        self.events[1] = self.events[1].saturating_add(1);
        if self.change[1] > self.change[0] {
            self.nanos[1] = nanos;
            self.change[0] = self.change[1];
            self.events = [self.events[0].saturating_add(self.events[1]), 0];
        }
    }

    /// Returns the bin's points and the next one: time, change, and number of events.
    fn take(&mut self) -> [(u64, i64, u32); 2] {
        let Self { step_nanos, nanos: [_, most, last], change: [up, now], events: [before, behind] } = *self;
        *self = Self { step_nanos, nanos: [last; 3], ..Self::default() };
        [(most, up, before), (last, now.saturating_sub(up), behind)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn firefox_track_includes_peaks_within_bins() {
        let mut track = Track { step_nanos: 100, ..Track::default() };
        for (nanos, change) in [(10, 5), (20, 70), (30, -60), (40, -10)] {
            assert!(!track.is_full(nanos));
            track.change(nanos, change);
        }
        assert!(track.is_full(111));
        assert_eq!(track.take(), [(20, 75, 2), (40, -70, 2)]);
        track.change(120, -5);
        assert_eq!(track.take(), [(120, 0, 0), (120, -5, 1)]);
        assert_eq!(track.take().map(|point| point.2), [0, 0]);
    }
}
