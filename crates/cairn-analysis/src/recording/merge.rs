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

/// An event that waits for its turn.
#[derive(Clone, Copy)]
enum Waiting {
    Alloc(RawAlloc),
    Free(RawFree),
    /// Starts at this byte.
    Other(usize),
}

/// So many events are looked at without a stamp before they are handed on.
const LONGEST_RUN: usize = 256;

struct Stream {
    origin: Origin,
    bytes: Vec<u8>,
    position: usize,
    /// Where `bytes` begin in their block, for messages.
    offset: usize,
    /// Of the last stamp.
    ticks: u64,
    is_moving: bool,
    run: Vec<Waiting>,
    next: usize,
    run_ticks: u64,
    step_ticks: u64,
}

impl Stream {
    fn head_ticks(&self) -> u64 {
        self.run_ticks.saturating_add(self.step_ticks.saturating_mul(self.next as u64))
    }

    /// Reads on to the next stamp; false when there is no event before the end.
    fn read_run(&mut self, start_counter: u64, feed: &mut impl Feed) -> bool {
        self.run.clear();
        self.next = 0;
        self.run_ticks = self.ticks;
        let mut end_ticks = None;
        let mut records = Records::new(self.bytes.get(self.position..).unwrap_or_default(), self.position);
        while self.run.len() < LONGEST_RUN {
            let at = records.offset();
            let record = match records.next() {
                Some(Ok(placed)) => placed.record,
                None => break,
                Some(Err(mut error)) => {
                    let lost = (self.bytes.len() - at) as u64;
                    error.offset = self.offset + at;
                    feed.damaged(self.origin.stream, error, lost);
                    self.position = self.bytes.len();
                    return !self.run.is_empty();
                }
            };
            let ticks = match record {
                Record::Alloc { address, size_bytes, epoch, stack } => {
                    let is_move = std::mem::take(&mut self.is_moving);
                    self.run.push(Waiting::Alloc(RawAlloc { address, size_bytes, epoch, stack, is_move }));
                    continue;
                }
                Record::Free { address, ticket } => {
                    self.run.push(Waiting::Free(RawFree { address, ticket, is_move: false }));
                    continue;
                }
                Record::Move { address, ticket } => {
                    self.is_moving = true;
                    self.run.push(Waiting::Free(RawFree { address, ticket, is_move: true }));
                    continue;
                }
                Record::Loss { .. } => {
                    self.run.push(Waiting::Other(at));
                    continue;
                }
                Record::Stamp { ticks } => ticks << STAMP_SHIFT,
                Record::Mark { counter, .. }
                | Record::ModuleUnloaded { counter, .. }
                | Record::Thread { counter, .. }
                | Record::Mapping { counter, .. }
                | Record::End { counter, .. } => counter.saturating_sub(start_counter),
                Record::ModuleLoaded(module) => module.counter.saturating_sub(start_counter),
                Record::Sample(sample) => sample.counter.saturating_sub(start_counter),
                Record::Clock(clock) => clock.counter.saturating_sub(start_counter),
                _ => continue,
            };
            if !self.run.is_empty() {
                // It ends this run and begins the next one.
                end_ticks = Some(ticks);
                self.position = at;
                break;
            }
            self.ticks = self.ticks.max(ticks);
            self.run_ticks = self.ticks;
            if !matches!(record, Record::Stamp { .. }) {
                self.run.push(Waiting::Other(at));
                break;
            }
        }
        if end_ticks.is_none() {
            self.position = records.offset();
        }
        let span = end_ticks.unwrap_or(0).saturating_sub(self.run_ticks);
        self.step_ticks = if span == 0 { 0 } else { span / self.run.len() as u64 };
        !self.run.is_empty()
    }

    fn has_run(&self) -> bool {
        self.next < self.run.len()
    }

    fn give(&mut self, sink: &mut impl Merged) {
        let ticks = self.head_ticks();
        match self.run.get(self.next) {
            Some(Waiting::Alloc(block)) => sink.alloc(ticks, self.origin, *block),
            Some(Waiting::Free(block)) => sink.free(ticks, self.origin, *block),
            Some(&Waiting::Other(at)) => {
                let bytes = self.bytes.get(at..).unwrap_or_default();
                if let Some(Ok(placed)) = Records::new(bytes, at).next() {
                    sink.other(ticks, self.origin, &placed.record);
                }
            }
            None => {}
        }
        self.next += 1;
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
            offset: BLOCK_HEADER_BYTES,
            ticks: 0,
            is_moving: false,
            run: Vec::new(),
            next: 0,
            run_ticks: 0,
            step_ticks: 0,
        });
        stream
    }

    /// Gives a stream the chance to get its first or next events from `feed`: for all at the start, later for those that had
    /// run out.
    pub(super) fn wake(&mut self, stream: u32, feed: &mut impl Feed) {
        let start_counter = self.start_counter;
        let Some(sleeper) = self.streams.get_mut(stream as usize) else { return };
        if !sleeper.has_run() && refill(sleeper, start_counter, feed) {
            self.queue.push(Reverse((sleeper.head_ticks(), stream)));
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
                while stream.has_run() && stream.head_ticks() <= limit {
                    stream.give(sink);
                }
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
                self.queue.push(Reverse((stream.head_ticks(), number)));
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
            stream.position = 0;
            return false;
        };
        stream.position = 0;
        stream.offset = block.offset;
        stream.ticks = stream.ticks.max(block.ticks);
    }
}
