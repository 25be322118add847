//! A string of the JSON text, borrowed with its escapes and unescaped only when it is read.

use core::fmt::{self, Write};

use super::scanner::decode_escape;
use crate::base64::{Assembler, Base64Error, DecodeIntoError, NotBase64};

/// A string in a JSON text. Its escapes have been checked, so that unescaping cannot fail.
///
/// Compares with and prints as the text it means, not as it is written.
///
/// ```
/// use cairn_wire::swift_json;
/// let text = br#"{"architecture": "\u0061rm\/64", "backtrace": "Ag"}"#;
/// let architecture = swift_json::read(text)?.architecture;
/// assert_eq!(architecture, "arm/64");
/// assert_eq!(architecture.to_string(), "arm/64");
/// assert_eq!(architecture.escaped(), r"\u0061rm\/64");
/// # Ok::<(), swift_json::SwiftJsonError>(())
/// ```
#[derive(Clone, Copy)]
pub struct JsonText<'a> {
    escaped: &'a str,
}

impl<'a> JsonText<'a> {
    /// Text with well-formed escapes.
    pub(super) const fn new(escaped: &'a str) -> Self {
        Self { escaped }
    }

    /// Returns the text as it is written between the quotes.
    #[must_use]
    pub const fn escaped(self) -> &'a str {
        self.escaped
    }

    /// Returns the text itself, if it has no escapes and so is there in one piece.
    #[must_use]
    pub fn as_plain(self) -> Option<&'a str> {
        (!self.escaped.contains('\\')).then_some(self.escaped)
    }

    /// Returns the characters of the text.
    #[must_use]
    pub const fn characters(self) -> Characters<'a> {
        Characters { rest: self.escaped }
    }

    /// Decodes the text from base64.
    #[must_use]
    pub const fn base64_bytes(self) -> Base64Bytes<'a> {
        Base64Bytes { characters: self.characters(), offset: 0, assembler: Assembler::new() }
    }

    /// Decodes base64 to the start of `buffer` and returns the bytes. Three quarters of the length
    /// of [`escaped`](Self::escaped) are always room enough.
    ///
    /// # Errors
    ///
    /// [`DecodeIntoError`]; offsets count the characters of the text, an escape as one.
    pub fn decode_base64(self, buffer: &mut [u8]) -> Result<&[u8], DecodeIntoError> {
        if let Some(plain) = self.as_plain().filter(|plain| plain.is_ascii()) {
            return crate::base64::decode_into(plain.as_bytes(), buffer);
        }
        let buffer_bytes = buffer.len();
        let mut used = 0;
        for byte in self.base64_bytes() {
            let byte = byte.map_err(DecodeIntoError::NotBase64)?;
            *buffer.get_mut(used).ok_or(DecodeIntoError::BufferTooSmall { buffer_bytes })? = byte;
            used += 1;
        }
        Ok(buffer.get(..used).unwrap_or_default())
    }
}

impl PartialEq<str> for JsonText<'_> {
    fn eq(&self, other: &str) -> bool {
        self.characters().eq(other.chars())
    }
}

impl PartialEq<&str> for JsonText<'_> {
    fn eq(&self, other: &&str) -> bool {
        *self == **other
    }
}

impl PartialEq for JsonText<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.characters().eq(other.characters())
    }
}

impl Eq for JsonText<'_> {}

impl fmt::Display for JsonText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.as_plain() {
            Some(plain) => f.pad(plain),
            None => self.characters().try_for_each(|character| f.write_char(character)),
        }
    }
}

impl fmt::Debug for JsonText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.escaped)
    }
}

/// Iterates over the characters that a JSON string means.
#[derive(Clone, Debug)]
pub struct Characters<'a> {
    rest: &'a str,
}

impl Iterator for Characters<'_> {
    type Item = char;

    fn next(&mut self) -> Option<char> {
        let character = self.rest.chars().next()?;
        let (character, length) = match character {
            // The scanner has checked the escapes; if it had not, the text would end here.
            '\\' => decode_escape(self.rest.as_bytes())?,
            plain => (plain, plain.len_utf8()),
        };
        self.rest = self.rest.get(length..).unwrap_or_default();
        Some(character)
    }
}

/// Iterates over the bytes that a JSON string of base64 encodes. After an error the iterator ends.
///
/// An error has the index of the offending character in the text, an escape counted as one; a
/// character that is not ASCII is reported as byte 0xff.
#[derive(Clone, Debug)]
pub struct Base64Bytes<'a> {
    characters: Characters<'a>,
    offset: usize,
    assembler: Assembler,
}

impl Iterator for Base64Bytes<'_> {
    type Item = Result<u8, Base64Error>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let character = self.characters.next()?;
            let offset = self.offset;
            self.offset += 1;
            let character = u8::try_from(u32::from(character)).ok().filter(u8::is_ascii).unwrap_or(0xff);
            match self.assembler.push(character) {
                Ok(None) => {}
                Ok(Some(byte)) => return Some(Ok(byte)),
                Err(NotBase64) => {
                    self.characters.rest = "";
                    return Some(Err(Base64Error { offset, character }));
                }
            }
        }
    }
}

impl core::iter::FusedIterator for Base64Bytes<'_> {}
