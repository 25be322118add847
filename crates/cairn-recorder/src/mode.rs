//! Holds the word that decides whether events are recorded, and the thread that starts a recording.
//!
//! ```text
//!   Off --start--> Recording <--pause, resume--> Paused
//!                   |  |   '--storage ran out--> Full
//!                   |  '--stop--> Ended --start--> Recording (another file)
//!                   |  '--the program enters a seccomp sandbox--> LockedIn
//!                   '--fork--> Child, in the child --start--> Recording (another file)
//! ```
//!
//! The layout of the word [`RECORDING`]:
//!
//! ```text
//!   Recording:           | 0    | 0               | recording: 32 |
//!   Paused, Full, Ended: | mode | pauses: 24 bits | recording: 32 |
//!   Starting:            | mode | process: 28 | thread: 28        |
//! ```
//!
//! The starting thread is part of the word, because another thread can only wait for a starter that
//! it can identify. The number of pauses is part of the word, so that a compare-and-swap that ends
//! a pause proves that nothing was recorded since the word was read.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::os;

/// Mode in the highest bits, number of the recording in the lowest 32; see the module
/// documentation. Every hook reads this word first. All other state that says whether events are
/// recorded is derived from it, and written after it.
pub(crate) static RECORDING: AtomicU64 = AtomicU64::new(word_of(Mode::Off, 0));
/// Number of the next pause; starts at 1, because a recording that begins paused has number 0.
static PAUSES: AtomicU32 = AtomicU32::new(1);
/// True after the program, or its parent before the fork, has forbidden itself system calls.
static FORBIDS_CALLS: AtomicBool = AtomicBool::new(false);

/// State of recording in this process; the module documentation has the transitions.
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

/// Lowest bit of the mode in [`RECORDING`].
const MODE_SHIFT: u32 = 56;
/// Bits of the process and of the thread that starts; the kernel's numbers have at most 22.
const STARTER_BITS: u32 = 28;
const _: () = assert!(Mode::Recording as u64 == 0 && 2 * STARTER_BITS == MODE_SHIFT);

/// Packs a mode and the bits below it.
pub(crate) const fn word_of(mode: Mode, rest: u64) -> u64 {
    (mode as u64) << MODE_SHIFT | rest & ((1 << MODE_SHIFT) - 1)
}

/// Unpacks the mode of a word.
pub(crate) fn mode_of(word: u64) -> Mode {
    let number = word >> MODE_SHIFT;
    Mode::ALL.into_iter().find(|&mode| mode as u64 == number).unwrap_or(Mode::Off)
}

/// Unpacks the number of the recording of a word.
pub(crate) fn generation_of(word: u64) -> u64 {
    u64::from(word as u32)
}

/// Reads the present mode. Other threads change it: a second call may return another one.
pub(crate) fn mode() -> Mode {
    mode_of(RECORDING.load(Ordering::Acquire))
}

/// Replaces the word if it still is `from`; returns whether it was.
pub(crate) fn change(from: u64, to: u64) -> bool {
    RECORDING.compare_exchange(from, to, Ordering::SeqCst, Ordering::Relaxed).is_ok()
}

/// Returns a word for one more pause of the recording of this number.
pub(crate) fn next_pause(generation: u64) -> u64 {
    let number = u64::from(PAUSES.fetch_add(1, Ordering::Relaxed));
    word_of(Mode::Paused, number << 32 | generation)
}

/// Returns true while this process, or its parent before the fork, records events.
#[inline(always)]
pub(crate) fn is_on() -> bool {
    RECORDING.load(Ordering::Relaxed) >> MODE_SHIFT == Mode::Recording as u64
}

/// Returns the word if its mode is `Paused`: one load and one comparison.
#[inline(always)]
pub(crate) fn paused_word() -> Option<u64> {
    let word = RECORDING.load(Ordering::Relaxed);
    (word >> MODE_SHIFT == Mode::Paused as u64).then_some(word)
}

/// Notes that system calls may end the process from now on.
pub(crate) fn forbid_calls() {
    FORBIDS_CALLS.store(true, Ordering::Relaxed);
}

/// Returns true after [`forbid_calls`], in this process or in the one that it was forked from.
pub(crate) fn forbids_calls() -> bool {
    FORBIDS_CALLS.load(Ordering::Relaxed)
}

/// Process and thread that start a recording.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Starter(u64);

impl Starter {
    /// Returns the calling thread.
    pub(crate) fn here() -> Self {
        Self(u64::from(os::process_id()) << STARTER_BITS | u64::from(os::thread_id()))
    }

    /// Returns the thread that is starting a recording at this moment.
    pub(crate) fn present() -> Option<Self> {
        let word = RECORDING.load(Ordering::Acquire);
        (mode_of(word) == Mode::Starting).then_some(Self(word & ((1 << MODE_SHIFT) - 1)))
    }

    pub(crate) fn is_of_process_of(self, other: Self) -> bool {
        self.0 >> STARTER_BITS == other.0 >> STARTER_BITS
    }

    /// Begins a start where none is under way; returns the state to go back to on failure.
    pub(crate) fn begin(self) -> Option<ModeBefore> {
        let may_start =
            |word: u64| matches!(mode_of(word), Mode::Off | Mode::Ended | Mode::Child).then_some(self.word());
        RECORDING.fetch_update(Ordering::SeqCst, Ordering::Acquire, may_start).ok().map(ModeBefore)
    }

    /// Goes back to the state before a start that failed.
    pub(crate) fn give_up(self, before: ModeBefore) {
        change(self.word(), before.0);
    }

    /// Ends a successful start: events of the recording of this number are recorded from here on.
    pub(crate) fn finish(self, generation: u64, is_paused: bool) {
        let paused = word_of(Mode::Paused, generation);
        change(self.word(), if is_paused { paused } else { generation });
    }

    const fn word(self) -> u64 {
        word_of(Mode::Starting, self.0)
    }
}

/// Value of [`RECORDING`] before a start.
#[derive(Clone, Copy)]
pub(crate) struct ModeBefore(u64);
