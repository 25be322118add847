//! Reads recordings (`*.cairn`): what was loaded when, every stack, and every event in order.
//!
//! ```no_run
//! use cairn_recording::{Alloc, Events, Free, Recording, Wanted};
//!
//! /// How many bytes were in use at most?
//! #[derive(Default)]
//! struct Peak {
//!     now: u64,
//!     most: u64,
//! }
//!
//! impl Events for Peak {
//!     fn alloc(&mut self, event: &Alloc) {
//!         self.now += event.size_bytes;
//!         self.most = self.most.max(self.now);
//!     }
//!     fn free(&mut self, event: &Free) {
//!         self.now -= event.size_bytes;
//!     }
//! }
//!
//! let recording = Recording::open("program.4711.cairn")?;
//! let mut peak = Peak::default();
//! recording.read(&Wanted::HEAP, &mut peak)?;
//! println!("{} bytes", peak.most);
//! for finding in recording.findings() {
//!     eprintln!("note: {finding}");
//! }
//! # Ok::<(), cairn_recording::RecordingError>(())
//! ```
//!
//! A recording is a *spool*, as the program wrote it, or *packed*; both read alike. The remains of
//! a killed program or a full disk are read as far as possible, and [`Finding`]s report the
//! missing parts. Every byte may be a stranger's: sizes are compared with the bytes that exist
//! before memory is taken, numbers with their tables, and the memory that reading takes is a
//! multiple of the recording's length.
//!
//! | module | task |
//! |---|---|
//! | `opening` | opens a recording: bytes, kind, reader, findings |
//! | `recording` | the opened recording: its tables, and its events on demand |
//! | `files` | the two files of a recording, by name and header |
//! | `growth` | how far a recording was read that a program still writes |
//! | `live` | reads a recording while it grows |
//! | `source` | bytes from memory or a file |
//! | `model` | modules, stacks, threads and events, the same for every shape of file |
//! | `tables` | modules, addresses, stacks and threads while they are read |
//! | `code_file` | reads what JIT compilers say of their code |
//! | `clock` | converts the counter to nanoseconds and to the time of day |
//! | `spool` | reads spools: `scan` reads the tables, `follower` and `lane` read segments, `merge` orders the lanes, `pairing` pairs frees with allocations across threads, `deliver` calls the visitor, `reader` and `live` read events at rest and while they grow, `lives` separates threads that had one lane, `control_words` reads losses and ends, `ring` copies a ring, `external_marks` adds marks from other processes |
//! | `packed` | reads packed recordings: `chunk` finds chunks, `columns` and `rows` read numbers, `heap_events`, `marks` and `times` decode events, `zstd_stream` decompresses, `live` reads one that grows, `progress` joins one with the rest of its spool |
//! | `write` | `drain` packs the spool of a running program, `pack` packs a whole recording |
//! | `summary` | sums of all events, stored behind them |
//! | `prefetch` | loads memory before it is needed |
//! | `mapped_file` | memory shared with the program, and large tables; the one file with unsafe code |
//! | [`spool_builder`] | builds a spool from stacks and marks that were found in another way |

#![deny(unsafe_code)]
#![cfg_attr(
    not(target_os = "linux"),
    allow(dead_code, unused_imports, reason = "spools are drained and closed on Linux alone")
)]

mod clock;
mod code_file;
mod error;
mod files;
mod generated;
mod growth;
mod live;
#[cfg(target_os = "linux")]
mod mapped_file;
mod model;
mod opening;
mod packed;
mod prefetch;
mod recording;
mod source;
mod spool;
pub mod spool_builder;
mod summary;
mod tables;
mod write;

pub use clock::TimeScale;
pub use code_file::code_file;
pub use error::{EndedEarly, Finding, RecordingError};
pub use files::{drained_from, drained_into, is_drained_at_present};
pub use generated::{CodeFileKind, CodePiece, GeneratedCode};
pub use growth::{Growth, is_written, nanos_since_start};
pub use live::{Live, is_running};
pub use model::{
    Alloc, At, Change, Events, Fact, Free, Mapping, Mark, Module, ModuleId, ObjectId, PcId, Place,
    StackFrame, StackId, Thread, ThreadId, Usage, Wanted,
};
pub use packed::columns::{Put, Take};
pub use prefetch::prefetch;
pub use recording::{Outcome, Recording};
#[cfg(not(target_os = "linux"))]
pub use spool::control_elsewhere::{command_from_outside, mark_from_outside};
#[cfg(target_os = "linux")]
pub use spool::external_marks::{
    announce_rename_in, command_from_outside, command_in, mark_from_outside, mark_in,
};
pub use summary::{Detail, StoredSummary};
pub use tables::{Code, Interpreter, StackTree};
#[cfg(target_os = "linux")]
pub use write::drain::{Drain, Status, code_files_of};
pub use write::pack::{Totals, pack};

pub use cairn_format::recording::{
    EndReason, InterpreterState, LineTableFormat, LossKind, MappingKind, MarkValue, PcKind, control,
};

/// Times of allocations and frees in packed recordings are multiples of this. Their order is exact.
pub const HEAP_TIME_QUANTUM_NANOS: u64 = 10_000;
