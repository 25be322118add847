//! Finds the blob in front of an allocation.
//!
//! An allocator that records the requesting stack of each block puts the record before the bytes it
//! returns:
//!
//! ```text
//!   true allocation                                          list node                 user pointer
//!   v                                                        v                         v
//!   | pad, 0 to p-1 bytes | blob ............ | its length 2 | previous | next | owner | the caller's bytes ...
//!                         |<------------ L bytes ----------->|<------- 3 p bytes ----->|
//! ```
//!
//! with p bytes to a pointer. The pad brings blob and pad together to a multiple of p; it lies at
//! the *low* end, and nobody initializes it. From the user pointer, or from the list node (live
//! allocations form a list), everything is found backwards through the blob's length field.
//!
//! The C code adds this prefix to the allocation twice; the excess at the end harms nobody and is
//! not imitated. For a blob that says "gave up" (length field 0) its arithmetic yields a true
//! allocation that is one pointer too far; here the two bytes count as a blob of two.
//!
//! This module is arithmetic on byte slices: it reads memory images, and an allocator asks it how
//! much to allocate.
//!
//! ```
//! use cairn_format::WordSize;
//! use cairn_wire::lws::metadata;
//!
//! let layout = metadata::PrefixLayout::new(21, WordSize::Bits64).unwrap();
//! assert_eq!((layout.pad_bytes(), layout.list_node_offset(), layout.prefix_bytes()), (3, 24, 48));
//!
//! let mut image = vec![0xcc; 100]; // a block of 52 bytes for the user
//! image[3..24].copy_from_slice(b" ]\x01\x99D.\x80\xd0\xa4\x80)\xe4\x85\xd0\x18\xa5\x06\xba\xc0\x00\x15");
//! let found = metadata::find(&image, 48, WordSize::Bits64).unwrap();
//! assert_eq!(found.blob_offset, 3);
//! assert_eq!(found.true_allocation_offset, Some(0));
//! assert_eq!(cairn_wire::lws::decode(found.blob, WordSize::Bits64).unwrap().allocation_size_bytes, 7520);
//! ```

use core::fmt;

use crate::lws::LENGTH_BYTES;
use cairn_format::WordSize;

/// Pointers in the list node: previous, next, owner.
const LIST_NODE_WORDS: usize = 3;

/// The parts in front of one allocation, as distances from the true allocation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PrefixLayout {
    blob_bytes: usize,
    list_node_offset: usize,
    prefix_bytes: usize,
}

impl PrefixLayout {
    /// Creates the layout for a blob of `blob_bytes` (length field included) with this word size.
    /// `None` when the blob is shorter than its length field or the sum passes the largest number.
    #[must_use]
    pub const fn new(blob_bytes: usize, word_size: WordSize) -> Option<Self> {
        if blob_bytes < LENGTH_BYTES {
            return None;
        }
        let Some(list_node_offset) = blob_bytes.checked_next_multiple_of(word_size.bytes()) else {
            return None;
        };
        let Some(prefix_bytes) = list_node_offset.checked_add(LIST_NODE_WORDS * word_size.bytes()) else {
            return None;
        };
        Some(Self { blob_bytes, list_node_offset, prefix_bytes })
    }

    /// Returns bytes of the pad, the first part.
    #[must_use]
    pub const fn pad_bytes(self) -> usize {
        self.list_node_offset - self.blob_bytes
    }

    /// Returns bytes of the blob, its length field included.
    #[must_use]
    pub const fn blob_bytes(self) -> usize {
        self.blob_bytes
    }

    /// Where the blob starts.
    #[must_use]
    pub const fn blob_offset(self) -> usize {
        self.pad_bytes()
    }

    /// Where the blob's length field starts.
    #[must_use]
    pub const fn length_offset(self) -> usize {
        self.list_node_offset - LENGTH_BYTES
    }

    /// Where the list node starts: just after the length field.
    #[must_use]
    pub const fn list_node_offset(self) -> usize {
        self.list_node_offset
    }

    /// Returns bytes of all parts together, which is where the user's bytes start.
    #[must_use]
    pub const fn prefix_bytes(self) -> usize {
        self.prefix_bytes
    }
}

/// The record found in front of an allocation. Offsets count from the start of the memory image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Metadata<'a> {
    /// The blob, its length field included: decode it with [`decode`](crate::lws::decode).
    pub blob: &'a [u8],
    /// Where the blob starts.
    pub blob_offset: usize,
    /// Where the list node starts.
    pub list_node_offset: usize,
    /// Where the user's bytes start.
    pub user_offset: usize,
    /// Where the underlying allocation starts; `None` when that is before the image.
    pub true_allocation_offset: Option<usize>,
    /// The program had no room for the backtrace: `blob` is two zero bytes.
    pub gave_up: bool,
}

/// Why no record was found in front of an allocation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MetadataError {
    /// Offset in the memory image of the part at fault, or the offset given if no such part can
    /// exist.
    pub offset: usize,
    /// Kind of the fault.
    pub kind: MetadataErrorKind,
}

/// Why no record was found in front of an allocation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum MetadataErrorKind {
    /// The length field or the list node would lie outside of the memory image.
    OutsideMemory,
    /// The length field states 1, which is less than its own size.
    LengthTooSmall,
    /// By its length field the blob would start before the memory image.
    BlobBeforeMemory {
        /// Value of the length field.
        stated_bytes: u16,
    },
}

impl fmt::Display for MetadataError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            MetadataErrorKind::OutsideMemory => {
                write!(f, "offset {:#x}: the record before it is outside of the memory image", self.offset)
            }
            MetadataErrorKind::LengthTooSmall => {
                write!(f, "length field at {:#x} says 1, less than its own size", self.offset)
            }
            MetadataErrorKind::BlobBeforeMemory { stated_bytes } => {
                let offset = self.offset;
                write!(
                    f,
                    "length field at {offset:#x} says {stated_bytes} bytes, more than the image has there"
                )
            }
        }
    }
}

impl core::error::Error for MetadataError {}

/// Returns the record in front of the allocation whose user bytes start at `user_offset` of
/// `memory`.
///
/// # Errors
///
/// See [`MetadataErrorKind`].
pub fn find(memory: &[u8], user_offset: usize, word_size: WordSize) -> Result<Metadata<'_>, MetadataError> {
    let outside = MetadataError { offset: user_offset, kind: MetadataErrorKind::OutsideMemory };
    let list_node_offset = user_offset.checked_sub(LIST_NODE_WORDS * word_size.bytes()).ok_or(outside)?;
    find_before_list_node(memory, list_node_offset, word_size)
}

/// Returns the record in front of the list node at `list_node_offset` of `memory`. A walk along the
/// list of live allocations meets these nodes.
///
/// # Errors
///
/// See [`MetadataErrorKind`].
pub fn find_before_list_node(
    memory: &[u8],
    list_node_offset: usize,
    word_size: WordSize,
) -> Result<Metadata<'_>, MetadataError> {
    let error = |offset, kind| MetadataError { offset, kind };
    let outside = error(list_node_offset, MetadataErrorKind::OutsideMemory);
    let before_node = memory.get(..list_node_offset).ok_or(outside)?;
    let (_, length_field) = before_node.split_last_chunk::<LENGTH_BYTES>().ok_or(outside)?;
    let length_offset = list_node_offset - LENGTH_BYTES;

    let stated_bytes = u16::from_be_bytes(*length_field);
    let gave_up = stated_bytes == 0;
    let blob_bytes = if gave_up { LENGTH_BYTES } else { usize::from(stated_bytes) };
    let layout = PrefixLayout::new(blob_bytes, word_size)
        .ok_or(error(length_offset, MetadataErrorKind::LengthTooSmall))?;
    let blob_offset = list_node_offset
        .checked_sub(blob_bytes)
        .ok_or(error(length_offset, MetadataErrorKind::BlobBeforeMemory { stated_bytes }))?;
    let user_offset = list_node_offset.checked_add(LIST_NODE_WORDS * word_size.bytes()).ok_or(outside)?;
    Ok(Metadata {
        blob: before_node.get(blob_offset..).unwrap_or_default(),
        blob_offset,
        list_node_offset,
        user_offset,
        true_allocation_offset: list_node_offset.checked_sub(layout.list_node_offset()),
        gave_up,
    })
}
