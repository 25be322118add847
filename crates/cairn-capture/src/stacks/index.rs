//! A hash index from keys to 32-bit numbers. The keys themselves are stored elsewhere.
//!
//! ```text
//! table:    | bucket | bucket | ...
//! bucket:   | tags of its slots: 12 bytes, 4 unused | numbers: 12 * 4 bytes |     one cache line
//! ```
//!
//! A tag is eight bits of the hash. All tags of a bucket are compared at once, so that a look-up
//! takes one cache line, and the keys of other entries are hardly ever compared: each comparison
//! would be a cache miss. The slots of a bucket fill up from the first to the last, and a bucket
//! with an empty slot ends a look-up.
//!
//! The index is lock-free and works in signal handlers. It is a chain of tables, each twice as
//! large as the one before; a table is filled to three quarters. No thread waits for another one
//! when the index grows, because the other one may be stopped. A look-up starts with the newest
//! table.
//!
//! Where entries are never removed, they *move*: each call that adds an entry, or finds one in an
//! older table, copies one bucket of that table to the newest one. Once all buckets of a table
//! were copied, it is not searched any more, and its memory is returned to the kernel. A thread
//! that stops while it copies a bucket leaves the older table in use, which is only slower. An
//! index from which entries are removed ([`remove_all`](Index::remove_all)) must not move them: a
//! removed entry could return.
//!
//! A key has one number, with one exception. An entry that was added to a table after a newer one
//! appeared is removed again, and a third thread may have read it in between. The stack then has
//! two numbers, which are merged when a recording is read.

use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use crate::stacks::arch::equal_bytes;
use crate::stacks::counters::{self, Counter};
use crate::stacks::mapping;

/// Multiplier of hashes: 2^64 divided by the golden ratio, an odd number with well distributed
/// bits.
pub(crate) const MIX: u64 = 0x9e37_79b9_7f4a_7c15;

/// Buckets of the first table; 64, which take 4 KiB. Fewer for Miri, which takes time for each
/// slot.
const FIRST_BUCKETS: usize = if cfg!(miri) { 2 } else { 1 << 6 };
/// Slots of a bucket; 12, as many as fill a cache line with their tags.
const BUCKET_SLOTS: usize = 12;
/// The bits of a mask of tags that belong to slots.
const SLOT_MASK: u32 = (1 << BUCKET_SLOTS) - 1;
/// Maximum number of tables; 20, because they hold more entries than there are numbers. They hold
/// 64 * 12 * (2^20 - 1) * 3/4 = 600 million.
const TABLES: usize = 20;

const EMPTY: u32 = 0;
/// An entry that was removed. Probes continue behind it.
const REMOVED: u32 = u32::MAX;
/// The tag of a slot that is empty, or whose tag is not written yet; its key must be compared.
const NO_TAG: u8 = 0;

/// The hash index. It cannot store zero and `u32::MAX`.
pub(crate) struct Index {
    tables: [AtomicPtr<Bucket>; TABLES],
    used: [AtomicU32; TABLES],
    /// The next bucket of each table to move.
    next_to_move: [AtomicU32; TABLES],
    /// Buckets of each table that were moved. A table is not searched when all were.
    moved: [AtomicU32; TABLES],
    /// Number of tables, which have no gaps.
    count: AtomicU32,
}

/// There is no memory for another entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct IndexFull;

/// One cache line of a table.
#[repr(C, align(64))]
struct Bucket {
    /// One byte for each slot, lowest byte first.
    tags: [AtomicU64; 2],
    numbers: [AtomicU32; BUCKET_SLOTS],
}

const _: () = assert!(size_of::<Bucket>() == 64);
const _: () = assert!(BUCKET_SLOTS <= 16, "each slot has a tag");

/// One table: a power of two of buckets.
#[derive(Clone, Copy)]
struct IndexTable<'a>(&'a [Bucket]);

/// A slot of a table.
#[derive(Clone, Copy)]
struct Place {
    bucket: usize,
    slot: usize,
}

impl Index {
    pub(crate) const fn new() -> Self {
        Self {
            tables: [const { AtomicPtr::new(ptr::null_mut()) }; TABLES],
            used: [const { AtomicU32::new(0) }; TABLES],
            next_to_move: [const { AtomicU32::new(0) }; TABLES],
            moved: [const { AtomicU32::new(0) }; TABLES],
            count: AtomicU32::new(0),
        }
    }

    /// The number of tables. All but the newest are full.
    pub(crate) fn tables(&self) -> usize {
        self.count.load(Ordering::SeqCst) as usize
    }

    /// The number stored under `hash` for which `is_key` is true.
    ///
    /// An entry that is being moved may be missed; [`insert`](Self::insert) finds it.
    #[inline]
    pub(crate) fn find(&self, hash: u32, is_key: impl Fn(u32) -> bool) -> Option<u32> {
        let newest = (self.count.load(Ordering::Acquire) as usize).checked_sub(1)?;
        match self.table(newest)?.probe(hash, &is_key) {
            Probed::Found(number) => Some(number),
            _ => self.find_below(newest, hash, is_key).map(|(number, _)| number),
        }
    }

    /// Finds a number as [`find`](Self::find) does, in an index that moves its entries. `hash_of`
    /// returns the hash of a number's key.
    #[inline]
    pub(crate) fn find_and_move(
        &self,
        hash: u32,
        is_key: impl Fn(u32) -> bool,
        hash_of: impl Fn(u32) -> u32,
    ) -> Option<u32> {
        let newest = (self.count.load(Ordering::Acquire) as usize).checked_sub(1)?;
        if let Probed::Found(number) = self.table(newest)?.probe(hash, &is_key) {
            return Some(number);
        }
        let (number, level) = self.find_below(newest, hash, is_key)?;
        self.move_bucket_of(level, hash_of);
        Some(number)
    }

    /// The number in the tables below a level, and its level.
    #[cold]
    #[inline(never)]
    fn find_below(&self, newest: usize, hash: u32, is_key: impl Fn(u32) -> bool) -> Option<(u32, usize)> {
        (0..newest).rev().filter(|level| !self.has_moved(*level)).find_map(|level| {
            match self.table(level)?.probe(hash, &is_key) {
                Probed::Found(number) => Some((number, level)),
                Probed::EmptyAt(_) | Probed::Full => None,
            }
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
            // An entry that the caller missed while it was moved is in this table now, or there is
            // a newer one.
            match table.probe(hash, &is_key) {
                Probed::Found(occupant) => return Ok(occupant),
                Probed::EmptyAt(place)
                    if (self.used[level].load(Ordering::Relaxed) as usize) < table.slots() / 4 * 3 =>
                {
                    // If another thread was faster, the next iteration compares its entry.
                    if !table.put(place, hash, number) {
                        continue;
                    }
                    self.used[level].fetch_add(1, Ordering::Relaxed);
                    if self.count.load(Ordering::SeqCst) as usize == levels {
                        return Ok(number);
                    }
                    // The index has grown meanwhile. A thread that added the key to the newer table
                    // may have searched this one before.
                    table.number(place).store(REMOVED, Ordering::SeqCst);
                }
                Probed::EmptyAt(_) | Probed::Full => self.add_table(levels)?,
            }
        }
    }

    /// Moves one bucket of the oldest table that has one left.
    ///
    /// Called for each entry that is added, so that all have moved long before the newest table is
    /// full.
    pub(crate) fn move_one_bucket(&self, hash_of: impl Fn(u32) -> u32) {
        let newest = self.tables().saturating_sub(1);
        let has_one =
            |level: &usize| (self.next_to_move[*level].load(Ordering::Relaxed) as usize) < buckets(*level);
        if let Some(level) = (0..newest).find(has_one) {
            self.move_bucket_of(level, hash_of);
        }
    }

    /// Moves the next bucket of a table that is not the newest.
    #[cold]
    #[inline(never)]
    fn move_bucket_of(&self, level: usize, hash_of: impl Fn(u32) -> u32) {
        let count = buckets(level) as u32;
        let next = &self.next_to_move[level];
        if next.load(Ordering::Relaxed) >= count {
            return;
        }
        // Each bucket is moved by one thread: two could put two numbers of a key in either order.
        let index = next.fetch_add(1, Ordering::SeqCst);
        let Some(table) = self.table(level).filter(|_| index < count) else { return };
        for slot in &table.0[index as usize].numbers {
            // Sequentially consistent, so that a thread that fills this slot afterwards sees the
            // newer table, and removes its entry.
            let number = slot.load(Ordering::SeqCst);
            if number != EMPTY && number != REMOVED && !self.put_moved(hash_of(number), number) {
                // The table stays in use.
                return;
            }
        }
        if self.moved[level].fetch_add(1, Ordering::SeqCst) + 1 == count {
            // A thread that still reads the table finds it empty. One that still adds an entry to
            // it sees the newer table, and removes the entry.
            if let Some(first) = NonNull::new(self.tables[level].load(Ordering::Acquire)) {
                // SAFETY: `add_table` has mapped that many bytes for this level; they are atomics
                // whose values do not matter any more, and zeros are values of them.
                unsafe { mapping::discard(first.cast(), bytes(level)) };
            }
        }
    }

    /// Copies an entry to the newest table. Returns false when that has no room.
    fn put_moved(&self, hash: u32, number: u32) -> bool {
        loop {
            let levels = self.count.load(Ordering::SeqCst) as usize;
            let Some((level, table)) =
                levels.checked_sub(1).and_then(|level| Some((level, self.table(level)?)))
            else {
                return false;
            };
            match table.probe(hash, &|other| other == number) {
                Probed::Found(_) => {}
                Probed::EmptyAt(place) => {
                    if !table.put(place, hash, number) {
                        continue;
                    }
                    self.used[level].fetch_add(1, Ordering::Relaxed);
                }
                Probed::Full => return false,
            }
            // In a table that is not the newest any more, this bucket may have been moved before.
            if self.count.load(Ordering::SeqCst) as usize == levels {
                return true;
            }
        }
    }

    /// True when all entries of a table are in newer ones.
    fn has_moved(&self, level: usize) -> bool {
        self.moved[level].load(Ordering::SeqCst) as usize == buckets(level)
    }

    /// Removes every entry for which `is_stale` is true. Not for an index that moves its entries.
    pub(crate) fn remove_all(&self, mut is_stale: impl FnMut(u32) -> bool) {
        let tables = (0..TABLES).map_while(|level| self.table(level));
        for slot in tables.flat_map(|table| table.0).flat_map(|bucket| &bucket.numbers) {
            let number = slot.load(Ordering::Acquire);
            if number != EMPTY && number != REMOVED && is_stale(number) {
                // After a lost race the other thread's entry stays, which is newer.
                let _ = slot.compare_exchange(number, REMOVED, Ordering::AcqRel, Ordering::Relaxed);
            }
        }
    }

    /// Unmaps all tables. The index is then empty.
    ///
    /// # Safety
    ///
    /// - No other thread uses the index meanwhile.
    pub(crate) unsafe fn release(&self) {
        for (level, table) in self.tables.iter().enumerate() {
            for count in [&self.used, &self.next_to_move, &self.moved] {
                count[level].store(0, Ordering::Relaxed);
            }
            if let Some(first) = NonNull::new(table.swap(ptr::null_mut(), Ordering::AcqRel)) {
                // SAFETY: `add_table` has mapped that many bytes for this level. The swap took the
                // only pointer to them, and the caller promises that no other thread uses the
                // index.
                unsafe { mapping::release(first.cast(), bytes(level)) };
            }
        }
        self.count.store(0, Ordering::SeqCst);
    }

    /// Bytes of memory in use.
    pub(crate) fn memory_bytes(&self) -> usize {
        (0..self.tables()).filter(|level| !self.has_moved(*level)).map(bytes).sum()
    }

    #[inline]
    fn table(&self, level: usize) -> Option<IndexTable<'_>> {
        let first = NonNull::new(self.tables.get(level)?.load(Ordering::Acquire))?;
        // SAFETY: a published table is a zeroed mapping of as many buckets as its level has
        // (`add_table`), all of them atomics. `release` unmaps it when nothing uses the index.
        Some(IndexTable(unsafe { core::slice::from_raw_parts(first.as_ptr(), buckets(level)) }))
    }

    #[cold]
    fn add_table(&self, level: usize) -> Result<(), IndexFull> {
        let place = self.tables.get(level).ok_or(IndexFull)?;
        let fresh = mapping::reserve(bytes(level)).ok_or(IndexFull)?;
        let null = ptr::null_mut();
        if place.compare_exchange(null, fresh.as_ptr().cast(), Ordering::AcqRel, Ordering::Acquire).is_err() {
            // SAFETY: the mapping was not published, so this is the only pointer to it.
            unsafe { mapping::release(fresh, bytes(level)) };
        }
        self.count.fetch_max(level as u32 + 1, Ordering::SeqCst);
        Ok(())
    }
}

/// The result of a probe.
enum Probed {
    Found(u32),
    /// When the key is absent; this slot is free for it.
    EmptyAt(Place),
    /// When the key is absent and no slot is free.
    Full,
}

impl IndexTable<'_> {
    /// Searches for a key. Ends after one round, so that a full table causes no endless loop.
    #[inline]
    fn probe(&self, hash: u32, is_key: &impl Fn(u32) -> bool) -> Probed {
        counters::add(Counter::IndexTables, 1);
        let mask = self.0.len() - 1;
        let wanted = tag(hash);
        for step in 0..self.0.len() {
            counters::add(Counter::IndexBuckets, 1);
            let index = (hash as usize).wrapping_add(step) & mask;
            // SAFETY: the masked index is below the length, a power of two.
            let bucket = unsafe { self.0.get_unchecked(index) };
            let tags = [0, 1].map(|half| bucket.tags[half].load(Ordering::Relaxed));
            let mut candidates = (equal_bytes(tags, wanted) | equal_bytes(tags, NO_TAG)) & SLOT_MASK;
            while candidates != 0 {
                let slot = candidates.trailing_zeros() as usize;
                candidates &= candidates - 1;
                match bucket.numbers[slot].load(Ordering::Acquire) {
                    EMPTY => return Probed::EmptyAt(Place { bucket: index, slot }),
                    REMOVED => {}
                    number if is_key(number) => return Probed::Found(number),
                    _ => {}
                }
            }
        }
        Probed::Full
    }

    fn number(&self, place: Place) -> &AtomicU32 {
        &self.0[place.bucket].numbers[place.slot]
    }

    /// Fills a slot, if it is still empty.
    fn put(&self, place: Place, hash: u32, number: u32) -> bool {
        let slot = self.number(place);
        let is_ours = slot.compare_exchange(EMPTY, number, Ordering::SeqCst, Ordering::Acquire).is_ok();
        if is_ours {
            let tag = u64::from(tag(hash)) << (place.slot % 8 * 8);
            self.0[place.bucket].tags[place.slot / 8].fetch_or(tag, Ordering::Release);
        }
        is_ours
    }

    fn slots(&self) -> usize {
        self.0.len() * BUCKET_SLOTS
    }
}

/// Buckets of the table at a level.
const fn buckets(level: usize) -> usize {
    FIRST_BUCKETS << level
}

/// Bytes of the table at a level.
const fn bytes(level: usize) -> usize {
    buckets(level) * size_of::<Bucket>()
}

/// Bits of the hash on which the position in a table of usual size does not depend; never
/// [`NO_TAG`].
#[inline(always)]
fn tag(hash: u32) -> u8 {
    ((hash >> 24) as u8).max(1)
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
    fn moved_entries_are_found_once_and_old_tables_are_dropped() {
        const COUNT: u32 = if cfg!(miri) { 100 } else { 20_000 };
        let index = Index::new();
        for number in 1..COUNT {
            let is_key = |other| other == number;
            assert_eq!(index.find_and_move(scramble(number), is_key, scramble), None);
            index.move_one_bucket(scramble);
            assert_eq!(index.insert(scramble(number), number, index.tables(), is_key), Ok(number));
            let earlier = 1 + number / 2;
            assert_eq!(
                index.find_and_move(scramble(earlier), |other| other == earlier, scramble),
                Some(earlier)
            );
        }
        let newest = index.tables() - 1;
        assert!(newest > 2 && (0..newest).all(|level| index.has_moved(level)));
        assert_eq!(index.memory_bytes(), bytes(newest));
        let all = index.table(newest).unwrap().0.iter().flat_map(|bucket| &bucket.numbers);
        let filled = all.filter(|slot| slot.load(Ordering::Relaxed) != EMPTY).count();
        assert_eq!(filled, COUNT as usize - 1, "each entry moved once");
        for number in 1..COUNT {
            assert_eq!(index.find(scramble(number), |other| other == number), Some(number));
        }
    }

    #[test]
    fn threads_that_grow_and_move_agree_on_numbers() {
        const KEYS: u32 = if cfg!(miri) { 60 } else { 20_000 };
        let index = Index::new();
        let key_of = |number: u32| (number - 1) / 4;
        let hash_of = |number: u32| scramble(key_of(number));
        let all_added = std::sync::Barrier::new(4);
        let winners: std::vec::Vec<std::vec::Vec<u32>> = std::thread::scope(|scope| {
            let threads: std::vec::Vec<_> = (0..4_u32)
                .map(|thread| {
                    let (index, all_added) = (&index, &all_added);
                    scope.spawn(move || {
                        let number_of = |key: u32| {
                            let is_key = |other: u32| key_of(other) == key;
                            let searched = index.tables();
                            index.find_and_move(scramble(key), is_key, hash_of).unwrap_or_else(|| {
                                index.move_one_bucket(hash_of);
                                index.insert(scramble(key), 1 + key * 4 + thread, searched, is_key).unwrap()
                            })
                        };
                        (0..KEYS).for_each(|key| {
                            number_of(key);
                            number_of(key / 3);
                        });
                        all_added.wait();
                        (0..KEYS).map(number_of).collect()
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(winners.windows(2).all(|pair| pair[0] == pair[1]));
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
