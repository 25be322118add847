//! One order for the events of all threads of a spool.
//!
//! Every thread's events lie in order in its segments, with a stamp now and then. Events between
//! two stamps are taken to be evenly spread, and the lanes are merged by that time. So the order
//! across threads is as good as the stamps are; which allocation a free belongs to does not depend
//! on it (`pairing`).
//!
//! Works on what is there: a program may still be writing, so a lane that has run out is read
//! again.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use cairn_format::recording::{
    BadRecord, Frequent, FrequentKind, Record, Records, SEGMENT_HEADER_BYTES, STAMP_SHIFT, ThreadEvent,
};

/// Receives the events of all threads in one order. Times are ticks since the recording's start,
/// and may go back a little.
pub(crate) trait Merged {
    /// First prefetch stage: loads what leads to the cells of these events, which come soon.
    fn prefetch_regions(&mut self, events: &[RawEvent]);
    /// Second prefetch stage: finds the cells of these events, and loads them.
    fn resolve_cells(&mut self, events: &mut [RawEvent]);
    /// Changes when cells that were resolved may be wrong.
    fn generation(&self) -> u32;
    /// Third prefetch stage: loads the objects of these events, which come next.
    fn prefetch_objects(&mut self, events: &[RawEvent]);
    /// Receives events of one lane, in their order. `bytes` is what they were read from;
    /// `is_moving` is true between the two halves of a reallocation.
    fn hand_on(&mut self, source: Origin, events: &[RawEvent], bytes: &[u8], is_moving: &mut bool);
}

/// Which lane an event is from, and which of the threads that had its lane one after the other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin {
    pub(crate) lane: u32,
    pub(crate) thread: u32,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct RawAlloc {
    pub(crate) address: u64,
    /// As [`RawEvent::place`].
    pub(crate) place: u32,
    pub(crate) size_bytes: u64,
    pub(crate) epoch: u32,
    pub(crate) stack: u32,
    pub(crate) is_move: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct RawFree {
    pub(crate) address: u64,
    /// As [`RawEvent::place`].
    pub(crate) place: u32,
    pub(crate) ticket: Option<u32>,
    pub(crate) is_move: bool,
}

/// Gives a lane what follows in it.
pub(crate) trait Feed {
    /// Replaces `bytes` by the records of the lane's next segment. `None` when there are none at
    /// present.
    fn more(&mut self, lane: u32, bytes: &mut Vec<u8>) -> Option<NextPiece>;

    /// Receives each record that is neither an event of the heap nor a stamp.
    ///
    /// The call comes some events before the record is handed on.
    fn met(&mut self, lane: u32, record: &[u8]) {
        let _ = (lane, record);
    }

    /// Receives each record of a thread in the lane's order, before the records that follow it.
    ///
    /// Returns the number of the thread whose events follow.
    fn thread(&mut self, lane: u32, counter: u64, event: ThreadEvent<'_>) -> Option<u32>;

    /// Receives what is wrong with a record; the rest of what was given last is left out.
    fn damaged(&mut self, lane: u32, error: BadRecord, lost_bytes: u64);
}

pub(crate) struct NextPiece {
    /// Not before this time: ticks when the segment was taken.
    pub(crate) ticks: u64,
    /// Where in its segment the first byte was.
    pub(crate) offset: usize,
    /// The number of the thread whose events these are, up to the next record of kind *began*.
    pub(crate) thread: u32,
}

/// An event between reading and handing on; fields that its kind does not have hold no meaning.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawEvent {
    pub(crate) ticks: u64,
    /// Address; for [`OTHER`], where the record begins.
    pub(crate) address: u64,
    pub(crate) size_bytes: u64,
    pub(crate) stack: u32,
    /// The epoch of an allocation, or a ticket.
    pub(crate) number: u32,
    /// Where the sink knows of the address, [`NO_PLACE`] if it does not.
    pub(crate) place: u32,
    pub(crate) kind: RawKind,
}

pub(crate) const NO_PLACE: u32 = u32::MAX;

const _: () = assert!(size_of::<RawEvent>() == 40);

/// A stamp is no event; its number marks what is neither an allocation nor a free.
pub(crate) type RawKind = FrequentKind;
pub(crate) const OTHER: RawKind = FrequentKind::Stamp;

impl RawEvent {
    #[inline]
    fn new(kind: RawKind, address: u64, size_bytes: u64, stack: u32, number: u32) -> Self {
        Self { ticks: 0, address, size_bytes, stack, number, place: NO_PLACE, kind }
    }

    fn other(ticks: u64, position: usize) -> Self {
        Self { ticks, ..Self::new(OTHER, position as u64, 0, 0, 0) }
    }
}

/// Events that are read without a stamp before they are handed on.
const LONGEST_RUN: usize = 256;
/// Events until which runs are read; 512, which fit into the first-level cache.
///
/// It is several times the prefetch distance.
const WINDOW_EVENTS: usize = 512;
/// Events that a prefetch stage takes at a time; 16, as many lines as processors load at once.
const PREFETCH_EVENTS: usize = 16;
/// Maximum ticks over which events behind a stamp are spread, about a millisecond.
///
/// A thread that slept for a second after them did not take that long for them; if it had, it
/// would have noticed the next tick.
const LONGEST_SPREAD_TICKS: u64 = 1 << 22;

/// When a record was, in ticks since the start, where it says so.
pub(crate) fn ticks_of(record: &Record<'_>, start_counter: u64) -> Option<u64> {
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

/// The events of a thread's lane, with the three stages of their prefetch.
///
/// ```text
///   bytes    | read before | stamp  event event event  stamp ... | not read yet
///                           \___ `events`: some runs _________/^position
///   events   | given before |^next   |^ready   |^objects_prefetched   |^resolved   |^regions_prefetched
///                                     third stage           second      first
/// ```
struct LaneEvents {
    origin: Origin,
    bytes: Vec<u8>,
    /// The next record.
    position: usize,
    /// Where the first of `events` was looked for.
    events_from: usize,
    /// Events that were read of `bytes`.
    events: Vec<RawEvent>,
    next: usize,
    /// Up to where each prefetch stage was run, and up to where the third one has had its time.
    regions_prefetched: usize,
    resolved: usize,
    objects_prefetched: usize,
    ready: usize,
    /// [`Merged::generation`] of the places of events.
    generation: u32,
    /// Ticks of the last stamp.
    ticks: u64,
    /// Where `bytes` begin in their segment, for messages.
    offset: usize,
    is_moving: bool,
}

impl LaneEvents {
    /// Reads some runs: events up to the next stamp, which tells when they were. False when there
    /// is no event before the end.
    fn read_runs(&mut self, start_counter: u64, feed: &mut impl Feed) -> bool {
        let Self { events, bytes, ticks: now, .. } = self;
        events.clear();
        (self.next, self.ready, self.events_from) = (0, 0, self.position);
        (self.regions_prefetched, self.resolved, self.objects_prefetched) = (0, 0, 0);
        let mut records = Records::new(bytes.get(self.position..).unwrap_or_default(), self.position);
        let mut begin = 0;
        let mut damage = None;
        // Where the next thread's events begin.
        let mut end = None;
        let mut limit = LONGEST_RUN;
        while events.len() < limit {
            if let Some(record) = records.next_frequent() {
                let Frequent { kind, low, size_bytes, stack, number } = record;
                if kind == FrequentKind::Stamp {
                    begin = end_run(events, begin, now, low << STAMP_SHIFT);
                    limit = limit_behind(begin);
                    continue;
                }
                events.push(RawEvent::new(kind, low, size_bytes, stack, number));
                continue;
            }
            let at = records.offset();
            let record = match records.next() {
                Some(Ok(placed)) => placed.record,
                None => break,
                Some(Err(error)) => {
                    damage = Some((at, error));
                    break;
                }
            };
            if let Record::Thread { counter, event } = record {
                let is_other = matches!(event, ThreadEvent::Began { .. });
                if is_other && !events.is_empty() {
                    // Events are handed on with one thread for all of them: this record begins the
                    // next ones.
                    begin = end_run(events, begin, now, counter.saturating_sub(start_counter));
                    end = Some(at);
                    break;
                }
                if let Some(thread) = feed.thread(self.origin.lane, counter, event) {
                    self.origin.thread = thread;
                }
            }
            if !matches!(
                record,
                Record::Alloc { .. } | Record::Free { .. } | Record::Move { .. } | Record::Stamp { .. }
            ) {
                feed.met(self.origin.lane, bytes.get(at..records.offset()).unwrap_or_default());
            }
            match record {
                Record::Alloc { address, size_bytes, epoch, stack } => {
                    events.push(RawEvent::new(RawKind::Alloc, address, size_bytes, stack, epoch));
                    continue;
                }
                Record::Free { address, ticket } => {
                    let kind = if ticket.is_some() { RawKind::Free } else { RawKind::LocalFree };
                    events.push(RawEvent::new(kind, address, 0, 0, ticket.unwrap_or(0)));
                    continue;
                }
                Record::Move { address, ticket } => {
                    let kind = if ticket.is_some() { RawKind::Move } else { RawKind::LocalMove };
                    events.push(RawEvent::new(kind, address, 0, 0, ticket.unwrap_or(0)));
                    continue;
                }
                Record::Loss { .. } => {
                    events.push(RawEvent::other(0, at));
                    continue;
                }
                _ => {}
            }
            let Some(ticks) = ticks_of(&record, start_counter) else { continue };
            begin = end_run(events, begin, now, ticks);
            if !matches!(record, Record::Stamp { .. }) {
                // As a stamp, and an event of its own, with nothing spread behind it.
                begin += 1;
                events.push(RawEvent::other(*now, at));
            }
            limit = limit_behind(begin);
        }
        // Nothing tells how long these took.
        events.iter_mut().skip(begin).for_each(|event| event.ticks = *now);
        self.position = end.unwrap_or(records.offset());
        if let Some((at, mut error)) = damage {
            error.offset = self.offset + at;
            feed.damaged(self.origin.lane, error, (self.bytes.len() - at) as u64);
            self.bytes.truncate(at);
            self.position = at;
        }
        !self.events.is_empty()
    }

    /// Returns where the last event ends that was handed on.
    ///
    /// Events do not store it, so those before are read once more.
    #[cfg(target_os = "linux")]
    fn given_bytes(&self, start_counter: u64) -> usize {
        if !self.has_events() {
            return self.position;
        }
        let rest = self.bytes.get(self.events_from..).unwrap_or_default();
        let mut records = Records::new(rest, self.events_from);
        let (mut given, mut end) = (0, self.events_from);
        while given < self.next
            && let Some(Ok(placed)) = records.next()
        {
            let is_event = match placed.record {
                Record::Alloc { .. } | Record::Free { .. } | Record::Move { .. } | Record::Loss { .. } => {
                    true
                }
                Record::Stamp { .. } => false,
                record => ticks_of(&record, start_counter).is_some(),
            };
            given += usize::from(is_event);
            end = records.offset();
        }
        end
    }

    fn has_events(&self) -> bool {
        self.next < self.events.len()
    }

    /// Time of the next event.
    fn head_ticks(&self) -> u64 {
        self.events.get(self.next).map_or(u64::MAX, |event| event.ticks)
    }

    /// Hands on the events that were read, up to `limit`.
    #[inline]
    fn give(&mut self, limit: u64, sink: &mut impl Merged) {
        while self.has_events() {
            if self.next >= self.ready {
                self.prefetch(sink);
            }
            let ready = self.events.get(self.next..self.ready).unwrap_or_default();
            // Times do not go back within a lane.
            let is_due = |event: &RawEvent| event.ticks <= limit;
            let due = if ready.last().is_some_and(is_due) {
                ready.len()
            } else {
                ready.iter().position(|event| !is_due(event)).unwrap_or(0)
            };
            if due == 0 {
                return;
            }
            if sink.generation() != self.generation {
                self.renew_cells(sink);
                continue;
            }
            sink.hand_on(self.origin, ready.get(..due).unwrap_or_default(), &self.bytes, &mut self.is_moving);
            self.next += due;
        }
    }

    #[cold]
    fn renew_cells(&mut self, sink: &mut impl Merged) {
        if let Some(events) = self.events.get_mut(self.next..self.resolved) {
            sink.resolve_cells(events);
        }
        self.generation = sink.generation();
    }

    /// Runs the three prefetch stages, each some events ahead of the next.
    ///
    /// The last one is some events ahead of handing on.
    #[inline]
    fn prefetch(&mut self, sink: &mut impl Merged) {
        let length = self.events.len();
        self.ready = length.min(self.next + PREFETCH_EVENTS);
        let third = length.min(self.ready + PREFETCH_EVENTS);
        let second = length.min(third + PREFETCH_EVENTS);
        let first = length.min(second + PREFETCH_EVENTS);
        if let Some(events) = self.events.get(self.regions_prefetched..first) {
            sink.prefetch_regions(events);
            self.regions_prefetched = first;
        }
        if let Some(events) = self.events.get_mut(self.resolved..second) {
            sink.resolve_cells(events);
            self.resolved = second;
        }
        if let Some(events) = self.events.get(self.objects_prefetched..third) {
            sink.prefetch_objects(events);
            self.objects_prefetched = third;
        }
    }
}

/// How many events there are at most, when a run begins there.
#[inline]
fn limit_behind(begin: usize) -> usize {
    if begin < WINDOW_EVENTS { begin + LONGEST_RUN } else { 0 }
}

/// Spreads the events from `begin` on between the stamp before them and this one.
///
/// Returns where the next ones begin.
#[inline]
fn end_run(events: &mut [RawEvent], begin: usize, now: &mut u64, ticks: u64) -> usize {
    let run = events.get_mut(begin..).unwrap_or_default();
    let mut time = *now;
    match run {
        [] => {}
        [only] => only.ticks = time,
        run => {
            let step = ticks.saturating_sub(time).min(LONGEST_SPREAD_TICKS) / run.len() as u64;
            for event in run {
                event.ticks = time;
                time = time.saturating_add(step);
            }
        }
    }
    *now = ticks.max(*now);
    events.len()
}

/// Merges the lanes of a process.
pub(crate) struct Merger {
    start_counter: u64,
    lanes: Vec<LaneEvents>,
    /// The lanes that have an event at hand, by its time.
    queue: BinaryHeap<Reverse<(u64, u32)>>,
}

impl Merger {
    pub(crate) fn new(start_counter: u64) -> Self {
        Self { start_counter, lanes: Vec::new(), queue: BinaryHeap::new() }
    }

    /// A further lane; the answer is its number.
    pub(crate) fn add_lane(&mut self) -> u32 {
        let lane = self.lanes.len() as u32;
        self.lanes.push(LaneEvents {
            origin: Origin { lane, thread: 0 },
            bytes: Vec::new(),
            position: 0,
            events_from: 0,
            events: Vec::new(),
            next: 0,
            regions_prefetched: 0,
            resolved: 0,
            objects_prefetched: 0,
            ready: 0,
            generation: 0,
            ticks: 0,
            offset: SEGMENT_HEADER_BYTES,
            is_moving: false,
        });
        lane
    }

    /// Adds a lane that continues where another merger stopped.
    ///
    /// Its next event is not before this time, and perhaps the second half of a move.
    pub(crate) fn resume_lane(&mut self, ticks: u64, is_moving: bool) -> u32 {
        let number = self.add_lane();
        if let Some(lane) = self.lanes.get_mut(number as usize) {
            (lane.ticks, lane.is_moving) = (ticks, is_moving);
        }
        number
    }

    /// Returns the place of a lane: bytes handed on, time, and whether a move is half done.
    ///
    /// The bytes are of the data that it was given last; `usize::MAX` means all.
    #[cfg(target_os = "linux")]
    pub(crate) fn place(&self, lane: u32) -> Option<(usize, u64, bool)> {
        let lane = self.lanes.get(lane as usize)?;
        let ticks = if lane.has_events() { lane.head_ticks() } else { lane.ticks };
        let position = if lane.bytes.is_empty() { usize::MAX } else { lane.given_bytes(self.start_counter) };
        Some((position, ticks, lane.is_moving))
    }

    /// Lets a lane take its first or next events from `feed`.
    ///
    /// Called for all lanes at the start, later for those that had run out.
    pub(crate) fn wake(&mut self, lane: u32, feed: &mut impl Feed) {
        let start_counter = self.start_counter;
        let Some(sleeper) = self.lanes.get_mut(lane as usize) else { return };
        if !sleeper.has_events() && refill(sleeper, start_counter, feed) {
            self.queue.push(Reverse((sleeper.head_ticks(), lane)));
        }
    }

    /// Hands on all events up to `horizon`, and stops early when `is_enough` says that `sink` has
    /// enough.
    pub(crate) fn run<S: Merged>(
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
            let Some(lane) = self.lanes.get_mut(number as usize) else { continue };
            let mut given = 0;
            let has_more = loop {
                lane.give(limit, sink);
                if lane.has_events() {
                    break true;
                }
                if !refill(lane, self.start_counter, feed) {
                    break false;
                }
                given += 1;
                if given == RUNS_BETWEEN_QUESTIONS {
                    break true;
                }
            };
            if has_more {
                self.queue.push(Reverse((lane.head_ticks(), number)));
            }
        }
    }
}

/// Runs of one lane between two checks whether the sink has enough; 64.
///
/// A single thread has all turns, so the check cannot depend on a change of lanes.
const RUNS_BETWEEN_QUESTIONS: u32 = 64;

fn refill(lane: &mut LaneEvents, start_counter: u64, feed: &mut impl Feed) -> bool {
    loop {
        if lane.read_runs(start_counter, feed) {
            return true;
        }
        let Some(block) = feed.more(lane.origin.lane, &mut lane.bytes) else {
            lane.bytes.clear();
            lane.position = 0;
            return false;
        };
        lane.position = 0;
        lane.offset = block.offset;
        lane.origin.thread = block.thread;
        lane.ticks = lane.ticks.max(block.ticks);
    }
}
