//! The header at the start of every recording, and in front of every chunk of a packed one.

use core::fmt;

use super::check_sum;
use crate::bytes::array_at;

/// The first eight bytes of every recording. A transfer that converts line ends or strips the
/// eighth bit damages them.
pub const MAGIC: [u8; 8] = *b"\x89CAIRN\r\n";
/// The version that this crate writes, and the newest it reads.
pub const VERSION: u32 = 1;
/// Bytes of a [`FileHeader`].
pub const FILE_HEADER_BYTES: usize = 64;
/// Bytes of a [`ChunkHeader`].
pub const CHUNK_HEADER_BYTES: usize = 32;
/// A chunk has no more bytes than this when unpacked.
pub const MAX_CHUNK_BYTES: usize = 1 << 22;
/// A chunk has no more bytes than this when unpacked for each one that is stored.
pub const MAX_CHUNK_RATIO: usize = 64;
/// Maximum ratio of unpacked to stored bytes in a chunk of [`ChunkKind::HEAP_STREAM`].
///
/// Even a program that repeats itself exactly compresses hardly better than this.
pub const MAX_STREAM_RATIO: usize = 256;
/// Window of [`ChunkKind::HEAP_STREAM`] in unpacked bytes, as a power of two.
///
/// A chunk refers back no further than this.
pub const STREAM_WINDOW_BITS: u32 = 22;
/// First eight bytes of the trailer that ends a packed recording that was closed.
///
/// The offset of the index follows as a u64.
pub const TRAILER_MAGIC: [u8; 8] = *b"CAIRNEND";
/// Bytes of the trailer.
pub const TRAILER_BYTES: usize = 16;

/// Shape of the data behind the header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shape {
    /// Segments, as the program writes them.
    Spool,
    /// Chunks, as `cairn` packs them.
    Packed,
}

/// Source of the times of events.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CounterKind {
    /// The time stamp counter of x86.
    TimeStampCounter,
    /// The virtual counter of AArch64.
    VirtualCounter,
    /// `CLOCK_MONOTONIC`, in nanoseconds.
    MonotonicNanos,
}

/// The first 64 bytes of a recording, little-endian:
///
/// ```text
///    0  magic: 8 bytes        24  counter kind: u32         48  counter at start: u64
///    8  version: u32          28  process id: u32           56  stamp interval: u32
///   12  shape: u32            32  wall clock at start: u64  60  FNV-1a of bytes 0..60: u32
///   16  address bits: u32     40  monotonic at start: u64
///   20  ELF machine: u32          (both in nanoseconds)
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileHeader {
    /// Shape of the data behind the header.
    pub shape: Shape,
    /// Width of an address in the recorded process: 32 or 64.
    pub address_bits: u32,
    /// The processor, as `e_machine` of an ELF file: 62 for x86-64, 183 for AArch64.
    pub machine: u32,
    /// Source of the times of events.
    pub counter: CounterKind,
    /// The process that was recorded.
    pub process: u32,
    /// Nanoseconds since 1970 when recording began.
    pub start_wall_nanos: u64,
    /// `CLOCK_MONOTONIC` then.
    pub start_monotonic_nanos: u64,
    /// The counter then.
    pub start_counter: u64,
    /// At most how many heap events of a thread lie between two stamps.
    pub stamp_interval: u32,
}

impl FileHeader {
    /// The bytes.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; FILE_HEADER_BYTES] {
        let mut bytes = [0; FILE_HEADER_BYTES];
        let shape: u32 = match self.shape {
            Shape::Spool => 1,
            Shape::Packed => 2,
        };
        let counter: u32 = match self.counter {
            CounterKind::TimeStampCounter => 1,
            CounterKind::VirtualCounter => 2,
            CounterKind::MonotonicNanos => 3,
        };
        let mut put = |at: usize, value: &[u8]| {
            if let Some(place) = bytes.get_mut(at..at + value.len()) {
                place.copy_from_slice(value);
            }
        };
        put(0, &MAGIC);
        put(8, &VERSION.to_le_bytes());
        put(12, &shape.to_le_bytes());
        put(16, &self.address_bits.to_le_bytes());
        put(20, &self.machine.to_le_bytes());
        put(24, &counter.to_le_bytes());
        put(28, &self.process.to_le_bytes());
        put(32, &self.start_wall_nanos.to_le_bytes());
        put(40, &self.start_monotonic_nanos.to_le_bytes());
        put(48, &self.start_counter.to_le_bytes());
        put(56, &self.stamp_interval.to_le_bytes());
        let sum = check_sum(bytes.get(..60).unwrap_or_default());
        if let Some(place) = bytes.last_chunk_mut() {
            *place = sum.to_le_bytes();
        }
        bytes
    }

    /// Reads the header at the start of `file`.
    ///
    /// # Errors
    ///
    /// [`HeaderError`], which says what is wrong and at which byte.
    pub fn read(file: &[u8]) -> Result<Self, HeaderError> {
        let found = file.get(..MAGIC.len().min(file.len())).unwrap_or_default();
        if found != MAGIC {
            return Err(if MAGIC.starts_with(found) { HeaderError::Short } else { HeaderError::NoRecording });
        }
        let header: &[u8; FILE_HEADER_BYTES] = file.first_chunk().ok_or(HeaderError::Short)?;
        let word = |at: usize| array_at(header, at).map_or(0, u32::from_le_bytes);
        let long = |at: usize| array_at(header, at).map_or(0, u64::from_le_bytes);
        // The version before the checksum: another version may have another one.
        let version = word(8);
        if version != VERSION {
            return Err(HeaderError::Version { found: version });
        }
        if word(60) != check_sum(header.get(..60).unwrap_or_default()) {
            return Err(HeaderError::Damaged);
        }
        Ok(Self {
            shape: match word(12) {
                1 => Shape::Spool,
                2 => Shape::Packed,
                found => return Err(HeaderError::Value { offset: 12, found }),
            },
            address_bits: match word(16) {
                bits @ (32 | 64) => bits,
                found => return Err(HeaderError::Value { offset: 16, found }),
            },
            machine: word(20),
            counter: match word(24) {
                1 => CounterKind::TimeStampCounter,
                2 => CounterKind::VirtualCounter,
                3 => CounterKind::MonotonicNanos,
                found => return Err(HeaderError::Value { offset: 24, found }),
            },
            process: word(28),
            start_wall_nanos: long(32),
            start_monotonic_nanos: long(40),
            start_counter: long(48),
            stamp_interval: word(56),
        })
    }
}

/// Why the start of a file cannot be read as that of a recording.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum HeaderError {
    /// It begins with other bytes than [`MAGIC`].
    NoRecording,
    /// It ends before the header does.
    Short,
    /// The checksum does not match.
    Damaged,
    /// It is of a version that is not known here.
    Version {
        /// The version.
        found: u32,
    },
    /// A field has a value that is not known here.
    Value {
        /// Where it is.
        offset: u32,
        /// The value.
        found: u32,
    },
}

impl fmt::Display for HeaderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRecording => f.write_str("no cairn recording: it begins with other bytes"),
            Self::Short => {
                write!(f, "cut inside the header: a recording has at least {FILE_HEADER_BYTES} bytes")
            }
            Self::Damaged => f.write_str("damaged header: the checksum at byte 60 does not match"),
            Self::Version { found } => write!(
                f,
                "unknown format version {found} at byte 8 (this cairn reads {VERSION}); use a newer cairn"
            ),
            Self::Value { offset, found } => {
                write!(f, "unknown value {found} at byte {offset} of the header; use a newer cairn")
            }
        }
    }
}

impl core::error::Error for HeaderError {}

/// Kind of a chunk. Readers skip kinds that they do not know.
///
/// ```
/// use cairn_format::recording::ChunkKind;
/// assert_eq!(ChunkKind::MARKS.to_string(), "MARK");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ChunkKind(pub [u8; 4]);

impl ChunkKind {
    /// Facts of the process: name and value.
    pub const FACTS: Self = Self(*b"FACT");
    /// Modules, one row for each load.
    pub const MODULES: Self = Self(*b"MODU");
    /// Numbered addresses.
    pub const ADDRESSES: Self = Self(*b"ADDR");
    /// Nodes of the stack tree.
    pub const STACKS: Self = Self(*b"STCK");
    /// Code of interpreters, and the interpreters.
    pub const CODE: Self = Self(*b"CODE");
    /// Threads.
    pub const THREADS: Self = Self(*b"THRD");
    /// Marks.
    pub const MARKS: Self = Self(*b"MARK");
    /// Allocations and frees, each chunk compressed separately.
    ///
    /// Writers used it before [`HEAP_STREAM`](Self::HEAP_STREAM) existed.
    pub const HEAP: Self = Self(*b"HEAP");
    /// Allocations and frees, compressed as one stream.
    pub const HEAP_STREAM: Self = Self(*b"HEP2");
    /// Readings of the clocks.
    pub const CLOCKS: Self = Self(*b"CLCK");
    /// Everything rarer: modules and threads coming and going, mappings, the use of memory, losses.
    pub const CHANGES: Self = Self(*b"CHNG");
    /// Position up to which the spool was read when everything before this chunk was written.
    ///
    /// A recording that was not closed is continued from the spool at this position.
    pub const PROGRESS: Self = Self(*b"PROG");
    /// A piece of a file in which a JIT compiler names its code.
    pub const GENERATED: Self = Self(*b"JITC");
    /// Totals of the recording, so that a report of totals reads one chunk.
    pub const SUMMARY: Self = Self(*b"SUMM");
    /// Sums of all events, so that a report need not read the events.
    pub const SUMS: Self = Self(*b"SUMS");
    /// Sums of each slice of time.
    ///
    /// They answer questions about any stretch of time without reading the events.
    pub const SLICES: Self = Self(*b"SLCS");
    /// Where the chunks are; the last chunk of a recording that was closed.
    pub const INDEX: Self = Self(*b"INDX");
}

impl fmt::Display for ChunkKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.escape_ascii())
    }
}

/// In front of every chunk of a packed recording, little-endian:
///
/// ```text
///    0  kind: 4 bytes          16  first time: u64        28  FNV-1a of bytes 0..28: u32
///    4  stored bytes: u32      24  CRC-32 of the stored
///    8  bytes when unpacked: u32   bytes: u32
///   12  events: u32
/// ```
///
/// The stored bytes follow, then zeros up to a multiple of eight. They are one zstd frame, or
/// several, skippable ones included, unless as many are stored as there are unpacked: then they are
/// stored as they are. At most [`MAX_CHUNK_BYTES`] when unpacked, and at most [`MAX_CHUNK_RATIO`]
/// times as many as are stored, so that a small file cannot make its reader take much memory; a
/// writer whose bytes compress better than that adds a skippable frame.
///
/// Those of the kind [`ChunkKind::HEAP_STREAM`] are the next piece of one zstd stream over all
/// chunks of that kind, at most [`MAX_STREAM_RATIO`] times as many as are stored when unpacked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChunkHeader {
    /// Kind of the chunk.
    pub kind: ChunkKind,
    /// How many bytes follow the header.
    pub stored_bytes: u32,
    /// How many bytes these are when unpacked.
    pub unpacked_bytes: u32,
    /// How many events or entries these are.
    pub events: u32,
    /// Nanoseconds from the start of the recording to the first event; 0 where the kind has no
    /// times.
    pub first_nanos: u64,
    /// CRC-32 (IEEE) of the stored bytes.
    pub check: u32,
}

impl ChunkHeader {
    /// The bytes.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; CHUNK_HEADER_BYTES] {
        let mut bytes = [0; CHUNK_HEADER_BYTES];
        let parts: [(usize, &[u8]); 6] = [
            (0, &self.kind.0),
            (4, &self.stored_bytes.to_le_bytes()),
            (8, &self.unpacked_bytes.to_le_bytes()),
            (12, &self.events.to_le_bytes()),
            (16, &self.first_nanos.to_le_bytes()),
            (24, &self.check.to_le_bytes()),
        ];
        for (at, part) in parts {
            if let Some(place) = bytes.get_mut(at..at + part.len()) {
                place.copy_from_slice(part);
            }
        }
        let sum = check_sum(bytes.get(..28).unwrap_or_default());
        if let Some(place) = bytes.last_chunk_mut() {
            *place = sum.to_le_bytes();
        }
        bytes
    }

    /// Reads the header at the start of `bytes`.
    ///
    /// Returns `None` when there are too few bytes or their checksum does not match.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let header: &[u8; CHUNK_HEADER_BYTES] = bytes.first_chunk()?;
        let word = |at: usize| array_at(header, at).map_or(0, u32::from_le_bytes);
        let intact = word(28) == check_sum(header.get(..28)?);
        intact.then_some(Self {
            kind: ChunkKind(array_at(header, 0)?),
            stored_bytes: word(4),
            unpacked_bytes: word(8),
            events: word(12),
            first_nanos: array_at(header, 16).map_or(0, u64::from_le_bytes),
            check: word(24),
        })
    }
}
