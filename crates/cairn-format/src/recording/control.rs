//! The control words of a spool: where in the first 64 KiB the program and the `cairn` command tell
//! each other what each has done. Each word is eight bytes, little-endian, written by one side only
//! but for the command, and read by the other at any time.
//!
//! | offset | word | written by |
//! |---|---|---|
//! | 0x0040 | [`TICK`] | command: grows by one about once a millisecond while the spool is drained |
//! | 0x0048 | [`BACKED_SEGMENTS`] | the side that extends the file: that many segments, this one included, have storage |
//! | 0x0050 | [`CLAIMED_SEGMENTS`] | program: that many segments, this one included, were ever taken from the end |
//! | 0x0058 | [`STATE`] | program: [`State`] |
//! | 0x0060 | [`LOST_EVENTS`] | program: heap events and marks that could not be written; behind an early end, all that followed |
//! | 0x0068 | [`LOST_STACKS`] | program: events that were written with no stack, because there was no room for it |
//! | 0x0070 | [`COMMAND`] | both, the last one counts: what the program shall do next, see [`Command`] |
//! | 0x0078 | [`FACTS_BYTES`] | program: length of the facts |
//! | 0x0080 | [`FREE_TAKEN`] | program: how many entries of the free ring were taken |
//! | 0x0088 | [`EXITING`] | program: 1 once it ends through `exit`; it may still go on for a while, and record |
//! | 0x0090 | [`EARLY_END`] | both, the first one counts: why the recording ended before the program did, see [`EarlyEnd`]; 0 when it did not |
//! | 0x0098 | [`EARLY_END_COUNTER`] | as the word before: the counter at that moment; 0 when it is not known |
//! | 0x00a0 | [`OWN_MEMORY_COUNT`] | program: how many entries [`OWN_MEMORY`] has |
//! | 0x00a8 | [`MAPPED_AT`] | program: address of the spool in it |
//! | 0x00b0 | [`PASSING_SLOTS`] | program: places in modules through which it calls the C library's allocator past the hooks |
//! | 0x00c0 | [`FREE_GIVEN`] | command: how many entries of the free ring were given |
//! | 0x0100 | [`CLAIMS`] | program: how many segments were ever taken, those from the free ring included |
//! | 0x0140 | [`LIVE_BYTES`] | command: bytes that the program holds at present, for those who watch |
//! | 0x0148 | [`UNMATCHED_FREES`] | command: frees that found no block, in what it has packed |
//! | 0x0180 | [`EXIT_COUNTER`] | program: the counter when it ended through `exit`; 0 before that, or without a reading |
//! | 0x0188 | [`EXIT_MONOTONIC_NANOS`] | program: the monotonic clock at [`EXIT_COUNTER`] |
//! | 0x0190 | [`EXIT_WALL_NANOS`] | program: the wall clock at [`EXIT_COUNTER`] |
//! | 0x01a0 | [`IN_EXEC`] | program: 1 while it calls `exec`, and so for good when that succeeds |
//! | 0x01a8 | [`UNREAD_FRAMES`] | program: stacks without the frames of an interpreter, which could not be read |
//! | 0x01b8 | [`PEAK_RESIDENT_BYTES`] | program: most resident memory of the process, by the kernel's count, when it ended through `exit`; 0 when not known |
//! | 0x0200 | [`NEW_PATH`] | command: where the file is since the command has renamed it; empty before |
//! | 0x1000 | [`FREE_RING`] | command: numbers of segments (u32) that were drained and may be taken again |
//! | 0x5000 | [`OWN_MEMORY`] | program: memory of the recorder beside the spool |
//! | 0x8000 | [`FACTS`] | program: `name=value` pairs, each ended by a NUL, see `docs/book/reference/format.md` |

use core::fmt;

/// See the [table](self).
pub const TICK: usize = 0x40;
/// See the [table](self).
pub const BACKED_SEGMENTS: usize = 0x48;
/// See the [table](self).
pub const CLAIMED_SEGMENTS: usize = 0x50;
/// See the [table](self).
pub const STATE: usize = 0x58;
/// See the [table](self).
pub const LOST_EVENTS: usize = 0x60;
/// See the [table](self).
pub const LOST_STACKS: usize = 0x68;
/// See the [table](self).
pub const COMMAND: usize = 0x70;
/// See the [table](self).
pub const FACTS_BYTES: usize = 0x78;
/// See the [table](self).
pub const FREE_TAKEN: usize = 0x80;
/// See the [table](self).
pub const EXITING: usize = 0x88;
/// Number of valid entries of [`OWN_MEMORY`].
///
/// 0 while they change, and all bits set when there are more entries than fit.
pub const OWN_MEMORY_COUNT: usize = 0xa0;
/// Where the program has mapped the spool.
pub const MAPPED_AT: usize = 0xa8;
/// See the [table](self).
pub const EARLY_END: usize = 0x90;
/// See the [table](self).
pub const EARLY_END_COUNTER: usize = 0x98;
/// See the [table](self).
pub const PASSING_SLOTS: usize = 0xb0;
/// See the [table](self).
pub const FREE_GIVEN: usize = 0xc0;
/// See the [table](self).
pub const CLAIMS: usize = 0x100;
/// See the [table](self).
pub const LIVE_BYTES: usize = 0x140;
/// See the module documentation.
pub const UNMATCHED_FREES: usize = 0x148;
/// The counter at `exit`. Stored last of the three words, so that the others hold where it is not
/// 0.
pub const EXIT_COUNTER: usize = 0x180;
/// The monotonic clock at `exit`.
pub const EXIT_MONOTONIC_NANOS: usize = 0x188;
/// The wall clock at `exit`.
pub const EXIT_WALL_NANOS: usize = 0x190;
/// See the [table](self).
pub const IN_EXEC: usize = 0x1a0;
/// See the [table](self).
pub const UNREAD_FRAMES: usize = 0x1a8;
/// See the [table](self).
pub const PEAK_RESIDENT_BYTES: usize = 0x1b8;
/// The path of the file when the command has renamed it, ended by a NUL.
///
/// Written before the file is renamed. The program opens its file again to extend it: by the path
/// at which it made the file, and by this one if no file or another one is there.
pub const NEW_PATH: usize = 0x200;
/// Room for [`NEW_PATH`], its NUL included.
pub const NEW_PATH_BYTES: usize = FREE_RING - NEW_PATH;
/// See the [table](self).
pub const FREE_RING: usize = 0x1000;
/// Entries of the [`FREE_RING`]; entry `n % FREE_RING_ENTRIES` is the `n`-th that is given.
pub const FREE_RING_ENTRIES: usize = 4096;
/// Lists the memory beside the spool that the recorder has reserved in the program.
///
/// Each entry is the address and the bytes of one piece, both `u64`.
pub const OWN_MEMORY: usize = 0x5000;
/// Entries of [`OWN_MEMORY`].
pub const OWN_MEMORY_ENTRIES: usize = 512;
/// See the [table](self).
pub const FACTS: usize = 0x8000;
/// Room for the facts.
pub const FACTS_LIMIT_BYTES: usize = 0x8000;

// The kernel reads a path of up to 4,096 bytes there, whatever the file contains.
const _: () = assert!(NEW_PATH + 4096 <= super::SEGMENT_BYTES);
const _: () = assert!(FREE_RING + FREE_RING_ENTRIES * 4 <= OWN_MEMORY);
const _: () = assert!(OWN_MEMORY + OWN_MEMORY_ENTRIES * 16 <= FACTS);
const _: () = assert!(FACTS + FACTS_LIMIT_BYTES == super::SEGMENT_BYTES);

/// State that the program publishes in [`STATE`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum State {
    /// The header is there; nothing is recorded yet.
    Starting,
    /// Events are recorded.
    Recording,
    /// Recording is paused; it can go on.
    Paused,
    /// Storage ran out (disk, file size limit or address space limit).
    ///
    /// Nothing more is recorded, and lost events are counted.
    Full,
    /// The recorder was stopped, or the program ended through `exit`.
    Ended,
}

impl State {
    /// The number in the file.
    #[must_use]
    pub const fn to_word(self) -> u64 {
        match self {
            Self::Starting => 0,
            Self::Recording => 1,
            Self::Paused => 2,
            Self::Full => 3,
            Self::Ended => 4,
        }
    }

    /// The state of that number; unknown ones read as [`Recording`](Self::Recording), because a
    /// reader then reads on.
    #[must_use]
    pub const fn from_word(word: u64) -> Self {
        match word {
            0 => Self::Starting,
            2 => Self::Paused,
            3 => Self::Full,
            4 => Self::Ended,
            _ => Self::Recording,
        }
    }
}

/// Request that the command writes to [`COMMAND`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Command {
    /// Record.
    Record,
    /// Record nothing until the next command.
    Pause,
}

impl Command {
    /// The number in the file.
    #[must_use]
    pub const fn to_word(self) -> u64 {
        match self {
            Self::Record => 0,
            Self::Pause => 1,
        }
    }

    /// The command of that number; unknown ones mean [`Record`](Self::Record).
    #[must_use]
    pub const fn from_word(word: u64) -> Self {
        if word == 1 { Self::Pause } else { Self::Record }
    }
}

/// Why a recording ended before its program did, in [`EARLY_END`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum EarlyEnd {
    /// The program forbade itself system calls (seccomp).
    Sandbox,
    /// The disk or the quota was full; the number is the kernel's.
    DiskFull(u16),
    /// The process may write no larger files (`ulimit -f`).
    FileSizeLimit,
    /// The file was as large as the options allow.
    MaxSize,
    /// The address space was full, or limited (`ulimit -v`).
    AddressSpace,
    /// No file was at the path of the recording, or another one was: it was deleted, moved or
    /// replaced.
    FileLost,
    /// The file could not be opened again to make it larger; the number is the kernel's.
    Unreachable(u16),
    /// The file became shorter than what had been reserved.
    FileCut,
    /// The file could not be made larger for another reason; the number is the kernel's.
    Storage(u16),
    /// The time that was given for the recording was over.
    TimeOver,
    /// The recording was paused and did not go on before the program ended.
    Paused,
    /// The memory of a recording without a file was full.
    MemoryFull,
    /// No room was left; a recorder of an earlier version said no more.
    NoRoom,
    /// For a reason that this version does not know.
    Other,
}

impl EarlyEnd {
    /// The number in the file; never 0.
    #[must_use]
    pub const fn to_word(self) -> u64 {
        let (kind, error) = match self {
            Self::Sandbox => (1, 0),
            Self::DiskFull(error) => (2, error),
            Self::FileSizeLimit => (3, 0),
            Self::MaxSize => (4, 0),
            Self::AddressSpace => (5, 0),
            Self::FileLost => (6, 0),
            Self::Unreachable(error) => (7, error),
            Self::FileCut => (8, 0),
            Self::Storage(error) => (9, error),
            Self::TimeOver => (10, 0),
            Self::Paused => (11, 0),
            Self::MemoryFull => (12, 0),
            Self::NoRoom => (13, 0),
            Self::Other => (0xffff, 0),
        };
        kind | (error as u64) << 16
    }

    /// The reason of that number; `None` for 0, and [`Other`](Self::Other) for unknown ones.
    #[must_use]
    pub const fn from_word(word: u64) -> Option<Self> {
        let error = (word >> 16) as u16;
        Some(match word as u16 {
            0 if word == 0 => return None,
            1 => Self::Sandbox,
            2 => Self::DiskFull(error),
            3 => Self::FileSizeLimit,
            4 => Self::MaxSize,
            5 => Self::AddressSpace,
            6 => Self::FileLost,
            7 => Self::Unreachable(error),
            8 => Self::FileCut,
            9 => Self::Storage(error),
            10 => Self::TimeOver,
            11 => Self::Paused,
            12 => Self::MemoryFull,
            13 => Self::NoRoom,
            _ => Self::Other,
        })
    }

    /// True when this end was requested.
    #[must_use]
    pub const fn is_intended(self) -> bool {
        matches!(self, Self::MaxSize | Self::TimeOver | Self::Paused)
    }
}

impl fmt::Display for EarlyEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sandbox => f.write_str("the program locked itself in with seccomp"),
            Self::DiskFull(122) => f.write_str("the disk quota was used up"),
            Self::DiskFull(_) => f.write_str("the disk was full"),
            Self::FileSizeLimit => {
                f.write_str("the recording reached the limit of the file size (ulimit -f)")
            }
            Self::MaxSize => f.write_str("the recording reached the size that --max-size allows"),
            Self::AddressSpace => {
                f.write_str("no address space was left for the recorder (ulimit -v, ulimit -l)")
            }
            Self::FileLost => f.write_str(
                "the recording's file was no longer at its path (deleted, moved, replaced, or chroot)",
            ),
            Self::Unreachable(error) => {
                write!(f, "the recording's file could not be opened again (errno {error})")
            }
            Self::FileCut => f.write_str("the recording's file was truncated"),
            Self::Storage(error) => {
                write!(f, "the recording's file could not be made larger (errno {error})")
            }
            Self::TimeOver => f.write_str("the time that --for allows was over"),
            Self::Paused => f.write_str("the recording was paused and did not go on"),
            Self::MemoryFull => f.write_str("the recorder's memory was full"),
            Self::NoRoom => f.write_str("no storage was left"),
            Self::Other => f.write_str("for a reason that this version of cairn does not know"),
        }
    }
}
