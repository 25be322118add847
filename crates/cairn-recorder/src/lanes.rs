//! Takes a lane of the calling thread, gives it a log at its first event, and appends records to
//! it.
//!
//! A thread that has ended is recognised by its number in the kernel. Its log goes to a later
//! thread, which continues in the same segment and states that by a record.

use core::sync::atomic::Ordering;

use cairn_format::recording::{Lane, RecordSink, STAMP_SHIFT, SinkTooSmall, ThreadEvent, control};

use crate::clock;
use crate::epochs;
use crate::os::{self, ErrnoGuard};
use crate::recorder::{self, Recorder};
use crate::requests;
use crate::spool::{NoSegment, SegmentUse, control_word};
use crate::thread_log::{
    self, LaneState, NO_OWNER, NO_SEGMENT_OWNER, NestedLane, OwnLane, ThreadLog, UNKNOWN_OWNER, UnownedLog,
    enter,
};
use crate::writer::Writer;

/// The lane to write an event to.
pub(crate) enum Entered {
    /// The thread's own lane.
    Own(OwnLane),
    /// The nested lane, in a signal handler that interrupted an event.
    Nested(NestedLane),
    /// None: the event is not recorded, and counted if it should be.
    No,
}

/// Takes a lane where [`enter`] could not: at a first event, in an interrupting handler, in a
/// child.
#[cold]
#[inline(never)]
pub(crate) fn enter_slowly() -> Entered {
    let Some(recorder) = requests::recording() else { return Entered::No };
    let generation = recorder.generation();
    let log = match thread_log::current_log().filter(|log| log.generation() == generation) {
        Some(log) => log,
        None => {
            let Some(fresh) = acquire(recorder, generation) else {
                recorder.miss_event();
                return Entered::No;
            };
            thread_log::set_current_log(Some(fresh));
            fresh
        }
    };
    if let Some(lane) = enter() {
        return Entered::Own(lane);
    }
    if !log.is_busy() {
        recorder.miss_event();
        return Entered::No;
    }
    let Some(lane) = log.enter_nested() else {
        // A handler that interrupted a handler that interrupted an event.
        recorder.count_lost_events(1);
        return Entered::No;
    };
    // A reader treats the nested lane as another thread.
    epochs::end_alone();
    Entered::Nested(lane)
}

/// Takes the free lane of this thread, giving the thread a log if it has none.
#[inline(always)]
pub(crate) fn enter_any() -> Entered {
    enter().map_or_else(enter_slowly, Entered::Own)
}

/// Calls `f` with the log of this thread while its own lane is taken; `None` if it is not free.
#[cold]
pub(crate) fn with_own<R>(f: impl FnOnce(&ThreadLog) -> R) -> Option<R> {
    match enter_any() {
        Entered::Own(lane) => Some(f(lane.log())),
        Entered::Nested(_) | Entered::No => None,
    }
}

/// Appends a record to the free lane of this thread; returns whether that was possible.
#[inline]
pub(crate) fn append(
    slots: usize,
    write: impl FnOnce(&mut RecordSink<'_>) -> Result<(), SinkTooSmall>,
) -> bool {
    append_at(enter_any(), None, slots, write)
}

/// Appends as [`append`] does, for records without stamps. It reads the clocks behind the record
/// when they are due at `counter`. A program that marks and allocates nothing has no other readings
/// of them.
#[inline]
pub(crate) fn append_with_clocks(
    counter: u64,
    slots: usize,
    write: impl FnOnce(&mut RecordSink<'_>) -> Result<(), SinkTooSmall>,
) -> bool {
    append_at(enter_any(), Some(counter), slots, write)
}

/// As [`append`], to a lane that is taken already and is given back.
#[inline]
pub(crate) fn append_to(
    entered: Entered,
    slots: usize,
    write: impl FnOnce(&mut RecordSink<'_>) -> Result<(), SinkTooSmall>,
) -> bool {
    append_at(entered, None, slots, write)
}

#[inline]
fn append_at(
    entered: Entered,
    clocks_at: Option<u64>,
    slots: usize,
    write: impl FnOnce(&mut RecordSink<'_>) -> Result<(), SinkTooSmall>,
) -> bool {
    match entered {
        Entered::Own(mut own) => {
            let log = own.log();
            let lane = own.lane();
            let has_room = lane.writer.has_room(slots) || make_room(log, &mut lane.writer, Lane::Outer);
            if has_room {
                lane.writer.write(slots, write);
                if let Some(counter) = clocks_at {
                    lane.append_due_clocks(counter);
                }
                // The segment may be another one now, or have less room than the last stamp has
                // made sure of: the next event needs a stamp.
                lane.stamp_at = lane.writer.cursor;
            }
            has_room
        }
        Entered::Nested(mut nested) => {
            let log = nested.log();
            let writer = nested.writer();
            let has_room = writer.has_room(slots) || make_room(log, writer, Lane::Nested);
            if has_room {
                writer.write(slots, write);
            }
            has_room
        }
        Entered::No => false,
    }
}

/// Returns the recorder of this log if it is still the present one. Another recording may have
/// begun since the thread entered, and the log has no place in its file.
fn recorder_of(log: &ThreadLog) -> Option<&'static Recorder> {
    recorder::current().filter(|recorder| log.generation() == recorder.generation())
}

/// Continues a lane in a fresh segment. Returns false when there is none: the event is lost and
/// counted, or belongs to a recording that has ended.
#[cold]
#[inline(never)]
fn make_room(log: &ThreadLog, writer: &mut Writer, lane: Lane) -> bool {
    let _errno = ErrnoGuard::new();
    let Some(recorder) = recorder_of(log) else { return false };
    let result = recorder.next_segment(writer, SegmentUse::Events, lane);
    match result {
        Ok(()) if lane == Lane::Nested => write_began(writer, log.began.load(Ordering::Relaxed)),
        Ok(()) => {}
        Err(why) => {
            recorder.no_segment(why);
            recorder.count_lost_events(1);
        }
    }
    result.is_ok()
}

/// Writes which thread the following records are of. The nested lane has no other record of it, and
/// a ring overwrites the one in the own lane.
fn write_began(writer: &mut Writer, began: u64) {
    let kernel_thread = writer.kernel_thread;
    writer.write(BEGAN_SLOTS, |sink| sink.thread(began, ThreadEvent::Began { kernel_thread }));
}

const BEGAN_SLOTS: usize = 3;

/// Maximum attempts to take over the log of an ended thread; 8, which search 64 logs. A small ring
/// has places for fewer threads than that.
const ATTEMPTS: u32 = 8;

/// Gives the calling thread a log, with its first segment.
fn acquire(recorder: &'static Recorder, generation: u64) -> Option<&'static ThreadLog> {
    if recorder.spool.makes_no_calls() {
        return None;
    }
    let thread = os::thread_id();
    // A child of `vfork` shares memory and log with the thread that waits for it, and cannot find
    // out the number of that thread.
    let is_guest = os::process_id() != recorder.process;
    // When no segment of a ring is free, one that an ended thread has left may come with its log.
    let first_look = recorder.first_look();
    for attempt in 0..ATTEMPTS {
        let owner = if is_guest { UNKNOWN_OWNER } else { thread };
        let reused = if is_guest { None } else { reuse(recorder, thread, first_look, attempt) };
        let (unowned, origin) = match reused {
            Some(unowned) => (unowned, Origin::Ended),
            None if attempt == 0 => match recorder.take_bare(owner) {
                Some(unowned) => (unowned, Origin::Bare),
                None => (recorder.fresh_log()?, Origin::Fresh),
            },
            None => continue,
        };
        let log = unowned.log();
        match begin(recorder, generation, unowned, origin, owner) {
            Ok(()) => return Some(log),
            Err(NoSegment::AllInUse) => {}
            Err(why) => {
                recorder.no_segment(why);
                return None;
            }
        }
    }
    None
}

/// Where a log for a thread comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// From a thread that has ended, with its segment.
    Ended,
    /// From a thread that got no segment.
    Bare,
    /// No thread has had it.
    Fresh,
}

/// Writes the first record of the calling thread to a log, or gives the log back.
fn begin(
    recorder: &'static Recorder,
    generation: u64,
    mut unowned: UnownedLog,
    origin: Origin,
    owner: u32,
) -> Result<(), NoSegment> {
    let thread = os::thread_id();
    let log = unowned.log();
    let is_fresh = origin == Origin::Fresh;
    if !(is_fresh && recorder.is_first_log(log)) {
        epochs::end_alone();
    }
    let (own, nested) = unowned.lanes();
    if is_fresh {
        own.base = recorder.spool.base();
        own.start_counter = recorder.spool.start_counter;
        own.stamp_step = stamp_step(recorder.spool.stamp_interval);
        own.writer.thread = recorder.next_thread();
        nested.thread = own.writer.thread;
        log.chooser.set_number(own.writer.thread);
        own.clock_step = FIRST_CLOCK_STEP;
        log.owner.store(owner, Ordering::Release);
    }
    own.stamp_at = 0;
    own.writer.kernel_thread = thread;
    nested.kernel_thread = thread;
    own.name = [0; 16];
    let counter = clock::counter();
    log.began.store(counter, Ordering::Relaxed);
    (own.name_due, own.name_step) = (counter.wrapping_add(FIRST_NAME_STEP), FIRST_NAME_STEP);
    own.due = counter;
    let began = recorder.append(&mut own.writer, SegmentUse::Events, Lane::Outer, BEGAN_SLOTS, |sink| {
        sink.thread(counter, ThreadEvent::Began { kernel_thread: thread })
    });
    if began.is_ok() {
        own.write_name(recorder);
        if nested.cursor != 0 {
            // Where the segment has no room for it, the next one begins with it.
            write_began(nested, counter);
        }
    }
    unowned.publish(generation);
    if began.is_err() {
        // For the next thread that needs a log, which may be this one. Otherwise each attempt would
        // take another log, until none is left.
        match origin {
            Origin::Ended => log.owner.store(NO_OWNER, Ordering::Release),
            Origin::Bare | Origin::Fresh => recorder.put_bare(log),
        }
    }
    began
}

/// Takes over the log of a thread of this recording that has ended.
fn reuse(recorder: &'static Recorder, thread: u32, first_look: u32, look: u32) -> Option<UnownedLog> {
    let log = recorder.sample_logs(first_look, look).find(|log| {
        let owner = log.owner.load(Ordering::Acquire);
        let is_begun = log.state.load(Ordering::Acquire) != 0;
        is_begun
            && owner != thread
            && !matches!(owner, UNKNOWN_OWNER | NO_SEGMENT_OWNER)
            && (owner == NO_OWNER || os::has_ended(owner))
            && log.owner.compare_exchange(owner, thread, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    })?;
    // SAFETY: the owner has ended, or has given the log back after clearing its word; the exchange
    // of the owner makes the log this thread's alone.
    Some(unsafe { UnownedLog::new(log) })
}

/// Counts of the counter until the clocks are read again: at first about a fifth of a millisecond.
/// Each time it is twice as many, up to about a second.
const FIRST_CLOCK_STEP: u64 = 1 << 19;
const LAST_CLOCK_STEP: u64 = 1 << 31;
/// Counts until the thread's name is read again: at first about a microsecond. A thread is usually
/// named soon after it began, when it has recorded something already. Each time it is twice as
/// many, up to about a second. That makes about ten system calls in its first millisecond.
const FIRST_NAME_STEP: u64 = 1 << 11;

impl OwnLane {
    /// Writes a stamp in front of the next event, uncommitted. It makes room for the events up to
    /// the next stamp. Returns false when there is no room; the event is then lost and counted.
    #[inline(always)]
    pub(crate) fn stamp(&mut self) -> bool {
        // SAFETY: this value proves that the lane is taken, and its mutable borrow that no
        // reference into the lane exists.
        unsafe { stamp(self.log()) }
    }
}

/// As [`OwnLane::stamp`]. It takes the log and not the lane as well: the two addresses would occupy
/// two registers of the hot path, which costs three instructions of every event.
///
/// # Safety
///
/// The caller holds the [`OwnLane`] of this log, and no reference into its lane exists.
#[inline(never)]
unsafe fn stamp(log: &'static ThreadLog) -> bool {
    // SAFETY: the lane is taken by the caller, and this is the only reference into it, by contract.
    let lane = unsafe { &mut *log.own.get() };
    if lane.writer.room_bytes() < STAMP_BYTES + lane.stamp_step + EVENT_BYTES && !lane.next_segment(log) {
        return false;
    }
    let now = clock::counter();
    let tick = control_word(lane.base, control::TICK).load(Ordering::Relaxed);
    if tick != lane.tick {
        lane.tick = tick;
        requests::obey(lane.base);
    }
    let ticks = now.wrapping_sub(lane.start_counter) >> STAMP_SHIFT;
    // SAFETY: the segment has at least `STAMP_BYTES`, and this record takes the first slot.
    unsafe { lane.writer.put(1, |sink| sink.stamp(ticks)) };
    if is_due(lane.due, now) {
        // SAFETY: the segment has `STAMP_BYTES` less that slot.
        unsafe { lane.put_due(log, now) };
    }
    lane.stamp_at = lane.writer.cursor + lane.stamp_step;
    true
}

impl LaneState {
    /// Reads the clocks if they are due and fit into the segment; otherwise a later mark does it.
    #[inline]
    fn append_due_clocks(&mut self, now: u64) {
        if is_due(self.clock_due, now) && self.writer.has_room(CLOCK_SLOTS) {
            self.delay_clocks(now);
            self.writer.write(CLOCK_SLOTS, |sink| sink.clock(&clock::reading()));
        }
    }

    fn delay_clocks(&mut self, now: u64) {
        self.clock_due = now.wrapping_add(self.clock_step);
        self.clock_step = (self.clock_step * 2).min(LAST_CLOCK_STEP);
    }

    /// Writes the clocks and the thread's name if they are due, uncommitted.
    ///
    /// # Safety
    ///
    /// The segment has room for [`CLOCK_SLOTS`] and [`NAME_SLOTS`].
    #[cold]
    #[inline(never)]
    unsafe fn put_due(&mut self, log: &ThreadLog, now: u64) {
        if is_due(self.clock_due, now) {
            self.delay_clocks(now);
            // SAFETY: the first part of the room that the contract promises.
            unsafe { self.writer.put(CLOCK_SLOTS, |sink| sink.clock(&clock::reading())) };
        }
        if is_due(self.name_due, now) {
            self.name_due = now.wrapping_add(self.name_step);
            self.name_step = (self.name_step * 2).min(LAST_CLOCK_STEP);
            if let Some(recorder) = recorder_of(log) {
                recorder.publish_own_memory();
                // SAFETY: the second part of that room.
                unsafe { self.put_changed_name(recorder, now) };
            }
        }
        let is_name_first = is_due(self.name_due, self.clock_due);
        self.due = if is_name_first { self.name_due } else { self.clock_due };
    }

    /// Writes the thread's name if it has changed, uncommitted.
    ///
    /// # Safety
    ///
    /// The segment has room for [`NAME_SLOTS`].
    unsafe fn put_changed_name(&mut self, recorder: &Recorder, now: u64) {
        if recorder.spool.makes_no_calls() {
            return;
        }
        let _errno = ErrnoGuard::new();
        let mut buffer = [0; 16];
        let length = os::thread_name(&mut buffer).len();
        if buffer != self.name {
            self.name = buffer;
            let name = buffer.get(..length).unwrap_or_default();
            // SAFETY: the caller promises that the segment has room for [`NAME_SLOTS`].
            unsafe { self.writer.put(NAME_SLOTS, |sink| sink.thread(now, ThreadEvent::Named(name))) };
        }
    }

    /// Continues in a fresh segment.
    #[cold]
    #[inline(never)]
    fn next_segment(&mut self, log: &ThreadLog) -> bool {
        let _errno = ErrnoGuard::new();
        let Some(recorder) = recorder_of(log) else { return false };
        let result = recorder.next_segment(&mut self.writer, SegmentUse::Events, Lane::Outer);
        match result {
            Ok(()) => {
                if recorder.spool.is_ring() {
                    write_began(&mut self.writer, log.began.load(Ordering::Relaxed));
                }
                self.write_name(recorder);
            }
            Err(why) => {
                recorder.no_segment(why);
                recorder.count_lost_events(1);
            }
        }
        result.is_ok()
    }

    /// Writes the thread's name if it has changed. In a ring it always does, because older records
    /// of it are overwritten.
    fn write_name(&mut self, recorder: &Recorder) {
        if recorder.spool.makes_no_calls() {
            return;
        }
        let mut buffer = [0; 16];
        let length = os::thread_name(&mut buffer).len();
        if buffer != self.name || recorder.spool.is_ring() {
            self.name = buffer;
            let name = buffer.get(..length).unwrap_or_default();
            let counter = clock::counter();
            let _ = recorder.append(&mut self.writer, SegmentUse::Events, Lane::Outer, NAME_SLOTS, |sink| {
                sink.thread(counter, ThreadEvent::Named(name))
            });
        }
    }
}

/// Slots of the largest event that [`OwnLane::stamp`] makes room for: a reallocation.
pub(crate) const EVENT_SLOTS: usize = 5;
/// Slots of a thread's name, which has at most 16 bytes.
const NAME_SLOTS: usize = 5;
/// Slots of what [`stamp`] writes: a stamp, a reading of the clocks and the thread's name.
const STAMP_SLOTS: usize = 1 + CLOCK_SLOTS + NAME_SLOTS;
const CLOCK_SLOTS: usize = 4;
const STAMP_BYTES: usize = STAMP_SLOTS * 8;
/// Bytes of one event and of the slot that stays empty.
const EVENT_BYTES: usize = (EVENT_SLOTS + 1) * 8;

/// Returns true when the counter has come to this value.
fn is_due(due: u64, now: u64) -> bool {
    now.wrapping_sub(due) < 1 << 63
}

/// Returns the bytes between two stamps: counting bytes costs less than counting events.
fn stamp_step(interval: u32) -> usize {
    1 + (interval.clamp(1, LONGEST_INTERVAL) as usize - 1) * ALLOCATION_BYTES
}

/// Returns the maximum number of events between two stamps: a free takes half of an allocation.
pub(crate) fn most_events_between_stamps(interval: u32) -> u32 {
    stamp_step(interval).div_ceil(8) as u32
}

const ALLOCATION_BYTES: usize = 16;
/// Longest interval between stamps, in events; 64, because a stamp makes sure of room for all of
/// them.
const LONGEST_INTERVAL: u32 = 64;

/// Notes that the calling thread records nothing more. The next thread can have its log without a
/// system call. The call is optional: a thread that has ended is noticed without it.
pub fn thread_ended() {
    let Some(recorder) = requests::recording() else { return };
    let Some(mut own) = enter() else { return };
    let _errno = ErrnoGuard::new();
    let counter = clock::counter();
    let log = own.log();
    let lane = own.lane();
    lane.write_name(recorder);
    let _ = recorder.append(&mut lane.writer, SegmentUse::Events, Lane::Outer, 2, |sink| {
        sink.thread(counter, ThreadEvent::Ended)
    });
    thread_log::set_current_log(None);
    drop(own);
    log.owner.store(NO_OWNER, Ordering::Release);
}
