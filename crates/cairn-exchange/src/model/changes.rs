//! Allocations and frees, one by one: the content of event files after parsing.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use cairn_analysis::heap::slices::{SliceEntry as Slice, SliceOptions, Slices, put_together};
use cairn_analysis::heap::{
    Aggregator, Bin, HeapProfile, SIZE_CLASSES, Sampling, Scope, Sums, Timeline, size_class,
};

/// An allocation or a free.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Change {
    pub(crate) nanos: u64,
    /// 0 is the stack without frames, `n + 1` is the profile's stack `n`.
    pub(crate) stack: u32,
    pub(crate) thread: u32,
    /// The process of the address.
    pub(crate) process: u32,
    /// Negative for a free.
    pub(crate) bytes: i64,
    /// Any number that no two live blocks share.
    pub(crate) address: u64,
}

/// An allocation or a free, with the number of its object, which is reused after the free.
#[derive(Clone, Copy, Debug)]
pub(crate) enum BlockEvent {
    Allocated {
        object: u32,
        stack: u32,
        thread: u32,
        size_bytes: u64,
        nanos: u64,
    },
    Freed {
        object: u32,
        nanos: u64,
    },
    /// A sample of resident memory; no block changed.
    Used {
        nanos: u64,
        resident_bytes: u64,
    },
}

impl BlockEvent {
    pub(crate) fn add_to(self, heap: &mut Aggregator) {
        match self {
            Self::Allocated { object, stack, thread, size_bytes, nanos } => {
                heap.allocated(object, stack, thread, size_bytes, nanos);
            }
            Self::Freed { object, nanos } => heap.freed(object, nanos),
            Self::Used { .. } => {}
        }
    }
}

/// Bytes per live block, here and in the aggregator.
pub(crate) const BLOCK_BYTES: usize = 80;

/// Bins of the timeline.
const MOST_BINS: u64 = 512;
/// Entries of slices before equal ones are merged.
const ENTRIES_AT_ONCE: usize = 1 << 20;

/// All changes, in order of time.
#[derive(Default, Debug)]
pub(crate) struct Changes {
    pub(crate) list: Vec<Change>,
    /// Whether there are frees that identify their blocks.
    pub(crate) has_frees: bool,
    pub(crate) end_nanos: u64,
}

/// The sums of a scope's changes.
pub(crate) struct Added {
    pub(crate) sums: HeapProfile,
    /// Present if requested.
    pub(crate) slices: Option<Slices>,
    /// Frees without a matching block.
    pub(crate) unmatched_frees: u64,
}

impl Changes {
    /// Sums the changes of a scope, for this number of stacks and threads.
    pub(crate) fn read(
        &self,
        stacks: usize,
        threads: usize,
        scope: &Scope,
        slices: Option<&SliceOptions>,
    ) -> Added {
        if self.has_frees {
            self.blocks(stacks, threads, scope, slices)
        } else {
            self.allocations(stacks, threads, scope, slices)
        }
    }

    fn blocks(&self, stacks: usize, threads: usize, scope: &Scope, slices: Option<&SliceOptions>) -> Added {
        let mut heap = Aggregator::new(stacks, threads, scope.clone(), Sampling::All);
        if let Some(options) = slices {
            heap = heap.sliced(options);
        }
        let unmatched_frees = self.replay(|moved| moved.add_to(&mut heap));
        let (sums, slices) = heap.finish_sliced(self.end_nanos);
        Added { sums, slices, unmatched_frees }
    }

    /// Passes each change to `take`, with object numbers; returns the number of unmatched frees.
    pub(crate) fn replay(&self, mut take: impl FnMut(BlockEvent)) -> u64 {
        // By process and address: the current object and its size.
        let mut live: HashMap<(u32, u64), (u32, i64)> = HashMap::new();
        let (mut free_objects, mut objects) = (Vec::new(), 0);
        let mut unmatched_frees = 0;
        for change in &self.list {
            let entry = live.entry((change.process, change.address));
            let is_free = match &entry {
                // Frees of empty blocks have the same size as their allocations.
                Entry::Occupied(block) => change.bytes < 0 || (change.bytes == 0 && block.get().1 == 0),
                Entry::Vacant(_) => change.bytes < 0,
            };
            if let Entry::Occupied(block) = entry {
                // An allocation at the address of a live block: its free was not recorded.
                let (object, _) = block.remove();
                take(BlockEvent::Freed { object, nanos: change.nanos });
                free_objects.push(object);
            } else if is_free {
                unmatched_frees += 1;
            }
            if is_free {
                continue;
            }
            let object = free_objects.pop().unwrap_or_else(|| {
                objects += 1;
                objects - 1
            });
            live.insert((change.process, change.address), (object, change.bytes));
            take(BlockEvent::Allocated {
                object,
                stack: change.stack,
                thread: change.thread,
                size_bytes: change.bytes.unsigned_abs(),
                nanos: change.nanos,
            });
        }
        unmatched_frees
    }

    /// Sums allocations whose lifetimes are unknown.
    fn allocations(
        &self,
        stacks: usize,
        threads: usize,
        scope: &Scope,
        options: Option<&SliceOptions>,
    ) -> Added {
        let mut rows = vec![Sums::default(); stacks];
        let mut of_threads = vec![Sums::default(); threads];
        let mut sizes = vec![Sums::default(); SIZE_CLASSES];
        let end_nanos = self.end_nanos.min(scope.to_nanos);
        let mut timeline = Timeline { bin_nanos: end_nanos / MOST_BINS + 1, bins: Vec::new() };
        let bins = end_nanos / timeline.bin_nanos + 1;
        timeline.bins = vec![Bin::default(); bins as usize];
        let mut slices = Slices::default();
        if let Some(options) = options {
            slices.slice_nanos = end_nanos / options.most_slices.max(1) as u64 + 1;
            slices.count = (end_nanos / slices.slice_nanos + 1) as usize;
        }
        for change in self.list.iter().filter(|change| change.nanos <= end_nanos) {
            let Change { nanos, stack, thread, .. } = *change;
            let Ok(allocated_bytes) = u64::try_from(change.bytes) else { continue };
            if !scope.counts(nanos, allocated_bytes, stack, thread) {
                continue;
            }
            let sums = Sums { allocations: 1, allocated_bytes, ..Sums::default() };
            let class = size_class(allocated_bytes);
            let places =
                [(&mut rows, stack as usize), (&mut of_threads, thread as usize), (&mut sizes, class)];
            for (list, index) in places {
                if let Some(row) = list.get_mut(index) {
                    row.add(&sums);
                }
            }
            if let Some(bin) = timeline.bins.get_mut((nanos / timeline.bin_nanos) as usize) {
                bin.allocations += 1;
                bin.allocated_bytes = bin.allocated_bytes.saturating_add(allocated_bytes);
            }
            if options.is_some() {
                let slice = (nanos / slices.slice_nanos) as u32;
                let entry = |row| Slice { row, slice, allocated_bytes, allocations: 1, ..Slice::default() };
                slices.stacks.push(entry(stack));
                slices.threads.push(entry(thread));
                slices.sizes.push(entry(class as u32));
                // Bounds the list at twice its merged size.
                if slices.stacks.len().is_multiple_of(ENTRIES_AT_ONCE) {
                    put_all_together(&mut slices);
                }
            }
        }
        put_all_together(&mut slices);
        let mut sums = HeapProfile::of_sums(rows, end_nanos);
        (sums.threads, sums.sizes, sums.timeline) = (of_threads, sizes, timeline);
        Added { sums, slices: options.map(|_| slices), unmatched_frees: 0 }
    }
}

fn put_all_together(slices: &mut Slices) {
    for entries in [&mut slices.stacks, &mut slices.threads, &mut slices.sizes] {
        put_together(entries);
    }
}
