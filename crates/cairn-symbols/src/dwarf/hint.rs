//! Caches the position of the last search: queries are mostly in order, so the next result is near
//! it.

use std::sync::atomic::{AtomicU32, Ordering};

/// The result of the last search, possibly old or from another thread: verified before use.
#[derive(Debug, Default)]
pub(super) struct Hint(AtomicU32);

impl Hint {
    /// Finds the first of `items` for which `is_before` is false, like `partition_point`.
    #[inline]
    pub(super) fn partition_point<T>(&self, items: &[T], is_before: impl Fn(&T) -> bool) -> usize {
        let last = self.0.load(Ordering::Relaxed) as usize;
        for place in [last, last.saturating_add(1)] {
            if place <= items.len()
                && items.get(place).is_none_or(|item| !is_before(item))
                && place.checked_sub(1).is_none_or(|before| is_before(&items[before]))
            {
                self.note(last, place);
                return place;
            }
        }
        let found = items.partition_point(is_before);
        self.note(last, found);
        found
    }

    /// Writes changes only: threads with the same result do not contend for the cache line.
    #[inline]
    fn note(&self, last: usize, found: usize) {
        if found != last {
            // Positions beyond 32 bits get no hint.
            self.0.store(u32::try_from(found).unwrap_or(0), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The result equals that of a fresh search, whatever was found before.
    #[test]
    fn hints_change_no_answer() {
        let tables: [&[u32]; 4] = [&[], &[5], &[1, 2, 2, 2, 7, 9], &[4, 4, 4]];
        for table in tables {
            for before in 0..11 {
                for wanted in 0..11 {
                    let hint = Hint::default();
                    hint.partition_point(table, |&item| item <= before);
                    let expected = table.partition_point(|&item| item <= wanted);
                    assert_eq!(
                        hint.partition_point(table, |&item| item <= wanted),
                        expected,
                        "{table:?} {before} {wanted}"
                    );
                    // A hint from a longer table.
                    let hint = Hint(AtomicU32::new(100));
                    assert_eq!(hint.partition_point(table, |&item| item <= wanted), expected);
                }
            }
        }
    }
}
