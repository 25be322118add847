//! The Firefox Profiler's processed profile: allocations and frees with their times, the memory as a track, resident memory, marks.
//!
//! A browser holds a few million events. Where there are more, the blocks that lived shortest are left out: what is retained in any stretch of time that is
//! longer than these stays exact. Which they are is known when a block is freed, so the events are read once more in front, and a bit is noted for
//! each allocation; keeping the events until all is decided would take memory by their number.

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
use crate::model::events::{Block, Blocks, replay};
use crate::model::marks::MarkAt;
use crate::model::profile::Profile;

/// Allocations in a file.
const MOST_BLOCKS: u64 = 1_000_000;
/// Of the memory track; each has up to two points.
const MOST_BINS: u64 = 10_000;

/// Writes the events of the scope; returns the sentences about what was left out.
pub(crate) fn write(
    heap: &HeapEvents<'_>,
    profile: &Profile,
    output: &mut dyn Write,
) -> Result<Vec<String>, ExchangeError> {
    let sums = heap.sums;
    let least_nanos = least_lifetime(sums, MOST_BLOCKS);
    let mut short = ShortLived { least_nanos, ..ShortLived::default() };
    if least_nanos > 0 {
        replay(heap, &mut short)?;
    }
    let mut file = Built::new(profile);
    let thread = file.allocations(profile);
    let memory = file.file.add_counter(file.process, "malloc", "Memory", "Bytes in blocks");
    let resident = file.file.add_counter(file.process, "resident", "Memory", "Resident memory");
    // Viewers take the first point of a track for what was before the recording, and leave it out.
    for counter in [memory, resident] {
        file.file.add_counter_sample(counter, Timestamp::from_nanos_since_reference(0), 0.0, 0);
    }
    let mut writer = Writer {
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
    let mut losses = vec!["the Firefox Profiler has all allocations on one thread here".to_owned()];
    if blocks > 0 {
        losses.push(format!(
            "{blocks} allocations of {bytes} bytes that were freed within {least_nanos} ns are left out of the allocations (the memory track has them)"
        ));
    }
    Ok(losses)
}

/// Writes marks and module events of a recording of marks.
pub(crate) fn write_marks(
    profile: &Profile,
    marks: &[MarkAt],
    output: &mut dyn Write,
) -> Result<(), ExchangeError> {
    let mut file = Built::new(profile);
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

/// A mark, or that a module came or went.
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

/// How long a block has to live to be in the file: the shortest class of lifetimes with which there are few enough.
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

/// The file in the making.
struct Built {
    file: fxprof_processed_profile::Profile,
    process: ProcessHandle,
    stacks: Vec<Option<StackHandle>>,
}

impl Built {
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

    /// The thread that has all allocations, with all stacks: the format has them on the first thread alone.
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

/// Which allocations lived too short to be in the file.
#[derive(Default)]
struct ShortLived {
    least_nanos: u64,
    /// Of all allocations, by their number, a bit each.
    left_out: Vec<u64>,
    allocations: u64,
    /// By object: number and size of the block that it is now, and when it was allocated.
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

impl Blocks for ShortLived {
    fn allocated(&mut self, block: Block) -> Result<(), ExchangeError> {
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

/// The entry of this index, which is made when it is not there.
fn at_index<T: Clone + Default>(list: &mut Vec<T>, index: usize) -> &mut T {
    if list.len() <= index {
        list.resize(index + 1, T::default());
    }
    &mut list[index]
}

struct Writer<'a> {
    stacks: &'a HashMap<u32, Option<u32>>,
    thread: ThreadHandle,
    short: ShortLived,
    allocations: u64,
    /// By object: its size, and whether it is in the file.
    live: Vec<(u64, bool)>,
    memory: CounterHandle,
    resident: CounterHandle,
    resident_bytes: u64,
    track: Track,
    file: Built,
}

impl Writer<'_> {
    fn sample(&mut self, nanos: u64, stack: Option<StackHandle>, object: u32, change: i64) {
        // What looks like an address: aligned, and not 0.
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

impl Blocks for Writer<'_> {
    fn allocated(&mut self, block: Block) -> Result<(), ExchangeError> {
        let Block { object, stack, size_bytes, nanos } = block;
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

/// A bin of the memory track: changes put together, so that there are not too many points, but with the most that was held in between.
#[derive(Clone, Copy, Default)]
struct Track {
    step_nanos: u64,
    /// When it began, when most was held in it, when it last changed.
    nanos: [u64; 3],
    /// Since it began: at the most, and now.
    change: [i64; 2],
    /// Up to the most, and since.
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

    /// The points of the bin, and the next one: time, change, and how many events that were.
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
    fn the_track_keeps_peaks_between_its_bins() {
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
