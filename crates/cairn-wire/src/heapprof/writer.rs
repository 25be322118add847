//! Makes blocks: for allocators, and for memory images to test with.

use core::fmt;

use super::layout::{HeapprofLayout, MAX_CALLERS};
use cairn_format::{AbsoluteAddress, Sink};

/// Writes the headers of blocks that all have room for the same number of callers.
///
/// ```
/// use cairn_format::{AbsoluteAddress, SliceSink};
/// use cairn_wire::heapprof::{HeaderWriter, HeapprofLayout};
/// let writer = HeaderWriter::new(HeapprofLayout::LittleEndian32, 2)?;
/// let mut memory = [0xcc; 24];
/// writer.encode(7, &[AbsoluteAddress::new(0x1234)], &mut SliceSink::new(&mut memory))?;
/// assert_eq!(&memory, b"HeaP\x07\0\0\0\x34\x12\0\0\0\0\0\0ProF\0\0\0\0");
/// writer.clear_magics(&mut memory)?; // what free() does
/// assert_eq!(&memory, b"\0\0\0\0\x07\0\0\0\x34\x12\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
/// # Ok::<(), cairn_wire::heapprof::HeapprofWriteError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HeaderWriter {
    layout: HeapprofLayout,
    caller_capacity: usize,
}

impl HeaderWriter {
    /// Creates a writer of headers with room for `callers` callers.
    ///
    /// # Errors
    ///
    /// [`HeapprofWriteErrorKind::TooManyCallers`] above [`MAX_CALLERS`]: no search would find such
    /// a block.
    pub const fn new(layout: HeapprofLayout, caller_capacity: usize) -> Result<Self, HeapprofWriteError> {
        if caller_capacity > MAX_CALLERS {
            return Err(HeapprofWriteError { offset: 0, kind: HeapprofWriteErrorKind::TooManyCallers });
        }
        Ok(Self { layout, caller_capacity })
    }

    /// Returns bytes from the start magic to the user's data, padding included.
    #[must_use]
    pub const fn user_offset(&self) -> usize {
        // At most 100 words, so nothing is lost.
        self.layout.user_offset(self.caller_capacity) as usize
    }

    /// Writes the whole header and its padding into `sink`, callers innermost first, unused places
    /// as zero.
    ///
    /// # Errors
    ///
    /// [`HeapprofWriteError`] for more callers than places, a number that a word cannot hold
    /// (nothing is written then), or a full sink.
    pub fn encode(
        &self,
        size_bytes: u64,
        callers: &[AbsoluteAddress],
        sink: &mut impl Sink,
    ) -> Result<(), HeapprofWriteError> {
        self.check(size_bytes, callers)?;
        let zeros = core::iter::repeat_n(AbsoluteAddress::new(0), self.caller_capacity - callers.len());
        let mut words = Words { layout: self.layout, sink, offset: 0 };
        words.put(self.layout.start_word())?;
        words.put(self.layout.word(size_bytes))?;
        callers
            .iter()
            .copied()
            .chain(zeros)
            .try_for_each(|caller| words.put(self.layout.word(caller.value())))?;
        words.put(self.layout.end_word())?;
        if words.offset < self.user_offset() {
            words.put([0; 8])?;
        }
        Ok(())
    }

    /// Writes the header to the start of `memory` as the reference does. Places of callers beyond
    /// `callers` and the padding stay unchanged.
    ///
    /// # Errors
    ///
    /// [`HeapprofWriteError`] for more callers than places, a number that a word cannot hold, or
    /// too little memory; nothing is written then.
    pub fn write_in_place(
        &self,
        size_bytes: u64,
        callers: &[AbsoluteAddress],
        memory: &mut [u8],
    ) -> Result<(), HeapprofWriteError> {
        self.check(size_bytes, callers)?;
        let layout = self.layout;
        let places = self.places(memory)?;
        let head = [layout.start_word(), layout.word(size_bytes)];
        let words = head.into_iter().chain(callers.iter().map(|caller| layout.word(caller.value())));
        let word_bytes = layout.word_bytes();
        for (place, word) in places.chunks_mut(word_bytes).zip(words) {
            copy_word(place, word);
        }
        if let Some(place) = places.rchunks_mut(word_bytes).next() {
            copy_word(place, layout.end_word());
        }
        Ok(())
    }

    /// Clears the two magics at the start of `memory`, as freeing does; size and callers stay.
    ///
    /// # Errors
    ///
    /// [`HeapprofWriteErrorKind::NoRoom`] when `memory` is shorter than the header.
    pub fn clear_magics(&self, memory: &mut [u8]) -> Result<(), HeapprofWriteError> {
        let places = self.places(memory)?;
        let word_bytes = self.layout.word_bytes();
        places.iter_mut().take(word_bytes).for_each(|byte| *byte = 0);
        places.iter_mut().rev().take(word_bytes).for_each(|byte| *byte = 0);
        Ok(())
    }

    /// Returns the bytes from the start magic to the end magic, both included.
    fn places<'m>(&self, memory: &'m mut [u8]) -> Result<&'m mut [u8], HeapprofWriteError> {
        let offset = memory.len();
        let header_bytes = (self.caller_capacity + 3) * self.layout.word_bytes();
        memory
            .get_mut(..header_bytes)
            .ok_or(HeapprofWriteError { offset, kind: HeapprofWriteErrorKind::NoRoom })
    }

    /// Returns everything that can be wrong with what is to be written.
    fn check(&self, size_bytes: u64, callers: &[AbsoluteAddress]) -> Result<(), HeapprofWriteError> {
        let word_bytes = self.layout.word_bytes();
        if callers.len() > self.caller_capacity {
            let offset = (self.caller_capacity + 2) * word_bytes;
            return Err(HeapprofWriteError { offset, kind: HeapprofWriteErrorKind::TooManyCallers });
        }
        let numbers = core::iter::once(size_bytes).chain(callers.iter().map(|caller| caller.value()));
        match numbers.enumerate().find(|&(_, number)| number > self.layout.word_size().max_address()) {
            None => Ok(()),
            Some((index, number)) => Err(HeapprofWriteError {
                offset: (index + 1) * word_bytes,
                kind: HeapprofWriteErrorKind::TooWide(number),
            }),
        }
    }
}

/// Puts words into a sink and counts the bytes.
struct Words<'s, S> {
    layout: HeapprofLayout,
    sink: &'s mut S,
    offset: usize,
}

impl<S: Sink> Words<'_, S> {
    fn put(&mut self, word: [u8; 8]) -> Result<(), HeapprofWriteError> {
        let bytes = word.get(..self.layout.word_bytes()).unwrap_or_default();
        let error = HeapprofWriteError { offset: self.offset, kind: HeapprofWriteErrorKind::NoRoom };
        self.sink.put(bytes).map_err(|_| error)?;
        self.offset += bytes.len();
        Ok(())
    }
}

/// Fills a place of a word's size with the first bytes of `word`.
fn copy_word(place: &mut [u8], word: [u8; 8]) {
    place.iter_mut().zip(word).for_each(|(byte, value)| *byte = value);
}

/// Why a header could not be written, and at which byte of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HeapprofWriteError {
    /// Where in the header, counted from the start magic.
    pub offset: usize,
    /// Kind of the fault.
    pub kind: HeapprofWriteErrorKind,
}

/// Kinds of [`HeapprofWriteError`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum HeapprofWriteErrorKind {
    /// More callers than the header has places for, or more places than a search accepts.
    TooManyCallers,
    /// This size or caller does not fit into a 32-bit word.
    TooWide(u64),
    /// The memory or the sink ends before the header does.
    NoRoom,
}

impl fmt::Display for HeapprofWriteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            HeapprofWriteErrorKind::TooManyCallers => write!(f, "too many callers")?,
            HeapprofWriteErrorKind::TooWide(number) => write!(f, "{number:#x} does not fit into a word")?,
            HeapprofWriteErrorKind::NoRoom => write!(f, "no room for the header")?,
        }
        write!(f, " at byte {} of a heapprof block", self.offset)
    }
}

impl core::error::Error for HeapprofWriteError {}
