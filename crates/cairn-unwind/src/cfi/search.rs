//! Finds `.eh_frame` in a loaded segment of a module that has no `.eh_frame_hdr`.
//!
//! Some compilers link static programs without the header, and nothing in memory then refers to the
//! table: the symbol at its start is local to a start file, and section headers are not loaded. But
//! the table is a chain, each entry with its length and each FDE with the distance to its CIE, up
//! to a terminator or the end of the segment:
//!
//! ```text
//!   .rodata … | CIE | FDE | FDE | CIE | FDE | … | FDE | 0 |  .gcc_except_table …
//!             ^ the first place from which a chain leads to the terminator and covers the given code
//! ```

use cairn_format::{AbsoluteAddress, WordSize};

use super::entry::FrameEntries;
use super::table::{Bases, Flavor, FrameTable, Section};

/// Maximum entries of one search; more than a program of 1 GB has. It bounds the time for a damaged
/// table or a hostile segment, in which each place could begin another chain.
const MOST_ENTRIES: u32 = 1 << 22;

/// Alignment of entries; 4 in all files that compilers emit.
const ALIGNMENT: usize = 4;

/// Lengths of the first entry, a CIE. It has some ten bytes, an augmentation string and initial
/// instructions.
const CIE_BYTES: core::ops::RangeInclusive<u32> = 8..=0x1000;

/// Finds the `.eh_frame` in `segment` that covers `code`, with its terminator.
///
/// `None` when there is none, or when it is damaged before the terminator.
///
/// ```
/// use cairn_format::{AbsoluteAddress, WordSize};
/// use cairn_unwind::cfi::{Section, find_frames};
///
/// let segment = Section::new(b"no table is in here", AbsoluteAddress::new(0x40_0000));
/// assert!(find_frames(segment, AbsoluteAddress::new(0x40_1000), WordSize::Bits64).is_none());
/// ```
#[must_use]
pub fn find_frames<'a>(
    segment: Section<'a>,
    code: AbsoluteAddress,
    word_size: WordSize,
) -> Option<Section<'a>> {
    let mut budget = MOST_ENTRIES;
    let mut from = (segment.address.value() as usize).wrapping_neg() % ALIGNMENT;
    while let Some(bytes) = segment.bytes.get(from..).filter(|bytes| !bytes.is_empty()) {
        let address = segment.address.checked_add(from as u64)?;
        let mut next = from + ALIGNMENT;
        if may_begin(bytes)
            && let Some((length, covers)) = chain(Section::new(bytes, address), code, word_size, &mut budget)
        {
            if covers {
                return Some(Section::new(bytes.get(..length)?, address));
            }
            // Skips another table as a whole: chains that begin within it end at its end.
            next = next.max(from + length);
        }
        if budget == 0 {
            return None;
        }
        from = next.next_multiple_of(ALIGNMENT);
    }
    None
}

/// True when these bytes could be a CIE: a length, an id of 0, a version.
fn may_begin(bytes: &[u8]) -> bool {
    let Some(&[l0, l1, l2, l3, 0, 0, 0, 0, version]) = bytes.first_chunk() else { return false };
    matches!(version, 1 | 3 | 4) && CIE_BYTES.contains(&u32::from_le_bytes([l0, l1, l2, l3]))
}

/// Follows a chain to its terminator, or the end of the segment. Returns its length with the
/// terminator, and whether an FDE of it covers `code`; `None` when the chain breaks.
fn chain(
    frames: Section<'_>,
    code: AbsoluteAddress,
    word_size: WordSize,
    budget: &mut u32,
) -> Option<(usize, bool)> {
    let table = FrameTable::linear(Flavor::EhFrame, frames, Bases::default(), word_size);
    let mut entries: FrameEntries<'_> = table.entries();
    let mut covers = false;
    for entry in entries.by_ref() {
        *budget = budget.checked_sub(1)?;
        covers |= entry.ok()?.range.contains(code);
    }
    match *frames.bytes.get(entries.offset()..)? {
        // A program that is linked without the usual start files has no terminator, and the table
        // may end its segment.
        [] => Some((entries.offset(), covers)),
        [0, 0, 0, 0, ..] => Some((entries.offset() + 4, covers)),
        _ => None,
    }
}
