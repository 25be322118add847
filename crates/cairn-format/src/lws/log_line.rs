//! Backtraces in log lines.
//!
//! A device prints its records as text among its other messages; the decode tool prints what is in them:
//!
//! ```text
//!   [2022/03/01 10:00:00:1234] N: ~m#IF0BmUQugNCkgCnkhdAYpQa6wAAV      base64 of a whole blob
//!   ~b#size: 7520, 0x406651 0x406852 0x406c1b 0x406294                 a space after *every* address
//! ```
//!
//! [`marks`] finds both kinds anywhere in a line of bytes:
//!
//! ```
//! use cairn_format::{WordSize, lws::log_line};
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
//! The reference tool takes a record only at the very start of its input, and then refuses everything but
//! base64 behind it; that rule is [`decode_text`]. It accepts white space within the base64, as does
//! [`decode_text`]; in a log line the record ends there.
//!
//! The reference's dump function prints at most 184 characters of base64. Of a longer blob (over 138 bytes)
//! the rest is missing, and since no end is printed either, whatever lay on the stack may follow.
//! [`CompressedText::salvage`] knows that limit.

use core::fmt;
use core::ops::Range;

use crate::base64::{self, DecodeIntoError, Padding};
use crate::lws::{self, Backtrace, DecodeError, Salvage};
use crate::{AbsoluteAddress, Sink, SinkFull, WordSize};

/// A buffer of this size holds every blob that fits into [`REFERENCE_TEXT_LIMIT`], and more.
pub const BUFFER_BYTES: usize = 2048;

/// The longest text that the reference decode tool reads.
pub const REFERENCE_TEXT_LIMIT: usize = 2048;

/// How many characters of base64 the reference's dump function prints at most.
pub const DUMP_LIMIT_CHARACTERS: usize = 184;

const COMPRESSED_MARK: &[u8; 3] = b"~m#";
const DECODED_MARK: &[u8; 3] = b"~b#";

/// What is wrong with the text of a backtrace, and where.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TextError {
    /// Offset in the text that was searched: the line given to [`marks`], or the text given to
    /// [`decode_text`].
    pub offset: usize,
    /// What is wrong there.
    pub kind: TextErrorKind,
}

/// What is wrong with the text of a backtrace.
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
    Blob(DecodeError),
    /// Behind `~b#` there is no `size: `.
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
            TextErrorKind::NoSize => f.write_str("no \"size: \" behind ~b#"),
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

/// `~m#` and the base64 text behind it.
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

    /// The base64 text: up to the first character that base64 does not have, with up to two `=`.
    #[must_use]
    pub fn base64(&self) -> &'a [u8] {
        self.line.get(self.start + COMPRESSED_MARK.len()..self.end).unwrap_or_default()
    }

    /// The bytes behind the base64 text, whatever they hold. `buffer` is best [`BUFFER_BYTES`] long.
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

    /// Takes what can be had of the blob, also when the text is cut short.
    ///
    /// When the length is wrong and there are more than [`DUMP_LIMIT_CHARACTERS`], only these are believed:
    /// behind them lies what happened to be in the memory of the device.
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
            // The part may be a whole blob; the text is none all the same.
            salvage.findings.length = length;
        }
        Ok(salvage)
    }
}

/// `~b#` and the numbers behind it.
#[derive(Clone, Copy, Debug)]
pub struct DecodedText<'a> {
    line: &'a [u8],
    start: usize,
}

impl<'a> DecodedText<'a> {
    /// Where it lies in the line: from `~b#` to the end of the last number that can be read, and the space
    /// behind it.
    #[must_use]
    pub fn range(&self) -> Range<usize> {
        let Ok((_, mut addresses)) = self.parse() else {
            return self.start..self.start + DECODED_MARK.len();
        };
        addresses.by_ref().for_each(drop);
        addresses.skip_space();
        self.start..addresses.position
    }

    /// The allocation size, and an iterator over the addresses.
    ///
    /// # Errors
    ///
    /// [`TextErrorKind::NoSize`] or [`TextErrorKind::BadNumber`].
    ///
    /// ```
    /// use cairn_format::{AbsoluteAddress, lws::log_line};
    /// let line = b"~b#size: 16, 0x1000 0x2000 \n";
    /// let Some(log_line::Mark::Decoded(text)) = log_line::marks(line).next() else { panic!() };
    /// let (allocation_size_bytes, addresses) = text.parse()?;
    /// assert_eq!(allocation_size_bytes, 16);
    /// let addresses: Result<Vec<_>, _> = addresses.collect();
    /// assert_eq!(addresses?, [0x1000, 0x2000].map(AbsoluteAddress::new));
    /// # Ok::<(), log_line::TextError>(())
    /// ```
    pub fn parse(&self) -> Result<(u64, Addresses<'a>), TextError> {
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
        Ok((size, Addresses { line: self.line, position: number_start + digits + 1 }))
    }
}

/// The addresses of a `~b#` line; ends at the first thing that does not start with ` 0x`, or after an error.
#[derive(Clone, Debug)]
pub struct Addresses<'a> {
    line: &'a [u8],
    position: usize,
}

impl Addresses<'_> {
    fn rest(&self) -> &[u8] {
        self.line.get(self.position..).unwrap_or_default()
    }

    fn skip_space(&mut self) {
        self.position += usize::from(self.rest().first() == Some(&b' '));
    }
}

impl Iterator for Addresses<'_> {
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

impl core::iter::FusedIterator for Addresses<'_> {}

/// Decodes a text by the rule of the reference decode tool: a whole blob in base64, with or without lead-in,
/// and nothing else.
///
/// `~` with any character and `#` at the start is the lead-in. Both base64 alphabets, spaces, tabs and line
/// ends anywhere, and missing padding are accepted. The blob in it is decoded strictly, except that, like the
/// reference, this allows whatever follows the size.
///
/// # Errors
///
/// [`TextErrorKind::TooShort`], [`TextErrorKind::TooLong`], [`TextErrorKind::NotBase64`],
/// [`TextErrorKind::BufferTooSmall`] or [`TextErrorKind::Blob`].
///
/// ```
/// use cairn_format::{WordSize, lws::log_line};
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
/// use cairn_format::{AbsoluteAddress, SliceSink, lws::log_line};
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
            DecodeIntoError::NotBase64(base64::DecodeError { offset, character }) => {
                Self { offset: text_offset + offset, kind: TextErrorKind::NotBase64 { character } }
            }
            DecodeIntoError::BufferTooSmall { buffer_bytes } => {
                Self { offset: text_offset, kind: TextErrorKind::BufferTooSmall { buffer_bytes } }
            }
        }
    }
}

/// The next `~` at or behind `from`. Most log lines have none: look at sixteen bytes at once.
fn find_tilde(line: &[u8], from: usize) -> Option<usize> {
    let rest = line.get(from..)?;
    let is_tilde = |&byte: &u8| byte == b'~';
    let chunks = rest.chunks_exact(16);
    // `fold` instead of `any`: without an early exit the comparison of a chunk is one vector instruction.
    let skipped =
        chunks.take_while(|chunk| !chunk.iter().fold(false, |found, byte| found | is_tilde(byte))).count();
    let near = skipped * 16;
    let at = rest.get(near..)?.iter().position(is_tilde)?;
    Some(from + near + at)
}

/// Length of the mark at the start of `text` together with its base64 and padding.
fn base64_end(text: &[u8]) -> usize {
    let body = text.iter().skip(COMPRESSED_MARK.len());
    let characters = body.clone().take_while(|&&character| base64::is_alphabet(character)).count();
    let padding = body.skip(characters).take(2).take_while(|&&character| character == b'=').count();
    COMPRESSED_MARK.len() + characters + padding
}

/// The number at the start of `text` and how many digits it has. `None` when there is no digit, when the
/// number passes 64 bits, or when a letter or digit that is not its own follows.
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
