//! Starts a recording: options, file, and the facts of the process.

use core::cell::UnsafeCell;
use core::ffi::CStr;
use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use cairn_format::recording::control;

use crate::facts::Facts;
use crate::lanes::most_events_between_stamps;
use crate::mode::{self, Mode, ModeBefore, Starter};
use crate::module_list;
use crate::os::{self, Errno, ErrnoGuard};
use crate::path_text::PathText;
use crate::recorder::{self, Recorder};
use crate::spool::{PATH_BYTES, SpoolError, SpoolOptions};
use crate::{epochs, fact_list, modules, requests, sampling, stacks, thread_word};

/// Part of the events that a recording keeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Keep {
    /// Everything, in a file that grows.
    All,
    /// The last events only, as in a flight recorder. Overwritten events are counted; stacks and
    /// modules are never overwritten.
    Last {
        /// Bytes of events, from 1 MiB to 1 GiB.
        bytes: u64,
        /// Maximum age of events in nanoseconds. A segment of 64 KiB whose events are all older is
        /// reused before the file grows. `u64::MAX` for any age. The last segment of a thread that
        /// records nothing more is not reused.
        nanos: u64,
    },
}

/// Options of a recording.
///
/// ```
/// use cairn_recorder::{Keep, Options};
///
/// let mut options = Options::new(b"/tmp/flight.cairn");
/// // The last ten seconds, but no more than 8 MiB.
/// options.keep = Keep::Last { bytes: 8 << 20, nanos: 10_000_000_000 };
/// options.environment = b"LANG,PATH";
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Options<'a> {
    /// Path of the file. `%p` is replaced with the process id and `%e` with the program's name. If
    /// the file exists, `.1`, `.2` and so on are appended: a recording is never overwritten. Empty
    /// to record into memory, which [`Keep::Last`] allows; [`dump`](crate::dump) then writes a
    /// file.
    pub path: &'a [u8],
    /// Part of the events that the recording keeps.
    pub keep: Keep,
    /// Maximum bytes of the file; recording ends there and states the reason.
    pub limit_bytes: u64,
    /// Maximum heap events of a thread between two readings of the clock. 1 if no process drains
    /// the spool.
    pub stamp_interval: u32,
    /// True if `cairn` drains the spool while the program runs, and extends it. The program then
    /// makes no system calls for that.
    pub has_parent: bool,
    /// True to begin without recording events, as after [`pause`](crate::pause).
    pub is_paused: bool,
    /// Names of environment variables to store, separated by commas.
    pub environment: &'a [u8],
    /// True if a forked child that marks something gets a recording of its own, by the same
    /// options. Otherwise marks of children are dropped.
    pub follows_children: bool,
    /// Mean bytes between picked ones, to record only the blocks that contain a picked byte. `None`
    /// records all blocks. Marks are always recorded.
    pub sample_bytes: Option<u64>,
    /// Seed of the random numbers for that; 0 for different ones in each run.
    pub sample_seed: u64,
}

impl<'a> Options<'a> {
    /// Returns options that record everything into a file at `path`, which no process drains.
    #[must_use]
    pub const fn new(path: &'a [u8]) -> Self {
        Self {
            path,
            keep: Keep::All,
            limit_bytes: u64::MAX,
            stamp_interval: 1,
            has_parent: false,
            is_paused: false,
            environment: b"",
            follows_children: false,
            sample_bytes: None,
            sample_seed: 0,
        }
    }
}

/// Reason why nothing is recorded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum StartError {
    /// A recording is under way, or being started.
    AlreadyStarted,
    /// The path is too long, holds a NUL, or is empty where a file is needed.
    Path,
    /// The file cannot be made; the number is the kernel's.
    Create(i32),
    /// A thousand recordings of that name exist.
    Exists,
    /// The file system has no room, or the process may not write files that large. The number is
    /// the kernel's.
    Storage(i32),
    /// The process is not allowed the address space; the number is the kernel's.
    AddressSpace(i32),
    /// All places for thread-local storage are in use that the recorder can have. On Windows only.
    ThreadStorage,
    /// The process has more rights than its caller (set-user-ID, capabilities). Neither the
    /// environment nor the working directory may choose the path then; call [`start`] with one.
    RaisedRights,
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AlreadyStarted => f.write_str("a recording is under way already; stop it first"),
            Self::Path => f.write_str(
                "the recording's path is too long, contains a NUL, or is empty (only a ring works without a file)",
            ),
            Self::Create(error) => write!(f, "the recording's file cannot be made (errno {error}); choose another path"),
            Self::Exists => f.write_str("a thousand recordings of that name exist; remove some"),
            Self::Storage(error) => write!(
                f,
                "no room for the recording (errno {error}): the disk is full or the limit of the file size too low"
            ),
            Self::AddressSpace(error) => {
                write!(f, "no address space for the recorder (errno {error}); raise the limit of the address space")
            }
            Self::ThreadStorage => f.write_str(
                "the program has the first 64 slots of thread-local storage in use; start the recording earlier",
            ),
            Self::RaisedRights => f.write_str(
                "the program has more rights than its caller, so its environment must not choose the file; give a path",
            ),
        }
    }
}

impl core::error::Error for StartError {}

/// Starts a recording. May be called from any thread at any time, also in a static constructor.
///
/// # Errors
///
/// [`StartError`]; the program goes on unrecorded.
pub fn start(options: &Options<'_>) -> Result<(), StartError> {
    start_by(options, Caller::Program)
}

/// Starts a recording in a forked child, anywhere. It takes no lock of the loader, and writes
/// modules when they are first on a stack.
///
/// # Errors
///
/// [`StartError`]; the child goes on unrecorded.
pub fn start_in_child(options: &Options<'_>) -> Result<(), StartError> {
    start_by(options, Caller::Child)
}

/// Caller that starts a recording.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Caller {
    /// The program, by a call of [`start`].
    Program,
    /// Its first mark, possibly in a signal handler. The loader's lock must not be taken, so that
    /// modules are written when they are first on a stack.
    Mark,
    /// The first mark of a child, by the stored options.
    Child,
}

fn start_by(options: &Options<'_>, caller: Caller) -> Result<(), StartError> {
    let _errno = ErrnoGuard::new();
    let claim = claim_start()?;
    start_claimed(options, caller, claim)
}

/// Changes the mode to [`Mode::Starting`] for this thread, until [`start_claimed`].
fn claim_start() -> Result<(Starter, ModeBefore), StartError> {
    // Notices the fork in a child.
    let _ = recorder::current();
    if !thread_word::take() {
        return Err(StartError::ThreadStorage);
    }
    recorder::make_witness().map_err(|Errno(error)| StartError::AddressSpace(error))?;
    let here = Starter::here();
    let before = here.begin().ok_or(StartError::AlreadyStarted)?;
    Ok((here, before))
}

fn start_claimed(
    options: &Options<'_>,
    caller: Caller,
    (here, before): (Starter, ModeBefore),
) -> Result<(), StartError> {
    let result = make(options);
    match result {
        Ok(recorder) => {
            if caller != Caller::Child {
                FOLLOWS_CHILDREN.store(options.follows_children, Ordering::Relaxed);
                // SAFETY: `claim_start` has changed the mode to `Starting` for this thread alone,
                // and the cell is only accessed in that mode.
                unsafe { (*SAVED.0.get()).save(options) };
            }
            begin(recorder, here, options.is_paused, caller);
        }
        Err(_) => here.give_up(before),
    }
    result.map(drop)
}

/// Starts a recording by the options of the last one.
fn start_saved() -> Result<(), StartError> {
    let _errno = ErrnoGuard::new();
    let claim = claim_start()?;
    // SAFETY: as in `start_claimed`, which does not write the cell for a child.
    let saved = unsafe { &*SAVED.0.get() };
    let options = Options {
        path: saved.path.get(..saved.path_bytes).unwrap_or_default(),
        environment: saved.environment.get(..saved.environment_bytes).unwrap_or_default(),
        ..saved.rest
    };
    start_claimed(&options, Caller::Child, claim)
}

/// True when the last recording asked to record forked children that mark something.
static FOLLOWS_CHILDREN: AtomicBool = AtomicBool::new(false);

/// Options of the last recording, for a child.
struct SavedOptions {
    path: [u8; PATH_BYTES],
    path_bytes: usize,
    environment: [u8; 1024],
    environment_bytes: usize,
    rest: Options<'static>,
}

struct SavedCell(UnsafeCell<SavedOptions>);

// SAFETY: accessed in `Mode::Starting` only, which one thread at a time is in.
unsafe impl Sync for SavedCell {}

static SAVED: SavedCell = SavedCell(UnsafeCell::new(SavedOptions {
    path: [0; PATH_BYTES],
    path_bytes: 0,
    environment: [0; 1024],
    environment_bytes: 0,
    rest: Options::new(b""),
}));

impl SavedOptions {
    fn save(&mut self, options: &Options<'_>) {
        self.path_bytes = store(options.path, &mut self.path);
        self.environment_bytes = store(options.environment, &mut self.environment);
        self.rest = Options { path: b"", environment: b"", ..*options };
    }
}

/// Copies the bytes that fit; returns their number.
fn store(bytes: &[u8], into: &mut [u8]) -> usize {
    let count = bytes.len().min(into.len());
    if let (Some(place), Some(bytes)) = (into.get_mut(..count), bytes.get(..count)) {
        place.copy_from_slice(bytes);
    }
    count
}

/// Path of a recording that the first mark has started, without an environment variable for it.
const DEFAULT_PATH: &[u8] = b"%e.%p.cairn";

/// Starts a recording for an event that found none, or waits for the thread that is starting one.
/// Signal handlers call it too.
#[cold]
pub(crate) fn start_lazily() {
    /// True after a failure: another attempt would fail at each mark.
    static HAS_FAILED: AtomicBool = AtomicBool::new(false);

    let _errno = ErrnoGuard::new();
    let _ = recorder::current();
    // Read once: another thread may be changing it.
    let is_child = match mode::mode() {
        Mode::Starting => return wait_for_start(),
        Mode::Off => false,
        Mode::Child => true,
        Mode::Recording | Mode::Paused | Mode::Full | Mode::Ended | Mode::LockedIn => return,
    };
    if HAS_FAILED.load(Ordering::Relaxed) {
        return;
    }
    let result = if is_child {
        if !FOLLOWS_CHILDREN.load(Ordering::Relaxed) {
            return;
        }
        start_saved()
    } else {
        start_default_by(Caller::Mark)
    };
    match result {
        Ok(()) => {}
        Err(StartError::AlreadyStarted) => wait_for_start(),
        Err(_) => HAS_FAILED.store(true, Ordering::Relaxed),
    }
}

/// Starts a recording as the first mark of a program does. The path is in the environment variable
/// `CAIRN_RECORDING`, or is `PROGRAM.PID.cairn` in the working directory.
///
/// # Errors
///
/// As [`start`], and [`StartError::RaisedRights`] in a process that has more rights than its
/// caller.
pub fn start_default() -> Result<(), StartError> {
    start_default_by(Caller::Program)
}

fn start_default_by(caller: Caller) -> Result<(), StartError> {
    if os::has_raised_rights() {
        return Err(StartError::RaisedRights);
    }
    let mut place = [0; 256];
    let path = os::environment_variable(b"CAIRN_RECORDING", &mut place).unwrap_or_default();
    start_by(&Options::new(if path.is_empty() { DEFAULT_PATH } else { path }), caller)
}

/// Waits for the thread that is starting a recording, at most a second. That thread may need a lock
/// that the code below this signal handler holds. A handler that interrupted the start itself does
/// not wait. An event that stops waiting is counted.
fn wait_for_start() {
    const TRIES: u32 = 10_000;
    const MICROS: u32 = 100;
    let here = Starter::here();
    for _ in 0..TRIES {
        let Some(starter) = Starter::present() else { return };
        if starter == here {
            break;
        }
        if !starter.is_of_process_of(here) {
            // This child was forked during the start: the starting thread is not here.
            return;
        }
        os::sleep_micros(MICROS);
    }
    GIVEN_UP.fetch_add(1, Ordering::SeqCst);
    if mode::mode() != Mode::Starting {
        count_given_up();
    }
}

/// Number of events that stopped waiting for the end of a start.
static GIVEN_UP: AtomicU64 = AtomicU64::new(0);

/// Counts them in the recording that was started meanwhile, if there is one.
fn count_given_up() {
    recorder::count_lost_events(GIVEN_UP.swap(0, Ordering::SeqCst));
}

fn make(options: &Options<'_>) -> Result<&'static Recorder, StartError> {
    let recorder = Recorder::make().map_err(|Errno(error)| StartError::AddressSpace(error))?;
    let mean_bytes = options.sample_bytes.map(|bytes| mean_of(bytes).into());
    let chosen = sampling::begin(mean_bytes, options.sample_seed);
    if let Err(Errno(error)) = chosen {
        recorder.discard();
        return Err(StartError::AddressSpace(error));
    }
    match make_spool(recorder, options) {
        Ok(()) => {
            epochs::begin_alone();
            Ok(recorder.publish())
        }
        Err(error) => {
            recorder.discard();
            Err(error)
        }
    }
}

/// Returns the mean as it is stored in the recording.
fn mean_of(sample_bytes: u64) -> u32 {
    sample_bytes.clamp(1, u32::MAX.into()) as u32
}

const SCRATCH_BYTES: usize = 1 << 17;

fn make_spool(recorder: &mut Recorder, options: &Options<'_>) -> Result<(), StartError> {
    let scratch = os::zeroed(SCRATCH_BYTES).map_err(|Errno(error)| StartError::AddressSpace(error))?;
    // SAFETY: `zeroed` has just mapped `SCRATCH_BYTES`, whose address is not shared.
    let bytes = unsafe { core::slice::from_raw_parts_mut(scratch as *mut u8, SCRATCH_BYTES) };
    let result = make_named_spool(recorder, options, bytes);
    if result.is_ok() {
        if options.is_paused {
            // Before the program or the parent can request anything else.
            let word = recorder.spool.word(control::COMMAND);
            word.store(control::Command::Pause.to_word(), Ordering::Release);
        }
        // SAFETY: the recorder is not published yet, and this is the only call for it.
        let mut facts = Facts::new(unsafe { recorder.spool.facts() });
        let mode: &[u8] = if recorder.spool.is_ring() { b"ring" } else { b"stream" };
        if let Some(mean_bytes) = options.sample_bytes {
            facts.add_number(b"sample_bytes", mean_of(mean_bytes));
        }
        fact_list::add_all(&mut facts, mode, options.environment, bytes);
        let used = facts.finish() as u64;
        recorder.spool.word(control::FACTS_BYTES).store(used, Ordering::Release);
    }
    // SAFETY: mapped above; `bytes` is not used any more.
    unsafe { os::unmap(scratch, SCRATCH_BYTES) };
    result
}

fn make_named_spool(
    recorder: &mut Recorder,
    options: &Options<'_>,
    scratch: &mut [u8],
) -> Result<(), StartError> {
    if options.path.is_empty() {
        if options.keep == Keep::All {
            return Err(StartError::Path);
        }
        return recorder.spool.make(&wanted(options, None)).map_err(start_error);
    }
    let (place, scratch) = scratch.split_at_mut(PATH_BYTES);
    for attempt in 0..1000 {
        let mut text = PathText::new(place);
        expand(options.path, attempt, &mut text, scratch);
        let path = text.as_c_string().ok_or(StartError::Path)?;
        match recorder.spool.make(&wanted(options, Some(path))) {
            Err(SpoolError::Exists) => {}
            result => return result.map_err(start_error),
        }
    }
    Err(StartError::Exists)
}

fn wanted<'a>(options: &Options<'_>, path: Option<&'a CStr>) -> SpoolOptions<'a> {
    SpoolOptions {
        path,
        ring_bytes: match options.keep {
            Keep::All => None,
            Keep::Last { bytes, .. } => Some(bytes),
        },
        ring_nanos: match options.keep {
            Keep::All => u64::MAX,
            Keep::Last { nanos, .. } => nanos,
        },
        limit_bytes: options.limit_bytes,
        has_parent: options.has_parent,
        stamp_interval: options.stamp_interval.max(1),
        most_events_between_stamps: most_events_between_stamps(options.stamp_interval.max(1)),
    }
}

fn start_error(error: SpoolError) -> StartError {
    match error {
        SpoolError::Exists => StartError::Exists,
        SpoolError::Create(Errno(error)) => StartError::Create(error),
        SpoolError::Storage(Errno(error)) => StartError::Storage(error),
        SpoolError::AddressSpace(Errno(error)) => StartError::AddressSpace(error),
    }
}

/// Expands a path, and makes it absolute. The program may change its directory before the file is
/// opened again.
fn expand(path: &[u8], attempt: u32, text: &mut PathText<'_>, scratch: &mut [u8]) {
    os::push_directory(path, text, scratch);
    let mut rest = path;
    while let Some((&byte, behind)) = rest.split_first() {
        rest = behind;
        match (byte, behind.first()) {
            (b'%', Some(b'p')) => text.push_number(os::process_id()),
            (b'%', Some(b'e')) => {
                let executable = os::executable(scratch);
                text.push(executable.rsplit(|&byte| byte == os::SEPARATOR).next().unwrap_or_default());
            }
            (b'%', Some(b'%')) => text.push(b"%"),
            _ => {
                text.push(&[byte]);
                continue;
            }
        }
        rest = behind.get(1..).unwrap_or_default();
    }
    if attempt > 0 {
        text.push(b".");
        text.push_number(attempt);
    }
}

/// Follows stacks and modules of a recording whose file exists, then lets events come.
fn begin(recorder: &Recorder, here: Starter, is_paused: bool, caller: Caller) {
    stacks::begin(recorder);
    #[cfg(windows)]
    crate::notifications::observe();
    if caller == Caller::Program || module_list::IS_SIGNAL_SAFE {
        modules::scan_at_start();
    }
    requests::finish_start(here, recorder, is_paused);
    count_given_up();
}
