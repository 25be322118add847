//! What all threads share, and whether anything is recorded.
//!
//! ```text
//!   Off --start--> Recording <--pause, resume--> Paused
//!                   |  |   '--storage ran out--> Full
//!                   |  '--stop--> Ended --start--> Recording (another file)
//!                   |  '--the program locks itself in--> LockedIn
//!                   '--fork--> Child, in the child --start--> Recording (another file)
//! ```
//!
//! All that leads to the file lies in one mapping that a forked child finds wiped ([`os::wipe_on_fork`]); the few statics
//! here say where it is. Nothing is ever unmapped: another thread may be in the midst of an event.

use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

use cairn_format::recording::control::EarlyEnd;
use cairn_format::recording::{Clock, EndReason, control};

use crate::clock;
use crate::extent::Extent;
use crate::heap;
use crate::modules::ModuleTable;
use crate::os;
use crate::spool::{NoBlock, Spool};
use crate::tables::{PublishedPcs, TableLogs};
use crate::thread_log::{self, ThreadLog};

/// What is recorded: a [`Mode`] in the highest bits, and for most of them the number of the recording in the lowest 32, another one
/// for each. While events are recorded it is that number alone. The one word that every hook looks at, and the one truth: all else
/// that says whether something is recorded is told after it.
///
/// ```text
///   Recording:           | 0    | 0               | recording: 32 |
///   Paused, Full, Ended: | mode | pauses: 24 bits | recording: 32 |
///   Starting:            | mode | process: 28 | thread: 28        |
/// ```
///
/// Who starts stands in it, because nobody can wait for a thread that has not said yet which one it is. With the pauses counted, who
/// ends one knows that nothing was recorded since it has looked.
pub(crate) static RECORDING: AtomicU64 = AtomicU64::new(word_of(Mode::Off, 0));
/// From 1 on: a recording that begins paused has none.
static PAUSES: AtomicU32 = AtomicU32::new(1);
static RECORDER: AtomicPtr<Recorder> = AtomicPtr::new(core::ptr::null_mut());
static RECORDINGS: AtomicU32 = AtomicU32::new(0);
/// The window of the present file, for a child to give up.
static WINDOW_BASE: AtomicUsize = AtomicUsize::new(0);
static WINDOW_END: AtomicUsize = AtomicUsize::new(0);
/// A forked child would find everything as it was: see [`must_be_told_of_forks`].
static IS_NOT_WIPED: AtomicBool = AtomicBool::new(false);
/// The program has forbidden itself system calls, or its parent has.
static FORBIDS_CALLS: AtomicBool = AtomicBool::new(false);

/// See the module documentation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
pub(crate) enum Mode {
    Recording,
    Off,
    Starting,
    Paused,
    Full,
    Ended,
    Child,
    /// As `Ended`; later events are counted, without a system call.
    LockedIn,
}

impl Mode {
    const ALL: [Self; 8] = [
        Self::Recording,
        Self::Off,
        Self::Starting,
        Self::Paused,
        Self::Full,
        Self::Ended,
        Self::Child,
        Self::LockedIn,
    ];
}

/// Where the mode is in [`RECORDING`], and how many bits below it each half of who is starting has: the kernel's numbers have fewer.
const MODE_SHIFT: u32 = 56;
const STARTER_BITS: u32 = 28;
const _: () = assert!(Mode::Recording as u64 == 0 && 2 * STARTER_BITS == MODE_SHIFT);

const fn word_of(mode: Mode, rest: u64) -> u64 {
    (mode as u64) << MODE_SHIFT | rest & ((1 << MODE_SHIFT) - 1)
}

fn mode_of(word: u64) -> Mode {
    let number = word >> MODE_SHIFT;
    Mode::ALL.into_iter().find(|&mode| mode as u64 == number).unwrap_or(Mode::Off)
}

/// The mode at this moment. Every call is another look: threads change it.
pub(crate) fn mode() -> Mode {
    mode_of(RECORDING.load(Ordering::Acquire))
}

fn change(from: u64, to: u64) -> bool {
    RECORDING.compare_exchange(from, to, Ordering::SeqCst, Ordering::Relaxed).is_ok()
}

/// Which thread of which process starts a recording.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Starter(u64);

impl Starter {
    /// The calling thread.
    pub(crate) fn here() -> Self {
        Self(u64::from(os::process_id()) << STARTER_BITS | u64::from(os::thread_id()))
    }

    /// Who is starting a recording at this moment.
    pub(crate) fn present() -> Option<Self> {
        let word = RECORDING.load(Ordering::Acquire);
        (mode_of(word) == Mode::Starting).then_some(Self(word & ((1 << MODE_SHIFT) - 1)))
    }

    pub(crate) fn is_of_process_of(self, other: Self) -> bool {
        self.0 >> STARTER_BITS == other.0 >> STARTER_BITS
    }

    /// Begins a start, where one can be begun; what was before it.
    pub(crate) fn begin(self) -> Option<Before> {
        let may_start =
            |word: u64| matches!(mode_of(word), Mode::Off | Mode::Ended | Mode::Child).then_some(self.word());
        RECORDING.fetch_update(Ordering::SeqCst, Ordering::Acquire, may_start).ok().map(Before)
    }

    /// Ends one of which nothing came.
    pub(crate) fn give_up(self, before: Before) {
        change(self.word(), before.0);
    }

    /// Lets events come.
    pub(crate) fn finish(self, recorder: &Recorder, is_paused: bool) {
        let paused = word_of(Mode::Paused, recorder.generation());
        change(self.word(), if is_paused { paused } else { recorder.generation() });
        tell_state(recorder);
        // What was asked for before there was anything to pause or to go on.
        obey(recorder.spool.base());
    }

    const fn word(self) -> u64 {
        word_of(Mode::Starting, self.0)
    }
}

/// What [`RECORDING`] said before a start.
#[derive(Clone, Copy)]
pub(crate) struct Before(u64);

/// See the module documentation. All-zero bytes are a recorder that has not begun, or that of another process.
#[repr(C)]
pub(crate) struct Recorder {
    /// The number in [`RECORDING`].
    generation: AtomicU32,
    /// The process that records.
    pub(crate) process: u32,
    threads: AtomicU32,
    logs_used: AtomicU32,
    logs_limit: AtomicU32,
    next_look: AtomicU32,
    /// The memory of the recorder and its logs.
    extent: Extent,
    /// In a forked child: the thread that gives up the parent's recording.
    leaver: AtomicU32,
    /// 1 while a thread publishes the recorder's memory.
    tells_memory: AtomicU32,
    /// [`cairn_capture::own_memory_changes`] when it was published last.
    told_memory: AtomicUsize,
    /// The recorder of the recording before this one, whose memory is still mapped.
    previous: AtomicPtr<Self>,
    pub(crate) spool: Spool,
    pub(crate) modules: ModuleTable,
    pub(crate) tables: TableLogs,
    pub(crate) published: PublishedPcs,
}

/// How many threads may record at once, by what the address space allows.
const LOG_LIMITS: [usize; 4] = [1 << 15, 1 << 12, 1 << 9, LEAST_LOGS];
const LEAST_LOGS: usize = 1 << 6;
/// This part of the address space may go to logs.
const LOGS_SHARE: u64 = 32;
/// This part of an address space that the program limits later may go to the window.
const WINDOW_SHARE: u64 = 16;
/// The memory of logs is taken in whole pages.
const PAGE_BYTES: usize = os::PAGE_BYTES;
/// Where recorders and their logs lie.
static ZONE: os::Zone = os::Zone { from: 1 << 37, bytes: 1 << 36, count: AtomicU32::new(0) };
/// The logs lie behind the recorder, at the next page.
const LOGS_OFFSET: usize = size_of::<Recorder>().next_multiple_of(4096);

impl Recorder {
    /// Memory for a recorder, zeroed. That of its logs is taken in [`fresh_log`](Self::fresh_log): programs limit their address space by
    /// what they have mapped, and lock all of it.
    pub(crate) fn make() -> Result<&'static mut Self, os::Errno> {
        let most_bytes = os::soft_limit(libc::RLIMIT_AS as i32) / LOGS_SHARE;
        let fits = |limit: &usize| Self::bytes(*limit) as u64 <= most_bytes;
        let limit = LOG_LIMITS.into_iter().find(fits).unwrap_or(LEAST_LOGS);
        let bytes = Self::bytes(0);
        let at = os::zeroed_apart(bytes, &ZONE)?;
        if let Err(error) = os::wipe_on_fork(at, bytes) {
            // SAFETY: the mapping of a moment ago, which nobody knows.
            unsafe { os::unmap(at, bytes) };
            return Err(error);
        }
        // SAFETY: zeroed, page aligned, large enough, and known to nobody else; zeros are a recorder.
        let recorder = unsafe { &mut *(at as *mut Self) };
        *recorder.logs_limit.get_mut() = limit as u32;
        recorder.extent.begin(at + bytes);
        recorder.process = os::process_id();
        Ok(recorder)
    }

    /// A recorder with so many logs, in whole pages.
    const fn bytes(logs: usize) -> usize {
        (LOGS_OFFSET + logs * size_of::<ThreadLog>()).next_multiple_of(PAGE_BYTES)
    }

    /// Gives the memory back where nothing came of it.
    pub(crate) fn discard(&'static mut self) {
        let bytes = self.extent.end() - &raw mut *self as usize;
        // SAFETY: it was never published.
        unsafe { os::unmap(&raw mut *self as usize, bytes) };
    }

    /// Makes it the present one. Hooks record from [`Starter::finish`] on.
    pub(crate) fn publish(&'static mut self) -> &'static Self {
        let generation = RECORDINGS.fetch_add(1, Ordering::Relaxed).wrapping_add(1).max(1);
        self.generation.store(generation, Ordering::Relaxed);
        let (base, end) = self.spool.window();
        // Another thread may fork between any two of these: an end that belongs to another place is never seen with it.
        WINDOW_END.store(0, Ordering::SeqCst);
        WINDOW_BASE.store(base, Ordering::SeqCst);
        WINDOW_END.store(end, Ordering::SeqCst);
        // What is kept in memory alone may be wiped with all else.
        let is_shared = self.spool.path().is_some();
        IS_NOT_WIPED.store(is_shared && os::ignores_advice(base), Ordering::Relaxed);
        let at: *mut Self = self;
        self.previous.store(RECORDER.load(Ordering::Acquire), Ordering::Relaxed);
        RECORDER.store(at, Ordering::Release);
        // SAFETY: never unmapped from here on.
        unsafe { &*at }
    }

    /// Tells the parent what memory is the recorder's, where that has changed: it can then tell how
    /// much of what is resident is not the program's.
    pub(crate) fn tell_own_memory(&self) {
        let end = self.extent.end();
        // The end grows, and so does the count: their sum is another one after a change of either.
        let changes = cairn_capture::own_memory_changes().wrapping_add(end);
        if self.told_memory.load(Ordering::Relaxed) == changes
            || self.tells_memory.swap(1, Ordering::Acquire) != 0
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
        self.told_memory.store(changes, Ordering::Relaxed);
        self.tells_memory.store(0, Ordering::Release);
    }

    /// What is in [`RECORDING`] while events go to this recorder.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed).into()
    }

    /// A number for one more sequence of blocks.
    pub(crate) fn next_thread(&self) -> u32 {
        self.threads.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Whether this log is the one of the thread that recorded something first.
    pub(crate) fn is_first_log(&self, log: *mut ThreadLog) -> bool {
        log == self.log(0)
    }

    /// A log that no thread has had.
    pub(crate) fn fresh_log(&self) -> Option<*mut ThreadLog> {
        let mut index = self.logs_used.load(Ordering::Relaxed);
        loop {
            if index >= self.logs_limit.load(Ordering::Relaxed) {
                return None;
            }
            // Before others can meet it among those in use.
            let end = core::ptr::from_ref(self) as usize + Self::bytes(index as usize + 1);
            self.extent.reach(end, |_| {}).ok()?;
            let order = Ordering::AcqRel;
            match self.logs_used.compare_exchange(index, index + 1, order, Ordering::Relaxed) {
                Ok(_) => return Some(self.log(index)),
                Err(other) => index = other,
            }
        }
    }

    fn log(&self, index: u32) -> *mut ThreadLog {
        let first = (core::ptr::from_ref(self) as usize + LOGS_OFFSET) as *mut ThreadLog;
        first.wrapping_add(index as usize)
    }

    /// See [`take_less_room`].
    fn shrink(&self, limit_bytes: u64) {
        self.spool.shrink(limit_bytes / WINDOW_SHARE);
        let used = self.logs_used.load(Ordering::Relaxed);
        let most = limit_bytes / LOGS_SHARE / size_of::<ThreadLog>() as u64;
        let wanted = u32::try_from(most).unwrap_or(u32::MAX).max(used.saturating_add(LEAST_LOGS as u32));
        self.logs_limit.fetch_min(wanted, Ordering::Relaxed);
    }

    /// A few of the logs, other ones each time: a process of many threads must not look at all of them whenever one begins.
    pub(crate) fn some_logs(&self) -> impl Iterator<Item = *mut ThreadLog> {
        const LOOK_AT: u32 = 8;
        let used = self.logs_used.load(Ordering::Acquire);
        let count = used.min(LOOK_AT);
        let first = self.next_look.fetch_add(count, Ordering::Relaxed);
        (0..count).map(move |index| self.log(first.wrapping_add(index) % used))
    }

    /// Notes that there was no block for an event.
    #[cold]
    pub(crate) fn no_block(&self, why: NoBlock) {
        if let NoBlock::Full(cause) = why
            && change(self.generation(), word_of(Mode::Full, self.generation()))
        {
            self.note_early_end(cause);
            tell_state(self);
        }
    }

    /// Says in the file why the recording ends before the program. The first reason counts.
    #[cold]
    fn note_early_end(&self, cause: EarlyEnd) {
        let order = Ordering::Release;
        // The moment comes first: a reader that finds the reason finds the moment as well.
        let moment = self.spool.word(control::EARLY_END_COUNTER);
        let _ = moment.compare_exchange(0, clock::counter(), order, Ordering::Relaxed);
        let word = self.spool.word(control::EARLY_END);
        let _ = word.compare_exchange(0, cause.to_word(), order, Ordering::Relaxed);
    }

    /// Counts an event that was not written as lost; not when recording has just ended or paused, because it is none of its events
    /// then.
    #[cold]
    pub(crate) fn miss_event(&self) {
        if RECORDING.load(Ordering::Acquire) == self.generation()
            || matches!(mode(), Mode::Full | Mode::LockedIn)
        {
            self.count_lost_events(1);
        }
    }

    pub(crate) fn count_lost_events(&self, count: u64) {
        self.spool.word(control::LOST_EVENTS).fetch_add(count, Ordering::Relaxed);
    }
}

/// The recorder of this process, whether or not it records at this moment.
pub(crate) fn current() -> Option<&'static Recorder> {
    // SAFETY: null, or published and never unmapped.
    let Some(recorder) = (unsafe { RECORDER.load(Ordering::Acquire).as_ref() }) else {
        leave_start();
        return None;
    };
    if recorder.generation.load(Ordering::Relaxed) == 0 {
        found_forked(recorder);
        return None;
    }
    Some(recorder)
}

/// The recorder, if events are recorded now. Notices a fork, and what the parent process asks for.
#[cold]
pub(crate) fn recording() -> Option<&'static Recorder> {
    let Some(recorder) = current() else { return child() };
    match mode() {
        Mode::Recording => Some(recorder),
        Mode::Paused => {
            obey(recorder.spool.base());
            is_on().then_some(recorder)
        }
        Mode::Full | Mode::LockedIn => {
            recorder.count_lost_events(1);
            None
        }
        _ => None,
    }
}

/// Starts the recording of a forked child; null when children are not recorded.
static CHILD_STARTER: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());
/// This child has called it.
static HAS_STARTED_CHILD: AtomicBool = AtomicBool::new(false);

/// Has `starter` called in each forked child, at its first event. It may call [`start_in_child`](crate::start_in_child); it runs
/// inside whatever the event is, on its stack: within malloc, or in a signal handler.
pub fn set_child_starter(starter: extern "C" fn()) {
    CHILD_STARTER.store(starter as *mut (), Ordering::Release);
}

/// The recorder of a forked child, started now if nobody has tried yet.
#[cold]
fn child() -> Option<&'static Recorder> {
    let starter = CHILD_STARTER.load(Ordering::Acquire);
    if mode() != Mode::Child
        || starter.is_null()
        || FORBIDS_CALLS.load(Ordering::Relaxed)
        || HAS_STARTED_CHILD.swap(true, Ordering::AcqRel)
    {
        return None;
    }
    let _errno = os::KeptErrno::new();
    // SAFETY: only functions of this type are stored.
    let starter = unsafe { core::mem::transmute::<*mut (), extern "C" fn()>(starter) };
    starter();
    let recorder = current()?;
    is_on().then_some(recorder)
}

/// The file that is recorded to.
#[must_use]
pub fn recording_path() -> Option<&'static CStr> {
    current()?.spool.path()
}

/// This process is a child of the one that recorded: it records nothing, and what it might still write to the parent's file
/// goes nowhere. One thread sees to that, others that come meanwhile wait for it, but for a handler that has interrupted it.
#[cold]
fn found_forked(wiped: &Recorder) {
    let _errno = os::KeptErrno::new();
    let forbids_calls = FORBIDS_CALLS.load(Ordering::Relaxed);
    // In the wiped memory, so that a child that is forked in the midst of this begins anew.
    let thread = if forbids_calls { u32::MAX } else { os::thread_id() };
    let order = Ordering::AcqRel;
    if let Err(leaver) = wiped.leaver.compare_exchange(0, thread, order, Ordering::Acquire) {
        return if leaver != thread {
            wait_until_left(wiped)
        };
    }
    HAS_STARTED_CHILD.store(false, Ordering::Release);
    // Otherwise nothing is recorded any more, in this process either.
    if !forbids_calls {
        let (base, end) = (WINDOW_BASE.load(Ordering::Relaxed), WINDOW_END.load(Ordering::Relaxed));
        // SAFETY: the wiped recorder says that this is a child, and the window is the parent's.
        unsafe { Spool::abandon(base, end) };
    }
    // A start that the parent was in the midst of is none of this process's.
    RECORDING.store(word_of(Mode::Child, 0), Ordering::SeqCst);
    // Last: from here on any thread may start another recording.
    let at = core::ptr::from_ref(wiped).cast_mut();
    let _ = RECORDER.compare_exchange(at, core::ptr::null_mut(), Ordering::SeqCst, Ordering::Relaxed);
}

/// A word that a forked child finds wiped, from before the first start on: until that has made a recorder, nothing else tells a child
/// from a process whose other thread is starting.
static WITNESS: AtomicPtr<AtomicU32> = AtomicPtr::new(core::ptr::null_mut());

/// Makes the witness. Without memory for it there is no recording either.
pub(crate) fn make_witness() -> Result<(), os::Errno> {
    // SAFETY: null, or a word that is never unmapped.
    if let Some(word) = unsafe { WITNESS.load(Ordering::Acquire).as_ref() } {
        word.store(1, Ordering::Relaxed);
        return Ok(());
    }
    let at = os::zeroed(PAGE_BYTES)?;
    let is_wiped = os::wipe_on_fork(at, PAGE_BYTES);
    let word = at as *mut AtomicU32;
    // SAFETY: fresh memory, which nobody else knows.
    unsafe { (*word).store(1, Ordering::Relaxed) };
    let null = core::ptr::null_mut();
    if is_wiped.is_err() || WITNESS.compare_exchange(null, word, Ordering::AcqRel, Ordering::Relaxed).is_err()
    {
        // SAFETY: as above.
        unsafe { os::unmap(at, PAGE_BYTES) };
    }
    is_wiped
}

/// In a child that was forked in the midst of the first start: the thread that starts is not here.
#[cold]
fn leave_start() {
    let word = RECORDING.load(Ordering::Acquire);
    if mode_of(word) != Mode::Starting {
        return;
    }
    // SAFETY: null, or a word that is never unmapped.
    let is_child = unsafe { WITNESS.load(Ordering::Acquire).as_ref() }
        .is_some_and(|word| word.load(Ordering::Relaxed) == 0);
    if is_child {
        change(word, word_of(Mode::Child, 0));
    }
}

/// Waits, at most a second, for the thread that gives the parent's recording up.
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

/// The window of the present file is mapped up to there.
pub(crate) fn note_open(base: usize, end: usize) {
    if WINDOW_BASE.load(Ordering::Relaxed) == base {
        WINDOW_END.fetch_max(end, Ordering::Relaxed);
    }
}

/// Takes no more than a part of the address space from now on, because the program is about to limit its own to `limit_bytes`, or to
/// have all of it locked in memory. What is recorded from then on may come to an end for want of room.
pub fn take_less_room(limit_bytes: u64) {
    if FORBIDS_CALLS.load(Ordering::Relaxed) {
        return;
    }
    let _errno = os::KeptErrno::new();
    match current() {
        Some(recorder) => recorder.shrink(limit_bytes),
        None if mode() == Mode::Child => {}
        None => return,
    }
    cairn_capture::take_less_room(limit_bytes);
}

/// True where a forked child cannot find out by itself that it is one, because the system does not do what it was asked for and
/// did not refuse: some emulators. Then [`wipe_in_child`] must be called in each child that `fork` makes.
#[must_use]
pub fn must_be_told_of_forks() -> bool {
    IS_NOT_WIPED.load(Ordering::Relaxed)
}

/// Does what the kernel should have done: a child's first event then finds itself in a child.
///
/// # Safety
///
/// The process is a child that `fork` has just made of the one that records, and has one thread.
pub unsafe fn wipe_in_child() {
    let at = RECORDER.load(Ordering::Acquire);
    // SAFETY: null, or published and never unmapped.
    let Some(used) = (unsafe { at.as_ref() }).map(|recorder| recorder.logs_used.load(Ordering::Relaxed))
    else {
        return;
    };
    let bytes = LOGS_OFFSET + used as usize * size_of::<ThreadLog>();
    // SAFETY: of that mapping, of which nothing is in use: by contract. What lies behind was never touched.
    unsafe { at.cast::<u8>().write_bytes(0, bytes) };
    // SAFETY: by contract.
    unsafe { crate::sampling::wipe_in_child() };
}

/// Gives up the parent's recording in a forked child. It happens by itself at the child's first event; called early, it
/// releases the parent's file at once. In any other process it does nothing.
///
/// A `vfork` child may call it too: it shares its parent's memory and goes on as the parent's thread.
pub fn forked_child() {
    let _ = current();
}

/// True while events are recorded.
#[inline]
#[must_use]
pub fn is_recording() -> bool {
    is_on() && current().is_some()
}

/// True while this process or its parent before the fork records: what a hook asks first.
#[inline(always)]
pub(crate) fn is_on() -> bool {
    RECORDING.load(Ordering::Relaxed) >> MODE_SHIFT == Mode::Recording as u64
}

/// True from the start of a recording to its end, paused or full or not.
#[must_use]
pub fn is_under_way() -> bool {
    current().is_some() && matches!(mode(), Mode::Recording | Mode::Paused | Mode::Full | Mode::Starting)
}

/// True while recording is paused and nobody has asked for it to go on. A hook that asks this first has nothing else to do then,
/// and takes a few instructions. False in a forked child, which has to leave its parent's recording.
#[inline(always)]
#[must_use]
pub fn is_at_rest() -> bool {
    let word = RECORDING.load(Ordering::Relaxed);
    if word >> MODE_SHIFT != Mode::Paused as u64 {
        return false;
    }
    // SAFETY: null, or published and never unmapped.
    let Some(recorder) = (unsafe { RECORDER.load(Ordering::Acquire).as_ref() }) else { return false };
    // Wiped in a child, which is not to touch the file.
    recorder.generation.load(Ordering::Relaxed) == word as u32
        && recorder.spool.word(control::COMMAND).load(Ordering::Relaxed) == control::Command::Pause.to_word()
}

/// Records no events until [`resume`], or until the parent process says so. Modules and stacks are still followed.
pub fn pause() {
    command(control::Command::Pause);
}

/// Records events again after [`pause`].
pub fn resume() {
    command(control::Command::Record);
}

/// The last word counts, whether the program said it or its parent.
fn command(command: control::Command) {
    let Some(recorder) = current() else { return };
    recorder.spool.word(control::COMMAND).store(command.to_word(), Ordering::Release);
    obey(recorder.spool.base());
}

/// Does what the word at `base` asks for, which program and parent write. That of an earlier recording, to which a thread still writes an
/// event, asks for nothing.
pub(crate) fn obey(base: usize) {
    let Some(recorder) = current().filter(|recorder| recorder.spool.base() == base) else { return };
    let asked = || recorder.spool.word(control::COMMAND).load(Ordering::SeqCst);
    let own = recorder.generation();
    loop {
        let (word, now) = (asked(), RECORDING.load(Ordering::SeqCst));
        let is_paused = mode_of(now) == Mode::Paused && u64::from(now as u32) == own;
        let wants_pause = matches!(control::Command::from_word(word), control::Command::Pause);
        let is_done = match (wants_pause, is_paused) {
            (true, false) if now == own => {
                let number = u64::from(PAUSES.fetch_add(1, Ordering::Relaxed));
                change(now, word_of(Mode::Paused, number << 32 | own))
            }
            (false, true) => {
                heap::forget_blocks();
                change(now, own)
            }
            _ => true,
        };
        tell_state(recorder);
        if is_done && asked() == word {
            return;
        }
    }
}

/// Tells the parent process what the recorder does. Several threads may be at it, each with its own look: who has told what holds no
/// longer finds out by a second look, and tells it again.
fn tell_state(recorder: &Recorder) {
    loop {
        let now = RECORDING.load(Ordering::SeqCst);
        let state = match mode_of(now) {
            Mode::Recording => control::State::Recording,
            Mode::Paused => control::State::Paused,
            Mode::Full => control::State::Full,
            Mode::Ended | Mode::LockedIn => control::State::Ended,
            Mode::Off | Mode::Starting | Mode::Child => return,
        };
        if u64::from(now as u32) != recorder.generation() {
            return;
        }
        recorder.spool.word(control::STATE).store(state.to_word(), Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if RECORDING.load(Ordering::SeqCst) == now {
            return;
        }
    }
}

/// Ends the recording. Events that other threads are just writing may still come.
pub fn stop(reason: EndReason) {
    if let Some(recorder) = current() {
        end_in(recorder, reason, Mode::Ended);
    }
}

/// Ends the recording right before the program forbids itself system calls (seccomp), and makes none from then on. The recording says
/// why it ended, and goes on to count the events that are not in it.
///
/// A child that is forked afterwards is not recorded, as after [`forbid_system_calls`].
pub fn end_before_sandbox() {
    FORBIDS_CALLS.store(true, Ordering::Relaxed);
    let Some(recorder) = current() else { return };
    recorder.spool.be_frugal();
    // One that is full already has said why.
    if matches!(mode(), Mode::Recording | Mode::Paused) {
        recorder.note_early_end(EarlyEnd::Sandbox);
    }
    end_in(recorder, EndReason::Stopped, Mode::LockedIn);
}

/// Ends the recording of `recorder` in that mode.
fn end_in(recorder: &Recorder, reason: EndReason, ended: Mode) {
    let _errno = os::KeptErrno::new();
    if mode() == Mode::Recording {
        let clocks = clock::reading();
        thread_log::append(4, |sink| sink.clock(&clocks));
        let Clock { counter, .. } = clocks;
        thread_log::append(2, |sink| sink.end(reason, counter));
    }
    // In one go: other threads may pause and resume meanwhile.
    let own = recorder.generation();
    let end = |word: u64| {
        let is_own = u64::from(word as u32) == own;
        let is_under_way = matches!(mode_of(word), Mode::Recording | Mode::Paused | Mode::Full);
        (is_own && is_under_way).then_some(word_of(ended, own))
    };
    if RECORDING.fetch_update(Ordering::SeqCst, Ordering::Relaxed, end).is_ok() {
        tell_state(recorder);
    }
}

/// Gives back what a recording that has [ended](stop) holds of the process's memory, and the file: its storage is free as soon as nobody
/// else has it. Some KiB for each thread stay, because a thread may be in the midst of an event. For a process that goes on for long.
pub fn leave_file() {
    let Some(recorder) = current() else { return };
    if mode() == Mode::Ended && !FORBIDS_CALLS.load(Ordering::Relaxed) {
        let _errno = os::KeptErrno::new();
        recorder.shrink(0);
        recorder.spool.leave_file();
        for index in 0..recorder.logs_used.load(Ordering::Acquire) {
            // SAFETY: a log of this recorder; none is ever unmapped.
            unsafe { ThreadLog::forget_filter(recorder.log(index)) };
        }
    }
}

/// Whether recordings have ended of which memory is still mapped.
#[must_use]
pub fn has_ended_memory() -> bool {
    mode() == Mode::Ended && current().is_some()
}

/// Unmaps what ended recordings have left: their windows, their tables, the logs of threads, and the table of stacks.
///
/// Afterwards the recorder is as if no recording had begun, but for the numbers of recordings, which go on.
///
/// # Safety
///
/// No other thread runs before it returns, none was stopped inside the recorder or a capture, and the [word](crate::thread_word_offset) of
/// every thread is null. The calling thread is in no event either.
pub unsafe fn release_ended() {
    if !has_ended_memory() || FORBIDS_CALLS.load(Ordering::Relaxed) {
        return;
    }
    let _errno = os::KeptErrno::new();
    RECORDING.store(word_of(Mode::Off, 0), Ordering::SeqCst);
    let mut at = RECORDER.swap(core::ptr::null_mut(), Ordering::SeqCst);
    for word in [&WINDOW_END, &WINDOW_BASE] {
        word.store(0, Ordering::SeqCst);
    }
    // SAFETY: null, or published; unmapped in this loop alone, after it was read.
    while let Some(recorder) = unsafe { at.as_ref() } {
        let (from, previous) = (at as usize, recorder.previous.load(Ordering::Relaxed));
        let end = recorder.extent.end();
        // SAFETY: a recording that has ended and was left; no thread uses it, by contract.
        unsafe {
            recorder.spool.release();
            os::unmap(from, end - from);
        }
        at = previous;
    }
    // SAFETY: no thread is inside a capture, by contract, and what held numbers of stacks is unmapped.
    unsafe { cairn_capture::forget_stacks() };
}

/// Notes that the process ends through `exit`, and when. It goes on recording what later exit handlers do. No system call
/// after the program has forbidden them to itself.
///
/// The C library calls it among the destructors of the program or library that holds this crate, so that nothing has to be
/// done for it: also when `main` returns. A second call changes nothing.
pub fn exiting() {
    // SAFETY: null, or published and never unmapped.
    let Some(recorder) = (unsafe { RECORDER.load(Ordering::Acquire).as_ref() }) else { return };
    // Wiped in a forked child, which has no part in the file.
    if recorder.generation.load(Ordering::Relaxed) == 0 {
        return;
    }
    let forbids_calls = FORBIDS_CALLS.load(Ordering::Relaxed);
    // Where a child's memory is not wiped, or is its parent's, its end is not that of the program.
    if !forbids_calls && os::process_id() != recorder.process {
        return;
    }
    let word = |at: usize| recorder.spool.word(at);
    // Where the kernel keeps no clock in the process's memory, a reading is a system call.
    if !forbids_calls && word(control::EXIT_COUNTER).load(Ordering::Relaxed) == 0 {
        let clocks = clock::reading();
        word(control::EXIT_MONOTONIC_NANOS).store(clocks.monotonic_nanos, Ordering::Relaxed);
        word(control::EXIT_WALL_NANOS).store(clocks.wall_nanos, Ordering::Relaxed);
        word(control::EXIT_COUNTER).store(clocks.counter, Ordering::Release);
    }
    word(control::EXITING).store(1, Ordering::Release);
}

extern "C" fn note_exit() {
    exiting();
}

/// Destructors run when the process ends through `exit`, or returns from `main`, and not when it is killed or calls `_exit`.
/// They are entries of the file, so that no list of exit handlers has to grow in a signal handler that marks something first.
#[used]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = note_exit;

/// Makes no more system calls: to be called before the program forbids them to itself (seccomp). What is recorded from then
/// on has to find room in what the file has already. The strict mode of seccomp forbids reading the processor's counter as well: there,
/// [`stop`] the recording.
///
/// A child that is forked afterwards is not recorded, nor one that has recorded nothing yet when it calls this: a recording begins with
/// system calls.
pub fn forbid_system_calls() {
    FORBIDS_CALLS.store(true, Ordering::Relaxed);
    if let Some(recorder) = current() {
        recorder.spool.be_frugal();
    }
}

/// True after [`forbid_system_calls`], in this process or in the one that it was forked from.
#[must_use]
pub fn forbids_system_calls() -> bool {
    FORBIDS_CALLS.load(Ordering::Relaxed)
}

/// Notes how many places in modules lead past the hooks of whoever records: what is called through them is not in the recording.
pub fn note_passing_slots(count: u64) {
    if let Some(recorder) = current() {
        recorder.spool.word(control::PASSING_SLOTS).fetch_max(count, Ordering::Relaxed);
    }
}

/// Counts events that could not be written.
#[cold]
pub(crate) fn count_lost_events(count: u64) {
    if let Some(recorder) = current() {
        recorder.count_lost_events(count);
    }
}
