//! The width of an address on the machine that made a stack.

/// The width of an address on the machine that made a stack: 16, 32 or 64 bits.
///
/// Address arithmetic of a format wraps in this width.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum WordSize {
    /// 16 bits, for small microcontrollers.
    Bits16,
    /// 32 bits.
    Bits32,
    /// 64 bits.
    Bits64,
}

impl WordSize {
    /// The word size of the machine this code runs on.
    pub const NATIVE: Self = match size_of::<usize>() {
        2 => Self::Bits16,
        4 => Self::Bits32,
        _ => Self::Bits64,
    };

    /// Returns the number of bits: 16, 32 or 64.
    #[must_use]
    pub const fn bits(self) -> u32 {
        match self {
            Self::Bits16 => 16,
            Self::Bits32 => 32,
            Self::Bits64 => 64,
        }
    }

    /// Returns the number of bytes: 2, 4 or 8.
    #[must_use]
    pub const fn bytes(self) -> usize {
        self.bits() as usize / 8
    }

    /// Returns the word size of this number of bits, or `None` for an unsupported one.
    #[must_use]
    pub const fn from_bits(bits: u32) -> Option<Self> {
        match bits {
            16 => Some(Self::Bits16),
            32 => Some(Self::Bits32),
            64 => Some(Self::Bits64),
            _ => None,
        }
    }

    /// Returns the highest address of this width; also the mask that truncates to it.
    #[must_use]
    pub const fn max_address(self) -> u64 {
        u64::MAX >> (64 - self.bits())
    }

    /// `value` cut to this width.
    ///
    /// ```
    /// use cairn_format::WordSize;
    /// assert_eq!(WordSize::Bits32.truncate(0x1_8000_1234), 0x8000_1234);
    /// ```
    #[must_use]
    pub const fn truncate(self, value: u64) -> u64 {
        value & self.max_address()
    }

    /// `value`, taken as a signed number of this width, widened to 64 bits.
    ///
    /// ```
    /// use cairn_format::WordSize;
    /// assert_eq!(WordSize::Bits16.sign_extend(0xfff0), -16);
    /// ```
    #[must_use]
    pub const fn sign_extend(self, value: u64) -> i64 {
        let unused_bits = 64 - self.bits();
        ((value << unused_bits) as i64) >> unused_bits
    }
}
