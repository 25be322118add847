//! Where the last search in a sorted table ended: addresses are mostly asked in order, so the next one ends there or close by.

use std::sync::atomic::{AtomicU32, Ordering};

/// The result of the last search. It may be of any age, and of another thread: it is looked at before it is believed.
#[derive(Debug, Default)]
pub(super) struct Hint(AtomicU32);

impl Hint {
    /// The first of `items` for which `is_before` does not hold, as `partition_point` finds it.
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

    /// Writes only what is new: threads that stay where they are leave the word to each other.
    #[inline]
    fn note(&self, last: usize, found: usize) {
        if found != last {
            // A table that is longer than the word has no hints behind its end.
            self.0.store(u32::try_from(found).unwrap_or(0), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever was found before, the answer is that of a search from scratch.
    #[test]
    fn a_hint_changes_no_answer() {
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
