//! Which allocation a free belongs to: exact, although the order of events across threads is not.
//!
//! The rules are those of `cairn_format::recording`: a *local* free is of its own thread's latest allocation of the
//! address; any other one has a *ticket* and is of the allocation with the greatest *epoch* that is not greater than the
//! ticket and is not freed locally.
//!
//! Events arrive in nearly the right order, so nearly always the one block that lives at the address is the right one.
//! Where it is not, a later event shows it, and the two frees change places:
//!
//! ```text
//! true order      alloc a (thread 1)   free a (1, local)   alloc b (1)   free b (thread 2, ticket)
//! as it arrives   alloc a              free (ticket): of a, the only one there
//!                                      free (1, local): is of a, so the one with the ticket was not: it waits
//!                 alloc b              the waiting free is of b
//! ```
//!
//! Every allocation so gets exactly one free or stays; that a was freed by another thread a moment too early is all that
//! is left of the wrong order. To be able to change places, the frees that had tickets are remembered for a while.
//!
//! A free whose allocation never comes is of a block that is older than the recording; these are counted.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

use super::merge::{Origin, RawAlloc, RawFree};

/// A block of memory that lives, or lived last, under a slot's number.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Object {
    pub(super) address: u64,
    pub(super) size_bytes: u64,
    pub(super) stack: u32,
    epoch: u32,
    stream: u32,
    /// How many allocations there were before, less multiples of 2^32.
    pub(super) serial: u32,
}

/// Receives allocations, and frees with the slot of what they free.
pub(super) trait Paired {
    fn alloc(&mut self, thread: u32, slot: u32, object: &Object, is_move: bool);
    fn free(&mut self, thread: u32, slot: u32, object: &Object, is_move: bool);
}

/// A free with a ticket.
#[derive(Clone, Copy)]
struct Ticket {
    number: u32,
    thread: u32,
    is_move: bool,
}

/// So many living blocks of one address, and so many frees that wait for one, are told apart. There is more than one only
/// for as long as events of other threads are late.
const MOST_OF_AN_ADDRESS: usize = 256;
/// So many frees may wait for their allocation; older ones are given up as of blocks older than the recording.
const MOST_WAITING: usize = 1 << 20;

/// The blocks that live.
pub(super) struct Pairing {
    live: AddressTable,
    objects: Vec<Object>,
    free_slots: Vec<u32>,
    serial: u32,
    /// Living blocks whose address a later one has as well, oldest first.
    older: HashMap<u64, Vec<u32>, Seed>,
    waiting: HashMap<u64, Vec<Ticket>, Seed>,
    waiting_count: usize,
    /// Addresses whose frees began to wait since the last settling, and in the time before.
    suspects: [Vec<u64>; 2],
    next_settling: u64,
    taken: TakenRing,
    streams: u32,
    unmatched: u64,
}

impl Pairing {
    pub(super) fn new() -> Self {
        let seed = Seed::random();
        Self {
            live: AddressTable::new(seed),
            objects: Vec::new(),
            free_slots: Vec::new(),
            serial: 0,
            older: HashMap::with_hasher(seed),
            waiting: HashMap::with_hasher(seed),
            waiting_count: 0,
            suspects: [Vec::new(), Vec::new()],
            next_settling: SETTLING,
            taken: TakenRing::new(seed),
            streams: 0,
            unmatched: 0,
        }
    }

    /// Says how many streams there are, before the first event of a further one.
    pub(super) fn expect_streams(&mut self, streams: u32) {
        self.streams = self.streams.max(streams);
    }

    /// Frees of blocks that are older than the recording, or whose allocation was lost.
    pub(super) fn unmatched_frees(&self) -> u64 {
        self.unmatched + self.waiting_count as u64
    }

    pub(super) fn alloc(&mut self, origin: Origin, block: RawAlloc, sink: &mut impl Paired) {
        let object = Object {
            address: block.address,
            size_bytes: block.size_bytes,
            stack: block.stack,
            epoch: block.epoch,
            stream: origin.stream,
            serial: self.serial,
        };
        self.serial = self.serial.wrapping_add(1);
        if self.taken.count >= self.next_settling || self.suspects[0].len() > MOST_SUSPECTS {
            self.settle(sink);
        }
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
        sink.alloc(origin.thread, slot, &object, block.is_move);
        if self.waiting_count != 0
            && let Some(ticket) = self.take_waiting(block.address, block.epoch)
        {
            self.release_with_ticket(slot, object, ticket, sink);
            return;
        }
        if let Some(older) = self.live.insert(block.address, slot) {
            self.keep_older(block.address, older);
        }
    }

    #[inline]
    pub(super) fn free(&mut self, origin: Origin, block: RawFree, sink: &mut impl Paired) {
        let Some((place, slot, is_odd)) = self.live.find(block.address) else {
            return self.unusual_free(origin, block, sink);
        };
        let Some(&object) = self.objects.get(slot as usize) else { return };
        let is_right = match block.ticket {
            None => object.stream == origin.stream,
            Some(ticket) => is_not_after(object.epoch, ticket),
        };
        if !is_right || is_odd {
            return self.unusual_free(origin, block, sink);
        }
        self.live.remove(place);
        self.free_slots.push(slot);
        sink.free(origin.thread, slot, &object, block.is_move);
        if let Some(number) = block.ticket {
            self.remember(&object, Ticket { number, thread: origin.thread, is_move: block.is_move });
        }
    }

    /// A process of one thread needs no memory of tickets: its one stream has the true order.
    #[inline]
    fn remember(&mut self, object: &Object, ticket: Ticket) {
        if self.streams > 1 {
            self.taken.push(object, ticket);
        }
    }

    #[cold]
    fn unusual_free(&mut self, origin: Origin, block: RawFree, sink: &mut impl Paired) {
        let RawFree { address, ticket, is_move } = block;
        match ticket {
            Some(number) => {
                self.free_with_ticket(
                    address,
                    Ticket { number, thread: origin.thread, is_move },
                    SHORT,
                    sink,
                );
            }
            None => self.free_locally(origin, address, is_move, sink),
        }
    }

    fn free_locally(&mut self, origin: Origin, address: u64, is_move: bool, sink: &mut impl Paired) {
        let living =
            self.best_living(address, |object| object.stream == origin.stream, |object| object.serial);
        let depth = if living.is_some() { SHORT } else { DEEP };
        let taken = self.taken.find(
            address,
            depth,
            |taken| taken.stream == origin.stream,
            |a, b| is_not_after(a.serial, b.serial),
        );
        let taken = taken.filter(|&(_, taken)| {
            living.is_none_or(|(_, object)| {
                object.serial != taken.serial && is_not_after(object.serial, taken.serial)
            })
        });
        match (taken, living) {
            (Some((place, taken)), _) => {
                self.taken.forget(place);
                self.free_with_ticket(address, taken.ticket, SHORT, sink);
            }
            (None, Some((slot, object))) => {
                self.unlink(address, slot);
                self.free_slots.push(slot);
                sink.free(origin.thread, slot, &object, is_move);
            }
            (None, None) => self.unmatched += 1,
        }
    }

    /// Looks thoroughly for what waits although its allocation came: another free with a ticket has taken that. A short
    /// look, which is nearly always enough, does not find it when many frees of the address came between.
    #[cold]
    fn settle(&mut self, sink: &mut impl Paired) {
        self.next_settling = self.taken.count + SETTLING;
        let [new, old] = &mut self.suspects;
        let suspects = std::mem::replace(old, std::mem::take(new));
        for address in suspects.iter().copied().chain(self.suspects[1].clone()) {
            let waiting = self.waiting.remove(&address).unwrap_or_default();
            self.waiting_count -= waiting.len();
            for ticket in waiting {
                self.free_with_ticket(address, ticket, DEEP, sink);
            }
        }
        // What waits on was told again to be suspect, and has had its look.
        self.suspects[0].clear();
    }

    /// To be called when all events are there.
    pub(super) fn finish(&mut self, sink: &mut impl Paired) {
        self.settle(sink);
        self.settle(sink);
    }

    /// Finds the block of a free with a ticket, where need be by taking it from a free with a later one, which then looks for
    /// another. The tickets only grow, so this ends.
    fn free_with_ticket(&mut self, address: u64, ticket: Ticket, depth: u32, sink: &mut impl Paired) {
        let mut ticket = ticket;
        for _ in 0..MOST_OF_AN_ADDRESS {
            let number = ticket.number;
            let living =
                self.best_living(address, |object| is_not_after(object.epoch, number), |object| object.epoch);
            let taken = self.taken.find(
                address,
                depth,
                |taken| is_not_after(taken.epoch, number) && !is_not_after(taken.ticket.number, number),
                |a, b| is_not_after(a.epoch, b.epoch),
            );
            let taken = taken.filter(|(_, taken)| {
                living.is_none_or(|(_, object)| {
                    object.epoch != taken.epoch && is_not_after(object.epoch, taken.epoch)
                })
            });
            match (taken, living) {
                (Some((place, taken)), _) => {
                    self.taken.replace(place, ticket);
                    ticket = taken.ticket;
                }
                (None, Some((slot, object))) => {
                    self.unlink(address, slot);
                    self.release_with_ticket(slot, object, ticket, sink);
                    return;
                }
                (None, None) => return self.wait(address, ticket),
            }
        }
        self.unmatched += 1;
    }

    fn release_with_ticket(&mut self, slot: u32, object: Object, ticket: Ticket, sink: &mut impl Paired) {
        self.free_slots.push(slot);
        sink.free(ticket.thread, slot, &object, ticket.is_move);
        self.remember(&object, ticket);
    }

    /// Of the blocks that live at the address, the latest of those that could be meant.
    fn best_living(
        &self,
        address: u64,
        is_possible: impl Fn(&Object) -> bool,
        key: impl Fn(&Object) -> u32,
    ) -> Option<(u32, Object)> {
        let (_, newest, _) = self.live.find(address)?;
        let older = self.older.get(&address).map(Vec::as_slice).unwrap_or_default();
        let mut best: Option<(u32, Object)> = None;
        for &slot in older.iter().chain([&newest]) {
            let Some(object) = self.objects.get(slot as usize).filter(|object| is_possible(object)) else {
                continue;
            };
            if best.is_none_or(|(_, known)| is_not_after(key(&known), key(object))) {
                best = Some((slot, *object));
            }
        }
        best
    }

    fn keep_older(&mut self, address: u64, slot: u32) {
        let list = self.older.entry(address).or_default();
        if list.len() == MOST_OF_AN_ADDRESS {
            // Its free was lost. It stays alive for all that is known.
            list.remove(0);
        }
        list.push(slot);
    }

    fn unlink(&mut self, address: u64, slot: u32) {
        let Some((place, newest, _)) = self.live.find(address) else { return };
        let Some(list) = self.older.get_mut(&address) else {
            if newest == slot {
                self.live.remove(place);
            }
            return;
        };
        if newest == slot {
            match list.pop() {
                Some(before) => self.live.set(place, before),
                None => self.live.remove(place),
            }
        } else {
            list.retain(|&other| other != slot);
        }
        if list.is_empty() {
            self.older.remove(&address);
        }
    }

    #[cold]
    fn take_waiting(&mut self, address: u64, epoch: u32) -> Option<Ticket> {
        let list = self.waiting.get_mut(&address)?;
        let mut best: Option<(usize, u32)> = None;
        for (index, ticket) in list.iter().enumerate() {
            let is_possible = is_not_after(epoch, ticket.number);
            if is_possible && best.is_none_or(|(_, number)| is_not_after(ticket.number, number)) {
                best = Some((index, ticket.number));
            }
        }
        let ticket = list.swap_remove(best?.0);
        if list.is_empty() {
            self.waiting.remove(&address);
        }
        self.waiting_count -= 1;
        Some(ticket)
    }

    fn wait(&mut self, address: u64, ticket: Ticket) {
        if self.waiting_count == MOST_WAITING {
            self.unmatched += self.waiting_count as u64;
            self.waiting.clear();
            self.waiting_count = 0;
        }
        let list = self.waiting.entry(address).or_default();
        if list.len() == MOST_OF_AN_ADDRESS {
            list.remove(0);
            self.unmatched += 1;
            self.waiting_count -= 1;
        }
        list.push(ticket);
        self.waiting_count += 1;
        if self.streams > 1 {
            self.suspects[0].push(address);
        }
    }
}

/// Whether `a` comes before `b` or is equal, for counters that may have wrapped.
#[inline]
fn is_not_after(a: u32, b: u32) -> bool {
    b.wrapping_sub(a) < 1 << 31
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

/// From an address to the slot of the newest block there: open addressing, at most half full.
struct AddressTable {
    seed: Seed,
    entries: Vec<Entry>,
    shift: u32,
    used: usize,
}

#[derive(Clone, Copy)]
struct Entry {
    /// The address and [`ODD`]; [`EMPTY`] where there is none.
    key: u64,
    slot: u32,
}

const EMPTY: u64 = u64::MAX;
/// There is, or was for as long as the entry exists, more than one block at the address.
const ODD: u64 = 1 << 63;

impl AddressTable {
    fn new(seed: Seed) -> Self {
        Self { seed, entries: vec![Entry { key: EMPTY, slot: 0 }; 1 << 10], shift: 64 - 10, used: 0 }
    }

    #[inline]
    fn home(&self, address: u64) -> usize {
        (self.seed.hash(address) >> self.shift) as usize
    }

    #[inline]
    fn find(&self, address: u64) -> Option<(usize, u32, bool)> {
        let mask = self.entries.len() - 1;
        let mut place = self.home(address);
        loop {
            let entry = self.entries.get(place)?;
            if entry.key & !ODD == address {
                return Some((place, entry.slot, entry.key & ODD != 0));
            }
            if entry.key == EMPTY {
                return None;
            }
            place = (place + 1) & mask;
        }
    }

    /// Makes `slot` the newest of its address, and says which one was.
    #[inline]
    fn insert(&mut self, address: u64, slot: u32) -> Option<u32> {
        if self.used * 2 >= self.entries.len() {
            self.grow();
        }
        let mask = self.entries.len() - 1;
        let mut place = self.home(address);
        loop {
            let entry = self.entries.get_mut(place)?;
            if entry.key == EMPTY {
                *entry = Entry { key: address, slot };
                self.used += 1;
                return None;
            }
            if entry.key & !ODD == address {
                let before = entry.slot;
                *entry = Entry { key: address | ODD, slot };
                return Some(before);
            }
            place = (place + 1) & mask;
        }
    }

    fn set(&mut self, place: usize, slot: u32) {
        if let Some(entry) = self.entries.get_mut(place) {
            entry.slot = slot;
        }
    }

    /// Takes an entry out and moves those behind it up, so that no search ends at a hole.
    #[inline]
    fn remove(&mut self, place: usize) {
        let mask = self.entries.len() - 1;
        let mut hole = place;
        let mut next = (place + 1) & mask;
        while let Some(&entry) = self.entries.get(next) {
            if entry.key == EMPTY {
                break;
            }
            let home = self.home(entry.key & !ODD);
            // It may move when its home is not behind the hole.
            if next.wrapping_sub(home) & mask >= next.wrapping_sub(hole) & mask {
                if let Some(place) = self.entries.get_mut(hole) {
                    *place = entry;
                }
                hole = next;
            }
            next = (next + 1) & mask;
        }
        if let Some(entry) = self.entries.get_mut(hole) {
            entry.key = EMPTY;
        }
        self.used -= 1;
    }

    #[cold]
    fn grow(&mut self) {
        let larger = vec![Entry { key: EMPTY, slot: 0 }; self.entries.len() * 2];
        let entries = std::mem::replace(&mut self.entries, larger);
        self.shift -= 1;
        let mask = self.entries.len() - 1;
        for entry in entries.into_iter().filter(|entry| entry.key != EMPTY) {
            let mut place = self.home(entry.key & !ODD);
            while self.entries.get(place).is_some_and(|other| other.key != EMPTY) {
                place = (place + 1) & mask;
            }
            if let Some(free) = self.entries.get_mut(place) {
                *free = entry;
            }
        }
    }
}

/// The latest frees with tickets, and what they freed. Chains of equal hashes run from newer to older entries, and end
/// where those were overwritten.
struct TakenRing {
    seed: Seed,
    /// By hash: one more than the number of the newest entry.
    heads: Vec<u64>,
    entries: Vec<(Taken, u64)>,
    count: u64,
}

#[derive(Clone, Copy)]
struct Taken {
    address: u64,
    epoch: u32,
    serial: u32,
    /// [`NOBODY`] once it is forgotten.
    stream: u32,
    ticket: Ticket,
}

/// The entries of an address are nearly in order: behind so many that are not meant, hardly ever one is.
const SHORT: u32 = 8;
/// And for a thorough look, behind so many.
const DEEP: u32 = 1 << 12;
/// A thorough look is taken after so many entries, well before the ring has forgotten what came before.
const SETTLING: u64 = 1 << 14;
/// Or when so many frees began to wait.
const MOST_SUSPECTS: usize = 1 << 14;
const NOBODY: u32 = u32::MAX;
const RING_BITS: u32 = 16;

impl TakenRing {
    fn new(seed: Seed) -> Self {
        Self { seed, heads: Vec::new(), entries: Vec::new(), count: 0 }
    }

    fn head(&self, address: u64) -> usize {
        (self.seed.hash(address) >> (64 - RING_BITS)) as usize
    }

    fn push(&mut self, object: &Object, ticket: Ticket) {
        if self.heads.is_empty() {
            self.heads = vec![0; 1 << RING_BITS];
            self.entries.reserve_exact(1 << RING_BITS);
        }
        let taken = Taken {
            address: object.address,
            epoch: object.epoch,
            serial: object.serial,
            stream: object.stream,
            ticket,
        };
        let number = self.count;
        self.count += 1;
        let head = self.head(object.address);
        let Some(newest) = self.heads.get_mut(head) else { return };
        let entry = (taken, std::mem::replace(newest, number + 1));
        match self.entries.get_mut(number as usize & ((1 << RING_BITS) - 1)) {
            Some(place) => *place = entry,
            None => self.entries.push(entry),
        }
    }

    /// The last by `is_not_after` of the entries of the address that are possible.
    fn find(
        &self,
        address: u64,
        depth: u32,
        is_possible: impl Fn(&Taken) -> bool,
        is_not_after: impl Fn(&Taken, &Taken) -> bool,
    ) -> Option<(usize, Taken)> {
        let mut next = *self.heads.get(self.head(address))?;
        let mut best: Option<(usize, Taken)> = None;
        let mut settled = 0;
        for _ in 0..depth.saturating_mul(32) {
            // 0 is the end; others that are older than the ring is long were overwritten.
            let Some(number) = next.checked_sub(1).filter(|number| number + (1 << RING_BITS) >= self.count)
            else {
                break;
            };
            let place = number as usize & ((1 << RING_BITS) - 1);
            let (taken, older) = self.entries.get(place)?;
            let is_same = taken.address == address && taken.stream != NOBODY;
            let is_it = is_same && is_possible(taken);
            settled += u32::from(is_same && !is_it);
            if settled == depth {
                break;
            }
            if is_it && best.is_none_or(|(_, known)| !is_not_after(taken, &known)) {
                best = Some((place, *taken));
            }
            next = *older;
        }
        best
    }

    fn forget(&mut self, place: usize) {
        if let Some((taken, _)) = self.entries.get_mut(place) {
            taken.stream = NOBODY;
        }
    }

    fn replace(&mut self, place: usize, ticket: Ticket) {
        if let Some((taken, _)) = self.entries.get_mut(place) {
            taken.ticket = ticket;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Counts what lives, by the number that the model gave as stack.
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
        fn whatever_the_order_of_the_threads_as_many_blocks_live(
            steps in prop::collection::vec(any::<(u8, bool, u8)>(), 1..1500),
            threads in 1_u32..5, addresses in 1_usize..12, delays in prop::collection::vec(0_usize..200, 1..20),
        ) {
            let (events, left) = history(&steps, threads, addresses);
            let mut pairing = Pairing::new();
            pairing.expect_streams(threads);
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
            pairing.finish(&mut live);
            let mut found: Vec<u32> = live.0.into_values().collect();
            found.sort_unstable();
            prop_assert_eq!(found.len(), left.len());
            prop_assert_eq!(pairing.unmatched_frees(), 0);
        }
    }
}
