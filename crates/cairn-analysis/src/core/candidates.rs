//! The first question to memory: could something of interest be here? Asked of 64 bytes at once.
//!
//! All landmarks of the three layouts stand at multiples of four and are told by one 32-bit word, so one pass serves all. The
//! loop behind the question has a fixed length and no branch, which compilers turn into vector instructions; only where the
//! answer is yes is a chunk looked at word by word. `memchr::memmem` finds one needle at a time, of every alignment: five
//! passes.

use cairn_format::heapblock::{ByteOrder, FREED_MAGIC, LIVE_MAGIC};

/// One cache line.
const CHUNK: usize = 64;

/// What a word may be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Landmark {
    /// The half of heapprof's first magic that is not zero.
    HeapprofStart,
    /// The half of heapprof's second one.
    HeapprofEnd,
    /// The last word of a cairn header, by its magic.
    CairnHeader,
    /// The first bytes of an annotated heap's anchor.
    Anchor,
}

/// Words as a little-endian load sees them, which is the fast one here.
#[derive(Clone, Copy, Debug)]
pub(super) struct Landmarks {
    start: u32,
    end: u32,
    live: u32,
    freed: u32,
    magic_mask: u32,
    anchor: u32,
}

impl Landmarks {
    pub(super) fn new(order: ByteOrder) -> Self {
        let seen = |value: u32| u32::from_le_bytes(order.u32_bytes(value));
        Self {
            start: seen(0x5061_6548),
            end: seen(0x466f_7250),
            live: seen(u32::from(LIVE_MAGIC) << 16),
            freed: seen(u32::from(FREED_MAGIC) << 16),
            magic_mask: seen(0xffff_0000),
            anchor: u32::from_le_bytes(*b"cair"),
        }
    }

    #[inline]
    fn is_in(&self, chunk: &[u8; CHUNK]) -> bool {
        // Whole words as the answer: bits that are packed after every compare cost as much as the compares.
        let mut hits = [0_u32; CHUNK / 4];
        for (word, hit) in chunk.as_chunks::<4>().0.iter().zip(&mut hits) {
            let word = u32::from_le_bytes(*word);
            let upper = word & self.magic_mask;
            let is = |yes: bool| if yes { u32::MAX } else { 0 };
            *hit = is(word == self.start)
                | is(word == self.end)
                | is(word == self.anchor)
                | is(upper == self.live)
                | is(upper == self.freed);
        }
        hits.into_iter().fold(0, |all, hit| all | hit) != 0
    }

    #[inline]
    fn of(&self, word: u32) -> Option<Landmark> {
        let upper = word & self.magic_mask;
        if upper == self.live || upper == self.freed {
            Some(Landmark::CairnHeader)
        } else if word == self.start {
            Some(Landmark::HeapprofStart)
        } else if word == self.end {
            Some(Landmark::HeapprofEnd)
        } else if word == self.anchor {
            Some(Landmark::Anchor)
        } else {
            None
        }
    }

    /// Calls `found` for each landmark in `memory`, which begins at a multiple of four, from index `from` on.
    pub(super) fn each(&self, memory: &[u8], from: usize, mut found: impl FnMut(usize, Landmark)) {
        let from = from.next_multiple_of(4);
        let Some(rest) = memory.get(from..) else { return };
        let (chunks, tail) = rest.as_chunks::<CHUNK>();
        let mut words = |bytes: &[u8], at: usize| {
            for (index, word) in bytes.as_chunks::<4>().0.iter().enumerate() {
                if let Some(landmark) = self.of(u32::from_le_bytes(*word)) {
                    found(at + index * 4, landmark);
                }
            }
        };
        for (index, chunk) in chunks.iter().enumerate() {
            if self.is_in(chunk) {
                words(chunk, from + index * CHUNK);
            }
        }
        words(tail, from + chunks.len() * CHUNK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn landmarks_are_found_at_every_aligned_place_and_nowhere_else() {
        for order in [ByteOrder::LittleEndian, ByteOrder::BigEndian] {
            let landmarks = Landmarks::new(order);
            let words = [
                (0x5061_6548, Landmark::HeapprofStart),
                (0x466f_7250, Landmark::HeapprofEnd),
                (0xca1a_1234, Landmark::CairnHeader),
                (0xf4ee_0000, Landmark::CairnHeader),
            ];
            for (word, landmark) in words {
                for place in 0..200 {
                    let mut memory = vec![0x20; 220];
                    memory[place..place + 4].copy_from_slice(&order.u32_bytes(word));
                    let mut all = Vec::new();
                    landmarks.each(&memory, 0, |at, what| all.push((at, what)));
                    let expected = if place % 4 == 0 { vec![(place, landmark)] } else { vec![] };
                    assert_eq!(all, expected, "{place}");
                }
            }
        }
    }

    #[test]
    fn the_search_begins_where_it_is_told() {
        let mut seen = Vec::new();
        Landmarks::new(ByteOrder::LittleEndian)
            .each(b"HeaPHeaPcairProF", 3, |at, what| seen.push((at, what)));
        let expected = [(4, Landmark::HeapprofStart), (8, Landmark::Anchor), (12, Landmark::HeapprofEnd)];
        assert_eq!(seen, expected);
    }
}
