//! Numbers and columns inside of chunks.
//!
//! A number is LEB128: seven bits a byte, the lowest first, the highest bit set in all but the
//! last. A signed one is zigzag-coded before. A column is its length as a number, then its bytes.

/// Appends numbers.
pub trait Put {
    /// Appends a LEB128 number.
    fn put_number(&mut self, value: u64);

    /// Appends a signed number, zigzag-coded.
    fn put_signed(&mut self, value: i64) {
        self.put_number((value << 1 ^ value >> 63) as u64);
    }

    /// Appends the length of `bytes` as a number, then the bytes.
    fn put_bytes(&mut self, bytes: &[u8]);
}

impl Put for Vec<u8> {
    #[inline]
    fn put_number(&mut self, value: u64) {
        let mut rest = value;
        while rest >= 0x80 {
            self.push(rest as u8 | 0x80);
            rest >>= 7;
        }
        self.push(rest as u8);
    }

    /// A column.
    fn put_bytes(&mut self, bytes: &[u8]) {
        self.put_number(bytes.len() as u64);
        self.extend_from_slice(bytes);
    }
}

/// Reads numbers and columns; `None` where the bytes end.
#[derive(Clone, Copy, Default, Debug)]
pub struct Take<'a> {
    /// The bytes not read yet.
    pub bytes: &'a [u8],
}

impl<'a> Take<'a> {
    /// Starts at the first byte.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    /// Returns true when every byte was read.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Reads a byte.
    #[inline]
    pub fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.bytes.split_first()?;
        self.bytes = rest;
        Some(*first)
    }

    /// Reads a LEB128 number; `None` when it is cut short or wider than 64 bits.
    #[inline]
    pub fn number(&mut self) -> Option<u64> {
        let first = self.byte()?;
        if first < 0x80 {
            return Some(u64::from(first));
        }
        let mut value = u64::from(first & 0x7f);
        let mut shift = 7;
        loop {
            let byte = self.byte()?;
            let part = u64::from(byte & 0x7f);
            // Bits that a u64 has no room for make it no number.
            if shift > 63 || part << shift >> shift != part {
                return None;
            }
            value |= part << shift;
            if byte < 0x80 {
                return Some(value);
            }
            shift += 7;
        }
    }

    /// Reads a number of at most 32 bits.
    pub fn number32(&mut self) -> Option<u32> {
        u32::try_from(self.number()?).ok()
    }

    /// Reads a zigzag-coded number.
    pub fn signed(&mut self) -> Option<i64> {
        let value = self.number()?;
        Some((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    /// Reads a length and as many bytes.
    pub fn column(&mut self) -> Option<&'a [u8]> {
        let length = usize::try_from(self.number()?).ok()?;
        let (column, rest) = self.bytes.split_at_checked(length)?;
        self.bytes = rest;
        Some(column)
    }
}

/// Writes numbers below 2^24 as three columns, byte by byte.
///
/// The low bytes are nearly random, the high ones nearly constant, and apart each compresses as
/// well as it can.
#[derive(Default)]
pub(crate) struct PutPlanes {
    numbers: Vec<u32>,
}

impl PutPlanes {
    pub(crate) const LIMIT: u32 = 1 << 24;

    #[inline]
    pub(crate) fn put(&mut self, value: u32) {
        self.numbers.push(value);
    }

    pub(crate) fn flush(&mut self, into: &mut Vec<u8>) {
        for shift in [0, 8, 16] {
            into.put_number(self.numbers.len() as u64);
            into.extend(self.numbers.iter().map(|number| (number >> shift) as u8));
        }
        self.clear();
    }

    pub(crate) fn clear(&mut self) {
        self.numbers.clear();
    }

    pub(crate) fn numbers(&self) -> &[u32] {
        &self.numbers
    }

    /// Estimates the bits of these columns from the frequency of each byte in its column.
    ///
    /// Uses a sample of the numbers, where there are many.
    pub(crate) fn estimated_bits(&self) -> f64 {
        const LOOKED_AT: usize = 1 << 12;
        let step = self.numbers.len() / LOOKED_AT + 1;
        let mut counts = [[0_u32; 256]; 3];
        for number in self.numbers.iter().step_by(step) {
            for (counts, byte) in counts.iter_mut().zip(number.to_le_bytes()) {
                if let Some(count) = counts.get_mut(usize::from(byte)) {
                    *count += 1;
                }
            }
        }
        let all = self.numbers.len().div_ceil(step) as f64;
        let bits = |count: f64| count * (all / count).log2();
        let present = counts.iter().flatten().filter(|&&count| count > 0);
        present.map(|&count| bits(count.into())).sum::<f64>() * step as f64
    }

    /// How many bytes that is.
    pub(crate) fn len(&self) -> usize {
        self.numbers.len() * 3
    }
}

#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct TakePlanes<'a> {
    planes: [&'a [u8]; 3],
    next: usize,
}

impl<'a> TakePlanes<'a> {
    pub(crate) fn new(from: &mut Take<'a>) -> Option<Self> {
        Some(Self { planes: [from.column()?, from.column()?, from.column()?], next: 0 })
    }

    #[inline]
    pub(crate) fn take(&mut self) -> Option<u32> {
        let number = self.peek(0)?;
        self.next += 1;
        Some(number)
    }

    /// The number `ahead` places behind the next one.
    #[inline]
    pub(crate) fn peek(&self, ahead: usize) -> Option<u32> {
        let [a, b, c] = self.planes;
        let place = self.next + ahead;
        let (a, b, c) = (a.get(place)?, b.get(place)?, c.get(place)?);
        Some(u32::from(*a) | u32::from(*b) << 8 | u32::from(*c) << 16)
    }
}
