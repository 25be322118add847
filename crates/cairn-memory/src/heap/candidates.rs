//! Prefilters memory: finds 64-byte chunks that may contain a landmark.
//!
//! All landmarks of the three layouts are recognised by one 32-bit word in the first or second half
//! of a machine word, so one pass finds them all. The filter loop has a fixed length and no branch,
//! so compilers vectorize it; only chunks with a hit are searched word by word. `memchr::memmem`
//! would need five passes, because it finds one needle at a time, at every alignment.

use cairn_format::WordSize;
use cairn_wire::heapblock::{ByteOrder, FREED_MAGIC, LIVE_MAGIC};

/// Bytes per chunk; 64, one cache line.
const CHUNK: usize = 64;

/// The landmarks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Landmark {
    /// The nonzero half of heapprof's start magic.
    HeapprofStart,
    /// The nonzero half of heapprof's end magic.
    HeapprofEnd,
    /// The last word of a cairn header, which contains its magic.
    CairnHeader,
    /// The first bytes of an annotated heap's anchor.
    Anchor,
}

const HEAPPROF_START: u32 = 0x5061_6548;
const HEAPPROF_END: u32 = 0x466f_7250;
const CAIRN_LIVE: u32 = (LIVE_MAGIC as u32) << 16;
const CAIRN_FREED: u32 = (FREED_MAGIC as u32) << 16;
const ANCHOR: [u8; 4] = *b"cair";

/// Finds candidate words in a chunk.
///
/// The mask selects the compared bits, so that exact values and magics need the same comparison.
/// The arrays hold even and odd positions twice: the narrowest vectors have four words.
#[derive(Clone, Copy, Debug)]
struct Filter<const WANTED: usize> {
    mask: [u32; 4],
    wanted: [[u32; 4]; WANTED],
}

impl<const WANTED: usize> Filter<WANTED> {
    /// Creates a filter.
    ///
    /// `wanted` are the values at even and odd positions, as little-endian loads see them.
    fn new(mask: [u32; 2], wanted: [[u32; 2]; WANTED]) -> Self {
        let twice = |[even, odd]: [u32; 2]| [even, odd, even, odd];
        Self { mask: twice(mask), wanted: wanted.map(|[even, odd]| twice([even & mask[0], odd & mask[1]])) }
    }

    #[inline(always)]
    fn is_in(&self, chunk: &[u8; CHUNK]) -> bool {
        // Accumulate whole words: packing bits after every comparison costs as much as the
        // comparisons.
        let mut hits = [0_u32; 4];
        for vector in chunk.as_chunks::<16>().0 {
            let words = vector.as_chunks::<4>().0;
            for (lane, (hit, word)) in hits.iter_mut().zip(words).enumerate() {
                let word = u32::from_le_bytes(*word) & self.mask[lane];
                for wanted in &self.wanted {
                    *hit |= if word == wanted[lane] { u32::MAX } else { 0 };
                }
            }
        }
        hits.into_iter().fold(0, |all, hit| all | hit) != 0
    }
}

/// The smallest filter for each machine.
#[derive(Clone, Copy, Debug)]
enum Filters {
    /// 64 bits, little-endian.
    Three(Filter<3>),
    /// 64 bits, big-endian: the nonzero halves of heapprof's magics have the same positions as
    /// cairn's.
    Four(Filter<4>),
    /// 32 bits: every landmark can be at every position.
    Five(Filter<5>),
}

/// The words to search for, as little-endian loads see them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Landmarks {
    start: u32,
    end: u32,
    live: u32,
    freed: u32,
    magic_mask: u32,
    anchor: u32,
    filters: Filters,
}

impl Landmarks {
    pub(super) fn new(word_size: WordSize, order: ByteOrder) -> Self {
        let seen = |value: u32| u32::from_le_bytes(order.u32_bytes(value));
        let [start, end, live, freed] = [HEAPPROF_START, HEAPPROF_END, CAIRN_LIVE, CAIRN_FREED].map(seen);
        let magic_mask = seen(0xffff_0000);
        let anchor = u32::from_le_bytes(ANCHOR);
        let filters = match (word_size, order) {
            (WordSize::Bits64, ByteOrder::LittleEndian) => Filters::Three(Filter::new(
                [u32::MAX, magic_mask],
                [[start, live], [end, freed], [anchor, live]],
            )),
            (WordSize::Bits64, ByteOrder::BigEndian) => Filters::Four(Filter::new(
                [u32::MAX, magic_mask],
                [start, end, live, freed].map(|odd| [anchor, odd]),
            )),
            _ => Filters::Five(Filter::new(
                [magic_mask; 2],
                [start, end, live, freed, anchor].map(|anywhere| [anywhere; 2]),
            )),
        };
        Self { start, end, live, freed, magic_mask, anchor, filters }
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

    /// Calls `found` for each landmark in `memory` from index `from` on.
    ///
    /// `memory` begins at address `base`, a multiple of four. Words at positions where a landmark
    /// cannot be may or may not be reported.
    pub(super) fn each(&self, base: u64, memory: &[u8], from: usize, found: impl FnMut(usize, Landmark)) {
        match &self.filters {
            Filters::Three(filter) => self.each_by(filter, base, memory, from, found),
            Filters::Four(filter) => self.each_by(filter, base, memory, from, found),
            Filters::Five(filter) => self.each_by(filter, base, memory, from, found),
        }
    }

    #[inline(always)]
    fn each_by<const WANTED: usize>(
        &self,
        filter: &Filter<WANTED>,
        base: u64,
        memory: &[u8],
        from: usize,
        mut found: impl FnMut(usize, Landmark),
    ) {
        let from = from.next_multiple_of(4);
        let Some(rest) = memory.get(from..) else { return };
        // Chunks begin at multiples of eight.
        let before = if base.wrapping_add(from as u64).is_multiple_of(8) { 0 } else { 4.min(rest.len()) };
        let (head, rest) = rest.split_at(before);
        let (chunks, tail) = rest.as_chunks::<CHUNK>();
        let mut words = |bytes: &[u8], at: usize| {
            for (index, word) in bytes.as_chunks::<4>().0.iter().enumerate() {
                if let Some(landmark) = self.of(u32::from_le_bytes(*word)) {
                    found(at + index * 4, landmark);
                }
            }
        };
        words(head, from);
        let from = from + before;
        for (index, chunk) in chunks.iter().enumerate() {
            if filter.is_in(chunk) {
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
    fn landmarks_are_found_at_every_position() {
        use ByteOrder::{BigEndian, LittleEndian};
        let all_places = [0, 4];
        for (word_size, order, heapprof, cairn, anchor) in [
            (WordSize::Bits64, LittleEndian, &[0][..], &[4][..], &[0][..]),
            (WordSize::Bits64, BigEndian, &[4], &[4], &[0]),
            (WordSize::Bits32, LittleEndian, &all_places, &all_places, &all_places),
            (WordSize::Bits32, BigEndian, &all_places, &all_places, &all_places),
        ] {
            let landmarks = Landmarks::new(word_size, order);
            let words = [
                (order.u32_bytes(HEAPPROF_START), Landmark::HeapprofStart, heapprof),
                (order.u32_bytes(HEAPPROF_END), Landmark::HeapprofEnd, heapprof),
                (order.u32_bytes(0xca1a_1234), Landmark::CairnHeader, cairn),
                (order.u32_bytes(0xf4ee_0000), Landmark::CairnHeader, cairn),
                (ANCHOR, Landmark::Anchor, anchor),
            ];
            for (word, landmark, remainders) in words {
                for (base, from, place) in
                    (0..200).flat_map(|place| [(0, 0, place), (4, 0, place), (8, 12, place)])
                {
                    let mut memory = vec![0x20; 220];
                    memory[place..place + 4].copy_from_slice(&word);
                    let mut all = Vec::new();
                    landmarks.each(base, &memory, from, |at, what| all.push((at, what)));
                    let is_possible = remainders.contains(&((place + base as usize) % 8)) && place >= from;
                    if is_possible {
                        assert_eq!(all, [(place, landmark)], "{base} {place} {word_size:?} {order:?}");
                    } else if place % 4 != 0 || place < from {
                        assert_eq!(all, [], "{base} {place} {word_size:?} {order:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn landmark_search_starts_at_the_given_index() {
        let mut seen = Vec::new();
        Landmarks::new(WordSize::Bits32, ByteOrder::LittleEndian).each(
            0,
            b"HeaPHeaPcairProF",
            3,
            |at, what| seen.push((at, what)),
        );
        let expected = [(4, Landmark::HeapprofStart), (8, Landmark::Anchor), (12, Landmark::HeapprofEnd)];
        assert_eq!(seen, expected);
    }
}
