//! Finds annotated blocks, whose headers refer to the stack that allocated them.
//!
//! ```text
//!   writable memory, window by window
//!        |
//!        v                     .--> heapprof: an end word pairs with the nearest start word before it
//!   landmarks (one pass) ------+--> cairn: 16 bytes with a valid check
//!        |                     '--> anchor: the addresses of the lws lists and the stack table
//!        v
//!   lws nodes (one pass): three pointers that agree with their neighbours, after a blob that decodes
//! ```

use std::collections::HashMap;

use cairn_format::{AbsoluteAddress, Frame, WordSize};
use cairn_unwind::MemoryReader;
use cairn_wire::cbf;
use cairn_wire::heapblock::{
    ANCHOR_BYTES, Anchor, BlockState, HEADER_BYTES, Header, HeaderError, LIVE_MAGIC, StackReference, guard,
    inline_stack, stack_table,
};

pub use cairn_wire::heapblock::BlockLayout;

use super::candidates::{Landmark, Landmarks};
use super::{BlockStacks, lws_lists};
use crate::image::Image;

/// Bytes per window; 512 KiB, which fits the second-level cache and makes the overlap negligible.
const WINDOW_BYTES: usize = 512 << 10;
/// Bytes that windows overlap; 1 KiB, because a heapprof header spans at most 100 words.
const OVERLAP_BYTES: usize = 1024;
/// Words from a heapprof start word to its end word: the size and at most 97 callers.
const HEAPPROF_WORDS: std::ops::RangeInclusive<u64> = 2..=99;
/// Maximum broken headers to report; 100,000, to bound the memory of an answer.
const MAX_SUSPECTS: usize = 100_000;
/// Maximum frames of a stack; 4096, more than real stacks have. Parents are smaller, so no cycle is
/// possible, but a damaged table can be long.
const MAX_FRAMES: usize = 4096;

/// Selects the block layouts to search for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct FindOptions {
    /// Blocks in libwebsockets' layout.
    pub lws: bool,
    /// Blocks in heapprof's layout.
    pub heapprof: bool,
    /// Blocks in cairn's own layout.
    pub cairn: bool,
}

impl Default for FindOptions {
    /// Searches for all layouts.
    fn default() -> Self {
        Self { lws: true, heapprof: true, cairn: true }
    }
}

impl FindOptions {
    /// Searches for a single layout.
    #[must_use]
    pub fn only(layout: BlockLayout) -> Self {
        Self {
            lws: layout == BlockLayout::Lws,
            heapprof: layout == BlockLayout::Heapprof,
            cairn: layout == BlockLayout::Cairn,
        }
    }
}

/// An allocated block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Block {
    /// The address that the program got from its allocator.
    pub user_address: u64,
    /// The requested size.
    pub size_bytes: u64,
    /// Bytes of annotation before the user's bytes; 0 without an annotation.
    pub prefix_bytes: u32,
    /// Number of its stack in [`Annotated::stacks`].
    pub stack: u32,
    /// The layout of its annotation; `None` for a block of an ordinary heap.
    pub layout: Option<BlockLayout>,
    /// Whether guard bytes follow it.
    pub is_guarded: bool,
}

const _: () = assert!(size_of::<Block>() == 32);

impl Block {
    /// Returns the address after its last byte.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.user_address.saturating_add(self.size_bytes)
    }

    /// Returns the address of its annotation.
    #[must_use]
    pub const fn start(&self) -> u64 {
        self.user_address.saturating_sub(self.prefix_bytes as u64)
    }

    /// Reports whether an address is inside the requested bytes. An empty block contains its own
    /// address.
    #[must_use]
    pub const fn contains(&self, address: u64) -> bool {
        address >= self.user_address && (address < self.end() || address == self.user_address)
    }
}

/// The block nearest to an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Near {
    /// The block.
    pub block: Block,
    /// The position of the address relative to the block.
    pub place: NearPlace,
}

/// A position relative to a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NearPlace {
    /// Inside the block, at this offset.
    Inside(u64),
    /// In the block's annotation, this many bytes before the user's address.
    InAnnotation(u64),
    /// This many bytes past the end; 0 is the first one.
    Behind(u64),
}

/// The annotated blocks of an image.
#[derive(Clone, Debug, Default)]
pub struct Annotated {
    /// Sorted by address.
    blocks: Vec<Block>,
    stacks: BlockStacks,
    freed: u64,
    scanned_bytes: u64,
    anchors: Vec<Anchor>,
    /// User addresses of headers with a valid magic but a wrong check.
    pub(super) suspects: Vec<(u64, BlockLayout)>,
    usual_callers: Option<u64>,
}

impl Annotated {
    /// Searches all memory of an image that the program could write to.
    #[must_use]
    pub fn find(image: &Image, options: &FindOptions) -> Self {
        let mut finder = Finder::new(image, *options);
        let mut lists = lws_lists::Nodes::new(image);
        let mut last_end = None;
        image.scan_writable(WINDOW_BYTES, OVERLAP_BYTES, |address, window, is_last| {
            let start = address.value();
            let seen = match last_end {
                Some(end) if end > start => end - start,
                _ => {
                    finder.begin(start);
                    0
                }
            };
            let end = start.saturating_add(window.len() as u64);
            finder.found.scanned_bytes += (window.len() as u64).saturating_sub(seen);
            finder.look(start, window, is_last);
            if options.lws {
                lists.look(start, window, seen, &mut finder.found.stacks, &mut finder.found.blocks);
            }
            last_end = (!is_last).then_some(end);
        });
        finder.finish(&mut lists)
    }

    /// Returns the blocks in use, by address.
    #[must_use]
    pub fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    /// Returns the stacks of the blocks.
    #[must_use]
    pub fn stacks(&self) -> &BlockStacks {
        &self.stacks
    }

    /// Returns the total size of the blocks in use.
    #[must_use]
    pub fn live_bytes(&self) -> u64 {
        self.blocks.iter().fold(0, |sum, block| sum.saturating_add(block.size_bytes))
    }

    /// Counts headers of freed cairn blocks that are not yet overwritten.
    #[must_use]
    pub fn freed_count(&self) -> u64 {
        self.freed
    }

    /// Returns the number of searched bytes.
    #[must_use]
    pub fn scanned_bytes(&self) -> u64 {
        self.scanned_bytes
    }

    /// Returns the anchors of annotated heaps.
    #[must_use]
    pub fn anchors(&self) -> &[Anchor] {
        &self.anchors
    }

    /// Returns the most frequent number of callers among heapprof blocks.
    #[must_use]
    pub fn usual_caller_count(&self) -> Option<u64> {
        self.usual_callers
    }

    /// Finds the block that contains an address, or the last one before it.
    #[must_use]
    pub fn near(&self, address: u64) -> Option<Near> {
        near(&self.blocks, address)
    }
}

/// Finds the block whose bytes or annotation contain an address, or the last one that begins before
/// it.
pub(super) fn near(blocks: &[Block], address: u64) -> Option<Near> {
    let after = blocks.partition_point(|block| block.user_address <= address);
    let before = after.checked_sub(1).and_then(|index| blocks.get(index));
    let next = blocks.get(after);
    if let Some(block) = before
        && block.contains(address)
    {
        return Some(Near { block: *block, place: NearPlace::Inside(address - block.user_address) });
    }
    if let Some(block) = next
        && block.start() <= address
    {
        return Some(Near { block: *block, place: NearPlace::InAnnotation(block.user_address - address) });
    }
    before.map(|block| Near { block: *block, place: NearPlace::Behind(address - block.end()) })
}

/// State of the search within a range of memory.
struct Finder<'a> {
    image: &'a Image,
    options: FindOptions,
    landmarks: Landmarks,
    found: Annotated,
    tables: StackTables<'a>,
    /// Blocks whose stacks are numbers of a table that is not yet known.
    numbered: Vec<(usize, u32)>,
    frames: Vec<Frame>,
    caller_counts: [u64; 100],
    /// Landmarks below this address were processed.
    seen_until: u64,
    /// heapprof: the nearest start word after the last block.
    pending_start: Option<u64>,
    /// heapprof: the end of the last block's header.
    header_end: u64,
}

impl<'a> Finder<'a> {
    fn new(image: &'a Image, options: FindOptions) -> Self {
        Self {
            image,
            options,
            landmarks: Landmarks::new(image.machine().word_size, image.machine().byte_order),
            found: Annotated::default(),
            tables: StackTables { image, known: HashMap::new(), heads: Vec::new() },
            numbered: Vec::new(),
            frames: Vec::new(),
            caller_counts: [0; 100],
            seen_until: 0,
            pending_start: None,
            header_end: 0,
        }
    }

    /// Starts a range of memory that does not touch the previous one.
    fn begin(&mut self, start: u64) {
        self.seen_until = start;
        self.pending_start = None;
        self.header_end = start;
    }

    fn look(&mut self, start: u64, window: &[u8], is_last: bool) {
        // A window has its range's alignment modulo four; an unaligned range is skipped up to its
        // first word.
        let skip = (4 - start % 4) % 4;
        let Some(aligned) = window.get(skip as usize..) else { return };
        let base = start.saturating_add(skip);
        // A landmark can be classified by the eight bytes that follow it.
        let end = base.saturating_add(aligned.len() as u64);
        let until = if is_last { end } else { end.saturating_sub(8) };
        let from = self.seen_until.saturating_sub(base) as usize;
        let landmarks = self.landmarks;
        landmarks.each(base, aligned, from, |index, landmark| {
            let at = base + index as u64;
            if at >= until {
                return;
            }
            match landmark {
                Landmark::HeapprofStart | Landmark::HeapprofEnd if !self.options.heapprof => {}
                Landmark::HeapprofStart => {
                    if let Some(word) = self.magic_word(aligned, index, base)
                        && word >= self.header_end
                    {
                        self.pending_start = Some(word);
                    }
                }
                Landmark::HeapprofEnd => {
                    if let Some(word) = self.magic_word(aligned, index, base) {
                        self.close_heapprof(aligned, base, word);
                    }
                }
                Landmark::CairnHeader if self.options.cairn => self.cairn_header(aligned, index, at),
                Landmark::CairnHeader => {}
                Landmark::Anchor => self.anchor(at),
            }
        });
        self.seen_until = until.max(self.seen_until);
    }

    /// Returns the address of a heapprof magic word, if the whole word is present and aligned.
    fn magic_word(&self, memory: &[u8], index: usize, base: u64) -> Option<u64> {
        let machine = self.image.machine();
        let start = match machine.word_size {
            WordSize::Bits64 => {
                let is_big = machine.byte_order == cairn_wire::heapblock::ByteOrder::BigEndian;
                let (start, zeros) =
                    if is_big { (index.checked_sub(4)?, index.checked_sub(4)?) } else { (index, index + 4) };
                if memory.get(zeros..)?.first_chunk() != Some(&[0; 4]) {
                    return None;
                }
                start
            }
            _ => index,
        };
        let address = base + start as u64;
        address.is_multiple_of(machine.word_size.bytes() as u64).then_some(address)
    }

    fn close_heapprof(&mut self, memory: &[u8], base: u64, end: u64) {
        let word = self.image.machine().word_size.bytes() as u64;
        let suspicious = |finder: &mut Self| {
            if finder.found.suspects.len() < MAX_SUSPECTS {
                finder.found.suspects.push((end + word, BlockLayout::Heapprof));
            }
        };
        let Some(start) = self.pending_start else { return suspicious(self) };
        let words = (end - start) / word;
        if words == 1 {
            return;
        }
        if !HEAPPROF_WORDS.contains(&words) {
            return suspicious(self);
        }
        self.pending_start = None;
        self.header_end = end + word;
        let Some(words_at) = start.checked_sub(base).and_then(|index| memory.get(index as usize..)) else {
            return;
        };
        let mut numbers =
            words_at.chunks_exact(word as usize).skip(1).map_while(|bytes| self.image.number(bytes));
        let Some(size_bytes) = numbers.next() else { return };
        let callers = (words - 2) as usize;
        self.frames.clear();
        self.frames
            .extend(numbers.take(callers).map(|caller| Frame::ReturnAddress(AbsoluteAddress::new(caller))));
        let prefix_bytes = ((words + 1) * word).next_multiple_of(8);
        let stack = self.found.stacks.number(&self.frames);
        if let Some(count) = self.caller_counts.get_mut(callers) {
            *count += 1;
        }
        self.found.blocks.push(Block {
            user_address: start.saturating_add(prefix_bytes),
            size_bytes,
            prefix_bytes: prefix_bytes as u32,
            stack,
            layout: Some(BlockLayout::Heapprof),
            is_guarded: false,
        });
    }

    fn cairn_header(&mut self, memory: &[u8], index: usize, at: u64) {
        let end = index + 4;
        let user_address = at.saturating_add(4);
        let Some(bytes) = end.checked_sub(HEADER_BYTES).and_then(|start| memory.get(start..)?.first_chunk())
        else {
            return;
        };
        match Header::from_bytes(*bytes, user_address, self.image.machine().byte_order) {
            Ok((_, BlockState::Freed)) => self.found.freed += 1,
            Ok((header, BlockState::Live)) => self.cairn_block(header, user_address),
            // The allocator below has usually overwritten part of a freed block's header.
            Err(HeaderError::WrongCheck)
                if self.found.suspects.len() < MAX_SUSPECTS && self.is_live_magic(bytes) =>
            {
                self.found.suspects.push((user_address, BlockLayout::Cairn));
            }
            Err(_) => {}
        }
    }

    fn is_live_magic(&self, header: &[u8; HEADER_BYTES]) -> bool {
        let last = header.last_chunk().map_or(0, |word| self.image.machine().byte_order.u32(*word));
        (last >> 16) as u16 == LIVE_MAGIC
    }

    fn cairn_block(&mut self, header: Header, user_address: u64) {
        let index = self.found.blocks.len();
        let stack = match header.stack() {
            StackReference::Number(number) => {
                self.numbered.push((index, number));
                0
            }
            StackReference::Inline { length_bytes, .. } => {
                self.inline_stack(header.stack(), length_bytes, user_address);
                self.found.stacks.number(&self.frames)
            }
            StackReference::Tag(tag) => {
                self.found.stacks.number(&[Frame::ReturnAddress(AbsoluteAddress::new(tag.into()))])
            }
            StackReference::None => 0,
        };
        self.found.blocks.push(Block {
            user_address,
            size_bytes: header.size_bytes(),
            prefix_bytes: header.prefix_bytes().min(user_address).min(u32::MAX.into()) as u32,
            stack,
            layout: Some(BlockLayout::Cairn),
            is_guarded: header.is_guarded(),
        });
    }

    fn inline_stack(&mut self, reference: StackReference, length_bytes: u16, user_address: u64) {
        self.frames.clear();
        let mut bytes = vec![0; length_bytes.into()];
        let start = user_address.checked_sub(HEADER_BYTES as u64 + u64::from(length_bytes));
        let Some(start) = start else { return };
        if self.image.read(AbsoluteAddress::new(start), &mut bytes).is_none()
            || !inline_stack::is_intact(reference, &bytes)
        {
            return;
        }
        let rules = cbf::Rules::LENIENT.with_repeat_limit(MAX_FRAMES as u64);
        self.frames.extend(cbf::CbfDecoder::new(&bytes, rules).filter_map(Result::ok).take(MAX_FRAMES));
    }

    fn anchor(&mut self, at: u64) {
        let mut bytes = [0; ANCHOR_BYTES];
        if self.image.read(AbsoluteAddress::new(at), &mut bytes).is_none() {
            return;
        }
        let Ok(anchor) = Anchor::parse(&bytes, self.image.machine().byte_order) else { return };
        if anchor.own_address == at
            && self.found.anchors.len() < 1000
            && !self.found.anchors.contains(&anchor)
        {
            self.tables.add(anchor.stack_table_address);
            self.found.anchors.push(anchor);
        }
    }

    fn finish(mut self, lists: &mut lws_lists::Nodes<'_>) -> Annotated {
        let stacks = &mut self.found.stacks;
        for (index, number) in std::mem::take(&mut self.numbered) {
            let stack = self.tables.stack(number, stacks);
            if let Some(block) = self.found.blocks.get_mut(index) {
                block.stack = stack;
            }
        }
        let blocks = &mut self.found.blocks;
        let order = |block: &Block| (block.user_address, block.layout.map(|layout| layout as u32));
        blocks.sort_by_key(order);
        if self.options.lws {
            for anchor in &self.found.anchors {
                lists.walk(anchor, stacks, blocks);
                blocks.sort_by_key(order);
            }
        }
        // A node on two lists is one block.
        blocks.dedup_by(|later, earlier| {
            later.user_address == earlier.user_address && later.layout == earlier.layout
        });
        let most = self.caller_counts.iter().enumerate().max_by_key(|(_, count)| **count);
        self.found.usual_callers = most.filter(|(_, count)| **count > 0).map(|(callers, _)| callers as u64);
        self.found.suspects.sort_unstable_by_key(|suspect| suspect.0);
        self.found
    }
}

/// Resolves stack numbers. With several heaps in an image, the first table that has a number
/// answers.
struct StackTables<'a> {
    image: &'a Image,
    known: HashMap<u32, u32>,
    heads: Vec<(u64, stack_table::Head)>,
}

impl StackTables<'_> {
    fn add(&mut self, address: u64) {
        let mut bytes = [0; stack_table::HEAD_BYTES];
        if address == 0 || self.image.read(AbsoluteAddress::new(address), &mut bytes).is_none() {
            return;
        }
        if let Ok(head) = stack_table::Head::parse(&bytes, self.image.machine().byte_order) {
            self.heads.push((address, head));
        }
    }

    fn stack(&mut self, number: u32, stacks: &mut BlockStacks) -> u32 {
        if let Some(&known) = self.known.get(&number) {
            return known;
        }
        let mut frames = Vec::new();
        for &(address, head) in &self.heads {
            let mut next = number;
            while next != 0 && frames.len() < MAX_FRAMES {
                let Some(entry) = self.entry(address, &head, next) else { break };
                frames.push(entry.frame());
                next = entry.parent;
            }
            if !frames.is_empty() {
                break;
            }
        }
        let stack = stacks.number(&frames);
        self.known.insert(number, stack);
        stack
    }

    fn entry(&self, address: u64, head: &stack_table::Head, number: u32) -> Option<stack_table::Entry> {
        let (segment, offset) = head.place_of(number)?;
        let order = self.image.machine().byte_order;
        let pointer_at = address.checked_add(stack_table::HEAD_BYTES as u64 + u64::from(segment) * 8)?;
        let mut pointer = [0; 8];
        self.image.read(AbsoluteAddress::new(pointer_at), &mut pointer)?;
        let start = order.u64(pointer);
        let mut bytes = [0; stack_table::ENTRY_BYTES];
        self.image.read(AbsoluteAddress::new(start.checked_add(offset)?), &mut bytes)?;
        stack_table::Entry::from_bytes(bytes, number, order).ok().filter(|_| start != 0)
    }
}

/// Counts the overwritten guard bytes of a block; 0 if intact or unreadable.
pub(super) fn guard_damage(image: &Image, block: &Block) -> u64 {
    let mut bytes = [0; 8];
    let Some(guard) = bytes.get_mut(..guard::bytes_behind(block.size_bytes)) else { return 0 };
    match image.read(AbsoluteAddress::new(block.end()), guard) {
        Some(()) => guard::damaged_bytes(block.size_bytes, guard) as u64,
        None => 0,
    }
}
