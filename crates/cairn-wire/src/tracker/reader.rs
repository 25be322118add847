//! Reads recordings: events over borrowed bytes.

use core::fmt;

use super::path::{CharWidth, ModulePath};
use cairn_format::{AbsoluteAddress, Frame, WordSize, bytes::ByteReader};

/// Properties that a recording does not state.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TrackerLayout {
    /// The width of addresses in the recorded program: 64 or 32 bits.
    pub word_size: WordSize,
    /// The width of the units of a path.
    pub char_width: CharWidth,
}

impl TrackerLayout {
    /// A 64-bit program on Windows.
    pub const WINDOWS_64: Self = Self { word_size: WordSize::Bits64, char_width: CharWidth::Two };
    /// A 32-bit program on Windows.
    pub const WINDOWS_32: Self = Self { word_size: WordSize::Bits32, char_width: CharWidth::Two };
    /// A 64-bit program elsewhere.
    pub const OTHER_64: Self = Self { word_size: WordSize::Bits64, char_width: CharWidth::Four };
    /// A 32-bit program elsewhere.
    pub const OTHER_32: Self = Self { word_size: WordSize::Bits32, char_width: CharWidth::Four };

    /// Returns the first of the four layouts that reads the recording to its end. They are tried in
    /// the order above. When none does, the one that gets farthest.
    ///
    /// ```
    /// use cairn_wire::tracker::TrackerLayout;
    /// let one_stack = b"\x02\0\0\0\0\0\0\0\0\x01\0\x34\x12\0\0";
    /// let guess = TrackerLayout::guess(one_stack);
    /// assert_eq!((guess.layout, guess.whole), (TrackerLayout::WINDOWS_32, true));
    /// assert!(!TrackerLayout::guess(&one_stack[..14]).whole);
    /// ```
    #[must_use]
    pub fn guess(recording: &[u8]) -> Guess {
        let mut best = Guess { layout: Self::WINDOWS_64, whole: false };
        let mut farthest = 0;
        for layout in [Self::WINDOWS_64, Self::WINDOWS_32, Self::OTHER_64, Self::OTHER_32] {
            let Some(error) = Reader::new(recording, layout).find_map(Result::err) else {
                return Guess { layout, whole: true };
            };
            if error.offset > farthest {
                farthest = error.offset;
                best.layout = layout;
            }
        }
        best
    }
}

/// Result of [`TrackerLayout::guess`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Guess {
    /// The layout to read with.
    pub layout: TrackerLayout,
    /// Whether it reads the recording to its end. If not, the recording is cut or damaged, or no
    /// recording at all.
    pub whole: bool,
}

/// One event and its offset.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TrackerRecord<'a> {
    /// Where the event starts: bytes from the start of the recording.
    pub offset: usize,
    /// Nanoseconds since 1970 by the clock on the wall. May go back.
    pub timestamp_nanos: u64,
    /// The event.
    pub event: Event<'a>,
}

/// Kinds of events in the recorded program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event<'a> {
    /// A module is there from now on.
    ModuleLoaded {
        /// The file it was loaded from.
        path: ModulePath<'a>,
        /// Its first byte.
        base: AbsoluteAddress,
        /// How many bytes it takes.
        size_bytes: u32,
    },
    /// A module is gone.
    ModuleUnloaded {
        /// The file it was loaded from.
        path: ModulePath<'a>,
    },
    /// A stack was taken.
    Stack(StackAddresses<'a>),
}

/// Iterates over the return addresses of a stack, innermost first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StackAddresses<'a> {
    /// Whole words.
    words: &'a [u8],
    word_size: WordSize,
}

impl<'a> StackAddresses<'a> {
    /// Returns the same as frames.
    pub fn frames(self) -> impl Iterator<Item = Frame> + use<'a> {
        self.map(Frame::ReturnAddress)
    }
}

impl Iterator for StackAddresses<'_> {
    type Item = AbsoluteAddress;

    fn next(&mut self) -> Option<Self::Item> {
        let (value, rest) = match self.word_size {
            WordSize::Bits64 => {
                self.words.split_first_chunk().map(|(word, rest)| (u64::from_le_bytes(*word), rest))
            }
            WordSize::Bits32 => {
                self.words.split_first_chunk().map(|(word, rest)| (u32::from_le_bytes(*word).into(), rest))
            }
            WordSize::Bits16 => {
                self.words.split_first_chunk().map(|(word, rest)| (u16::from_le_bytes(*word).into(), rest))
            }
        }?;
        self.words = rest;
        Some(AbsoluteAddress::new(value))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.words.len() / self.word_size.bytes();
        (left, Some(left))
    }
}

impl ExactSizeIterator for StackAddresses<'_> {}
impl core::iter::FusedIterator for StackAddresses<'_> {}

/// Iterates over the events of a recording.
///
/// The first event that is cut or unknown is an error, and the iterator ends after it: nothing
/// marks the start of an event, so what follows cannot be trusted. Strict readers `collect` into a
/// `Result`; lenient ones keep what came before, for which [`salvage`](Self::salvage) is a
/// shorthand.
///
/// ```
/// use cairn_wire::tracker::{TrackerLayout, TrackerReadErrorKind, Reader};
/// let recording = b"\x01\0\0\0\0\0\0\0\0\0\0\x07";
/// let mut reader = Reader::new(recording, TrackerLayout::WINDOWS_64);
/// assert!(reader.next().unwrap().is_ok());
/// let error = reader.next().unwrap().unwrap_err();
/// assert_eq!((error.offset, error.kind), (11, TrackerReadErrorKind::UnknownEvent(7)));
/// assert!(reader.next().is_none());
/// ```
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    input: ByteReader<'a>,
    layout: TrackerLayout,
    like_reference: bool,
    ended: bool,
}

impl<'a> Reader<'a> {
    /// Creates a reader at the first event.
    #[must_use]
    pub const fn new(recording: &'a [u8], layout: TrackerLayout) -> Self {
        Self { input: ByteReader::new(recording), layout, like_reference: false, ended: false }
    }

    /// Reads as the reference's player does. It skips an event of unknown code after 9 bytes, reads
    /// a stack that is cut after its timestamp as empty, drops other cut events, and reports no
    /// error.
    #[must_use]
    pub const fn like_reference(self) -> Self {
        Self { like_reference: true, ..self }
    }

    /// Returns the events up to the first error, which is put into `error`.
    pub fn salvage<'e>(
        mut self,
        error: &'e mut Option<TrackerReadError>,
    ) -> impl Iterator<Item = TrackerRecord<'a>> + use<'a, 'e> {
        *error = None;
        core::iter::from_fn(move || match self.next()? {
            Ok(record) => Some(record),
            Err(stop) => {
                *error = Some(stop);
                None
            }
        })
    }

    /// Counts the module loads of the whole recording. A [`Timeline`](super::Timeline) of it needs
    /// this number of slots.
    #[must_use]
    pub fn count_loads(&self) -> usize {
        let is_load = |record: &TrackerRecord<'_>| matches!(record.event, Event::ModuleLoaded { .. });
        self.clone().map_while(Result::ok).filter(is_load).count()
    }

    /// Returns the next event, or what is wrong with it.
    fn read(&mut self) -> Result<TrackerRecord<'a>, TrackerReadErrorKind> {
        use TrackerReadErrorKind::{Truncated, UnknownEvent};
        let offset = self.input.position();
        let code = self.input.byte().ok_or(Truncated)?;
        if code > 2 && !self.like_reference {
            return Err(UnknownEvent(code));
        }
        let timestamp_nanos = self.input.array().map(u64::from_le_bytes).ok_or(Truncated)?;
        let event = match code {
            0 => {
                let path = self.path().ok_or(Truncated)?;
                let base = self.input.word_little_endian(self.layout.word_size).ok_or(Truncated)?;
                let size_bytes = self.input.array().map(u32::from_le_bytes).ok_or(Truncated)?;
                Event::ModuleLoaded { path, base: AbsoluteAddress::new(base), size_bytes }
            }
            1 => Event::ModuleUnloaded { path: self.path().ok_or(Truncated)? },
            2 => Event::Stack(match self.addresses() {
                None if self.like_reference => {
                    self.ended = true;
                    StackAddresses { words: &[], word_size: self.layout.word_size }
                }
                addresses => addresses.ok_or(Truncated)?,
            }),
            unknown => return Err(UnknownEvent(unknown)),
        };
        Ok(TrackerRecord { offset, timestamp_nanos, event })
    }

    fn path(&mut self) -> Option<ModulePath<'a>> {
        let units = usize::from(u16::from_le_bytes(self.input.array()?));
        let width = self.layout.char_width;
        Some(ModulePath::new(self.input.take(units.checked_mul(width.bytes())?)?, width))
    }

    fn addresses(&mut self) -> Option<StackAddresses<'a>> {
        let count = usize::from(u16::from_le_bytes(self.input.array()?));
        let word_size = self.layout.word_size;
        Some(StackAddresses { words: self.input.take(count.checked_mul(word_size.bytes())?)?, word_size })
    }
}

impl<'a> Iterator for Reader<'a> {
    type Item = Result<TrackerRecord<'a>, TrackerReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.ended && !self.input.is_empty() {
            let offset = self.input.position();
            match self.read() {
                Ok(record) => return Some(Ok(record)),
                Err(TrackerReadErrorKind::UnknownEvent(_)) if self.like_reference => {}
                Err(_) if self.like_reference => self.ended = true,
                Err(kind) => {
                    self.ended = true;
                    return Some(Err(TrackerReadError { offset, kind }));
                }
            }
        }
        None
    }
}

impl core::iter::FusedIterator for Reader<'_> {}

/// Why a recording cannot be read further, and from which byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TrackerReadError {
    /// Where the offending event starts.
    pub offset: usize,
    /// Kind of the fault.
    pub kind: TrackerReadErrorKind,
}

/// Kinds of [`TrackerReadError`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum TrackerReadErrorKind {
    /// The recording ends inside the event, or the event claims more than there is.
    Truncated,
    /// The event's code is not 0, 1 or 2. Recordings of 2022 numbered other events so, and are not
    /// read here.
    UnknownEvent(u8),
}

impl fmt::Display for TrackerReadErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated => f.write_str("the recording ends inside the event"),
            Self::UnknownEvent(code) => write!(f, "unknown event code {code}"),
        }
    }
}

impl fmt::Display for TrackerReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at byte {}", self.kind, self.offset)
    }
}

impl core::error::Error for TrackerReadError {}
