//! Bit streams: fields of any width, most significant bit first.
//!
//! A libwebsockets blob ([`lws`](crate::lws)) is one such stream, and a program may put its own
//! fields after the backtrace. So the writer and the reader are public, and know the two ways a
//! number lies in the stream:
//!
//! ```text
//!   bits(0b101, 3)    1 0 1
//!   field(0b101, 3)   1 0 1 0      the value, then one spare bit: libwebsockets calls this a field of 3 bits
//! ```
//!
//! The spare bit is a slip of the original C loop that became the format. This writer always makes
//! it 0 and this reader ignores it, because builds of the C code by different compilers put
//! different things there.
//!
//! ```
//! use cairn_format::SliceSink;
//! use cairn_wire::bits::{BitReader, BitWriter};
//!
//! let mut buffer = [0; 4];
//! let mut writer = BitWriter::new(SliceSink::new(&mut buffer));
//! writer.field(5, 3)?;
//! writer.bits(0x1ff, 9)?;
//! let bytes = writer.finish()?.into_written();
//! assert_eq!(bytes, [0b1010_1111, 0b1111_1000]);
//!
//! let mut reader = BitReader::new(bytes);
//! assert_eq!(reader.field(3), Some(5));
//! assert_eq!(reader.bits(9), Some(0x1ff));
//! # Ok::<(), cairn_format::SinkFull>(())
//! ```

use cairn_format::{Sink, SinkFull};

/// Writes fields of up to 64 bits into a [`Sink`], most significant bit first.
///
/// Bits gather in one 64-bit word and reach the sink eight bytes at a time;
/// [`finish`](Self::finish) delivers the rest.
#[derive(Debug)]
pub struct BitWriter<S> {
    sink: S,
    /// The low `pending_bits` bits wait for the sink. The bits above them are left-overs, shifted
    /// out later.
    pending: u64,
    /// Always below 64.
    pending_bits: u32,
    delivered_bytes: u64,
}

impl<S: Sink> BitWriter<S> {
    /// Creates a writer at the first bit of the first byte of `sink`.
    pub const fn new(sink: S) -> Self {
        Self { sink, pending: 0, pending_bits: 0, delivered_bytes: 0 }
    }

    /// Returns the number of bits written so far.
    #[must_use]
    pub fn position_bits(&self) -> u64 {
        self.delivered_bytes.wrapping_mul(8).wrapping_add(u64::from(self.pending_bits))
    }

    /// Writes the low `count` bits of `value`; higher bits are ignored. A `count` above 64 counts
    /// as 64.
    ///
    /// # Errors
    ///
    /// [`SinkFull`] when the sink cannot take the next eight bytes; nothing is written then.
    #[inline]
    pub fn bits(&mut self, value: u64, count: u32) -> Result<(), SinkFull> {
        let count = count.min(64);
        let value = value & low_mask(count);
        let free_bits = 64 - self.pending_bits;
        if count < free_bits {
            self.pending = self.pending << count | value;
            self.pending_bits += count;
            return Ok(());
        }
        let left_over_bits = count - free_bits;
        // `checked_shl`: an empty `pending` would be shifted by the whole 64.
        let word = self.pending.checked_shl(free_bits).unwrap_or(0) | value >> left_over_bits;
        self.sink.put(&word.to_be_bytes())?;
        self.delivered_bytes = self.delivered_bytes.wrapping_add(8);
        self.pending = value;
        self.pending_bits = left_over_bits;
        Ok(())
    }

    /// Writes a libwebsockets field: the low `count` bits of `value`, then a spare bit of 0.
    ///
    /// # Errors
    ///
    /// [`SinkFull`] as for [`bits`](Self::bits).
    #[inline]
    pub fn field(&mut self, value: u64, count: u32) -> Result<(), SinkFull> {
        if count < 64 {
            return self.bits(value << 1, count + 1);
        }
        self.bits(value, 64)?;
        self.bits(0, 1)
    }

    /// Writes zero bits up to the next byte boundary.
    ///
    /// # Errors
    ///
    /// [`SinkFull`] as for [`bits`](Self::bits).
    pub fn align(&mut self) -> Result<(), SinkFull> {
        self.bits(0, self.pending_bits.wrapping_neg() % 8)
    }

    /// Fills the last byte with zero bits, delivers what is pending, and returns the sink.
    ///
    /// # Errors
    ///
    /// [`SinkFull`] when the sink cannot take the last bytes.
    pub fn finish(mut self) -> Result<S, SinkFull> {
        self.align()?;
        let word = self.pending.checked_shl(64 - self.pending_bits).unwrap_or(0);
        let pending_bytes = self.pending_bits as usize / 8;
        self.sink.put(word.to_be_bytes().get(..pending_bytes).unwrap_or_default())?;
        Ok(self.sink)
    }
}

/// Reads fields of up to 64 bits from borrowed bytes, most significant bit first.
///
/// A read either succeeds whole or leaves the reader where it was.
#[derive(Clone, Copy, Debug)]
pub struct BitReader<'a> {
    bytes: &'a [u8],
    /// Never above `end_bits`.
    position_bits: u64,
    end_bits: u64,
}

impl<'a> BitReader<'a> {
    /// How many bits [`window`](Self::window) shows at the least.
    pub const WINDOW_BITS: u32 = 57;

    /// Creates a reader at the first bit of `bytes`.
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, position_bits: 0, end_bits: (bytes.len() as u64).saturating_mul(8) }
    }

    /// Returns the number of bits before the next one.
    #[must_use]
    pub const fn position_bits(&self) -> u64 {
        self.position_bits
    }

    /// Returns the number of bits left.
    #[must_use]
    pub const fn remaining_bits(&self) -> u64 {
        self.end_bits - self.position_bits
    }

    /// Returns the next bits without moving: bit 63 of the answer is the next one. At least
    /// [`WINDOW_BITS`](Self::WINDOW_BITS) bits are shown; past the end of the bytes they are 0.
    ///
    /// With this a decoder takes several narrow fields out of one load.
    #[must_use]
    #[inline]
    pub fn window(&self) -> u64 {
        let byte = (self.position_bits / 8) as usize;
        let chunk = self.bytes.get(byte..byte.saturating_add(8)).and_then(|bytes| bytes.first_chunk());
        let word = match chunk {
            Some(chunk) => u64::from_be_bytes(*chunk),
            None => self.last_window(byte),
        };
        word << (self.position_bits % 8)
    }

    /// Returns the bytes from `byte` on, when fewer than eight are left.
    fn last_window(&self, byte: usize) -> u64 {
        match self.bytes.last_chunk() {
            Some(chunk) => {
                let bytes_before = byte.saturating_sub(self.bytes.len() - chunk.len());
                u64::from_be_bytes(*chunk).checked_shl(bytes_before as u32 * 8).unwrap_or(0)
            }
            None => {
                let rest = self.bytes.get(byte..).unwrap_or_default();
                let mut word = [0; 8];
                word.iter_mut().zip(rest).for_each(|(to, &from)| *to = from);
                u64::from_be_bytes(word)
            }
        }
    }

    /// Moves on by `count` bits.
    #[inline]
    pub fn skip(&mut self, count: u32) -> Option<()> {
        let count = u64::from(count);
        if count > self.remaining_bits() {
            return None;
        }
        self.position_bits += count;
        Some(())
    }

    /// Returns the next `count` bits as a number. A `count` above 64 counts as 64.
    #[inline]
    pub fn bits(&mut self, count: u32) -> Option<u64> {
        let count = count.min(64);
        let start = *self;
        self.skip(count)?;
        if count <= Self::WINDOW_BITS {
            return Some(top_bits(start.window(), count));
        }
        let low_count = count - 32;
        let mut low = start;
        low.position_bits += 32;
        Some(top_bits(start.window(), 32) << low_count | top_bits(low.window(), low_count))
    }

    /// Returns the next libwebsockets field of `count` bits; its spare bit must be there and is
    /// ignored.
    #[inline]
    pub fn field(&mut self, count: u32) -> Option<u64> {
        let mut after = *self;
        let value = after.bits(count)?;
        after.skip(1)?;
        *self = after;
        Some(value)
    }
}

/// Returns a mask of the low `count` bits, `count` up to 64.
#[inline]
const fn low_mask(count: u32) -> u64 {
    match u64::MAX.checked_shr(64 - count) {
        Some(mask) => mask,
        None => 0,
    }
}

/// Returns the top `count` bits of `word` as a number, `count` up to 64.
#[inline]
pub(crate) const fn top_bits(word: u64, count: u32) -> u64 {
    match word.checked_shr(64 - count) {
        Some(value) => value,
        None => 0,
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use cairn_format::{CountingSink, SliceSink};

    #[test]
    fn bits_round_trip_every_width_and_offset() {
        for offset in 0..=64 {
            for width in 0..=64 {
                let value = 0x9e37_79b9_7f4a_7c15_u64;
                let mut buffer = [0; 32];
                let mut writer = BitWriter::new(SliceSink::new(&mut buffer));
                writer.bits(u64::MAX, offset).unwrap();
                writer.field(value, width).unwrap();
                writer.field(1, 1).unwrap();
                assert_eq!(writer.position_bits(), u64::from(offset + width + 3));
                let written = writer.finish().unwrap().into_written();
                assert_eq!(written.len(), (offset + width + 3).div_ceil(8) as usize);

                let mut reader = BitReader::new(written);
                assert_eq!(reader.bits(offset), Some(low_mask(offset)));
                assert_eq!(reader.field(width), Some(value & low_mask(width)), "{offset} {width}");
                assert_eq!(reader.field(1), Some(1), "{offset} {width}");
                let padding_bits = reader.remaining_bits() as u32;
                assert!(padding_bits < 8);
                assert_eq!(reader.bits(padding_bits), Some(0));
                assert_eq!(reader.bits(1), None);
            }
        }
    }

    #[test]
    fn bits_refuse_a_field_without_spare_bit() {
        let mut reader = BitReader::new(&[0xff]);
        assert_eq!(reader.field(8), None);
        assert_eq!(reader.position_bits(), 0);
        assert_eq!(reader.field(7), Some(0x7f));
    }

    #[test]
    fn bits_keep_position_when_sink_is_full() {
        let mut buffer = [0; 7];
        let mut writer = BitWriter::new(SliceSink::new(&mut buffer));
        writer.bits(0, 60).unwrap();
        assert_eq!(writer.bits(0, 4), Err(SinkFull));
        assert_eq!(writer.position_bits(), 60);
    }

    #[test]
    fn bits_count_equals_finished_bytes() {
        let mut writer = BitWriter::new(CountingSink::default());
        writer.bits(1, 33).unwrap();
        writer.bits(1, 33).unwrap();
        assert_eq!(writer.finish().unwrap().count, 9);
    }
}
