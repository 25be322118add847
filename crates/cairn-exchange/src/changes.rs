//! Bytes that came and went, one by one: what files of events hold once they were read.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use cairn_analysis::heap::{Aggregator, HeapProfile, Sampling, Scope, Sums};

/// Bytes came or went.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Change {
    pub(crate) nanos: u64,
    /// 0 is the stack without frames, `n + 1` the profile's stack `n`.
    pub(crate) stack: u32,
    pub(crate) thread: u32,
    /// Addresses are of one process.
    pub(crate) process: u32,
    /// Below 0, a block was freed.
    pub(crate) bytes: i64,
    /// Any number that no two blocks have at the same time.
    pub(crate) address: u64,
}

/// What a block takes that lives, here and in the aggregator.
pub(crate) const BLOCK_BYTES: usize = 80;

/// All changes, in the order of their times.
#[derive(Default, Debug)]
pub(crate) struct Changes {
    pub(crate) list: Vec<Change>,
    /// Frees are there, and name their blocks.
    pub(crate) has_frees: bool,
    pub(crate) end_nanos: u64,
}

/// What the changes of a scope add up to.
pub(crate) struct Added {
    pub(crate) sums: HeapProfile,
    /// Frees of blocks that were not there.
    pub(crate) unmatched_frees: u64,
}

impl Changes {
    /// Adds up what the scope asks for; of stacks and threads there are so many.
    pub(crate) fn read(&self, stacks: usize, threads: usize, scope: &Scope) -> Added {
        if self.has_frees { self.blocks(stacks, threads, scope) } else { self.allocations(stacks, scope) }
    }

    fn blocks(&self, stacks: usize, threads: usize, scope: &Scope) -> Added {
        let mut heap = Aggregator::new(stacks, threads, scope.clone(), Sampling::All);
        // By process and address: the object that is there now, and its size.
        let mut live: HashMap<(u32, u64), (u32, i64)> = HashMap::new();
        let (mut free_objects, mut objects) = (Vec::new(), 0);
        let mut unmatched_frees = 0;
        for change in &self.list {
            let entry = live.entry((change.process, change.address));
            let is_free = match &entry {
                // Blocks of no bytes come and go with the same weight.
                Entry::Occupied(block) => change.bytes < 0 || (change.bytes == 0 && block.get().1 == 0),
                Entry::Vacant(_) => change.bytes < 0,
            };
            if let Entry::Occupied(block) = entry {
                // Where one is allocated while another is there, that was freed unseen.
                let (object, _) = block.remove();
                heap.freed(object, change.nanos);
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
            heap.allocated(object, change.stack, change.thread, change.bytes.unsigned_abs(), change.nanos);
        }
        Added { sums: heap.finish(self.end_nanos), unmatched_frees }
    }

    /// The sums of allocations, where it is not known how long they lived.
    fn allocations(&self, stacks: usize, scope: &Scope) -> Added {
        let mut rows = vec![Sums::default(); stacks];
        for change in &self.list {
            let Ok(bytes) = u64::try_from(change.bytes) else { continue };
            if change.nanos <= scope.to_nanos
                && scope.counts(change.nanos, bytes, change.stack, change.thread)
                && let Some(row) = rows.get_mut(change.stack as usize)
            {
                row.add(&Sums { allocations: 1, allocated_bytes: bytes, ..Sums::default() });
            }
        }
        Added { sums: HeapProfile::of_sums(rows, self.end_nanos), unmatched_frees: 0 }
    }
}
