//! Finds damage among annotated blocks, and the block that was written past.

use super::annotated::{guard_damage, near};
use super::{Annotated, Block, BlockLayout, NearPlace};
use crate::image::Image;

/// Maximum bytes between a block and a destroyed header after it; 256.
///
/// This covers the allocator's own header and alignment padding when a write past the block's end
/// destroyed the header.
const MAX_GAP_BYTES: u64 = 256;

/// A state that no correct program produces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Damage {
    /// When the guard after a block was overwritten.
    TailOverwritten {
        /// The block that was written past.
        block: Block,
        /// Minimum number of changed bytes past its end.
        bytes: u64,
    },
    /// When the header of a block is broken, and the block before it ends right there.
    HeaderOverwritten {
        /// The block that was most likely written past.
        before: Block,
        /// The user address of the block with the broken header.
        user_address: u64,
        /// The layout of the broken header.
        layout: BlockLayout,
    },
    /// When two blocks claim the same bytes: one header is stale, or its size was overwritten.
    Overlap {
        /// The block that begins first.
        first: Block,
        /// The block that begins inside the first.
        second: Block,
        /// The number of shared bytes.
        bytes: u64,
    },
    /// When a block extends past the end of its memory.
    PastMemory {
        /// The block.
        block: Block,
    },
}

impl Annotated {
    /// Returns all damage, by address.
    #[must_use]
    pub fn damage(&self, image: &Image) -> Vec<Damage> {
        let mut found = Vec::new();
        for block in self.blocks().iter().filter(|block| block.is_guarded) {
            let bytes = guard_damage(image, block);
            if bytes > 0 {
                found.push(Damage::TailOverwritten { block: *block, bytes });
            }
        }
        self.overlaps(image, &mut found);
        self.broken_headers(image, &mut found);
        found.sort_by_key(Damage::address);
        found
    }

    fn overlaps(&self, image: &Image, found: &mut Vec<Damage>) {
        // The started block with the highest end.
        let mut furthest: Option<Block> = None;
        for block in self.blocks() {
            if let Some(first) = furthest
                && first.end() > block.start()
                && first.user_address != block.user_address
            {
                let bytes = first.end().min(block.end()).saturating_sub(block.start());
                found.push(Damage::Overlap { first, second: *block, bytes });
            }
            if furthest.is_none_or(|first| block.end() > first.end()) {
                furthest = Some(*block);
            }
            let last = block.end().max(block.user_address + 1) - 1;
            if block.size_bytes > 0 && !is_one_stretch(image, block.user_address, last) {
                found.push(Damage::PastMemory { block: *block });
            }
        }
    }

    /// Reports broken headers.
    ///
    /// A magic without its other half, or with a wrong check, is mostly chance: user data or stale
    /// headers. It counts only directly after another block.
    fn broken_headers(&self, image: &Image, found: &mut Vec<Damage>) {
        let word = image.machine().word_size.bytes() as u64;
        for &(user_address, layout) in &self.suspects {
            // Headers of these two consist of words, which allocators align: an unaligned magic is
            // data.
            if layout != BlockLayout::Lws && !user_address.is_multiple_of(word) {
                continue;
            }
            let header = match layout {
                BlockLayout::Heapprof => {
                    let Some(callers) = self.usual_caller_count() else { continue };
                    user_address.saturating_sub((callers + 3) * word)
                }
                _ => user_address.saturating_sub(16),
            };
            let Some(before) = near(self.blocks(), header) else { continue };
            if let NearPlace::Behind(gap) = before.place
                && gap <= MAX_GAP_BYTES
                && before.block.layout == Some(layout)
            {
                found.push(Damage::HeaderOverwritten { before: before.block, user_address, layout });
            }
        }
    }
}

/// Reports whether memory is contiguous between two addresses.
fn is_one_stretch(image: &Image, first: u64, last: u64) -> bool {
    let mut at = first;
    loop {
        let Some(piece) = image.piece_at(cairn_format::AbsoluteAddress::new(at)) else { return false };
        if piece.range.end.value() > last {
            return true;
        }
        at = piece.range.end.value();
    }
}

impl Damage {
    /// Returns the address of the damage.
    #[must_use]
    pub const fn address(&self) -> u64 {
        match self {
            Self::TailOverwritten { block, .. } | Self::PastMemory { block } => block.user_address,
            Self::HeaderOverwritten { user_address, .. } => *user_address,
            Self::Overlap { second, .. } => second.user_address,
        }
    }

    /// Returns the most likely culprit.
    #[must_use]
    pub const fn block(&self) -> &Block {
        match self {
            Self::TailOverwritten { block, .. } | Self::PastMemory { block } => block,
            Self::HeaderOverwritten { before, .. } => before,
            Self::Overlap { first, .. } => first,
        }
    }
}
