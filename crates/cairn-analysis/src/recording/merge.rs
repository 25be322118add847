//! One order for the events of all threads of a spool.
//!
//! Every thread's events lie in order in its blocks, with a stamp now and then. Events between two stamps are taken to be
//! evenly spread, and the streams are merged by that time. So the order across threads is as good as the stamps are; which
//! allocation a free belongs to does not hang on it (`pairing`).
//!
//! Works on what is there: a program may still be writing, so a stream that has run out is asked again.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use cairn_format::recording::{BLOCK_HEADER_BYTES, BadRecord, Lane, Record, Records, STAMP_SHIFT};

/// Receives the events of all threads in one order. Times are ticks since the recording's start, and may go back a little.
pub(super) trait Merged {
    fn alloc(&mut self, ticks: u64, source: Origin, block: RawAlloc);
    fn free(&mut self, ticks: u64, source: Origin, block: RawFree);
    fn other(&mut self, ticks: u64, source: Origin, record: &Record<'_>);
}

/// Which stream an event is from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin {
    pub(super) stream: u32,
    pub(super) thread: u32,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct RawAlloc {
    pub(super) address: u64,
    pub(super) size_bytes: u64,
    pub(super) epoch: u32,
    pub(super) stack: u32,
    pub(super) is_move: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct RawFree {
    pub(super) address: u64,
    pub(super) ticket: Option<u32>,
    pub(super) is_move: bool,
}

/// Gives a stream what follows in it.
pub(super) trait Feed {
    /// Replaces `bytes` by the records of the stream's next block. `None` when there are none at present.
    fn more(&mut self, stream: u32, bytes: &mut Vec<u8>) -> Option<NextBlock>;

    /// Told of a record that cannot be read; the rest of what was given last is left out.
    fn damaged(&mut self, stream: u32, error: BadRecord, lost_bytes: u64);
}

pub(super) struct NextBlock {
    /// Not before this time: ticks when the block was taken.
    pub(super) ticks: u64,
    /// Where in its block the first byte was.
    pub(super) offset: usize,
}

/// So many events are looked at without a stamp before they are handed on.
const LONGEST_RUN: usize = 256;
/// Events behind a stamp are spread over at most so many ticks, about a millisecond: a thread that then slept for a second
/// did not take that long for them, and had it, it would have noticed the next tick.
const LONGEST_SPREAD_TICKS: u64 = 1 << 22;

/// When a record was, in ticks since the start, where it says so.
pub(super) fn ticks_of(record: &Record<'_>, start_counter: u64) -> Option<u64> {
    let counter = match *record {
        Record::Stamp { ticks } => return Some(ticks << STAMP_SHIFT),
        Record::Mark { counter, .. }
        | Record::ModuleUnloaded { counter, .. }
        | Record::Thread { counter, .. }
        | Record::Mapping { counter, .. }
        | Record::End { counter, .. } => counter,
        Record::ModuleLoaded(module) => module.counter,
        Record::Sample(sample) => sample.counter,
        Record::Clock(clock) => clock.counter,
        _ => return None,
    };
    Some(counter.saturating_sub(start_counter))
}

/// The events of a thread's lane.
///
/// ```text
///   bytes   | given before | stamp  event event event ...  event | stamp  ...
///                          ^position     \\__ run: `left` __/     ^run_end
/// ```
struct Stream {
    origin: Origin,
    bytes: Vec<u8>,
    /// The next record.
    position: usize,
    run_end: usize,
    /// Events up to there.
    left: usize,
    /// Time of the next one.
    head_ticks: u64,
    step_ticks: u64,
    /// Of the last stamp.
    ticks: u64,
    /// Where `bytes` begin in their block, for messages.
    offset: usize,
    is_moving: bool,
}

impl Stream {
    /// Looks for the next stamp, which tells when the events in front of it were; false when there is no event before the end.
    fn read_run(&mut self, start_counter: u64, feed: &mut impl Feed) -> bool {
        let mut records = Records::new(self.bytes.get(self.position..).unwrap_or_default(), self.position);
        let mut count = 0;
        let mut end_ticks = None;
        loop {
            count += records.skip_heap(LONGEST_RUN - count);
            if count == LONGEST_RUN {
                break;
            }
            let at = records.offset();
            let record = match records.next() {
                Some(Ok(placed)) => placed.record,
                None => break,
                Some(Err(mut error)) => {
                    error.offset = self.offset + at;
                    feed.damaged(self.origin.stream, error, (self.bytes.len() - at) as u64);
                    self.bytes.truncate(at);
                    return self.begin_run(at, count, None);
                }
            };
            if matches!(record, Record::Loss { .. }) {
                count += 1;
                continue;
            }
            let Some(ticks) = ticks_of(&record, start_counter) else { continue };
            if count > 0 {
                // It ends this run and begins the next one.
                end_ticks = Some(ticks);
                return self.begin_run(at, count, end_ticks);
            }
            self.ticks = self.ticks.max(ticks);
            if !matches!(record, Record::Stamp { .. }) {
                count = 1;
                break;
            }
            self.position = records.offset();
        }
        let end = records.offset();
        self.begin_run(end, count, end_ticks)
    }

    fn begin_run(&mut self, end: usize, count: usize, end_ticks: Option<u64>) -> bool {
        self.run_end = end;
        self.left = count;
        self.head_ticks = self.ticks;
        let span = end_ticks.unwrap_or(0).saturating_sub(self.ticks).min(LONGEST_SPREAD_TICKS);
        self.step_ticks = if span == 0 { 0 } else { span / count.max(1) as u64 };
        if count == 0 {
            self.position = end;
        }
        count > 0
    }

    fn has_run(&self) -> bool {
        self.left > 0
    }

    /// Hands on the events of the run up to `limit`.
    #[inline]
    fn give(&mut self, limit: u64, sink: &mut impl Merged) {
        let run = self.bytes.get(self.position..self.run_end).unwrap_or_default();
        let mut records = Records::new(run, self.position);
        let mut is_moving = self.is_moving;
        while self.left > 0 && self.head_ticks <= limit {
            let (ticks, origin) = (self.head_ticks, self.origin);
            match records.next() {
                Some(Ok(placed)) => match placed.record {
                    Record::Alloc { address, size_bytes, epoch, stack } => {
                        let is_move = std::mem::take(&mut is_moving);
                        sink.alloc(ticks, origin, RawAlloc { address, size_bytes, epoch, stack, is_move });
                    }
                    Record::Free { address, ticket } => {
                        sink.free(ticks, origin, RawFree { address, ticket, is_move: false });
                    }
                    Record::Move { address, ticket } => {
                        is_moving = true;
                        sink.free(ticks, origin, RawFree { address, ticket, is_move: true });
                    }
                    // In front of the run's first event, and read as the run was looked for.
                    Record::Stamp { .. } => continue,
                    Record::Pc { .. } | Record::TreeWords { .. } | Record::Unknown { .. } => continue,
                    record => sink.other(ticks, origin, &record),
                },
                // Not within a run, which was read before.
                Some(Err(_)) | None => self.left = 1,
            }
            self.left -= 1;
            self.head_ticks = ticks.saturating_add(self.step_ticks);
        }
        self.is_moving = is_moving;
        self.position = if self.left == 0 { self.run_end } else { records.offset() };
    }
}

/// Merges the streams of a process.
pub(super) struct Merger {
    start_counter: u64,
    streams: Vec<Stream>,
    /// The streams that have an event at hand, by its time.
    queue: BinaryHeap<Reverse<(u64, u32)>>,
}

impl Merger {
    pub(super) fn new(start_counter: u64) -> Self {
        Self { start_counter, streams: Vec::new(), queue: BinaryHeap::new() }
    }

    /// A further stream; the answer is its number.
    pub(super) fn add_stream(&mut self, thread: u32, _lane: Lane) -> u32 {
        let stream = self.streams.len() as u32;
        self.streams.push(Stream {
            origin: Origin { stream, thread },
            bytes: Vec::new(),
            position: 0,
            run_end: 0,
            left: 0,
            head_ticks: 0,
            step_ticks: 0,
            ticks: 0,
            offset: BLOCK_HEADER_BYTES,
            is_moving: false,
        });
        stream
    }

    /// A stream that goes on where another merger was: its next event is not before this time, and perhaps the second half of a move.
    pub(super) fn resume_stream(&mut self, thread: u32, lane: Lane, ticks: u64, is_moving: bool) -> u32 {
        let number = self.add_stream(thread, lane);
        if let Some(stream) = self.streams.get_mut(number as usize) {
            (stream.ticks, stream.is_moving) = (ticks, is_moving);
        }
        number
    }

    #[cfg(target_os = "linux")]
    /// Where a stream is: how many bytes of what it was given last are handed on, `usize::MAX` for all; the time up to there; and
    /// whether the first half of a move was.
    pub(super) fn place(&self, stream: u32) -> Option<(usize, u64, bool)> {
        let stream = self.streams.get(stream as usize)?;
        let ticks = if stream.has_run() { stream.head_ticks } else { stream.ticks };
        let position = if stream.bytes.is_empty() { usize::MAX } else { stream.position };
        Some((position, ticks, stream.is_moving))
    }

    /// Gives a stream the chance to get its first or next events from `feed`: for all at the start, later for those that had
    /// run out.
    pub(super) fn wake(&mut self, stream: u32, feed: &mut impl Feed) {
        let start_counter = self.start_counter;
        let Some(sleeper) = self.streams.get_mut(stream as usize) else { return };
        if !sleeper.has_run() && refill(sleeper, start_counter, feed) {
            self.queue.push(Reverse((sleeper.head_ticks, stream)));
        }
    }

    /// Hands on all events up to `horizon`, and stops early when `sink` has enough, which `is_enough` tells.
    pub(super) fn run<S: Merged>(
        &mut self,
        horizon: u64,
        feed: &mut impl Feed,
        sink: &mut S,
        mut is_enough: impl FnMut(&S) -> bool,
    ) {
        while let Some(&Reverse((ticks, number))) = self.queue.peek() {
            if ticks > horizon || is_enough(sink) {
                return;
            }
            self.queue.pop();
            let others = self.queue.peek().map_or(u64::MAX, |&Reverse((ticks, _))| ticks);
            let limit = horizon.min(others);
            let Some(stream) = self.streams.get_mut(number as usize) else { continue };
            let mut given = 0;
            let has_more = loop {
                stream.give(limit, sink);
                if stream.has_run() {
                    break true;
                }
                if !refill(stream, self.start_counter, feed) {
                    break false;
                }
                given += 1;
                if given == RUNS_BETWEEN_QUESTIONS {
                    break true;
                }
            };
            if has_more {
                self.queue.push(Reverse((stream.head_ticks, number)));
            }
        }
    }
}

/// A single thread has all turns; still somebody may have seen enough.
const RUNS_BETWEEN_QUESTIONS: u32 = 512;

fn refill(stream: &mut Stream, start_counter: u64, feed: &mut impl Feed) -> bool {
    loop {
        if stream.read_run(start_counter, feed) {
            return true;
        }
        if stream.position < stream.bytes.len() {
            // A run of table records alone.
            continue;
        }
        let Some(block) = feed.more(stream.origin.stream, &mut stream.bytes) else {
            stream.bytes.clear();
            (stream.position, stream.run_end) = (0, 0);
            return false;
        };
        stream.position = 0;
        stream.offset = block.offset;
        stream.ticks = stream.ticks.max(block.ticks);
    }
}
