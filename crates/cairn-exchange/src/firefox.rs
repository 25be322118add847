//! The Firefox Profiler's processed profile: allocations and frees with their times, the memory as a track, resident memory, marks.
//!
//! A browser holds a few million events. Where there are more, the blocks that lived shortest are left out: what is retained in any stretch of time that is
//! longer than these stays exact.

use std::collections::{HashMap, VecDeque};
use std::io::Write;
use std::time::Duration;

use cairn_analysis::heap::{HeapProfile, lifetime_class_range};
use cairn_analysis::recording::Usage;
use fxprof_processed_profile::{
    CategoryHandle, CounterHandle, CpuDelta, Frame, FrameFlags, FrameInfo, MarkerTiming, ProcessHandle,
    ReferenceTimestamp, SamplingInterval, StackHandle, StringHandle, ThreadHandle, Timestamp,
};

use crate::error::ExchangeError;
use crate::events::{Block, Blocks, replay};
use crate::marks::MarkAt;
use crate::profile::Profile;
use crate::target::HeapEvents;

/// Allocations in a file.
const MOST_BLOCKS: u64 = 1_000_000;
/// Points of the memory track.
const MOST_POINTS: u64 = 20_000;

/// Writes the events of the scope; returns the sentences about what was left out.
pub(crate) fn write(
    heap: &HeapEvents<'_>,
    profile: &Profile,
    output: &mut dyn Write,
) -> Result<Vec<String>, ExchangeError> {
    let sums = heap.sums;
    let least_nanos = least_lifetime(sums, MOST_BLOCKS);
    let mut file = Built::new(profile);
    let memory = file.file.add_counter(file.process, "malloc", "Memory", "Bytes in blocks");
    let resident = file.file.add_counter(file.process, "resident", "Memory", "Resident memory");
    let mut writer = Writer {
        stacks: heap.stacks,
        waiting: VecDeque::new(),
        first_waiting: 0,
        live: Vec::new(),
        least_nanos,
        left_out: (0, 0),
        memory,
        resident,
        resident_bytes: 0,
        track: Track::new(sums.end_nanos / MOST_POINTS),
        file,
    };
    replay(heap, &mut writer)?;
    writer.settle(u64::MAX);
    let point = writer.track.take(sums.end_nanos);
    writer.point(point);
    let (blocks, bytes) = writer.left_out;
    serde_json::to_writer(output, &writer.file.file).map_err(|error| ExchangeError::writing(error.into()))?;
    let mut losses = vec!["frames have names, but no source lines".to_owned()];
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
        let thread = threads.get(&mark.thread).copied().unwrap_or(file.thread);
        let stack = file.stack_of_thread(profile, thread, mark.stack);
        let at = Timestamp::from_nanos_since_reference(mark.nanos);
        file.file.add_sample(thread, at, stack, CpuDelta::ZERO, 1);
        let name = file.file.intern_string(&mark.text);
        let marker = file.file.add_marker(thread, MarkerTiming::Instant(at), MarkMarker(name));
        file.file.set_marker_stack(thread, marker, stack);
    }
    serde_json::to_writer(output, &file.file).map_err(|error| ExchangeError::writing(error.into()))
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

/// The file, with the tables of the profile in it. The format has allocation stacks on the first thread alone.
struct Built {
    file: fxprof_processed_profile::Profile,
    process: ProcessHandle,
    thread: ThreadHandle,
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
        let start = Timestamp::from_nanos_since_reference(0);
        let end = Timestamp::from_nanos_since_reference(profile.duration_nanos);
        let process = file.add_process(name, profile.process, start);
        let thread = file.add_thread(process, profile.process, start, true);
        file.set_process_end_time(process, end);
        file.set_thread_name(thread, "allocations");
        file.set_thread_end_time(thread, end);
        // Viewers hide threads without samples.
        for at in [start, end] {
            file.add_sample(thread, at, None, CpuDelta::ZERO, 0);
        }
        let mut built = Self { file, process, thread, stacks: Vec::with_capacity(profile.stacks.len()) };
        for index in 0..profile.stacks.len() {
            let stack = profile.stacks[index];
            let caller = stack.caller.and_then(|caller| built.stacks.get(caller as usize).copied().flatten());
            let stack = built.with_frames(profile, thread, caller, stack.location);
            built.stacks.push(stack);
        }
        built
    }

    fn with_frames(
        &mut self,
        profile: &Profile,
        thread: ThreadHandle,
        caller: Option<StackHandle>,
        location: u32,
    ) -> Option<StackHandle> {
        let mut stack = caller;
        let lines = profile.locations.get(location as usize).map_or(&[][..], |location| &location.lines);
        for line in lines.iter().rev() {
            let name = self.file.intern_string(profile.function_name(*line));
            let info = FrameInfo {
                frame: Frame::Label(name),
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

struct Writer<'a> {
    stacks: &'a HashMap<u32, Option<u32>>,
    /// Blocks of which it is not known yet whether they live long enough, in the order of their allocation, and frees behind them.
    waiting: VecDeque<Waiting>,
    /// What the number of the first of them is.
    first_waiting: u64,
    /// By object.
    live: Vec<Live>,
    least_nanos: u64,
    /// Blocks and bytes.
    left_out: (u64, u64),
    memory: CounterHandle,
    resident: CounterHandle,
    resident_bytes: u64,
    track: Track,
    file: Built,
}

/// The block that has a number now.
#[derive(Clone, Copy)]
struct Live {
    /// Its number among all that waited.
    place: u64,
    size_bytes: u64,
    born_nanos: u64,
}

#[derive(Clone, Copy)]
enum Waiting {
    Alloc(Block),
    Free { object: u32, size_bytes: u64, nanos: u64 },
    LeftOut,
}

impl Writer<'_> {
    /// Writes what is decided: everything that is older than `nanos` minus the least lifetime.
    fn settle(&mut self, nanos: u64) {
        while let Some(&first) = self.waiting.front() {
            let (at, address, size, stack) = match first {
                Waiting::LeftOut => {
                    self.pop();
                    continue;
                }
                Waiting::Alloc(block) => (
                    block.nanos,
                    block.object,
                    signed(block.size_bytes),
                    self.stacks.get(&block.stack).copied().flatten(),
                ),
                Waiting::Free { object, size_bytes, nanos } => (nanos, object, -signed(size_bytes), None),
            };
            if nanos != u64::MAX && nanos.saturating_sub(at) <= self.least_nanos {
                return;
            }
            let stack = stack.and_then(|stack| self.file.stacks.get(stack as usize).copied().flatten());
            let address = (u64::from(address) + 1) << 4;
            let timestamp = Timestamp::from_nanos_since_reference(at);
            self.file.file.add_allocation_sample(self.file.thread, timestamp, stack, address, size);
            self.pop();
        }
    }

    fn pop(&mut self) {
        self.waiting.pop_front();
        self.first_waiting += 1;
    }

    fn push(&mut self, waiting: Waiting) -> u64 {
        self.waiting.push_back(waiting);
        self.first_waiting + self.waiting.len() as u64 - 1
    }

    fn point(&mut self, point: Option<(u64, i64, u32)>) {
        if let Some((nanos, change, events)) = point {
            let at = Timestamp::from_nanos_since_reference(nanos);
            self.file.file.add_counter_sample(self.memory, at, change as f64, events);
        }
    }
}

impl Blocks for Writer<'_> {
    fn allocated(&mut self, block: Block) -> Result<(), ExchangeError> {
        let point = self.track.change(block.nanos, signed(block.size_bytes));
        self.point(point);
        let place = self.push(Waiting::Alloc(block));
        let object = block.object as usize;
        if self.live.len() <= object {
            self.live.resize(object + 1, Live { place: 0, size_bytes: 0, born_nanos: 0 });
        }
        self.live[object] = Live { place, size_bytes: block.size_bytes, born_nanos: block.nanos };
        self.settle(block.nanos);
        Ok(())
    }

    fn freed(&mut self, object: u32, nanos: u64) -> Result<(), ExchangeError> {
        let Live { place, size_bytes, born_nanos } = self.live[object as usize];
        let point = self.track.change(nanos, -signed(size_bytes));
        self.point(point);
        let waits =
            place.checked_sub(self.first_waiting).and_then(|index| self.waiting.get_mut(index as usize));
        match waits {
            Some(waiting) if nanos.saturating_sub(born_nanos) <= self.least_nanos && self.least_nanos > 0 => {
                *waiting = Waiting::LeftOut;
                self.left_out = (self.left_out.0 + 1, self.left_out.1.saturating_add(size_bytes));
            }
            _ => {
                self.push(Waiting::Free { object, size_bytes, nanos });
            }
        }
        self.settle(nanos);
        Ok(())
    }

    fn used(&mut self, usage: &Usage) -> Result<(), ExchangeError> {
        let change = signed(usage.resident_bytes).saturating_sub(signed(self.resident_bytes));
        self.resident_bytes = usage.resident_bytes;
        let at = Timestamp::from_nanos_since_reference(usage.at.nanos);
        self.file.file.add_counter_sample(self.resident, at, change as f64, 1);
        Ok(())
    }
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// The memory track: changes put together, so that there are not too many points.
struct Track {
    step_nanos: u64,
    last_nanos: u64,
    change: i64,
    events: u32,
}

impl Track {
    const fn new(step_nanos: u64) -> Self {
        Self { step_nanos, last_nanos: 0, change: 0, events: 0 }
    }

    /// Notes a change; returns the point that is complete, if one is.
    fn change(&mut self, nanos: u64, change: i64) -> Option<(u64, i64, u32)> {
        let point =
            if nanos.saturating_sub(self.last_nanos) > self.step_nanos { self.take(nanos) } else { None };
        self.change = self.change.saturating_add(change);
        self.events = self.events.saturating_add(1);
        point
    }

    fn take(&mut self, nanos: u64) -> Option<(u64, i64, u32)> {
        let point = (self.last_nanos, self.change, self.events);
        self.last_nanos = nanos;
        (self.change, self.events) = (0, 0);
        (point.2 > 0).then_some(point)
    }
}
