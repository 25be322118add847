//! Which blocks a free leaves alive: exact, although the order of events across threads is not.
//!
//! The rules are those of `cairn_format::recording`: a *local* free is of its own thread's latest allocation of the
//! address; any other one has a *ticket*, and the allocations of an address with an *epoch* that is not greater than the
//! ticket came before it. Two blocks never live at one address at once. So each of these is a proof that a block is dead:
//!
//! - its thread freed it locally: behind it in the same lane, with no other allocation of the address between;
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
//! recorder commits it before the program has the block, and lanes are merged to about a millisecond.
//!
//! The frees in excess of the blocks that died are of blocks older than the recording.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

use cairn_format::recording::ADDRESS_BITS;

use super::merge::{NO_PLACE, Origin, RawAlloc, RawFree};
use crate::prefetch::{Table, prefetch};

/// A block of memory that lives, or lived last, under a slot's number.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Object {
    pub(crate) size_bytes: u64,
    pub(crate) stack: u32,
    epoch: u32,
}

/// As it is kept: four in a cache line.
type Kept = [u32; 4];

impl Object {
    #[inline(always)]
    fn keep(self) -> Kept {
        [self.size_bytes as u32, (self.size_bytes >> 32) as u32, self.stack, self.epoch]
    }

    #[inline(always)]
    fn kept([low, high, stack, epoch]: Kept) -> Self {
        Self { size_bytes: u64::from(low) | u64::from(high) << 32, stack, epoch }
    }
}

/// Who made the block of a slot, and [`Pairing::era`] when it was made: asked for only where there are several lanes.
type Maker = [u32; 2];

/// Receives allocations, and frees with the slot of what they free.
pub(crate) trait Paired {
    fn alloc(&mut self, thread: u32, slot: u32, object: &Object, is_move: bool);
    fn free(&mut self, thread: u32, slot: u32, object: &Object, is_move: bool);
}

/// A ticket counts for at least so many events, and for less than twice as many: a quarter of a second and more of the
/// fastest programs.
const WINDOW: u64 = 1 << 23;
/// So many blocks of as many threads seem to live at one address while local frees are late; only in a damaged file there are more.
const MOST_TIED: usize = 1 << 10;

/// Named by half a mebibyte.
const MANY_LEAVES: usize = 1 << 17;
/// A quarter of a mebibyte of each.
const LARGE_LEAVES: usize = 1 << 10;
const LARGE_OBJECTS: usize = 1 << 14;

/// The blocks that live.
pub(crate) struct Pairing {
    table: AddressTable,
    /// By slot.
    objects: Table<Kept>,
    /// How many slots there ever were.
    slots: usize,
    /// By slot. Empty while only one lane has allocated.
    makers: Table<Maker>,
    free_slots: FreeSlots,
    /// Blocks that seem to live at an address beside the one in the table, oldest first: with the same epoch, made by other
    /// threads. All but one of them were freed locally, and that has not arrived yet.
    tied: HashMap<u64, Vec<u32>, Seed>,
    tickets: Tickets,
    /// The only lane that has allocated so far, or one of the constants.
    only_lane: u64,
    events: u64,
    /// Of these, what was neither an allocation nor a free.
    others: u64,
    allocs: u64,
    /// Frees with tickets.
    ticketed: u64,
}

/// The slots in which nothing lives: there is room for all.
struct FreeSlots {
    list: Table<[u32; 1]>,
    count: usize,
}

impl FreeSlots {
    #[inline(always)]
    fn pop(&mut self) -> Option<u32> {
        let last = self.count.checked_sub(1)?;
        let [slot] = *self.list.as_slice().get(last)?;
        self.count = last;
        Some(slot)
    }

    #[inline(always)]
    fn push(&mut self, slot: u32) {
        if let Some(place) = self.list.as_mut_slice().get_mut(self.count) {
            *place = [slot];
            self.count += 1;
        }
    }
}

/// The greatest tickets that frees of addresses had, of the addresses whose cells name one of these.
#[derive(Default)]
struct Tickets {
    list: Vec<Ticket>,
    free: Vec<u32>,
}

#[derive(Clone, Copy)]
struct Ticket {
    address: u64,
    number: u32,
    /// [`Pairing::era`] of the free.
    era: u32,
    /// What the cell of the address would be without a ticket; [`UNUSED`] when this is none.
    rest: u32,
}

const UNUSED: u32 = u32::MAX;

impl Tickets {
    /// What is known of an address, beside its tickets.
    #[inline]
    fn rest(&self, cell: u32) -> u32 {
        self.named(cell).map_or(cell, |ticket| ticket.rest)
    }

    #[inline]
    fn named(&self, cell: u32) -> Option<&Ticket> {
        if cell & HAS_TICKET == 0 { None } else { self.list.get((cell & !HAS_TICKET) as usize) }
    }

    #[inline]
    fn named_mut(&mut self, cell: u32) -> Option<&mut Ticket> {
        if cell & HAS_TICKET == 0 { None } else { self.list.get_mut((cell & !HAS_TICKET) as usize) }
    }

    #[inline]
    fn set_rest(&mut self, cell: &mut u32, rest: u32) {
        match self.named_mut(*cell) {
            Some(ticket) => ticket.rest = rest,
            None => *cell = rest,
        }
    }

    /// The cell that names it.
    fn add(&mut self, ticket: Ticket) -> u32 {
        let index = self.free.pop().unwrap_or(self.list.len() as u32);
        match self.list.get_mut(index as usize) {
            Some(place) => *place = ticket,
            None => self.list.push(ticket),
        }
        HAS_TICKET | index
    }
}

const NO_LANE: u64 = u64::MAX;
/// Several have.
const SEVERAL_LANES: u64 = NO_LANE - 1;

impl Pairing {
    pub(crate) fn new() -> Self {
        let seed = Seed::random();
        Self {
            table: AddressTable::new(seed),
            objects: Table::new(LEAST_SLOTS),
            slots: 0,
            makers: Table::new(0),
            free_slots: FreeSlots { list: Table::new(LEAST_SLOTS), count: 0 },
            tied: HashMap::with_hasher(seed),
            tickets: Tickets::default(),
            only_lane: NO_LANE,
            events: 0,
            others: 0,
            allocs: 0,
            ticketed: 0,
        }
    }

    /// Frees of blocks that are older than the recording, or whose allocation was lost. Right when all events are there.
    pub(crate) fn unmatched_frees(&self) -> u64 {
        let living = self.slots.saturating_sub(self.free_slots.count) as u64;
        let frees = self.events.saturating_sub(self.others + self.allocs);
        frees.saturating_sub(self.allocs.saturating_sub(living))
    }

    /// Which stretch of [`WINDOW`] events this is.
    #[inline]
    fn era(&self) -> u32 {
        (self.events / WINDOW) as u32
    }

    /// Asks for what an event of this address will need first.
    #[inline(always)]
    pub(crate) fn prefetch_region(&self, address: u64) {
        self.table.prefetch_region(address);
    }

    /// False while what leads to the cells fits into the nearer caches.
    #[inline]
    pub(crate) fn has_many_regions(&self) -> bool {
        self.table.used_leaves >= MANY_LEAVES
    }

    /// False while all that is asked for here fits into the nearer caches.
    #[inline]
    pub(crate) fn is_large(&self) -> bool {
        self.table.used_leaves >= LARGE_LEAVES || self.slots >= LARGE_OBJECTS
    }

    /// The place that an event of this address is to come with, which is good for one [`generation`](Self::generation); and asks
    /// for what is there.
    #[inline(always)]
    pub(crate) fn resolve(&self, address: u64) -> u32 {
        let place = self.table.place(address);
        prefetch(self.table.cells(), place as usize);
        place
    }

    /// Another one when places that were told before may be wrong.
    #[inline(always)]
    pub(crate) fn generation(&self) -> u32 {
        self.table.generation
    }

    /// Asks for what an event at a place needs last. The answer is the slot of the block that lives there, any if there is none.
    #[inline(always)]
    pub(crate) fn prefetch_object(&self, place: u32) -> u32 {
        // Where nothing lives, the first one: a line that is not there would cost the processor a walk of its page tables.
        let slot = self.table.cells().get(place as usize).map_or(0, |&cell| (cell & SLOTS).saturating_sub(1));
        prefetch(self.objects.as_slice(), slot as usize);
        slot
    }

    /// Notes that so many events come now.
    #[inline]
    pub(crate) fn count_events(&mut self, count: u64) {
        let before = self.era();
        self.events += count;
        if self.era() != before {
            self.drop_old_tickets();
        }
    }

    /// Notes that one of them was no allocation and no free.
    pub(crate) fn count_other(&mut self) {
        self.others += 1;
    }

    /// An allocation. True when places that were told before may be wrong now.
    #[inline(always)]
    pub(crate) fn alloc(&mut self, origin: Origin, block: RawAlloc, sink: &mut impl Paired) -> bool {
        let RawAlloc { address, place, size_bytes, epoch, stack, is_move } = block;
        let object = Object { size_bytes, stack, epoch };
        let slot = match self.free_slots.pop() {
            Some(slot) => slot,
            None => match self.fresh_slot() {
                Some(slot) => slot,
                None => {
                    self.count_other();
                    return false;
                }
            },
        };
        self.allocs += 1;
        if let Some(kept) = self.objects.as_mut_slice().get_mut(slot as usize) {
            *kept = object.keep();
        }
        if self.only_lane != u64::from(origin.lane) {
            self.note_maker(origin.lane, slot);
        }
        sink.alloc(origin.thread, slot, &object, is_move);
        match self.table.cells_mut().get_mut(place as usize) {
            Some(cell) if *cell == 0 => {
                *cell = slot + 1;
                false
            }
            _ => self.meet_in(origin, address, place, slot, sink),
        }
    }

    #[inline(never)]
    fn meet_in(
        &mut self,
        origin: Origin,
        address: u64,
        place: u32,
        slot: u32,
        sink: &mut impl Paired,
    ) -> bool {
        let generation = self.generation();
        self.meet(origin, address, place, slot, sink);
        self.generation() != generation
    }

    #[cold]
    fn drop_old_tickets(&mut self) {
        let era = self.era();
        let Self { tickets, table, .. } = self;
        for (index, ticket) in (0..).zip(&mut tickets.list) {
            if ticket.rest != UNUSED && !ticket.counts(era) {
                if let Some(cell) = table.find(ticket.address) {
                    *cell = ticket.rest;
                }
                ticket.rest = UNUSED;
                tickets.free.push(index);
            }
        }
    }

    /// One more than there ever were; none when there are more than cells can name, which no memory suffices for.
    #[inline(never)]
    fn fresh_slot(&mut self) -> Option<u32> {
        let slot = self.slots;
        if slot >= SLOTS as usize {
            return None;
        }
        if slot >= self.objects.as_slice().len() {
            self.objects.grow(slot * 2);
            self.free_slots.list.grow(slot * 2);
            if self.only_lane == SEVERAL_LANES {
                self.makers.grow(self.objects.as_slice().len());
            }
        }
        if slot.is_multiple_of(PREPARED_SLOTS) {
            self.objects.prepare(slot, PREPARED_SLOTS);
        }
        self.slots += 1;
        Some(slot as u32)
    }

    #[inline(never)]
    fn note_maker(&mut self, lane: u32, slot: u32) {
        match self.only_lane {
            NO_LANE => return self.only_lane = lane.into(),
            SEVERAL_LANES => {}
            before => self.meet_lane(before as u32),
        }
        let era = self.era();
        if let Some(maker) = self.makers.as_mut_slice().get_mut(slot as usize) {
            *maker = [lane, era];
        }
    }

    /// From now on it has to be known who made what. All that there is was made by one lane. When that was is not known; but what
    /// [`is_over`](Self::is_over) wants to know is how often the counter of tickets may have gone round, and that was counted.
    #[cold]
    fn meet_lane(&mut self, before: u32) {
        self.only_lane = SEVERAL_LANES;
        self.makers.grow(self.objects.as_slice().len());
        let rounds = u32::try_from(self.ticketed / WINDOW).unwrap_or(u32::MAX);
        let era = self.era().wrapping_sub(rounds.saturating_add(1).min(self.era()));
        self.makers.as_mut_slice().iter_mut().take(self.slots).for_each(|maker| *maker = [before, era]);
    }

    fn is_made_by(&self, slot: u32, lane: u32) -> bool {
        self.only_lane == u64::from(lane)
            || self.makers.as_slice().get(slot as usize).is_some_and(|maker| maker[0] == lane)
    }

    #[inline(always)]
    fn object(&self, slot: u32) -> Object {
        self.objects.as_slice().get(slot as usize).copied().map_or_else(Object::default, Object::kept)
    }

    fn epoch(&self, slot: u32) -> u32 {
        self.object(slot).epoch
    }

    /// Whether a free with this ticket came behind the allocation.
    fn is_over(&self, slot: u32, ticket: u32) -> bool {
        // Of what is that old, nobody knows how often the counter went round; that its free is late is out of the question.
        let is_old = |maker: &Maker| self.era().wrapping_sub(maker[1]) > OLDEST_ERA;
        !is_before(ticket, self.epoch(slot)) || self.makers.as_slice().get(slot as usize).is_some_and(is_old)
    }

    /// An allocation at an address without a cell, or where something lives, or of which a ticket is known.
    #[inline]
    fn meet(&mut self, origin: Origin, address: u64, place: u32, slot: u32, sink: &mut impl Paired) {
        let era = self.era();
        let epoch = self.epoch(slot);
        let Some(cell) = self.table.find_or_make(address, place, self.events) else { return };
        if let Some(ticket) = self.tickets.named_mut(*cell) {
            if ticket.counts(era) && !is_before(ticket.number, epoch) {
                return self.die(origin.thread, slot, false, sink);
            }
            if ticket.rest == 0 {
                ticket.rest = slot + 1;
                return;
            }
        } else if *cell == 0 {
            *cell = slot + 1;
            return;
        }
        let mut is_dead = false;
        let mut survivors = self.living(address);
        survivors.retain(|&known| {
            let is_own = self.is_made_by(known, origin.lane);
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

    /// A free. True when places that were told before may be wrong now.
    #[inline(always)]
    pub(crate) fn free(&mut self, origin: Origin, block: RawFree, sink: &mut impl Paired) -> bool {
        let RawFree { address, place, ticket, is_move } = block;
        if let Some(number) = ticket {
            let generation = self.generation();
            self.free_with_ticket(origin, address, place, number, is_move, sink);
            return self.generation() != generation;
        }
        // What is no slot alone is too large for one: nobody, several blocks, a ticket.
        let cell = self.table.cells_mut().get_mut(place as usize).filter(|cell| cell.wrapping_sub(1) < SLOTS);
        let Some(cell) = cell else {
            self.free_elsewhere(origin, address, is_move, sink);
            return false;
        };
        let slot = *cell - 1;
        if self.only_lane != u64::from(origin.lane)
            && self.makers.as_slice().get(slot as usize).is_none_or(|maker| maker[0] != origin.lane)
        {
            return false;
        }
        *cell = 0;
        self.free_slots.push(slot);
        let object = self.object(slot);
        sink.free(origin.thread, slot, &object, is_move);
        false
    }

    /// A local free where more is known than one block.
    #[inline(never)]
    fn free_elsewhere(&mut self, origin: Origin, address: u64, is_move: bool, sink: &mut impl Paired) {
        let Some(cell) = self.table.find(address) else { return };
        let rest = self.tickets.rest(*cell);
        let slot = slot_of(rest);
        if rest & TIED != 0 {
            return self.free_tied(origin, address, is_move, sink);
        }
        let is_own = self.only_lane == u64::from(origin.lane)
            || self.makers.as_slice().get(slot as usize).is_some_and(|maker| maker[0] == origin.lane);
        if slot != NOBODY && is_own {
            self.tickets.set_rest(cell, 0);
            self.die(origin.thread, slot, is_move, sink);
        }
    }

    #[inline(never)]
    fn free_with_ticket(
        &mut self,
        origin: Origin,
        address: u64,
        place: u32,
        number: u32,
        is_move: bool,
        sink: &mut impl Paired,
    ) {
        self.ticketed += 1;
        let era = self.era();
        let Some(cell) = self.table.find_or_make(address, place, self.events) else { return };
        let rest = match self.tickets.named_mut(*cell) {
            Some(ticket) => {
                if !(ticket.counts(era) && is_before(number, ticket.number)) {
                    (ticket.number, ticket.era) = (number, era);
                }
                ticket.rest
            }
            None => {
                let rest = *cell;
                *cell = self.tickets.add(Ticket { address, number, era, rest });
                rest
            }
        };
        let cell = *cell;
        let slot = slot_of(rest);
        if slot == NOBODY {
            return;
        }
        if rest & TIED != 0 {
            return self.free_all(origin, address, number, is_move, sink);
        }
        if self.is_over(slot, number) {
            if let Some(ticket) = self.tickets.named_mut(cell) {
                ticket.rest = 0;
            }
            self.die(origin.thread, slot, is_move, sink);
        }
    }

    /// A local free, where another thread's block seems to live as well.
    #[cold]
    fn free_tied(&mut self, origin: Origin, address: u64, is_move: bool, sink: &mut impl Paired) {
        let mut living = self.living(address);
        let own = living.iter().position(|&slot| self.is_made_by(slot, origin.lane));
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
        let cell = self.table.find(address).map_or(0, |cell| *cell);
        let rest = self.tickets.rest(cell);
        let mut living =
            if rest & TIED != 0 { self.tied.remove(&address).unwrap_or_default() } else { Vec::new() };
        living.extend((slot_of(rest) != NOBODY).then_some(slot_of(rest)));
        living
    }

    fn set_living(&mut self, address: u64, mut living: Vec<u32>) {
        let Some(cell) = self.table.find(address) else { return };
        let newest = living.pop().map_or(0, |slot| slot + 1);
        let tied = if living.is_empty() { 0 } else { TIED };
        self.tickets.set_rest(cell, tied | newest);
        if !living.is_empty() {
            self.tied.insert(address, living);
        }
    }

    #[inline(never)]
    fn die(&mut self, thread: u32, slot: u32, is_move: bool, sink: &mut impl Paired) {
        self.free_slots.push(slot);
        let object = self.object(slot);
        sink.free(thread, slot, &object, is_move);
    }
}

impl Ticket {
    /// Whether it is not older than what counts.
    #[inline]
    fn counts(&self, era: u32) -> bool {
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

/// The slots of the blocks by their addresses: a tree of three levels, as processors have them for pages.
///
/// ```text
/// address:  | area: 22 bits | region: 16 bits | cell: 6 bits | 4 bits |
///
/// areas:    | number | ... by area: 0 when nothing was ever there, SPARSE
/// regions:  | leaf   | ... 65,536 of them for each area: 0 when nothing is there, SPARSE
/// leaves:   | cell   | ... 64 of them for each leaf
/// cell:     | 31: what follows is the number of a ticket | 30: further blocks seem to live here | 0..30: one more than the slot, or 0 |
/// ```
///
/// A region is 1,024 bytes of the program's memory, and has a cell for each 16 of them: allocators give no other addresses, but for
/// small blocks of some, which are in a map of their own. So what a program uses together is found together, nothing
/// has to be searched for, and leaves take a quarter of the memory that the blocks take. Of all that only the pages that are used are
/// ever there.
///
/// Nothing is taken out when a block dies: its address is nearly always used again soon. Leaves that have become useless are
/// given to other regions when there are many.
struct AddressTable {
    /// One array.
    areas: Table<[u32; AREAS]>,
    regions: Table<[u32; REGIONS]>,
    /// The first of them is none.
    used_areas: usize,
    leaves: Table<Leaf>,
    /// The first of them is none.
    used_leaves: usize,
    /// By leaf: whose it is, as an index into the regions; 0 when it is free.
    owners: Vec<usize>,
    /// Leaves of regions of which nothing need be known.
    free_leaves: Vec<u32>,
    /// When so many are used, the others are looked for.
    sweep_at: usize,
    generation: u32,
    /// Cells of addresses between those that have one, and of areas and regions that have none.
    between: HashMap<u64, u32, Seed>,
}

type Leaf = [u32; CELLS];

const NOBODY: u32 = u32::MAX;
const HAS_TICKET: u32 = 1 << 31;
const TIED: u32 = 1 << 30;
/// One less than the cells can name.
const SLOTS: u32 = TIED - 1;
const LEAST_SLOTS: usize = 1 << 12;
/// 64 KiB of each.
const PREPARED_SLOTS: usize = 1 << 12;
const PREPARED_LEAVES: usize = 1 << 8;
const CELL_SHIFT: u32 = 4;
const CELLS: usize = 1 << 6;
const REGION_SHIFT: u32 = 10;
const REGIONS: usize = 1 << 16;
const AREA_SHIFT: u32 = 26;
const AREAS: usize = 1 << (ADDRESS_BITS - AREA_SHIFT);
const _: () =
    assert!(1 << (REGION_SHIFT - CELL_SHIFT) == CELLS && 1 << (AREA_SHIFT - REGION_SHIFT) == REGIONS);
/// Nothing of this area or region is in the tables. It stays so: nothing has to be found twice.
const SPARSE: u32 = u32::MAX;
/// A place fits into 32 bits.
const MOST_LEAVES: u32 = NO_PLACE / CELLS as u32;
const LEAST_LEAVES: usize = 1 << 6;
const LEAST_SWEEP: usize = 1 << 10;
/// So many areas may be used from the beginning, and one more for each so many events: where addresses are everywhere, as in a damaged
/// file, tables would take a page for each.
const FIRST_AREAS: u64 = 1 << 8;
const EVENTS_OF_AN_AREA: u64 = 1 << 10;

/// The slot in a cell, [`NOBODY`] when nothing lives there.
#[inline(always)]
fn slot_of(cell: u32) -> u32 {
    (cell & SLOTS).wrapping_sub(1)
}

#[inline(always)]
fn area_of(address: u64) -> usize {
    (address >> AREA_SHIFT) as usize % AREAS
}

#[inline(always)]
fn region_in_area(address: u64) -> usize {
    (address >> REGION_SHIFT) as usize % REGIONS
}

impl AddressTable {
    fn new(seed: Seed) -> Self {
        Self {
            areas: Table::new(1),
            regions: Table::new(2),
            used_areas: 1,
            leaves: Table::new(LEAST_LEAVES),
            used_leaves: 1,
            owners: vec![0],
            free_leaves: Vec::new(),
            sweep_at: LEAST_SWEEP,
            generation: 0,
            between: HashMap::with_hasher(seed),
        }
    }

    #[inline(always)]
    fn cells(&self) -> &[u32] {
        self.leaves.as_slice().as_flattened()
    }

    #[inline(always)]
    fn cells_mut(&mut self) -> &mut [u32] {
        self.leaves.as_mut_slice().as_flattened_mut()
    }

    #[inline(always)]
    fn area(&self, address: u64) -> u32 {
        self.areas.as_slice().first().map_or(0, |areas| areas[area_of(address)])
    }

    /// Where the leaf of an address is written, for areas that have regions.
    #[inline(always)]
    fn region(&self, address: u64) -> usize {
        (self.area(address) as usize).wrapping_mul(REGIONS).wrapping_add(region_in_area(address))
    }

    #[inline(always)]
    fn prefetch_region(&self, address: u64) {
        prefetch(self.regions.as_slice().as_flattened(), self.region(address));
    }

    /// Which one of all cells an address has, [`NO_PLACE`] for none.
    #[inline(always)]
    fn place(&self, address: u64) -> u32 {
        let regions = self.regions.as_slice().get(self.area(address) as usize);
        let leaf = regions.map_or(0, |regions| regions[region_in_area(address)]);
        let is_between = !address.is_multiple_of(1 << CELL_SHIFT);
        if leaf.wrapping_sub(1) >= MOST_LEAVES - 1 || is_between {
            return NO_PLACE;
        }
        leaf * CELLS as u32 + (address >> CELL_SHIFT) as u32 % CELLS as u32
    }

    /// The cell of an address, if it has one.
    fn find(&mut self, address: u64) -> Option<&mut u32> {
        match self.place(address) {
            NO_PLACE => self.between.get_mut(&address),
            place => self.cells_mut().get_mut(place as usize),
        }
    }

    /// The cell of an address, made if there was none. There always is one to be had. `place` may be [`NO_PLACE`]; `events` is how many
    /// there were.
    #[inline]
    fn find_or_make(&mut self, address: u64, place: u32, events: u64) -> Option<&mut u32> {
        if place != NO_PLACE {
            return self.cells_mut().get_mut(place as usize);
        }
        self.make(address, events)
    }

    #[inline(never)]
    fn make(&mut self, address: u64, events: u64) -> Option<&mut u32> {
        let mut place = self.place(address);
        if place == NO_PLACE && address.is_multiple_of(1 << CELL_SHIFT) && self.make_leaf(address, events) {
            place = self.place(address);
        }
        match place {
            NO_PLACE => Some(self.between.entry(address).or_insert(0)),
            place => self.cells_mut().get_mut(place as usize),
        }
    }

    /// A leaf for the region of an address, which has none; false when it is to have none.
    fn make_leaf(&mut self, address: u64, events: u64) -> bool {
        let most_areas = FIRST_AREAS.saturating_add(events / EVENTS_OF_AN_AREA);
        let Some(areas) = self.areas.as_mut_slice().first_mut() else { return false };
        let area = &mut areas[area_of(address)];
        if *area == 0 && self.used_areas as u64 > most_areas {
            *area = SPARSE;
        } else if *area == 0 {
            *area = self.used_areas as u32;
            self.used_areas += 1;
            if self.used_areas > self.regions.as_slice().len() {
                self.regions.grow(self.used_areas * 2);
            }
        }
        let region = self.region(address);
        if self.regions.as_slice().as_flattened().get(region) != Some(&0) {
            return false;
        }
        let leaf = self.fresh_leaf(region);
        if let Some(place) = self.regions.as_mut_slice().as_flattened_mut().get_mut(region) {
            *place = leaf;
        }
        leaf != SPARSE
    }

    /// One of which all cells are 0, or [`SPARSE`] when there are too many.
    fn fresh_leaf(&mut self, owner: usize) -> u32 {
        if self.free_leaves.is_empty() && self.used_leaves >= self.sweep_at {
            self.sweep();
        }
        if let Some(leaf) = self.free_leaves.pop() {
            if let Some(place) = self.owners.get_mut(leaf as usize) {
                *place = owner;
            }
            return leaf;
        }
        if self.used_leaves >= MOST_LEAVES as usize {
            return SPARSE;
        }
        if self.used_leaves >= self.leaves.as_slice().len() {
            self.leaves.grow(self.used_leaves * 2);
        }
        if self.used_leaves.is_multiple_of(PREPARED_LEAVES) {
            self.leaves.prepare(self.used_leaves, PREPARED_LEAVES);
        }
        self.owners.push(owner);
        self.used_leaves += 1;
        (self.used_leaves - 1) as u32
    }

    /// Takes the leaves from regions of which nothing need be known.
    #[cold]
    fn sweep(&mut self) {
        let regions = self.regions.as_mut_slice().as_flattened_mut();
        for (leaf, (owner, cells)) in (0..).zip(self.owners.iter_mut().zip(self.leaves.as_slice())) {
            if *owner != 0 && cells.iter().all(|&cell| cell == 0) {
                if let Some(region) = regions.get_mut(*owner) {
                    *region = 0;
                }
                *owner = 0;
                self.free_leaves.push(leaf);
            }
        }
        self.generation = self.generation.wrapping_add(1);
        // The next time is as far away as what is used is long.
        self.sweep_at = LEAST_SWEEP.max((self.used_leaves - self.free_leaves.len()) * 2);
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
                let block = RawAlloc {
                    address,
                    place: NO_PLACE,
                    size_bytes: 1,
                    epoch,
                    stack: number,
                    is_move: false,
                };
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
                events.push((
                    thread,
                    Event::Free(RawFree { address, place: NO_PLACE, ticket, is_move: false }),
                ));
            }
        }
        let mut left: Vec<u32> = live.iter().map(|block| block.3).collect();
        left.sort_unstable();
        (events, left)
    }

    fn give(pairing: &mut Pairing, thread: u32, event: Event, live: &mut Live) {
        let origin = Origin { lane: thread, thread };
        pairing.count_events(1);
        match event {
            Event::Alloc(block) => {
                let place = pairing.resolve(block.address);
                pairing.alloc(origin, RawAlloc { place, ..block }, live);
            }
            Event::Free(block) => {
                let place = pairing.resolve(block.address);
                pairing.free(origin, RawFree { place, ..block }, live);
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
        Event::Alloc(RawAlloc { address, place: NO_PLACE, size_bytes: 1, epoch, stack, is_move: false })
    }

    fn free(address: u64, ticket: Option<u32>) -> Event {
        Event::Free(RawFree { address, place: NO_PLACE, ticket, is_move: false })
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
    fn addresses_all_over_memory_take_no_table_each() {
        let (mut pairing, mut live) = (Pairing::new(), Live::default());
        let addresses = (1..4000).map(|number| number << AREA_SHIFT);
        for (address, stack) in addresses.clone().zip(0..) {
            give(&mut pairing, 1, alloc(address, 5, stack), &mut live);
        }
        assert_eq!(live.0.len(), 3999);
        assert!(pairing.table.used_areas <= 262, "{}", pairing.table.used_areas);
        assert_eq!(pairing.table.between.len(), 4000 - pairing.table.used_areas);
        // In such an area, all blocks stay where the first one is.
        give(&mut pairing, 1, alloc(16 + (3999 << AREA_SHIFT), 5, 1), &mut live);
        addresses.for_each(|address| give(&mut pairing, 1, free(address, None), &mut live));
        assert_eq!((live.0.len(), pairing.unmatched_frees()), (1, 0));
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
        assert!(pairing.table.generation > 0);
        assert!(pairing.table.cells().iter().all(|&cell| cell == 0));
    }

    #[test]
    fn tickets_are_kept_while_the_table_grows_and_dropped_when_they_are_old() {
        let mut events: Vec<(u32, Event)> = (1..=5000).map(|n| (1, free(n * 16, Some(7)))).collect();
        events.extend((1..=5000).map(|n| (2, alloc(n * 16, 7, n as u32))));
        assert_eq!(left(&events), (vec![], 0));

        let (mut pairing, mut live) = (Pairing::new(), Live::default());
        give(&mut pairing, 1, free(16, Some(7)), &mut live);
        pairing.count_events(2 * WINDOW);
        give(&mut pairing, 2, alloc(16, 7, 1), &mut live);
        assert_eq!(live.0.len(), 1);
    }
}
