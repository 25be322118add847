//! Which end of a number comes first.

/// In which order the bytes of a number stand in memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ByteOrder {
    /// Least significant byte first.
    LittleEndian,
    /// Most significant byte first.
    BigEndian,
}

impl ByteOrder {
    /// The order of the machine this code runs on.
    pub const NATIVE: Self = if cfg!(target_endian = "big") { Self::BigEndian } else { Self::LittleEndian };

    /// Returns the number that these bytes are.
    #[inline]
    #[must_use]
    pub const fn u32(self, bytes: [u8; 4]) -> u32 {
        match self {
            Self::LittleEndian => u32::from_le_bytes(bytes),
            Self::BigEndian => u32::from_be_bytes(bytes),
        }
    }

    /// Returns the number that these bytes are.
    #[inline]
    #[must_use]
    pub const fn u64(self, bytes: [u8; 8]) -> u64 {
        match self {
            Self::LittleEndian => u64::from_le_bytes(bytes),
            Self::BigEndian => u64::from_be_bytes(bytes),
        }
    }

    /// Returns the bytes of this number.
    #[inline]
    #[must_use]
    pub const fn u32_bytes(self, value: u32) -> [u8; 4] {
        match self {
            Self::LittleEndian => value.to_le_bytes(),
            Self::BigEndian => value.to_be_bytes(),
        }
    }

    /// Returns the bytes of this number.
    #[inline]
    #[must_use]
    pub const fn u64_bytes(self, value: u64) -> [u8; 8] {
        match self {
            Self::LittleEndian => value.to_le_bytes(),
            Self::BigEndian => value.to_be_bytes(),
        }
    }

    /// Returns the number at `offset` of `bytes`, if it is all there.
    pub(super) fn u32_at(self, bytes: &[u8], offset: usize) -> Option<u32> {
        bytes.get(offset..)?.first_chunk().map(|field| self.u32(*field))
    }

    /// Returns the number at `offset` of `bytes`, if it is all there.
    pub(super) fn u64_at(self, bytes: &[u8], offset: usize) -> Option<u64> {
        bytes.get(offset..)?.first_chunk().map(|field| self.u64(*field))
    }
}
