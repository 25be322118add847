//! The header of every segment of a spool.

use core::fmt;

use super::check_sum;
use crate::bytes::array_at;

/// Size of a segment, and of the header and control words that stand in place of segment 0.
pub const SEGMENT_BYTES: usize = 1 << 16;
/// Bytes of a [`SegmentHeader`]; records begin behind it.
pub const SEGMENT_HEADER_BYTES: usize = 64;

const SEGMENT_MAGIC: u32 = u32::from_le_bytes(*b"CBLK");

/// Which of its thread's two sequences of events a segment belongs to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Lane {
    /// Normal execution of the thread.
    Outer,
    /// A signal handler that interrupted the recorder. Each of these events has a stamp.
    Nested,
}

/// The first 64 bytes of a segment, little-endian:
///
/// ```text
///    0  "CBLK"                 16  committed bytes: u64     40  number of the claim: u64
///    4  thread: u32            24  counter at claim: u64    48  flags: u64, then zero
///    8  lane: u32              32  kernel's thread id: u32
///   12  sequence: u32          36  FNV-1a of bytes 0..16 and 24..36: u32
/// ```
///
/// Bit 0 of the byte at 48 is [`has_no_tables`](Self::has_no_tables); the other bits are zero.
///
/// `committed` counts from the start of the segment and only grows, by a release store behind each
/// record; it is the one field that changes, and not covered by the checksum.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentHeader {
    /// The recorder's number for the thread: from 1, and never given twice.
    pub thread: u32,
    /// Which of its sequences.
    pub lane: Lane,
    /// Place of this segment in that sequence, from 0.
    pub sequence: u32,
    /// Where the records end.
    pub committed_bytes: u64,
    /// The counter when the thread took the segment.
    pub counter: u64,
    /// Thread identifier of the kernel.
    pub kernel_thread: u32,
    /// Number of the claim, which grows with every segment that any thread takes.
    ///
    /// It distinguishes a reused segment from its earlier contents.
    pub claim: u64,
    /// True if the writer promises that this segment has no module, address or word of the stack
    /// tree.
    ///
    /// A reader of a part of the time skips such segments of other times. A segment without the
    /// promise may hold anything.
    pub has_no_tables: bool,
}

const NO_TABLES: u64 = 1;

impl SegmentHeader {
    /// Where [`committed_bytes`](Self::committed_bytes) is.
    pub const COMMITTED_OFFSET: usize = 16;

    /// The bytes.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; SEGMENT_HEADER_BYTES] {
        let mut bytes = [0; SEGMENT_HEADER_BYTES];
        let lane: u32 = match self.lane {
            Lane::Outer => 0,
            Lane::Nested => 1,
        };
        let flags = if self.has_no_tables { NO_TABLES } else { 0 };
        let parts: [(usize, &[u8]); 9] = [
            (0, &SEGMENT_MAGIC.to_le_bytes()),
            (4, &self.thread.to_le_bytes()),
            (8, &lane.to_le_bytes()),
            (12, &self.sequence.to_le_bytes()),
            (16, &self.committed_bytes.to_le_bytes()),
            (24, &self.counter.to_le_bytes()),
            (32, &self.kernel_thread.to_le_bytes()),
            (40, &self.claim.to_le_bytes()),
            (48, &flags.to_le_bytes()),
        ];
        for (at, part) in parts {
            if let Some(place) = bytes.get_mut(at..at + part.len()) {
                place.copy_from_slice(part);
            }
        }
        let sum = Self::sum(&bytes);
        if let Some(place) = bytes.get_mut(36..40) {
            place.copy_from_slice(&sum.to_le_bytes());
        }
        bytes
    }

    fn sum(bytes: &[u8; SEGMENT_HEADER_BYTES]) -> u32 {
        let (front, back) = (bytes.get(..16).unwrap_or_default(), bytes.get(24..36).unwrap_or_default());
        check_sum(front.iter().chain(back))
    }

    /// Reads the header of `segment`.
    ///
    /// While the program still runs, the caller reads `committed_bytes` itself.
    ///
    /// # Errors
    ///
    /// [`SegmentError::Unused`] where nothing was ever written, which is no damage.
    pub fn read(segment: &[u8]) -> Result<Self, SegmentError> {
        let header: &[u8; SEGMENT_HEADER_BYTES] = segment.first_chunk().ok_or(SegmentError::Short)?;
        let word = |at: usize| array_at(header, at).map_or(0, u32::from_le_bytes);
        let long = |at: usize| array_at(header, at).map_or(0, u64::from_le_bytes);
        // Set to 0 before a header is written and to its own length after it: a process may die
        // between the two.
        if long(16) == 0 {
            return Err(SegmentError::Unused);
        }
        if word(0) != SEGMENT_MAGIC || word(36) != Self::sum(header) {
            return Err(SegmentError::Damaged);
        }
        let committed_bytes = long(16);
        if !(SEGMENT_HEADER_BYTES as u64..=SEGMENT_BYTES as u64).contains(&committed_bytes)
            || committed_bytes % 8 != 0
        {
            return Err(SegmentError::Committed { found: committed_bytes });
        }
        Ok(Self {
            thread: word(4),
            lane: match word(8) {
                0 => Lane::Outer,
                1 => Lane::Nested,
                _ => return Err(SegmentError::Damaged),
            },
            sequence: word(12),
            committed_bytes,
            counter: long(24),
            kernel_thread: word(32),
            claim: long(40),
            has_no_tables: long(48) & NO_TABLES != 0,
        })
    }
}

/// Why a segment cannot be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SegmentError {
    /// No thread has taken it, or one was just about to.
    Unused,
    /// The file ends in its header.
    Short,
    /// Its header is none, or the checksum does not match.
    Damaged,
    /// It claims to hold more than a segment can, less than nothing, or a part of a slot.
    Committed {
        /// Number of bytes that the header claims.
        found: u64,
    },
}

impl fmt::Display for SegmentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unused => f.write_str("segment was never used"),
            Self::Short => f.write_str("file ends in the header of a segment"),
            Self::Damaged => f.write_str("damaged header of a segment"),
            Self::Committed { found } => {
                write!(
                    f,
                    "segment claims {found} committed bytes; at least {SEGMENT_HEADER_BYTES}, at most {SEGMENT_BYTES} can be, in whole slots"
                )
            }
        }
    }
}

impl core::error::Error for SegmentError {}
