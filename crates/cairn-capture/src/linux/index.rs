//! A hash index from keys to 32-bit numbers. The keys themselves are stored elsewhere.
//!
//! ```text
//! table:   | number: u32 | number | ...      | tag: u8 | tag | ...
//! ```
//!
//! The tag is eight bits of the hash. It spares comparisons with the keys of other entries: each
//! comparison would be a cache miss.
//!
//! The index is lock-free and works in signal handlers. It is a chain of open-addressing tables,
//! each twice as large as the one before. A table is filled to three quarters and does not change
//! afterwards. Nothing is moved when the index grows, because other threads would have to wait for
//! the thread that rebuilds, which may be stopped. A look-up starts with the newest table, which
//! contains half of all entries.
//!
//! A key has one number, with one exception. An entry that was added to a table after a newer one
//! appeared is removed again, and a third thread may have read it in between. The stack then has
//! two numbers, which are merged when a recording is read.

use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, Ordering};

use crate::linux::mapping;

/// Multiplier of hashes: 2^64 divided by the golden ratio, an odd number with well distributed
/// bits.
pub(crate) const MIX: u64 = 0x9e37_79b9_7f4a_7c15;

/// Slots of the first table; 1024, which take 5 KiB. Fewer for Miri, which takes time for each
/// slot.
const FIRST_SLOTS: usize = if cfg!(miri) { 1 << 4 } else { 1 << 10 };
/// Maximum number of tables; 20, because they hold more entries than there are numbers. They hold
/// 1024 * (2^20 - 1) * 3/4 = 800 million.
const TABLES: usize = 20;

const EMPTY: u32 = 0;
/// An entry that was removed. Probes continue behind it.
const REMOVED: u32 = u32::MAX;
/// An entry whose tag is not written yet; its key must be compared.
const NO_TAG: u8 = 0;

/// The hash index. It cannot store zero and `u32::MAX`.
pub(crate) struct Index {
    tables: [AtomicPtr<AtomicU32>; TABLES],
    used: [AtomicU32; TABLES],
    /// Number of tables, which have no gaps.
    count: AtomicU32,
}

/// There is no memory for another entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct IndexFull;

/// One table: as many numbers as tags.
#[derive(Clone, Copy)]
struct IndexTable<'a> {
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

    /// The number of tables. All but the newest are full.
    pub(crate) fn tables(&self) -> usize {
        self.count.load(Ordering::SeqCst) as usize
    }

    /// The number stored under `hash` for which `is_key` is true.
    #[inline]
    pub(crate) fn find(&self, hash: u32, is_key: impl Fn(u32) -> bool) -> Option<u32> {
        let levels = self.count.load(Ordering::Acquire) as usize;
        (0..levels).rev().find_map(|level| match self.table(level)?.probe(hash, &is_key) {
            Probed::Found(number) => Some(number),
            Probed::EmptyAt(_) | Probed::Full => None,
        })
    }

    /// Stores `number` under `hash`, or returns the present entry for which `is_key` is true.
    ///
    /// `searched` is the number of tables ([`tables`](Self::tables)) before the caller searched for
    /// the key without success. The full ones of these are not searched again.
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
            // Another thread may have added the key to a table that has become full meanwhile.
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
                    // If another thread was faster, the next iteration compares its entry.
                    if !table.put(position, hash, number) {
                        continue;
                    }
                    self.used[level].fetch_add(1, Ordering::Relaxed);
                    if self.count.load(Ordering::SeqCst) as usize == levels {
                        return Ok(number);
                    }
                    // The index has grown meanwhile. A thread that added the key to the newer table
                    // may have searched this one before.
                    table.numbers[position].store(REMOVED, Ordering::SeqCst);
                }
                Probed::EmptyAt(_) | Probed::Full => self.add_table(levels)?,
            }
        }
    }

    /// Removes every entry for which `is_stale` is true.
    pub(crate) fn remove_all(&self, mut is_stale: impl FnMut(u32) -> bool) {
        for table in (0..TABLES).map_while(|level| self.table(level)) {
            for slot in table.numbers {
                let number = slot.load(Ordering::Acquire);
                if number != EMPTY && number != REMOVED && is_stale(number) {
                    // After a lost race the other thread's entry stays, which is newer.
                    let _ = slot.compare_exchange(number, REMOVED, Ordering::AcqRel, Ordering::Relaxed);
                }
            }
        }
    }

    /// Unmaps all tables. The index is then empty.
    ///
    /// # Safety
    ///
    /// - No other thread uses the index meanwhile.
    pub(crate) unsafe fn release(&self) {
        for (level, (table, used)) in self.tables.iter().zip(&self.used).enumerate() {
            used.store(0, Ordering::Relaxed);
            if let Some(first) = NonNull::new(table.swap(ptr::null_mut(), Ordering::AcqRel)) {
                // SAFETY: `add_table` has mapped that many bytes for this level. The swap took the
                // only pointer to them, and the caller promises that no other thread uses the
                // index.
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
    fn table(&self, level: usize) -> Option<IndexTable<'_>> {
        let first = NonNull::new(self.tables.get(level)?.load(Ordering::Acquire))?;
        let slots = slots(level);
        // SAFETY: a published table is a zeroed mapping of as many numbers and tags as its level
        // has slots (`add_table`), all of them atomics. `release` unmaps it when nothing uses the
        // index.
        unsafe {
            Some(IndexTable {
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
            // SAFETY: the mapping was not published, so this is the only pointer to it.
            unsafe { mapping::release(fresh, bytes) };
        }
        self.count.fetch_max(level as u32 + 1, Ordering::SeqCst);
        Ok(())
    }
}

/// The result of a probe.
enum Probed {
    Found(u32),
    /// When the key is absent; this slot is free for it.
    EmptyAt(usize),
    /// When the key is absent and no slot is free.
    Full,
}

impl IndexTable<'_> {
    /// Searches for a key. Ends after one round, so that a full table causes no endless loop.
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

    /// Fills a slot, if it is still empty.
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

/// Bytes of a table with `slots` slots.
const fn bytes(slots: usize) -> usize {
    slots * (size_of::<AtomicU32>() + size_of::<AtomicU8>())
}

/// Bits of the hash on which the position in a table of usual size does not depend; never
/// [`NO_TAG`].
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
    fn index_finds_every_number_after_growth() {
        // Enough for several tables.
        const COUNT: u32 = if cfg!(miri) { 100 } else { 20_000 };
        let index = Index::new();
        for number in 1..COUNT {
            assert_eq!(index.find(scramble(number), |other| other == number), None);
            assert_eq!(index.insert(scramble(number), number, 0, |other| other == number), Ok(number));
        }
        for number in 1..COUNT {
            assert_eq!(index.find(scramble(number), |other| other == number), Some(number));
        }
        assert_eq!(index.find(scramble(COUNT), |other| other == COUNT), None);
    }

    #[test]
    fn first_of_two_equal_keys_wins() {
        let index = Index::new();
        assert_eq!(index.insert(7, 1, 0, |_| false), Ok(1));
        assert_eq!(index.insert(7, 2, 0, |other| other == 1), Ok(1));
    }

    #[test]
    fn removed_entries_do_not_hide_later_ones() {
        let index = Index::new();
        for number in 1..=3 {
            index.insert(5, number, 0, |other| other == number).unwrap();
        }
        index.remove_all(|number| number == 2);
        assert_eq!(index.find(5, |number| number == 2), None);
        assert_eq!(index.find(5, |number| number == 3), Some(3));
    }

    #[test]
    fn threads_get_equal_numbers_for_equal_keys() {
        let index = Index::new();
        let winners: std::vec::Vec<std::vec::Vec<u32>> = std::thread::scope(|scope| {
            let threads: std::vec::Vec<_> = (0..4_u32)
                .map(|thread| {
                    let index = &index;
                    scope.spawn(move || {
                        (0..if cfg!(miri) { 20 } else { 500_u32 })
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
