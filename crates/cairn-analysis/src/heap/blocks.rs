//! The blocks that live: what is known of each, in as few bytes as possible.
//!
//! There may be millions of them. Most were allocated by few threads at few times, because a
//! recording has one time for all events of some microseconds. So a block has the number of its
//! [`Origin`], in four bytes, and an origin is stored once for all its blocks. Size and stack are
//! stored only where frees do not say them.

use cairn_recording::prefetch;

/// In the place of an origin: no block.
const FREE: u32 = u32::MAX;
/// In the place of an origin: a block that is not counted.
const UNCOUNTED: u32 = u32::MAX - 1;
/// Not the number of an origin.
pub(super) const NO_ORIGIN: u32 = u32::MAX;

/// Maximum distance of an object's number above all earlier ones.
///
/// Readers that free late give numbers out of order.
const OBJECT_SLACK: usize = 1 << 16;

/// Objects for which addresses are reserved at least; 4 million, 16 MiB.
const OBJECTS_AT_ONCE: usize = 1 << 22;

/// See the module documentation.
#[derive(Debug)]
pub(super) struct Blocks {
    /// By object: the number of its origin, [`UNCOUNTED`] or [`FREE`].
    origins_of: Vec<u32>,
    /// By object; `None` where frees describe their blocks.
    described: Option<Vec<Described>>,
    origins: Origins,
}

/// A block as it was allocated.
#[derive(Clone, Copy, Debug)]
pub(super) struct Described {
    /// Low and high half, which need no alignment to eight bytes.
    size_bytes: [u32; 2],
    /// Index of the row of its stack.
    pub(super) row: u32,
}

const _: () = assert!(size_of::<Described>() == 12);

impl Described {
    pub(super) const fn new(size_bytes: u64, row: u32) -> Self {
        Self { size_bytes: [size_bytes as u32, (size_bytes >> 32) as u32], row }
    }

    pub(super) const fn size_bytes(self) -> u64 {
        let [low, high] = self.size_bytes;
        low as u64 | (high as u64) << 32
    }
}

/// The state of an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ObjectState {
    Free,
    /// A block that is not counted.
    Uncounted,
    /// A block with the origin of this number.
    Counted(u32),
}

#[inline]
const fn state_of(origin: u32) -> ObjectState {
    match origin {
        FREE => ObjectState::Free,
        UNCOUNTED => ObjectState::Uncounted,
        origin => ObjectState::Counted(origin),
    }
}

/// When blocks were allocated, and by which thread.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin {
    /// The time; the number of the next unused origin in an unused one.
    pub(super) nanos: u64,
    pub(super) thread: u32,
    /// How many of its blocks live.
    pub(super) blocks: u32,
}

const _: () = assert!(size_of::<Origin>() == 16);

impl Blocks {
    /// No blocks.
    pub(super) const fn new() -> Self {
        let origins = Origins { list: Vec::new(), unused: NO_ORIGIN };
        Self { origins_of: Vec::new(), described: Some(Vec::new()), origins }
    }

    /// Stores no sizes and stacks from now on. There may be no blocks yet.
    pub(super) fn forget_descriptions(&mut self) {
        self.described = None;
    }

    /// The state of an object; `None` of one that is new.
    #[inline]
    pub(super) fn state(&self, object: u32) -> Option<ObjectState> {
        Some(state_of(*self.origins_of.get(object as usize)?))
    }

    /// Makes room for one object more; false where there can be no such number.
    ///
    /// Because freed ones are given again, no number can be above that of all live ones.
    #[cold]
    pub(super) fn meet(&mut self, object: u32) -> bool {
        if object as usize > self.origins_of.len().saturating_add(OBJECT_SLACK) || object == FREE {
            return false;
        }
        let length = object as usize + 1;
        // Memory that is not used yet costs nothing, and copies of large lists leave holes.
        if length > self.origins_of.capacity() {
            self.origins_of.reserve(OBJECTS_AT_ONCE.max(self.origins_of.len()));
        }
        self.origins_of.resize(length, FREE);
        if let Some(described) = &mut self.described {
            described.resize(length, Described::new(0, 0));
        }
        true
    }

    /// Puts a block there that is not counted, or that is of the thread's `latest` origin.
    #[inline]
    pub(super) fn put(&mut self, object: u32, is_counted: bool, latest: u32, block: Described) {
        if let Some(origin) = self.origins_of.get_mut(object as usize) {
            *origin = if is_counted { latest } else { UNCOUNTED };
        }
        if let Some(described) = &mut self.described
            && let Some(place) = described.get_mut(object as usize)
        {
            *place = block;
        }
    }

    /// Makes an object free, and returns its state before; `None` of one that is new.
    #[inline]
    pub(super) fn take(&mut self, object: u32) -> Option<ObjectState> {
        Some(state_of(std::mem::replace(self.origins_of.get_mut(object as usize)?, FREE)))
    }

    /// Describes a block; `None` where frees do that.
    #[inline]
    pub(super) fn described(&self, object: u32) -> Option<Described> {
        self.described.as_ref()?.get(object as usize).copied()
    }

    /// See [`Origins::add`].
    #[inline]
    pub(super) fn add_to_origin(&mut self, latest: &mut u32, thread: u32, nanos: u64) {
        self.origins.add(latest, thread, nanos);
    }

    /// Removes a block from its origin, which is returned as it is then.
    ///
    /// One that has no blocks left is to be [retired](Self::retire) unless it is its thread's
    /// latest.
    #[inline]
    pub(super) fn remove_from_origin(&mut self, number: u32) -> Option<Origin> {
        let origin = self.origins.list.get_mut(number as usize)?;
        origin.blocks -= 1;
        Some(*origin)
    }

    /// Makes the number of an origin without blocks available.
    #[inline]
    pub(super) fn retire(&mut self, number: u32) {
        self.origins.retire(number);
    }

    /// The counted blocks that live, where they are described.
    pub(super) fn counted(&self) -> impl Iterator<Item = (Origin, Described)> + Clone {
        let blocks = self.origins_of.iter().zip(self.described.iter().flatten());
        blocks.filter_map(|(&origin, &block)| Some((*self.origins.list.get(origin as usize)?, block)))
    }

    /// Asks for the memory that this object will need when something happens to it soon.
    #[inline]
    pub(super) fn prefetch(&self, object: u32) {
        prefetch(&self.origins_of, object as usize);
        if let Some(described) = &self.described {
            prefetch(described, object as usize);
        }
    }

    /// Asks for the origin of an object, which should be in the caches.
    #[inline]
    pub(super) fn prefetch_origin(&self, object: u32) {
        let number = self.origins_of.get(object as usize).copied().unwrap_or(0) as usize;
        // An address that is not mapped would cost the processor a walk of its page tables.
        prefetch(&self.origins.list, if number < self.origins.list.len() { number } else { 0 });
    }
}

/// The origins of live blocks.
#[derive(Debug)]
struct Origins {
    list: Vec<Origin>,
    /// The first unused one, or [`NO_ORIGIN`].
    unused: u32,
}

impl Origins {
    /// Adds a block of a thread, whose `latest` origin is that of the block then.
    #[inline]
    fn add(&mut self, latest: &mut u32, thread: u32, nanos: u64) {
        match self.list.get_mut(*latest as usize) {
            Some(origin) if origin.nanos == nanos => origin.blocks += 1,
            _ => self.begin(latest, Origin { nanos, thread, blocks: 1 }),
        }
    }

    #[inline(never)]
    fn begin(&mut self, latest: &mut u32, origin: Origin) {
        // It is the thread's while it is its latest, even without blocks.
        if let Some(place) = self.list.get_mut(*latest as usize).filter(|latest| latest.blocks == 0) {
            *place = origin;
            return;
        }
        *latest = self.unused;
        match self.list.get_mut(self.unused as usize) {
            Some(place) => {
                self.unused = place.nanos as u32;
                *place = origin;
            }
            None => {
                *latest = self.list.len() as u32;
                self.list.push(origin);
            }
        }
    }

    fn retire(&mut self, number: u32) {
        if let Some(origin) = self.list.get_mut(number as usize) {
            origin.nanos = self.unused.into();
            self.unused = number;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::aggregate::{Aggregator, LOST_STACK, Scope};
    use super::super::sampling::Sampling;
    use super::*;

    #[test]
    fn large_sizes_are_stored_whole() {
        for size_bytes in [0, 1, u64::from(u32::MAX), 1 << 32, (1 << 32) + 7, u64::MAX] {
            assert_eq!(Described::new(size_bytes, 3).size_bytes(), size_bytes);
        }
    }

    #[test]
    fn origins_without_blocks_are_used_again() {
        let mut blocks = Blocks::new();
        let [mut first, mut second] = [NO_ORIGIN; 2];
        for nanos in 0..100 {
            // A block of each thread at a time, and one that lives until the next time.
            let before = first;
            blocks.add_to_origin(&mut first, 0, nanos << 40);
            blocks.add_to_origin(&mut second, 1, nanos << 40);
            assert_eq!(blocks.remove_from_origin(second).map(|origin| origin.blocks), Some(0));
            if nanos > 0 {
                assert_eq!(blocks.remove_from_origin(before).map(|origin| origin.blocks), Some(0));
                blocks.retire(before);
            }
        }
        assert_eq!(blocks.origins.list.len(), 3);
        assert_eq!(blocks.origins.list[first as usize].nanos, 99 << 40);
    }

    #[test]
    fn an_origin_lives_as_long_as_its_blocks() {
        let mut blocks = Blocks::new();
        let mut latest = NO_ORIGIN;
        for object in 0..4 {
            assert!(blocks.meet(object));
            blocks.add_to_origin(&mut latest, 7, u64::from(object) / 2);
            blocks.put(object, true, latest, Described::new(object.into(), 0));
        }
        assert_eq!(blocks.origins.list.len(), 2);
        let Some(ObjectState::Counted(origin)) = blocks.state(1) else { panic!() };
        assert_eq!(blocks.take(0), Some(ObjectState::Counted(origin)));
        let left = blocks.remove_from_origin(origin);
        assert_eq!(left.map(|left| (left.nanos, left.thread, left.blocks)), Some((0, 7, 1)));
        let live: Vec<u64> = blocks.counted().map(|(_, block)| block.size_bytes()).collect();
        assert_eq!(live, [1, 2, 3]);
    }

    /// Feeds the same events to an aggregator that stores blocks and to one whose frees describe
    /// them.
    fn check(scope: &Scope, sampling: Sampling) {
        let new = || Aggregator::new(4, 2, scope.clone(), sampling);
        let (mut stored, mut described) = (new(), new().described_by_frees());
        let mut live: Vec<(u32, u32, u64)> = Vec::new();
        let mut free: Vec<u32> = (0..500).rev().collect();
        let mut random = 0x1234_5678_9abc_def1_u64;
        let mut nanos = 0;
        for _ in 0..20_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let bits = random >> 33;
            // Times and sizes go beyond 32 bits, and many blocks have the same time.
            nanos += if bits.is_multiple_of(11) { bits << 10 } else { 0 };
            if let Some(object) = free.pop_if(|_| bits & 3 != 0 || live.is_empty()) {
                let stack = match bits >> 2 & 7 {
                    0 => LOST_STACK,
                    number => number as u32 & 3,
                };
                let size_bytes =
                    if bits >> 5 & 31 == 0 { u64::from(u32::MAX) + (bits & 3) } else { bits >> 5 & 255 };
                let thread = (bits >> 10) as u32 & 1;
                live.push((object, stack, size_bytes));
                stored.allocated(object, stack, thread, size_bytes, nanos);
                described.allocated(object, stack, thread, size_bytes, nanos);
            } else {
                let (object, stack, size_bytes) = live.swap_remove(bits as usize % live.len());
                free.push(object);
                stored.freed(object, nanos);
                described.freed_as(object, stack, size_bytes, nanos);
            }
        }
        // A free of no block.
        let object = free.last().copied().unwrap_or(500);
        stored.freed(object, nanos);
        described.freed_as(object, 0, 8, nanos);
        assert_eq!(described.anomalies().unknown_frees, 1);
        assert_eq!(stored.finish(nanos), described.finish(nanos));
    }

    #[test]
    fn sums_are_the_same_when_frees_describe_blocks() {
        let some = Scope {
            from_nanos: 1 << 40,
            sizes: 20..=u64::MAX,
            threads: Some(vec![1]),
            stacks: Some(vec![true, true, false, true]),
            ..Scope::default()
        };
        for scope in [Scope::default(), some] {
            for sampling in [Sampling::All, Sampling::Poisson { mean_bytes: 1 << 20 }] {
                check(&scope, sampling);
            }
        }
    }
}
