//! The slots of freed blocks, latest first, in memory that these blocks no longer need.
//!
//! A program that frees millions of blocks leaves as many free slots, and a list of them would take
//! half as much memory as the blocks did. So only the latest ones are in a list, the *hot* ones.
//! Below, each free slot has a cell of its own, which described its block, and the cell holds
//! another free slot:
//!
//! ```text
//!   position      0 ...      cold - 8 ... cold - 1    cold ... count - 1
//!   is in         a cell     `top`                    `hot`
//! ```
//!
//! The cell of a slot at position `n` holds the slot at position `n - 8`. A cell that held the next
//! one would make each allocation wait for the memory of the one before; this way the cells of
//! eight allocations are on their way at once.

use crate::prefetch::prefetch;

/// Slots whose cells are not used; 256.
///
/// A freed block is described in its cell until that many more were freed. With more, its cell
/// would have left the caches by then.
pub(super) const HOT: usize = 1 << 8;
/// Cells that are loaded at once; 8, as a load from memory takes as long as about eight events.
const APART: usize = 8;

/// See the module documentation.
pub(super) struct FreedSlots {
    /// By position modulo [`HOT`].
    hot: Vec<u32>,
    count: usize,
    cold: usize,
    /// By position modulo [`APART`].
    top: [u32; APART],
}

impl FreedSlots {
    pub(super) fn new() -> Self {
        Self { hot: vec![0; HOT], count: 0, cold: 0, top: [0; APART] }
    }

    /// Adds a slot. `cells` has one for each slot.
    #[inline]
    pub(super) fn push(&mut self, slot: u32, cells: &mut [[u32; 1]]) {
        if self.count - self.cold == HOT {
            self.cool(cells);
        }
        if let Some(place) = self.hot.get_mut(self.count % HOT) {
            *place = slot;
        }
        self.count += 1;
    }

    /// Moves the earliest hot slot to the cold ones.
    #[inline]
    fn cool(&mut self, cells: &mut [[u32; 1]]) {
        let slot = self.hot.get(self.cold % HOT).copied().unwrap_or(0);
        let top = &mut self.top[self.cold % APART];
        // The first eight cells get numbers that nothing reads.
        let below = std::mem::replace(top, slot);
        if let Some(cell) = cells.get_mut(slot as usize) {
            *cell = [below];
        }
        self.cold += 1;
    }

    /// Removes the slot that was added last.
    #[inline]
    pub(super) fn pop(&mut self, cells: &[[u32; 1]]) -> Option<u32> {
        self.count = self.count.checked_sub(1)?;
        if self.count >= self.cold {
            return self.hot.get(self.count % HOT).copied();
        }
        self.cold = self.count;
        let top = &mut self.top[self.count % APART];
        let slot = *top;
        [*top] = *cells.get(slot as usize)?;
        prefetch(cells, *top as usize);
        Some(slot)
    }

    /// Returns all slots, the one that was added last at the end.
    pub(super) fn into_list(mut self, cells: &[[u32; 1]]) -> Vec<u32> {
        let mut list: Vec<u32> = std::iter::from_fn(|| self.pop(cells)).collect();
        list.reverse();
        list
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Frees that many slots at each step, or takes them again. Compares with a plain list.
    fn check(steps: &[i32]) {
        let mut cells: Vec<[u32; 1]> = Vec::new();
        let (mut free, mut expected) = (FreedSlots::new(), Vec::new());
        let mut live: Vec<u32> = Vec::new();
        for &step in steps {
            for _ in 0..step {
                if live.is_empty() {
                    live.push(cells.len() as u32);
                    cells.push([u32::MAX]);
                }
                let slot = live.swap_remove(live.len() / 3);
                free.push(slot, &mut cells);
                expected.push(slot);
            }
            for _ in step..0 {
                let slot = free.pop(&cells);
                assert_eq!(slot, expected.pop());
                if let Some(slot) = slot {
                    cells[slot as usize] = [u32::MAX];
                    live.push(slot);
                }
            }
        }
        assert_eq!(free.into_list(&cells), expected);
    }

    #[test]
    fn cold_slots_come_back_in_order() {
        let many = 3 * HOT as i32 + 5;
        check(&[many, -many, -1]);
        check(&[many, -many + 3, many, -7, 9, -2 * many]);
        check(&[HOT as i32, 1, -2, 2, 1, -9, 10, -many]);
    }

    proptest! {
        #[test]
        fn any_steps_give_what_a_list_gives(steps in proptest::collection::vec(-900_i32..900, 0..12)) {
            check(&steps);
        }
    }
}
