//! What points where: the places that hold an address of a block, and the blocks that nothing leads to.
//!
//! Conservative: whatever looks like an address is one, and an address anywhere in a block holds it. So a block that is told as
//! leaked is one, as far as programs do not hide pointers; some that are leaked are not told.

use cairn_format::{AbsoluteAddress, WordSize};

use super::{Block, GlibcHeap};
use crate::image::Image;

const WINDOW_BYTES: usize = 512 << 10;
/// What a function without calls may use below the stack pointer.
const RED_ZONE_BYTES: u64 = 128;

/// A place that holds an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Holder {
    /// A register of a thread.
    Register {
        /// The thread's number.
        thread: u32,
        /// The register's name.
        name: &'static str,
    },
    /// Memory at this address.
    Memory(u64),
}

/// A reference to a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reference {
    /// What holds it.
    pub holder: Holder,
    /// The address that it holds.
    pub value: u64,
}

/// What refers to a stretch of memory.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct References {
    /// Registers first, then memory by address.
    pub found: Vec<Reference>,
    /// How many more there are.
    pub more: u64,
}

impl References {
    /// Finds what holds an address from `start` to `end`, at most `limit` places.
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

/// Which blocks something leads to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reachability {
    state: Vec<State>,
    /// How many bytes of registers, stacks and data were looked at.
    pub root_bytes: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Unknown,
    Reachable,
    /// Only leaked blocks lead there.
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
    /// Marks what registers, stacks and data lead to. `blocks` are sorted by address. `heap` tells what of the heap is free;
    /// without it, all memory between blocks counts as data, and fewer leaks are found.
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

    /// Indices of the blocks that nothing leads to.
    pub fn leaked(&self) -> impl Iterator<Item = usize> + '_ {
        self.with(State::Direct)
    }

    /// Indices of the blocks that only leaked ones lead to.
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
        // One past the end still holds a block: iterators do that.
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
            // A stretch may go from one piece into the next.
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

/// What keeps blocks alive by itself: stacks from their pointers up, and all writable memory that is no heap.
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

/// The parts of a stretch that no block takes; where the heap is known, not what is free in it.
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
        // Blocks of the heap that are not annotated are in use by somebody, and lead on.
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
