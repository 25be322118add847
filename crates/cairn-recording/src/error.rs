//! Problems of a recording: errors end the reading, findings accompany the data that could be
//! read.

use std::path::PathBuf;
use std::{error, fmt, io};

use super::growth::Growth;
use cairn_format::recording::control::EarlyEnd;
use cairn_format::recording::{BadRecord, ChunkKind, HeaderError, InterpreterState, LossKind, SegmentError};

use crate::tables::Interpreter;

/// Why a recording cannot be opened, read on, or written.
#[derive(Debug)]
#[non_exhaustive]
pub enum RecordingError {
    /// The file cannot be opened, read or written.
    Io {
        /// The action that failed, as "reading byte 4096".
        action: String,
        /// The system's reason.
        source: io::Error,
    },
    /// Its first bytes are not those of a recording that can be read here.
    Header(HeaderError),
    /// A chunk of a packed recording contradicts itself; what came before it was read.
    Chunk {
        /// Where its header begins.
        offset: u64,
        /// Expected kind of the chunk.
        kind: ChunkKind,
        /// The problem.
        problem: &'static str,
    },
    /// The spool is drained into another file, and its segments are reused during the read.
    Drained {
        /// The spool.
        path: PathBuf,
    },
    /// The file could not be given the room that is needed; what was written before is whole.
    NoRoom {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
}

impl RecordingError {
    pub(crate) fn io(action: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let action = action.into();
        move |source| Self::Io { action, source }
    }
}

impl fmt::Display for RecordingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io { action, source } => write!(f, "{action}: {source}"),
            Self::Header(error) => error.fmt(f),
            Self::Chunk { offset, kind, problem } => {
                write!(f, "chunk {kind} at byte {offset}: {problem}; what is before it can be read")
            }
            Self::Drained { path } => write!(
                f,
                "{}: it is being drained into another file, and holds only the rest; open the recording that is made of it",
                path.display()
            ),
            Self::NoRoom { path, source } => {
                write!(
                    f,
                    "{}: no room for the recording: {source}; choose another place with -o",
                    path.display()
                )
            }
        }
    }
}

impl error::Error for RecordingError {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            Self::Io { source, .. } | Self::NoRoom { source, .. } => Some(source),
            Self::Header(error) => Some(error),
            Self::Chunk { .. } | Self::Drained { .. } => None,
        }
    }
}

impl From<HeaderError> for RecordingError {
    fn from(error: HeaderError) -> Self {
        Self::Header(error)
    }
}

/// Why and when a recording ended before its program did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct EndedEarly {
    /// Why.
    pub cause: EarlyEnd,
    /// When, from the start; 0 where that is not known.
    pub nanos: u64,
    /// How many later events the recorder counted; 0 where it counted none.
    pub missed: u64,
}

impl fmt::Display for EndedEarly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "recording ended early: {}", self.cause)?;
        let seconds = self.nanos as f64 / 1e9;
        match self.nanos {
            0 => {}
            1..100_000_000 => write!(f, " after {seconds:.3} s")?,
            _ => write!(f, " after {seconds:.1} s")?,
        }
        f.write_str("; what the program did later is not in the numbers")?;
        match self.missed {
            0 => Ok(()),
            1 => f.write_str(" (1 event)"),
            count => write!(f, " ({count} events)"),
        }
    }
}

/// Something about a recording that its reader should know, and that did not hinder reading on.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub enum Finding {
    /// The file ends inside of a segment or chunk, and a part of it is missing.
    TornTail {
        /// Where the incomplete part begins.
        offset: u64,
        /// How much of it is there and cannot be read.
        lost_bytes: u64,
    },
    /// The header of a segment is damaged, so nothing in the segment can be read.
    DamagedSegment {
        /// Where it begins.
        offset: u64,
        /// The problem.
        error: SegmentError,
    },
    /// From one record on, nothing in a segment can be read.
    DamagedRecords {
        /// Where the segment begins.
        offset: u64,
        /// The problem, and its place in the segment.
        error: BadRecord,
        /// How many committed bytes cannot be read.
        lost_bytes: u64,
    },
    /// The frames of an interpreter in the process are not in the stacks.
    NoInterpretedFrames(Interpreter),
    /// Segments of a thread are missing between others.
    MissingSegments {
        /// The thread.
        thread: u32,
        /// How many.
        count: u64,
    },
    /// A chunk is damaged, so what it holds is missing.
    DamagedChunk {
        /// Where it begins.
        offset: u64,
        /// Expected kind of the chunk.
        kind: ChunkKind,
        /// The problem.
        problem: &'static str,
    },
    /// Bytes between chunks are damaged; reading went on at the next chunk that is intact.
    SkippedBytes {
        /// Where they begin.
        offset: u64,
        /// How many.
        count: u64,
    },
    /// A chunk of a kind that is not known here.
    UnknownChunk {
        /// Where it begins.
        offset: u64,
        /// Its kind.
        kind: ChunkKind,
    },
    /// The sums that a packed recording stores beside its events are unusable.
    ///
    /// The events were read in their place.
    UnusableSums {
        /// Where they begin.
        offset: u64,
        /// The problem.
        problem: &'static str,
    },
    /// A packed recording was not closed, so it has no index; it was found again by one scan.
    NoIndex,
    /// A packed recording was closed, and its index is damaged; it was found again by one scan.
    DamagedIndex,
    /// Events of a packed recording are damaged; its sums, which are older than the damage,
    /// answered.
    DamagedBehindSums {
        /// Where the chunk begins.
        offset: u64,
        /// Expected kind of the chunk.
        kind: ChunkKind,
        /// The problem.
        problem: &'static str,
    },
    /// Rows of the stack, address or module tables contradict the format and were left out.
    BadTableRows {
        /// How many.
        count: u64,
    },
    /// Nothing tells how fast the counter runs, so times are in its own units as if they were
    /// nanoseconds.
    UnknownClock,
    /// The wall clock was set, or the machine slept, between two readings of the clocks.
    ClockJump {
        /// When, from the start.
        nanos: u64,
        /// By how much the wall clock went ahead of the monotonic one.
        by_nanos: i64,
    },
    /// The program counted events or stacks that it could not record.
    Lost {
        /// Kind and reason of the loss.
        kind: LossKind,
        /// How many.
        count: u64,
    },
    /// The recording ended before the program did.
    EndedEarly(EndedEarly),
    /// The recording has no end: the program still runs, or it was killed.
    NoEnd,
    /// The program still runs and is recorded: what it did until a moment was read.
    Growing(Growth),
    /// The program wrote to these segments again while they were read: what they held is missing.
    Overwritten {
        /// How many.
        segments: u64,
    },
    /// A packed recording was not closed, because its drain process was stopped. The events after
    /// that are in the spool.
    NotClosed,
    /// The recording was not closed, because cairn itself was killed.
    ///
    /// The events that it had not written were read from the program's spool.
    Continued {
        /// The spool.
        spool: PathBuf,
    },
    /// In a spool: these segments were drained into a packed recording, and given back to the
    /// program. Their events are there.
    Drained {
        /// How many.
        segments: u64,
    },
}

impl Finding {
    /// Whether a part of the file is damaged or missing, so that commands end with exit code 3.
    /// Losses of the program itself, and events that it did not get to write, are no damage.
    #[must_use]
    pub fn is_damage(&self) -> bool {
        match self {
            Self::TornTail { .. }
            | Self::DamagedSegment { .. }
            | Self::DamagedRecords { .. }
            | Self::MissingSegments { .. }
            | Self::DamagedChunk { .. }
            | Self::DamagedIndex
            | Self::DamagedBehindSums { .. }
            | Self::SkippedBytes { .. }
            | Self::BadTableRows { .. }
            | Self::Overwritten { .. } => true,
            Self::UnknownChunk { .. }
            | Self::UnusableSums { .. }
            | Self::NoIndex
            | Self::UnknownClock
            | Self::ClockJump { .. }
            | Self::Lost { .. }
            | Self::NoEnd
            | Self::NotClosed
            | Self::Continued { .. }
            | Self::EndedEarly(_)
            | Self::Growing(_)
            | Self::NoInterpretedFrames(_)
            | Self::Drained { .. } => false,
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TornTail { offset, lost_bytes } => {
                write!(f, "the file ends inside of what begins at byte {offset}; {lost_bytes} bytes are lost")
            }
            Self::DamagedSegment { offset, error } => write!(f, "segment at byte {offset}: {error}"),
            Self::DamagedRecords { offset, error, lost_bytes } => {
                write!(f, "segment at byte {offset}: {error}; {lost_bytes} bytes are lost")
            }
            Self::MissingSegments { thread, count } => {
                write!(f, "{count} segments of thread {thread} are missing")
            }
            Self::DamagedChunk { offset, kind, problem } => {
                write!(f, "chunk {kind} at byte {offset}: {problem}; what it held is missing")
            }
            Self::SkippedBytes { offset, count } => {
                write!(f, "{count} damaged bytes at byte {offset} were skipped")
            }
            Self::UnknownChunk { offset, kind } => {
                write!(f, "chunk {kind} at byte {offset} is of a kind that this cairn does not know")
            }
            Self::UnusableSums { offset, problem } => {
                write!(f, "the sums stored at byte {offset} are of no use: {problem}; the events were read instead")
            }
            Self::DamagedIndex => f.write_str(
                "the index is damaged; it was made again from the chunks that were found, and others may be missing",
            ),
            Self::DamagedBehindSums { offset, kind, problem } => write!(
                f,
                "chunk {kind} at byte {offset}: {problem}; these numbers are sums from before the damage, and its events \
                 cannot be read any more"
            ),
            Self::NoIndex => f.write_str("the recording was not closed; its index was made again"),
            Self::BadTableRows { count } => write!(f, "{count} rows of tables contradict the format"),
            Self::UnknownClock => {
                f.write_str("nothing tells how fast the counter runs; times are in its units")
            }
            Self::ClockJump { nanos, by_nanos } => {
                let (after, by) = (*nanos as f64 / 1e9, *by_nanos as f64 / 1e9);
                write!(f, "after {after:.3} s the wall clock jumped by {by:+.3} s")
            }
            Self::Lost { kind, count } => match kind {
                LossKind::NoStorage => write!(f, "{count} events were lost: no storage was left"),
                LossKind::NestedTooDeep => write!(f, "{count} events in nested signal handlers were lost"),
                LossKind::NoStackMemory => {
                    write!(f, "{count} events have no stack: no memory was left for it")
                }
                LossKind::WideAddress => {
                    write!(f, "{count} events at addresses of more than 48 bits were lost")
                }
                LossKind::Overwritten => write!(f, "{count} older events were overwritten, as asked for"),
                LossKind::CodeNames => write!(
                    f,
                    "{count} bytes of the names of generated code were not stored: there were more than a \
                     recording holds"
                ),
                LossKind::UnreadFrames => write!(
                    f,
                    "{count} stacks have native frames only: their Python frames could not be read, lay below more \
                     than 4096 native frames, or were of a subinterpreter of Python 3.11 or older"
                ),
                LossKind::Passing => write!(
                    f,
                    "calls through {count} places in modules are not recorded: they are bound to the C library past the \
                     program's allocator (RTLD_DEEPBIND)"
                ),
                _ => write!(f, "{count} events were lost"),
            },
            Self::NoInterpretedFrames(interpreter) => {
                let version = interpreter.version_text().map_or(String::new(), |text| format!(" {text}"));
                let why = match interpreter.state() {
                    InterpreterState::FreeThreaded => "a build without a global lock is not supported",
                    InterpreterState::NotExported => "it does not export what leads to them",
                    InterpreterState::OtherLayout => {
                        "its data are not where this version has them, as in a debug build"
                    }
                    InterpreterState::OtherProcessor => "they are read on x86-64 only",
                    _ => "this version is not supported",
                };
                write!(f, "stacks have no Python frames: Python{version}: {why}")?;
                if !interpreter.has_all_objects() {
                    f.write_str("; objects of up to 512 bytes are not counted")?;
                }
                Ok(())
            }
            Self::EndedEarly(ended) => ended.fmt(f),
            Self::NoEnd => f.write_str("the recording has no end: the program still runs, was killed, or ended without `exit`"),
            Self::Growing(growth) => growth.fmt(f),
            Self::Overwritten { segments } => write!(
                f,
                "{segments} segments of the recording were overwritten while they were read; their events are missing"
            ),
            Self::NotClosed => f.write_str(
                "the recording was not closed: cairn still writes it, or was stopped; what followed is in the program's spool, \
                 which is of the same name without .new, and is read like any recording",
            ),
            Self::Continued { spool } => write!(
                f,
                "cairn was stopped while it wrote this recording; what it had not written was read from the program's spool {}. Blocks \
                 from before that point whose frees came after it seem to live",
                spool.display()
            ),
            Self::Drained { segments } => write!(
                f,
                "{segments} segments of {} KiB were drained from this spool into a packed recording, and their events and tables \
                 are there alone; its name is the spool's with .new behind it, and it is read like any recording",
                cairn_format::recording::SEGMENT_BYTES / 1024
            ),
        }
    }
}
