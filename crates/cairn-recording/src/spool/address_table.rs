//! From addresses to the blocks that live there, for [`pairing`](super::pairing).

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

use cairn_format::recording::ADDRESS_BITS;

use super::merge::NO_PLACE;
use crate::prefetch::{Table, prefetch};

/// A random multiplier, so that no file can have addresses that meet in one place.
#[derive(Clone, Copy)]
pub(super) struct Seed(u64);

impl Seed {
    pub(super) fn random() -> Self {
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

pub(super) struct AddressHasher {
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

/// Maps addresses to the slots of their blocks: a tree of three levels, like a page table.
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
/// A region is 1,024 bytes of the program's memory, and has a cell for each 16 of them: allocators
/// give no other addresses, but for small blocks of some, which are in a map of their own. So what
/// a program uses together is found together, nothing has to be searched for, and leaves take a
/// quarter of the memory that the blocks take. Only the pages in use take memory.
///
/// Nothing is taken out when a block dies: its address is nearly always used again soon. Leaves
/// that have become useless are given to other regions when there are many.
pub(super) struct AddressTable {
    /// One array.
    areas: Table<[u32; AREAS]>,
    regions: Table<[u32; REGIONS]>,
    /// The first of them is none.
    pub(super) used_areas: usize,
    leaves: Table<Leaf>,
    /// The first of them is none.
    pub(super) used_leaves: usize,
    /// By leaf: whose it is, as an index into the regions; 0 when it is free.
    owners: Vec<usize>,
    /// Leaves of regions about which nothing need be known.
    free_leaves: Vec<u32>,
    /// Used leaves at which the unused ones are searched.
    sweep_at: usize,
    pub(super) generation: u32,
    /// Cells of addresses between those that have one, and of areas and regions that have none.
    pub(super) between: HashMap<u64, u32, Seed>,
}

type Leaf = [u32; CELLS];

/// Leaves whose memory is prepared at once; 256, 64 KiB.
const PREPARED_LEAVES: usize = 1 << 8;
const CELL_SHIFT: u32 = 4;
const CELLS: usize = 1 << 6;
const REGION_SHIFT: u32 = 10;
const REGIONS: usize = 1 << 16;
pub(super) const AREA_SHIFT: u32 = 26;
const AREAS: usize = 1 << (ADDRESS_BITS - AREA_SHIFT);
const _: () =
    assert!(1 << (REGION_SHIFT - CELL_SHIFT) == CELLS && 1 << (AREA_SHIFT - REGION_SHIFT) == REGIONS);
/// Nothing of this area or region is in the tables. It stays so: nothing has to be found twice.
const SPARSE: u32 = u32::MAX;
/// A place fits into 32 bits.
const MOST_LEAVES: u32 = NO_PLACE / CELLS as u32;
const LEAST_LEAVES: usize = 1 << 6;
const LEAST_SWEEP: usize = 1 << 10;
/// Number of areas that are always allowed, and events for each further one.
///
/// A damaged file has addresses everywhere, and its tables would take a page for each.
const FIRST_AREAS: u64 = 1 << 8;
const EVENTS_OF_AN_AREA: u64 = 1 << 10;

#[inline(always)]
fn area_of(address: u64) -> usize {
    (address >> AREA_SHIFT) as usize % AREAS
}

#[inline(always)]
fn region_in_area(address: u64) -> usize {
    (address >> REGION_SHIFT) as usize % REGIONS
}

impl AddressTable {
    pub(super) fn new(seed: Seed) -> Self {
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
    pub(super) fn cells(&self) -> &[u32] {
        self.leaves.as_slice().as_flattened()
    }

    #[inline(always)]
    pub(super) fn cells_mut(&mut self) -> &mut [u32] {
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
    pub(super) fn prefetch_region(&self, address: u64) {
        prefetch(self.regions.as_slice().as_flattened(), self.region(address));
    }

    /// Which one of all cells an address has, [`NO_PLACE`] for none.
    #[inline(always)]
    pub(super) fn place(&self, address: u64) -> u32 {
        let regions = self.regions.as_slice().get(self.area(address) as usize);
        let leaf = regions.map_or(0, |regions| regions[region_in_area(address)]);
        let is_between = !address.is_multiple_of(1 << CELL_SHIFT);
        if leaf.wrapping_sub(1) >= MOST_LEAVES - 1 || is_between {
            return NO_PLACE;
        }
        leaf * CELLS as u32 + (address >> CELL_SHIFT) as u32 % CELLS as u32
    }

    /// The cell of an address, if it has one.
    pub(super) fn find(&mut self, address: u64) -> Option<&mut u32> {
        match self.place(address) {
            NO_PLACE => self.between.get_mut(&address),
            place => self.cells_mut().get_mut(place as usize),
        }
    }

    /// The cell of an address, made if there was none. There always is one to be had. `place` may
    /// be [`NO_PLACE`]; `events` is how many there were.
    #[inline]
    pub(super) fn find_or_make(&mut self, address: u64, place: u32, events: u64) -> Option<&mut u32> {
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

    /// Returns a leaf whose cells are all 0, or [`SPARSE`] when there are too many.
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

    /// Takes the leaves from regions about which nothing need be known.
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
