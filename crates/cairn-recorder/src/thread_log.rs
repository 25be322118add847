//! What a thread has of the recorder: where its next event goes, and which blocks it made itself.
//!
//! ```text
//!   hook --> busy? --no--> the thread's own lane
//!              |
//!             yes: a signal handler has interrupted the few instructions that write an event
//!              '--> nested busy? --no--> the nested lane, in a block of its own
//!                       |
//!                      yes --> lost, and counted
//! ```
//!
//! A log lies in memory that a forked child finds wiped: its state is then 0 and matches nothing, so that a child
//! leaves the hot path before it can touch the parent's file. A thread that has ended is recognised by its number; its log goes
//! to a later thread, which continues in the same block and says so by a record.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, compiler_fence};

use cairn_format::recording::{Lane, RecordSink, STAMP_SHIFT, SinkTooSmall, ThreadEvent, control};

use crate::clock;
use crate::heap::{self, EVENT_SLOTS};
use crate::os::{self, KeptErrno};
use crate::recorder::{self, RECORDING, Recorder};
use crate::sampling::Chooser;
use crate::spool::{NoBlock, Use, control_word};
use crate::thread_word;
use crate::writer::Writer;

/// Entries of the table of blocks that a thread made.
pub(crate) const FILTER_ENTRIES: usize = 1 << 12;

/// See the module documentation. All-zero bytes are a log that nobody has.
#[repr(C, align(64))]
pub(crate) struct ThreadLog {
    /// [`RECORDING`] as it was when the thread began to record; with [`BUSY`] while it writes an event. Of this thread and its signal
    /// handlers only.
    state: AtomicU64,
    pub(crate) own: Writer,
    /// Address of the control words.
    pub(crate) base: usize,
    pub(crate) start_counter: u64,
    /// [`control::TICK`] at the last stamp.
    pub(crate) tick: u64,
    /// Where the cursor is when the next stamp is due, at the latest; there is room in the block for an event up to there.
    pub(crate) stamp_at: usize,

    /// The counter at which the first one is due of what follows.
    due: u64,
    /// The counter at which the clocks are to be read again, and how much later next time.
    clock_due: u64,
    clock_step: u64,
    /// The same of the thread's name.
    name_due: u64,
    name_step: u64,
    /// From a stamp to the next, in bytes.
    stamp_step: usize,
    pub(crate) chooser: Chooser,
    nested_busy: AtomicU32,
    nested: Writer,
    /// The kernel's number of the thread; [`NOBODY`] when it said that it ends.
    owner: AtomicU32,
    name: [u8; 16],
    /// The counter when the thread began to record.
    began: u64,
    /// The blocks that this thread made last; see [`crate::heap`].
    pub(crate) filter: [u64; FILTER_ENTRIES],
}

const _: () =
    assert!(core::mem::offset_of!(ThreadLog, due) == 64, "one cache line is all that an event needs");

/// Added to [`ThreadLog::state`] while its thread is at it.
const BUSY: u64 = 1 << 32;

/// Where to write.
pub(crate) enum Entered {
    /// The thread's own lane, until [`leave`].
    Own(*mut ThreadLog),
    /// The nested lane, until [`leave_nested`].
    Nested(*mut ThreadLog),
    /// Nowhere.
    No,
}

/// Takes the log of this thread if everything is as it mostly is.
#[inline(always)]
pub(crate) fn enter() -> Option<*mut ThreadLog> {
    let log = thread_word::load().cast::<ThreadLog>();
    if log.is_null() {
        return None;
    }
    // SAFETY: the word is null or leads to a log, and logs are never unmapped.
    let state = unsafe { &(*log).state };
    // One comparison answers whether anything is recorded, to this file, and the log is free; the other one whether this is a
    // forked child, whose logs are wiped and which records nothing: nought in both.
    let recording = RECORDING.load(Ordering::Relaxed);
    if recording == 0 || state.load(Ordering::Relaxed) != recording {
        return None;
    }
    state.store(recording | BUSY, Ordering::Relaxed);
    compiler_fence(Ordering::SeqCst);
    Some(log)
}

/// Gives the log back.
///
/// # Safety
///
/// `log` came from [`enter`] or as [`Entered::Own`], on this thread.
#[inline(always)]
pub(crate) unsafe fn leave(log: *mut ThreadLog) {
    compiler_fence(Ordering::SeqCst);
    // SAFETY: by contract.
    let state = unsafe { &(*log).state };
    state.store(state.load(Ordering::Relaxed) & !BUSY, Ordering::Relaxed);
}

unsafe fn leave_nested(log: *mut ThreadLog) {
    compiler_fence(Ordering::SeqCst);
    // SAFETY: by contract.
    unsafe { (*log).nested_busy.store(0, Ordering::Relaxed) };
}

/// Takes the log of this thread where [`enter`] could not: its first event, a handler that interrupted it, a child.
#[cold]
#[inline(never)]
pub(crate) fn enter_slowly() -> Entered {
    let Some(recorder) = recorder::recording() else { return Entered::No };
    let generation = recorder.generation();
    let mut log = thread_word::load().cast::<ThreadLog>();
    // SAFETY: null, or a log; logs are never unmapped.
    if unsafe { log.as_ref() }.is_none_or(|log| log.state.load(Ordering::Relaxed) & !BUSY != generation) {
        let Some(fresh) = acquire(recorder, generation) else {
            recorder.miss_event();
            return Entered::No;
        };
        log = fresh;
        thread_word::store(log.cast());
    }
    if let Some(log) = enter() {
        return Entered::Own(log);
    }
    // SAFETY: the log of this thread.
    let nested_busy = unsafe { &(*log).nested_busy };
    // SAFETY: as above.
    if unsafe { (*log).state.load(Ordering::Relaxed) } & BUSY == 0 {
        recorder.miss_event();
        return Entered::No;
    }
    if nested_busy.load(Ordering::Relaxed) != 0 {
        // The third level.
        recorder.count_lost_events(1);
        return Entered::No;
    }
    nested_busy.store(1, Ordering::Relaxed);
    compiler_fence(Ordering::SeqCst);
    // Its lane is to a reader what another thread is.
    heap::end_alone();
    Entered::Nested(log)
}

/// Calls `f` with the log of this thread, which may be its first; nothing when there is none, or it is at work.
#[cold]
pub(crate) fn with_own<R>(f: impl FnOnce(&ThreadLog) -> R) -> Option<R> {
    match enter().map_or_else(enter_slowly, Entered::Own) {
        Entered::Own(log) => {
            // SAFETY: entered.
            let result = f(unsafe { &*log });
            // SAFETY: as above.
            unsafe { leave(log) };
            Some(result)
        }
        Entered::Nested(log) => {
            // SAFETY: entered.
            unsafe { leave_nested(log) };
            None
        }
        Entered::No => None,
    }
}

/// Appends a record to whichever lane of this thread is free, and returns whether that was possible.
#[inline]
pub(crate) fn append(
    slots: usize,
    write: impl FnOnce(&mut RecordSink<'_>) -> Result<(), SinkTooSmall>,
) -> bool {
    let entered = enter().map_or_else(enter_slowly, Entered::Own);
    append_to(entered, slots, write)
}

/// As [`append`], for records that come without stamps: reads the clocks behind the record when that is
/// due at `counter`. A program that marks and allocates nothing has no other readings of them.
#[inline]
pub(crate) fn append_with_clocks(
    counter: u64,
    slots: usize,
    write: impl FnOnce(&mut RecordSink<'_>) -> Result<(), SinkTooSmall>,
) -> bool {
    let entered = enter().map_or_else(enter_slowly, Entered::Own);
    append_at(entered, Some(counter), slots, write)
}

/// As [`append`], and gives the lane back.
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
    let (log, lane) = match entered {
        Entered::Own(log) => (log, Lane::Outer),
        Entered::Nested(log) => (log, Lane::Nested),
        Entered::No => return false,
    };
    // SAFETY: entered, so the lane is ours; the two lanes are fields apart.
    let writer = unsafe { if lane == Lane::Outer { &mut (*log).own } else { &mut (*log).nested } };
    // SAFETY: as above.
    let (state, began) = unsafe { (&(*log).state, (*log).began) };
    let has_room = writer.has_room(slots) || make_room(writer, lane, state, began);
    if has_room {
        writer.write(slots, write);
        if lane == Lane::Outer {
            if let Some(counter) = clocks_at {
                // SAFETY: as above; `writer` is not used any more.
                unsafe { (*log).append_due_clocks(counter) };
            }
            // It may be another block now, or less room in this one than a stamp has promised.
            // SAFETY: as above.
            unsafe { (*log).stamp_at = (*log).own.cursor };
        }
    }
    // SAFETY: entered above.
    unsafe {
        match lane {
            Lane::Outer => leave(log),
            Lane::Nested => leave_nested(log),
        }
    }
    has_room
}

/// The recorder that a log of this state belongs to, if that is the present one still: another recording may have begun since the
/// thread entered, in whose file the log has no place.
fn recorder_of(state: &AtomicU64) -> Option<&'static Recorder> {
    recorder::current().filter(|recorder| state.load(Ordering::Relaxed) & !BUSY == recorder.generation())
}

/// A fresh block for a lane; false when there is none, and the event is lost and counted, or is one of a recording that has ended.
#[cold]
#[inline(never)]
fn make_room(writer: &mut Writer, lane: Lane, state: &AtomicU64, began: u64) -> bool {
    let _errno = KeptErrno::new();
    let Some(recorder) = recorder_of(state) else { return false };
    let result = writer.next_block(recorder, Use::Events, lane);
    match result {
        Ok(()) if lane == Lane::Nested => say_began(writer, began),
        Ok(()) => {}
        Err(why) => {
            recorder.no_block(why);
            recorder.count_lost_events(1);
        }
    }
    result.is_ok()
}

/// Says in a lane whose records follow. The nested lane has no other word on it, and a ring
/// overwrites the one in the own lane.
fn say_began(writer: &mut Writer, began: u64) {
    let kernel_thread = writer.kernel_thread;
    if writer.has_room(BEGAN_SLOTS) {
        writer.write(BEGAN_SLOTS, |sink| sink.thread(began, ThreadEvent::Began { kernel_thread }));
    }
}

const BEGAN_SLOTS: usize = 3;

/// In place of the number of the thread that has a log.
const NOBODY: u32 = 0;
/// A thread whose number is not known: nobody can tell when it has ended.
const SOMEBODY: u32 = u32::MAX;

/// A log for the calling thread, with its first block.
fn acquire(recorder: &'static Recorder, generation: u64) -> Option<*mut ThreadLog> {
    if recorder.spool.is_frugal() {
        return None;
    }
    let thread = os::thread_id();
    // A child of `vfork` goes on with the memory, and the log, of the thread that waits for it, of which it does not know the number.
    let is_guest = os::process_id() != recorder.process;
    // When no place of a ring is free, one that a thread has left behind may be found with another log.
    for attempt in 0..TRIES {
        let reused = if is_guest { None } else { reuse(recorder, thread) };
        let (log, is_fresh) = match reused {
            Some(log) => (log, false),
            None if attempt == 0 => (recorder.fresh_log()?, true),
            None => continue,
        };
        match begin(recorder, generation, log, is_fresh, if is_guest { SOMEBODY } else { thread }) {
            Ok(()) => return Some(log),
            Err(NoBlock::AllInUse) if !is_fresh => {}
            Err(why) => {
                recorder.no_block(why);
                return None;
            }
        }
    }
    None
}

/// Begins to write to a log that is the calling thread's alone, or gives it back.
fn begin(
    recorder: &'static Recorder,
    generation: u64,
    log: *mut ThreadLog,
    is_fresh: bool,
    owner: u32,
) -> Result<(), NoBlock> {
    let thread = os::thread_id();
    if !(is_fresh && recorder.is_first_log(log)) {
        heap::end_alone();
    }
    // SAFETY: nobody else uses it: fresh, or taken from a thread that has ended.
    let own = unsafe { &mut *log };
    if is_fresh {
        own.base = recorder.spool.base();
        own.start_counter = recorder.spool.start_counter;
        own.stamp_step = stamp_step(recorder.spool.stamp_interval);
        own.own.thread = recorder.next_thread();
        own.nested.thread = own.own.thread;
        own.chooser.set_number(own.own.thread);
        own.clock_step = FIRST_CLOCK_STEP;
        own.owner.store(owner, Ordering::Release);
    }
    own.stamp_at = 0;
    own.own.kernel_thread = thread;
    own.nested.kernel_thread = thread;
    own.name = [0; 16];
    own.nested_busy.store(0, Ordering::Relaxed);
    let counter = clock::counter();
    own.began = counter;
    (own.name_due, own.name_step) = (counter.wrapping_add(FIRST_NAME_STEP), FIRST_NAME_STEP);
    own.due = counter;
    let began = own.own.append(recorder, Use::Events, Lane::Outer, BEGAN_SLOTS, |sink| {
        sink.thread(counter, ThreadEvent::Began { kernel_thread: thread })
    });
    if began.is_ok() {
        own.write_name(recorder);
        if own.nested.cursor != 0 {
            // Without room the next block says it.
            say_began(&mut own.nested, counter);
        }
    }
    own.state.store(generation, Ordering::Release);
    if began.is_err() {
        // For the next thread that needs one, which may be this one: each try would take another log otherwise, until none is left.
        own.owner.store(NOBODY, Ordering::Release);
    }
    began
}

/// So many logs that others have left are tried.
const TRIES: u32 = 8;

/// The log of a thread of this recording that has ended.
fn reuse(recorder: &'static Recorder, thread: u32) -> Option<*mut ThreadLog> {
    recorder.some_logs().find(|&log| {
        // SAFETY: logs are never unmapped; this field is atomic.
        let owner = unsafe { &(*log).owner };
        let number = owner.load(Ordering::Acquire);
        // SAFETY: as above.
        let is_begun = unsafe { (*log).state.load(Ordering::Acquire) } != 0;
        is_begun
            && number != thread
            && number != SOMEBODY
            && (number == NOBODY || os::has_ended(number))
            && owner.compare_exchange(number, thread, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    })
}

/// The clocks are read again after so long at first: about a fifth of a millisecond. Then twice as long each time.
const FIRST_CLOCK_STEP: u64 = 1 << 19;
const LAST_CLOCK_STEP: u64 = 1 << 31;
/// A thread is named soon after it began, mostly, and by then it has recorded something: so its
/// name is read again after about a microsecond, and then each time after twice as long, up to
/// about a second: about ten system calls in its first millisecond.
const FIRST_NAME_STEP: u64 = 1 << 11;

impl ThreadLog {
    /// Gives back the memory of the table of blocks, which is then empty: the thread, which may be reading it, has made none of them.
    ///
    /// # Safety
    ///
    /// `log` is one.
    pub(crate) unsafe fn forget_filter(log: *mut Self) {
        // SAFETY: a place in a log.
        let from = unsafe { &raw mut (*log).filter } as usize;
        // SAFETY: zeros are an empty table, and are as good as any at any moment.
        unsafe { os::forget(from, size_of::<[u64; FILTER_ENTRIES]>()) };
    }

    /// Puts a stamp in front of the next event, uncommitted, and sees to it that there is room up to the next stamp. False when
    /// there is none; the event is then lost, and counted.
    #[inline(never)]
    pub(crate) fn stamp(&mut self) -> bool {
        if self.own.room_bytes() < STAMP_BYTES + self.stamp_step + EVENT_BYTES && !self.next_block() {
            return false;
        }
        let now = clock::counter();
        let tick = control_word(self.base, control::TICK).load(Ordering::Relaxed);
        if tick != self.tick {
            self.tick = tick;
            recorder::obey(self.base);
        }
        let ticks = now.wrapping_sub(self.start_counter) >> STAMP_SHIFT;
        self.put(1, |sink| sink.stamp(ticks));
        if is_due(self.due, now) {
            self.put_what_is_due(now);
        }
        self.stamp_at = self.own.cursor + self.stamp_step;
        true
    }

    /// Reads the clocks if that is due and there is room in the block; otherwise a later mark does.
    #[inline]
    fn append_due_clocks(&mut self, now: u64) {
        if is_due(self.clock_due, now) && self.own.has_room(CLOCK_SLOTS) {
            self.clock_due = now.wrapping_add(self.clock_step);
            self.clock_step = (self.clock_step * 2).min(LAST_CLOCK_STEP);
            self.own.write(CLOCK_SLOTS, |sink| sink.clock(&clock::reading()));
        }
    }

    /// The clocks and the thread's name, uncommitted.
    #[cold]
    #[inline(never)]
    fn put_what_is_due(&mut self, now: u64) {
        if is_due(self.clock_due, now) {
            self.clock_due = now.wrapping_add(self.clock_step);
            self.clock_step = (self.clock_step * 2).min(LAST_CLOCK_STEP);
            self.put(CLOCK_SLOTS, |sink| sink.clock(&clock::reading()));
        }
        if is_due(self.name_due, now) {
            self.name_due = now.wrapping_add(self.name_step);
            self.name_step = (self.name_step * 2).min(LAST_CLOCK_STEP);
            if let Some(recorder) = recorder_of(&self.state) {
                recorder.tell_own_memory();
                self.put_other_name(recorder, now);
            }
        }
        let is_name_first = is_due(self.name_due, self.clock_due);
        self.due = if is_name_first { self.name_due } else { self.clock_due };
    }

    /// The thread's name if it is another one than before.
    fn put_other_name(&mut self, recorder: &Recorder, now: u64) {
        if recorder.spool.is_frugal() {
            return;
        }
        let _errno = KeptErrno::new();
        let mut buffer = [0; 16];
        let length = os::thread_name(&mut buffer).len();
        if buffer != self.name {
            self.name = buffer;
            let name = buffer.get(..length).unwrap_or_default();
            self.put(NAME_SLOTS, |sink| sink.thread(now, ThreadEvent::Named(name)));
        }
    }

    fn put(&mut self, slots: usize, write: impl FnOnce(&mut RecordSink<'_>) -> Result<(), SinkTooSmall>) {
        // SAFETY: `stamp` has made room in the block, which is this thread's, for all that is put
        // before an event.
        let place = unsafe { core::slice::from_raw_parts_mut(self.own.cursor as *mut u64, slots) };
        let mut sink = RecordSink::new(place);
        if write(&mut sink).is_ok() {
            self.own.cursor += sink.written().len() * 8;
        }
    }

    /// Goes on in a fresh block.
    #[cold]
    #[inline(never)]
    fn next_block(&mut self) -> bool {
        let _errno = KeptErrno::new();
        let Some(recorder) = recorder_of(&self.state) else { return false };
        let result = self.own.next_block(recorder, Use::Events, Lane::Outer);
        match result {
            Ok(()) => {
                if recorder.spool.is_ring() {
                    say_began(&mut self.own, self.began);
                }
                self.write_name(recorder);
            }
            Err(why) => {
                recorder.no_block(why);
                recorder.count_lost_events(1);
            }
        }
        result.is_ok()
    }

    /// Writes the thread's name if it is another one than before; in a ring always, because what was said is overwritten.
    fn write_name(&mut self, recorder: &Recorder) {
        if recorder.spool.is_frugal() {
            return;
        }
        let mut buffer = [0; 16];
        let length = os::thread_name(&mut buffer).len();
        if buffer != self.name || recorder.spool.is_ring() {
            self.name = buffer;
            let name = buffer.get(..length).unwrap_or_default();
            let counter = clock::counter();
            let _ = self.own.append(recorder, Use::Events, Lane::Outer, NAME_SLOTS, |sink| {
                sink.thread(counter, ThreadEvent::Named(name))
            });
        }
    }
}

/// A name has at most 16 bytes.
const NAME_SLOTS: usize = 5;
/// What [`ThreadLog::stamp`] writes: a stamp, a reading of the clocks and the thread's name.
const STAMP_SLOTS: usize = 1 + CLOCK_SLOTS + NAME_SLOTS;
const CLOCK_SLOTS: usize = 4;
const STAMP_BYTES: usize = STAMP_SLOTS * 8;
/// One event, and the slot that stays empty.
const EVENT_BYTES: usize = (EVENT_SLOTS + 1) * 8;

/// Whether the counter has come to this value.
fn is_due(due: u64, now: u64) -> bool {
    now.wrapping_sub(due) < 1 << 63
}

/// How far the cursor may go from one stamp to the next: counting bytes costs less than counting events.
fn stamp_step(interval: u32) -> usize {
    1 + (interval.clamp(1, LONGEST_INTERVAL) as usize - 1) * ALLOCATION_BYTES
}

/// At most how many events lie between two stamps, for an interval that was asked for: frees take half of what allocations do.
pub(crate) fn most_events_between_stamps(interval: u32) -> u32 {
    stamp_step(interval).div_ceil(8) as u32
}

const ALLOCATION_BYTES: usize = 16;
/// Longer intervals between stamps would need too much of a block in advance.
const LONGEST_INTERVAL: u32 = 64;

/// Notes that the calling thread records nothing any more: its log goes to the next thread that begins, without asking the kernel
/// for it. Not necessary: a thread that is gone is noticed.
pub fn thread_ended() {
    let Some(recorder) = recorder::recording() else { return };
    let Some(log) = enter() else { return };
    let _errno = KeptErrno::new();
    let counter = clock::counter();
    // SAFETY: entered.
    let own = unsafe { &mut *log };
    own.write_name(recorder);
    let _ = own
        .own
        .append(recorder, Use::Events, Lane::Outer, 2, |sink| sink.thread(counter, ThreadEvent::Ended));
    thread_word::store(core::ptr::null_mut());
    // SAFETY: as above.
    unsafe { leave(log) };
    own.owner.store(NOBODY, Ordering::Release);
}
