//! How a recording begins.

use core::cell::UnsafeCell;
use core::ffi::CStr;
use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use cairn_format::recording::control;

use crate::facts::Facts;
use crate::os::{self, Errno, KeptErrno, PathText};
use crate::recorder::{self, Mode, Recorder, Starter};
use crate::spool::{PATH_BYTES, Unmade, Wanted};
use crate::{heap, modules, sampling, tables};

/// What is kept of a recording.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Keep {
    /// Everything, in a file that grows.
    All,
    /// The last events only, as a flight recorder does: so many bytes of them, at least 1 MiB and at most 1 GiB. What
    /// is overwritten is counted. Stacks and modules are kept all.
    Last {
        /// Bytes of events.
        bytes: u64,
        /// How long ago they may have been: blocks in which all is older are written to again before the file grows. `u64::MAX`
        /// for any age. A thread that records nothing keeps its last 64 KiB.
        nanos: u64,
    },
}

/// How to record.
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
    /// Where the recording goes. `%p` stands for the process id and `%e` for the program's name. Where such a file is already,
    /// `.1`, `.2` and so on are tried: a recording is never overwritten. Empty for memory without a file, which
    /// [`Keep::Last`] can do with; [`dump`](crate::dump) then makes a file of it.
    pub path: &'a [u8],
    /// What is kept.
    pub keep: Keep,
    /// No more than so many bytes are written; then recording ends, with a word that says so.
    pub limit_bytes: u64,
    /// At most how many heap events of a thread lie between two readings of the clock. 1 where nobody drains the spool.
    pub stamp_interval: u32,
    /// Whether `cairn` drains the spool while the program runs, and extends it: the program then makes no system calls of its
    /// own for that.
    pub has_parent: bool,
    /// Begin without recording events, as after [`pause`](crate::pause).
    pub is_paused: bool,
    /// Names of the environment variables to keep, separated by commas.
    pub environment: &'a [u8],
    /// Whether a forked child that marks something gets a recording of its own, by the same options. Without it what a child
    /// marks is dropped.
    pub follows_children: bool,
    /// Record not all blocks, but those of which a byte was picked, on average one of so many bytes. Marks are all recorded.
    pub sample_bytes: Option<u64>,
    /// What the random numbers for that begin with; 0 for other ones each time.
    pub sample_seed: u64,
}

impl<'a> Options<'a> {
    /// Everything is kept in a file at `path`, and nobody drains it.
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

/// Why nothing is recorded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum StartError {
    /// A recording is under way, or being started.
    AlreadyStarted,
    /// The path is too long, holds a NUL, or is empty where a file is needed.
    Path,
    /// The file cannot be made; the number is the kernel's.
    Create(i32),
    /// There are too many recordings of that name already.
    Exists,
    /// The file system has no room, or the process may not write files that large; the number is the kernel's.
    Storage(i32),
    /// The process may not have the address space; the number is the kernel's.
    AddressSpace(i32),
    /// The process runs with more rights than its caller (set-user-ID, capabilities), so neither the environment nor the working
    /// directory says where a recording goes; [`start`] with a path does.
    RaisedRights,
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AlreadyStarted => f.write_str("a recording is under way already; stop it first"),
            Self::Path => f.write_str(
                "the recording's path is too long, holds a NUL, or is empty (only a ring can do without a file)",
            ),
            Self::Create(error) => write!(f, "the recording's file cannot be made (errno {error}); choose another place"),
            Self::Exists => f.write_str("a thousand recordings of that name exist; remove some"),
            Self::Storage(error) => write!(
                f,
                "no room for the recording (errno {error}): the disk is full or the limit of the file size too low"
            ),
            Self::AddressSpace(error) => {
                write!(f, "no address space for the recorder (errno {error}); raise the limit of the address space")
            }
            Self::RaisedRights => f.write_str(
                "the program runs with more rights than its caller, so its environment does not say where to record; give a path",
            ),
        }
    }
}

impl core::error::Error for StartError {}

/// Begins to record. May be called from any thread and at any time, in a static constructor as well.
///
/// # Errors
///
/// [`StartError`]; the program goes on unrecorded.
pub fn start(options: &Options<'_>) -> Result<(), StartError> {
    start_by(options, Caller::Program)
}

/// As [`start`], in a forked child, at any place: no lock of the loader is taken, and modules are met when they are on a stack.
///
/// # Errors
///
/// [`StartError`]; the child goes on unrecorded.
pub fn start_in_child(options: &Options<'_>) -> Result<(), StartError> {
    start_by(options, Caller::Child)
}

/// Who starts a recording.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Caller {
    /// The program, in so many words.
    Program,
    /// Its first mark, maybe in a signal handler: the loader's lock must be left alone, so modules are met when they are on a stack.
    Mark,
    /// The first mark of a child, by the options that were kept.
    Child,
}

fn start_by(options: &Options<'_>, caller: Caller) -> Result<(), StartError> {
    let _errno = KeptErrno::new();
    // In a child this notices the fork.
    let _ = recorder::current();
    recorder::make_witness().map_err(|Errno(error)| StartError::AddressSpace(error))?;
    let here = Starter::here();
    let before = here.begin().ok_or(StartError::AlreadyStarted)?;
    let result = make(options);
    match result {
        Ok(recorder) => {
            if caller != Caller::Child {
                // SAFETY: of all threads only the one that has changed the mode to `Starting` comes here.
                unsafe { (*SAVED.0.get()).save(options) };
            }
            begin(recorder, here, options.is_paused, caller);
        }
        Err(_) => here.give_up(before),
    }
    result.map(drop)
}

/// The options of the last recording, for a child.
struct Saved {
    path: [u8; PATH_BYTES],
    path_bytes: usize,
    environment: [u8; 1024],
    environment_bytes: usize,
    rest: Options<'static>,
}

struct SavedCell(UnsafeCell<Saved>);

// SAFETY: touched in `Mode::Starting` only, which one thread at a time is in.
unsafe impl Sync for SavedCell {}

static SAVED: SavedCell = SavedCell(UnsafeCell::new(Saved {
    path: [0; PATH_BYTES],
    path_bytes: 0,
    environment: [0; 1024],
    environment_bytes: 0,
    rest: Options::new(b""),
}));

impl Saved {
    fn save(&mut self, options: &Options<'_>) {
        self.path_bytes = keep(options.path, &mut self.path);
        self.environment_bytes = keep(options.environment, &mut self.environment);
        self.rest = Options { path: b"", environment: b"", ..*options };
    }
}

/// Copies what fits.
fn keep(bytes: &[u8], into: &mut [u8]) -> usize {
    let count = bytes.len().min(into.len());
    if let (Some(place), Some(bytes)) = (into.get_mut(..count), bytes.get(..count)) {
        place.copy_from_slice(bytes);
    }
    count
}

/// Where a recording goes that nobody has started: the environment says it, or else the working directory.
const DEFAULT_PATH: &[u8] = b"%e.%p.cairn";

/// For an event that found nothing started: starts a recording, or waits for the thread that is just doing so. Signal handlers come
/// here too.
#[cold]
pub(crate) fn start_lazily() {
    /// After a failure no further attempt is made: it would fail at each mark.
    static HAS_FAILED: AtomicBool = AtomicBool::new(false);

    let _errno = KeptErrno::new();
    let _ = recorder::current();
    // Looked at once: another thread may be changing it.
    let is_child = match recorder::mode() {
        Mode::Starting => return wait_for_start(),
        Mode::Off => false,
        Mode::Child => true,
        Mode::Recording | Mode::Paused | Mode::Full | Mode::Ended | Mode::LockedIn => return,
    };
    if HAS_FAILED.load(Ordering::Relaxed) {
        return;
    }
    let result = if is_child {
        // SAFETY: the fork has left one thread, and in a child others wait in `wait_for_start`; read only.
        let saved = unsafe { &*SAVED.0.get() };
        if !saved.rest.follows_children {
            return;
        }
        let options = Options {
            path: saved.path.get(..saved.path_bytes).unwrap_or_default(),
            environment: saved.environment.get(..saved.environment_bytes).unwrap_or_default(),
            ..saved.rest
        };
        start_by(&options, Caller::Child)
    } else {
        start_default_by(Caller::Mark)
    };
    match result {
        Ok(()) => {}
        Err(StartError::AlreadyStarted) => wait_for_start(),
        Err(_) => HAS_FAILED.store(true, Ordering::Relaxed),
    }
}

/// Begins to record as the first mark of a program does that has started nothing: at the path that the environment variable
/// `CAIRN_RECORDING` names, or as `PROGRAM.PID.cairn` in the working directory.
///
/// # Errors
///
/// As [`start`], and [`StartError::RaisedRights`] in a process that runs with more rights than its caller.
pub fn start_default() -> Result<(), StartError> {
    start_default_by(Caller::Program)
}

fn start_default_by(caller: Caller) -> Result<(), StartError> {
    if os::has_raised_rights() {
        return Err(StartError::RaisedRights);
    }
    let mut place = [0; 256];
    let path = environment_variable(b"CAIRN_RECORDING", &mut place);
    start_by(&Options::new(if path.is_empty() { DEFAULT_PATH } else { path }), caller)
}

/// Waits for the thread that is starting a recording, at most a second: it may want a lock that this thread holds below a signal
/// handler, and a handler that interrupted the start itself waits for nothing. An event that gives up is counted.
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
            // A child that was forked in the midst of it: that thread is not here.
            return;
        }
        os::sleep_micros(MICROS);
    }
    GIVEN_UP.fetch_add(1, Ordering::SeqCst);
    if recorder::mode() != Mode::Starting {
        count_given_up();
    }
}

/// Events that came while a recording was started and did not wait for its end.
static GIVEN_UP: AtomicU64 = AtomicU64::new(0);

/// Tells of them in the recording that was started meanwhile, if there is one.
fn count_given_up() {
    recorder::count_lost_events(GIVEN_UP.swap(0, Ordering::SeqCst));
}

/// A variable of the environment that the program was started with, as far as it fits. The C library's functions are not made for
/// signal handlers.
fn environment_variable<'b>(name: &[u8], into: &'b mut [u8]) -> &'b [u8] {
    unsafe extern "C" {
        static environ: *const *const libc::c_char;
    }
    // SAFETY: the C library's list, which ends with a null; programs that change it do so before they have threads.
    let mut entry = unsafe { environ };
    while !entry.is_null() {
        // SAFETY: as above.
        let text = unsafe { *entry };
        if text.is_null() {
            break;
        }
        // SAFETY: the entries of the list are C strings.
        let text = unsafe { CStr::from_ptr(text) }.to_bytes();
        if let Some(value) = text.strip_prefix(name).and_then(|rest| rest.strip_prefix(b"=")) {
            let count = keep(value, into);
            return into.get(..count).unwrap_or_default();
        }
        // SAFETY: not behind the null that ends the list.
        entry = unsafe { entry.add(1) };
    }
    &[]
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
            heap::begin_alone();
            Ok(recorder.publish())
        }
        Err(error) => {
            recorder.discard();
            Err(error)
        }
    }
}

/// As it is told in the recording.
fn mean_of(sample_bytes: u64) -> u32 {
    sample_bytes.clamp(1, u32::MAX.into()) as u32
}

const SCRATCH_BYTES: usize = 1 << 17;

fn make_spool(recorder: &mut Recorder, options: &Options<'_>) -> Result<(), StartError> {
    let scratch = os::zeroed(SCRATCH_BYTES).map_err(|Errno(error)| StartError::AddressSpace(error))?;
    // SAFETY: fresh memory of that size, which nobody else knows.
    let bytes = unsafe { core::slice::from_raw_parts_mut(scratch as *mut u8, SCRATCH_BYTES) };
    let result = make_named_spool(recorder, options, bytes);
    if result.is_ok() {
        if options.is_paused {
            // Before anybody can say anything else.
            let word = recorder.spool.word(control::COMMAND);
            word.store(control::Command::Pause.to_word(), Ordering::Release);
        }
        // SAFETY: nobody else knows the spool yet.
        let mut facts = Facts::new(unsafe { recorder.spool.facts() });
        let mode: &[u8] = if recorder.spool.is_ring() { b"ring" } else { b"stream" };
        if let Some(mean_bytes) = options.sample_bytes {
            facts.add_number(b"sample_bytes", mean_of(mean_bytes));
        }
        facts.add_all(mode, options.environment, bytes);
        let used = facts.finish() as u64;
        recorder.spool.word(control::FACTS_BYTES).store(used, Ordering::Release);
    }
    // SAFETY: nothing refers to it any more.
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
            Err(Unmade::Exists) => {}
            result => return result.map_err(start_error),
        }
    }
    Err(StartError::Exists)
}

fn wanted<'a>(options: &Options<'_>, path: Option<&'a CStr>) -> Wanted<'a> {
    Wanted {
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
    }
}

fn start_error(error: Unmade) -> StartError {
    match error {
        Unmade::Exists => StartError::Exists,
        Unmade::Create(Errno(error)) => StartError::Create(error),
        Unmade::Storage(Errno(error)) => StartError::Storage(error),
        Unmade::AddressSpace(Errno(error)) => StartError::AddressSpace(error),
    }
}

/// Writes an absolute path: a program may change its directory before the file is opened again.
fn expand(path: &[u8], attempt: u32, text: &mut PathText<'_>, scratch: &mut [u8]) {
    if !path.starts_with(b"/") {
        let length = os::working_directory(scratch);
        text.push(scratch.get(..length).unwrap_or_default());
        text.push(b"/");
    }
    let mut rest = path;
    while let Some((&byte, behind)) = rest.split_first() {
        rest = behind;
        match (byte, behind.first()) {
            (b'%', Some(b'p')) => text.push_number(os::process_id()),
            (b'%', Some(b'e')) => {
                let executable = os::read_link(c"/proc/self/exe", scratch);
                text.push(executable.rsplit(|&byte| byte == b'/').next().unwrap_or_default());
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

/// The file is there: follow stacks and modules, then let events come.
fn begin(recorder: &Recorder, here: Starter, is_paused: bool, caller: Caller) {
    tables::begin(recorder);
    if caller == Caller::Program {
        modules::scan();
    }
    here.finish(recorder, is_paused);
    count_given_up();
}
