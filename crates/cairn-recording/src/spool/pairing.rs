//! Which blocks a free leaves alive: exact, although the order of events across threads is not.
//!
//! The rules are those of `cairn_format::recording`: a *local* free is of its own thread's latest
//! allocation of the address; any other one has a *ticket*, and the allocations of an address with
//! an *epoch* that is not greater than the ticket came before it. Two blocks never live at one
//! address at once. So each of these is a proof that a block is dead:
//!
//! - its thread freed it locally: behind it in the same lane, with no other allocation of the
//!   address between;
//! - a free of its address has a ticket that is not smaller than its epoch;
//! - its address was allocated with a greater epoch, or again by the same thread.
//!
//! A proof holds whenever it arrives, and every block that was freed has one of the first two. So
//! what lives when all events are there does not depend on the order in which they came, as long as
//! each thread's own order is, and nothing ever has to be looked up in the past but one number for
//! each address: the greatest ticket so far.
//!
//! ```text
//! true order      alloc a (thread 1)   free a (1, local)   alloc b (2)   free b (thread 3, ticket)
//! as it arrives   alloc a
//!                 free (3, ticket)     a is dead; the ticket stays
//!                 free (1, local)      nothing lives here: its block was found dead before
//!                 alloc b              its epoch is not greater than the ticket: dead at once
//! ```
//!
//! Every block so gets one free at most, perhaps a moment before its own, and then by the thread
//! whose event was the proof. Tickets are dropped when [`WINDOW`] events have passed: no allocation
//! is that late, because the recorder commits it before the program has the block, and lanes are
//! merged to about a millisecond.
//!
//! The frees in excess of the blocks that died are of blocks older than the recording.

use std::collections::HashMap;

use super::address_table::{AddressTable, Seed};
use super::merge::{Origin, RawAlloc, RawFree};
use crate::prefetch::{Table, prefetch};

/// A block of memory that lives, or lived last, under a slot's number.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Object {
    pub(crate) size_bytes: u64,
    pub(crate) stack: u32,
    epoch: u32,
}

/// An object in the table: four in a cache line.
type ObjectWords = [u32; 4];

impl Object {
    #[inline(always)]
    fn to_words(self) -> ObjectWords {
        [self.size_bytes as u32, (self.size_bytes >> 32) as u32, self.stack, self.epoch]
    }

    #[inline(always)]
    fn from_words([low, high, stack, epoch]: ObjectWords) -> Self {
        Self { size_bytes: u64::from(low) | u64::from(high) << 32, stack, epoch }
    }
}

/// The lane that made the block of a slot, and [`Pairing::era`] at that time.
///
/// It is read only where there are several lanes.
type Maker = [u32; 2];

/// Receives allocations, and frees with the slot of what they free.
pub(crate) trait Paired {
    fn alloc(&mut self, thread: u32, slot: u32, object: &Object, is_move: bool);
    fn free(&mut self, thread: u32, slot: u32, object: &Object, is_move: bool);
}

/// Minimum events for which a ticket counts; it counts for less than twice that number.
///
/// The fastest programs take a quarter of a second or more for them.
const WINDOW: u64 = 1 << 23;
/// Maximum blocks that seem to live at one address while local frees are late; 1024.
///
/// Only a damaged file has more.
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
    objects: Table<ObjectWords>,
    /// How many slots there ever were.
    slots: usize,
    /// By slot. Empty while only one lane has allocated.
    makers: Table<Maker>,
    free_slots: FreeSlots,
    /// Blocks that seem to live at an address beside the one in the table, oldest first.
    ///
    /// They have the same epoch and were made by other threads. All but one of them were freed
    /// locally, and the free has not arrived yet.
    tied: HashMap<u64, Vec<u32>, Seed>,
    tickets: Tickets,
    /// The only lane that has allocated so far, or one of the constants.
    only_lane: u64,
    events: u64,
    /// Events among them that were neither an allocation nor a free.
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

/// The greatest tickets that frees of addresses had, of the addresses whose cells name one of
/// these.
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
    /// Cell of the address without its ticket; [`UNUSED`] when this is none.
    rest: u32,
}

const UNUSED: u32 = u32::MAX;

impl Tickets {
    /// Returns the state of an address beside its tickets.
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

const NOBODY: u32 = u32::MAX;
const HAS_TICKET: u32 = 1 << 31;
const TIED: u32 = 1 << 30;
/// One less than the cells can name.
const SLOTS: u32 = TIED - 1;
const LEAST_SLOTS: usize = 1 << 12;
/// Slots whose memory is prepared at once; 4096, 64 KiB.
const PREPARED_SLOTS: usize = 1 << 12;

/// The slot in a cell, [`NOBODY`] when nothing lives there.
#[inline(always)]
fn slot_of(cell: u32) -> u32 {
    (cell & SLOTS).wrapping_sub(1)
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

    /// Frees of blocks that are older than the recording, or whose allocation was lost. Right when
    /// all events are there.
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

    /// First prefetch stage: loads the region of an address.
    #[inline(always)]
    pub(crate) fn prefetch_region(&self, address: u64) {
        self.table.prefetch_region(address);
    }

    /// False while what leads to the cells fits into the nearer caches.
    #[inline]
    pub(crate) fn has_many_regions(&self) -> bool {
        self.table.used_leaves >= MANY_LEAVES
    }

    /// False while all that is prefetched here fits into the nearer caches.
    #[inline]
    pub(crate) fn is_large(&self) -> bool {
        self.table.used_leaves >= LARGE_LEAVES || self.slots >= LARGE_OBJECTS
    }

    /// Second prefetch stage: resolves the place of an address, and loads its cell.
    ///
    /// The place is valid for one [`generation`](Self::generation).
    #[inline(always)]
    pub(crate) fn resolve(&self, address: u64) -> u32 {
        let place = self.table.place(address);
        prefetch(self.table.cells(), place as usize);
        place
    }

    /// Changes when resolved places may be wrong.
    #[inline(always)]
    pub(crate) fn generation(&self) -> u32 {
        self.table.generation
    }

    /// Third prefetch stage: loads the object of the block that lives at a place. Returns its slot;
    /// any if there is none.
    #[inline(always)]
    pub(crate) fn prefetch_object(&self, place: u32) -> u32 {
        // Where nothing lives, the first one: a line that is not there would cost the processor a
        // walk of its page tables.
        let slot = self.table.cells().get(place as usize).map_or(0, |&cell| (cell & SLOTS).saturating_sub(1));
        prefetch(self.objects.as_slice(), slot as usize);
        slot
    }

    /// Counts events that come now.
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

    /// Pairs an allocation. True when resolved places may be wrong now.
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
        if let Some(words) = self.objects.as_mut_slice().get_mut(slot as usize) {
            *words = object.to_words();
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

    /// Adds a slot and returns it.
    ///
    /// Returns `None` when there are more slots than cells can name, which would exceed any
    /// memory.
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

    /// From now on it has to be known who made what. All that there is was made by one lane. When
    /// that was is not known; but what [`is_over`](Self::is_over) wants to know is how often the
    /// counter of tickets may have gone round, and that was counted.
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
        self.objects.as_slice().get(slot as usize).copied().map_or_else(Object::default, Object::from_words)
    }

    fn epoch(&self, slot: u32) -> u32 {
        self.object(slot).epoch
    }

    /// Whether a free with this ticket came behind the allocation.
    fn is_over(&self, slot: u32, ticket: u32) -> bool {
        // For what is that old, it is unknown how often the counter went round; that its free is
        // late is out of the question.
        let is_old = |maker: &Maker| self.era().wrapping_sub(maker[1]) > OLDEST_ERA;
        !is_before(ticket, self.epoch(slot)) || self.makers.as_slice().get(slot as usize).is_some_and(is_old)
    }

    /// An allocation at an address without a cell, or where something lives, or with a known
    /// ticket.
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

    /// Pairs a free. True when resolved places may be wrong now.
    #[inline(always)]
    pub(crate) fn free(&mut self, origin: Origin, block: RawFree, sink: &mut impl Paired) -> bool {
        let RawFree { address, place, ticket, is_move } = block;
        if let Some(number) = ticket {
            let generation = self.generation();
            self.free_with_ticket(origin, address, place, number, is_move, sink);
            return self.generation() != generation;
        }
        // A value that is no slot by itself exceeds all slots: no block, several, a ticket.
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

    /// The blocks of an address, oldest first. They have to be given back by
    /// [`set_living`](Self::set_living).
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

/// Eras in which a counter may go half way round, if all events are frees with tickets of it.
const OLDEST_ERA: u32 = ((1 << 31) / WINDOW) as u32 - 1;

/// Whether `a` comes before `b`, for counters that may have wrapped.
#[inline]
fn is_before(a: u32, b: u32) -> bool {
    a != b && b.wrapping_sub(a) < 1 << 31
}

#[cfg(test)]
mod tests;
