//! The first question to memory: could something of interest be here? Asked of 64 bytes at once.
//!
//! All landmarks of the three layouts are told by one 32-bit word, and stand at the first or the second half of a machine word,
//! so one pass serves all. The loop behind the question has a fixed length and no branch, which compilers turn into vector
//! instructions; only where the answer is yes is a chunk looked at word by word. `memchr::memmem` finds one needle at a time, of
//! every alignment: five passes.

use cairn_format::WordSize;
use cairn_wire::heapblock::{ByteOrder, FREED_MAGIC, LIVE_MAGIC};

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

const HEAPPROF_START: u32 = 0x5061_6548;
const HEAPPROF_END: u32 = 0x466f_7250;
const CAIRN_LIVE: u32 = (LIVE_MAGIC as u32) << 16;
const CAIRN_FREED: u32 = (FREED_MAGIC as u32) << 16;
const ANCHOR: [u8; 4] = *b"cair";

/// Which of 64 bytes are worth a look. Of a word only the bits of the mask count: so a compare serves exact values and magics
/// alike. Both are for words at even and at odd places, twice: the four words of the narrowest vectors.
#[derive(Clone, Copy, Debug)]
struct Filter<const WANTED: usize> {
    mask: [u32; 4],
    wanted: [[u32; 4]; WANTED],
}

impl<const WANTED: usize> Filter<WANTED> {
    /// `wanted` is what stands at even and what at odd places, as a little-endian load sees it.
    fn new(mask: [u32; 2], wanted: [[u32; 2]; WANTED]) -> Self {
        let twice = |[even, odd]: [u32; 2]| [even, odd, even, odd];
        Self { mask: twice(mask), wanted: wanted.map(|[even, odd]| twice([even & mask[0], odd & mask[1]])) }
    }

    #[inline(always)]
    fn is_in(&self, chunk: &[u8; CHUNK]) -> bool {
        // Whole words as the answer: bits that are packed after every compare cost as much as the compares.
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

/// As few compares as the machine allows.
#[derive(Clone, Copy, Debug)]
enum Filters {
    /// 64 bits, little-endian.
    Three(Filter<3>),
    /// 64 bits, big-endian: the halves of heapprof's magics that are not zero stand where cairn's do.
    Four(Filter<4>),
    /// 32 bits: everything can be everywhere.
    Five(Filter<5>),
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

    /// Calls `found` for each landmark in `memory`, which begins at address `base`, a multiple of four, from index `from` on.
    /// Words that cannot be landmarks by their place are told of or not.
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
        // Chunks begin at a multiple of eight.
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
    fn landmarks_are_found_at_every_place_where_they_can_be() {
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
    fn the_search_begins_where_it_is_told() {
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
