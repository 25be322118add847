//! Parts of the address space where mappings have room to grow.

use core::sync::atomic::{AtomicU32, Ordering};

/// A part of the address space far below the place that the kernel chooses for new mappings. They
/// therefore reach it late.
pub(crate) struct Zone {
    /// Distance below the place that the kernel chooses, or on Windows below a fixed one.
    pub(crate) from: usize,
    /// Size of the zone, downwards from there.
    pub(crate) bytes: usize,
    /// Number of mappings that were placed in it.
    pub(crate) count: AtomicU32,
}

impl Zone {
    /// Returns the place of the next mapping, in 2^32nds of the zone. The reversed bits of a
    /// counter put each mapping into the middle of a largest gap between the earlier ones.
    pub(crate) fn next(&self) -> u32 {
        self.count.fetch_add(1, Ordering::Relaxed).reverse_bits()
    }
}
