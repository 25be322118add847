//! Finds blocks of the lws layout, which has no magic, by the lists of live blocks.
//!
//! A node is `previous, next, owner`; an owner is `last, first, count`. An address is a node if its
//! neighbours point back at it (or the owner does, at an end) and a blob that decodes precedes it.
//! Two pointers of machine width must agree, which rules out chance.
//!
//! Blocks whose allocator dropped the stack have no blob and cannot be recognised that way. If an
//! anchor states the addresses of the lists, those are also walked, unless all their blocks were
//! found.

use std::collections::{HashMap, HashSet};

use cairn_format::{AbsoluteAddress, WordSize};
use cairn_unwind::MemoryReader;
use cairn_wire::heapblock::{Anchor, ByteOrder};
use cairn_wire::lws;

use super::{Block, BlockLayout, BlockStacks};
use crate::image::Image;

/// Maximum bytes of a blob; 2 KiB, because a depth of 127 with 64-bit addresses takes 1.3.
const MAX_BLOB_BYTES: u16 = 2048;

/// Maximum lists of a heap; 65536, more than any number of shards.
const MAX_LISTS: u32 = 1 << 16;

/// Words that are filtered at once.
const ROW: usize = 8;

pub(super) struct Nodes<'a> {
    image: &'a Image,
    /// From the lowest writable address to the highest, which contain all lists.
    lowest: u64,
    span: u64,
    /// Number of found blocks per list.
    found: HashMap<u64, u64>,
    /// Lists that were walked, so that several anchors do not repeat the walk.
    walked: HashSet<u64>,
}

impl<'a> Nodes<'a> {
    pub(super) fn new(image: &'a Image) -> Self {
        let writable = || image.pieces().iter().filter(|piece| piece.is_writable && !piece.is_from_file);
        let lowest = writable().map(|piece| piece.range.start.value()).min().unwrap_or(0);
        let highest = writable().map(|piece| piece.range.end.value()).max().unwrap_or(0);
        Self {
            image,
            lowest,
            span: highest.saturating_sub(lowest),
            found: HashMap::new(),
            walked: HashSet::new(),
        }
    }

    /// Searches a window; its first `seen_bytes` were searched before.
    pub(super) fn look(
        &mut self,
        start: u64,
        window: &[u8],
        seen_bytes: u64,
        stacks: &mut BlockStacks,
        blocks: &mut Vec<Block>,
    ) {
        let machine = self.image.machine();
        let word = machine.word_size.bytes();
        let skip = (start.next_multiple_of(word as u64) - start) as usize;
        let Some(aligned) = window.get(skip..) else { return };
        let base = start + skip as u64;
        // A node was processed once all three of its words were visible.
        let from = (seen_bytes.saturating_sub(skip as u64) as usize / word).saturating_sub(2).max(1);
        match (machine.word_size, machine.byte_order) {
            (WordSize::Bits64, ByteOrder::LittleEndian) => {
                self.each::<8>(base, aligned, from, u64::from_le_bytes, stacks, blocks);
            }
            (WordSize::Bits64, ByteOrder::BigEndian) => {
                self.each::<8>(base, aligned, from, u64::from_be_bytes, stacks, blocks);
            }
            (_, ByteOrder::LittleEndian) => {
                self.each::<4>(base, aligned, from, |bytes| u32::from_le_bytes(bytes).into(), stacks, blocks);
            }
            (_, ByteOrder::BigEndian) => {
                self.each::<4>(base, aligned, from, |bytes| u32::from_be_bytes(bytes).into(), stacks, blocks);
            }
        }
    }

    #[inline]
    fn each<const WORD: usize>(
        &mut self,
        base: u64,
        memory: &[u8],
        from: usize,
        number: impl Fn([u8; WORD]) -> u64 + Copy,
        stacks: &mut BlockStacks,
        blocks: &mut Vec<Block>,
    ) {
        let words = memory.as_chunks::<WORD>().0;
        // An owner is in memory: the upper halves of the words exclude most others, several at a
        // time.
        let shift = if WORD == 8 { 32 } else { 0 };
        let (first, last) = (self.lowest >> shift, self.lowest.saturating_add(self.span) >> shift);
        let (lowest, span) = (first as u32, u32::try_from(last - first).unwrap_or(u32::MAX));
        let mut index = from;
        while let Some(owners) = words.get(index + 2..).and_then(|owners| owners.first_chunk::<ROW>()) {
            let mut may_be = 0;
            for &owner in owners {
                let upper = (number(owner) >> shift) as u32;
                may_be |= u32::from(upper.wrapping_sub(lowest) <= span);
            }
            if may_be != 0 {
                for index in index..index + ROW {
                    blocks.extend(self.block_at(base, words, index, number, stacks));
                }
            }
            index += ROW;
        }
        for index in index..words.len().saturating_sub(2) {
            blocks.extend(self.block_at(base, words, index, number, stacks));
        }
    }

    /// Returns the block whose node is at this index, if there is one.
    #[inline]
    fn block_at<const WORD: usize>(
        &mut self,
        base: u64,
        words: &[[u8; WORD]],
        index: usize,
        number: impl Fn([u8; WORD]) -> u64,
        stacks: &mut BlockStacks,
    ) -> Option<Block> {
        let is_place =
            |address: u64| address.wrapping_sub(self.lowest) < self.span && address & (WORD as u64 - 1) == 0;
        // The word before a node ends with the blob's length, which is small.
        let before = words.get(index.checked_sub(1)?)?;
        let length = u16::from_be_bytes([*before.get(WORD - 2)?, *before.get(WORD - 1)?]);
        if length.wrapping_sub(3) >= MAX_BLOB_BYTES {
            return None;
        }
        let [previous, next, owner] = *words.get(index..)?.first_chunk::<3>()?;
        let (previous, next, owner) = (number(previous), number(next), number(owner));
        if !is_place(owner) || previous != 0 && !is_place(previous) || next != 0 && !is_place(next) {
            return None;
        }
        let node = base + (index * WORD) as u64;
        if !self.is_linked(node, previous, next, owner, WORD as u64) {
            return None;
        }
        let block = self.block(node, length, WORD as u64, stacks)?;
        *self.found.entry(owner).or_default() += 1;
        Some(block)
    }

    /// Adds the blocks on a heap's lists that the scan did not find.
    ///
    /// Expects `blocks` sorted by address, and appends to it.
    pub(super) fn walk(&mut self, anchor: &Anchor, stacks: &mut BlockStacks, blocks: &mut Vec<Block>) {
        let word = self.image.machine().word_size.bytes() as u64;
        if anchor.layout != BlockLayout::Lws || u64::from(anchor.list_stride_bytes) < 3 * word {
            return;
        }
        let sorted = blocks.len();
        for list in 0..u64::from(anchor.list_count.min(MAX_LISTS)) {
            let offset = list * u64::from(anchor.list_stride_bytes);
            let Some(owner) = anchor.lists_address.checked_add(offset) else { return };
            let at = |index: u64| self.image.word(owner.checked_add(index * word)?);
            // The lists are contiguous: if one is unreadable, so are the rest.
            let (Some(last), Some(first), Some(count)) = (at(0), at(1), at(2)) else { return };
            if count <= self.found.get(&owner).copied().unwrap_or(0) || !self.walked.insert(owner) {
                continue;
            }
            // If the list is broken, the part before the other end may be intact.
            for (first, next, back) in [(first, 1, 0), (last, 0, 1)] {
                let is_whole = self.follow(owner, first, (next, back), |node| {
                    let Some(user_address) = node.checked_add(3 * word) else { return };
                    let is_known = |blocks: &[Block]| {
                        let from = blocks.partition_point(|block| block.user_address < user_address);
                        let same =
                            blocks.iter().skip(from).take_while(|block| block.user_address == user_address);
                        same.into_iter().any(|block| block.layout == Some(BlockLayout::Lws))
                    };
                    if !blocks.get(..sorted).is_some_and(is_known) {
                        blocks.extend(self.listed(node, word, stacks));
                    }
                });
                if is_whole {
                    break;
                }
            }
        }
    }

    /// Calls `visit` with each node from one end of a list, and reports whether the other end was
    /// reached.
    ///
    /// Each node must link back to the previous one, so a cycle is impossible.
    fn follow(&self, owner: u64, first: u64, (next, back): (u64, u64), mut visit: impl FnMut(u64)) -> bool {
        let word = self.image.machine().word_size.bytes() as u64;
        let (mut before, mut node) = (0, first);
        while node != 0 {
            let at = |index: u64| self.image.word(node.checked_add(index * word)?);
            if !node.is_multiple_of(word) || at(back) != Some(before) || at(2) != Some(owner) {
                return false;
            }
            let Some(following) = at(next) else { return false };
            visit(node);
            (before, node) = (node, following);
        }
        true
    }

    /// Reads a block that is known to be one. The size is unknown if the allocator dropped the
    /// stack.
    fn listed(&self, node: u64, word: u64, stacks: &mut BlockStacks) -> Option<Block> {
        let mut length = [0; 2];
        self.image.read(AbsoluteAddress::new(node.checked_sub(2)?), &mut length)?;
        let length = u16::from_be_bytes(length);
        if (3..=MAX_BLOB_BYTES).contains(&length)
            && let Some(block) = self.block(node, length, word, stacks)
        {
            return Some(block);
        }
        Some(Block {
            user_address: node.checked_add(3 * word)?,
            size_bytes: 0,
            prefix_bytes: 4 * word as u32,
            stack: stacks.number(&[]),
            layout: Some(BlockLayout::Lws),
            is_guarded: false,
        })
    }

    fn is_linked(&self, node: u64, previous: u64, next: u64, owner: u64, word: u64) -> bool {
        let at = |address: u64, index: u64| self.image.word(address.checked_add(index * word)?);
        let last_and_first = (at(owner, 0), at(owner, 1));
        let before = if previous == 0 { last_and_first.1 } else { at(previous, 1) };
        let behind = if next == 0 { last_and_first.0 } else { at(next, 0) };
        before == Some(node) && behind == Some(node)
    }

    fn block(&self, node: u64, length: u16, word: u64, stacks: &mut BlockStacks) -> Option<Block> {
        let mut bytes = vec![0; length.into()];
        self.image.read(AbsoluteAddress::new(node.checked_sub(length.into())?), &mut bytes)?;
        let backtrace = lws::Blob::whole(&bytes).ok()?.decode_leading(self.image.machine().word_size).ok()?;
        let frames: Vec<_> = backtrace.addresses.frames().collect();
        let user_address = node.checked_add(3 * word)?;
        let prefix = u64::from(length).next_multiple_of(word) + 3 * word;
        Some(Block {
            user_address,
            size_bytes: backtrace.allocation_size_bytes,
            prefix_bytes: prefix as u32,
            stack: stacks.number(&frames),
            layout: Some(BlockLayout::Lws),
            is_guarded: false,
        })
    }
}
