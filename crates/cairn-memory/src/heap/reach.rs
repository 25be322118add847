//! Finds the pointers to a block, and the blocks that no pointer leads to.
//!
//! The search is conservative: every value that could be an address counts as a pointer, and a
//! pointer to any byte of a block keeps it reachable. So reported leaks are real, as far as
//! programs do not hide pointers, and some leaks are not reported.

use cairn_format::{AbsoluteAddress, WordSize};

use super::{Block, GlibcHeap};
use crate::image::Image;

const WINDOW_BYTES: usize = 512 << 10;
/// Bytes below the stack pointer that a leaf function may use.
const RED_ZONE_BYTES: u64 = 128;

/// The location of an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Holder {
    /// In a register of a thread.
    Register {
        /// The number of the thread.
        thread: u32,
        /// The name of the register.
        name: &'static str,
    },
    /// In memory, at this address.
    Memory(u64),
}

/// A reference to a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Reference {
    /// The location of the reference.
    pub holder: Holder,
    /// The referenced address.
    pub value: u64,
}

/// The references to an address range.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct References {
    /// Registers first, then memory by address.
    pub found: Vec<Reference>,
    /// The number of further references.
    pub more: u64,
}

impl References {
    /// Finds references to addresses from `start` to `end`, at most `limit` of them.
    #[must_use]
    pub fn find(image: &Image, start: u64, end: u64, limit: usize) -> Self {
        let mut references = Self::default();
        let span = end.saturating_sub(start).max(1);
        let mut add = |holder, value: u64| {
            if value.wrapping_sub(start) < span {
                if references.found.len() < limit {
                    references.found.push(Reference { holder, value });
                } else {
                    references.more += 1;
                }
            }
        };
        for thread in image.threads() {
            for &(name, value) in &thread.registers {
                add(Holder::Register { thread: thread.id, name }, value);
            }
        }
        let word = image.machine().word_size.bytes();
        if image.machine().word_size == WordSize::Bits16 {
            return references;
        }
        image.scan_writable(WINDOW_BYTES, 0, |address, window, _| {
            let skip = (address.value().next_multiple_of(word as u64) - address.value()) as usize;
            let words = window.get(skip..).unwrap_or_default().chunks_exact(word);
            for (index, bytes) in words.enumerate() {
                if let Some(value) = image.number(bytes) {
                    add(Holder::Memory(address.value() + (skip + index * word) as u64), value);
                }
            }
        });
        references
    }
}

/// Classifies blocks by whether a pointer leads to them.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Reachability {
    state: Vec<State>,
    /// Bytes of registers, stacks and data that were searched.
    pub root_bytes: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Unknown,
    Reachable,
    /// Only leaked blocks refer to it.
    Indirect,
    Direct,
}

struct Marker<'a> {
    image: &'a Image,
    blocks: &'a [Block],
    starts: Vec<u64>,
    lowest: u64,
    highest: u64,
    state: Vec<State>,
    queue: Vec<u32>,
    buffer: Vec<u8>,
}

impl Reachability {
    /// Marks the blocks that registers, stacks and data lead to.
    ///
    /// `blocks` are sorted by address. `heap` states which memory of the heap is free; without it,
    /// all memory between blocks counts as data, and fewer leaks are found.
    #[must_use]
    pub fn find(image: &Image, blocks: &[Block], heap: Option<&GlibcHeap>) -> Self {
        let mut marker = Marker {
            image,
            blocks,
            starts: blocks.iter().map(|block| block.user_address).collect(),
            lowest: blocks.first().map_or(u64::MAX, |block| block.user_address),
            highest: blocks.iter().map(Block::end).max().unwrap_or(0),
            state: vec![State::Unknown; blocks.len()],
            queue: Vec::new(),
            buffer: Vec::new(),
        };
        for thread in image.threads() {
            for &(_, value) in &thread.registers {
                marker.mark(value, State::Reachable);
            }
        }
        let roots = roots(image, blocks, heap);
        let root_bytes = roots.iter().fold(0, |sum: u64, &(start, end)| sum.saturating_add(end - start));
        for (start, end) in roots {
            marker.mark_from(start, end, State::Reachable);
        }
        marker.flood(State::Reachable);
        for index in 0..blocks.len() {
            if marker.state.get(index) == Some(&State::Unknown) {
                if let Some(state) = marker.state.get_mut(index) {
                    *state = State::Direct;
                }
                marker.queue.push(index as u32);
                marker.flood(State::Indirect);
            }
        }
        Self { state: marker.state, root_bytes }
    }

    /// Returns the indices of the blocks that no pointer leads to.
    pub fn leaked(&self) -> impl Iterator<Item = usize> + '_ {
        self.with(State::Direct)
    }

    /// Returns the indices of the blocks that only leaked blocks refer to.
    pub fn indirectly_leaked(&self) -> impl Iterator<Item = usize> + '_ {
        self.with(State::Indirect)
    }

    fn with(&self, wanted: State) -> impl Iterator<Item = usize> + '_ {
        self.state.iter().enumerate().filter(move |(_, state)| **state == wanted).map(|(index, _)| index)
    }
}

impl Marker<'_> {
    #[inline]
    fn mark(&mut self, value: u64, as_state: State) {
        if value < self.lowest || value > self.highest {
            return;
        }
        let Some(index) = self.starts.partition_point(|&start| start <= value).checked_sub(1) else { return };
        let Some(block) = self.blocks.get(index) else { return };
        // A pointer past the end still refers to the block: iterators hold such pointers.
        if value > block.end() {
            return;
        }
        if let Some(state) = self.state.get_mut(index)
            && *state == State::Unknown
        {
            *state = as_state;
            self.queue.push(index as u32);
        }
    }

    fn mark_from(&mut self, start: u64, end: u64, as_state: State) {
        let word = self.image.machine().word_size.bytes() as u64;
        let Some(mut at) = start.checked_next_multiple_of(word) else { return };
        let mut buffer = std::mem::take(&mut self.buffer);
        let image = self.image;
        while at < end {
            // A range may continue in the next piece.
            let piece_end =
                image.piece_at(AbsoluteAddress::new(at)).map_or(at, |piece| piece.range.end.value());
            let length = (end.min(piece_end) - at).min(WINDOW_BYTES as u64);
            if length < word {
                break;
            }
            if let Some(bytes) = image.bytes(at, length as usize, &mut buffer) {
                for bytes in bytes.chunks_exact(word as usize) {
                    if let Some(value) = image.number(bytes) {
                        self.mark(value, as_state);
                    }
                }
            }
            at += length;
        }
        self.buffer = buffer;
    }

    fn flood(&mut self, as_state: State) {
        while let Some(index) = self.queue.pop() {
            if let Some(&block) = self.blocks.get(index as usize) {
                self.mark_from(block.user_address, block.end(), as_state);
            }
        }
    }
}

/// Returns the roots: stacks from their stack pointers up, and all writable memory outside the
/// heap.
fn roots(image: &Image, blocks: &[Block], heap: Option<&GlibcHeap>) -> Vec<(u64, u64)> {
    let mut roots = Vec::new();
    for piece in image.pieces().iter().filter(|piece| piece.is_writable && !piece.is_from_file) {
        let (mut start, end) = (piece.range.start.value(), piece.range.end.value());
        let in_piece = |sp: AbsoluteAddress| piece.range.contains(sp).then(|| sp.value());
        let sp = image.threads().iter().filter_map(|thread| in_piece(thread.sp?)).min();
        if let Some(sp) = sp {
            start = start.max(sp.saturating_sub(RED_ZONE_BYTES));
        }
        gaps(image, blocks, heap, start, end, &mut roots);
    }
    roots
}

/// Returns the parts of a range outside all blocks and, with a known heap, outside its free memory.
fn gaps(
    image: &Image,
    blocks: &[Block],
    heap: Option<&GlibcHeap>,
    start: u64,
    end: u64,
    roots: &mut Vec<(u64, u64)>,
) {
    let first = blocks.partition_point(|block| block.end() <= start);
    let inside = blocks.iter().skip(first).take_while(|block| block.start() < end);
    let mut at = start;
    let _ = image;
    let mut add = |from: u64, to: u64| {
        let Some(heap) = heap.filter(|heap| heap.manages(from)) else { return roots.push((from, to)) };
        // Heap blocks without annotation are in use, and may contain pointers.
        let chunks = heap.chunks();
        let first = chunks.partition_point(|chunk| chunk.address.saturating_add(chunk.size_bytes) <= from);
        for chunk in chunks.iter().skip(first).take_while(|chunk| chunk.address < to) {
            let (user, length) = heap.user_part(chunk);
            let whole = user >= from && user.saturating_add(length) <= to.saturating_add(16);
            if chunk.state.is_in_use() && whole {
                roots.push((user, user.saturating_add(length).min(to)));
            }
        }
    };
    for block in inside {
        if at < block.start() {
            add(at, block.start());
        }
        at = at.max(block.end());
    }
    if at < end {
        add(at, end);
    }
}
