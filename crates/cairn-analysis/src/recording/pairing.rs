//! Which blocks a free leaves alive: exact, although the order of events across threads is not.
//!
//! The rules are those of `cairn_format::recording`: a *local* free is of its own thread's latest allocation of the
//! address; any other one has a *ticket*, and the allocations of an address with an *epoch* that is not greater than the
//! ticket came before it. Two blocks never live at one address at once. So each of these is a proof that a block is dead:
//!
//! - its thread freed it locally: behind it in the same stream, with no other allocation of the address between;
//! - a free of its address has a ticket that is not smaller than its epoch;
//! - its address was allocated with a greater epoch, or again by the same thread.
//!
//! A proof holds whenever it arrives, and every block that was freed has one of the first two. So what lives when all
//! events are there does not hang on the order in which they came, as long as each thread's own order is kept, and
//! nothing ever has to be looked up in the past but one number for each address: the greatest ticket so far.
//!
//! ```text
//! true order      alloc a (thread 1)   free a (1, local)   alloc b (2)   free b (thread 3, ticket)
//! as it arrives   alloc a
//!                 free (3, ticket)     a is dead; the ticket is kept
//!                 free (1, local)      nothing lives here: its block was found dead before
//!                 alloc b              its epoch is not greater than the ticket: dead at once
//! ```
//!
//! Every block so gets one free at most, perhaps a moment before its own, and then by the thread whose event was the
//! proof. The kept tickets are dropped when [`WINDOW`] events have passed: no allocation is that late, because the
//! recorder commits it before the program has the block, and streams are merged to about a millisecond.
//!
//! The frees in excess of the blocks that died are of blocks older than the recording.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

use cairn_format::recording::ADDRESS_BITS;

use super::merge::{Origin, RawAlloc, RawFree};

/// A block of memory that lives, or lived last, under a slot's number.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Object {
    pub(super) size_bytes: u64,
    pub(super) stack: u32,
    epoch: u32,
    stream: u32,
    /// [`Pairing::era`] when it was made.
    era: u32,
}

/// Receives allocations, and frees with the slot of what they free.
pub(super) trait Paired {
    fn alloc(&mut self, thread: u32, slot: u32, object: &Object, is_move: bool);
    fn free(&mut self, thread: u32, slot: u32, object: &Object, is_move: bool);
}

/// A ticket counts for at least so many events, and for less than twice as many: a quarter of a second and more of the
/// fastest programs.
const WINDOW: u64 = 1 << 23;
/// So many blocks of as many threads seem to live at one address while local frees are late; only in a damaged file there are more.
const MOST_TIED: usize = 1 << 10;

/// The blocks that live.
pub(super) struct Pairing {
    table: AddressTable,
    objects: Vec<Object>,
    free_slots: Vec<u32>,
    /// Blocks that seem to live at an address beside the one in the table: with the same epoch, made by other threads. All
    /// but one of them were freed locally, and that has not arrived yet.
    tied: HashMap<u64, Vec<u32>, Seed>,
    events: u64,
    frees: u64,
    deaths: u64,
}

impl Pairing {
    pub(super) fn new() -> Self {
        let seed = Seed::random();
        Self {
            table: AddressTable::new(seed),
            objects: Vec::new(),
            free_slots: Vec::new(),
            tied: HashMap::with_hasher(seed),
            events: 0,
            frees: 0,
            deaths: 0,
        }
    }

    /// Frees of blocks that are older than the recording, or whose allocation was lost. Right when all events are there.
    pub(super) fn unmatched_frees(&self) -> u64 {
        self.frees.saturating_sub(self.deaths)
    }

    /// Which stretch of [`WINDOW`] events this is.
    #[inline]
    fn era(&self) -> u32 {
        (self.events / WINDOW) as u32
    }

    /// Asks for the memory that events of these addresses will need which come soon: one after the other they would wait for it
    /// one by one, and that is most of their time when many blocks live.
    #[inline]
    pub(super) fn expect(&self, addresses: impl Iterator<Item = u64> + Clone) {
        /// A smaller table stays in the cache.
        const LARGE_ENTRIES: usize = 1 << 14;
        if self.table.entries.len() < LARGE_ENTRIES {
            return;
        }
        // Nothing but loads: no branch hangs on what they bring, so none waits for another.
        let entry = |address| self.table.entries.get(self.table.home(address));
        let sum =
            addresses.clone().fold(0, |sum, address| sum ^ entry(address).map_or(0, |entry| entry.slot));
        // What these need is there now.
        let blocks = addresses.filter_map(|address| self.objects.get(entry(address)?.slot as usize));
        std::hint::black_box(blocks.fold(sum, |sum, block| sum ^ block.epoch));
    }

    #[inline]
    pub(super) fn alloc(&mut self, origin: Origin, block: RawAlloc, sink: &mut impl Paired) {
        self.events += 1;
        let era = self.era();
        let RawAlloc { size_bytes, epoch, stack, is_move, .. } = block;
        let object = Object { size_bytes, stack, epoch, stream: origin.stream, era };
        let slot = match self.free_slots.pop() {
            Some(slot) => slot,
            None => {
                self.objects.push(object);
                (self.objects.len() - 1) as u32
            }
        };
        if let Some(place) = self.objects.get_mut(slot as usize) {
            *place = object;
        }
        sink.alloc(origin.thread, slot, &object, is_move);
        let Some(entry) = self.table.entry(block.address, era) else { return };
        if entry.slot != NOBODY || entry.ticket_is_not_before(epoch, era) {
            return self.meet(origin, block.address, slot, sink);
        }
        entry.slot = slot;
    }

    /// An allocation at an address where something lives, or that is known to be freed later.
    #[cold]
    fn meet(&mut self, origin: Origin, address: u64, slot: u32, sink: &mut impl Paired) {
        let era = self.era();
        let new = self.object(slot);
        let Some(entry) = self.table.entry(address, era) else { return };
        if entry.ticket_is_not_before(new.epoch, era) {
            return self.die(origin.thread, slot, false, sink);
        }
        if !entry.is_tied() {
            let other = entry.slot;
            let known = self.objects.get(other as usize).copied().unwrap_or_default();
            if known.stream == new.stream || is_before(known.epoch, new.epoch) {
                entry.slot = slot;
                return self.die(origin.thread, other, false, sink);
            }
            if known.epoch != new.epoch {
                return self.die(origin.thread, slot, false, sink);
            }
        }
        let mut is_dead = false;
        let survivors = self.living(address).into_iter().filter(|&other| {
            let known = self.object(other);
            let is_over = known.stream == new.stream || is_before(known.epoch, new.epoch);
            is_dead |= !is_over && is_before(new.epoch, known.epoch);
            if is_over {
                self.die(origin.thread, other, false, sink);
            }
            !is_over
        });
        let mut survivors: Vec<u32> = survivors.collect();
        if is_dead {
            self.die(origin.thread, slot, false, sink);
        } else {
            survivors.push(slot);
        }
        if survivors.len() > MOST_TIED {
            let oldest = survivors.remove(0);
            self.die(origin.thread, oldest, false, sink);
        }
        self.set_living(address, survivors);
    }

    #[inline]
    pub(super) fn free(&mut self, origin: Origin, block: RawFree, sink: &mut impl Paired) {
        self.events += 1;
        self.frees += 1;
        let era = self.era();
        let RawFree { address, ticket, is_move } = block;
        let Some(number) = ticket else {
            let Some(entry) = self.table.find(address) else { return };
            let slot = entry.slot;
            if slot == NOBODY {
                return;
            }
            let is_own = self.objects.get(slot as usize).is_some_and(|known| known.stream == origin.stream);
            if entry.is_tied() {
                return self.free_tied(origin, address, is_move, sink);
            }
            if !is_own {
                return;
            }
            entry.slot = NOBODY;
            return self.die(origin.thread, slot, is_move, sink);
        };
        let Some(entry) = self.table.entry(address, era) else { return };
        entry.keep_ticket(number, era);
        let slot = entry.slot;
        if slot == NOBODY {
            return;
        }
        let is_over = self.objects.get(slot as usize).is_some_and(|known| known.is_over(number, era));
        if entry.is_tied() {
            return self.free_all(origin, address, number, is_move, sink);
        }
        if !is_over {
            return;
        }
        entry.slot = NOBODY;
        self.die(origin.thread, slot, is_move, sink);
    }

    /// A local free, where another thread's block seems to live as well.
    #[cold]
    fn free_tied(&mut self, origin: Origin, address: u64, is_move: bool, sink: &mut impl Paired) {
        let mut living = self.living(address);
        let own = living.iter().position(|&slot| self.object(slot).stream == origin.stream);
        if let Some(index) = own {
            let slot = living.remove(index);
            self.die(origin.thread, slot, is_move, sink);
        }
        self.set_living(address, living);
    }

    /// A free with a ticket, where several blocks seem to live.
    #[cold]
    fn free_all(&mut self, origin: Origin, address: u64, number: u32, is_move: bool, sink: &mut impl Paired) {
        let era = self.era();
        let mut living = self.living(address);
        living.retain(|&slot| {
            let is_over = self.object(slot).is_over(number, era);
            if is_over {
                self.die(origin.thread, slot, is_move, sink);
            }
            !is_over
        });
        self.set_living(address, living);
    }

    /// The blocks of an address, oldest first. They have to be given back by [`set_living`](Self::set_living).
    fn living(&mut self, address: u64) -> Vec<u32> {
        let mut living = self.tied.remove(&address).unwrap_or_default();
        if let Some(entry) = self.table.find(address).filter(|entry| entry.slot != NOBODY) {
            living.push(entry.slot);
        }
        living
    }

    fn set_living(&mut self, address: u64, mut living: Vec<u32>) {
        let Some(entry) = self.table.find(address) else { return };
        entry.slot = living.pop().unwrap_or(NOBODY);
        entry.set_tied(!living.is_empty());
        if !living.is_empty() {
            self.tied.insert(address, living);
        }
    }

    fn object(&self, slot: u32) -> Object {
        self.objects.get(slot as usize).copied().unwrap_or_default()
    }

    #[inline]
    fn die(&mut self, thread: u32, slot: u32, is_move: bool, sink: &mut impl Paired) {
        self.deaths += 1;
        self.free_slots.push(slot);
        if let Some(object) = self.objects.get(slot as usize) {
            sink.free(thread, slot, object, is_move);
        }
    }
}

impl Object {
    /// Whether a free with this ticket came behind it.
    #[inline]
    fn is_over(&self, ticket: u32, era: u32) -> bool {
        // Of what is that old, nobody knows how often the counter went round; that its free is late is out of the question.
        !is_before(ticket, self.epoch) || era.wrapping_sub(self.era) > OLDEST_ERA
    }
}

/// A counter may go half way round in so many stretches of events, if all of them are frees with tickets of it.
const OLDEST_ERA: u32 = ((1 << 31) / WINDOW) as u32 - 1;

/// Whether `a` comes before `b`, for counters that may have wrapped.
#[inline]
fn is_before(a: u32, b: u32) -> bool {
    a != b && b.wrapping_sub(a) < 1 << 31
}

/// A multiplier nobody knows beforehand, so that nobody can choose addresses that meet in one place.
#[derive(Clone, Copy)]
struct Seed(u64);

impl Seed {
    fn random() -> Self {
        Self(RandomState::new().hash_one(0_u64) | 1)
    }

    #[inline]
    fn hash(self, address: u64) -> u64 {
        // Two rounds: one alone keeps regular steps between addresses regular.
        let mixed = (address ^ address >> 29).wrapping_mul(self.0);
        (mixed ^ mixed >> 32).wrapping_mul(self.0)
    }
}

impl BuildHasher for Seed {
    type Hasher = AddressHasher;

    fn build_hasher(&self) -> AddressHasher {
        AddressHasher { seed: *self, hash: 0 }
    }
}

struct AddressHasher {
    seed: Seed,
    hash: u64,
}

impl Hasher for AddressHasher {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u64(&mut self, value: u64) {
        self.hash = self.seed.hash(self.hash ^ value);
    }

    fn finish(&self) -> u64 {
        self.hash
    }
}

/// What is known of addresses: open addressing, at most half full.
///
/// Nothing is taken out when a block dies: its address is nearly always used again soon. What has become useless is left
/// behind when the table is filled anew.
struct AddressTable {
    seed: Seed,
    entries: Vec<Entry>,
    shift: u32,
    used: usize,
}

/// ```text
/// key:  | 63: has a ticket | 62: tied | 61: 0 | 48..61: era of the ticket | 0..48: address |       all ones: no entry
/// ```
#[derive(Clone, Copy)]
struct Entry {
    key: u64,
    /// The block that lives, and is the newest of those that are tied; [`NOBODY`] when none does.
    slot: u32,
    /// The greatest that a free of the address had.
    ticket: u32,
}

const _: () = assert!(size_of::<Entry>() == 16, "four in a cache line");

const NOBODY: u32 = u32::MAX;
const EMPTY: u64 = u64::MAX;
const ADDRESS: u64 = (1 << ADDRESS_BITS) - 1;
const HAS_TICKET: u64 = 1 << 63;
const TIED: u64 = 1 << 62;
const ERAS: u64 = (1 << 13) - 1;

impl Entry {
    const NONE: Self = Self { key: EMPTY, slot: NOBODY, ticket: 0 };

    #[inline]
    fn is_tied(&self) -> bool {
        self.key & TIED != 0
    }

    fn set_tied(&mut self, tied: bool) {
        self.key = self.key & !TIED | if tied { TIED } else { 0 };
    }

    /// Whether there is a ticket, and no older one than counts.
    #[inline]
    fn has_ticket(&self, era: u32) -> bool {
        let of_ticket = self.key >> ADDRESS_BITS & ERAS;
        self.key & HAS_TICKET != 0 && u64::from(era).wrapping_sub(of_ticket) & ERAS <= 1
    }

    /// Whether a free of the address came behind an allocation of that epoch.
    #[inline]
    fn ticket_is_not_before(&self, epoch: u32, era: u32) -> bool {
        self.has_ticket(era) && !is_before(self.ticket, epoch)
    }

    #[inline]
    fn keep_ticket(&mut self, ticket: u32, era: u32) {
        if !(self.has_ticket(era) && is_before(ticket, self.ticket)) {
            self.ticket = ticket;
            self.key = self.key & (ADDRESS | TIED) | HAS_TICKET | (u64::from(era) & ERAS) << ADDRESS_BITS;
        }
    }
}

impl AddressTable {
    fn new(seed: Seed) -> Self {
        Self { seed, entries: vec![Entry::NONE; 1 << 10], shift: 64 - 10, used: 0 }
    }

    /// Blocks that are neighbours share a cache line: what a program uses together is found together.
    #[inline]
    fn home(&self, address: u64) -> usize {
        let line = (self.seed.hash(address >> 7) >> self.shift) as usize;
        line & !3 | (address >> 5 & 3) as usize
    }

    /// The entry of an address, if it has one.
    #[inline]
    fn find(&mut self, address: u64) -> Option<&mut Entry> {
        let place = self.place(address);
        self.entries.get_mut(place).filter(|entry| entry.key != EMPTY)
    }

    /// The entry of an address, made if there was none. There always is one to be had.
    #[inline]
    fn entry(&mut self, address: u64, era: u32) -> Option<&mut Entry> {
        let address = address & ADDRESS;
        let mut place = self.place(address);
        if self.entries.get(place).is_some_and(|entry| entry.key == EMPTY) {
            if self.used * 2 >= self.entries.len() {
                self.fill_anew(era);
                place = self.place(address);
            }
            self.used += 1;
            if let Some(entry) = self.entries.get_mut(place) {
                entry.key = address;
            }
        }
        self.entries.get_mut(place)
    }

    /// Where the entry of an address is or belongs.
    #[inline]
    fn place(&self, address: u64) -> usize {
        let mask = self.entries.len() - 1;
        let mut place = self.home(address);
        while let Some(entry) = self.entries.get(place) {
            if entry.key == EMPTY || entry.key & ADDRESS == address {
                break;
            }
            place = (place + 1) & mask;
        }
        place
    }

    /// Leaves out the addresses of which nothing need be known, and makes the table as large as the others take.
    #[cold]
    fn fill_anew(&mut self, era: u32) {
        let is_needed = |entry: &&Entry| entry.slot != NOBODY || entry.has_ticket(era);
        let present = |entry: &&Entry| entry.key != EMPTY;
        self.used = self.entries.iter().filter(present).filter(is_needed).count();
        // At most a quarter full, so that the next time is as far away as the table is long.
        let length = (self.used * 4).next_power_of_two().max(self.entries.len());
        self.shift = 64 - length.ilog2();
        let before = std::mem::replace(&mut self.entries, vec![Entry::NONE; length]);
        for entry in before.iter().filter(present).filter(is_needed) {
            let place = self.place(entry.key & ADDRESS);
            if let Some(free) = self.entries.get_mut(place) {
                *free = *entry;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What lives, by the number that the model gave as stack.
    #[derive(Default)]
    struct Live(HashMap<u32, u32>);

    impl Paired for Live {
        fn alloc(&mut self, _: u32, slot: u32, object: &Object, _: bool) {
            assert_eq!(self.0.insert(slot, object.stack), None);
        }
        fn free(&mut self, _: u32, slot: u32, object: &Object, _: bool) {
            assert_eq!(self.0.remove(&slot), Some(object.stack));
        }
    }

    #[derive(Clone, Copy)]
    enum Event {
        Alloc(RawAlloc),
        Free(RawFree),
    }

    /// What threads do in a true order, each event with its thread; few addresses, so that they are used again at once.
    /// Answers with the blocks that live at the end as well.
    fn history(steps: &[(u8, bool, u8)], threads: u32, addresses: usize) -> (Vec<(u32, Event)>, Vec<u32>) {
        let mut live: Vec<(u64, u32, u32, u32)> = Vec::new();
        let mut free: Vec<u64> = (1..=addresses as u64).map(|number| number * 16).collect();
        let mut epoch = u32::MAX - 30;
        let mut events = Vec::new();
        for (number, &(thread, wants_alloc, choice)) in (0..).zip(steps) {
            let thread = u32::from(thread) % threads;
            if live.is_empty() || (wants_alloc && !free.is_empty()) {
                let Some(address) = free.pop() else { continue };
                live.push((address, thread, epoch, number));
                let block = RawAlloc { address, size_bytes: 1, epoch, stack: number, is_move: false };
                events.push((thread, Event::Alloc(block)));
            } else {
                let (address, owner, made, _) = live.swap_remove(usize::from(choice) % live.len());
                let ticket = if owner == thread && made == epoch {
                    None
                } else {
                    epoch = epoch.wrapping_add(1);
                    Some(epoch.wrapping_sub(1))
                };
                free.push(address);
                events.push((thread, Event::Free(RawFree { address, ticket, is_move: false })));
            }
        }
        let mut left: Vec<u32> = live.iter().map(|block| block.3).collect();
        left.sort_unstable();
        (events, left)
    }

    fn give(pairing: &mut Pairing, thread: u32, event: Event, live: &mut Live) {
        let origin = Origin { stream: thread, thread };
        match event {
            Event::Alloc(block) => pairing.alloc(origin, block, live),
            Event::Free(block) => pairing.free(origin, block, live),
        }
    }

    proptest! {
        #[test]
        fn whatever_the_order_of_the_threads_the_same_blocks_live(
            steps in prop::collection::vec(any::<(u8, bool, u8)>(), 1..1500),
            threads in 1_u32..6, addresses in 1_usize..12,
            delays in prop::collection::vec(prop_oneof![4 => 0_usize..200, 1 => 0_usize..2000], 1..20),
        ) {
            let (events, left) = history(&steps, threads, addresses);
            let mut pairing = Pairing::new();
            let mut live = Live::default();
            // Each thread has its own order; which one is late changes now and then.
            let mut queues: Vec<std::collections::VecDeque<(usize, Event)>> = vec![Default::default(); threads as usize];
            for (number, &(thread, event)) in events.iter().enumerate() {
                queues[thread as usize].push_back((number, event));
                for (thread, queue) in queues.iter_mut().enumerate() {
                    let delay = delays[(number / 300 + thread) % delays.len()];
                    while queue.front().is_some_and(|(made, _)| made + delay <= number) {
                        let (_, event) = queue.pop_front().unwrap();
                        give(&mut pairing, thread as u32, event, &mut live);
                    }
                }
            }
            for (thread, queue) in queues.into_iter().enumerate() {
                queue.into_iter().for_each(|(_, event)| give(&mut pairing, thread as u32, event, &mut live));
            }
            let mut found: Vec<u32> = live.0.into_values().collect();
            found.sort_unstable();
            prop_assert_eq!(found, left);
            prop_assert_eq!(pairing.unmatched_frees(), 0);
        }
    }

    fn alloc(address: u64, epoch: u32, stack: u32) -> Event {
        Event::Alloc(RawAlloc { address, size_bytes: 1, epoch, stack, is_move: false })
    }

    fn free(address: u64, ticket: Option<u32>) -> Event {
        Event::Free(RawFree { address, ticket, is_move: false })
    }

    /// What lives after these events, each with its thread, and how many frees were of nothing.
    fn left(events: &[(u32, Event)]) -> (Vec<u32>, u64) {
        let (mut pairing, mut live) = (Pairing::new(), Live::default());
        events.iter().for_each(|&(thread, event)| give(&mut pairing, thread, event, &mut live));
        let mut left: Vec<u32> = live.0.into_values().collect();
        left.sort_unstable();
        (left, pairing.unmatched_frees())
    }

    #[test]
    fn a_free_that_was_lost_leaves_no_second_block_at_an_address() {
        assert_eq!(left(&[(1, alloc(16, 5, 1)), (1, alloc(16, 5, 2))]), (vec![2], 0));
        assert_eq!(left(&[(1, alloc(16, 5, 1)), (2, alloc(16, 6, 2))]), (vec![2], 0));
        assert_eq!(left(&[(2, alloc(16, 6, 2)), (1, alloc(16, 5, 1))]), (vec![2], 0));
    }

    #[test]
    fn blocks_of_one_epoch_wait_for_the_local_free_of_one() {
        let [a, b] = [(1, alloc(16, 5, 1)), (2, alloc(16, 5, 2))];
        for first in [[a, b], [b, a]] {
            assert_eq!(left(&first).0, [1, 2]);
            assert_eq!(left(&[first[0], first[1], (1, free(16, None))]).0, [2]);
            assert_eq!(left(&[first[0], first[1], (3, free(16, Some(5))), (1, free(16, None))]), (vec![], 0));
        }
    }

    #[test]
    fn a_free_of_an_unknown_block_is_counted_and_takes_nothing() {
        assert_eq!(left(&[(1, free(16, Some(4))), (1, alloc(16, 5, 1))]), (vec![1], 1));
        assert_eq!(left(&[(1, alloc(16, 5, 1)), (2, free(16, None))]), (vec![1], 1));
        assert_eq!(left(&[(1, free(1 << 47, None)), (1, free(0, Some(1)))]), (vec![], 2));
    }

    #[test]
    fn tickets_are_kept_while_the_table_grows_and_dropped_when_they_are_old() {
        let mut events: Vec<(u32, Event)> = (1..=5000).map(|n| (1, free(n * 16, Some(7)))).collect();
        events.extend((1..=5000).map(|n| (2, alloc(n * 16, 7, n as u32))));
        assert_eq!(left(&events), (vec![], 0));

        let (mut pairing, mut live) = (Pairing::new(), Live::default());
        give(&mut pairing, 1, free(16, Some(7)), &mut live);
        pairing.events += 2 * WINDOW;
        give(&mut pairing, 2, alloc(16, 7, 1), &mut live);
        assert_eq!(live.0.len(), 1);
    }
}
