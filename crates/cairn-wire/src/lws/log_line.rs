//! Backtraces in log lines.
//!
//! A device prints its records as text among its other messages; the decode tool prints what is in
//! them:
//!
//! ```text
//!   [2022/03/01 10:00:00:1234] N: ~m#IF0BmUQugNCkgCnkhdAYpQa6wAAV      base64 of a whole blob
//!   ~b#size: 7520, 0x406651 0x406852 0x406c1b 0x406294                 a space after *every* address
//!   ~b#pc:0x1000 ra:0x1010 async:0x2000 ...5 0x7f2a?                   what cairn prints of other stacks
//! ```
//!
//! The third line is cairn's own: a stack without a size, kinds of frames ([`kind_prefix`]), `...5`
//! for five omitted frames, `...` where the stack goes on, and `?` after a number that may be the
//! remains of a longer one ([`SuspectedLosses`](crate::lws::SuspectedLosses)).
//! [`DecodedText::frames`] reads all of it.
//!
//! [`marks`] finds both kinds anywhere in a line of bytes:
//!
//! ```
//! use cairn_format::WordSize;
//! use cairn_wire::lws::log_line;
//!
//! let line = b"N: lost ~m#IF0BmUQugNCkgCnkhdAYpQa6wAAV\r\n";
//! let mut buffer = [0; log_line::BUFFER_BYTES];
//! for mark in log_line::marks(line) {
//!     if let log_line::Mark::Compressed(text) = mark {
//!         let backtrace = text.decode(WordSize::Bits32, &mut buffer)?;
//!         assert_eq!(text.range(), 8..39);
//!         assert_eq!(backtrace.allocation_size_bytes, 7520);
//!         assert_eq!(backtrace.addresses[0].value(), 0x406651);
//!     }
//! }
//! # Ok::<(), log_line::TextError>(())
//! ```
//!
//! The reference tool takes a record only at the very start of its input, and then refuses
//! everything but base64 after it; that rule is [`decode_text`]. It accepts white space within the
//! base64, as does [`decode_text`]; in a log line the record ends there.
//!
//! The reference's dump function prints at most 184 characters of base64. The rest of a longer blob
//! (over 138 bytes) is missing, and since no end is printed either, any bytes from the device's
//! stack may follow. [`CompressedText::salvage`] knows that limit.

use core::fmt;
use core::ops::Range;

use crate::base64::{self, DecodeIntoError, Padding};
use crate::lws::{self, Backtrace, LwsError, Salvage};
use cairn_format::{AbsoluteAddress, Frame, Sink, SinkFull, WordSize};

/// A buffer of this size holds every blob that fits into [`REFERENCE_TEXT_LIMIT`], and more.
pub const BUFFER_BYTES: usize = 2048;

/// The longest text that the reference decode tool reads.
pub const REFERENCE_TEXT_LIMIT: usize = 2048;

/// How many characters of base64 the reference's dump function prints at most.
pub const DUMP_LIMIT_CHARACTERS: usize = 184;

const COMPRESSED_MARK: &[u8; 3] = b"~m#";
const DECODED_MARK: &[u8; 3] = b"~b#";

/// Reports a fault in the text of a backtrace and its offset.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TextError {
    /// Offset in the searched text. That is the line given to [`marks`], or the text given to
    /// [`decode_text`].
    pub offset: usize,
    /// Kind of the fault.
    pub kind: TextErrorKind,
}

/// Kinds of faults in the text of a backtrace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum TextErrorKind {
    /// Nothing follows the mark. The reference prints that for a blob it gave up on.
    Empty,
    /// The reference rule wants at least four characters.
    TooShort,
    /// The reference rule allows [`REFERENCE_TEXT_LIMIT`] characters.
    TooLong,
    /// A character that base64 cannot have, or data after the padding.
    NotBase64 {
        /// The character.
        character: u8,
    },
    /// The blob is longer than the buffer given.
    BufferTooSmall {
        /// Size of the buffer.
        buffer_bytes: usize,
    },
    /// The text is sound base64, but the blob in it is not.
    Blob(LwsError),
    /// After `~b#` there is no `size: `; for [`DecodedText::frames`], no frame either.
    NoSize,
    /// A number is missing, too large for 64 bits, or runs into a letter.
    BadNumber,
}

impl fmt::Display for TextError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            TextErrorKind::Empty => {
                f.write_str("nothing behind ~m#: the program had no room for this backtrace")
            }
            TextErrorKind::TooShort => f.write_str("fewer than 4 characters"),
            TextErrorKind::TooLong => write!(f, "more than {REFERENCE_TEXT_LIMIT} characters"),
            TextErrorKind::NotBase64 { character } => write!(f, "not base64: {:?}", char::from(character)),
            TextErrorKind::BufferTooSmall { buffer_bytes } => {
                write!(f, "blob longer than the {buffer_bytes} bytes set aside for it")
            }
            TextErrorKind::Blob(error) => write!(f, "bad blob: {error}"),
            TextErrorKind::NoSize => f.write_str("no \"size: \" and no address behind ~b#"),
            TextErrorKind::BadNumber => f.write_str("bad number"),
        }?;
        write!(f, " (at character {})", self.offset)
    }
}

impl core::error::Error for TextError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match &self.kind {
            TextErrorKind::Blob(error) => Some(error),
            _ => None,
        }
    }
}

/// Iterates over the backtraces in one line, from left to right.
#[must_use]
pub const fn marks(line: &[u8]) -> Marks<'_> {
    Marks { line, position: 0 }
}

/// The backtraces in one line: see [`marks`].
#[derive(Clone, Debug)]
pub struct Marks<'a> {
    line: &'a [u8],
    position: usize,
}

impl<'a> Iterator for Marks<'a> {
    type Item = Mark<'a>;

    fn next(&mut self) -> Option<Mark<'a>> {
        loop {
            let start = find_tilde(self.line, self.position)?;
            self.position = start + 1;
            let rest = self.line.get(start..).unwrap_or_default();
            match rest.first_chunk() {
                Some(COMPRESSED_MARK) => {
                    let mark = CompressedText { line: self.line, start, end: start + base64_end(rest) };
                    self.position = mark.end;
                    return Some(Mark::Compressed(mark));
                }
                Some(DECODED_MARK) => {
                    self.position = start + DECODED_MARK.len();
                    return Some(Mark::Decoded(DecodedText { line: self.line, start }));
                }
                _ => {}
            }
        }
    }
}

impl core::iter::FusedIterator for Marks<'_> {}

/// A backtrace found in a line.
#[derive(Clone, Copy, Debug)]
pub enum Mark<'a> {
    /// `~m#` and base64: the backtrace as the device printed it.
    Compressed(CompressedText<'a>),
    /// `~b#` and numbers: the backtrace as a decode tool printed it.
    Decoded(DecodedText<'a>),
}

/// `~m#` and the base64 text after it.
#[derive(Clone, Copy, Debug)]
pub struct CompressedText<'a> {
    line: &'a [u8],
    start: usize,
    end: usize,
}

impl<'a> CompressedText<'a> {
    /// Where it lies in the line, `~m#` and padding included.
    #[must_use]
    pub const fn range(&self) -> Range<usize> {
        self.start..self.end
    }

    /// Returns the base64 text: up to the first character that base64 does not have, with up to two
    /// `=`.
    #[must_use]
    pub fn base64(&self) -> &'a [u8] {
        self.line.get(self.start + COMPRESSED_MARK.len()..self.end).unwrap_or_default()
    }

    /// Decodes the base64 text into bytes of any content. `buffer` is best
    /// [`BUFFER_BYTES`] long.
    ///
    /// # Errors
    ///
    /// [`TextErrorKind::Empty`] or [`TextErrorKind::BufferTooSmall`].
    pub fn bytes<'b>(&self, buffer: &'b mut [u8]) -> Result<&'b [u8], TextError> {
        let offset = self.start + COMPRESSED_MARK.len();
        if self.base64().is_empty() {
            return Err(TextError { offset, kind: TextErrorKind::Empty });
        }
        base64::decode_into(self.base64(), buffer).map_err(|error| TextError::from_base64(error, offset))
    }

    /// Decodes the blob strictly.
    ///
    /// # Errors
    ///
    /// [`TextErrorKind::Empty`], [`TextErrorKind::BufferTooSmall`] or [`TextErrorKind::Blob`].
    pub fn decode(&self, word_size: WordSize, buffer: &mut [u8]) -> Result<Backtrace, TextError> {
        let blob = self.bytes(buffer)?;
        let offset = self.start + COMPRESSED_MARK.len();
        lws::decode(blob, word_size).map_err(|error| TextError { offset, kind: TextErrorKind::Blob(error) })
    }

    /// Decodes as much of the blob as possible, also if the text is truncated.
    ///
    /// When the length is wrong and there are more than [`DUMP_LIMIT_CHARACTERS`], only these are
    /// believed: after them lies what happened to be in the memory of the device.
    ///
    /// # Errors
    ///
    /// [`TextErrorKind::Empty`] or [`TextErrorKind::BufferTooSmall`].
    pub fn salvage(&self, word_size: WordSize, buffer: &mut [u8]) -> Result<Salvage, TextError> {
        let blob = self.bytes(buffer)?;
        let mut salvage = lws::salvage(blob, word_size);
        let length = salvage.findings.length;
        if let (Some(printed), Some(_)) = (blob.get(..DUMP_LIMIT_CHARACTERS / 4 * 3), length) {
            salvage = lws::salvage(printed, word_size);
            // The part may be a whole blob, but the text is not.
            salvage.findings.length = length;
        }
        Ok(salvage)
    }
}

/// `~b#` and the numbers after it.
#[derive(Clone, Copy, Debug)]
pub struct DecodedText<'a> {
    line: &'a [u8],
    start: usize,
}

impl<'a> DecodedText<'a> {
    /// Returns its range in the line. The range is from `~b#` to the end of the last number that
    /// can be read, and the space after it.
    #[must_use]
    pub fn range(&self) -> Range<usize> {
        let Ok((_, mut frames)) = self.frames() else {
            return self.start..self.start + DECODED_MARK.len();
        };
        frames.by_ref().for_each(drop);
        frames.position += usize::from(frames.rest().first() == Some(&b' '));
        self.start..frames.position
    }

    /// Returns the allocation size, if any, and an iterator over the frames. Both the decode tool's
    /// form and cairn's are read.
    ///
    /// # Errors
    ///
    /// [`TextErrorKind::NoSize`] when neither a size nor a frame follows the mark,
    /// [`TextErrorKind::BadNumber`].
    ///
    /// ```
    /// use cairn_format::{AbsoluteAddress, Frame};
    /// use cairn_wire::lws::log_line;
    /// let line = b"~b#pc:0x1000 0x1010? ...5 ";
    /// let Some(log_line::Mark::Decoded(text)) = log_line::marks(line).next() else { panic!() };
    /// let (size, frames) = text.frames()?;
    /// assert_eq!(size, None);
    /// let frames: Vec<_> = frames.collect::<Result<_, _>>()?;
    /// assert_eq!(frames[0].frame, Frame::ProgramCounter(AbsoluteAddress::new(0x1000)));
    /// assert_eq!(frames[1].frame, Frame::ReturnAddress(AbsoluteAddress::new(0x1010)));
    /// assert!(frames[1].is_uncertain);
    /// assert_eq!(frames[2].frame, Frame::Omitted(5));
    /// # Ok::<(), log_line::TextError>(())
    /// ```
    pub fn frames(&self) -> Result<(Option<TextSize>, TextFrames<'a>), TextError> {
        let position = self.start + DECODED_MARK.len();
        let error = |offset, kind| TextError { offset, kind };
        let rest = self.line.get(position..).unwrap_or_default();
        let Some(number) = rest.strip_prefix(b"size: ") else {
            if !starts_frame(rest) {
                return Err(error(position, TextErrorKind::NoSize));
            }
            return Ok((None, TextFrames { line: self.line, position, is_first: true }));
        };
        let number_start = self.line.len() - number.len();
        let bad_number = error(number_start, TextErrorKind::BadNumber);
        let (bytes, digits) = leading_number(number, 10).ok_or(bad_number)?;
        let is_uncertain = number.get(digits) == Some(&b'?');
        let end = digits + usize::from(is_uncertain);
        if number.get(end) != Some(&b',') {
            return Err(bad_number);
        }
        let position = number_start + end + 1;
        Ok((
            Some(TextSize { bytes, is_uncertain }),
            TextFrames { line: self.line, position, is_first: false },
        ))
    }

    /// Returns the allocation size, and an iterator over the addresses.
    ///
    /// # Errors
    ///
    /// [`TextErrorKind::NoSize`] or [`TextErrorKind::BadNumber`].
    ///
    /// ```
    /// use cairn_format::AbsoluteAddress;
    /// use cairn_wire::lws::log_line;
    /// let line = b"~b#size: 16, 0x1000 0x2000 \n";
    /// let Some(log_line::Mark::Decoded(text)) = log_line::marks(line).next() else { panic!() };
    /// let (allocation_size_bytes, addresses) = text.parse()?;
    /// assert_eq!(allocation_size_bytes, 16);
    /// let addresses: Result<Vec<_>, _> = addresses.collect();
    /// assert_eq!(addresses?, [0x1000, 0x2000].map(AbsoluteAddress::new));
    /// # Ok::<(), log_line::TextError>(())
    /// ```
    pub fn parse(&self) -> Result<(u64, LineAddresses<'a>), TextError> {
        let position = self.start + DECODED_MARK.len();
        let error = |offset, kind| TextError { offset, kind };
        let rest = self.line.get(position..).unwrap_or_default();
        let number = rest.strip_prefix(b"size: ").ok_or(error(position, TextErrorKind::NoSize))?;
        let number_start = self.line.len() - number.len();
        let bad_number = error(number_start, TextErrorKind::BadNumber);
        let (size, digits) = leading_number(number, 10).ok_or(bad_number)?;
        // Every size is followed by a comma, even before no addresses at all.
        if number.get(digits) != Some(&b',') {
            return Err(bad_number);
        }
        Ok((size, LineAddresses { line: self.line, position: number_start + digits + 1 }))
    }
}

/// Iterates over the addresses of a `~b#` line. Ends at the first text that does not start with
/// ` 0x`, or after an error.
#[derive(Clone, Debug)]
pub struct LineAddresses<'a> {
    line: &'a [u8],
    position: usize,
}

impl LineAddresses<'_> {
    fn rest(&self) -> &[u8] {
        self.line.get(self.position..).unwrap_or_default()
    }
}

impl Iterator for LineAddresses<'_> {
    type Item = Result<AbsoluteAddress, TextError>;

    fn next(&mut self) -> Option<Self::Item> {
        let number_start = self.position + b" 0x".len();
        let number = self.rest().strip_prefix(b" 0x")?;
        match leading_number(number, 16) {
            Some((value, digits)) => {
                self.position = number_start + digits;
                Some(Ok(AbsoluteAddress::new(value)))
            }
            None => {
                self.line = self.line.get(..self.position).unwrap_or_default();
                Some(Err(TextError { offset: number_start, kind: TextErrorKind::BadNumber }))
            }
        }
    }
}

impl core::iter::FusedIterator for LineAddresses<'_> {}

/// An allocation size as a text has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TextSize {
    /// The number.
    pub bytes: u64,
    /// A `?` follows: the number may be the remains of a longer one.
    pub is_uncertain: bool,
}

/// A frame as a text has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TextFrame {
    /// The frame. An address without a kind is a return address.
    pub frame: Frame,
    /// A `?` follows: of the address, only the low 31 bits are certain.
    pub is_uncertain: bool,
}

/// The frames of a `~b#` line; ends at the first thing that does not start like one, or after an
/// error.
#[derive(Clone, Debug)]
pub struct TextFrames<'a> {
    line: &'a [u8],
    position: usize,
    /// The first frame of a line without a size follows the mark; a space comes before every other
    /// one.
    is_first: bool,
}

impl TextFrames<'_> {
    fn rest(&self) -> &[u8] {
        self.line.get(self.position..).unwrap_or_default()
    }
}

impl Iterator for TextFrames<'_> {
    type Item = Result<TextFrame, TextError>;

    fn next(&mut self) -> Option<Self::Item> {
        let separator = usize::from(!core::mem::take(&mut self.is_first));
        if separator > 0 && self.rest().first() != Some(&b' ') {
            return None;
        }
        let start = self.position + separator;
        let text = self.line.get(start..).unwrap_or_default();
        if !starts_frame(text) {
            return None;
        }
        match leading_frame(text) {
            Ok((frame, length)) => {
                self.position = start + length;
                Some(Ok(frame))
            }
            Err(offset) => {
                self.line = self.line.get(..self.position).unwrap_or_default();
                Some(Err(TextError { offset: start + offset, kind: TextErrorKind::BadNumber }))
            }
        }
    }
}

impl core::iter::FusedIterator for TextFrames<'_> {}

/// Returns the prefix for the kind of a frame in a text; empty for a frame without address.
#[must_use]
pub const fn kind_prefix(frame: Frame) -> &'static str {
    match frame {
        Frame::ProgramCounter(_) => "pc:",
        Frame::ReturnAddress(_) => "ra:",
        Frame::AsyncResumePoint(_) => "async:",
        Frame::Omitted(_) | Frame::Truncated => "",
    }
}

/// Reads a text of exactly one frame. The forms are `0x1000`, `pc:0x1000`, `ra:0x1000`,
/// `async:0x1000`, each with or without a `?` after it; `...5`, `...`. `None` when it does not
/// start like a frame.
///
/// # Errors
///
/// [`TextErrorKind::BadNumber`], where the number is.
///
/// ```
/// use cairn_format::{AbsoluteAddress, Frame};
/// use cairn_wire::lws::log_line::parse_frame;
/// let frame = parse_frame(b"async:0x2000").unwrap()?.frame;
/// assert_eq!(frame, Frame::AsyncResumePoint(AbsoluteAddress::new(0x2000)));
/// assert_eq!(parse_frame(b"2000"), None);
/// assert!(parse_frame(b"0x10000000000000000").unwrap().is_err());
/// # Ok::<(), cairn_wire::lws::log_line::TextError>(())
/// ```
#[must_use]
pub fn parse_frame(text: &[u8]) -> Option<Result<TextFrame, TextError>> {
    let error = |offset| TextError { offset, kind: TextErrorKind::BadNumber };
    starts_frame(text).then(|| match leading_frame(text) {
        Ok((frame, length)) if length == text.len() => Ok(frame),
        Ok((_, length)) => Err(error(length)),
        Err(offset) => Err(error(offset)),
    })
}

/// Returns true for the start of an address with or without its kind, and for three points.
fn starts_frame(text: &[u8]) -> bool {
    text.starts_with(b"...") || split_kind(text).is_some()
}

/// Makes a frame of one kind.
type FrameConstructor = fn(AbsoluteAddress) -> Frame;

/// Prefixes of the digits of an address.
const ADDRESS_STARTS: [(&[u8], FrameConstructor); 4] = [
    (b"0x", Frame::ReturnAddress),
    (b"ra:0x", Frame::ReturnAddress),
    (b"pc:0x", Frame::ProgramCounter),
    (b"async:0x", Frame::AsyncResumePoint),
];

/// Returns the kind of the address that `text` starts with, and the offset of its digits.
fn split_kind(text: &[u8]) -> Option<(FrameConstructor, usize)> {
    let found = ADDRESS_STARTS.into_iter().find(|(prefix, _)| text.starts_with(prefix));
    found.map(|(prefix, kind)| (kind, prefix.len()))
}

/// Returns the frame at the start of `text` and its length, or the offset of a malformed number.
fn leading_frame(text: &[u8]) -> Result<(TextFrame, usize), usize> {
    let certain = |frame| TextFrame { frame, is_uncertain: false };
    let Some((kind, start)) = split_kind(text) else {
        const POINTS: usize = b"...".len();
        let number = text.get(POINTS..).unwrap_or_default();
        return match number.first() {
            Some(byte) if byte.is_ascii_alphanumeric() => match leading_number(number, 10) {
                // No stack has a mark for 0 omitted frames.
                Some((count, digits)) if count > 0 => Ok((certain(Frame::Omitted(count)), POINTS + digits)),
                _ => Err(POINTS),
            },
            _ => Ok((certain(Frame::Truncated), POINTS)),
        };
    };
    let number = text.get(start..).unwrap_or_default();
    let (value, digits) = leading_number(number, 16).ok_or(start)?;
    let is_uncertain = number.get(digits) == Some(&b'?');
    let frame = kind(AbsoluteAddress::new(value));
    Ok((TextFrame { frame, is_uncertain }, start + digits + usize::from(is_uncertain)))
}

/// Decodes a text as the reference decode tool does: one whole blob in base64. A lead-in may come
/// before it.
///
/// `~` with any character and `#` at the start is the lead-in. Both base64 alphabets, spaces, tabs
/// and line ends anywhere, and missing padding are accepted. The blob in it is decoded strictly,
/// except that, like the reference, this allows whatever follows the size.
///
/// # Errors
///
/// [`TextErrorKind::TooShort`], [`TextErrorKind::TooLong`], [`TextErrorKind::NotBase64`],
/// [`TextErrorKind::BufferTooSmall`] or [`TextErrorKind::Blob`].
///
/// ```
/// use cairn_format::WordSize;
/// use cairn_wire::lws::log_line;
/// let mut buffer = [0; log_line::BUFFER_BYTES];
/// let backtrace = log_line::decode_text(b"EGkerWSG ke4d+CYADQ\n", WordSize::Bits64, &mut buffer)?;
/// assert_eq!(backtrace.addresses.len(), 2);
/// # Ok::<(), log_line::TextError>(())
/// ```
pub fn decode_text(text: &[u8], word_size: WordSize, buffer: &mut [u8]) -> Result<Backtrace, TextError> {
    let error = |offset, kind| TextError { offset, kind };
    if text.len() < 4 {
        return Err(error(0, TextErrorKind::TooShort));
    }
    if text.len() > REFERENCE_TEXT_LIMIT {
        return Err(error(REFERENCE_TEXT_LIMIT, TextErrorKind::TooLong));
    }
    let lead_in = if let [b'~', _, b'#', ..] = text { 3 } else { 0 };
    let base64_text = text.get(lead_in..).unwrap_or_default();
    // The one kind of ASCII white space that the shared decoder accepts and the reference does not.
    if let Some(at) = base64_text.iter().position(|&character| character == b'\x0c') {
        return Err(error(lead_in + at, TextErrorKind::NotBase64 { character: b'\x0c' }));
    }
    let bytes =
        base64::decode_into(base64_text, buffer).map_err(|error| TextError::from_base64(error, lead_in))?;
    let in_blob = |blob_error| error(lead_in, TextErrorKind::Blob(blob_error));
    lws::Blob::whole(bytes).and_then(|blob| blob.decode_leading(word_size)).map_err(in_blob)
}

/// Writes `~m#` and the blob in base64, as a device does; the line end is the caller's.
///
/// Other than the reference's dump function this does not stop after [`DUMP_LIMIT_CHARACTERS`].
///
/// # Errors
///
/// [`SinkFull`] when `sink` cannot take the text.
pub fn write_compressed(blob: &[u8], sink: &mut impl Sink) -> Result<(), SinkFull> {
    sink.put(COMPRESSED_MARK)?;
    base64::encode(blob, Padding::Written, sink)
}

/// Writes the line that the reference decode tool prints for a backtrace, line end included.
///
/// # Errors
///
/// [`SinkFull`] when `sink` cannot take the text.
///
/// ```
/// use cairn_format::{AbsoluteAddress, SliceSink};
/// use cairn_wire::lws::log_line;
/// let mut buffer = [0; 32];
/// let mut sink = SliceSink::new(&mut buffer);
/// log_line::write_decoded(16, [0x1000, 0x2000].map(AbsoluteAddress::new), &mut sink)?;
/// assert_eq!(sink.written(), b"~b#size: 16, 0x1000 0x2000 \n");
/// # Ok::<(), cairn_format::SinkFull>(())
/// ```
pub fn write_decoded(
    allocation_size_bytes: u64,
    addresses: impl IntoIterator<Item = AbsoluteAddress>,
    sink: &mut impl Sink,
) -> Result<(), SinkFull> {
    sink.put(DECODED_MARK)?;
    sink.put(b"size: ")?;
    put_number(allocation_size_bytes, 10, sink)?;
    sink.put(b", ")?;
    for address in addresses {
        sink.put(b"0x")?;
        put_number(address.value(), 16, sink)?;
        sink.put(b" ")?;
    }
    sink.put(b"\n")
}

impl TextError {
    /// Moves an error in a base64 text that starts at `text_offset`.
    fn from_base64(error: DecodeIntoError, text_offset: usize) -> Self {
        match error {
            DecodeIntoError::NotBase64(base64::Base64Error { offset, character }) => {
                Self { offset: text_offset + offset, kind: TextErrorKind::NotBase64 { character } }
            }
            DecodeIntoError::BufferTooSmall { buffer_bytes } => {
                Self { offset: text_offset, kind: TextErrorKind::BufferTooSmall { buffer_bytes } }
            }
        }
    }
}

/// Returns the next `~` at or after `from`. Most log lines have none: look at sixteen bytes at
/// once.
fn find_tilde(line: &[u8], from: usize) -> Option<usize> {
    let rest = line.get(from..)?;
    let is_tilde = |&byte: &u8| byte == b'~';
    let chunks = rest.chunks_exact(16);
    // `fold` instead of `any`: without an early exit the comparison of a chunk is one vector
    // instruction.
    let skipped =
        chunks.take_while(|chunk| !chunk.iter().fold(false, |found, byte| found | is_tilde(byte))).count();
    let near = skipped * 16;
    let at = rest.get(near..)?.iter().position(is_tilde)?;
    Some(from + near + at)
}

/// Returns the length of the mark at the start of `text` together with its base64 and padding.
fn base64_end(text: &[u8]) -> usize {
    let body = text.iter().skip(COMPRESSED_MARK.len());
    let characters = body.clone().take_while(|&&character| base64::is_alphabet(character)).count();
    let padding = body.skip(characters).take(2).take_while(|&&character| character == b'=').count();
    COMPRESSED_MARK.len() + characters + padding
}

/// Returns the number at the start of `text` and how many digits it has. `None` when there is no
/// digit, when the number passes 64 bits, or when a letter or digit that is not its own follows.
fn leading_number(text: &[u8], radix: u32) -> Option<(u64, usize)> {
    let mut value = 0_u64;
    let mut digits = 0;
    while let Some(digit) = text.get(digits).and_then(|&byte| char::from(byte).to_digit(radix)) {
        value = value.checked_mul(u64::from(radix))?.checked_add(u64::from(digit))?;
        digits += 1;
    }
    let runs_on = text.get(digits).is_some_and(u8::is_ascii_alphanumeric);
    (digits > 0 && !runs_on).then_some((value, digits))
}

/// Writes a number without leading zeros, in lower case.
fn put_number(mut value: u64, radix: u64, sink: &mut impl Sink) -> Result<(), SinkFull> {
    // 2^64 has 20 decimal digits.
    let mut digits = [0; 20];
    let mut start = digits.len();
    for slot in digits.iter_mut().rev() {
        let digit = (value % radix) as u8;
        *slot = if digit < 10 { b'0' + digit } else { b'a' + digit - 10 };
        value /= radix;
        start -= 1;
        if value == 0 {
            break;
        }
    }
    sink.put(digits.get(start..).unwrap_or_default())
}
