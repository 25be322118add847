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

use super::ahead::{Table, fetch, use_large_pages};
use super::merge::{Origin, RawAlloc, RawFree};

/// A block of memory that lives, or lived last, under a slot's number.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Object {
    pub(super) size_bytes: u64,
    pub(super) stack: u32,
    epoch: u32,
}

const _: () = assert!(size_of::<Object>() == 16, "four in a cache line");

/// Who made the block of a slot: asked for only where there are several streams.
#[derive(Clone, Copy, Default, Debug)]
struct Maker {
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

/// A quarter of a mebibyte of each.
const LARGE_LEAVES: usize = 1 << 10;
const LARGE_OBJECTS: usize = 1 << 14;

/// The blocks that live.
pub(super) struct Pairing {
    table: AddressTable,
    /// By slot.
    objects: Vec<Object>,
    makers: Vec<Maker>,
    free_slots: Vec<u32>,
    /// Blocks that seem to live at an address beside the one in the table, oldest first: with the same epoch, made by other
    /// threads. All but one of them were freed locally, and that has not arrived yet.
    tied: HashMap<u64, Vec<u32>, Seed>,
    /// The greatest ticket that a free of an address had, where its cell says that there is one.
    tickets: HashMap<u64, Ticket, Seed>,
    /// The only stream that has allocated so far, unless there are several.
    only_stream: Only,
    events: u64,
    frees: u64,
    deaths: u64,
}

#[derive(Clone, Copy)]
struct Ticket {
    number: u32,
    /// [`Pairing::era`] of the free.
    era: u32,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Only {
    Nobody,
    Stream(u32),
    Several,
}

impl Pairing {
    pub(super) fn new() -> Self {
        let seed = Seed::random();
        Self {
            table: AddressTable::new(seed),
            objects: Vec::new(),
            makers: Vec::new(),
            free_slots: Vec::new(),
            tied: HashMap::with_hasher(seed),
            tickets: HashMap::with_hasher(seed),
            only_stream: Only::Nobody,
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

    /// Asks for what an event of this address will need first. The answer is the hash that the event is to come with.
    #[inline(always)]
    pub(super) fn expect(&self, address: u64) -> u32 {
        let hash = self.table.hash(address);
        fetch(self.table.regions.as_slice(), self.table.home(hash));
        hash
    }

    /// False while all that is asked for here fits into the nearer caches.
    #[inline]
    pub(super) fn is_large(&self) -> bool {
        self.table.used_leaves >= LARGE_LEAVES || self.objects.len() >= LARGE_OBJECTS
    }

    /// Asks for what it needs next, once that may be there.
    #[inline(always)]
    pub(super) fn expect_cell(&self, address: u64, hash: u32) {
        let (_, cell) = place_in_leaf(address);
        let leaf = self.table.leaf_at_home(hash);
        fetch(self.table.leaves.as_slice().as_flattened(), leaf * CELLS + cell);
    }

    /// And what it needs last. The answer is the slot of the block that lives there, if there is one.
    #[inline(always)]
    pub(super) fn expect_object(&self, address: u64, hash: u32) -> u32 {
        let (_, cell) = place_in_leaf(address);
        let leaf = self.table.leaves.as_slice().get(self.table.leaf_at_home(hash));
        let slot = leaf.and_then(|leaf| leaf.get(cell)).map_or(NOBODY, |&cell| slot_of(cell));
        fetch(&self.objects, slot as usize);
        slot
    }

    #[inline(always)]
    pub(super) fn alloc(&mut self, origin: Origin, block: RawAlloc, sink: &mut impl Paired) {
        let RawAlloc { address, hash, size_bytes, epoch, stack, is_move } = block;
        self.count_event();
        let object = Object { size_bytes, stack, epoch };
        let slot = match self.free_slots.pop() {
            Some(slot) => slot,
            None => match self.fresh_slot() {
                Some(slot) => slot,
                None => return,
            },
        };
        if let Some(place) = self.objects.get_mut(slot as usize) {
            *place = object;
        }
        let era = self.era();
        if let Some(maker) = self.makers.get_mut(slot as usize) {
            *maker = Maker { stream: origin.stream, era };
        }
        if self.only_stream != Only::Stream(origin.stream) {
            self.meet_stream(origin.stream);
        }
        sink.alloc(origin.thread, slot, &object, is_move);
        match self.table.find(address, hash) {
            Some(cell) if *cell == 0 => *cell = slot + 1,
            Some(_) => self.meet(origin, address, slot, sink),
            None => {
                if let Some(cell) = self.table.make(address, hash) {
                    *cell = slot + 1;
                }
            }
        }
    }

    #[inline(always)]
    fn count_event(&mut self) {
        self.events += 1;
        if self.events.is_multiple_of(WINDOW) {
            self.drop_old_tickets();
        }
    }

    #[cold]
    fn drop_old_tickets(&mut self) {
        let era = self.era();
        let Self { tickets, table, .. } = self;
        tickets.retain(|&address, ticket| {
            let counts = ticket.counts(era);
            let hash = table.hash(address);
            if !counts && let Some(cell) = table.find(address, hash) {
                *cell &= !HAS_TICKET;
            }
            counts
        });
    }

    /// One more than there ever were; none when there are more than cells can name, which no memory suffices for.
    #[inline(never)]
    fn fresh_slot(&mut self) -> Option<u32> {
        let slot = self.objects.len();
        if slot >= SLOTS as usize {
            return None;
        }
        if slot == self.objects.capacity() {
            let more = slot.max(1 << 12);
            self.objects.reserve_exact(more);
            use_large_pages(&self.objects, self.objects.capacity());
            self.makers.reserve_exact(more);
            use_large_pages(&self.makers, self.makers.capacity());
        }
        self.objects.push(Object::default());
        self.makers.push(Maker::default());
        Some(slot as u32)
    }

    #[cold]
    fn meet_stream(&mut self, stream: u32) {
        self.only_stream =
            if self.only_stream == Only::Nobody { Only::Stream(stream) } else { Only::Several };
    }

    fn maker(&self, slot: u32) -> Maker {
        self.makers.get(slot as usize).copied().unwrap_or_default()
    }

    fn epoch(&self, slot: u32) -> u32 {
        self.objects.get(slot as usize).map_or(0, |object| object.epoch)
    }

    /// Whether a free with this ticket came behind the allocation.
    fn is_over(&self, slot: u32, ticket: u32) -> bool {
        // Of what is that old, nobody knows how often the counter went round; that its free is late is out of the question.
        !is_before(ticket, self.epoch(slot)) || self.era().wrapping_sub(self.maker(slot).era) > OLDEST_ERA
    }

    /// Whether a free of the address came behind an allocation of that epoch.
    fn ticket_is_not_before(&self, address: u64, epoch: u32) -> bool {
        let ticket = self.tickets.get(&address).filter(|ticket| ticket.counts(self.era()));
        ticket.is_some_and(|ticket| !is_before(ticket.number, epoch))
    }

    /// An allocation at an address where something lives, or of which a ticket is known.
    #[inline(never)]
    fn meet(&mut self, origin: Origin, address: u64, slot: u32, sink: &mut impl Paired) {
        let epoch = self.epoch(slot);
        let hash = self.table.hash(address);
        let Some(cell) = self.table.find(address, hash).map(|cell| *cell) else { return };
        if cell & HAS_TICKET != 0 && self.ticket_is_not_before(address, epoch) {
            return self.die(origin.thread, slot, false, sink);
        }
        if cell & !HAS_TICKET == 0 {
            if let Some(cell) = self.table.find(address, hash) {
                *cell |= slot + 1;
            }
            return;
        }
        let mut is_dead = false;
        let mut survivors = self.living(address);
        survivors.retain(|&known| {
            let is_own = self.maker(known).stream == origin.stream;
            let is_over = is_own || is_before(self.epoch(known), epoch);
            is_dead |= !is_over && is_before(epoch, self.epoch(known));
            if is_over {
                self.die(origin.thread, known, false, sink);
            }
            !is_over
        });
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

    #[inline(always)]
    pub(super) fn free(&mut self, origin: Origin, block: RawFree, sink: &mut impl Paired) {
        let RawFree { address, hash, ticket: None, is_move } = block else {
            return self.free_with_ticket(origin, block, sink);
        };
        self.count_event();
        self.frees += 1;
        let Some(cell) = self.table.find(address, hash) else { return };
        let slot = slot_of(*cell);
        if slot == NOBODY {
            return;
        }
        if *cell & TIED != 0 {
            return self.free_tied(origin, address, is_move, sink);
        }
        if self.only_stream == Only::Stream(origin.stream)
            || self.makers.get(slot as usize).is_some_and(|maker| maker.stream == origin.stream)
        {
            *cell &= HAS_TICKET;
            self.deaths += 1;
            self.free_slots.push(slot);
            if let Some(object) = self.objects.get(slot as usize) {
                sink.free(origin.thread, slot, object, is_move);
            }
        }
    }

    #[inline(never)]
    fn free_with_ticket(&mut self, origin: Origin, block: RawFree, sink: &mut impl Paired) {
        self.count_event();
        self.frees += 1;
        let era = self.era();
        let RawFree { address, hash, ticket, is_move } = block;
        let number = ticket.unwrap_or(0);
        let Some(cell) = self.table.find_or_make(address, hash) else { return };
        let before = *cell;
        *cell |= HAS_TICKET;
        let new = Ticket { number, era };
        let kept = self.tickets.entry(address).or_insert(new);
        if !(kept.counts(era) && is_before(number, kept.number)) {
            *kept = new;
        }
        let slot = slot_of(before);
        if slot == NOBODY {
            return;
        }
        if before & TIED != 0 {
            return self.free_all(origin, address, number, is_move, sink);
        }
        if self.is_over(slot, number) {
            if let Some(cell) = self.table.find(address, hash) {
                *cell = HAS_TICKET;
            }
            self.die(origin.thread, slot, is_move, sink);
        }
    }

    /// A local free, where another thread's block seems to live as well.
    #[cold]
    fn free_tied(&mut self, origin: Origin, address: u64, is_move: bool, sink: &mut impl Paired) {
        let mut living = self.living(address);
        let own = living.iter().position(|&slot| self.maker(slot).stream == origin.stream);
        if let Some(index) = own {
            let slot = living.remove(index);
            self.die(origin.thread, slot, is_move, sink);
        }
        self.set_living(address, living);
    }

    /// A free with a ticket, where several blocks seem to live.
    #[cold]
    fn free_all(&mut self, origin: Origin, address: u64, number: u32, is_move: bool, sink: &mut impl Paired) {
        let mut living = self.living(address);
        living.retain(|&slot| {
            let is_over = self.is_over(slot, number);
            if is_over {
                self.die(origin.thread, slot, is_move, sink);
            }
            !is_over
        });
        self.set_living(address, living);
    }

    /// The blocks of an address, oldest first. They have to be given back by [`set_living`](Self::set_living).
    fn living(&mut self, address: u64) -> Vec<u32> {
        let hash = self.table.hash(address);
        let cell = self.table.find(address, hash).map_or(0, |cell| *cell);
        let mut living =
            if cell & TIED != 0 { self.tied.remove(&address).unwrap_or_default() } else { Vec::new() };
        living.extend((slot_of(cell) != NOBODY).then_some(slot_of(cell)));
        living
    }

    fn set_living(&mut self, address: u64, mut living: Vec<u32>) {
        let hash = self.table.hash(address);
        let Some(cell) = self.table.find(address, hash) else { return };
        let newest = living.pop().map_or(0, |slot| slot + 1);
        let tied = if living.is_empty() { 0 } else { TIED };
        *cell = *cell & HAS_TICKET | tied | newest;
        if !living.is_empty() {
            self.tied.insert(address, living);
        }
    }

    #[inline(never)]
    fn die(&mut self, thread: u32, slot: u32, is_move: bool, sink: &mut impl Paired) {
        self.deaths += 1;
        self.free_slots.push(slot);
        if let Some(object) = self.objects.get(slot as usize) {
            sink.free(thread, slot, object, is_move);
        }
    }
}

impl Ticket {
    /// Whether it is not older than what counts.
    #[inline]
    fn counts(self, era: u32) -> bool {
        era.wrapping_sub(self.era) <= 1
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

    #[inline(always)]
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

/// The slots of the blocks by their addresses.
///
/// ```text
/// region:  | number, plus 1: 8 bytes, 0 when unused | leaf: 4 bytes | 4 bytes |      open addressing, at most half full
///                                                      |
/// leaf:    | cell | cell | ... 64 of them, 4 bytes each |
/// cell:    | 31: a ticket is known | 30: further blocks seem to live here | 0..30: one more than the slot, or 0 |
/// ```
///
/// A region is 1,024 bytes of the program's memory, and has a cell for each 16 of them: allocators give no other addresses, but for
/// small blocks of some, which are in a map of their own. So what a program uses together is found together, hardly anything
/// has to be searched for, and leaves take a quarter of the memory that the blocks take, of which only what is used is ever touched.
///
/// Nothing is taken out when a block dies: its address is nearly always used again soon. Regions that have become useless are
/// left out when there is no room for others.
struct AddressTable {
    seed: Seed,
    regions: Table<Region>,
    used_regions: usize,
    leaves: Table<Leaf>,
    used_leaves: usize,
    /// Leaves of regions that were left out.
    free_leaves: Vec<u32>,
    /// Cells of addresses between those that have one.
    between: HashMap<u64, u32, Seed>,
}

type Region = [u32; 4];
type Leaf = [u32; CELLS];

const _: () = assert!(size_of::<Region>() == 16, "four in a cache line");

const NOBODY: u32 = u32::MAX;
const HAS_TICKET: u32 = 1 << 31;
const TIED: u32 = 1 << 30;
/// One less than the cells can name.
const SLOTS: u32 = TIED - 1;
const ADDRESS: u64 = (1 << ADDRESS_BITS) - 1;
const CELL_SHIFT: u32 = 4;
const CELLS: usize = 64;
const LEAST_REGIONS: usize = 1 << 8;
const LEAST_LEAVES: usize = 1 << 6;

/// The slot in a cell, [`NOBODY`] when nothing lives there.
#[inline(always)]
fn slot_of(cell: u32) -> u32 {
    (cell & SLOTS).wrapping_sub(1)
}

/// The region's number plus 1, and where in its leaf the cell of an address is.
#[inline(always)]
fn place_in_leaf(address: u64) -> (u64, usize) {
    let cell = (address & ADDRESS) >> CELL_SHIFT;
    (cell / CELLS as u64 + 1, cell as usize % CELLS)
}

#[inline(always)]
fn number_of(region: &Region) -> u64 {
    u64::from(region[0]) | u64::from(region[1]) << 32
}

impl AddressTable {
    fn new(seed: Seed) -> Self {
        Self {
            seed,
            regions: Table::new(LEAST_REGIONS),
            used_regions: 0,
            leaves: Table::new(LEAST_LEAVES),
            used_leaves: 0,
            free_leaves: Vec::new(),
            between: HashMap::with_hasher(seed),
        }
    }

    #[inline(always)]
    fn hash(&self, address: u64) -> u32 {
        self.hash_of_region(place_in_leaf(address).0)
    }

    #[inline(always)]
    fn hash_of_region(&self, number: u64) -> u32 {
        (self.seed.hash(number) >> 32) as u32
    }

    #[inline(always)]
    fn home(&self, hash: u32) -> usize {
        hash as usize & (self.regions.as_slice().len() - 1)
    }

    /// The leaf of the region that is mostly the one: not searched for.
    #[inline(always)]
    fn leaf_at_home(&self, hash: u32) -> usize {
        self.regions.as_slice().get(self.home(hash)).map_or(0, |region| region[2] as usize)
    }

    /// Where a region is or belongs.
    #[inline(always)]
    fn place(&self, number: u64, hash: u32) -> usize {
        let regions = self.regions.as_slice();
        let mut place = self.home(hash);
        while let Some(region) = regions.get(place) {
            let known = number_of(region);
            if known == number || known == 0 {
                break;
            }
            place = (place + 1) & (regions.len() - 1);
        }
        place
    }

    /// The cell of an address, if it has one.
    #[inline(always)]
    fn find(&mut self, address: u64, hash: u32) -> Option<&mut u32> {
        if !address.is_multiple_of(1 << CELL_SHIFT) {
            return self.find_between(address);
        }
        let (number, cell) = place_in_leaf(address);
        let region = self.regions.as_slice().get(self.place(number, hash))?;
        if number_of(region) == 0 {
            return None;
        }
        self.leaves.as_mut_slice().get_mut(region[2] as usize)?.get_mut(cell)
    }

    #[cold]
    fn find_between(&mut self, address: u64) -> Option<&mut u32> {
        self.between.get_mut(&address)
    }

    /// The cell of an address, made if there was none. There always is one to be had.
    fn find_or_make(&mut self, address: u64, hash: u32) -> Option<&mut u32> {
        if self.find(address, hash).is_some() {
            return self.find(address, hash);
        }
        self.make(address, hash)
    }

    /// A cell for an address that has none.
    #[inline(never)]
    fn make(&mut self, address: u64, hash: u32) -> Option<&mut u32> {
        if !address.is_multiple_of(1 << CELL_SHIFT) {
            return Some(self.between.entry(address).or_insert(0));
        }
        if self.used_regions * 2 >= self.regions.as_slice().len() {
            self.make_room();
        }
        self.used_regions += 1;
        let leaf = self.fresh_leaf();
        let (number, cell) = place_in_leaf(address);
        let place = self.place(number, hash);
        *self.regions.as_mut_slice().get_mut(place)? = [number as u32, (number >> 32) as u32, leaf, 0];
        self.leaves.as_mut_slice().get_mut(leaf as usize)?.get_mut(cell)
    }

    /// All of its cells are 0.
    fn fresh_leaf(&mut self) -> u32 {
        self.free_leaves.pop().unwrap_or_else(|| {
            if self.used_leaves >= self.leaves.as_slice().len() {
                self.leaves.grow(self.used_leaves * 2);
            }
            self.used_leaves += 1;
            (self.used_leaves - 1) as u32
        })
    }

    /// Leaves out the regions of which nothing need be known, and makes the table as large as the others take.
    #[cold]
    fn make_room(&mut self) {
        let before = self.regions.as_slice();
        let mut kept = Vec::with_capacity(self.used_regions);
        for region in before.iter().filter(|region| number_of(region) != 0) {
            let leaf = self.leaves.as_slice().get(region[2] as usize);
            if leaf.is_some_and(|leaf| leaf.iter().any(|&cell| cell != 0)) {
                kept.push(*region);
            } else {
                self.free_leaves.push(region[2]);
            }
        }
        // At most a quarter full, so that the next time is as far away as the table is long.
        let length = (kept.len() * 4).next_power_of_two().max(before.len());
        self.regions = Table::new(length);
        self.used_regions = kept.len();
        for region in kept {
            let number = number_of(&region);
            let place = self.place(number, self.hash_of_region(number));
            if let Some(free) = self.regions.as_mut_slice().get_mut(place) {
                *free = region;
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
                let block =
                    RawAlloc { address, hash: 0, size_bytes: 1, epoch, stack: number, is_move: false };
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
                events.push((thread, Event::Free(RawFree { address, hash: 0, ticket, is_move: false })));
            }
        }
        let mut left: Vec<u32> = live.iter().map(|block| block.3).collect();
        left.sort_unstable();
        (events, left)
    }

    fn give(pairing: &mut Pairing, thread: u32, event: Event, live: &mut Live) {
        let origin = Origin { stream: thread, thread };
        match event {
            Event::Alloc(block) => {
                let hash = pairing.expect(block.address);
                pairing.alloc(origin, RawAlloc { hash, ..block }, live);
            }
            Event::Free(block) => {
                let hash = pairing.expect(block.address);
                pairing.free(origin, RawFree { hash, ..block }, live);
            }
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
        Event::Alloc(RawAlloc { address, hash: 0, size_bytes: 1, epoch, stack, is_move: false })
    }

    fn free(address: u64, ticket: Option<u32>) -> Event {
        Event::Free(RawFree { address, hash: 0, ticket, is_move: false })
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
    fn blocks_closer_together_than_cells_are_told_apart() {
        let addresses = [160, 164, 168, 175, 176];
        let all = addresses.iter().zip(1..).map(|(&address, stack)| (1, alloc(address, 5, stack)));
        let mut events: Vec<(u32, Event)> = all.collect();
        assert_eq!(left(&events), (vec![1, 2, 3, 4, 5], 0));
        events.extend([(1, free(164, None)), (2, free(168, Some(5))), (2, free(160, Some(4)))]);
        assert_eq!(left(&events), (vec![1, 4, 5], 1));
        events.extend([(1, alloc(168, 5, 6)), (1, alloc(168, 6, 7))]);
        // Another one that was dead already: the ticket of its address is not smaller than its epoch.
        assert_eq!(left(&events), (vec![1, 4, 5, 7], 0));
    }

    #[test]
    fn regions_without_blocks_make_room_for_others() {
        let (mut pairing, mut live) = (Pairing::new(), Live::default());
        for round in 0..50 {
            let addresses = (1..=1000).map(|number| (round * 1000 + number) << 12);
            for (address, stack) in addresses.clone().zip(0..) {
                give(&mut pairing, 1, alloc(address, 5, stack), &mut live);
            }
            assert_eq!(live.0.len(), 1000);
            addresses.for_each(|address| give(&mut pairing, 1, free(address, None), &mut live));
            assert!(live.0.is_empty());
        }
        assert_eq!(pairing.unmatched_frees(), 0);
        assert!(pairing.table.used_leaves < 5000, "{}", pairing.table.used_leaves);
        assert!(pairing.table.regions.as_slice().len() <= 8192);
        let cells = pairing.table.leaves.as_slice().as_flattened();
        assert!(cells.iter().all(|&cell| cell == 0));
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
