//! Chunks of allocations and frees.
//!
//! They are small because the order of events stays, and nearly everything about an event follows
//! from it.
//!
//! - A *site* is a stack and a size. A program's next site is nearly always one of the few that
//!   followed the last one of that thread before: its rank among them is one small number.
//! - A block has a *slot*: the number that was given back last, or else the next one that was never
//!   given. So an allocation says nothing of where it goes, and reader and writer know it alike.
//! - A free names its block by how many allocations ago it was made where these are few. Else by
//!   its *jump*: how many allocations lie between the one that made it and the one that made what
//!   its thread freed before. Programs free what belongs together one after the other, and take a
//!   structure down the same way each time, wherever in memory it is. Or else, by its slot.
//! - All of that is one byte an event, the *operation*, in one column, in which loops of the
//!   program are repetitions that zstd finds.
//!
//! | operation | meaning | takes from columns |
//! |---|---|---|
//! | 0..=95 | free of the block that was made that many allocations before the last one | |
//! | 96 | free of a slot | slot |
//! | 97 | free of a slot of 2^24 or more, or of a block that was made long ago | wide |
//! | 98 | allocation at a site that is known | site |
//! | 99 | allocation at a new site, which gets the next number | stack, size |
//! | 100 | allocation at a site that gets no number | stack, size |
//! | 101 | no event: the next one is part of a reallocation | |
//! | 102 | free by its jump | jump |
//! | 104..=111 | allocation at the site of that rank, less 104 | |
//! | 128..=255 | free by its jump, which is that number less 192 | |
//!
//! After an allocation at a numbered site, that site goes to the front of the list of (at most
//! eight) successors of the thread's last numbered site, and becomes that.
//!
//! Long because writer and reader are in one file: each line of one mirrors a line of the other,
//! and both change together.
//!
//! Chunks of the older kind, [`ChunkKind::HEAP`], know no jumps, and have plain numbers in their
//! column of times.

use std::collections::{HashMap, VecDeque};

use cairn_format::recording::ChunkKind;

use super::columns::{Put, PutPlanes, Take, TakePlanes};
use super::freed_slots::{self, FreedSlots};
use super::times::{TimeReader, TimeWriter, Times};
use crate::HEAP_TIME_QUANTUM_NANOS;
use crate::model::{Alloc, At, Events, Free, ObjectId, StackId, ThreadId, Wanted};
use crate::prefetch::{Table, prefetch};
use crate::spool::deliver::Slots;

/// Limit of the distance, in allocations, by which the writer names a block; 32, exclusive.
///
/// The reader accepts up to three times that, which older writers used.
const NEAR: u32 = 32;
const FREE_SLOT: u8 = 96;
const FREE_WIDE_SLOT: u8 = 97;
const ALLOC_KNOWN: u8 = 98;
const ALLOC_NEW: u8 = 99;
const ALLOC_UNNUMBERED: u8 = 100;
const MOVE: u8 = 101;
const FREE_FAR: u8 = 102;
const FIRST_RANK: u8 = 104;
const LAST_RANK: u8 = FIRST_RANK + (RANKS - 1) as u8;
const RANKS: usize = 8;
/// The first operation that is a jump, and the one that would be a jump to the same block.
const FIRST_JUMP: u8 = 128;
const NO_JUMP: u8 = 192;

/// More sites get no number, so that programs whose every size is another one need no memory for
/// them. Few in tests, so that they exceed it.
const MOST_SITES: usize = if cfg!(test) { 1 << 11 } else { 1 << 20 };
/// 64 KiB of each: so much is asked for at once.
const SERIALS_AT_ONCE: usize = 1 << 14;
const SITES_AT_ONCE: usize = 1 << 10;
/// A quarter of a mebibyte of sites: fewer stay in the nearer caches.
const LARGE_SITES: usize = 1 << 12;
/// Latest allocations that the reader remembers; 4 MiB of them, which a cache may hold.
///
/// Only programs with at least as many allocations take it. Few in tests, so that they exceed it.
const RECENT: usize = if cfg!(test) { 1 << 9 } else { 1 << 20 };
/// Events that the reader decodes before it hands on the first of them; 64.
///
/// Meanwhile the memory of all their blocks is loaded. More would not fit into the nearest cache.
const BATCH: usize = 64;
/// Minimum slots for that; 131,072, because what is known of fewer blocks stays in the caches.
///
/// Few in tests, so that they exceed it.
const MANY_SLOTS: usize = if cfg!(test) { 1 << 5 } else { 1 << 17 };
/// Events by which the second loads for a free come before it; 8, a load from memory.
const AHEAD_FREES: usize = 8;
/// Slots for which there is memory at once; 16,384, which take 64 KiB in each of two tables.
const SLOTS_AT_ONCE: usize = 1 << 14;
/// Named slots that are read ahead, in frees; 16, because allocations lie between them.
const AHEAD_SLOTS: usize = 16;
const NONE: u32 = u32::MAX;

/// Events of a chunk, unless its columns get long.
const CHUNK_EVENTS: u64 = 1 << 18;
/// And so long are these at most: the limit of a chunk, less what one more event can add.
const LONG_COLUMNS: usize = (1 << 22) - (1 << 12);

/// The latest successors of a site, latest first.
type Successors = [u32; RANKS];

#[inline]
fn to_front(successors: &mut Successors, site: u32) {
    match rank(successors, site) {
        Some(rank) => move_to_front(successors, rank, site),
        None => push_front(successors, site),
    }
}

/// Where it is, without a branch for each place: which one it is cannot be foreseen.
#[inline]
fn rank(successors: &Successors, site: u32) -> Option<usize> {
    let places =
        (0..).zip(successors).fold(0_u32, |set, (place, &known)| set | u32::from(known == site) << place);
    (places != 0).then(|| places.trailing_zeros() as usize)
}

/// Moves the site at that rank to the front.
///
/// Chooses for every place, because the length of a loop up to the rank cannot be foreseen.
#[inline]
fn move_to_front(successors: &mut Successors, rank: usize, site: u32) {
    let [a, b, c, d, e, f, g, _] = *successors;
    let moved = [site, a, b, c, d, e, f, g];
    for (place, (successor, moved)) in (0..).zip(successors.iter_mut().zip(moved)) {
        *successor = if place <= rank as u32 { moved } else { *successor };
    }
}

#[inline]
fn push_front(successors: &mut Successors, site: u32) {
    let [a, b, c, d, e, f, g, _] = *successors;
    *successors = [site, a, b, c, d, e, f, g];
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Site {
    stack: u32,
    size_bytes: u64,
}

/// A site with its successors, in a cache line of its own.
///
/// A reader that meets a site reads its successors next.
///
/// | stack | size: low, high | five that are not used | successors |
type NumberedSite = [u32; 8 + RANKS];

const _: () = assert!(size_of::<NumberedSite>() == 64);

/// The numbered sites. The first one is none: its successors are those of no site.
struct Sites {
    list: Table<NumberedSite>,
    /// How many of them are used.
    used: usize,
}

impl Sites {
    fn new() -> Self {
        let mut sites = Self { list: Table::new(SITES_AT_ONCE), used: 0 };
        sites.add(Site { stack: 0, size_bytes: 0 });
        sites
    }

    /// How many there are.
    fn len(&self) -> usize {
        self.used - 1
    }

    fn add(&mut self, site: Site) -> u32 {
        if self.used.is_multiple_of(SITES_AT_ONCE) {
            self.list.grow(self.used + SITES_AT_ONCE);
            self.list.prepare(self.used, SITES_AT_ONCE);
        }
        if let Some(place) = self.list.as_mut_slice().get_mut(self.used) {
            let (low, high) = (site.size_bytes as u32, (site.size_bytes >> 32) as u32);
            *place = [site.stack, low, high, 0, 0, 0, 0, 0, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE];
        }
        self.used += 1;
        self.used.wrapping_sub(2) as u32
    }

    #[inline]
    fn site(&self, number: u32) -> Option<Site> {
        let known = self.list.as_slice().get(..self.used)?.get(number as usize + 1)?;
        let &[stack, low, high, ..] = known;
        Some(Site { stack, size_bytes: u64::from(low) | u64::from(high) << 32 })
    }

    /// The latest successor of the site before `last`, if it is this site.
    #[inline]
    fn first_successor(&self, last: usize, site: Site) -> Option<u32> {
        let number = *self.list.as_slice().get(last)?.last_chunk::<RANKS>()?.first()?;
        (self.site(number)? == site).then_some(number)
    }

    /// Those of the site before `last`, of none for 0.
    #[inline]
    fn successors_mut(&mut self, last: usize) -> Option<&mut Successors> {
        self.list.as_mut_slice().get_mut(..self.used)?.get_mut(last)?.last_chunk_mut()
    }
}

/// Each thread's last numbered site, as an index into the successors: one more than its number, or
/// 0.
#[derive(Default)]
struct LastSites {
    last: Vec<u32>,
    /// The number of the allocation that made what each thread freed last; 0 before its first free.
    /// The current thread's is in `current_freed`.
    freed: Vec<u32>,
    current_freed: u32,
    threads: HashMap<u32, usize>,
    /// Places of the threads with small numbers, which are nearly all threads.
    ///
    /// [`usize::MAX`] for those not seen yet.
    small: Vec<usize>,
    current: usize,
}

const SMALL_THREADS: u32 = 1 << 12;

impl LastSites {
    fn switch(&mut self, thread: u32) {
        if let Some(freed) = self.freed.get_mut(self.current) {
            *freed = self.current_freed;
        }
        match self.small.get(thread as usize) {
            Some(&place) if place != usize::MAX => self.current = place,
            _ => self.switch_to_new(thread),
        }
        self.current_freed = self.freed.get(self.current).copied().unwrap_or(0);
    }

    fn switch_to_new(&mut self, thread: u32) {
        self.current = *self.threads.entry(thread).or_insert_with(|| {
            self.last.push(0);
            self.freed.push(0);
            self.last.len() - 1
        });
        if thread < SMALL_THREADS {
            let length = self.small.len().max(thread as usize + 1);
            self.small.resize(length, usize::MAX);
            if let Some(place) = self.small.get_mut(thread as usize) {
                *place = self.current;
            }
        }
    }

    #[inline]
    fn last(&self) -> usize {
        self.last.get(self.current).map_or(0, |&last| last as usize)
    }

    /// Notes the block that the thread frees, by the number of its allocation.
    ///
    /// Returns the jump from the one before.
    #[inline]
    fn jump_to(&mut self, serial: u32) -> i32 {
        serial.wrapping_sub(std::mem::replace(&mut self.current_freed, serial)) as i32
    }

    /// The number of the allocation that made the block which is so far from the thread's last one.
    #[inline]
    fn after_jump(&self, jump: i32) -> u32 {
        self.current_freed.wrapping_add_signed(jump)
    }

    #[inline]
    fn set(&mut self, site: u32) {
        if let Some(last) = self.last.get_mut(self.current) {
            // The number comes from a file, and a site that is not there has no successors: 0 says
            // so.
            *last = site.wrapping_add(1);
        }
    }
}

/// Turns events into chunks.
pub(crate) struct HeapEncoder {
    sites: Sites,
    numbers: SiteNumbers,
    last: LastSites,
    /// By slot: how many allocations there were before the one that has it.
    serials: Table<[u32; 1]>,
    serial: u32,
    position: u64,
    columns: Columns,
}

/// The chunk that is being filled.
///
/// Runs and steps say where they began, so that an event has one number to count.
struct Columns {
    /// The position of the first event.
    begin: u64,
    first_quantum: u64,
    run_thread: u32,
    run_begin: u64,
    runs: Vec<u8>,
    quantum: u64,
    /// The first time that is not in the quantum; 0 when there is no event yet.
    quantum_end_nanos: u64,
    step_quanta: u64,
    step_begin: u64,
    times: TimeWriter,
    operations: Vec<u8>,
    known: PutPlanes,
    /// Slots of the frees that either could name, until it is known which of the two takes fewer
    /// bytes.
    slots: PutPlanes,
    jumps: PutPlanes,
    repeats: Repeats,
    wide: Vec<u8>,
    last_wide: u32,
    stacks: Vec<u8>,
    last_stack: u32,
    sizes: Vec<u8>,
}

/// Facts about a chunk beside its bytes.
pub(crate) struct Filled {
    pub(crate) events: u32,
    pub(crate) first_nanos: u64,
}

impl HeapEncoder {
    pub(crate) fn new() -> Self {
        Self {
            sites: Sites::new(),
            numbers: SiteNumbers::new(),
            last: LastSites::default(),
            serials: Table::new(SERIALS_AT_ONCE),
            serial: 0,
            position: 0,
            columns: Columns::new(),
        }
    }

    /// How many events there were.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    #[inline(always)]
    pub(crate) fn is_full(&self) -> bool {
        // These events add less than the limit leaves free.
        self.position.is_multiple_of(64) && self.has_long_columns()
    }

    #[inline(never)]
    fn has_long_columns(&self) -> bool {
        let Columns { begin, runs, times, operations, known, slots, jumps, wide, stacks, sizes, .. } =
            &self.columns;
        let plain = [runs, operations, wide, stacks, sizes];
        let planes = [known, slots, jumps];
        self.position - begin >= CHUNK_EVENTS
            || times.len()
                + plain.iter().map(|column| column.len()).sum::<usize>()
                + planes.iter().map(|column| column.len()).sum::<usize>()
                >= LONG_COLUMNS
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.position == self.columns.begin
    }

    #[inline(always)]
    fn event(&mut self, at: At, is_move: bool) {
        if at.nanos >= self.columns.quantum_end_nanos || at.thread.0 != self.columns.run_thread {
            self.turn(at);
        }
        self.position += 1;
        if is_move {
            self.columns.operations.push(MOVE);
        }
    }

    /// The first event of a chunk, of another quantum, or of another thread.
    #[inline(never)]
    fn turn(&mut self, at: At) {
        let columns = &mut self.columns;
        if self.position == columns.begin {
            columns.set_quantum(at.nanos);
            columns.first_quantum = columns.quantum;
            columns.run_thread = at.thread.0;
            self.last.switch(at.thread.0);
        }
        if at.nanos >= columns.quantum_end_nanos {
            columns.end_step(self.position);
            let before = columns.quantum;
            columns.set_quantum(at.nanos);
            columns.step_quanta = columns.quantum.saturating_sub(before);
        }
        if at.thread.0 != columns.run_thread {
            columns.end_run(self.position);
            columns.run_thread = at.thread.0;
            self.last.switch(at.thread.0);
        }
    }

    #[inline(always)]
    pub(crate) fn alloc(&mut self, event: &Alloc) {
        self.event(event.at, event.is_move);
        let slot = event.object.index();
        if let Some(place) = self.serials.as_mut_slice().get_mut(slot) {
            *place = [self.serial];
        } else {
            self.meet_slot(slot);
        }
        self.serial = self.serial.wrapping_add(1);

        let site = Site { stack: event.stack.0, size_bytes: event.size_bytes };
        let last = self.last.last();
        // Mostly what followed the last time, and then nothing has to be looked up. Many sites are
        // in no cache, and only the site that comes was prefetched, not the one that is expected.
        if !self.has_many_sites()
            && let Some(number) = self.sites.first_successor(last, site)
        {
            self.columns.operations.push(FIRST_RANK);
            return self.last.set(number);
        }
        match self.numbers.find(&self.sites, site) {
            Some(number) => {
                let Some(successors) = self.sites.successors_mut(last) else { return };
                match rank(successors, number) {
                    Some(rank) => {
                        self.columns.operations.push(FIRST_RANK + rank as u8);
                        move_to_front(successors, rank, number);
                    }
                    None => {
                        self.columns.operations.push(ALLOC_KNOWN);
                        self.columns.known.put(number);
                        push_front(successors, number);
                    }
                }
                self.last.set(number);
            }
            None => self.alloc_new(last, site),
        }
    }

    #[cold]
    fn meet_slot(&mut self, slot: usize) {
        let before = self.serials.as_slice().len();
        self.serials.grow((slot + 1).next_multiple_of(SERIALS_AT_ONCE));
        self.serials.prepare(before, SERIALS_AT_ONCE);
        if let Some(place) = self.serials.as_mut_slice().get_mut(slot) {
            *place = [self.serial];
        }
    }

    /// At a site that has no number yet.
    #[inline(never)]
    fn alloc_new(&mut self, last: usize, site: Site) {
        self.columns.put_site(site);
        if self.sites.len() >= MOST_SITES {
            self.columns.operations.push(ALLOC_UNNUMBERED);
            return;
        }
        self.columns.operations.push(ALLOC_NEW);
        let number = self.sites.add(site);
        self.numbers.insert(&self.sites, number);
        if let Some(successors) = self.sites.successors_mut(last) {
            push_front(successors, number);
        }
        self.last.set(number);
    }

    /// False while all sites fit into the nearer caches.
    #[inline(always)]
    pub(crate) fn has_many_sites(&self) -> bool {
        self.sites.len() >= LARGE_SITES
    }

    /// Loads the hash slot of an allocation's site.
    #[inline(always)]
    pub(crate) fn prefetch_site(&self, stack: StackId, size_bytes: u64) {
        if self.has_many_sites() {
            prefetch(&self.numbers.slots, self.numbers.home(Site { stack: stack.0, size_bytes }));
        }
    }

    /// Loads the site of an allocation, or what a free of the block in this slot needs.
    #[inline(always)]
    pub(crate) fn prefetch_object(&self, slot: usize, stack: StackId, size_bytes: u64) {
        if self.has_many_sites() {
            let home = self.numbers.home(Site { stack: stack.0, size_bytes });
            let number = self.numbers.slots.get(home).copied().unwrap_or(NONE);
            // Where no site is, as for frees, the first one: an address that is not mapped would
            // cost the processor a walk of its page tables each time.
            prefetch(self.sites.list.as_slice(), number.wrapping_add(1) as usize);
        }
        prefetch(self.serials.as_slice(), slot);
    }

    #[inline(always)]
    pub(crate) fn free(&mut self, event: &Free) {
        self.event(event.at, event.is_move);
        let slot = event.object.0;
        let serial = self.serials.as_slice().get(slot as usize).map_or(0, |serial| serial[0]);
        let distance = self.serial.wrapping_sub(serial).wrapping_sub(1);
        let jump = self.last.jump_to(serial);
        let columns = &mut self.columns;
        if distance < NEAR {
            columns.operations.push(distance as u8);
        } else if let Some(operation) = small_jump(jump).filter(|_| distance < RECENT as u32) {
            columns.operations.push(operation);
        } else if distance < RECENT as u32 && slot < PutPlanes::LIMIT && folded(jump) < PutPlanes::LIMIT {
            columns.operations.push(FREE_SLOT);
            columns.slots.put(slot);
            columns.jumps.put(folded(jump));
        } else {
            columns.operations.push(FREE_WIDE_SLOT);
            columns.wide.put_signed(i64::from(slot) - i64::from(columns.last_wide));
            columns.last_wide = slot;
        }
    }

    /// Appends the chunk's bytes, and begins the next one.
    pub(crate) fn flush(&mut self, into: &mut Vec<u8>) -> Filled {
        let columns = &mut self.columns;
        columns.end_step(self.position);
        columns.end_run(self.position);
        let filled = Filled {
            events: (self.position - columns.begin) as u32,
            first_nanos: columns.first_quantum * HEAP_TIME_QUANTUM_NANOS,
        };
        into.put_number(columns.begin);
        into.put_number(columns.first_quantum);
        columns.choose_names();
        for column in [&mut columns.runs, &mut columns.times.end(), &mut columns.operations] {
            into.put_bytes(column);
            column.clear();
        }
        columns.known.flush(into);
        columns.slots.flush(into);
        columns.jumps.flush(into);
        for column in [&mut columns.wide, &mut columns.stacks, &mut columns.sizes] {
            into.put_bytes(column);
            column.clear();
        }
        columns.begin = self.position;
        columns.quantum_end_nanos = 0;
        (columns.last_stack, columns.last_wide) = (0, 0);
        filled
    }
}

impl Columns {
    fn new() -> Self {
        Self {
            begin: 0,
            first_quantum: 0,
            run_thread: 0,
            run_begin: 0,
            runs: Vec::new(),
            quantum: 0,
            quantum_end_nanos: 0,
            step_quanta: 0,
            step_begin: 0,
            times: TimeWriter::new(),
            operations: Vec::new(),
            known: PutPlanes::default(),
            slots: PutPlanes::default(),
            jumps: PutPlanes::default(),
            repeats: Repeats::new(),
            wide: Vec::new(),
            last_wide: 0,
            stacks: Vec::new(),
            last_stack: 0,
            sizes: Vec::new(),
        }
    }

    fn set_quantum(&mut self, nanos: u64) {
        self.quantum = nanos / HEAP_TIME_QUANTUM_NANOS;
        self.quantum_end_nanos = (self.quantum + 1).saturating_mul(HEAP_TIME_QUANTUM_NANOS);
    }

    fn end_run(&mut self, position: u64) {
        if position > self.run_begin {
            self.runs.put_number(self.run_thread.into());
            self.runs.put_number(position - self.run_begin);
            self.run_begin = position;
        }
    }

    fn end_step(&mut self, position: u64) {
        if position > self.step_begin {
            self.times.put(self.step_quanta, position - self.step_begin);
            self.step_begin = position;
        }
        self.step_quanta = 0;
    }

    /// Chooses between slots and jumps the names that take fewer bytes.
    ///
    /// A program that frees at random from a table of blocks has one slot for each, and no order
    /// in time. Repeated work shows in jumps alone.
    fn choose_names(&mut self) {
        let new = 1.0 - self.repeats.part(self.jumps.numbers());
        if self.slots.estimated_bits() < self.jumps.estimated_bits() * new {
            self.jumps.clear();
            return;
        }
        self.slots.clear();
        for operation in &mut self.operations {
            *operation = if *operation == FREE_SLOT { FREE_FAR } else { *operation };
        }
    }

    fn put_site(&mut self, site: Site) {
        self.stacks.put_signed(i64::from(site.stack) - i64::from(self.last_stack));
        self.last_stack = site.stack;
        self.sizes.put_number(site.size_bytes);
    }
}

/// Estimates the part of some numbers that repeats earlier ones.
///
/// It samples about every eighth pair of neighbours, those that hash alike, and stores some
/// thousand of the latest.
struct Repeats {
    pairs: Vec<u64>,
}

impl Repeats {
    const BITS: u32 = 12;

    fn new() -> Self {
        Self { pairs: vec![0; 1 << Self::BITS] }
    }

    fn part(&mut self, numbers: &[u32]) -> f64 {
        let (mut all, mut known) = (0_u32, 0_u32);
        for pair in numbers.windows(2) {
            let &[first, second] = pair else { continue };
            let pair = u64::from(first) << 32 | u64::from(second) | 1 << 63;
            let hash = pair.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            if hash >> (64 - 3) != 0 {
                continue;
            }
            let place = (hash >> (64 - 3 - Self::BITS)) as usize;
            let Some(before) = self.pairs.get_mut(place) else { continue };
            all += 1;
            known += u32::from(std::mem::replace(before, pair) == pair);
        }
        f64::from(known) / f64::from(all.max(1))
    }
}

/// The operation of a jump, if it is small.
#[inline]
fn small_jump(jump: i32) -> Option<u8> {
    let operation = jump.checked_add(NO_JUMP.into())?;
    u8::try_from(operation).ok().filter(|&operation| operation >= FIRST_JUMP)
}

/// A signed number as one in which small ones are small.
#[inline]
fn folded(jump: i32) -> u32 {
    (jump << 1 ^ jump >> 31) as u32
}

#[inline]
fn unfolded(number: u32) -> i32 {
    (number >> 1) as i32 ^ -((number & 1) as i32)
}

/// Maps a site to its number: open addressing, at most a quarter full.
///
/// The first place is nearly always the right one. Only the writer needs it.
struct SiteNumbers {
    slots: Vec<u32>,
    /// From a hash to a place: how many of its bits are too many.
    shift: u32,
    used: usize,
}

impl SiteNumbers {
    fn new() -> Self {
        Self { slots: vec![NONE; 1 << 10], shift: 64 - 10, used: 0 }
    }

    #[inline(always)]
    fn home(&self, site: Site) -> usize {
        const MIX: u64 = 0x9e37_79b9_7f4a_7c15;
        // The upper bits of a product depend on all of the lower ones.
        let mixed = (u64::from(site.stack) ^ site.size_bytes.rotate_left(32)).wrapping_mul(MIX);
        (mixed >> self.shift) as usize
    }

    #[inline]
    fn find(&self, sites: &Sites, site: Site) -> Option<u32> {
        let mut place = self.home(site);
        loop {
            let number = *self.slots.get(place)?;
            if sites.site(number)? == site {
                return Some(number);
            }
            place = (place + 1) & (self.slots.len() - 1);
        }
    }

    fn insert(&mut self, sites: &Sites, number: u32) {
        if self.used * 4 >= self.slots.len() {
            let doubled = vec![NONE; self.slots.len() * 2];
            let before = std::mem::replace(&mut self.slots, doubled);
            self.shift -= 1;
            before.into_iter().filter(|&known| known != NONE).for_each(|known| self.place(sites, known));
        }
        self.place(sites, number);
        self.used += 1;
    }

    fn place(&mut self, sites: &Sites, number: u32) {
        let Some(site) = sites.site(number) else { return };
        let mut place = self.home(site);
        while self.slots.get(place).is_some_and(|&other| other != NONE) {
            place = (place + 1) & (self.slots.len() - 1);
        }
        if let Some(free) = self.slots.get_mut(place) {
            *free = number;
        }
    }
}

/// Reads chunks of allocations in their order.
pub(crate) struct HeapDecoder {
    sites: Sites,
    last: LastSites,
    /// The numbered sites again, eight to a cache line: only their successors are looked up there.
    short_sites: Vec<ShortSite>,
    blocks: BlockTable,
    /// By slot, the sites of those that have no number.
    unnumbered: HashMap<u32, Site>,
    /// Those of the allocations that were not handed on yet.
    pending_sites: VecDeque<Site>,
    alive: Set,
    free_slots: FreedSlots,
    /// The slots of the latest allocations, by their number modulo [`RECENT`].
    recent: Vec<u32>,
    times: Times,
    serial: u32,
    position: u64,
}

/// The live blocks, by slot, in eight bytes each.
///
/// There is one for each live block, and the first touch of memory costs more than all other work
/// on it. The two parts are apart because the reader needs them at different times.
struct BlockTable {
    /// The number of the site of its block; [`NONE`] where that is in `unnumbered`.
    ///
    /// For a free slot, a link of [`FreedSlots`].
    site_numbers: Table<[u32; 1]>,
    /// How many allocations were made before that of its block, modulo 2^32.
    serials: Table<[u32; 1]>,
    /// How many slots there are.
    used: usize,
}

impl BlockTable {
    fn new() -> Self {
        Self { site_numbers: Table::new(SLOTS_AT_ONCE), serials: Table::new(SLOTS_AT_ONCE), used: 0 }
    }

    /// The numbers of sites.
    #[inline(always)]
    fn cells(&self) -> &[[u32; 1]] {
        self.site_numbers.as_slice()
    }

    /// Adds a slot, and returns it.
    #[inline(always)]
    fn add(&mut self) -> u32 {
        if self.used.is_multiple_of(SLOTS_AT_ONCE) {
            self.make_room();
        }
        self.used += 1;
        (self.used - 1) as u32
    }

    #[cold]
    fn make_room(&mut self) {
        for table in [&mut self.site_numbers, &mut self.serials] {
            if self.used >= table.as_slice().len() {
                table.grow(self.used * 2);
            }
            table.prepare(self.used, SLOTS_AT_ONCE);
        }
    }

    /// The serial of a slot that there is.
    #[inline(always)]
    fn serial(&self, slot: u32) -> Option<u32> {
        let known = self.serials.as_slice().get(..self.used)?;
        known.get(slot as usize).map(|serial| serial[0])
    }

    #[inline(always)]
    fn set_serial(&mut self, slot: u32, serial: u32) {
        if let Some(place) = self.serials.as_mut_slice().get_mut(slot as usize) {
            *place = [serial];
        }
    }

    #[inline(always)]
    fn site_number(&self, slot: u32) -> u32 {
        self.cells().get(slot as usize).map_or(NONE, |number| number[0])
    }
}

/// A site in eight bytes: its stack, and its size; [`NONE`] where that is longer.
#[derive(Clone, Copy)]
struct ShortSite {
    stack: u32,
    size_bytes: u32,
}

impl ShortSite {
    fn new(site: Site) -> Self {
        Self { stack: site.stack, size_bytes: u32::try_from(site.size_bytes).unwrap_or(NONE) }
    }
}

/// An event that was decoded and not handed on yet.
#[derive(Clone, Copy)]
struct Pending {
    at: At,
    slot: u32,
    /// The number of an allocation's site, or [`NONE`] where that is in `pending_sites`.
    number: u32,
    is_free: bool,
    is_move: bool,
}

impl Pending {
    const NOTHING: Self =
        Self { at: At { nanos: 0, thread: ThreadId(0) }, slot: 0, number: 0, is_free: false, is_move: false };
}

/// Events whose blocks are being loaded.
struct Batch {
    events: [Pending; BATCH],
    count: usize,
}

// The cells of decoded frees must still describe their blocks.
const _: () = assert!(BATCH < freed_slots::HOT);
const _: () = assert!(MOST_SITES < NONE as usize);

/// A set of small numbers.
#[derive(Default)]
struct Set {
    words: Vec<u64>,
}

impl Set {
    #[inline]
    fn insert(&mut self, number: u32) {
        let word = number as usize / 64;
        if word >= self.words.len() {
            self.words.resize(word + 1, 0);
        }
        if let Some(word) = self.words.get_mut(word) {
            *word |= 1 << (number % 64);
        }
    }

    /// False when it was not there.
    #[inline]
    fn remove(&mut self, number: u32) -> bool {
        let Some(word) = self.words.get_mut(number as usize / 64) else { return false };
        let bit = 1 << (number % 64);
        let was_there = *word & bit != 0;
        *word &= !bit;
        was_there
    }
}

enum TimeColumn<'a> {
    /// Pairs of numbers.
    Plain(Take<'a>),
    Coded(TimeReader<'a>),
}

impl<'a> TimeColumn<'a> {
    fn new(is_older: bool, column: &'a [u8]) -> Self {
        if is_older { Self::Plain(Take::new(column)) } else { Self::Coded(TimeReader::new(column)) }
    }

    /// How many quanta passed since the last time, and how many events there are.
    fn take(&mut self, times: &mut Times) -> Option<(u64, u64)> {
        match self {
            Self::Plain(column) => Some((column.number()?, column.number()?)),
            Self::Coded(reader) => times.take(reader),
        }
    }
}

/// Slots as plain numbers, read ahead.
struct WideColumn<'a> {
    column: Take<'a>,
    /// The number before; `None` when numbers are stored as they are.
    last: Option<u32>,
    /// `None` where the numbers end.
    ahead: [Option<u32>; AHEAD_SLOTS],
    /// How many were taken; the next one is at this place of those ahead, modulo their number.
    taken: usize,
}

impl<'a> WideColumn<'a> {
    fn new(is_older: bool, column: &'a [u8]) -> Self {
        let last = if is_older { None } else { Some(0) };
        let mut wide = Self { column: Take::new(column), last, ahead: [None; AHEAD_SLOTS], taken: 0 };
        for place in 0..AHEAD_SLOTS {
            wide.ahead[place] = wide.read();
        }
        wide
    }

    fn read(&mut self) -> Option<u32> {
        let Some(last) = &mut self.last else { return self.column.number32() };
        *last = u32::try_from(i64::from(*last).checked_add(self.column.signed()?)?).ok()?;
        Some(*last)
    }

    /// The next slot, and the one that was read ahead.
    fn take(&mut self) -> Option<(u32, Option<u32>)> {
        let later = self.read();
        let next = std::mem::replace(&mut self.ahead[self.taken % AHEAD_SLOTS], later);
        self.taken += 1;
        Some((next?, later))
    }
}

/// A place in a chunk.
pub(crate) struct HeapCursor<'a> {
    events: u64,
    quantum: u64,
    runs: Take<'a>,
    run_thread: u32,
    run_events: u64,
    times: TimeColumn<'a>,
    step_events: u64,
    operations: Take<'a>,
    known: TakePlanes<'a>,
    slots: TakePlanes<'a>,
    jumps: TakePlanes<'a>,
    wide: WideColumn<'a>,
    stacks: Take<'a>,
    last_stack: u32,
    sizes: Take<'a>,
}

impl<'a> HeapCursor<'a> {
    /// The start of a chunk, and how many events there were before it.
    fn new(kind: ChunkKind, payload: &'a [u8], events: u32) -> Option<(u64, Self)> {
        let is_older = kind == ChunkKind::HEAP;
        let mut take = Take::new(payload);
        let position = take.number()?;
        let cursor = Self {
            events: events.into(),
            quantum: take.number().filter(|&quantum| quantum <= LAST_QUANTUM)?,
            runs: Take::new(take.column()?),
            run_thread: 0,
            run_events: 0,
            times: TimeColumn::new(is_older, take.column()?),
            step_events: 0,
            operations: Take::new(take.column()?),
            known: TakePlanes::new(&mut take)?,
            slots: TakePlanes::new(&mut take)?,
            jumps: if is_older { TakePlanes::default() } else { TakePlanes::new(&mut take)? },
            wide: WideColumn::new(is_older, take.column()?),
            stacks: Take::new(take.column()?),
            last_stack: 0,
            sizes: Take::new(take.column()?),
        };
        Some((position, cursor))
    }

    pub(crate) fn is_done(&self) -> bool {
        self.events == 0
    }

    /// The time of the next event, or of the last one.
    pub(crate) fn nanos(&self) -> u64 {
        self.quantum * HEAP_TIME_QUANTUM_NANOS
    }

    fn site(&mut self) -> Option<Site> {
        let stack = i64::from(self.last_stack).checked_add(self.stacks.signed()?)?;
        self.last_stack = u32::try_from(stack).ok()?;
        Some(Site { stack: self.last_stack, size_bytes: self.sizes.number()? })
    }
}

/// Behind it, nanoseconds would not fit their number: no recording lasts that long.
const LAST_QUANTUM: u64 = u64::MAX / HEAP_TIME_QUANTUM_NANOS;
/// The problem of a chunk that contradicts itself.
const BAD: &str = "its columns contradict each other";

impl HeapDecoder {
    pub(crate) fn new() -> Self {
        Self {
            sites: Sites::new(),
            last: LastSites::default(),
            short_sites: Vec::new(),
            blocks: BlockTable::new(),
            unnumbered: HashMap::new(),
            pending_sites: VecDeque::new(),
            alive: Set::default(),
            free_slots: FreedSlots::new(),
            recent: Vec::new(),
            times: Times::new(),
            serial: 0,
            position: 0,
        }
    }

    /// How many events there were so far.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// The numbers of blocks, for what follows elsewhere.
    pub(crate) fn into_slots(self) -> Slots {
        Slots { free: self.free_slots.into_list(self.blocks.cells()), next: self.blocks.used as u32 }
    }

    /// Begins a chunk of one of the two kinds, which has to be the next one.
    pub(crate) fn begin<'a>(
        &self,
        kind: ChunkKind,
        payload: &'a [u8],
        events: u32,
    ) -> Result<HeapCursor<'a>, &'static str> {
        let (position, cursor) = HeapCursor::new(kind, payload, events).ok_or(BAD)?;
        if position != self.position {
            return Err("a chunk of allocations before it is missing");
        }
        Ok(cursor)
    }

    /// Hands on the events in front of number `until` that are in this chunk and the wanted time.
    ///
    /// No event gets a time before `not_before_nanos`, the exact time of a mark that came before
    /// it.
    pub(crate) fn run(
        &mut self,
        cursor: &mut HeapCursor<'_>,
        until: u64,
        not_before_nanos: u64,
        wanted: &Wanted,
        events: &mut impl Events,
    ) -> Result<(), &'static str> {
        let mut batch = Batch { events: [Pending::NOTHING; BATCH], count: 0 };
        let result = self.run_through(cursor, until, not_before_nanos, wanted, events, &mut batch);
        self.hand_on(&mut batch, events);
        result
    }

    fn run_through(
        &mut self,
        cursor: &mut HeapCursor<'_>,
        until: u64,
        not_before_nanos: u64,
        wanted: &Wanted,
        events: &mut impl Events,
        batch: &mut Batch,
    ) -> Result<(), &'static str> {
        while !cursor.is_done() && self.position < until {
            if cursor.run_events == 0 {
                cursor.run_thread = cursor.runs.number32().ok_or(BAD)?;
                cursor.run_events = cursor.runs.number().ok_or(BAD)?;
                self.last.switch(cursor.run_thread);
            }
            if cursor.step_events == 0 {
                let (quanta, count) = cursor.times.take(&mut self.times).ok_or(BAD)?;
                let quantum = cursor.quantum.checked_add(quanta).filter(|&quantum| quantum <= LAST_QUANTUM);
                cursor.quantum = quantum.ok_or(BAD)?;
                cursor.step_events = count;
            }
            let nanos = cursor.nanos().max(not_before_nanos);
            if nanos >= wanted.until_nanos {
                return Ok(());
            }
            let at = At { nanos, thread: ThreadId(cursor.run_thread) };
            let count =
                cursor.run_events.min(cursor.step_events).min(cursor.events).min(until - self.position);
            if count == 0 {
                return Err(BAD);
            }
            if !wanted.has(nanos) {
                self.hand_on(batch, events);
                self.few(cursor, count, at, &mut Nobody).ok_or(BAD)?;
            } else if self.blocks.used < MANY_SLOTS {
                // A batch is begun only once there are many.
                self.few(cursor, count, at, events).ok_or(BAD)?;
            } else {
                self.many(cursor, count, at, events, batch).ok_or(BAD)?;
            }
            cursor.run_events -= count;
            cursor.step_events -= count;
            cursor.events -= count;
            self.position += count;
        }
        Ok(())
    }

    /// Reads events of blocks that are in the nearer caches.
    fn few(
        &mut self,
        cursor: &mut HeapCursor<'_>,
        count: u64,
        at: At,
        events: &mut impl Events,
    ) -> Option<()> {
        for _ in 0..count {
            let event = self.next(cursor, at)?;
            self.deliver(&event, events);
        }
        Some(())
    }

    /// Reads events, and hands them on once the memory of their blocks was asked for.
    fn many(
        &mut self,
        cursor: &mut HeapCursor<'_>,
        count: u64,
        at: At,
        events: &mut impl Events,
        batch: &mut Batch,
    ) -> Option<()> {
        for _ in 0..count {
            let event = self.next(cursor, at)?;
            prefetch(self.blocks.cells(), event.slot as usize);
            events.prefetch_object(ObjectId(event.slot), StackId(0), 0);
            if let Some(place) = batch.events.get_mut(batch.count) {
                *place = event;
            }
            batch.count += 1;
            if batch.count == BATCH {
                self.hand_on(batch, events);
            }
        }
        Some(())
    }

    #[inline(never)]
    fn hand_on(&mut self, batch: &mut Batch, events: &mut impl Events) {
        let pending = batch.events.get(..batch.count).unwrap_or_default();
        for (place, event) in pending.iter().enumerate() {
            if let Some(later) = pending.get(place + AHEAD_FREES)
                && later.is_free
            {
                prefetch(&self.short_sites, self.blocks.site_number(later.slot) as usize);
                events.prefetch_free(ObjectId(later.slot));
            }
            self.deliver(event, events);
        }
        batch.count = 0;
    }

    #[inline(always)]
    fn next(&mut self, cursor: &mut HeapCursor<'_>, at: At) -> Option<Pending> {
        let mut operation = cursor.operations.byte()?;
        let is_move = operation == MOVE;
        if is_move {
            operation = cursor.operations.byte()?;
        }
        if operation <= FREE_WIDE_SLOT || operation >= FIRST_JUMP || operation == FREE_FAR {
            // Which allocation it was is known without looking at the block where that can be:
            // what is freed next depends on it, and should not wait for memory.
            let (slot, serial) = if operation == FREE_SLOT || operation == FREE_WIDE_SLOT {
                let (slot, later) = if operation == FREE_SLOT {
                    (cursor.slots.take()?, cursor.slots.peek(AHEAD_SLOTS - 1))
                } else {
                    cursor.wide.take()?
                };
                prefetch(self.blocks.serials.as_slice(), later.unwrap_or(slot) as usize);
                (slot, self.blocks.serial(slot)?)
            } else {
                let serial = match operation {
                    FREE_FAR => self.last.after_jump(unfolded(cursor.jumps.take()?)),
                    FIRST_JUMP.. => self.last.after_jump(i32::from(operation) - i32::from(NO_JUMP)),
                    near => self.serial.wrapping_sub(1).wrapping_sub(near.into()),
                };
                (*self.recent.get(serial as usize % RECENT)?, serial)
            };
            self.last.jump_to(serial);
            if !self.alive.remove(slot) {
                return None;
            }
            self.free_slots.push(slot, self.blocks.site_numbers.as_mut_slice());
            return Some(Pending { at, slot, is_free: true, is_move, ..Pending::NOTHING });
        }
        let last = self.last.last();
        let number = match operation {
            FIRST_RANK..=LAST_RANK => {
                let rank = usize::from(operation - FIRST_RANK);
                let successors = self.sites.successors_mut(last)?;
                let number = *successors.get(rank)?;
                if rank > 0 {
                    move_to_front(successors, rank, number);
                }
                number
            }
            ALLOC_KNOWN | ALLOC_NEW => {
                let number = if operation == ALLOC_NEW {
                    self.add_site(cursor.site()?)?
                } else {
                    cursor.known.take()?
                };
                to_front(self.sites.successors_mut(last)?, number);
                number
            }
            ALLOC_UNNUMBERED => {
                self.pending_sites.push_back(cursor.site()?);
                NONE
            }
            _ => return None,
        };
        if operation != ALLOC_UNNUMBERED {
            if number as usize >= self.sites.len() {
                return None;
            }
            // Its successors are needed next.
            prefetch(self.sites.list.as_slice(), number as usize + 1);
            self.last.set(number);
        }
        let serial = self.serial;
        let slot = match self.free_slots.pop(self.blocks.cells()) {
            Some(slot) => slot,
            None => self.blocks.add(),
        };
        self.blocks.set_serial(slot, serial);
        self.alive.insert(slot);
        match self.recent.get_mut(serial as usize % RECENT) {
            Some(place) => *place = slot,
            None => self.recent.push(slot),
        }
        self.serial = serial.wrapping_add(1);
        Some(Pending { at, slot, number, is_free: false, is_move })
    }

    #[cold]
    fn add_site(&mut self, site: Site) -> Option<u32> {
        if self.sites.len() >= MOST_SITES {
            return None;
        }
        self.short_sites.push(ShortSite::new(site));
        Some(self.sites.add(site))
    }

    #[inline(always)]
    fn deliver(&mut self, event: &Pending, events: &mut impl Events) {
        let &Pending { at, slot, number, is_free, is_move } = event;
        let object = ObjectId(slot);
        if is_free {
            let Site { stack, size_bytes } = self.site_of(slot, self.blocks.site_number(slot));
            events.free(&Free { at, object, stack: StackId(stack), size_bytes, is_move });
            return;
        }
        if let Some(place) = self.blocks.site_numbers.as_mut_slice().get_mut(slot as usize) {
            *place = [number];
        }
        if number == NONE {
            self.take_pending_site(slot);
        }
        let Site { stack, size_bytes } = self.site_of(slot, number);
        events.alloc(&Alloc { at, object, stack: StackId(stack), size_bytes, is_move });
    }

    #[cold]
    fn take_pending_site(&mut self, slot: u32) {
        let site = self.pending_sites.pop_front();
        self.unnumbered.insert(slot, site.unwrap_or(Site { stack: 0, size_bytes: 0 }));
    }

    /// Returns the site of the block in a slot. A reader of events that uses neither stack nor
    /// size of the freed block does not wait for the memory.
    #[inline(always)]
    fn site_of(&self, slot: u32, number: u32) -> Site {
        match self.short_sites.get(number as usize) {
            Some(&ShortSite { stack, size_bytes }) if size_bytes != NONE => {
                Site { stack, size_bytes: size_bytes.into() }
            }
            Some(_) => self.sites.site(number).unwrap_or(Site { stack: 0, size_bytes: 0 }),
            None => self.unnumbered_site(slot),
        }
    }

    #[cold]
    fn unnumbered_site(&self, slot: u32) -> Site {
        self.unnumbered.get(&slot).copied().unwrap_or(Site { stack: 0, size_bytes: 0 })
    }
}

/// Sees nothing.
struct Nobody;

impl Events for Nobody {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_repeated_is_seen_in_part() {
        let numbers: Vec<u32> = (0..4_000_u32).map(|number| number.wrapping_mul(number) >> 3).collect();
        let mut repeats = Repeats::new();
        assert_eq!(repeats.part(&[]), 0.0);
        assert!(repeats.part(&numbers) < 0.05);
        assert!(repeats.part(&numbers) > 0.8);
        let others: Vec<u32> = numbers.iter().map(|number| number + 1).collect();
        assert!(repeats.part(&others) < 0.05);
    }

    /// Sees allocations and frees.
    #[derive(Default)]
    struct Seen {
        events: Vec<Event>,
    }

    #[derive(Clone, Copy, PartialEq, Debug)]
    enum Event {
        Alloc(Alloc),
        Free(Free),
    }

    impl Events for Seen {
        fn alloc(&mut self, event: &Alloc) {
            self.events.push(Event::Alloc(*event));
        }

        fn free(&mut self, event: &Free) {
            self.events.push(Event::Free(*event));
        }
    }

    /// Makes events of two threads, with up to `live` blocks of `sites` stacks.
    ///
    /// Some sizes are around 2^32.
    fn random_events(count: usize, live: usize, sites: u32) -> Vec<Event> {
        let mut random = 0x1234_5678_9abc_def1_u64;
        let mut next = |below: usize| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            (random >> 20) as usize % below
        };
        let (mut events, mut blocks) = (Vec::new(), Vec::<Alloc>::new());
        let (mut free_slots, mut slots) = (Vec::new(), 0);
        let mut nanos = 0;
        // It fills up and runs empty again, so that long lists of free slots come and go.
        let mut is_filling = true;
        while events.len() < count {
            nanos += HEAP_TIME_QUANTUM_NANOS * u64::from(next(20) == 0);
            let at = At { nanos, thread: ThreadId(u32::from(next(9) == 0)) };
            is_filling = if is_filling { blocks.len() < live } else { blocks.is_empty() };
            if blocks.is_empty() || next(8) < if is_filling { 6 } else { 2 } {
                let slot = free_slots.pop().unwrap_or_else(|| {
                    slots += 1;
                    slots - 1
                });
                let stack = next(sites as usize) as u32;
                let size_bytes = match next(8) {
                    0 => u64::from(u32::MAX) - 1 + u64::from(stack % 4),
                    _ => 16 + u64::from(stack % 5),
                };
                let object = ObjectId(slot);
                blocks.push(Alloc { at, object, stack: StackId(stack), size_bytes, is_move: next(30) == 0 });
                events.extend(blocks.last().copied().map(Event::Alloc));
            } else {
                let from_end = if next(2) == 0 { next(blocks.len().min(40)) } else { next(blocks.len()) };
                let Alloc { object, stack, size_bytes, .. } = blocks.remove(blocks.len() - 1 - from_end);
                free_slots.push(object.0);
                events.push(Event::Free(Free { at, object, stack, size_bytes, is_move: next(30) == 0 }));
            }
        }
        events
    }

    fn check_written_and_read(events: &[Event]) {
        let (mut encoder, mut decoder) = (HeapEncoder::new(), HeapDecoder::new());
        let mut seen = Seen::default();
        for chunk in events.chunks(7_000) {
            for event in chunk {
                match event {
                    Event::Alloc(event) => encoder.alloc(event),
                    Event::Free(event) => encoder.free(event),
                }
            }
            let mut payload = Vec::new();
            let filled = encoder.flush(&mut payload);
            let mut cursor = decoder.begin(ChunkKind::HEAP_STREAM, &payload, filled.events).unwrap();
            // A mark within the chunk ends a batch early.
            let middle = decoder.position() + 1_234;
            decoder.run(&mut cursor, middle, 0, &Wanted::ALL, &mut seen).unwrap();
            assert_eq!(decoder.position() as usize, seen.events.len());
            decoder.run(&mut cursor, u64::MAX, 0, &Wanted::ALL, &mut seen).unwrap();
        }
        let different = seen.events.iter().zip(events).position(|(seen, event)| seen != event);
        assert_eq!(different.map(|place| (place, seen.events[place], events[place])), None);
        assert_eq!(seen.events.len(), events.len());
    }

    #[test]
    fn many_blocks_are_read_as_written() {
        check_written_and_read(&random_events(60_000, 4_000, 50));
    }

    #[test]
    fn sites_without_numbers_are_read_as_written() {
        check_written_and_read(&random_events(40_000, 2_000, 3 * MOST_SITES as u32));
    }

    #[test]
    fn what_precedes_a_broken_event_is_handed_on() {
        let mut encoder = HeapEncoder::new();
        let events = random_events(4_000, 2_000, 50);
        for event in &events {
            match event {
                Event::Alloc(event) => encoder.alloc(event),
                Event::Free(event) => encoder.free(event),
            }
        }
        encoder.columns.operations.truncate(3_000);
        encoder.columns.operations.push(ALLOC_UNNUMBERED + 3);
        let mut payload = Vec::new();
        let filled = encoder.flush(&mut payload);
        let (mut decoder, mut seen) = (HeapDecoder::new(), Seen::default());
        let mut cursor = decoder.begin(ChunkKind::HEAP_STREAM, &payload, filled.events).unwrap();
        assert_eq!(decoder.run(&mut cursor, u64::MAX, 0, &Wanted::ALL, &mut seen), Err(BAD));
        let moves = events.iter().take(seen.events.len()).filter(|event| match event {
            Event::Alloc(event) => event.is_move,
            Event::Free(event) => event.is_move,
        });
        assert_eq!(seen.events.len() + moves.count(), 3_000);
        assert_eq!(seen.events, events[..seen.events.len()]);
    }

    #[test]
    fn the_largest_number_of_a_site_has_no_successors() {
        let mut last = LastSites::default();
        last.switch(1);
        last.set(7);
        assert_eq!(last.last(), 8);
        last.set(u32::MAX);
        assert_eq!(last.last(), 0);
    }
}
