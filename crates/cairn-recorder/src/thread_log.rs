//! The log of a thread: the lanes that it writes events to, and the blocks that it made itself.
//!
//! ```text
//!   hook --> busy? --no--> the thread's own lane
//!              |
//!             yes: a signal handler has interrupted the few instructions that write an event
//!              '--> nested busy? --no--> the nested lane, in a segment of its own
//!                       |
//!                      yes --> lost, and counted
//! ```
//!
//! A log lies in memory that a forked child finds wiped. Its state is then 0 and matches nothing,
//! so that a child leaves the hot path before it can touch the parent's file.
//!
//! **Borrowing.** A signal handler can run between any two instructions of an event. So a log is
//! only ever borrowed as a whole by `&ThreadLog`. All state that the interrupted code and the
//! handler share is atomic. Each lane is in a cell of its own, and [`OwnLane`] and [`NestedLane`]
//! are the proof that the cell has one user: the busy mark of the lane is set as long as they live.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, compiler_fence};

use crate::chooser::Chooser;
use crate::epochs::FILTER_ENTRIES;
use crate::mode::RECORDING;
use crate::os;
use crate::thread_word;
use crate::writer::Writer;

/// All that a thread has of the recorder. All-zero bytes are a log without an owner.
#[repr(C, align(64))]
pub(crate) struct ThreadLog {
    /// [`RECORDING`] as it was when the thread began to record; with [`BUSY`] while it writes an
    /// event. Written by this thread and its signal handlers only.
    pub(crate) state: AtomicU64,
    pub(crate) own: UnsafeCell<LaneState>,
    pub(crate) chooser: Chooser,
    /// Value of the counter when the thread began to record.
    pub(crate) began: AtomicU64,
    nested_busy: AtomicU32,
    /// Number of the thread in the kernel, [`NO_OWNER`], [`NO_SEGMENT_OWNER`] or
    /// [`UNKNOWN_OWNER`].
    pub(crate) owner: AtomicU32,
    /// While the log waits without a segment: the next such log, as its index + 1; 0 for none.
    pub(crate) next_bare: AtomicU32,
    nested: UnsafeCell<Writer>,
    /// The blocks that this thread made last; see [`crate::epochs`]. Atomic, because
    /// [`forget_filter`](Self::forget_filter) may wipe it while its thread reads it.
    filter: [AtomicU64; FILTER_ENTRIES],
}

// SAFETY: `own` is accessed by the holder of an `OwnLane` or an `UnownedLog`, `nested` by that of a
// `NestedLane` or an `UnownedLog`; of each there is one at a time. All other fields are atomic.
unsafe impl Sync for ThreadLog {}

/// State of a thread's own lane.
#[repr(C)]
pub(crate) struct LaneState {
    pub(crate) writer: Writer,
    /// Address of the control words.
    pub(crate) base: usize,
    pub(crate) start_counter: u64,
    /// `control::TICK` at the last stamp.
    pub(crate) tick: u64,
    /// Value of the cursor at which the next stamp is due at the latest. The segment has room for
    /// the events in front of it and for one more.
    pub(crate) stamp_at: usize,

    /// Value of the counter at which the first of the following readings is due.
    pub(crate) due: u64,
    /// Value of the counter at which the clocks are due, and the distance to the time after that.
    pub(crate) clock_due: u64,
    pub(crate) clock_step: u64,
    /// The same for the thread's name.
    pub(crate) name_due: u64,
    pub(crate) name_step: u64,
    /// Bytes from one stamp to the next.
    pub(crate) stamp_step: usize,
    pub(crate) name: [u8; 16],
}

const _: () = assert!(
    core::mem::offset_of!(ThreadLog, own) + core::mem::offset_of!(LaneState, due) == 64,
    "an event in steady state touches one cache line of its log"
);

/// Bit of [`ThreadLog::state`] that is set while the thread writes an event.
pub(crate) const BUSY: u64 = 1 << 32;

/// Owner of a log whose thread has said that it ends.
pub(crate) const NO_OWNER: u32 = 0;
/// Owner of a log that waits without a segment, because its thread got none.
pub(crate) const NO_SEGMENT_OWNER: u32 = u32::MAX - 1;
/// Owner of a log whose thread has no known number, so that its end cannot be noticed.
pub(crate) const UNKNOWN_OWNER: u32 = u32::MAX;

impl ThreadLog {
    /// Returns the number of the recording that this log belongs to.
    pub(crate) fn generation(&self) -> u64 {
        self.state.load(Ordering::Relaxed) & !BUSY
    }

    pub(crate) fn is_busy(&self) -> bool {
        self.state.load(Ordering::Relaxed) & BUSY != 0
    }

    /// Takes the nested lane; `None` when a handler that this one has interrupted holds it.
    pub(crate) fn enter_nested(&'static self) -> Option<NestedLane> {
        if self.nested_busy.load(Ordering::Relaxed) != 0 {
            return None;
        }
        self.nested_busy.store(1, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        Some(NestedLane(self))
    }

    /// Returns the filter entry at this index.
    #[inline(always)]
    pub(crate) fn filter(&self, index: usize) -> &AtomicU64 {
        &self.filter[index]
    }

    /// Empties the filter and gives its memory back. A thread that reads it meanwhile finds blocks
    /// of its own missing, which costs it a ticket for each.
    pub(crate) fn forget_filter(&self) {
        // SAFETY: the range is the filter, which is atomic and in private memory; zeros are its
        // empty entries.
        unsafe { os::forget(self.filter.as_ptr() as usize, size_of_val(&self.filter)) };
    }
}

/// The own lane of the calling thread, taken until it is dropped.
pub(crate) struct OwnLane(&'static ThreadLog);

impl OwnLane {
    #[inline(always)]
    pub(crate) fn log(&self) -> &'static ThreadLog {
        self.0
    }

    /// Borrows the state of the lane.
    #[inline(always)]
    pub(crate) fn lane(&mut self) -> &mut LaneState {
        // SAFETY: `enter` has set `BUSY`, which makes every other `enter` on this log fail until
        // this value is dropped; it is borrowed mutably, so that there is one reference at a time.
        unsafe { &mut *self.0.own.get() }
    }
}

impl Drop for OwnLane {
    #[inline(always)]
    fn drop(&mut self) {
        compiler_fence(Ordering::SeqCst);
        let state = &self.0.state;
        state.store(state.load(Ordering::Relaxed) & !BUSY, Ordering::Relaxed);
    }
}

/// The nested lane of the calling thread, taken until it is dropped.
pub(crate) struct NestedLane(&'static ThreadLog);

impl NestedLane {
    pub(crate) fn log(&self) -> &'static ThreadLog {
        self.0
    }

    /// Borrows the writer of the lane.
    pub(crate) fn writer(&mut self) -> &mut Writer {
        // SAFETY: `enter_nested` has set `nested_busy`, which makes every other one on this log
        // fail until this value is dropped; it is borrowed mutably.
        unsafe { &mut *self.0.nested.get() }
    }
}

impl Drop for NestedLane {
    fn drop(&mut self) {
        compiler_fence(Ordering::SeqCst);
        self.0.nested_busy.store(0, Ordering::Relaxed);
    }
}

/// A log that is the calling thread's alone and that no event is written to yet.
pub(crate) struct UnownedLog(&'static ThreadLog);

impl UnownedLog {
    /// # Safety
    ///
    /// No thread has the log in its word, and no other `UnownedLog` of it exists. The caller has
    /// reserved its place, or its owner has ended and the caller has replaced it in
    /// [`ThreadLog::owner`].
    pub(crate) const unsafe fn new(log: &'static ThreadLog) -> Self {
        Self(log)
    }

    pub(crate) fn log(&self) -> &'static ThreadLog {
        self.0
    }

    /// Borrows the state of the own lane and the writer of the nested one.
    pub(crate) fn lanes(&mut self) -> (&mut LaneState, &mut Writer) {
        // SAFETY: the caller of `new` has made sure that nobody else uses the log; the cells are
        // disjoint.
        unsafe { (&mut *self.0.own.get(), &mut *self.0.nested.get()) }
    }

    /// Makes both lanes available to the thread, free.
    pub(crate) fn publish(self, generation: u64) {
        self.0.nested_busy.store(0, Ordering::Relaxed);
        self.0.state.store(generation, Ordering::Release);
    }
}

/// Returns the log of the calling thread, which may be that of an earlier recording.
#[inline(always)]
pub(crate) fn current_log() -> Option<&'static ThreadLog> {
    // SAFETY: the word is null or leads to a log, because `set_current_log` alone writes it. Logs
    // are unmapped by `release_ended` only, when the words of all threads are null.
    unsafe { thread_word::load().cast::<ThreadLog>().as_ref() }
}

/// Makes this log the one of the calling thread.
pub(crate) fn set_current_log(log: Option<&'static ThreadLog>) {
    let word = log.map_or(core::ptr::null(), core::ptr::from_ref);
    thread_word::store(word.cast_mut().cast());
}

/// Takes the own lane of this thread on the fast path: events are recorded, and the lane is free.
#[inline(always)]
pub(crate) fn enter() -> Option<OwnLane> {
    let log = current_log()?;
    // The second comparison checks that events are recorded, to the file of this log, and that the
    // lane is free. The first one covers a forked child that records nothing, whose logs are
    // wiped: there both words are 0.
    let recording = RECORDING.load(Ordering::Relaxed);
    if recording == 0 || log.state.load(Ordering::Relaxed) != recording {
        return None;
    }
    log.state.store(recording | BUSY, Ordering::Relaxed);
    compiler_fence(Ordering::SeqCst);
    Some(OwnLane(log))
}
