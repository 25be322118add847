//! What is broken among the blocks, and which block it happened from.

use super::annotated::{guard_damage, near};
use super::{Annotated, Block, BlockLayout, NearPlace};
use crate::image::Image;

/// A header that was overwritten lies at most so far behind the block it was overwritten from: the allocator's own header, and
/// the padding of an alignment.
const MAX_GAP_BYTES: u64 = 256;

/// Something that no sound program leaves behind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Damage {
    /// When the guard behind a block was written to.
    TailOverwritten {
        /// The block that was written past.
        block: Block,
        /// How many bytes past its end were changed, at least.
        bytes: u64,
    },
    /// When the header of a block is broken, and the block before it ends right there.
    HeaderOverwritten {
        /// The block that was most likely written past.
        before: Block,
        /// The user address of the block whose header is broken.
        user_address: u64,
        /// How its header was laid out.
        layout: BlockLayout,
    },
    /// When two blocks claim the same bytes: one of the headers is old, or its size was overwritten.
    Overlap {
        /// The one that begins first.
        first: Block,
        /// The one that begins inside of it.
        second: Block,
        /// How many bytes both claim.
        bytes: u64,
    },
    /// When a block goes past the end of the memory that it lies in.
    PastMemory {
        /// The block.
        block: Block,
    },
}

impl Annotated {
    /// What is broken, by address.
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
        // The block that reaches furthest of those that began.
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

    /// A magic without its other half, or with a wrong check, is mostly chance: user data, old headers. It counts where the
    /// block before ends right in front of it.
    fn broken_headers(&self, image: &Image, found: &mut Vec<Damage>) {
        let word = image.machine().word_size.bytes() as u64;
        for &(user_address, layout) in &self.suspects {
            // Headers of these two are words, and no allocator puts words across words: a magic there is data.
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

/// Whether memory lies between two addresses without a hole.
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
    /// Where it is.
    #[must_use]
    pub const fn address(&self) -> u64 {
        match self {
            Self::TailOverwritten { block, .. } | Self::PastMemory { block } => block.user_address,
            Self::HeaderOverwritten { user_address, .. } => *user_address,
            Self::Overlap { second, .. } => second.user_address,
        }
    }

    /// The block that is to blame, as far as that can be told.
    #[must_use]
    pub const fn block(&self) -> &Block {
        match self {
            Self::TailOverwritten { block, .. } | Self::PastMemory { block } => block,
            Self::HeaderOverwritten { before, .. } => before,
            Self::Overlap { first, .. } => first,
        }
    }
}
