//! Recordings (`*.cairn`): what a program's recorder writes while the program runs, and what
//! `cairn` keeps of it.
//!
//! A recording has one of two shapes with one header in front, specified byte by byte in
//! `docs/book/reference/format.md`:
//!
//! - a **spool** is written by the program itself into a shared file mapping: [`FileHeader`] and
//!   [control words](control), then *segments* of 64 KiB, each written by one thread
//!   ([`SegmentHeader`]) and holds [`Record`]s of 8-byte slots;
//! - a **packed** recording is what `cairn` makes of a spool: *chunks* of compressed columns
//!   ([`ChunkHeader`]).
//!
//! Everything here is plain data: how the bytes lie, and readers that no input makes panic. The
//! memory that is shared with a running program is the recorder's business; the order of events
//! across threads and the pairing of frees with allocations are the analysis's.
//!
//! ```
//! use cairn_format::recording::{Record, RecordSink, Records};
//! let mut slots = [0; 16];
//! let mut sink = RecordSink::new(&mut slots);
//! sink.alloc(0x5581_0000_12a0, 4096, 7, 42)?;
//! sink.free(0x5581_0000_12a0, None)?;
//! let bytes: Vec<u8> = sink.written().iter().flat_map(|slot| slot.to_le_bytes()).collect();
//! let records: Result<Vec<_>, _> = Records::new(&bytes, 0).map(|record| record.map(|placed| placed.record)).collect();
//! assert_eq!(records?, [
//!     Record::Alloc { address: 0x5581_0000_12a0, size_bytes: 4096, epoch: 7, stack: 42 },
//!     Record::Free { address: 0x5581_0000_12a0, ticket: None },
//! ]);
//! # Ok::<(), Box<dyn core::error::Error>>(())
//! ```
//!
//! # Order without a clock
//!
//! Reading the processor's clock costs as much as a whole capture on some machines, so most events
//! carry none. Exact in spite of that:
//!
//! - events of one thread: they follow one another in its segments;
//! - **which allocation a free belongs to**, in any number of threads. A process keeps [`EPOCHS`]
//!   counters, one for each hash of an address ([`epoch_of`]). An allocation notes the counter's
//!   value *after* the real call (`epoch`). A free is *local*, and needs no more, when this thread
//!   made the block and the counter still has the value it had then, or when no other thread has
//!   recorded anything yet (without an allocation it is of a block that is older than the
//!   recording); any other free increments the counter *before* the real call, and what it was
//!   before is its `ticket`. So a free with ticket `t` releases the allocation of its address with
//!   the greatest epoch `<= t` that is not locally freed, and for any two events of one address, of
//!   whatever threads, it is known which came first.
//! - between two [`Stamp`](Record::Stamp)s of a thread lie few events and little time, so
//!   interpolation gives each its time; an event larger than [`STAMPED_BYTES`] has a stamp of its
//!   own in front, but for a free that needed no look at the counters because one thread alone had
//!   recorded.

pub mod control;
mod header;
mod record;
mod segment;

pub use header::{
    CHUNK_HEADER_BYTES, ChunkHeader, ChunkKind, CounterKind, FILE_HEADER_BYTES, FileHeader, HeaderError,
    MAGIC, MAX_CHUNK_BYTES, MAX_CHUNK_RATIO, MAX_STREAM_RATIO, STREAM_WINDOW_BITS, Shape, TRAILER_BYTES,
    TRAILER_MAGIC, VERSION,
};
pub use record::{
    ADDRESS_BITS, BadRecord, Clock, Code, EndReason, Frequent, FrequentKind, InterpreterState,
    LineTableFormat, LoadedModule, LossKind, MAX_CODE_LINES_BYTES, MAX_CODE_NAME_BYTES, MAX_MARK_TEXT_BYTES,
    MAX_TREE_WORDS, MappingKind, MarkValue, PcKind, Placed, Record, RecordSink, Records, STAMP_SHIFT, Sample,
    SinkTooSmall, ThreadEvent, WordIter,
};
pub use segment::{Lane, SEGMENT_BYTES, SEGMENT_HEADER_BYTES, SegmentError, SegmentHeader};

/// How many counters order the frees that are not local; a power of two.
pub const EPOCHS: usize = 256;

/// Smallest allocation, in bytes, with a [`Record::Stamp`] of its own in front. Its free has one
/// too if several threads record.
pub const STAMPED_BYTES: u64 = 4096;

/// Which of the [`EPOCHS`] counters orders the frees of `address`.
///
/// Neighbouring blocks get different counters, so that threads which free each other's blocks
/// rarely meet in one.
#[inline]
#[must_use]
pub const fn epoch_of(address: u64) -> usize {
    ((address >> 4).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as usize
}

const _: () = assert!(EPOCHS == 1 << 8);

/// FNV-1a over `bytes`: finds a damaged header, and is three lines in any language.
fn check_sum<'a>(bytes: impl IntoIterator<Item = &'a u8>) -> u32 {
    bytes.into_iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}
