//! Memory over time, in a number of bins that does not depend on how long the program ran.

/// Most bins that a [`Timeline`] has.
pub const MAX_BINS: usize = 2048;

/// The first width of a bin. Some milliseconds of a program are still a curve.
const FIRST_BIN_NANOS: u64 = 1 << 10;

/// Memory over time: equal stretches of time, each with what happened in it.
///
/// While events come in, the bins double in width whenever they are too many, so that there are
/// between [`MAX_BINS`] / 2 and [`MAX_BINS`] of them for all but the shortest programs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Timeline {
    /// Width of a bin.
    pub bin_nanos: u64,
    /// The bins, from time 0 on.
    pub bins: Vec<Bin>,
}

/// Sums of one stretch of time.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Bin {
    /// Most bytes that the program held in it.
    pub most_bytes: u64,
    /// Bytes that it held at its end.
    pub last_bytes: u64,
    /// Blocks that it held at its end.
    pub last_blocks: u64,
    /// Allocations in it.
    pub allocations: u64,
    /// Bytes of the allocations in it.
    pub allocated_bytes: u64,
}

impl Bin {
    /// Adds what happened later in the same stretch, but for what was held at the end.
    pub(super) fn add(&mut self, later: &Self) {
        self.most_bytes = self.most_bytes.max(later.most_bytes);
        self.allocations = self.allocations.wrapping_add(later.allocations);
        self.allocated_bytes = self.allocated_bytes.wrapping_add(later.allocated_bytes);
    }
}

impl Default for Timeline {
    fn default() -> Self {
        Self { bin_nanos: FIRST_BIN_NANOS, bins: Vec::new() }
    }
}

impl Timeline {
    /// Makes the bin at `nanos` the last one, and returns where it ends. Times never go back.
    pub(super) fn advance(&mut self, nanos: u64, held_bytes: u64, held_blocks: u64) -> u64 {
        while nanos / self.bin_nanos >= MAX_BINS as u64 {
            self.halve();
        }
        let index = (nanos / self.bin_nanos) as usize;
        let idle = Bin {
            most_bytes: held_bytes,
            last_bytes: held_bytes,
            last_blocks: held_blocks,
            ..Bin::default()
        };
        if self.bins.len() <= index {
            self.bins.resize(index + 1, idle);
        }
        (index as u64 + 1).saturating_mul(self.bin_nanos)
    }

    pub(super) fn halve(&mut self) {
        self.bin_nanos = self.bin_nanos.saturating_mul(2);
        self.bins = self.bins.chunks(2).map(merged).collect();
    }

    #[inline]
    pub(super) fn last(&mut self) -> Option<&mut Bin> {
        self.bins.last_mut()
    }
}

fn merged(pair: &[Bin]) -> Bin {
    let mut sum = Bin::default();
    for bin in pair {
        sum.add(bin);
        sum.last_bytes = bin.last_bytes;
        sum.last_blocks = bin.last_blocks;
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_widen_and_keep_their_sums() {
        let mut timeline = Timeline::default();
        for step in 0..10_000_u64 {
            timeline.advance(step * 1000, step, step);
            let bin = timeline.last().expect("a bin is there");
            bin.allocations += 1;
            bin.most_bytes = bin.most_bytes.max(step);
            bin.last_bytes = step;
        }
        assert!((MAX_BINS / 2..=MAX_BINS).contains(&timeline.bins.len()), "{}", timeline.bins.len());
        assert_eq!(timeline.bins.iter().map(|bin| bin.allocations).sum::<u64>(), 10_000);
        assert!(timeline.bins.windows(2).all(|pair| pair[0].most_bytes < pair[1].most_bytes));
        assert_eq!(timeline.bins.last().map(|bin| bin.last_bytes), Some(9_999));
    }
}
