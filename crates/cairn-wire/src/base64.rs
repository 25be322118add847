//! Encodes and decodes base64 without allocation, for the two text forms here.
//!
//! Swift writes base64 without padding and accepts both alphabets; libwebsockets writes padding,
//! and its reader accepts both alphabets, white space anywhere and missing padding. One tolerant
//! decoder serves both; it yields bytes one at a time, so that a blob can be read out of a log line
//! with no buffer for the line.

use core::fmt;

use cairn_format::{Sink, SinkFull};

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Whether the encoder fills the last group of four characters with `=`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Padding {
    /// `=` up to a multiple of four characters, as libwebsockets writes.
    Written,
    /// No `=`, as Swift writes.
    Omitted,
}

/// Writes `bytes` as standard base64 (`+` and `/`).
///
/// # Errors
///
/// [`SinkFull`] when `sink` cannot take the text.
///
/// ```
/// use cairn_format::SliceSink;
/// use cairn_wire::base64;
/// let mut buffer = [0; 8];
/// let mut sink = SliceSink::new(&mut buffer);
/// base64::encode(b"cairn", base64::Padding::Omitted, &mut sink)?;
/// assert_eq!(sink.written(), b"Y2Fpcm4");
/// # Ok::<(), cairn_format::SinkFull>(())
/// ```
pub fn encode(bytes: &[u8], padding: Padding, sink: &mut impl Sink) -> Result<(), SinkFull> {
    for group in bytes.chunks(3) {
        let byte = |index: usize| u32::from(group.get(index).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        let mut text = [18, 12, 6, 0].map(|shift| ALPHABET[(bits >> shift & 63) as usize]);
        let used = group.len() + 1;
        text[used..].fill(b'=');
        let written = if padding == Padding::Written { 4 } else { used };
        sink.put(&text[..written])?;
    }
    Ok(())
}

/// A character that base64 cannot have, or data after the padding.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Base64Error {
    /// Index of the offending character in the text.
    pub offset: usize,
    /// The offending character.
    pub character: u8,
}

impl fmt::Display for Base64Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not base64: {:?} at character {}", char::from(self.character), self.offset)
    }
}

impl core::error::Error for Base64Error {}

/// Decodes base64 from single characters, for a text that is not in one piece. Accepts what
/// [`Base64Decoder`] accepts.
///
/// ```
/// use cairn_wire::base64::Assembler;
/// let mut assembler = Assembler::new();
/// let bytes: Vec<u8> = "Y2Fp".bytes().filter_map(|character| assembler.push(character).ok()?).collect();
/// assert_eq!(bytes, b"cai");
/// assert!(assembler.push(b'*').is_err());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Assembler {
    bits: u32,
    bit_count: u32,
    padded: bool,
}

/// The character is not allowed at this position of a base64 text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NotBase64;

impl Assembler {
    /// Before the first character.
    #[must_use]
    pub const fn new() -> Self {
        Self { bits: 0, bit_count: 0, padded: false }
    }

    /// Takes the next character; returns a byte when one is complete.
    ///
    /// # Errors
    ///
    /// [`NotBase64`] for a character of neither alphabet, and for data after padding.
    pub fn push(&mut self, character: u8) -> Result<Option<u8>, NotBase64> {
        match sextet(character) {
            _ if character.is_ascii_whitespace() => Ok(None),
            None if character == b'=' => {
                self.padded = true;
                Ok(None)
            }
            Some(value) if !self.padded => {
                self.bits = self.bits << 6 | u32::from(value);
                self.bit_count += 6;
                if self.bit_count < 8 {
                    return Ok(None);
                }
                self.bit_count -= 8;
                Ok(Some((self.bits >> self.bit_count) as u8))
            }
            _ => Err(NotBase64),
        }
    }
}

/// Iterates over the bytes that a base64 text encodes.
///
/// Accepts `-` and `_` for `+` and `/`, white space anywhere, and missing padding. Left-over bits
/// of the last group are ignored. After an error the iterator ends.
///
/// ```
/// use cairn_wire::base64;
/// let bytes: Result<Vec<u8>, _> = base64::Base64Decoder::new(b"Y2Fp\ncm4").collect();
/// assert_eq!(bytes?, b"cairn");
/// # Ok::<(), base64::Base64Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Base64Decoder<'a> {
    text: &'a [u8],
    position: usize,
    assembler: Assembler,
}

impl<'a> Base64Decoder<'a> {
    /// Creates a decoder at the first character of `text`.
    #[must_use]
    pub const fn new(text: &'a [u8]) -> Self {
        Self { text, position: 0, assembler: Assembler::new() }
    }
}

impl Iterator for Base64Decoder<'_> {
    type Item = Result<u8, Base64Error>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let character = *self.text.get(self.position)?;
            let offset = self.position;
            self.position += 1;
            match self.assembler.push(character) {
                Ok(None) => {}
                Ok(Some(byte)) => return Some(Ok(byte)),
                Err(NotBase64) => {
                    self.position = self.text.len();
                    return Some(Err(Base64Error { offset, character }));
                }
            }
        }
    }
}

/// Why a text could not be decoded into a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum DecodeIntoError {
    /// A character that base64 cannot have, or data after the padding.
    NotBase64(Base64Error),
    /// The bytes do not fit into the buffer.
    BufferTooSmall {
        /// Size of the buffer.
        buffer_bytes: usize,
    },
}

impl fmt::Display for DecodeIntoError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotBase64(error) => error.fmt(f),
            Self::BufferTooSmall { buffer_bytes } => {
                write!(f, "base64 text holds more than the {buffer_bytes} bytes of the buffer")
            }
        }
    }
}

impl core::error::Error for DecodeIntoError {}

/// Decodes all of `text` to the start of `buffer` and returns the bytes. Accepts what
/// [`Base64Decoder`] accepts, faster.
///
/// # Errors
///
/// [`DecodeIntoError`]; the content of `buffer` is then unspecified.
///
/// ```
/// use cairn_wire::base64;
/// let mut buffer = [0; 8];
/// assert_eq!(base64::decode_into(b"Y2Fpcm4=", &mut buffer)?, b"cairn");
/// # Ok::<(), base64::DecodeIntoError>(())
/// ```
pub fn decode_into<'b>(text: &[u8], buffer: &'b mut [u8]) -> Result<&'b [u8], DecodeIntoError> {
    let buffer_bytes = buffer.len();
    let mut groups = 0;
    for (characters, bytes) in text.chunks_exact(4).zip(buffer.chunks_exact_mut(3)) {
        let sextets = [characters[0], characters[1], characters[2], characters[3]]
            .map(|character| u32::from(SEXTETS[usize::from(character)]));
        let [a, b, c, d] = sextets;
        if a | b | c | d > 63 {
            break;
        }
        let [_, group @ ..] = (a << 18 | b << 12 | c << 6 | d).to_be_bytes();
        bytes.copy_from_slice(&group);
        groups += 1;
    }
    // The rest has white space, padding, an error, or less than a group.
    let rest = Base64Decoder { position: groups * 4, ..Base64Decoder::new(text) };
    let mut used = groups * 3;
    for byte in rest {
        let byte = byte.map_err(DecodeIntoError::NotBase64)?;
        *buffer.get_mut(used).ok_or(DecodeIntoError::BufferTooSmall { buffer_bytes })? = byte;
        used += 1;
    }
    Ok(buffer.get(..used).unwrap_or_default())
}

/// Returns true for the 66 characters of both alphabets; padding and white space are not among
/// them.
#[must_use]
#[inline]
pub const fn is_alphabet(character: u8) -> bool {
    SEXTETS[character as usize] <= 63
}

/// [`sextet`] of every character; 255 for those that have none.
static SEXTETS: [u8; 256] = {
    let mut table = [255; 256];
    let mut character = 0;
    while character < 256 {
        if let Some(value) = sextet(character as u8) {
            table[character] = value;
        }
        character += 1;
    }
    table
};

/// Returns the six bits of one character of either alphabet.
const fn sextet(character: u8) -> Option<u8> {
    match character {
        b'A'..=b'Z' => Some(character - b'A'),
        b'a'..=b'z' => Some(character - b'a' + 26),
        b'0'..=b'9' => Some(character - b'0' + 52),
        b'+' | b'-' => Some(62),
        b'/' | b'_' => Some(63),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::{vec, vec::Vec};

    #[test]
    fn base64_round_trips_every_group_length() {
        for (bytes, padded) in
            [(&b""[..], ""), (b"f", "Zg=="), (b"fo", "Zm8="), (b"foo", "Zm9v"), (b"foob", "Zm9vYg==")]
        {
            let mut buffer = vec![0; 64];
            let mut sink = cairn_format::SliceSink::new(&mut buffer);
            encode(bytes, Padding::Written, &mut sink).unwrap();
            assert_eq!(sink.written(), padded.as_bytes());
            for text in [padded, padded.trim_end_matches('=')] {
                let decoded: Result<Vec<u8>, _> = Base64Decoder::new(text.as_bytes()).collect();
                assert_eq!(decoded.unwrap(), bytes);
            }
        }
    }

    #[test]
    fn base64_into_buffer_agrees_with_iterator() {
        for text in
            [&b""[..], b"Z", b"Zg", b"Zm9v\nYmFy", b"Zm9vYg==", b"Zm9v*mFy", b"Zg==Zg", b"Zm9vYmFyZm8="]
        {
            let expected: Result<Vec<u8>, _> = Base64Decoder::new(text).collect();
            let mut buffer = [0; 16];
            let decoded = decode_into(text, &mut buffer).map(<[u8]>::to_vec);
            assert_eq!(decoded, expected.map_err(DecodeIntoError::NotBase64));
        }
        assert_eq!(decode_into(b"Zm9vYg==", &mut [0; 4]).map(<[u8]>::len), Ok(4));
        for size in 0..4 {
            let error = DecodeIntoError::BufferTooSmall { buffer_bytes: size };
            assert_eq!(decode_into(b"Zm9vYg==", &mut vec![0; size]), Err(error));
        }
    }

    #[test]
    fn base64_refuses_data_after_padding() {
        let decoded: Result<Vec<u8>, _> = Base64Decoder::new(b"Zg==Zg").collect();
        assert_eq!(decoded, Err(Base64Error { offset: 4, character: b'Z' }));
    }
}
