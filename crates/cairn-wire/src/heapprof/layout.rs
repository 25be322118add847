//! How words stand in memory, and the block that was found there.

use cairn_format::{AbsoluteAddress, Frame, WordSize};

/// Maximum callers of a block that can be found; 97, because 99 words between magics are chance.
pub const MAX_CALLERS: usize = 97;

const START_MAGIC: u64 = 0x5061_6548;
const END_MAGIC: u64 = 0x466f_7250;

// The magics are the texts of the reference's own search.
const _: () = assert!(START_MAGIC as u32 == u32::from_le_bytes(*b"HeaP"));
const _: () = assert!(END_MAGIC as u32 == u32::from_le_bytes(*b"ProF"));

/// Word size and byte order of the machine whose memory it is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum HeapprofLayout {
    /// 32-bit words, least significant byte first.
    LittleEndian32,
    /// 64-bit words, least significant byte first.
    LittleEndian64,
    /// 32-bit words, most significant byte first.
    BigEndian32,
    /// 64-bit words, most significant byte first.
    BigEndian64,
}

impl HeapprofLayout {
    /// All four, for trying each.
    pub const ALL: [Self; 4] =
        [Self::LittleEndian64, Self::LittleEndian32, Self::BigEndian64, Self::BigEndian32];

    /// Returns the width of a word.
    #[must_use]
    pub const fn word_size(self) -> WordSize {
        match self {
            Self::LittleEndian32 | Self::BigEndian32 => WordSize::Bits32,
            Self::LittleEndian64 | Self::BigEndian64 => WordSize::Bits64,
        }
    }

    /// Returns bytes of a word: 4 or 8.
    #[must_use]
    pub const fn word_bytes(self) -> usize {
        self.word_size().bytes()
    }

    /// Returns the distance of the user's data from the start magic of a block with `callers`
    /// callers.
    ///
    /// ```
    /// use cairn_wire::heapprof::HeapprofLayout;
    /// assert_eq!(HeapprofLayout::LittleEndian64.user_offset(16), 152);
    /// assert_eq!(HeapprofLayout::LittleEndian32.user_offset(16), 80); // 19 words and 4 bytes of padding
    /// ```
    #[must_use]
    pub const fn user_offset(self, caller_count: usize) -> u64 {
        let words = (caller_count as u64).saturating_add(3);
        match words.saturating_mul(self.word_bytes() as u64).checked_next_multiple_of(8) {
            Some(offset) => offset,
            None => u64::MAX,
        }
    }

    /// Returns the same words as a little-endian machine has them.
    pub(super) const fn little_endian(self) -> Self {
        match self.word_size() {
            WordSize::Bits64 => Self::LittleEndian64,
            _ => Self::LittleEndian32,
        }
    }

    /// Returns the start magic as a word in memory: the first [`word_bytes`](Self::word_bytes) of
    /// these.
    pub(super) const fn start_word(self) -> [u8; 8] {
        self.word(START_MAGIC)
    }

    /// Returns the end magic as a word in memory, like [`start_word`](Self::start_word).
    pub(super) const fn end_word(self) -> [u8; 8] {
        self.word(END_MAGIC)
    }

    /// Returns a number as it is in memory: the first [`word_bytes`](Self::word_bytes) of these.
    pub(super) const fn word(self, value: u64) -> [u8; 8] {
        match self {
            Self::LittleEndian32 | Self::LittleEndian64 => value.to_le_bytes(),
            Self::BigEndian32 => (value << 32).to_be_bytes(),
            Self::BigEndian64 => value.to_be_bytes(),
        }
    }

    /// Returns the first word of `bytes` and the bytes after it.
    pub(super) fn split_word(self, bytes: &[u8]) -> Option<(u64, &[u8])> {
        match self {
            Self::LittleEndian32 => {
                bytes.split_first_chunk().map(|(word, rest)| (u32::from_le_bytes(*word).into(), rest))
            }
            Self::BigEndian32 => {
                bytes.split_first_chunk().map(|(word, rest)| (u32::from_be_bytes(*word).into(), rest))
            }
            Self::LittleEndian64 => {
                bytes.split_first_chunk().map(|(word, rest)| (u64::from_le_bytes(*word), rest))
            }
            Self::BigEndian64 => {
                bytes.split_first_chunk().map(|(word, rest)| (u64::from_be_bytes(*word), rest))
            }
        }
    }
}

/// A block found in memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Block<'a> {
    /// Whole words: the size and the callers.
    words: &'a [u8],
    offset: u64,
    layout: HeapprofLayout,
}

impl<'a> Block<'a> {
    /// Creates a block whose magics stand around `words`, which are at least one and whole.
    pub(super) const fn new(layout: HeapprofLayout, offset: u64, words: &'a [u8]) -> Self {
        Self { words, offset, layout }
    }

    /// Where the start magic is: bytes from the start of the dump.
    #[must_use]
    pub const fn offset(&self) -> u64 {
        self.offset
    }

    /// Where the user's data is, if the block is whole.
    #[must_use]
    pub const fn user_offset(&self) -> u64 {
        self.offset.saturating_add(self.layout.user_offset(self.caller_count()))
    }

    /// Returns how many bytes the program asked for, as the block says.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.layout.split_word(self.words).map_or(0, |(size, _)| size)
    }

    /// Returns how many callers the block has room for, 0 to [`MAX_CALLERS`].
    #[must_use]
    pub const fn caller_count(&self) -> usize {
        (self.words.len() / self.layout.word_bytes()).saturating_sub(1)
    }

    /// Returns all callers as stored, innermost first, with the zeros or garbage after the real
    /// ones.
    #[must_use]
    pub fn callers(&self) -> Callers<'a> {
        Callers { words: self.words.get(self.layout.word_bytes()..).unwrap_or_default(), layout: self.layout }
    }

    /// Returns the callers that are not zero, as frames.
    ///
    /// ```
    /// use cairn_format::{AbsoluteAddress, Frame};
    /// use cairn_wire::heapprof::{HeapprofLayout, Search};
    /// let memory = b"HeaP\x10\0\0\0\x00\x80\x04\x08\0\0\0\0ProF";
    /// let block = Search::robust(HeapprofLayout::LittleEndian32).blocks(memory).next().unwrap();
    /// assert!(block.frames().eq([Frame::ReturnAddress(AbsoluteAddress::new(0x0804_8000))]));
    /// ```
    pub fn frames(&self) -> impl Iterator<Item = Frame> + use<'a> {
        self.callers().filter(|caller| caller.value() != 0).map(Frame::ReturnAddress)
    }
}

/// Iterates over the callers of a block, innermost first.
#[derive(Clone, Debug)]
pub struct Callers<'a> {
    words: &'a [u8],
    layout: HeapprofLayout,
}

impl Iterator for Callers<'_> {
    type Item = AbsoluteAddress;

    fn next(&mut self) -> Option<Self::Item> {
        let (word, rest) = self.layout.split_word(self.words)?;
        self.words = rest;
        Some(AbsoluteAddress::new(word))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.words.len() / self.layout.word_bytes();
        (left, Some(left))
    }
}

impl ExactSizeIterator for Callers<'_> {}
impl core::iter::FusedIterator for Callers<'_> {}
