//! The 16 bytes in front of a block.

use core::fmt;

use super::ByteOrder;

/// Size of a header. It ends where the user's data begins.
pub const HEADER_BYTES: usize = 16;

/// Upper half of word 3 of a block in use. No text, no small number, no half of an address or of a
/// usual float.
pub const LIVE_MAGIC: u16 = 0xca1a;

/// Upper half of word 3 of a block that was freed.
pub const FREED_MAGIC: u16 = 0xf4ee;

/// A size of this or more is written as this: its field has 40 bits.
pub const SIZE_LIMIT: u64 = (1 << 40) - 1;

/// The largest alignment: 2 GiB.
pub const MAX_ALIGNMENT_LOG2: u32 = 31;

const GUARDED: u32 = 1 << 5;
const KIND_SHIFT: u32 = 6;
const SIZE_SHIFT: u32 = 8;
const MAGIC_SHIFT: u32 = 16;

/// Kinds of word 2 of a header.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum StackKind {
    /// Nothing: the stack was not captured.
    None = 0,
    /// The number of a stack in the image's [stack table](super::stack_table).
    Number = 1,
    /// Length and check of the [stack in front of the header](super::inline_stack).
    Inline = 2,
    /// A number of the program's own: on a small device the address of the caller.
    Tag = 3,
}

/// How a block refers to the stack that allocated it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum StackReference {
    /// Not known.
    None,
    /// A number in the image's [stack table](super::stack_table).
    Number(u32),
    /// The bytes in front of the header; made by
    /// [`inline_stack::reference`](super::inline_stack::reference).
    Inline {
        /// How many.
        length_bytes: u16,
        /// Their check.
        check: u16,
    },
    /// A number of the program's own.
    Tag(u32),
}

impl StackReference {
    /// Which kind it is.
    #[must_use]
    pub const fn kind(self) -> StackKind {
        match self {
            Self::None => StackKind::None,
            Self::Number(_) => StackKind::Number,
            Self::Inline { .. } => StackKind::Inline,
            Self::Tag(_) => StackKind::Tag,
        }
    }

    /// Returns bytes of the stack in front of the header: 0 unless it is inline.
    #[must_use]
    pub const fn inline_bytes(self) -> u64 {
        match self {
            Self::Inline { length_bytes, .. } => length_bytes as u64,
            _ => 0,
        }
    }

    #[inline]
    const fn word(self) -> u32 {
        match self {
            Self::None => 0,
            Self::Number(word) | Self::Tag(word) => word,
            Self::Inline { length_bytes, check } => (check as u32) << 16 | length_bytes as u32,
        }
    }

    const fn from_word(kind: u32, word: u32) -> Self {
        match kind & 3 {
            0 => Self::None,
            1 => Self::Number(word),
            2 => Self::Inline { length_bytes: word as u16, check: (word >> 16) as u16 },
            _ => Self::Tag(word),
        }
    }
}

/// Whether a block is in use.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum BlockState {
    /// Allocated and not freed.
    Live,
    /// Freed, and its header not overwritten since.
    Freed,
}

/// Content of a header.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Header {
    size_bytes: u64,
    stack: StackReference,
    alignment_log2: u8,
    is_guarded: bool,
}

/// Why 16 bytes are no header of a block at that address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum HeaderError {
    /// The magic is neither of the two.
    NoMagic,
    /// The magic is there, but the check does not agree. Causes are chance, a copy from elsewhere,
    /// or a header that was overwritten.
    WrongCheck,
    /// Magic and check agree, and a bit is set that has no meaning.
    UnknownBits,
}

impl fmt::Display for HeaderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoMagic => "no block header: the magic is missing",
            Self::WrongCheck => "no block header, or a damaged one: its check is wrong",
            Self::UnknownBits => "a block header with bits that this version does not know",
        })
    }
}

impl core::error::Error for HeaderError {}

impl Header {
    /// Creates a header for a block of `size_bytes` whose user address is a multiple of
    /// 2^`alignment_log2`. Sizes above [`SIZE_LIMIT`] are stated as that. `None` for an alignment
    /// above 2 GiB.
    #[inline]
    #[must_use]
    pub const fn new(
        size_bytes: u64,
        stack: StackReference,
        alignment_log2: u32,
        is_guarded: bool,
    ) -> Option<Self> {
        if alignment_log2 > MAX_ALIGNMENT_LOG2 {
            return None;
        }
        let size_bytes = if size_bytes > SIZE_LIMIT { SIZE_LIMIT } else { size_bytes };
        Some(Self { size_bytes, stack, alignment_log2: alignment_log2 as u8, is_guarded })
    }

    /// Returns the requested size in bytes; [`SIZE_LIMIT`] represents that size and more.
    #[inline]
    #[must_use]
    pub const fn size_bytes(self) -> u64 {
        self.size_bytes
    }

    /// Returns the stack that requested the block.
    #[inline]
    #[must_use]
    pub const fn stack(self) -> StackReference {
        self.stack
    }

    /// Returns the logarithm, to base 2, of the alignment of the user address. The prefix is a
    /// multiple of that alignment.
    #[inline]
    #[must_use]
    pub const fn alignment_log2(self) -> u32 {
        self.alignment_log2 as u32
    }

    /// Returns whether a [guard](super::guard) follows the user's data.
    #[inline]
    #[must_use]
    pub const fn is_guarded(self) -> bool {
        self.is_guarded
    }

    /// Returns bytes from the underlying allocation to the user's data: header, inline stack and
    /// pad. An allocator that aligns by itself may have more, and keeps the address of the
    /// underlying allocation in the word below header and inline stack; so do all of cairn's for
    /// blocks of a larger alignment than the allocator's own.
    #[inline]
    #[must_use]
    pub const fn prefix_bytes(self) -> u64 {
        let own_bytes = HEADER_BYTES as u64 + self.stack.inline_bytes();
        let mask = (1_u64 << self.alignment_log2) - 1;
        // At most 65,551 and 2 GiB.
        (own_bytes + mask) & !mask
    }

    /// Returns bytes of the guard after the user's data: 0 without a guard.
    #[inline]
    #[must_use]
    pub const fn guard_bytes(self) -> u64 {
        if self.is_guarded { super::guard::bytes_behind(self.size_bytes) as u64 } else { 0 }
    }

    /// Returns the four words of a live block's header, lowest address first.
    #[inline]
    #[must_use]
    pub const fn to_words(self, user_address: u64) -> [u32; 4] {
        let size = self.size_bytes as u32;
        let stack = self.stack.word();
        let rest = (LIVE_MAGIC as u32) << MAGIC_SHIFT
            | ((self.size_bytes >> 32) as u32 & 0xff) << SIZE_SHIFT
            | (self.stack.kind() as u32) << KIND_SHIFT
            | if self.is_guarded { GUARDED } else { 0 }
            | self.alignment_log2 as u32 & 31;
        [check(size, stack, rest).wrapping_add(address_part(user_address)), size, stack, rest]
    }

    /// Returns what these words, in front of `user_address`, say.
    ///
    /// # Errors
    ///
    /// [`HeaderError`] when they are no header of that place.
    #[inline]
    pub const fn from_words(words: [u32; 4], user_address: u64) -> Result<(Self, BlockState), HeaderError> {
        let state = match Self::magic_of(words[3]) {
            Some(state) => state,
            None => return Err(HeaderError::NoMagic),
        };
        if Self::implied(words) != address_part(user_address) {
            return Err(HeaderError::WrongCheck);
        }
        let [_, size, stack, rest] = words;
        let kind = rest >> KIND_SHIFT & 3;
        if kind == 0 && stack != 0 {
            return Err(HeaderError::UnknownBits);
        }
        let header = Self {
            size_bytes: (rest >> SIZE_SHIFT & 0xff) as u64 * (1 << 32) + size as u64,
            stack: StackReference::from_word(kind, stack),
            alignment_log2: (rest & 31) as u8,
            is_guarded: rest & GUARDED != 0,
        };
        Ok((header, state))
    }

    /// Returns the state that word 3 of a header represents; `None` when it has no magic. The first
    /// and cheapest question of a search.
    #[inline]
    #[must_use]
    pub const fn magic_of(word_3: u32) -> Option<BlockState> {
        match (word_3 >> MAGIC_SHIFT) as u16 {
            LIVE_MAGIC => Some(BlockState::Live),
            FREED_MAGIC => Some(BlockState::Freed),
            _ => None,
        }
    }

    /// Word 3 of a block that becomes free: all there is to do to its header.
    #[inline]
    #[must_use]
    pub const fn freed(word_3: u32) -> u32 {
        (FREED_MAGIC as u32) << MAGIC_SHIFT | word_3 & 0xffff
    }

    /// Returns the header's bytes, lowest address first.
    #[must_use]
    pub fn to_bytes(self, user_address: u64, order: ByteOrder) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        for (place, word) in bytes.chunks_exact_mut(4).zip(self.to_words(user_address)) {
            place.copy_from_slice(&order.u32_bytes(word));
        }
        bytes
    }

    /// Returns what these bytes, in front of `user_address`, say.
    ///
    /// # Errors
    ///
    /// [`HeaderError`] when they are no header of that place.
    #[inline]
    pub const fn from_bytes(
        bytes: [u8; HEADER_BYTES],
        user_address: u64,
        order: ByteOrder,
    ) -> Result<(Self, BlockState), HeaderError> {
        Self::from_words(words(bytes, order), user_address)
    }

    /// Returns bits 2 to 33 of the user address that these bytes were made for, in place. The two
    /// lowest bits and all above are zero. Nothing else is checked than the magic; random bytes
    /// imply a random address.
    ///
    /// In a dump whose load address is not known, the difference to where the bytes lie is the load
    /// address, and the one that most of the bytes imply is the right one.
    ///
    /// ```
    /// use cairn_wire::heapblock::{ByteOrder, Header, StackReference};
    /// let header = Header::new(24, StackReference::None, 3, false).unwrap();
    /// let bytes = header.to_bytes(0x2000_0140, ByteOrder::BigEndian);
    /// assert_eq!(Header::implied_address(bytes, ByteOrder::BigEndian), Some(0x2000_0140));
    /// ```
    #[must_use]
    pub const fn implied_address(bytes: [u8; HEADER_BYTES], order: ByteOrder) -> Option<u64> {
        let words = words(bytes, order);
        match Self::magic_of(words[3]) {
            Some(_) => Some((Self::implied(words) as u64) << 2),
            None => None,
        }
    }

    /// Returns the address part that makes the check right.
    #[inline]
    const fn implied(words: [u32; 4]) -> u32 {
        let [stated, size, stack, rest] = words;
        let as_live = (LIVE_MAGIC as u32) << MAGIC_SHIFT | rest & 0xffff;
        stated.wrapping_sub(check(size, stack, as_live))
    }
}

/// Returns what an address adds to the check. The lowest two bits are zero everywhere; 32 further
/// ones tell places apart that are up to 16 GiB away from each other.
#[inline]
const fn address_part(user_address: u64) -> u32 {
    (user_address >> 2) as u32
}

/// Hash of the words 1 to 3. Multiplications of 32 bits, because the smallest processors have
/// these; the constants are those of xxHash, whose steps these are.
#[inline]
const fn check(size: u32, stack: u32, rest: u32) -> u32 {
    let mut hash = size.wrapping_mul(0x9e37_79b1);
    hash = (hash ^ hash >> 15).wrapping_add(stack).wrapping_mul(0x85eb_ca77);
    hash = (hash ^ hash >> 13).wrapping_add(rest).wrapping_mul(0xc2b2_ae3d);
    hash ^= hash >> 15;
    hash = hash.wrapping_mul(0x27d4_eb2f);
    hash ^ hash >> 16
}

#[inline]
const fn words(bytes: [u8; HEADER_BYTES], order: ByteOrder) -> [u32; 4] {
    let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = bytes;
    [order.u32([a, b, c, d]), order.u32([e, f, g, h]), order.u32([i, j, k, l]), order.u32([m, n, o, p])]
}
