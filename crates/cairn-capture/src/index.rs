//! A hash index from keys to 32-bit numbers, where the keys themselves live elsewhere.
//!
//! ```text
//! table:   | number: u32 | number | ...      | tag: u8 | tag | ...
//! ```
//!
//! Beside each number stand eight bits of its hash, so that a look-up goes to the key of hardly any wrong entry: keys lie
//! far apart, and each look at one would be a cache miss.
//!
//! Lock-free and made to be used in signal handlers: a chain of open-addressing tables, each twice as large as the one
//! before, which are filled to three quarters and then left as they are. Nothing is moved when the index grows, because a
//! rebuild would make other threads wait for the thread that rebuilds, which may be stopped. Look-ups begin with the newest
//! table, which has half of all entries.
//!
//! A key has one number, with one exception: an entry that was added to a table that had just ceased to be the newest is
//! taken back, and a third thread may have read it in between. One stack then has two numbers, which are merged when a
//! recording is read.

use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, Ordering};

use crate::mapping;

/// What hashes are multiplied by: 2^64 divided by the golden ratio, an odd number with bits everywhere.
pub(crate) const MIX: u64 = 0x9e37_79b9_7f4a_7c15;

/// Slots of the first table: 5 KiB.
const FIRST_SLOTS: usize = 1 << 10;
/// Twenty tables hold 1024 * (2^20 - 1) * 3/4 = 800 million entries, more than there are numbers for.
const TABLES: usize = 20;

const EMPTY: u32 = 0;
/// An entry that was removed. Probes go past it.
const REMOVED: u32 = u32::MAX;
/// An entry whose tag is not written yet; the entry itself must be looked at.
const NO_TAG: u8 = 0;

/// See the module documentation. Zero and `u32::MAX` cannot be stored.
pub(crate) struct Index {
    tables: [AtomicPtr<AtomicU32>; TABLES],
    used: [AtomicU32; TABLES],
    /// How many tables there are; they come without gaps.
    count: AtomicU32,
}

/// There is no memory for a further entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct IndexFull;

/// One table: as many numbers as tags.
#[derive(Clone, Copy)]
struct Table<'a> {
    numbers: &'a [AtomicU32],
    tags: &'a [AtomicU8],
}

impl Index {
    pub(crate) const fn new() -> Self {
        Self {
            tables: [const { AtomicPtr::new(ptr::null_mut()) }; TABLES],
            used: [const { AtomicU32::new(0) }; TABLES],
            count: AtomicU32::new(0),
        }
    }

    /// How many tables there are. All but the newest are full, and get no further entries that stay.
    pub(crate) fn tables(&self) -> usize {
        self.count.load(Ordering::SeqCst) as usize
    }

    /// The number stored under `hash` for which `is_key` holds.
    #[inline]
    pub(crate) fn find(&self, hash: u32, is_key: impl Fn(u32) -> bool) -> Option<u32> {
        let levels = self.count.load(Ordering::Acquire) as usize;
        (0..levels).rev().find_map(|level| match self.table(level)?.probe(hash, &is_key) {
            Probed::Found(number) => Some(number),
            Probed::EmptyAt(_) | Probed::Full => None,
        })
    }

    /// Stores `number` under `hash`, unless an entry for which `is_key` holds came first: then that one is returned.
    ///
    /// `searched` is how many tables there were ([`tables`](Self::tables)) before the caller looked for the key in vain;
    /// the full ones of these are not looked at again.
    pub(crate) fn insert(
        &self,
        hash: u32,
        number: u32,
        mut searched: usize,
        is_key: impl Fn(u32) -> bool,
    ) -> Result<u32, IndexFull> {
        loop {
            let levels = self.count.load(Ordering::SeqCst) as usize;
            let Some(level) = levels.checked_sub(1) else {
                self.add_table(0)?;
                continue;
            };
            // Another thread may have added the key since, to a table that has been full since.
            if searched != levels {
                if let Some(occupant) = self.find(hash, &is_key) {
                    return Ok(occupant);
                }
                searched = levels;
            }
            let table = self.table(level).ok_or(IndexFull)?;
            match table.probe(hash, &is_key) {
                Probed::Found(occupant) => return Ok(occupant),
                Probed::EmptyAt(position)
                    if (self.used[level].load(Ordering::Relaxed) as usize) < table.numbers.len() / 4 * 3 =>
                {
                    // When another thread was faster, its entry is looked at in the next round.
                    if !table.put(position, hash, number) {
                        continue;
                    }
                    self.used[level].fetch_add(1, Ordering::Relaxed);
                    if self.count.load(Ordering::SeqCst) as usize == levels {
                        return Ok(number);
                    }
                    // The index has grown meanwhile: who added the key to the newer table may have looked here before.
                    table.numbers[position].store(REMOVED, Ordering::SeqCst);
                }
                Probed::EmptyAt(_) | Probed::Full => self.add_table(levels)?,
            }
        }
    }

    /// Removes every entry for which `is_stale` holds.
    pub(crate) fn remove_all(&self, mut is_stale: impl FnMut(u32) -> bool) {
        for table in (0..TABLES).map_while(|level| self.table(level)) {
            for slot in table.numbers {
                let number = slot.load(Ordering::Acquire);
                if number != EMPTY && number != REMOVED && is_stale(number) {
                    // Lost races leave what another thread wrote, which is newer.
                    let _ = slot.compare_exchange(number, REMOVED, Ordering::AcqRel, Ordering::Relaxed);
                }
            }
        }
    }

    /// Unmaps all tables. The index is then empty.
    ///
    /// # Safety
    ///
    /// No other thread uses it meanwhile.
    pub(crate) unsafe fn release(&self) {
        for (level, (table, used)) in self.tables.iter().zip(&self.used).enumerate() {
            used.store(0, Ordering::Relaxed);
            if let Some(first) = NonNull::new(table.swap(ptr::null_mut(), Ordering::AcqRel)) {
                // SAFETY: a published table with the slots of its level (`add_table`), in use nowhere, by contract.
                unsafe { mapping::release(first.cast(), bytes(slots(level))) };
            }
        }
        self.count.store(0, Ordering::SeqCst);
    }

    /// Bytes of memory in use.
    pub(crate) fn memory_bytes(&self) -> usize {
        (0..TABLES).map_while(|level| self.table(level)).map(|table| bytes(table.numbers.len())).sum()
    }

    #[inline]
    fn table(&self, level: usize) -> Option<Table<'_>> {
        let first = NonNull::new(self.tables.get(level)?.load(Ordering::Acquire))?;
        let slots = slots(level);
        // SAFETY: a published table is a zeroed mapping of as many numbers and tags as its level has slots
        // (`add_table`); `release` unmaps it when nothing uses it.
        unsafe {
            Some(Table {
                numbers: core::slice::from_raw_parts(first.as_ptr(), slots),
                tags: core::slice::from_raw_parts(first.as_ptr().add(slots).cast(), slots),
            })
        }
    }

    #[cold]
    fn add_table(&self, level: usize) -> Result<(), IndexFull> {
        let place = self.tables.get(level).ok_or(IndexFull)?;
        let bytes = bytes(slots(level));
        let fresh = mapping::reserve(bytes).ok_or(IndexFull)?;
        let null = ptr::null_mut();
        if place.compare_exchange(null, fresh.as_ptr().cast(), Ordering::AcqRel, Ordering::Acquire).is_err() {
            // SAFETY: the mapping was not published, so nobody else knows it.
            unsafe { mapping::release(fresh, bytes) };
        }
        self.count.fetch_max(level as u32 + 1, Ordering::SeqCst);
        Ok(())
    }
}

/// What a probe came to.
enum Probed {
    Found(u32),
    /// The key is not there; it could be put here.
    EmptyAt(usize),
    Full,
}

impl Table<'_> {
    /// Looks for a key. Ends after one round, so that a full table cannot hold anybody.
    #[inline]
    fn probe(&self, hash: u32, is_key: &impl Fn(u32) -> bool) -> Probed {
        let mask = self.numbers.len() - 1;
        let wanted = tag(hash);
        for step in 0..self.numbers.len() {
            let position = (hash as usize).wrapping_add(step) & mask;
            let tag = self.tags[position].load(Ordering::Relaxed);
            if tag != wanted && tag != NO_TAG {
                continue;
            }
            match self.numbers[position].load(Ordering::Acquire) {
                EMPTY => return Probed::EmptyAt(position),
                REMOVED => {}
                number if is_key(number) => return Probed::Found(number),
                _ => {}
            }
        }
        Probed::Full
    }

    /// Fills an empty slot, if it still is one.
    fn put(&self, position: usize, hash: u32, number: u32) -> bool {
        let slot = &self.numbers[position];
        let is_ours = slot.compare_exchange(EMPTY, number, Ordering::SeqCst, Ordering::Acquire).is_ok();
        if is_ours {
            self.tags[position].store(tag(hash), Ordering::Release);
        }
        is_ours
    }
}

const fn slots(level: usize) -> usize {
    FIRST_SLOTS << level
}

/// Bytes of a table with so many slots.
const fn bytes(slots: usize) -> usize {
    slots * (size_of::<AtomicU32>() + size_of::<AtomicU8>())
}

/// Bits of the hash that its position in a table of usual size does not depend on; never [`NO_TAG`].
fn tag(hash: u32) -> u8 {
    (hash >> 24) as u8 | 1
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;

    fn scramble(number: u32) -> u32 {
        number.wrapping_mul(0x9e37_79b1).rotate_left(13)
    }

    #[test]
    fn every_number_is_found_again_across_growth() {
        let index = Index::new();
        for number in 1..20_000 {
            assert_eq!(index.find(scramble(number), |other| other == number), None);
            assert_eq!(index.insert(scramble(number), number, 0, |other| other == number), Ok(number));
        }
        for number in 1..20_000 {
            assert_eq!(index.find(scramble(number), |other| other == number), Some(number));
        }
        assert_eq!(index.find(scramble(20_000), |other| other == 20_000), None);
    }

    #[test]
    fn the_first_of_two_equal_keys_wins() {
        let index = Index::new();
        assert_eq!(index.insert(7, 1, 0, |_| false), Ok(1));
        assert_eq!(index.insert(7, 2, 0, |other| other == 1), Ok(1));
    }

    #[test]
    fn removed_entries_do_not_hide_the_ones_behind_them() {
        let index = Index::new();
        for number in 1..=3 {
            index.insert(5, number, 0, |other| other == number).unwrap();
        }
        index.remove_all(|number| number == 2);
        assert_eq!(index.find(5, |number| number == 2), None);
        assert_eq!(index.find(5, |number| number == 3), Some(3));
    }

    #[test]
    fn threads_agree_on_numbers() {
        let index = Index::new();
        let winners: std::vec::Vec<std::vec::Vec<u32>> = std::thread::scope(|scope| {
            let threads: std::vec::Vec<_> = (0..4_u32)
                .map(|thread| {
                    let index = &index;
                    scope.spawn(move || {
                        (0..500_u32)
                            .map(|key| {
                                let number = 1 + key * 4 + thread;
                                index
                                    .insert(scramble(key), number, 0, |other| (other - 1) / 4 == key)
                                    .unwrap()
                            })
                            .collect()
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(winners.windows(2).all(|pair| pair[0] == pair[1]));
    }
}
