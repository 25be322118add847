//! A cursor over borrowed bytes that never reads past the end.

use crate::WordSize;

/// A cursor over borrowed bytes. Every read either succeeds whole or leaves the cursor where it
/// was.
#[derive(Clone, Copy, Debug)]
pub struct ByteReader<'a> {
    input: &'a [u8],
    position: usize,
}

impl<'a> ByteReader<'a> {
    /// Creates a cursor at the first byte of `input`.
    #[must_use]
    pub const fn new(input: &'a [u8]) -> Self {
        Self { input, position: 0 }
    }

    /// Returns the offset of the next byte from the start of the input.
    #[must_use]
    pub const fn position(&self) -> usize {
        self.position
    }

    /// Returns the bytes not read yet.
    #[must_use]
    pub fn rest(&self) -> &'a [u8] {
        self.input.get(self.position..).unwrap_or_default()
    }

    /// Returns true when no byte is left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.position >= self.input.len()
    }

    /// Returns the next byte, left in place.
    #[must_use]
    pub fn peek(&self) -> Option<u8> {
        self.input.get(self.position).copied()
    }

    /// Returns the next byte.
    pub fn byte(&mut self) -> Option<u8> {
        let byte = self.peek()?;
        self.position += 1;
        Some(byte)
    }

    /// Returns the next `count` bytes.
    pub fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let end = self.position.checked_add(count)?;
        let bytes = self.input.get(self.position..end)?;
        self.position = end;
        Some(bytes)
    }

    /// Returns the next `N` bytes as an array.
    pub fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    /// Returns the next `count` bytes as an unsigned number, most significant byte first. Bits
    /// above 64 are dropped.
    pub fn unsigned_big_endian(&mut self, count: usize) -> Option<u64> {
        Some(self.take(count)?.iter().fold(0, |value, &byte| (value << 8) | u64::from(byte)))
    }

    /// Returns the next `count` bytes as a signed big-endian number, sign-extended to 64 bits.
    pub fn signed_big_endian(&mut self, count: usize) -> Option<i64> {
        let bytes = self.take(count)?;
        let sign = if bytes.first().is_some_and(|&byte| byte >= 0x80) { -1 } else { 0 };
        Some(bytes.iter().fold(sign, |value, &byte| (value << 8) | i64::from(byte)))
    }

    /// Returns the next word of a little-endian machine of this width.
    pub fn word_little_endian(&mut self, word_size: WordSize) -> Option<u64> {
        let bytes = self.take(word_size.bytes())?;
        Some(bytes.iter().rev().fold(0, |value, &byte| (value << 8) | u64::from(byte)))
    }
}
/// Returns the `N` bytes at `offset` of a record with fixed fields; `None` if it ends before.
#[inline]
#[must_use]
pub fn array_at<const N: usize>(bytes: &[u8], offset: usize) -> Option<[u8; N]> {
    bytes.get(offset..)?.first_chunk().copied()
}
