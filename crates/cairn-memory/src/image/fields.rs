//! Reads numbers of any word size and byte order from a slice.

use cairn_wire::heapblock::ByteOrder;

/// Bytes, with the machine's word size and byte order. Reads outside of them return `None`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fields<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) order: ByteOrder,
    /// True on 64-bit machines.
    pub(super) is_wide: bool,
}

impl<'a> Fields<'a> {
    pub(super) fn at(self, offset: u64) -> Option<Self> {
        Some(Self { bytes: self.bytes.get(usize::try_from(offset).ok()?..)?, ..self })
    }

    pub(super) fn slice(self, offset: u64, length: u64) -> Option<&'a [u8]> {
        self.at(offset)?.bytes.get(..usize::try_from(length).ok()?)
    }

    pub(super) fn u16(self, offset: u64) -> Option<u16> {
        let bytes = *self.at(offset)?.bytes.first_chunk()?;
        Some(match self.order {
            ByteOrder::LittleEndian => u16::from_le_bytes(bytes),
            ByteOrder::BigEndian => u16::from_be_bytes(bytes),
        })
    }

    pub(super) fn u32(self, offset: u64) -> Option<u32> {
        Some(self.order.u32(*self.at(offset)?.bytes.first_chunk()?))
    }

    pub(super) fn u64(self, offset: u64) -> Option<u64> {
        Some(self.order.u64(*self.at(offset)?.bytes.first_chunk()?))
    }

    /// Reads the machine word at an index.
    pub(super) fn word(self, index: u64) -> Option<u64> {
        if self.is_wide {
            self.u64(index.checked_mul(8)?)
        } else {
            self.u32(index.checked_mul(4)?).map(u64::from)
        }
    }

    /// Reads a word-sized field whose offset differs between 64-bit and 32-bit machines.
    pub(super) fn word_at(self, wide: u64, narrow: u64) -> Option<u64> {
        if self.is_wide { self.u64(wide) } else { self.u32(narrow).map(u64::from) }
    }
}
