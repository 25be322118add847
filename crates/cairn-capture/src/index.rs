//! A hash index from keys to 32-bit numbers, where the keys themselves live elsewhere.
//!
//! Lock-free and made to be used in signal handlers: a chain of open-addressing tables, each four times as large as the
//! one before, which are filled to three quarters and then left as they are. Nothing is moved when the index grows,
//! because a rebuild would make other threads wait for the thread that rebuilds, which may be stopped.
//!
//! When two threads add the same key while the index grows, both may succeed with different numbers. The users of this
//! index live with that: one stack then has two numbers, which are merged when a recording is read.

use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use crate::mapping;

/// Slots of the first table: 4 KiB.
const FIRST_SLOTS: usize = 1 << 10;
/// Ten tables hold 1024 * (4^10 - 1) / 3 * 3/4 = 268 million entries, as many as there are numbers for.
const TABLES: usize = 10;

const EMPTY: u32 = 0;
/// An entry that was removed. Probes go past it.
const REMOVED: u32 = u32::MAX;

/// See the module documentation. Zero and `u32::MAX` cannot be stored.
pub(crate) struct Index {
    tables: [AtomicPtr<AtomicU32>; TABLES],
    used: [AtomicU32; TABLES],
}

/// There is no memory for a further entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct IndexFull;

impl Index {
    pub(crate) const fn new() -> Self {
        Self {
            tables: [const { AtomicPtr::new(ptr::null_mut()) }; TABLES],
            used: [const { AtomicU32::new(0) }; TABLES],
        }
    }

    /// The number stored under `hash` for which `is_key` holds.
    #[inline]
    pub(crate) fn find(&self, hash: u32, is_key: impl Fn(u32) -> bool) -> Option<u32> {
        for level in 0..TABLES {
            let table = self.table(level)?;
            for position in probes(table, hash) {
                match table[position].load(Ordering::Acquire) {
                    EMPTY => break,
                    REMOVED => {}
                    number if is_key(number) => return Some(number),
                    _ => {}
                }
            }
        }
        None
    }

    /// Stores `number` under `hash`, unless an entry for which `is_key` holds came first: then that one is returned.
    pub(crate) fn insert(
        &self,
        hash: u32,
        number: u32,
        is_key: impl Fn(u32) -> bool,
    ) -> Result<u32, IndexFull> {
        for level in 0..TABLES {
            let table = match self.table(level) {
                Some(table) => table,
                None => self.add_table(level)?,
            };
            let is_newest = self.table(level + 1).is_none();
            for position in probes(table, hash) {
                match table[position].load(Ordering::Acquire) {
                    EMPTY => {}
                    occupant if occupant != REMOVED && is_key(occupant) => return Ok(occupant),
                    _ => continue,
                }
                if !is_newest || self.used[level].load(Ordering::Relaxed) as usize >= table.len() / 4 * 3 {
                    break;
                }
                match table[position].compare_exchange(EMPTY, number, Ordering::AcqRel, Ordering::Acquire) {
                    Ok(_) => {
                        self.used[level].fetch_add(1, Ordering::Relaxed);
                        return Ok(number);
                    }
                    Err(occupant) if occupant != REMOVED && is_key(occupant) => return Ok(occupant),
                    Err(_) => {}
                }
            }
        }
        Err(IndexFull)
    }

    /// Removes every entry for which `is_stale` holds.
    pub(crate) fn remove_all(&self, mut is_stale: impl FnMut(u32) -> bool) {
        for table in (0..TABLES).map_while(|level| self.table(level)) {
            for slot in table {
                let number = slot.load(Ordering::Acquire);
                if number != EMPTY && number != REMOVED && is_stale(number) {
                    // Lost races leave what another thread wrote, which is newer.
                    let _ = slot.compare_exchange(number, REMOVED, Ordering::AcqRel, Ordering::Relaxed);
                }
            }
        }
    }

    /// Bytes of memory in use.
    pub(crate) fn memory_bytes(&self) -> usize {
        (0..TABLES).map_while(|level| self.table(level)).map(size_of_val).sum()
    }

    #[inline]
    fn table(&self, level: usize) -> Option<&[AtomicU32]> {
        let table = NonNull::new(self.tables.get(level)?.load(Ordering::Acquire))?;
        // SAFETY: a published table is a zeroed mapping of this many slots (`add_table`) and is never released.
        Some(unsafe { core::slice::from_raw_parts(table.as_ptr(), slots(level)) })
    }

    #[cold]
    fn add_table(&self, level: usize) -> Result<&[AtomicU32], IndexFull> {
        let bytes = slots(level) * size_of::<AtomicU32>();
        let fresh = mapping::reserve(bytes).ok_or(IndexFull)?;
        let published = self.tables[level].compare_exchange(
            ptr::null_mut(),
            fresh.as_ptr().cast(),
            Ordering::AcqRel,
            Ordering::Acquire,
        );
        if published.is_err() {
            // SAFETY: the mapping was not published, so nobody else knows it.
            unsafe { mapping::release(fresh, bytes) };
        }
        self.table(level).ok_or(IndexFull)
    }
}

const fn slots(level: usize) -> usize {
    FIRST_SLOTS << (2 * level)
}

/// Positions to look at for `hash`, in order. Ends after one round, so that a full table cannot hold anybody.
#[inline]
fn probes(table: &[AtomicU32], hash: u32) -> impl Iterator<Item = usize> + use<> {
    let mask = table.len() - 1;
    (0..table.len()).map(move |step| (hash as usize).wrapping_add(step) & mask)
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;

    fn scramble(number: u32) -> u32 {
        number.wrapping_mul(0x9e37_79b1) >> 7
    }

    #[test]
    fn every_number_is_found_again_across_growth() {
        let index = Index::new();
        for number in 1..20_000 {
            assert_eq!(index.insert(scramble(number), number, |other| other == number), Ok(number));
        }
        for number in 1..20_000 {
            assert_eq!(index.find(scramble(number), |other| other == number), Some(number));
        }
        assert_eq!(index.find(scramble(20_000), |other| other == 20_000), None);
    }

    #[test]
    fn the_first_of_two_equal_keys_wins() {
        let index = Index::new();
        assert_eq!(index.insert(7, 1, |_| false), Ok(1));
        assert_eq!(index.insert(7, 2, |other| other == 1), Ok(1));
    }

    #[test]
    fn removed_entries_do_not_hide_the_ones_behind_them() {
        let index = Index::new();
        for number in 1..=3 {
            index.insert(5, number, |other| other == number).unwrap();
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
                                index.insert(scramble(key), number, |other| (other - 1) / 4 == key).unwrap()
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
