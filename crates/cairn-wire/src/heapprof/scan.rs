//! Finds magics in large memory, fast, without `unsafe`: the part of a search where the time goes.
//!
//! Memory is nearly free of magics, so it is looked at 64 bytes at a time with one question:
//! *could* one be here? The loops after that question have a fixed length and no branch, which is
//! what compilers turn into vector instructions (checked for SSE2 and NEON). Only a chunk that
//! answers yes is looked at place by place.

/// Bytes asked about at once: one cache line.
const CHUNK: usize = 64;

/// Returns the first place at or after `from` with one of the needles. Places are `from`,
/// `from + step`, …; a step is 1 or a multiple of 4.
pub(super) fn find<const N: usize>(
    memory: &[u8],
    from: usize,
    step: usize,
    needles: &[[u8; 4]; N],
) -> Option<usize> {
    let rest = memory.get(from..)?;
    let found = if step == 1 { find_anywhere(rest, needles) } else { find_in_words(rest, step, needles) }?;
    Some(from + found)
}

fn find_in_words<const N: usize>(memory: &[u8], step: usize, needles: &[[u8; 4]; N]) -> Option<usize> {
    let lanes = needles.map(u32::from_ne_bytes);
    let place_in = |bytes: &[u8]| {
        let index =
            bytes.chunks(step).position(|place| place.first_chunk().is_some_and(|p| needles.contains(p)));
        index.map(|index| index * step)
    };
    let mut skipped = 0;
    for chunk in memory.chunks_exact(CHUNK) {
        if chunk.first_chunk().is_some_and(|chunk| any_lane(chunk, &lanes)) {
            if let Some(place) = place_in(chunk) {
                return Some(skipped + place);
            }
        }
        skipped += CHUNK;
    }
    place_in(memory.get(skipped..)?).map(|place| skipped + place)
}

/// Returns whether one of the needles is among the 16 aligned lanes of the chunk.
#[inline]
fn any_lane<const N: usize>(chunk: &[u8; CHUNK], needles: &[u32; N]) -> bool {
    let mut hit = false;
    for lane in chunk.chunks_exact(4) {
        // Always four bytes; the fallback only keeps the loop free of a panic.
        let lane = u32::from_ne_bytes(*lane.first_chunk().unwrap_or(&[0; 4]));
        for &needle in needles {
            hit |= lane == needle;
        }
    }
    hit
}

fn find_anywhere<const N: usize>(memory: &[u8], needles: &[[u8; 4]; N]) -> Option<usize> {
    let place_in = |bytes: &[u8]| {
        bytes.windows(4).position(|place| place.first_chunk().is_some_and(|p| needles.contains(p)))
    };
    let mut skipped = 0;
    // A needle may start in the last bytes of a chunk, so each chunk comes with the three bytes
    // after it.
    let shifted = memory.get(3..)?;
    for (first, last) in memory.chunks_exact(CHUNK).zip(shifted.chunks_exact(CHUNK)) {
        let (Some(first_bytes), Some(last_bytes)) = (first.first_chunk(), last.first_chunk()) else { break };
        if any_ends(first_bytes, last_bytes, needles) {
            if let Some(place) = place_in(memory.get(skipped..skipped + CHUNK + 3)?) {
                return Some(skipped + place);
            }
        }
        skipped += CHUNK;
    }
    place_in(memory.get(skipped..)?).map(|place| skipped + place)
}

/// Returns whether a needle's first and last byte are in the chunk and the chunk three bytes later.
/// Both must be at the same index. Two of the four bytes are enough to be rare, and half the work.
#[inline]
fn any_ends<const N: usize>(chunk: &[u8; CHUNK], shifted: &[u8; CHUNK], needles: &[[u8; 4]; N]) -> bool {
    let mut hit = false;
    for (&first, &last) in chunk.iter().zip(shifted) {
        for needle in needles {
            hit |= (first == needle[0]) & (last == needle[3]);
        }
    }
    hit
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec;

    const NEEDLES: [[u8; 4]; 2] = [*b"HeaP", *b"ProF"];

    #[test]
    fn scan_finds_a_needle_at_every_position() {
        for size in [0, 3, 4, 63, 64, 67, 68, 130, 200] {
            for step in [1, 4, 8] {
                for from in [0, 1, 5] {
                    assert_eq!(find(&vec![b'H'; size], from, step, &NEEDLES), None);
                    for place in 0..size {
                        let mut memory = vec![b'P'; size];
                        let Some(bytes) = memory.get_mut(place..place + 4) else { continue };
                        bytes.copy_from_slice(b"ProF");
                        let expected = (place >= from && (place - from) % step == 0).then_some(place);
                        assert_eq!(
                            find(&memory, from, step, &NEEDLES),
                            expected,
                            "{size} {step} {from} {place}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn scan_finds_the_first_and_overlapping_needles() {
        let memory = b"..HeaProF....ProF";
        assert_eq!(find(memory, 0, 1, &NEEDLES), Some(2));
        assert_eq!(find(memory, 3, 1, &NEEDLES), Some(5));
        assert_eq!(find(memory, 6, 1, &NEEDLES), Some(13));
        assert_eq!(find(memory, 0, 1, &[*b"ProF"]), Some(5));
    }
}
