//! Writes recordings.

use core::fmt;

use super::{
    path::{CharWidth, ModulePath},
    reader::{Event, TrackerLayout, TrackerRecord},
};
use cairn_format::{AbsoluteAddress, Sink, SinkFull, WordSize};

/// The longest path that the reference's player has room for, in units. It does not check.
pub const MAX_PATH_UNITS: usize = 1024;

/// The deepest stack that the reference's recorder takes.
pub const MAX_STACK_ADDRESSES: usize = 200;

const _: () = assert!(MAX_PATH_UNITS <= u16::MAX as usize);
const _: () = assert!(MAX_STACK_ADDRESSES <= u16::MAX as usize);

/// Writes events into a [`Sink`].
///
/// It refuses what the reference's player cannot take. An event that is refused leaves no trace;
/// when the sink is full, the event may be cut, and nothing more is written after it, so that
/// readers keep everything before.
///
/// ```
/// use cairn_format::{AbsoluteAddress, SliceSink};
/// use cairn_wire::tracker::{TrackerLayout, Writer};
/// let mut buffer = [0; 64];
/// let mut writer = Writer::new(SliceSink::new(&mut buffer), TrackerLayout::WINDOWS_32);
/// writer.stack(1, [AbsoluteAddress::new(0x1234)])?;
/// assert_eq!(writer.into_sink().written(), b"\x02\x01\0\0\0\0\0\0\0\x01\0\x34\x12\0\0");
/// # Ok::<(), cairn_wire::tracker::TrackerWriteError>(())
/// ```
#[derive(Debug)]
pub struct Writer<S> {
    sink: S,
    layout: TrackerLayout,
    written: u64,
    full: bool,
}

/// A path to write: text, or bytes from another recording.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PathText<'a> {
    /// Is encoded as the layout demands.
    Text(&'a str),
    /// Is written unchanged; its units must have the layout's width.
    Raw(ModulePath<'a>),
}

impl<'a> From<&'a str> for PathText<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(text)
    }
}

impl<'a> From<ModulePath<'a>> for PathText<'a> {
    fn from(path: ModulePath<'a>) -> Self {
        Self::Raw(path)
    }
}

impl<S: Sink> Writer<S> {
    /// Creates a writer at the start of a recording.
    pub const fn new(sink: S, layout: TrackerLayout) -> Self {
        Self { sink, layout, written: 0, full: false }
    }

    /// Returns the sink.
    pub fn into_sink(self) -> S {
        self.sink
    }

    /// Writes that a module is there from now on.
    ///
    /// # Errors
    ///
    /// [`TrackerWriteError`] for a path too long or of the wrong width, a base too high for the
    /// word size, or a full sink.
    pub fn module_loaded<'p>(
        &mut self,
        timestamp_nanos: u64,
        path: impl Into<PathText<'p>>,
        base: AbsoluteAddress,
        size_bytes: u32,
    ) -> Result<(), TrackerWriteError> {
        let path = path.into();
        let units = self.check_path(&path)?;
        self.check_address(base)?;
        self.put_head(0, timestamp_nanos, units)?;
        self.put_path(&path)?;
        self.put_word(base)?;
        self.put(&size_bytes.to_le_bytes())
    }

    /// Writes that a module is gone.
    ///
    /// # Errors
    ///
    /// [`TrackerWriteError`] for a path too long or of the wrong width, or a full sink.
    pub fn module_unloaded<'p>(
        &mut self,
        timestamp_nanos: u64,
        path: impl Into<PathText<'p>>,
    ) -> Result<(), TrackerWriteError> {
        let path = path.into();
        let units = self.check_path(&path)?;
        self.put_head(1, timestamp_nanos, units)?;
        self.put_path(&path)
    }

    /// Writes a stack of return addresses, innermost first.
    ///
    /// # Errors
    ///
    /// [`TrackerWriteError`] for more than [`MAX_STACK_ADDRESSES`], an address too high for the
    /// word size, or a full sink.
    pub fn stack<I>(&mut self, timestamp_nanos: u64, addresses: I) -> Result<(), TrackerWriteError>
    where
        I: IntoIterator<Item = AbsoluteAddress, IntoIter: Clone>,
    {
        let addresses = addresses.into_iter();
        let mut count = 0_u16;
        for address in addresses.clone() {
            if usize::from(count) == MAX_STACK_ADDRESSES {
                return Err(self.error(TrackerWriteErrorKind::StackTooDeep));
            }
            self.check_address(address)?;
            count += 1;
        }
        self.put_head(2, timestamp_nanos, count)?;
        addresses.take(count.into()).try_for_each(|address| self.put_word(address))
    }

    /// Writes an event as it was read.
    ///
    /// # Errors
    ///
    /// As for the three kinds of events.
    pub fn record(&mut self, record: &TrackerRecord<'_>) -> Result<(), TrackerWriteError> {
        let timestamp_nanos = record.timestamp_nanos;
        match &record.event {
            Event::ModuleLoaded { path, base, size_bytes } => {
                self.module_loaded(timestamp_nanos, *path, *base, *size_bytes)
            }
            Event::ModuleUnloaded { path } => self.module_unloaded(timestamp_nanos, *path),
            Event::Stack(addresses) => self.stack(timestamp_nanos, addresses.clone()),
        }
    }

    /// Returns the number of units of a path that may be written.
    fn check_path(&self, path: &PathText<'_>) -> Result<u16, TrackerWriteError> {
        let units = match (path, self.layout.char_width) {
            (PathText::Text(text), CharWidth::Two) => text.encode_utf16().take(MAX_PATH_UNITS + 1).count(),
            (PathText::Text(text), CharWidth::Four) => text.chars().take(MAX_PATH_UNITS + 1).count(),
            (PathText::Raw(path), width) if path.width() == width => path.units(),
            (PathText::Raw(_), _) => return Err(self.error(TrackerWriteErrorKind::WrongCharWidth)),
        };
        match u16::try_from(units) {
            Ok(count) if units <= MAX_PATH_UNITS => Ok(count),
            _ => Err(self.error(TrackerWriteErrorKind::PathTooLong)),
        }
    }

    fn check_address(&self, address: AbsoluteAddress) -> Result<(), TrackerWriteError> {
        if address.value() <= self.layout.word_size.max_address() {
            Ok(())
        } else {
            Err(self.error(TrackerWriteErrorKind::AddressTooWide(address)))
        }
    }

    fn put_head(&mut self, code: u8, timestamp_nanos: u64, count: u16) -> Result<(), TrackerWriteError> {
        let mut head = [code; 11];
        let parts = timestamp_nanos.to_le_bytes().into_iter().chain(count.to_le_bytes());
        head.iter_mut().skip(1).zip(parts).for_each(|(place, byte)| *place = byte);
        self.put(&head)
    }

    fn put_path(&mut self, path: &PathText<'_>) -> Result<(), TrackerWriteError> {
        match (path, self.layout.char_width) {
            (PathText::Raw(path), _) => self.put(path.as_bytes()),
            (PathText::Text(text), CharWidth::Two) => {
                text.encode_utf16().try_for_each(|unit| self.put(&unit.to_le_bytes()))
            }
            (PathText::Text(text), CharWidth::Four) => {
                text.chars().try_for_each(|character| self.put(&u32::from(character).to_le_bytes()))
            }
        }
    }

    fn put_word(&mut self, address: AbsoluteAddress) -> Result<(), TrackerWriteError> {
        // Checked before, so nothing is cut off.
        match self.layout.word_size {
            WordSize::Bits64 => self.put(&address.value().to_le_bytes()),
            WordSize::Bits32 => self.put(&(address.value() as u32).to_le_bytes()),
            WordSize::Bits16 => self.put(&(address.value() as u16).to_le_bytes()),
        }
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), TrackerWriteError> {
        let result = if self.full { Err(SinkFull) } else { self.sink.put(bytes) };
        if result.is_err() {
            self.full = true;
            return Err(self.error(TrackerWriteErrorKind::SinkFull));
        }
        self.written = self.written.saturating_add(bytes.len() as u64);
        Ok(())
    }

    #[cold]
    fn error(&self, kind: TrackerWriteErrorKind) -> TrackerWriteError {
        TrackerWriteError { offset: self.written, kind }
    }
}

/// Why an event was not written, and at which byte of the recording.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TrackerWriteError {
    /// How many bytes of recording stand before what was refused.
    pub offset: u64,
    /// Kind of the fault.
    pub kind: TrackerWriteErrorKind,
}

/// Kinds of [`TrackerWriteError`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum TrackerWriteErrorKind {
    /// The path has more than [`MAX_PATH_UNITS`] units.
    PathTooLong,
    /// A raw path has units of another width than the recording.
    WrongCharWidth,
    /// The stack has more than [`MAX_STACK_ADDRESSES`] addresses.
    StackTooDeep,
    /// The address does not fit into the recording's words.
    AddressTooWide(AbsoluteAddress),
    /// The sink refused bytes, now or earlier.
    SinkFull,
}

impl fmt::Display for TrackerWriteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            TrackerWriteErrorKind::PathTooLong => write!(f, "a path of more than {MAX_PATH_UNITS} units")?,
            TrackerWriteErrorKind::WrongCharWidth => write!(f, "a path with units of another width")?,
            TrackerWriteErrorKind::StackTooDeep => {
                write!(f, "a stack of more than {MAX_STACK_ADDRESSES} addresses")?
            }
            TrackerWriteErrorKind::AddressTooWide(address) => {
                write!(f, "address {address} does not fit into a word")?
            }
            TrackerWriteErrorKind::SinkFull => write!(f, "the output is full")?,
        }
        write!(f, " at byte {} of the recording", self.offset)
    }
}

impl core::error::Error for TrackerWriteError {}
