//! Bytes written as text: hexadecimal digits or base64.

use std::fmt;

use cairn_wire::base64;

/// A way to write bytes as text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TextEncoding {
    /// Hexadecimal digits, white space anywhere.
    Hex,
    /// Base64 of either alphabet, with or without padding.
    Base64,
}

/// Fault of a text that is neither form.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum TextBytesError {
    /// A character that is no hexadecimal digit.
    NotHex {
        /// Index of the character.
        offset: usize,
    },
    /// The last byte has one digit only.
    OddDigits,
    /// A character that base64 does not have.
    NotBase64(base64::Base64Error),
}

impl fmt::Display for TextBytesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotHex { offset } => write!(f, "no hexadecimal digit at character {offset}"),
            Self::OddDigits => f.write_str("an odd number of hexadecimal digits: the last byte is cut"),
            Self::NotBase64(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for TextBytesError {}

impl TextEncoding {
    /// Decodes the bytes that `text` encodes.
    ///
    /// # Errors
    ///
    /// [`TextBytesError`], with the place of the first character that does not fit.
    ///
    /// ```
    /// use cairn_logs::text_bytes::TextEncoding;
    /// assert_eq!(TextEncoding::Hex.decode(b"02 7F"), Ok(vec![2, 0x7f]));
    /// assert_eq!(TextEncoding::Base64.decode(b"An8="), Ok(vec![2, 0x7f]));
    /// ```
    pub fn decode(self, text: &[u8]) -> Result<Vec<u8>, TextBytesError> {
        match self {
            Self::Hex => decode_hex(text),
            Self::Base64 => {
                base64::Base64Decoder::new(text).collect::<Result<_, _>>().map_err(TextBytesError::NotBase64)
            }
        }
    }

    /// Returns the notation of all of `content`, or `None` if it has bytes of neither notation.
    /// Digits that could be both are hexadecimal.
    #[must_use]
    pub fn of(content: &[u8]) -> Option<Self> {
        let is_hex = |byte: &u8| byte.is_ascii_hexdigit() || byte.is_ascii_whitespace();
        let is_base64 = |byte: &u8| {
            byte.is_ascii_alphanumeric() || b"+/-_=~#".contains(byte) || byte.is_ascii_whitespace()
        };
        if content.iter().all(is_hex) {
            Some(Self::Hex)
        } else if content.iter().all(is_base64) {
            Some(Self::Base64)
        } else {
            None
        }
    }
}

fn decode_hex(text: &[u8]) -> Result<Vec<u8>, TextBytesError> {
    let mut bytes = Vec::with_capacity(text.len() / 2);
    let mut high = None;
    for (offset, &character) in text.iter().enumerate() {
        if character.is_ascii_whitespace() {
            continue;
        }
        let digit = char::from(character).to_digit(16).ok_or(TextBytesError::NotHex { offset })? as u8;
        high = match high {
            None => Some(digit << 4),
            Some(high) => {
                bytes.push(high | digit);
                None
            }
        };
    }
    if high.is_some() { Err(TextBytesError::OddDigits) } else { Ok(bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_faults_are_reported_with_their_offset() {
        assert_eq!(TextEncoding::Hex.decode(b"02 7g"), Err(TextBytesError::NotHex { offset: 4 }));
        assert_eq!(TextEncoding::Hex.decode(b"027"), Err(TextBytesError::OddDigits));
        assert!(
            matches!(TextEncoding::Base64.decode(b"A*"), Err(TextBytesError::NotBase64(error)) if error.offset == 1)
        );
    }

    #[test]
    fn text_bytes_accept_both_cases_of_digits() {
        assert_eq!(TextEncoding::of(b"02187f01\n"), Some(TextEncoding::Hex));
        assert_eq!(TextEncoding::of(b"AhEBAAE"), Some(TextEncoding::Base64));
        assert_eq!(TextEncoding::of(b"\x02\x18"), None);
    }
}
