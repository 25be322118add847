//! A forward-only cursor over table bytes. Unlike the format crate's reader it is a shrinking
//! slice, which the optimiser keeps in two registers: its speed decides that of the interpreter.

use super::{CfiError, CfiErrorKind};

#[derive(Clone, Copy, Debug)]
pub(super) struct Cursor<'a> {
    rest: &'a [u8],
    /// Offset of the end of `rest` in the section. Positions are counted from it, so that reading
    /// moves one pointer only.
    end: usize,
}

impl<'a> Cursor<'a> {
    /// A cursor over no bytes.
    pub(super) const EMPTY: Self = Self { rest: &[], end: 0 };

    /// A cursor over `section[start..end]`.
    #[inline]
    pub(super) fn new(section: &'a [u8], start: usize, end: usize) -> Result<Self, CfiError> {
        match section.get(start..end) {
            Some(rest) => Ok(Self { rest, end }),
            None => Err(CfiError { offset: start, kind: CfiErrorKind::UnexpectedEnd }),
        }
    }

    /// Offset of the next byte in the section.
    #[inline]
    pub(super) fn offset(&self) -> usize {
        self.end - self.rest.len()
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// The bytes not read yet.
    pub(super) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    #[cold]
    pub(super) fn error(&self, kind: CfiErrorKind) -> CfiError {
        CfiError { offset: self.offset(), kind }
    }

    #[inline]
    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], CfiError> {
        match self.rest.split_first_chunk::<N>() {
            Some((bytes, rest)) => {
                self.rest = rest;
                Ok(*bytes)
            }
            None => Err(self.error(CfiErrorKind::UnexpectedEnd)),
        }
    }

    #[inline]
    pub(super) fn byte(&mut self) -> Result<u8, CfiError> {
        self.array::<1>().map(|[byte]| byte)
    }

    /// The next byte; `None` at the end, which is not an error.
    #[inline]
    pub(super) fn next_byte(&mut self) -> Option<u8> {
        let (&byte, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(byte)
    }

    #[inline]
    pub(super) fn u16(&mut self) -> Result<u16, CfiError> {
        self.array().map(u16::from_le_bytes)
    }

    #[inline]
    pub(super) fn u32(&mut self) -> Result<u32, CfiError> {
        self.array().map(u32::from_le_bytes)
    }

    #[inline]
    pub(super) fn u64(&mut self) -> Result<u64, CfiError> {
        self.array().map(u64::from_le_bytes)
    }

    /// The next `count` bytes as a cursor of their own.
    #[inline]
    pub(super) fn take(&mut self, count: u64) -> Result<Self, CfiError> {
        let split = usize::try_from(count).ok().and_then(|count| self.rest.split_at_checked(count));
        match split {
            Some((taken, rest)) => {
                self.rest = rest;
                Ok(Self { rest: taken, end: self.end - rest.len() })
            }
            None => Err(self.error(CfiErrorKind::UnexpectedEnd)),
        }
    }

    /// An unsigned LEB128 number. Bits beyond 64 are dropped, as other readers drop them.
    #[inline]
    pub(super) fn uleb(&mut self) -> Result<u64, CfiError> {
        let byte = self.byte()?;
        if byte < 0x80 { Ok(u64::from(byte)) } else { self.long_uleb(byte) }
    }

    #[inline]
    fn long_uleb(&mut self, first: u8) -> Result<u64, CfiError> {
        let mut value = u64::from(first & 0x7f);
        let mut shift = 7;
        loop {
            let byte = self.byte()?;
            if shift < 64 {
                value |= u64::from(byte & 0x7f) << shift;
                shift += 7;
            }
            if byte < 0x80 {
                return Ok(value);
            }
        }
    }

    /// A signed LEB128 number. Bits beyond 64 are dropped.
    #[inline]
    pub(super) fn sleb(&mut self) -> Result<i64, CfiError> {
        let mut value = 0_i64;
        let mut shift = 0;
        loop {
            let byte = self.byte()?;
            if shift < 64 {
                value |= i64::from(byte & 0x7f) << shift;
                shift += 7;
            }
            if byte < 0x80 {
                let negative = byte & 0x40 != 0 && shift < 64;
                return Ok(if negative { value | (-1 << shift) } else { value });
            }
        }
    }
}
