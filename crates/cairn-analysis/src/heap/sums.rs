//! Sums of one stack, one thread or one class of sizes, in one cache line.
//!
//! A row's bytes *at the peak of the whole program* are known in one pass, exactly, and without
//! visiting all rows at each new peak: peaks have numbers, and a row notes which peak its
//! `at_peak` values are of. A row that was not touched since the last peak holds now what it held
//! then; so it is enough to copy the present values at the first change after a peak
//! ([`Row::settle`]), and once more for all rows at the end. Two passes over the events would cost
//! as much as reading the recording twice; a checkpoint at each peak costs all rows times the
//! number of peaks.

/// Sums of one stack, thread, or class of sizes.
///
/// In a sampled recording these are estimates, and `errors` of the same place holds how far off
/// they may be.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Sums {
    /// Allocations.
    pub allocations: u64,
    /// Bytes of all allocations.
    pub allocated_bytes: u64,
    /// Blocks that were not freed.
    pub live_blocks: u64,
    /// Bytes of the blocks that were not freed.
    pub live_bytes: u64,
    /// Blocks at the moment at which the program held most.
    pub peak_blocks: u64,
    /// Bytes at the moment at which the program held most.
    pub peak_bytes: u64,
    /// Blocks that were freed before their thread allocated another one.
    pub temporary: u64,
}

impl Sums {
    /// The frees of the allocations.
    #[must_use]
    pub const fn frees(&self) -> u64 {
        self.allocations.saturating_sub(self.live_blocks)
    }

    /// True when nothing was counted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Adds another row.
    pub fn add(&mut self, other: &Self) {
        let fields = [
            (&mut self.allocations, other.allocations),
            (&mut self.allocated_bytes, other.allocated_bytes),
            (&mut self.live_blocks, other.live_blocks),
            (&mut self.live_bytes, other.live_bytes),
            (&mut self.peak_blocks, other.peak_blocks),
            (&mut self.peak_bytes, other.peak_bytes),
            (&mut self.temporary, other.temporary),
        ];
        for (field, value) in fields {
            *field = field.saturating_add(value);
        }
    }
}

/// [`Sums`] in the making: one cache line.
///
/// Sums wrap: only a made-up recording can reach 2^64 bytes, and then what was added can still be
/// taken away again.
#[derive(Clone, Copy, Default, Debug)]
#[repr(align(64))]
pub(super) struct Row {
    sums: Sums,
    /// Number of the peak that the `peak_` values are of.
    peak: u64,
}

const _: () = assert!(size_of::<Row>() == 64);

impl Row {
    /// A row that holds this by now, the latest peak being that of this number.
    pub(super) const fn of(sums: Sums, peak: u64) -> Self {
        Self { sums, peak }
    }

    #[inline]
    fn settle(&mut self, peak: u64) {
        if self.peak != peak {
            self.peak = peak;
            self.sums.peak_blocks = self.sums.live_blocks;
            self.sums.peak_bytes = self.sums.live_bytes;
        }
    }

    #[inline]
    pub(super) fn allocated(&mut self, weight: Weight, peak: u64) {
        self.settle(peak);
        let sums = &mut self.sums;
        sums.allocations = sums.allocations.wrapping_add(weight.blocks);
        sums.allocated_bytes = sums.allocated_bytes.wrapping_add(weight.bytes);
        sums.live_blocks = sums.live_blocks.wrapping_add(weight.blocks);
        sums.live_bytes = sums.live_bytes.wrapping_add(weight.bytes);
    }

    #[inline]
    pub(super) fn freed(&mut self, weight: Weight, temporary: bool, peak: u64) {
        self.settle(peak);
        let sums = &mut self.sums;
        sums.live_blocks = sums.live_blocks.wrapping_sub(weight.blocks);
        sums.live_bytes = sums.live_bytes.wrapping_sub(weight.bytes);
        sums.temporary = sums.temporary.wrapping_add(if temporary { weight.blocks } else { 0 });
    }

    /// The sums as they are, those of the peak left aside.
    pub(super) const fn running(&self) -> &Sums {
        &self.sums
    }

    /// The sums, if nothing follows.
    pub(super) fn finish(&self, peak: u64) -> Sums {
        let mut settled = *self;
        settled.settle(peak);
        settled.sums
    }
}

/// How much one recorded block represents.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Weight {
    /// Blocks; in a sampled recording, [`WHOLE_BLOCK`](super::sampling::WHOLE_BLOCK) of them are
    /// one.
    pub(super) blocks: u64,
    pub(super) bytes: u64,
}
