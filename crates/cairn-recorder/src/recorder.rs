//! The state that all threads share, and how a forked child leaves it.
//!
//! All that leads to the file lies in one mapping that a forked child finds wiped
//! ([`os::wipe_on_fork`]); the few statics here hold its address. It stays mapped until
//! [`release_ended`](crate::release_ended), because another thread may be writing an event.

use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

use cairn_format::recording::control::EarlyEnd;
use cairn_format::recording::{Lane, RecordSink, SinkTooSmall, control};

use crate::clock;
use crate::extent::Extent;
use crate::mode::{self, Mode, RECORDING, generation_of, mode_of, word_of};
use crate::module_table::ModuleTable;
use crate::os;
use crate::spool::{self, NoSegment, SegmentUse, Spool};
use crate::table_log::{PublishedCodes, PublishedPcs, TableLogs};
use crate::thread_log::{NO_SEGMENT_OWNER, ThreadLog, UnownedLog};
use crate::writer::Writer;
use crate::zone::Zone;

static RECORDER: AtomicPtr<Recorder> = AtomicPtr::new(core::ptr::null_mut());
static RECORDINGS: AtomicU32 = AtomicU32::new(0);
/// True when a forked child is not wiped: see [`needs_fork_hook`].
static IS_NOT_WIPED: AtomicBool = AtomicBool::new(false);

/// One recording. All-zero bytes are one that has not begun, or that of another process.
#[repr(C)]
pub(crate) struct Recorder {
    /// Number of the recording in [`RECORDING`]; 0 in a forked child.
    generation: AtomicU32,
    /// Number of the process that records.
    pub(crate) process: u32,
    threads: AtomicU32,
    logs_used: AtomicU32,
    logs_limit: AtomicU32,
    next_look: AtomicU32,
    /// Logs that wait without a segment, by the first one.
    ///
    /// Index + 1 of that one in the lower half, 0 for none; a count of changes in the upper half,
    /// which makes each value unique.
    bare_logs: AtomicU64,
    /// Memory of the recorder and its logs.
    extent: Extent,
    /// In a forked child: number of the thread that leaves the parent's recording.
    leaver: AtomicU32,
    /// 1 while a thread publishes the ranges of the recorder's memory.
    publishes_memory: AtomicU32,
    /// Value of [`cairn_capture::own_memory_changes`] and of the end when they were published last.
    published_memory: AtomicUsize,
    /// The recording before this one, whose memory is still mapped.
    pub(crate) previous: AtomicPtr<Self>,
    pub(crate) spool: Spool,
    pub(crate) modules: ModuleTable,
    pub(crate) tables: TableLogs,
    pub(crate) published: PublishedPcs,
    pub(crate) published_codes: PublishedCodes,
}

/// Logs that one step of a search covers; 8, because each may take a system call.
const LOGS_IN_A_LOOK: u32 = 8;

/// The next value of [`Recorder::bare_logs`], with this log as the first one.
const fn next_value(before: u64, first: u32) -> u64 {
    (before >> 32).wrapping_add(1) << 32 | first as u64
}

/// Limits of the threads that record at once; the first is used that fits into [`LOGS_SHARE`].
const LOG_LIMITS: [usize; 4] = [1 << 15, 1 << 12, 1 << 9, LEAST_LOGS];
/// Least limit of threads; 64, so that a small address space still serves an ordinary program.
const LEAST_LOGS: usize = 1 << 6;
/// Part of the address space that logs may take: one 32nd.
const LOGS_SHARE: u64 = 32;
/// Part of an address space that the program limits later, which the window may take: one 16th.
const WINDOW_SHARE: u64 = 16;
/// The memory of logs is taken in whole pages.
const PAGE_BYTES: usize = os::PAGE_BYTES;
/// Where recorders and their logs lie.
static ZONE: Zone = Zone { from: 1 << 37, bytes: 1 << 36, count: AtomicU32::new(0) };
/// Distance of the logs from the recorder: the next page.
const LOGS_OFFSET: usize = size_of::<Recorder>().next_multiple_of(4096);

impl Recorder {
    /// Maps zeroed memory for a recorder. Memory for logs is mapped by
    /// [`fresh_log`](Self::fresh_log): programs limit their address space by what is mapped, and
    /// lock all of it.
    pub(crate) fn make() -> Result<&'static mut Self, os::Errno> {
        let most_bytes = os::address_space_limit() / LOGS_SHARE;
        let fits = |limit: &usize| Self::bytes(*limit) as u64 <= most_bytes;
        let limit = LOG_LIMITS.into_iter().find(fits).unwrap_or(LEAST_LOGS);
        let bytes = Self::bytes(0);
        let at = os::zeroed_apart(bytes, Self::bytes(limit), &ZONE)?;
        if let Err(error) = os::wipe_on_fork(at, bytes) {
            // SAFETY: `zeroed_apart` has just mapped the range, and its address has not been
            // shared.
            unsafe { os::unmap(at, bytes) };
            return Err(error);
        }
        // SAFETY: `zeroed_apart` has just mapped `bytes` zeroed, page-aligned bytes, at least the
        // size of a recorder; the address has not been shared, and zeros are a valid recorder.
        let recorder = unsafe { &mut *(at as *mut Self) };
        *recorder.logs_limit.get_mut() = limit as u32;
        recorder.extent.begin(at + bytes);
        recorder.process = os::process_id();
        Ok(recorder)
    }

    /// Returns the bytes of a recorder with `logs` logs, in whole pages.
    const fn bytes(logs: usize) -> usize {
        (LOGS_OFFSET + logs * size_of::<ThreadLog>()).next_multiple_of(PAGE_BYTES)
    }

    /// Unmaps a recorder that was never published.
    pub(crate) fn discard(&'static mut self) {
        let bytes = self.extent.end() - &raw mut *self as usize;
        // SAFETY: `make` has mapped the range, and the unique reference is used up by this call.
        unsafe { os::unmap(&raw mut *self as usize, bytes) };
    }

    /// Makes it the present recorder. Hooks record from [`mode::Starter::finish`] on.
    pub(crate) fn publish(&'static mut self) -> &'static Self {
        let generation = RECORDINGS.fetch_add(1, Ordering::Relaxed).wrapping_add(1).max(1);
        self.generation.store(generation, Ordering::Relaxed);
        self.spool.publish_window();
        // Memory without a file may be wiped with all other memory.
        let is_shared = self.spool.path().is_some();
        IS_NOT_WIPED.store(is_shared && os::ignores_advice(self.spool.base()), Ordering::Relaxed);
        let at: *mut Self = self;
        self.previous.store(RECORDER.load(Ordering::Acquire), Ordering::Relaxed);
        RECORDER.store(at, Ordering::Release);
        // SAFETY: `at` comes from a unique reference that is not used any more, and the mapping
        // stays until `release_ended`.
        unsafe { &*at }
    }

    /// Publishes the ranges of the recorder's own memory, if they have changed. The parent needs
    /// them to find how much of the resident memory is the program's.
    pub(crate) fn publish_own_memory(&self) {
        let end = self.extent.end();
        // Both terms only grow, so that the sum changes with each of them.
        let changes = cairn_capture::own_memory_changes().wrapping_add(end);
        if self.published_memory.load(Ordering::Relaxed) == changes
            || self.publishes_memory.swap(1, Ordering::Acquire) != 0
        {
            return;
        }
        let count = self.spool.word(control::OWN_MEMORY_COUNT);
        count.store(0, Ordering::SeqCst);
        let mut entries = 0;
        let mut put = |address: usize, bytes: usize| {
            if entries < control::OWN_MEMORY_ENTRIES {
                let at = control::OWN_MEMORY + entries * 16;
                self.spool.word(at).store(address as u64, Ordering::SeqCst);
                self.spool.word(at + 8).store(bytes as u64, Ordering::SeqCst);
            }
            entries += 1;
        };
        let own = core::ptr::from_ref(self) as usize;
        put(own, end - own);
        let are_all = cairn_capture::own_memory(&mut put) && entries <= control::OWN_MEMORY_ENTRIES;
        count.store(if are_all { entries as u64 } else { u64::MAX }, Ordering::SeqCst);
        self.published_memory.store(changes, Ordering::Relaxed);
        self.publishes_memory.store(0, Ordering::Release);
    }

    /// Returns the value of [`RECORDING`] while events go to this recorder.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed).into()
    }

    /// Returns true in a forked child, where the kernel has wiped the recorder.
    pub(crate) fn is_wiped(&self) -> bool {
        self.generation.load(Ordering::Relaxed) == 0
    }

    /// Returns a number for one more sequence of segments.
    pub(crate) fn next_thread(&self) -> u32 {
        self.threads.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Returns true for the log of the thread that recorded the first event.
    pub(crate) fn is_first_log(&self, log: &ThreadLog) -> bool {
        core::ptr::eq(log, self.log_address(0))
    }

    /// Reserves a log that no thread has had.
    pub(crate) fn fresh_log(&self) -> Option<UnownedLog> {
        let mut index = self.logs_used.load(Ordering::Relaxed);
        loop {
            if index >= self.logs_limit.load(Ordering::Relaxed) {
                return None;
            }
            // Mapped before other threads can find it among the logs in use.
            let end = core::ptr::from_ref(self) as usize + Self::bytes(index as usize + 1);
            self.extent.reach(end, os::lengthen, |_| {}).ok()?;
            let order = Ordering::AcqRel;
            match self.logs_used.compare_exchange(index, index + 1, order, Ordering::Relaxed) {
                // SAFETY: the exchange has reserved this index for the caller; the log is mapped by
                // the lines above, and `reuse` passes over it while its state is 0.
                Ok(_) => return Some(unsafe { UnownedLog::new(self.log(index)) }),
                Err(other) => index = other,
            }
        }
    }

    /// Puts a log aside that has no segment, for the next thread that finds no ended one.
    ///
    /// Among the others it would hide those of ended threads, whose segments can be continued.
    pub(crate) fn put_bare(&self, log: &'static ThreadLog) {
        let place = core::ptr::from_ref(log).addr() - self.log_address(0).addr();
        let index = (place / size_of::<ThreadLog>()) as u32;
        log.owner.store(NO_SEGMENT_OWNER, Ordering::Release);
        let put = |first: u64| {
            log.next_bare.store(first as u32, Ordering::Relaxed);
            Some(next_value(first, index + 1))
        };
        let _ = self.bare_logs.fetch_update(Ordering::AcqRel, Ordering::Acquire, put);
    }

    /// Takes a log that was [put aside](Self::put_bare), for a thread of this kernel number.
    pub(crate) fn take_bare(&self, thread: u32) -> Option<UnownedLog> {
        let log_of = |first: u64| {
            let index = (first as u32).checked_sub(1)?;
            // SAFETY: `put_bare` stores indices of logs that it was given, below `logs_used`.
            Some(unsafe { self.log(index) })
        };
        let take = |first: u64| {
            // Another thread may have taken the log meanwhile: then the exchange fails, because the
            // count has changed.
            Some(next_value(first, log_of(first)?.next_bare.load(Ordering::Relaxed)))
        };
        let taken = self.bare_logs.fetch_update(Ordering::AcqRel, Ordering::Acquire, take).ok()?;
        let log = log_of(taken)?;
        log.owner.store(thread, Ordering::Release);
        // SAFETY: the exchange has taken it from the list, so that no other thread finds it; no
        // thread has it in its word, because none got it with a segment.
        Some(unsafe { UnownedLog::new(log) })
    }

    /// # Safety
    ///
    /// The extent reaches behind the log of this index: it is below `logs_used`.
    unsafe fn log(&self, index: u32) -> &'static ThreadLog {
        // SAFETY: mapped by contract, aligned by the layout, and valid when zeroed; logs stay
        // mapped as long as the recorder.
        unsafe { &*self.log_address(index) }
    }

    fn log_address(&self, index: u32) -> *const ThreadLog {
        let first = (core::ptr::from_ref(self) as usize + LOGS_OFFSET) as *const ThreadLog;
        first.wrapping_add(index as usize)
    }

    /// Returns all logs that threads have had.
    pub(crate) fn logs(&self) -> impl Iterator<Item = &'static ThreadLog> {
        let used = self.logs_used.load(Ordering::Acquire);
        // SAFETY: below `logs_used`.
        (0..used).map(|index| unsafe { self.log(index) })
    }

    /// Returns the bytes of recorder and used logs.
    fn used_bytes(&self) -> usize {
        LOGS_OFFSET + self.logs_used.load(Ordering::Relaxed) as usize * size_of::<ThreadLog>()
    }

    /// Lowers the limits of window and logs; see [`limit_room`](crate::limit_room).
    pub(crate) fn shrink(&self, limit_bytes: u64) {
        self.spool.shrink(limit_bytes / WINDOW_SHARE);
        let used = self.logs_used.load(Ordering::Relaxed);
        let most = limit_bytes / LOGS_SHARE / size_of::<ThreadLog>() as u64;
        let wanted = u32::try_from(most).unwrap_or(u32::MAX).max(used.saturating_add(LEAST_LOGS as u32));
        self.logs_limit.fetch_min(wanted, Ordering::Relaxed);
    }

    /// Returns where a thread begins its search for a log of an ended one: elsewhere at each call.
    pub(crate) fn first_look(&self) -> u32 {
        self.next_look.fetch_add(LOGS_IN_A_LOOK, Ordering::Relaxed)
    }

    /// Returns a few of the logs. A process of many threads must not search all of them whenever a
    /// thread begins. Further steps of one search find the ones behind these.
    pub(crate) fn sample_logs(&self, first: u32, look: u32) -> impl Iterator<Item = &'static ThreadLog> {
        let used = self.logs_used.load(Ordering::Acquire);
        let first = first.wrapping_add(look.wrapping_mul(LOGS_IN_A_LOOK));
        // SAFETY: a remainder of `used` is below `logs_used`, which only grows.
        (0..used.min(LOGS_IN_A_LOOK)).map(move |index| unsafe { self.log(first.wrapping_add(index) % used) })
    }

    /// Appends what `write` emits, at most `slots` slots, as a whole or not at all.
    pub(crate) fn append(
        &self,
        writer: &mut Writer,
        segment_use: SegmentUse,
        lane: Lane,
        slots: usize,
        write: impl FnOnce(&mut RecordSink<'_>) -> Result<(), SinkTooSmall>,
    ) -> Result<(), NoSegment> {
        if !writer.has_room(slots) {
            self.next_segment(writer, segment_use, lane)?;
        }
        writer.write(slots, write);
        Ok(())
    }

    /// Gives the writer a fresh segment.
    pub(crate) fn next_segment(
        &self,
        writer: &mut Writer,
        segment_use: SegmentUse,
        lane: Lane,
    ) -> Result<(), NoSegment> {
        writer.next_segment(&self.spool, segment_use, lane)?;
        self.publish_own_memory();
        Ok(())
    }

    /// Notes that there was no segment for an event.
    #[cold]
    pub(crate) fn no_segment(&self, why: NoSegment) {
        if let NoSegment::Full(cause) = why
            && mode::change(self.generation(), word_of(Mode::Full, self.generation()))
        {
            self.note_early_end(cause);
            self.publish_state();
        }
    }

    /// Writes into the file why the recording ends before the program. The first reason stays.
    #[cold]
    pub(crate) fn note_early_end(&self, cause: EarlyEnd) {
        let order = Ordering::Release;
        // The moment comes first: a reader that finds the reason finds the moment as well.
        let moment = self.spool.word(control::EARLY_END_COUNTER);
        let _ = moment.compare_exchange(0, clock::counter(), order, Ordering::Relaxed);
        let word = self.spool.word(control::EARLY_END);
        let _ = word.compare_exchange(0, cause.to_word(), order, Ordering::Relaxed);
    }

    /// Counts an event that was not written as lost, unless recording has just ended or paused. In
    /// that case it is not an event of the recording.
    #[cold]
    pub(crate) fn miss_event(&self) {
        if RECORDING.load(Ordering::Acquire) == self.generation()
            || matches!(mode::mode(), Mode::Full | Mode::LockedIn)
        {
            self.count_lost_events(1);
        }
    }

    pub(crate) fn count_lost_events(&self, count: u64) {
        self.spool.word(control::LOST_EVENTS).fetch_add(count, Ordering::Relaxed);
    }

    /// Writes into the file what the recorder does. Several threads may do so at once, each with
    /// its own reading of the mode: one whose reading is outdated notices by a second one, and
    /// repeats.
    pub(crate) fn publish_state(&self) {
        loop {
            let now = RECORDING.load(Ordering::SeqCst);
            let state = match mode_of(now) {
                Mode::Recording => control::State::Recording,
                Mode::Paused => control::State::Paused,
                Mode::Full => control::State::Full,
                Mode::Ended | Mode::LockedIn => control::State::Ended,
                Mode::Off | Mode::Starting | Mode::Child => return,
            };
            if generation_of(now) != self.generation() {
                return;
            }
            self.spool.word(control::STATE).store(state.to_word(), Ordering::SeqCst);
            fence(Ordering::SeqCst);
            if RECORDING.load(Ordering::SeqCst) == now {
                return;
            }
        }
    }

    /// Unmaps the recorder, its logs and its window.
    ///
    /// # Safety
    ///
    /// The recording has ended and its file was left; no thread uses the recorder now or later.
    #[cfg(target_os = "linux")]
    pub(crate) unsafe fn release(&self) {
        let (from, end) = (core::ptr::from_ref(self) as usize, self.extent.end());
        // SAFETY: the range is what `make` and `fresh_log` have mapped; nobody uses it, by
        // contract.
        unsafe {
            self.spool.release();
            os::unmap(from, end - from);
        }
    }
}

/// Returns the recorder of this process or of its parent before the fork, without looking which.
#[inline(always)]
pub(crate) fn published() -> Option<&'static Recorder> {
    // SAFETY: null, or stored by `publish`. It is unmapped by `release_ended` only, after
    // `unpublish`, when no other thread is inside the recorder.
    unsafe { RECORDER.load(Ordering::Acquire).as_ref() }
}

/// Takes the recorder out, so that none is published.
#[cfg(target_os = "linux")]
pub(crate) fn unpublish() -> *mut Recorder {
    let at = RECORDER.swap(core::ptr::null_mut(), Ordering::SeqCst);
    spool::unpublish_window();
    at
}

/// Returns the recorder of this process, whether or not it records at this moment. Notices a fork.
pub(crate) fn current() -> Option<&'static Recorder> {
    let Some(recorder) = published() else {
        leave_start();
        return None;
    };
    if recorder.is_wiped() {
        leave_parents_recording(recorder);
        return None;
    }
    Some(recorder)
}

/// Returns the path of the file that is recorded to.
#[must_use]
pub fn recording_path() -> Option<&'static CStr> {
    current()?.spool.path()
}

/// Counts events that could not be written.
#[cold]
pub(crate) fn count_lost_events(count: u64) {
    if let Some(recorder) = current() {
        recorder.count_lost_events(count);
    }
}

/// True when this child has called the function that starts recordings of children.
static HAS_STARTED_CHILD: AtomicBool = AtomicBool::new(false);

/// Returns true for the first call in this process.
pub(crate) fn is_first_child_start() -> bool {
    !HAS_STARTED_CHILD.swap(true, Ordering::AcqRel)
}

/// Leaves the parent's recording in a forked child. Nothing is recorded, and stray writes to the
/// parent's file go to private memory. One thread does it; others wait for it, except for a signal
/// handler that has interrupted it.
#[cold]
fn leave_parents_recording(wiped: &Recorder) {
    let _errno = os::ErrnoGuard::new();
    let forbids_calls = mode::forbids_calls();
    // In the wiped memory, so that a child that is forked meanwhile begins anew.
    let thread = if forbids_calls { u32::MAX } else { os::thread_id() };
    let order = Ordering::AcqRel;
    if let Err(leaver) = wiped.leaver.compare_exchange(0, thread, order, Ordering::Acquire) {
        return if leaver != thread {
            wait_until_left(wiped)
        };
    }
    HAS_STARTED_CHILD.store(false, Ordering::Release);
    // With system calls forbidden, this process records nothing anyway.
    if !forbids_calls {
        // SAFETY: the wiped recorder proves that this process is a child, and the published window
        // is the parent's.
        unsafe { spool::abandon_window() };
    }
    // A start that was under way in the parent is none of this process.
    RECORDING.store(word_of(Mode::Child, 0), Ordering::SeqCst);
    // Last: from here on any thread may start another recording.
    let at = core::ptr::from_ref(wiped).cast_mut();
    let _ = RECORDER.compare_exchange(at, core::ptr::null_mut(), Ordering::SeqCst, Ordering::Relaxed);
}

/// Waits, at most a second, for the thread that leaves the parent's recording.
fn wait_until_left(wiped: &Recorder) {
    const TRIES: u32 = 10_000;
    const MICROS: u32 = 100;
    for _ in 0..TRIES {
        if !core::ptr::eq(RECORDER.load(Ordering::Acquire), wiped) {
            return;
        }
        os::sleep_micros(MICROS);
    }
}

/// A word that a forked child finds wiped, from before the first start on. Until that start has
/// made a recorder, only this word distinguishes a child from a process that is still starting.
static WITNESS: AtomicPtr<AtomicU32> = AtomicPtr::new(core::ptr::null_mut());

fn witness() -> Option<&'static AtomicU32> {
    // SAFETY: null, or a word in a page that `make_witness` has mapped and that is never unmapped.
    unsafe { WITNESS.load(Ordering::Acquire).as_ref() }
}

/// Makes the witness. Without memory for it there is no recording either.
pub(crate) fn make_witness() -> Result<(), os::Errno> {
    if let Some(word) = witness() {
        word.store(1, Ordering::Relaxed);
        return Ok(());
    }
    let at = os::zeroed(PAGE_BYTES)?;
    let is_wiped = os::wipe_on_fork(at, PAGE_BYTES);
    let word = at as *mut AtomicU32;
    // SAFETY: the page was mapped two lines above, and its address has not been shared.
    unsafe { (*word).store(1, Ordering::Relaxed) };
    let null = core::ptr::null_mut();
    if is_wiped.is_err() || WITNESS.compare_exchange(null, word, Ordering::AcqRel, Ordering::Relaxed).is_err()
    {
        // SAFETY: the page was not published: either the exchange failed or it was not tried.
        unsafe { os::unmap(at, PAGE_BYTES) };
    }
    is_wiped
}

/// Leaves a start that was under way when this child was forked: the starting thread is not here.
#[cold]
fn leave_start() {
    let word = RECORDING.load(Ordering::Acquire);
    if mode_of(word) == Mode::Starting && witness().is_some_and(|word| word.load(Ordering::Relaxed) == 0) {
        mode::change(word, word_of(Mode::Child, 0));
    }
}

/// Returns true when a forked child cannot find out by itself that it is one. Some emulators accept
/// the request to wipe memory and ignore it. Call [`wipe_in_child`](crate::wipe_in_child) then in
/// each child that `fork` makes.
#[must_use]
pub fn needs_fork_hook() -> bool {
    IS_NOT_WIPED.load(Ordering::Relaxed)
}

/// Wipes recorder and used logs, as the kernel does in a forked child.
///
/// # Safety
///
/// The process is a child that `fork` has just made, and has one thread.
pub(crate) unsafe fn wipe() {
    if let Some(bytes) = published().map(Recorder::used_bytes) {
        let at = RECORDER.load(Ordering::Acquire);
        // SAFETY: `bytes` bytes of the mapping are in use; the caller promises that no other thread
        // runs, and this one holds no reference into it. Memory behind them was never touched.
        unsafe { at.cast::<u8>().write_bytes(0, bytes) };
    }
}
