//! Overlays address ranges: a later announcement replaces what it covers.
//!
//! Just-in-time compilers reuse memory, and the last code at an address is the one wanted.

use std::collections::BinaryHeap;

/// Disjoint ranges in ascending order, each with the number of its announcement.
#[derive(Debug, Default)]
pub(crate) struct Overlay {
    pieces: Vec<Piece>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Piece {
    start: u64,
    end: u64,
    number: u32,
}

impl Overlay {
    /// Builds the overlay from ranges in order of announcement. Empty ranges are ignored.
    ///
    /// One sweep over ascending addresses, with the open ranges in a heap, latest on top. At most
    /// two pieces result per range, whatever the overlaps.
    pub(crate) fn new(ranges: impl IntoIterator<Item = (u64, u64)>) -> Self {
        let mut starts: Vec<Piece> =
            (0..).zip(ranges).map(|(number, (start, end))| Piece { start, end, number }).collect();
        starts.retain(|piece| piece.start < piece.end);
        starts.sort_unstable_by_key(|piece| (piece.start, piece.number));
        let mut ends: Vec<u64> = starts.iter().map(|piece| piece.end).collect();
        ends.sort_unstable();
        ends.dedup();

        let mut latest = Self::default();
        let mut open: BinaryHeap<(u32, u64)> = BinaryHeap::new();
        let (mut starts, mut ends) = (starts.into_iter().peekable(), ends.into_iter().peekable());
        let mut at = 0;
        while let Some(&end) = ends.peek() {
            let next = starts.peek().map_or(end, |piece| piece.start.min(end));
            if let Some(&(number, _)) = open.peek() {
                latest.push(Piece { start: at, end: next, number });
            }
            at = next;
            while let Some(piece) = starts.next_if(|piece| piece.start == at) {
                open.push((piece.number, piece.end));
            }
            ends.next_if_eq(&at);
            while open.peek().is_some_and(|&(_, end)| end <= at) {
                open.pop();
            }
        }
        latest
    }

    fn push(&mut self, piece: Piece) {
        match self.pieces.last_mut() {
            _ if piece.start >= piece.end => {}
            Some(last) if last.end == piece.start && last.number == piece.number => last.end = piece.end,
            _ => self.pieces.push(piece),
        }
    }

    /// Finds the number of the latest announcement that covers an address.
    pub(crate) fn find(&self, address: u64) -> Option<u32> {
        let index = self.pieces.partition_point(|piece| piece.end <= address);
        self.pieces.get(index).filter(|piece| piece.start <= address).map(|piece| piece.number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(ranges: &[(u64, u64)]) {
        let latest = Overlay::new(ranges.iter().copied());
        for address in 0..64 {
            let expected = ranges.iter().rposition(|&(start, end)| (start..end).contains(&address));
            assert_eq!(latest.find(address), expected.map(|index| index as u32), "{address} in {ranges:?}");
        }
        assert!(latest.pieces.len() <= 2 * ranges.len());
    }

    #[test]
    fn overlay_finds_the_last_covering_range() {
        check(&[]);
        check(&[(3, 9)]);
        check(&[(3, 3), (5, 4)]);
        check(&[(3, 9), (9, 12), (1, 3)]);
        check(&[(0, 20), (5, 10)]);
        check(&[(5, 10), (0, 20)]);
        check(&[(0, 10), (5, 20), (8, 12), (0, 2), (15, u64::MAX)]);
    }

    #[test]
    fn overlay_equals_a_backward_search() {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut random = |bound: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % bound
        };
        for _ in 0..500 {
            let count = random(12);
            let ranges: Vec<(u64, u64)> = (0..count).map(|_| (random(64), random(64))).collect();
            check(&ranges);
        }
    }
}
