//! A cursor over JSON text that checks the grammar and stores nothing.

use super::{JsonText, MAX_DEPTH, SwiftJsonError, SwiftJsonErrorKind};

// The kinds of the open objects and arrays are stored as the bits of one number.
const _: () = assert!(MAX_DEPTH <= u64::BITS);

/// The next byte of a JSON text.
pub(super) struct Scanner<'a> {
    text: &'a [u8],
    position: usize,
}

/// Returns the four bytes that JSON counts as white space.
pub(super) const fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r')
}

impl<'a> Scanner<'a> {
    pub(super) const fn new(text: &'a [u8]) -> Self {
        Self { text, position: 0 }
    }

    pub(super) const fn position(&self) -> usize {
        self.position
    }

    pub(super) fn rest(&self) -> &'a [u8] {
        self.text.get(self.position..).unwrap_or_default()
    }

    pub(super) fn peek(&self) -> Option<u8> {
        self.text.get(self.position).copied()
    }

    pub(super) fn skip_space(&mut self) {
        while self.peek().is_some_and(is_space) {
            self.position += 1;
        }
    }

    /// Steps over `byte` if it is next.
    pub(super) fn eat(&mut self, byte: u8) -> bool {
        let is_next = self.peek() == Some(byte);
        self.position += usize::from(is_next);
        is_next
    }

    pub(super) fn expect(&mut self, byte: u8, expected: &'static str) -> Result<(), SwiftJsonError> {
        if self.eat(byte) { Ok(()) } else { Err(self.unexpected(expected)) }
    }

    /// Returns a string, its escapes checked and left in place.
    pub(super) fn string(&mut self, expected: &'static str) -> Result<JsonText<'a>, SwiftJsonError> {
        self.expect(b'"', expected)?;
        let start = self.position;
        loop {
            match self.peek() {
                None => return Err(self.error(SwiftJsonErrorKind::UnexpectedEnd)),
                Some(b'"') => break,
                Some(b'\\') => self.escape()?,
                Some(0..=0x1f) => return Err(self.error(SwiftJsonErrorKind::ControlCharacter)),
                Some(_) => self.position += 1,
            }
        }
        let inside = self.text.get(start..self.position).unwrap_or_default();
        self.position += 1;
        match core::str::from_utf8(inside) {
            Ok(escaped) => Ok(JsonText::new(escaped)),
            Err(error) => {
                Err(SwiftJsonError { offset: start + error.valid_up_to(), kind: SwiftJsonErrorKind::NotUtf8 })
            }
        }
    }

    /// Returns one escape, or two that make a surrogate pair.
    fn escape(&mut self) -> Result<(), SwiftJsonError> {
        let start = self.position;
        let rest = self.rest();
        match escape_length(rest) {
            Some(length) => {
                self.position += length;
                Ok(())
            }
            // The longest is `\ud83d\ude00`; with fewer bytes left the fault may be that the text
            // is cut.
            None if rest.len() < 12 && !rest.contains(&b'"') => {
                Err(SwiftJsonError { offset: self.text.len(), kind: SwiftJsonErrorKind::UnexpectedEnd })
            }
            None => Err(SwiftJsonError { offset: start, kind: SwiftJsonErrorKind::BadEscape }),
        }
    }

    /// Any value, however nested, checked and dropped. A loop, because the text says how deep it
    /// goes.
    pub(super) fn skip_value(&mut self) -> Result<(), SwiftJsonError> {
        // The bit of a level is 1 for an object; the innermost is the lowest.
        let mut objects = 0u64;
        let mut depth = 0;
        loop {
            self.skip_space();
            match self.peek() {
                Some(open @ (b'{' | b'[')) => {
                    if depth == MAX_DEPTH {
                        return Err(self.error(SwiftJsonErrorKind::TooDeep));
                    }
                    self.position += 1;
                    depth += 1;
                    objects = objects << 1 | u64::from(open == b'{');
                    self.skip_space();
                    // An empty one is closed below, and so is one with members, after the last.
                    let is_empty = self.peek() == Some(if open == b'{' { b'}' } else { b']' });
                    if !is_empty {
                        self.skip_key_in(objects)?;
                        continue;
                    }
                }
                Some(b'"') => {
                    self.string("a string")?;
                }
                Some(b'-' | b'0'..=b'9') => self.number()?,
                Some(b't') => self.word(b"true")?,
                Some(b'f') => self.word(b"false")?,
                Some(b'n') => self.word(b"null")?,
                _ => return Err(self.unexpected("a value")),
            }
            // After a value: close what ends here, or go on to the next one.
            loop {
                if depth == 0 {
                    return Ok(());
                }
                self.skip_space();
                let in_object = objects & 1 == 1;
                if self.eat(if in_object { b'}' } else { b']' }) {
                    depth -= 1;
                    objects >>= 1;
                } else {
                    self.expect(b',', "a comma or the end of the list")?;
                    self.skip_space();
                    self.skip_key_in(objects)?;
                    break;
                }
            }
        }
    }

    /// Returns the key before a value, if the innermost level is an object.
    fn skip_key_in(&mut self, objects: u64) -> Result<(), SwiftJsonError> {
        if objects & 1 == 0 {
            return Ok(());
        }
        self.string("a key")?;
        self.skip_space();
        self.expect(b':', "a colon")
    }

    fn number(&mut self) -> Result<(), SwiftJsonError> {
        self.eat(b'-');
        if !self.eat(b'0') {
            self.digits()?;
        }
        if self.eat(b'.') {
            self.digits()?;
        }
        if self.eat(b'e') || self.eat(b'E') {
            if !self.eat(b'+') {
                self.eat(b'-');
            }
            self.digits()?;
        }
        Ok(())
    }

    /// At least one digit.
    fn digits(&mut self) -> Result<(), SwiftJsonError> {
        let count = self.rest().iter().take_while(|byte| byte.is_ascii_digit()).count();
        if count == 0 {
            return Err(self.unexpected("a digit"));
        }
        self.position += count;
        Ok(())
    }

    fn word(&mut self, word: &'static [u8]) -> Result<(), SwiftJsonError> {
        for &byte in word {
            self.expect(byte, "true, false or null")?;
        }
        Ok(())
    }

    fn unexpected(&self, expected: &'static str) -> SwiftJsonError {
        self.error(match self.peek() {
            None => SwiftJsonErrorKind::UnexpectedEnd,
            Some(_) => SwiftJsonErrorKind::NotJson { expected },
        })
    }

    const fn error(&self, kind: SwiftJsonErrorKind) -> SwiftJsonError {
        SwiftJsonError { offset: self.position, kind }
    }
}

/// Returns the length of the escape at the start of `text`; a surrogate pair counts as one.
fn escape_length(text: &[u8]) -> Option<usize> {
    decode_escape(text).map(|(_, length)| length)
}

/// Returns the character and the length of the escape that `text` begins with.
pub(super) fn decode_escape(text: &[u8]) -> Option<(char, usize)> {
    let simple = match text.get(1)? {
        b'"' => '"',
        b'\\' => '\\',
        b'/' => '/',
        b'b' => '\u{8}',
        b'f' => '\u{c}',
        b'n' => '\n',
        b'r' => '\r',
        b't' => '\t',
        b'u' => return decode_unicode_escape(text),
        _ => return None,
    };
    Some((simple, 2))
}

/// `\uXXXX`, or two of them where the first is a high surrogate.
fn decode_unicode_escape(text: &[u8]) -> Option<(char, usize)> {
    let unit = utf16_unit(text)?;
    if let Some(character) = char::from_u32(unit) {
        return Some((character, 6));
    }
    let low = utf16_unit(text.get(6..)?)?;
    let is_pair = (0xd800..0xdc00).contains(&unit) && (0xdc00..0xe000).contains(&low);
    let character = 0x1_0000 + ((unit & 0x3ff) << 10 | low & 0x3ff);
    char::from_u32(character).filter(|_| is_pair).map(|character| (character, 12))
}

/// Returns the number in one `\uXXXX`.
fn utf16_unit(text: &[u8]) -> Option<u32> {
    let (prefix, digits) = text.get(..6)?.split_at_checked(2)?;
    if prefix != b"\\u" {
        return None;
    }
    digits.iter().try_fold(0, |value, &digit| Some(value << 4 | char::from(digit).to_digit(16)?))
}
