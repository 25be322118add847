//! The events of each slice of time, by call, by class of size, by thread, and by class of
//! lifetime: one table of rows.
//!
//! The brush of the page chooses a stretch of time, and everything follows: for that the page holds
//! changes instead of sums. They come by stack; here those of stacks that end at one call of the
//! page's tree become one row.

use cairn_analysis::heap::slices::{SliceEntry, Slices, put_together};
use cairn_analysis::heap::{LIFETIME_CLASSES, SIZE_CLASSES};

use crate::frames::Frames;

/// The slices of a page.
pub(crate) struct PageSlices {
    pub(crate) count: usize,
    pub(crate) slice_nanos: u64,
    /// By row, then by slice.
    pub(crate) entries: Vec<SliceEntry>,
    /// Rows of calls; behind them are those of classes of sizes, of threads, and of classes of
    /// lifetimes.
    pub(crate) calls: usize,
}

impl PageSlices {
    /// Those of a tree of calls.
    pub(crate) fn new(slices: &Slices, frames: &Frames, threads: usize) -> Self {
        let of_calls = slices.stacks.iter().filter_map(|entry| {
            let row = frames.end_of(entry.row)?;
            Some(SliceEntry { row, ..*entry })
        });
        let mut entries: Vec<SliceEntry> = of_calls.collect();
        put_together(&mut entries);
        let behind = [
            (&slices.sizes, SIZE_CLASSES),
            (&slices.threads, threads),
            (&slices.lifetimes, LIFETIME_CLASSES),
        ];
        let calls = frames.nodes.len();
        let mut first = calls;
        for (list, count) in behind {
            let known = list.iter().filter(|entry| (entry.row as usize) < count);
            entries.extend(known.map(|entry| SliceEntry { row: first as u32 + entry.row, ..*entry }));
            first += count;
        }
        Self { count: slices.count, slice_nanos: slices.slice_nanos, entries, calls }
    }

    /// Makes each two slices one.
    pub(crate) fn halve(&mut self) {
        self.count = self.count.div_ceil(2);
        self.slice_nanos = self.slice_nanos.saturating_mul(2);
        for entry in &mut self.entries {
            entry.slice /= 2;
        }
        put_together(&mut self.entries);
    }
}
