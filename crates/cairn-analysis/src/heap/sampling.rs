//! Sampled recordings: the weight of a recorded block, and the errors of sums.
//!
//! A sampled recorder picks each allocated byte with probability `1 / mean`, and records a block if
//! one of its bytes was picked. A block of `size` bytes is therefore recorded with probability `p =
//! 1 - exp(-size / mean)` and represents `1 / p` blocks, which makes every sum an unbiased estimate
//! (Horvitz and Thompson), whatever the program does. Blocks are picked independently, so the
//! variance of a sum of `x / p` has the unbiased estimate `Σ x² (1 - p) / p²`.

use super::Amount;
use super::sums::Weight;

/// The choice of allocations in a recording.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
#[non_exhaustive]
pub enum Sampling {
    /// All allocations are recorded.
    #[default]
    All,
    /// Allocations are sampled by their bytes.
    Poisson {
        /// One byte of this many was picked on average.
        mean_bytes: u64,
    },
}

/// Weight of a whole block; a fixed-point unit, so that frees subtract exactly what allocations
/// added.
pub(super) const WHOLE_BLOCK: u64 = 1 << 16;

impl Sampling {
    /// Returns the weight of a recorded block.
    #[inline]
    pub(super) fn weigh(self, size_bytes: u64) -> Weight {
        match self {
            Self::All => Weight { blocks: 1, bytes: size_bytes },
            Self::Poisson { mean_bytes } => Self::weigh_sampled(size_bytes, mean_bytes),
        }
    }

    #[cold]
    fn weigh_sampled(size_bytes: u64, mean_bytes: u64) -> Weight {
        let factor = 1.0 / probability(size_bytes, mean_bytes);
        Weight {
            blocks: (factor * WHOLE_BLOCK as f64).round() as u64,
            bytes: (factor * size_bytes as f64).round() as u64,
        }
    }

    /// Returns the bytes and blocks that a recorded block of this size represents, for custom sums.
    ///
    /// Bytes are plain. Blocks are in a unit that adds up exactly, so that a free subtracts what
    /// its allocation added; [`blocks`](Self::blocks) converts a sum of them to a number of blocks.
    ///
    /// ```
    /// use cairn_analysis::heap::Sampling;
    /// let weight = Sampling::All.represents(100);
    /// assert_eq!((weight.value, Sampling::All.blocks(weight.blocks)), (100, 1));
    /// let sampled = Sampling::Poisson { mean_bytes: 1 << 20 };
    /// assert!(sampled.blocks(sampled.represents(100).blocks) > 10_000);
    /// ```
    #[must_use]
    pub fn represents(self, size_bytes: u64) -> Amount {
        let Weight { blocks, bytes } = self.weigh(size_bytes);
        Amount { value: bytes, blocks }
    }

    /// Converts a sum of weights from [`represents`](Self::represents) to blocks.
    #[must_use]
    pub fn blocks(self, weight: u64) -> u64 {
        match self {
            Self::All => weight,
            Self::Poisson { .. } => weight.saturating_add(WHOLE_BLOCK / 2) / WHOLE_BLOCK,
        }
    }

    /// Reports whether sums are estimates.
    #[must_use]
    pub const fn is_estimate(self) -> bool {
        matches!(self, Self::Poisson { .. })
    }
}

/// Returns the probability that a block is recorded. Empty blocks count as one byte, to avoid a
/// zero.
fn probability(size_bytes: u64, mean_bytes: u64) -> f64 {
    -(-(size_bytes.max(1) as f64) / mean_bytes.max(1) as f64).exp_m1()
}

/// Standard errors of the [`Sums`](super::Sums) of the same entry; all 0 without sampling.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub struct Errors {
    /// Error of the number of allocations.
    pub allocations: f64,
    /// Error of the allocated bytes.
    pub allocated_bytes: f64,
    /// Error of the number of unfreed blocks.
    pub live_blocks: f64,
    /// Error of the unfreed bytes.
    pub live_bytes: f64,
    /// Error of the number of blocks at the peak.
    pub peak_blocks: f64,
    /// Error of the bytes at the peak.
    pub peak_bytes: f64,
}

impl Errors {
    /// Adds the errors of other blocks: variances add up, because blocks are picked independently.
    pub fn add(&mut self, other: &Self) {
        let fields = [
            (&mut self.allocations, other.allocations),
            (&mut self.allocated_bytes, other.allocated_bytes),
            (&mut self.live_blocks, other.live_blocks),
            (&mut self.live_bytes, other.live_bytes),
            (&mut self.peak_blocks, other.peak_blocks),
            (&mut self.peak_bytes, other.peak_bytes),
        ];
        for (field, value) in fields {
            *field = field.hypot(value);
        }
    }
}

/// Sums of variances, parallel to the sums in [`Row`](super::sums::Row).
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Variances {
    allocated: Variance,
    live: Variance,
    at_peak: Variance,
    peak: u64,
}

#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Variance {
    blocks: f64,
    bytes: f64,
}

impl Variance {
    /// Returns the contribution of one recorded block.
    pub(super) fn of(size_bytes: u64, mean_bytes: u64) -> Self {
        let p = probability(size_bytes, mean_bytes);
        let blocks = (1.0 - p) / (p * p);
        Self { blocks, bytes: blocks * size_bytes as f64 * size_bytes as f64 }
    }

    fn add(&mut self, other: Self, sign: f64) {
        self.blocks += sign * other.blocks;
        self.bytes += sign * other.bytes;
    }
}

impl Variances {
    fn settle(&mut self, peak: u64) {
        if self.peak != peak {
            self.peak = peak;
            self.at_peak = self.live;
        }
    }

    pub(super) fn allocated(&mut self, variance: Variance, peak: u64) {
        self.settle(peak);
        self.allocated.add(variance, 1.0);
        self.live.add(variance, 1.0);
    }

    pub(super) fn freed(&mut self, variance: Variance, peak: u64) {
        self.settle(peak);
        self.live.add(variance, -1.0);
    }

    pub(super) fn merge(&mut self, other: &Self, peak: u64) {
        let mut other = *other;
        self.settle(peak);
        other.settle(peak);
        self.allocated.add(other.allocated, 1.0);
        self.live.add(other.live, 1.0);
        self.at_peak.add(other.at_peak, 1.0);
    }

    pub(super) fn errors(&self, peak: u64) -> Errors {
        let mut settled = *self;
        settled.settle(peak);
        // Rounding may leave a small negative difference.
        let root = |variance: f64| variance.max(0.0).sqrt();
        Errors {
            allocations: root(settled.allocated.blocks),
            allocated_bytes: root(settled.allocated.bytes),
            live_blocks: root(settled.live.blocks),
            live_bytes: root(settled.live.bytes),
            peak_blocks: root(settled.at_peak.blocks),
            peak_bytes: root(settled.at_peak.bytes),
        }
    }
}
