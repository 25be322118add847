//! Paths in a recording: UTF-16 or UTF-32, little-endian, decoded only when they are read.

use core::fmt;

/// How many bytes `wchar_t` had where the recording was made.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum CharWidth {
    /// Two: UTF-16, on Windows.
    Two,
    /// Four: UTF-32, elsewhere.
    Four,
}

impl CharWidth {
    /// Returns the number of bytes: 2 or 4.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::Two => 2,
            Self::Four => 4,
        }
    }
}

/// The path of a module, as raw bytes. Two are equal when they are exactly the same, upper and
/// lower case and all: that is how the reference finds the module of an unload. Their order is that
/// of their bytes.
///
/// ```
/// use cairn_wire::tracker::{CharWidth, ModulePath};
/// let path = ModulePath::new(b"B\0.\0\x34\xd8\x1e\xdd", CharWidth::Two);
/// assert_eq!(path.to_string(), "B.\u{1d11e}");
/// assert!(path.is_lossless());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ModulePath<'a> {
    bytes: &'a [u8],
    width: CharWidth,
}

impl<'a> ModulePath<'a> {
    /// Creates a path of these bytes, little-endian. Bytes after the last whole unit are dropped.
    #[must_use]
    pub const fn new(bytes: &'a [u8], width: CharWidth) -> Self {
        let (bytes, _) = bytes.split_at(bytes.len() - bytes.len() % width.bytes());
        Self { bytes, width }
    }

    /// Returns the bytes as recorded.
    #[must_use]
    pub const fn as_bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Returns how wide its units are.
    #[must_use]
    pub const fn width(&self) -> CharWidth {
        self.width
    }

    /// Returns how many units it has. A character outside the basic plane takes two units of
    /// UTF-16.
    #[must_use]
    pub const fn units(&self) -> usize {
        self.bytes.len() / self.width.bytes()
    }

    /// Returns the characters, with U+FFFD for each unit that represents none.
    #[must_use]
    pub const fn chars(&self) -> Chars<'a> {
        Chars { bytes: self.bytes, width: self.width, lossy: false }
    }

    /// Returns whether all units represent characters, so that [`chars`](Self::chars) and `Display`
    /// tell all there is. Windows does not insist on that.
    #[must_use]
    pub fn is_lossless(&self) -> bool {
        let mut chars = self.chars();
        chars.by_ref().for_each(drop);
        !chars.is_lossy()
    }
}

impl fmt::Display for ModulePath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.chars().try_for_each(|character| fmt::Write::write_char(f, character))
    }
}

/// Iterates over the characters of a [`ModulePath`].
#[derive(Clone, Debug)]
pub struct Chars<'a> {
    bytes: &'a [u8],
    width: CharWidth,
    lossy: bool,
}

impl Chars<'_> {
    /// Returns whether a unit that represents no character was passed so far.
    #[must_use]
    pub const fn is_lossy(&self) -> bool {
        self.lossy
    }

    /// Returns the next code point, or the lone surrogate or other number that represents none.
    fn code_point(&mut self) -> Option<u32> {
        match self.width {
            CharWidth::Four => {
                let (unit, rest) = self.bytes.split_first_chunk()?;
                self.bytes = rest;
                Some(u32::from_le_bytes(*unit))
            }
            CharWidth::Two => {
                let high = self.unit_of_two(0..=0xffff)?;
                if !(0xd800..0xdc00).contains(&high) {
                    return Some(high);
                }
                // A high surrogate without its low one is alone; the next unit is a character of
                // its own.
                let Some(low) = self.unit_of_two(0xdc00..=0xdfff) else { return Some(high) };
                Some(0x1_0000 + ((high - 0xd800) << 10) + (low - 0xdc00))
            }
        }
    }

    /// Returns the next UTF-16 unit if it is one of these; otherwise it stays where it is.
    fn unit_of_two(&mut self, accepted: core::ops::RangeInclusive<u32>) -> Option<u32> {
        let (unit, rest) = self.bytes.split_first_chunk()?;
        let unit = u32::from(u16::from_le_bytes(*unit));
        accepted.contains(&unit).then(|| {
            self.bytes = rest;
            unit
        })
    }
}

impl Iterator for Chars<'_> {
    type Item = char;

    fn next(&mut self) -> Option<char> {
        let character = char::from_u32(self.code_point()?);
        self.lossy |= character.is_none();
        Some(character.unwrap_or(char::REPLACEMENT_CHARACTER))
    }
}

impl core::iter::FusedIterator for Chars<'_> {}
