//! Measures of memory: held at the peak, leaked, allocated.

use super::{Errors, Sums};

/// One of the sums, as the measure of a question.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Cost {
    /// Bytes at the moment at which the program held most.
    Peak,
    /// Bytes that were not freed.
    Leaked,
    /// Bytes of all allocations.
    Allocated,
    /// Number of allocations.
    Count,
    /// Number of allocations that were freed before their thread allocated again.
    Temporary,
}

impl Cost {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Peak, Self::Leaked, Self::Allocated, Self::Count, Self::Temporary];

    /// The amount of this cost in the sums.
    #[must_use]
    pub const fn of(self, sums: &Sums) -> Amount {
        match self {
            Self::Peak => Amount { value: sums.peak_bytes, blocks: sums.peak_blocks },
            Self::Leaked => Amount { value: sums.live_bytes, blocks: sums.live_blocks },
            Self::Allocated => Amount { value: sums.allocated_bytes, blocks: sums.allocations },
            Self::Count => Amount { value: sums.allocations, blocks: sums.allocations },
            Self::Temporary => Amount { value: sums.temporary, blocks: sums.temporary },
        }
    }

    /// The standard error of [`of`](Self::of)'s value.
    #[must_use]
    pub const fn error(self, errors: &Errors) -> f64 {
        match self {
            Self::Peak => errors.peak_bytes,
            Self::Leaked => errors.live_bytes,
            Self::Allocated => errors.allocated_bytes,
            Self::Count => errors.allocations,
            Self::Temporary => 0.0,
        }
    }

    /// True when the values are bytes, false when they are numbers of blocks.
    #[must_use]
    pub const fn is_bytes(self) -> bool {
        matches!(self, Self::Peak | Self::Leaked | Self::Allocated)
    }

    /// The word for it, as arguments and JSON have it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Peak => "peak",
            Self::Leaked => "leaked",
            Self::Allocated => "allocated",
            Self::Count => "count",
            Self::Temporary => "temporary",
        }
    }
}

/// How much of a [`Cost`], and in how many blocks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub struct Amount {
    /// Bytes or blocks, as the cost counts. The order of amounts is by this first.
    pub value: u64,
    /// Blocks.
    pub blocks: u64,
}

impl Amount {
    /// True when there is nothing.
    #[must_use]
    pub const fn is_zero(self) -> bool {
        self.value == 0 && self.blocks == 0
    }

    /// Both together.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            value: self.value.saturating_add(other.value),
            blocks: self.blocks.saturating_add(other.blocks),
        }
    }

    /// The rest without the other.
    #[must_use]
    pub const fn minus(self, other: Self) -> Self {
        Self {
            value: self.value.saturating_sub(other.value),
            blocks: self.blocks.saturating_sub(other.blocks),
        }
    }

    /// Which part of `whole` the value is, from 0 to 1; 0 of nothing.
    #[must_use]
    pub fn share_of(self, whole: Self) -> f64 {
        if whole.value == 0 { 0.0 } else { self.value as f64 / whole.value as f64 }
    }
}
