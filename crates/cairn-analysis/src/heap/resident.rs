//! Resident memory over time, and what the program had mapped itself when it was most.

use std::collections::{BTreeMap, HashMap};

/// Resources that the process used at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UsageSample {
    /// Nanoseconds from the start of the recording.
    pub nanos: u64,
    /// Resident memory, without cairn's own where that is known.
    pub resident_bytes: u64,
    /// Cairn's own resident memory beside it; `None` where it is not known, and included.
    pub own_bytes: Option<u64>,
    /// Page faults since the process's start.
    pub page_faults: u64,
    /// Its threads.
    pub threads: u32,
}

/// The moment at which most memory was resident, and what it was made of.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Resident {
    /// The sample of that moment.
    pub sample: UsageSample,
    /// Bytes in blocks that the program held then, of all threads and sizes. A block that was never
    /// written to need not be resident.
    pub held_bytes: u64,
    /// Bytes that it had mapped itself, where mappings are recorded. Pages that were never touched
    /// are not resident.
    pub mapped_bytes: u64,
    /// Bytes among these that each stack mapped, the most first.
    pub mapped_by_stack: Vec<(u32, u64)>,
}

impl Resident {
    /// Returns the resident bytes beside blocks and mappings.
    ///
    /// These are the program and its libraries, the stacks of the threads, and free memory of the
    /// allocator. 0 where more is held than resident.
    #[must_use]
    pub const fn rest_bytes(&self) -> u64 {
        self.sample.resident_bytes.saturating_sub(self.held_bytes).saturating_sub(self.mapped_bytes)
    }
}

/// Maximum samples; of a longer recording every second, fourth and so on is left.
pub(super) const MOST_SAMPLES: usize = 4096;

/// Collects samples and follows mappings.
#[derive(Default, Debug)]
pub(super) struct ResidentOverTime {
    samples: Vec<UsageSample>,
    every: u64,
    seen: u64,
    mappings: Mappings,
    most: Option<Resident>,
}

impl ResidentOverTime {
    pub(super) fn sample(&mut self, sample: UsageSample, held_bytes: u64) {
        self.every = self.every.max(1);
        if self.seen.is_multiple_of(self.every) {
            if self.samples.len() >= MOST_SAMPLES {
                let mut index = 0;
                self.samples.retain(|_| {
                    index += 1;
                    index % 2 == 1
                });
                self.every *= 2;
            }
            self.samples.push(sample);
        }
        self.seen += 1;
        if self.most.as_ref().is_none_or(|most| most.sample.resident_bytes < sample.resident_bytes) {
            let (mapped_bytes, mapped_by_stack) = self.mappings.by_stack();
            self.most = Some(Resident { sample, held_bytes, mapped_bytes, mapped_by_stack });
        }
    }

    pub(super) fn map(&mut self, address: u64, size_bytes: u64, stack: u32) {
        self.mappings.map(address, size_bytes, stack);
    }

    pub(super) fn unmap(&mut self, address: u64, size_bytes: u64) {
        self.mappings.unmap(address, size_bytes);
    }

    pub(super) fn samples(&self) -> &[UsageSample] {
        &self.samples
    }

    pub(super) fn most(&self) -> Option<&Resident> {
        self.most.as_ref()
    }
}

/// Ranges of addresses by their start: the end, and who mapped them. None overlaps another.
#[derive(Default, Debug)]
struct Mappings(BTreeMap<u64, (u64, u32)>);

impl Mappings {
    /// A mapping takes the place of what was there.
    fn map(&mut self, start: u64, size_bytes: u64, stack: u32) {
        self.unmap(start, size_bytes);
        if size_bytes > 0 {
            self.0.insert(start, (start.saturating_add(size_bytes), stack));
        }
    }

    fn unmap(&mut self, start: u64, size_bytes: u64) {
        let end = start.saturating_add(size_bytes);
        while let Some((&from, &(to, stack))) = self.0.range(..end).next_back()
            && to > start
        {
            self.0.remove(&from);
            if to > end {
                self.0.insert(end, (to, stack));
            }
            if from < start {
                self.0.insert(from, (start, stack));
            }
        }
    }

    fn by_stack(&self) -> (u64, Vec<(u32, u64)>) {
        let mut sums: HashMap<u32, u64> = HashMap::new();
        for (start, (end, stack)) in &self.0 {
            *sums.entry(*stack).or_default() += end - start;
        }
        let mut all: Vec<(u32, u64)> = sums.into_iter().collect();
        all.sort_by_key(|&(stack, bytes)| (std::cmp::Reverse(bytes), stack));
        (all.iter().fold(0, |sum, (_, bytes)| sum.saturating_add(*bytes)), all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_mapped_is_known_by_who_mapped_it() {
        let mut mappings = Mappings::default();
        mappings.map(0x1000, 0x4000, 1);
        mappings.map(0x8000, 0x1000, 2);
        assert_eq!(mappings.by_stack(), (0x5000, vec![(1, 0x4000), (2, 0x1000)]));
        // In the middle of one, over the edge of another, and nothing at all.
        mappings.unmap(0x2000, 0x1000);
        mappings.map(0x4000, 0x4800, 3);
        mappings.unmap(0x10_0000, 0x1000);
        assert_eq!(
            mappings.by_stack(),
            (0x1000 + 0x1000 + 0x4800 + 0x800, vec![(3, 0x4800), (1, 0x2000), (2, 0x800)])
        );
        mappings.unmap(0, u64::MAX);
        assert_eq!(mappings.by_stack(), (0, vec![]));
        // A damaged recording can say anything.
        mappings.map(u64::MAX - 10, u64::MAX, 1);
        mappings.unmap(0, 0);
        assert_eq!(mappings.by_stack().0, 10);
    }

    #[test]
    fn moment_of_most_survives_any_number_of_samples() {
        let mut over_time = ResidentOverTime::default();
        over_time.map(0x1000, 0x1000, 7);
        for turn in 0..20_000_u64 {
            let resident_bytes = if turn == 12_345 { 1 << 30 } else { turn };
            let sample =
                UsageSample { nanos: turn, resident_bytes, own_bytes: None, page_faults: turn, threads: 1 };
            over_time.sample(sample, 1 << 20);
        }
        let (samples, most) = (over_time.samples(), over_time.most());
        assert!(samples.len() <= MOST_SAMPLES && samples.len() >= MOST_SAMPLES / 2, "{}", samples.len());
        assert!(samples.is_sorted_by_key(|sample| sample.nanos));
        let most = most.unwrap();
        assert_eq!((most.sample.nanos, most.mapped_by_stack.as_slice()), (12_345, &[(7, 0x1000)][..]));
        assert_eq!(most.rest_bytes(), (1 << 30) - (1 << 20) - 0x1000);
    }
}
