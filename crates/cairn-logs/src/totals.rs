//! Sums the allocations of a whole log by call stack.

use std::collections::HashMap;

use cairn_format::AbsoluteAddress;

/// Sums of a log. [`AllocationTotals::with_stack_limit`] bounds their memory, however long the log
/// is.
///
/// ```
/// use cairn_logs::totals::AllocationTotals;
/// use cairn_format::AbsoluteAddress;
///
/// let stack = [0x1000, 0x2000].map(AbsoluteAddress::new);
/// let mut totals = AllocationTotals::default();
/// totals.add(&stack, 100);
/// totals.add(&stack, 28);
/// totals.add(&stack[1..], 500);
/// let clusters = totals.clusters_by_size();
/// assert_eq!((clusters[0].size_bytes, clusters[1].size_bytes), (500, 128));
/// assert_eq!(totals.size_bytes(), 628);
/// ```
#[derive(Debug)]
pub struct AllocationTotals {
    stacks: HashMap<Box<[AbsoluteAddress]>, Sums>,
    total: Sums,
    unclustered: Sums,
    stack_limit: usize,
    unsized_count: u64,
}

#[derive(Clone, Default, Debug)]
struct Sums {
    /// 128 bits: a log may claim any number of allocations of nearly 2^64 bytes.
    size_bytes: u128,
    count: u64,
    smallest: Option<u64>,
    largest: u64,
    /// Places of addresses that are uncertain in at least one of the allocations, ascending.
    uncertain: Vec<usize>,
}

impl Sums {
    fn add(&mut self, size_bytes: u64) {
        self.size_bytes = self.size_bytes.saturating_add(size_bytes.into());
        self.count = self.count.saturating_add(1);
        self.smallest = Some(self.smallest.map_or(size_bytes, |smallest| smallest.min(size_bytes)));
        self.largest = self.largest.max(size_bytes);
    }

    fn mark(&mut self, uncertain: &[usize]) {
        for &place in uncertain {
            if let Err(at) = self.uncertain.binary_search(&place) {
                self.uncertain.insert(at, place);
            }
        }
    }
}

/// All allocations with the same call stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cluster<'a> {
    /// The call stack: return addresses, innermost first.
    pub stack: &'a [AbsoluteAddress],
    /// Sum of their sizes.
    pub size_bytes: u128,
    /// How many there are.
    pub count: u64,
    /// Size of the smallest one.
    pub smallest_bytes: u64,
    /// Size of the largest one.
    pub largest_bytes: u64,
    /// Indices in the stack of addresses with only 31 certain low bits, ascending.
    pub uncertain: &'a [usize],
}

/// A quarter of a million stacks of 31 frames take some 80 MB. A device's firmware has a few
/// hundred.
pub const DEFAULT_STACK_LIMIT: usize = 1 << 18;

impl Default for AllocationTotals {
    fn default() -> Self {
        Self::with_stack_limit(DEFAULT_STACK_LIMIT)
    }
}

impl AllocationTotals {
    /// Creates totals that distinguish at most `limit` stacks.
    #[must_use]
    pub fn with_stack_limit(stack_limit: usize) -> Self {
        let (total, unclustered) = (Sums::default(), Sums::default());
        Self { stacks: HashMap::new(), total, unclustered, stack_limit, unsized_count: 0 }
    }

    /// Adds one allocation.
    pub fn add(&mut self, stack: &[AbsoluteAddress], size_bytes: u64) {
        self.add_marked(stack, size_bytes, &[]);
    }

    /// Adds one allocation; the addresses at the places in `uncertain` may be damaged.
    pub fn add_marked(&mut self, stack: &[AbsoluteAddress], size_bytes: u64, uncertain: &[usize]) {
        self.total.add(size_bytes);
        if let Some(sums) = self.stacks.get_mut(stack) {
            sums.add(size_bytes);
            sums.mark(uncertain);
        } else if self.stacks.len() < self.stack_limit {
            let sums = self.stacks.entry(stack.into()).or_default();
            sums.add(size_bytes);
            sums.mark(uncertain);
        } else {
            self.unclustered.add(size_bytes);
        }
    }

    /// Counts an allocation whose size is not known. It is in no sum.
    pub fn add_without_size(&mut self) {
        self.unsized_count = self.unsized_count.saturating_add(1);
    }

    /// Returns how many allocations are in no sum because their size is not known.
    #[must_use]
    pub fn without_size(&self) -> u64 {
        self.unsized_count
    }

    /// Sum of all sizes.
    #[must_use]
    pub fn size_bytes(&self) -> u128 {
        self.total.size_bytes
    }

    /// Returns the number of allocations.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.total.count
    }

    /// Returns bytes and number of the allocations whose stack came after the limit was reached.
    /// They are in the total.
    #[must_use]
    pub fn unclustered(&self) -> (u128, u64) {
        (self.unclustered.size_bytes, self.unclustered.count)
    }

    /// Returns the clusters, most bytes first. Equal ones are ordered by stack, so that the same
    /// log always gives the same answer.
    #[must_use]
    pub fn clusters_by_size(&self) -> Vec<Cluster<'_>> {
        let mut clusters: Vec<_> = self
            .stacks
            .iter()
            .map(|(stack, sums)| Cluster {
                stack,
                size_bytes: sums.size_bytes,
                count: sums.count,
                smallest_bytes: sums.smallest.unwrap_or(0),
                largest_bytes: sums.largest,
                uncertain: &sums.uncertain,
            })
            .collect();
        clusters.sort_unstable_by(|a, b| b.size_bytes.cmp(&a.size_bytes).then_with(|| a.stack.cmp(b.stack)));
        clusters
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_count_stacks_past_the_limit() {
        let mut totals = AllocationTotals::with_stack_limit(1);
        totals.add(&[AbsoluteAddress::new(1)], 10);
        totals.add(&[AbsoluteAddress::new(2)], 20);
        totals.add(&[AbsoluteAddress::new(1)], 30);
        assert_eq!(totals.clusters_by_size().len(), 1);
        assert_eq!(totals.unclustered(), (20, 1));
        assert_eq!((totals.size_bytes(), totals.count()), (60, 3));
    }
}
