//! The table that stack numbers refer to, in the memory of the program itself.
//!
//! A stack is the stack of its caller and one frame more, so a table of (parent, frame) holds all
//! stacks, and a parent has a smaller number than its children. Its head, found through an
//! [`Anchor`](super::Anchor), and its segments:
//!
//! ```text
//!   head, at a multiple of 8        0 magic, 16 bytes        24 end 32          32 + 8 k   address of segment k, 64,
//!                                  16 version 32 = 1         28 segments 32                0: none of its entries is there
//!                                  20 entries a segment 32, as logarithm
//!
//!   entry of stack n: number n % 2^logarithm of segment n >> logarithm
//!                                   0 address 64             8 parent 32        12 kind 32
//! ```
//!
//! Numbers have the machine's byte order and these widths on every machine. `end` is larger than
//! every number in use. An entry is written whole before any block can refer to it, its kind last.
//!
//! ```
//! use cairn_format::{AbsoluteAddress, Frame};
//! use cairn_wire::heapblock::{ByteOrder, stack_table::{Entry, FrameKind, Head}};
//!
//! let head = Head { segment_entries_log2: 16, end: 70_000, segment_count: 2 };
//! assert_eq!(head.place_of(65_540), Some((1, 4 * 16)));
//! assert_eq!(head.place_of(70_000), None);
//!
//! let entry = Entry { address: 0x40_1136, parent: 65_530, kind: FrameKind::ReturnAddress };
//! let found = Entry::from_bytes(entry.to_bytes(ByteOrder::LittleEndian), 65_540, ByteOrder::LittleEndian)?;
//! assert_eq!(found.frame(), Frame::ReturnAddress(AbsoluteAddress::new(0x40_1136)));
//! # Ok::<(), cairn_wire::heapblock::stack_table::TableError>(())
//! ```

use core::fmt;

use super::ByteOrder;
use cairn_format::{AbsoluteAddress, Frame};

/// The first bytes of a head.
pub const HEAD_MAGIC: [u8; 16] = *b"cairn's stacks:\n";

/// Size of a head without the addresses of the segments.
pub const HEAD_BYTES: usize = 32;

/// Size of an entry.
pub const ENTRY_BYTES: usize = 16;

/// Most segments that a head may state. So a damaged one makes nobody read gigabytes.
pub const MAX_SEGMENTS: u32 = 1 << 16;

const VERSION: u32 = 1;

/// The first part of a table, after which the addresses of the segments stand.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Head {
    /// The logarithm, to base 2, of how many entries a segment has; at most 28.
    pub segment_entries_log2: u32,
    /// Larger than every number in use.
    pub end: u32,
    /// How many addresses of segments follow.
    pub segment_count: u32,
}

/// Kinds of an entry's frame.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u32)]
pub enum FrameKind {
    /// The address of an instruction that was interrupted.
    ProgramCounter = 1,
    /// A return address.
    ReturnAddress = 2,
    /// Nothing: the stack went on from here and could not be followed.
    Truncated = 3,
}

/// A stack: that of its caller, and one frame more.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Entry {
    /// Where in the code; 0 for [`FrameKind::Truncated`].
    pub address: u64,
    /// The number of the caller's stack; 0 for none.
    pub parent: u32,
    /// Kind of the address.
    pub kind: FrameKind,
}

/// Why bytes are not what they should be.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum TableError {
    /// There are fewer bytes than the head has.
    TooShort,
    /// The first 16 bytes are others.
    NoMagic,
    /// A version that this one does not read.
    UnknownVersion(u32),
    /// Segments larger, or more of them, than any table has.
    TooLarge,
    /// The entry is empty: no stack has this number.
    NoEntry,
    /// The entry has a kind that there is not, or a parent that is not smaller than itself.
    DamagedEntry,
}

impl fmt::Display for TableError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooShort => write!(f, "fewer bytes than the {HEAD_BYTES} of a stack table's head"),
            Self::NoMagic => f.write_str("no stack table: the magic is missing"),
            Self::UnknownVersion(version) => {
                write!(f, "a stack table of version {version} (this one reads {VERSION}); use a newer cairn")
            }
            Self::TooLarge => f.write_str("the head of a stack table states more than any table has"),
            Self::NoEntry => f.write_str("no stack has this number"),
            Self::DamagedEntry => f.write_str("the entry of this stack is damaged"),
        }
    }
}

impl core::error::Error for TableError {}

impl Head {
    /// Returns the bytes in front of the addresses of the segments.
    #[must_use]
    pub fn to_bytes(&self, order: ByteOrder) -> [u8; HEAD_BYTES] {
        let mut bytes = [0; HEAD_BYTES];
        let (magic, rest) = bytes.split_at_mut(HEAD_MAGIC.len());
        magic.copy_from_slice(&HEAD_MAGIC);
        let fields = [VERSION, self.segment_entries_log2, self.end, self.segment_count];
        for (place, field) in rest.chunks_exact_mut(4).zip(fields) {
            place.copy_from_slice(&order.u32_bytes(field));
        }
        bytes
    }

    /// Returns what the head at the start of `bytes` says.
    ///
    /// # Errors
    ///
    /// See [`TableError`].
    pub fn parse(bytes: &[u8], order: ByteOrder) -> Result<Self, TableError> {
        let bytes: &[u8; HEAD_BYTES] = bytes.first_chunk().ok_or(TableError::TooShort)?;
        if !bytes.starts_with(&HEAD_MAGIC) {
            return Err(TableError::NoMagic);
        }
        // All are inside of the array.
        let field = |offset| order.u32_at(bytes, offset).unwrap_or_default();
        if field(16) != VERSION {
            return Err(TableError::UnknownVersion(field(16)));
        }
        let head = Self { segment_entries_log2: field(20), end: field(24), segment_count: field(28) };
        if head.segment_entries_log2 > 28 || head.segment_count > MAX_SEGMENTS {
            return Err(TableError::TooLarge);
        }
        Ok(head)
    }

    /// Where the entry of a stack is: which segment, and how many bytes into it. `None` for a
    /// number that is not in use.
    #[must_use]
    pub const fn place_of(&self, number: u32) -> Option<(u32, u64)> {
        if number == 0 || number >= self.end || self.segment_entries_log2 > 28 {
            return None;
        }
        let segment = number >> self.segment_entries_log2;
        if segment >= self.segment_count {
            return None;
        }
        let index = number & ((1 << self.segment_entries_log2) - 1);
        Some((segment, index as u64 * ENTRY_BYTES as u64))
    }
}

impl Entry {
    /// Returns the entry's bytes.
    #[must_use]
    pub fn to_bytes(&self, order: ByteOrder) -> [u8; ENTRY_BYTES] {
        let mut bytes = [0; ENTRY_BYTES];
        bytes[..8].copy_from_slice(&order.u64_bytes(self.address));
        bytes[8..12].copy_from_slice(&order.u32_bytes(self.parent));
        bytes[12..].copy_from_slice(&order.u32_bytes(self.kind as u32));
        bytes
    }

    /// Returns what the entry of stack `number` says. A walk from parent to parent ends, because
    /// parents are smaller.
    ///
    /// # Errors
    ///
    /// [`TableError::NoEntry`] or [`TableError::DamagedEntry`].
    pub fn from_bytes(bytes: [u8; ENTRY_BYTES], number: u32, order: ByteOrder) -> Result<Self, TableError> {
        // All are inside of the array.
        let address = order.u64_at(&bytes, 0).unwrap_or_default();
        let parent = order.u32_at(&bytes, 8).unwrap_or_default();
        let kind = match order.u32_at(&bytes, 12).unwrap_or_default() {
            0 => return Err(TableError::NoEntry),
            1 => FrameKind::ProgramCounter,
            2 => FrameKind::ReturnAddress,
            3 => FrameKind::Truncated,
            _ => return Err(TableError::DamagedEntry),
        };
        if parent >= number {
            return Err(TableError::DamagedEntry);
        }
        Ok(Self { address, parent, kind })
    }

    /// Its frame.
    #[must_use]
    pub const fn frame(&self) -> Frame {
        let address = AbsoluteAddress::new(self.address);
        match self.kind {
            FrameKind::ProgramCounter => Frame::ProgramCounter(address),
            FrameKind::ReturnAddress => Frame::ReturnAddress(address),
            FrameKind::Truncated => Frame::Truncated,
        }
    }
}
