//! The counters, in a file that the checked programs map and their driver reads.
//!
//! ```text
//! file:   | counter | counter | ... (COUNTERS words) | state of the first wrong stack | its length | its words ... |
//! ```

use std::ffi::CStr;
use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// The environment variable that names the file.
pub const VARIABLE: &CStr = c"CAIRN_TRUTH_REPORT";

/// The environment variable with the argument of [`cairn_capture::follow_after`].
pub const FOLLOW_AFTER: &CStr = c"CAIRN_TRUTH_FOLLOW_AFTER";

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident = $index:literal),* $(,)?) => {
        /// The counters.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(usize)]
        pub enum Counter { $($(#[$doc])* $name = $index),* }

        /// All counters.
        pub const COUNTERS: &[Counter] = &[$(Counter::$name),*];
    };
}

counters! {
    /// Stacks that were compared.
    Stacks = 0,
    /// Frames of those.
    Frames = 1,
    /// Stacks that differ from libgcc's.
    Wrong = 2,
    /// Stacks that continue where libgcc ends, because no table covers the code there.
    Further = 3,
    /// Stacks that end with another reason than the start of the thread.
    Cut = 4,
    /// Captures without a stack.
    Lost = 5,
    /// Stacks that are reported as complete but do not end at the start of their thread.
    BadEnd = 6,
    /// Captures in signal handlers.
    InHandlers = 7,
    /// Stacks compared with other walks than the hot path's: of full rows, of frame pointers.
    OtherWalks = 8,
    /// Errors that a fixture program found by itself.
    Failed = 9,
    /// Stacks whose Python frames were compared with the interpreter's answer.
    PythonStacks = 10,
    /// Python frames of those.
    PythonFrames = 11,
    /// Stacks whose Python frames differ.
    PythonWrong = 12,
    /// Stacks with a frame on top that the interpreter does not report, because it has just begun.
    PythonHidden = 13,
    /// Stacks with Python frames of threads without the interpreter's lock.
    PythonWithoutLock = 14,
    /// Runs of Python frames outside of the evaluation function's symbol; its cold part has none.
    PythonElsewhere = 15,
    /// Calls of the evaluation function without Python frames.
    PythonBare = 16,
}

const WRONG_STATE: usize = COUNTERS.len();
const WRONG_LENGTH: usize = WRONG_STATE + 1;
const WRONG_WORDS: usize = WRONG_LENGTH + 1;
/// Room for the words of the first wrong stack: captured frames, a zero, true frames.
const WRONG_LIMIT: usize = 2000;
const WORDS: usize = WRONG_WORDS + WRONG_LIMIT;

type ReportWords = [AtomicU64; WORDS];

/// The counters of this process: the mapped file, or unread memory without one.
pub(crate) fn words() -> &'static ReportWords {
    static UNREAD: ReportWords = [const { AtomicU64::new(0) }; WORDS];
    static MAPPED: AtomicPtr<ReportWords> = AtomicPtr::new(std::ptr::null_mut());
    let mapped = MAPPED.load(Ordering::Acquire);
    if !mapped.is_null() {
        // SAFETY: `map` has mapped the file with this size, and it is never unmapped; the words are
        // atomics.
        return unsafe { &*mapped };
    }
    match map() {
        Some(words) => {
            MAPPED.store(words, Ordering::Release);
            // SAFETY: `map` has just mapped the file with this size, and it is never unmapped; the
            // words are atomics.
            unsafe { &*words }
        }
        None => &UNREAD,
    }
}

/// Maps the file. Two threads may map it at the same time; then one mapping is used.
fn map() -> Option<*mut ReportWords> {
    // SAFETY: the call only returns the address of this thread's errno, which is restored below.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: errno is valid while the thread runs.
    let saved = unsafe { *errno };
    // SAFETY: the environment is only read, the path is a C string, the mapping replaces none, and
    // errno is valid.
    let address = unsafe {
        let path = libc::getenv(VARIABLE.as_ptr());
        if path.is_null() {
            return None;
        }
        let captures = libc::getenv(FOLLOW_AFTER.as_ptr());
        if !captures.is_null() {
            cairn_capture::follow_after(libc::atoi(captures).unsigned_abs());
        }
        let file = libc::open(path, libc::O_RDWR | libc::O_CLOEXEC);
        if file < 0 {
            *errno = saved;
            return None;
        }
        let read_write = libc::PROT_READ | libc::PROT_WRITE;
        let address =
            libc::mmap(std::ptr::null_mut(), size_of::<ReportWords>(), read_write, libc::MAP_SHARED, file, 0);
        libc::close(file);
        *errno = saved;
        address
    };
    (address != libc::MAP_FAILED).then_some(address.cast())
}

/// Adds to a counter.
pub(crate) fn add(counter: Counter, amount: u64) {
    words()[counter as usize].fetch_add(amount, Ordering::Relaxed);
}

/// A counter's value so far.
pub(crate) fn count(counter: Counter) -> u64 {
    words()[counter as usize].load(Ordering::Relaxed)
}

/// Stores a wrong stack if it is the first.
pub(crate) fn store_wrong(captured: impl Iterator<Item = u64>, truth: impl Iterator<Item = u64>) {
    let words = words();
    if words[WRONG_STATE].compare_exchange(0, 1, Ordering::Relaxed, Ordering::Relaxed).is_err() {
        return;
    }
    let mut length = 0;
    let both = captured.chain(std::iter::once(0)).chain(truth);
    for (place, word) in words[WRONG_WORDS..].iter().zip(both) {
        place.store(word, Ordering::Relaxed);
        length += 1;
    }
    words[WRONG_LENGTH].store(length, Ordering::Release);
}

/// The counters of the checked programs.
#[derive(Clone, Debug)]
pub struct Report {
    words: Vec<u64>,
}

impl Report {
    /// Creates a file with all counters at zero.
    ///
    /// # Errors
    ///
    /// The errors of writing a file.
    pub fn make(path: &Path) -> std::io::Result<()> {
        std::fs::write(path, vec![0_u8; size_of::<ReportWords>()])
    }

    /// Reads the counters.
    ///
    /// # Errors
    ///
    /// The errors of reading a file.
    pub fn read(path: &Path) -> std::io::Result<Self> {
        let bytes = std::fs::read(path)?;
        let (words, _) = bytes.as_chunks();
        Ok(Self { words: words.iter().map(|word| u64::from_ne_bytes(*word)).collect() })
    }

    /// A counter's value.
    #[must_use]
    pub fn count(&self, counter: Counter) -> u64 {
        self.words.get(counter as usize).copied().unwrap_or(0)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for &counter in COUNTERS {
            write!(f, "{counter:?} {}, ", self.count(counter))?;
        }
        let length = self.words.get(WRONG_LENGTH).copied().unwrap_or(0) as usize;
        let wrong = self.words.get(WRONG_WORDS..).and_then(|words| words.get(..length)).unwrap_or_default();
        let mut halves = wrong.splitn(2, |&word| word == 0);
        write!(f, "first wrong: {:x?}", halves.next().unwrap_or_default())?;
        write!(f, " instead of {:x?}", halves.next().unwrap_or_default())
    }
}
