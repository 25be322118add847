//! Base64 without allocation, as the two text forms here need it.
//!
//! Swift writes base64 without padding and accepts both alphabets; libwebsockets writes padding, and its reader accepts
//! both alphabets, white space anywhere and missing padding. One decoder with those liberties serves both; it hands out
//! bytes one at a time, so that a blob can be read out of a log line with no buffer for the line.

use core::fmt;

use crate::{Sink, SinkFull};

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
/// use cairn_format::{SliceSink, base64};
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
pub struct DecodeError {
    /// Index of the offending character in the text.
    pub offset: usize,
    /// The offending character.
    pub character: u8,
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not base64: {:?} at character {}", char::from(self.character), self.offset)
    }
}

impl core::error::Error for DecodeError {}

/// Iterates over the bytes behind a base64 text.
///
/// Accepts `-` and `_` for `+` and `/`, white space anywhere, and missing padding. Left-over bits of the last group are
/// ignored. After an error the iterator ends.
///
/// ```
/// use cairn_format::base64;
/// let bytes: Result<Vec<u8>, _> = base64::Decoder::new(b"Y2Fp\ncm4").collect();
/// assert_eq!(bytes?, b"cairn");
/// # Ok::<(), base64::DecodeError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Decoder<'a> {
    text: &'a [u8],
    position: usize,
    bits: u32,
    bit_count: u32,
    padded: bool,
}

impl<'a> Decoder<'a> {
    /// A decoder at the first character of `text`.
    #[must_use]
    pub const fn new(text: &'a [u8]) -> Self {
        Self { text, position: 0, bits: 0, bit_count: 0, padded: false }
    }
}

impl Iterator for Decoder<'_> {
    type Item = Result<u8, DecodeError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let character = *self.text.get(self.position)?;
            let offset = self.position;
            self.position += 1;
            match sextet(character) {
                _ if character.is_ascii_whitespace() => {}
                None if character == b'=' => self.padded = true,
                Some(value) if !self.padded => {
                    self.bits = self.bits << 6 | u32::from(value);
                    self.bit_count += 6;
                    if self.bit_count >= 8 {
                        self.bit_count -= 8;
                        return Some(Ok((self.bits >> self.bit_count) as u8));
                    }
                }
                _ => {
                    self.position = self.text.len();
                    return Some(Err(DecodeError { offset, character }));
                }
            }
        }
    }
}

/// The six bits of one character of either alphabet.
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
    fn text_of_every_group_length_comes_back() {
        for (bytes, padded) in
            [(&b""[..], ""), (b"f", "Zg=="), (b"fo", "Zm8="), (b"foo", "Zm9v"), (b"foob", "Zm9vYg==")]
        {
            let mut buffer = vec![0; 64];
            let mut sink = crate::SliceSink::new(&mut buffer);
            encode(bytes, Padding::Written, &mut sink).unwrap();
            assert_eq!(sink.written(), padded.as_bytes());
            for text in [padded, padded.trim_end_matches('=')] {
                let decoded: Result<Vec<u8>, _> = Decoder::new(text.as_bytes()).collect();
                assert_eq!(decoded.unwrap(), bytes);
            }
        }
    }

    #[test]
    fn data_after_padding_is_refused_at_its_place() {
        let decoded: Result<Vec<u8>, _> = Decoder::new(b"Zg==Zg").collect();
        assert_eq!(decoded, Err(DecodeError { offset: 4, character: b'Z' }));
    }
}
