//! Finds the heap of an ordinary program, by the data structures of glibc's `malloc`.
//!
//! ```text
//!   main arena (in libc's data):
//!           ... fastbins | top | last remainder | 127 bins, each a list | bitmap | next arena | ...
//!
//!   chunk:  | size of the previous one, if that is free | size, flags | user's bytes ... |
//!           flags: 1 previous in use   2 own mapping   4 not of the main arena
//! ```
//!
//! Nothing names the main arena in a stripped libc. But an empty bin points to itself, and most of
//! the 127 bins are empty, so a search finds a hundred words that each hold their own address minus
//! two words.
//!
//! Chunks follow one another up to the *top* chunk. At an impossible size, the walk reports the
//! damage and resumes at the next address from which sizes are consistent again.

use std::collections::HashSet;

use cairn_format::{AbsoluteAddress, WordSize};
use cairn_unwind::MemoryReader;

use super::{Block, NearPlace, annotated};
use crate::image::Image;

const BINS: u64 = 127;
const FAST_BINS: u64 = 10;
/// Minimum empty bins of an arena; 32 of 127, because heaps of any size leave most empty.
const LEAST_EMPTY_BINS: u64 = 32;
/// Maximum verified candidates per range; 4096, because memory full of self-references is
/// malicious.
const MAX_TRIES: usize = 4096;
/// Maximum arenas; 4096. A longer list is a cycle.
const MAX_ARENAS: usize = 4096;
/// Maximum length of a free list; 10 million. A longer list is a cycle.
const MAX_LIST: usize = 10_000_000;
/// Maximum bytes to search for a valid chunk after a broken one; 16 MiB.
const RESYNC_BYTES: u64 = 16 << 20;
/// Number of consecutive chunks that make an address valid; 8.
const SOUND_ROW: usize = 8;
/// Maximum reports per kind of damage; 1000.
const MAX_DAMAGES: usize = 1000;
const PAGE: u64 = 4096;

const PREVIOUS_IN_USE: u64 = 1;
const MAPPED: u64 = 2;
const OTHER_ARENA: u64 = 4;
const FLAGS: u64 = 7;

/// The state of a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ChunkState {
    /// In use by the program.
    InUse,
    /// In use by the program, in a mapping of its own.
    Mapped,
    /// Freed, in a thread's cache.
    ThreadCache,
    /// Freed, in a list of small chunks.
    FastBin,
    /// Freed.
    Free,
}

impl ChunkState {
    /// Reports whether the program uses the chunk.
    #[must_use]
    pub const fn is_in_use(self) -> bool {
        matches!(self, Self::InUse | Self::Mapped)
    }
}

/// A chunk of a heap, including the allocator's header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Chunk {
    /// The address of its header.
    pub address: u64,
    /// The size, with its header.
    pub size_bytes: u64,
    /// The state of the chunk.
    pub state: ChunkState,
}

/// An arena: threads allocate from several to avoid contention.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Arena {
    /// The address of its `malloc_state`.
    pub address: u64,
    /// Whether it is the main arena.
    pub is_main: bool,
    /// Bytes obtained from the system, as it states.
    pub system_bytes: u64,
    /// Bytes at its end that were never allocated, or are free again.
    pub top_bytes: u64,
    /// Ranges of its chunks.
    heaps: Vec<(u64, u64)>,
    top: u64,
    fields: u64,
}

/// A defect of a heap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum HeapDamage {
    /// When a chunk has an impossible size.
    BadSize {
        /// The chunk.
        chunk: u64,
        /// The stored size.
        size: u64,
        /// The previous chunk, which may have been written past.
        before: Option<u64>,
        /// The address at which sizes are consistent again.
        resumed_at: Option<u64>,
    },
    /// When a free chunk's size differs from the copy in the next chunk.
    SizesDiffer {
        /// The free chunk.
        chunk: u64,
        /// Its size.
        size: u64,
        /// The size in the next chunk.
        remembered: u64,
    },
    /// When the links of a free chunk do not lead back to it: freed memory was written to.
    BrokenLinks {
        /// The chunk.
        chunk: u64,
        /// The forward link.
        forward: u64,
        /// The backward link.
        backward: u64,
    },
    /// When a free list leads to an address without a chunk.
    BadFreeList {
        /// The last valid address of the list.
        after: u64,
        /// The invalid link.
        next: u64,
    },
}

impl HeapDamage {
    /// Returns the address of the damage.
    #[must_use]
    pub const fn address(&self) -> u64 {
        match *self {
            Self::BadSize { chunk, .. }
            | Self::SizesDiffer { chunk, .. }
            | Self::BrokenLinks { chunk, .. } => chunk,
            Self::BadFreeList { after, .. } => after,
        }
    }
}

impl std::fmt::Display for HeapDamage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match *self {
            Self::BadSize { chunk, size, before, resumed_at } => {
                write!(f, "the chunk at {chunk:#x} has the size {size:#x}, which cannot be")?;
                if let Some(before) = before {
                    write!(f, "; it was overwritten, perhaps from the block at {before:#x} before it")?;
                }
                match resumed_at {
                    Some(at) => write!(f, "; the heap continues at {at:#x}"),
                    None => f.write_str("; the rest of this heap was not read"),
                }
            }
            Self::SizesDiffer { chunk, size, remembered } => write!(
                f,
                "the free chunk at {chunk:#x} has the size {size:#x}, and the one behind it remembers {remembered:#x}"
            ),
            Self::BrokenLinks { chunk, forward, backward } => write!(
                f,
                "the free chunk at {chunk:#x} has broken links ({forward:#x} and {backward:#x}): something was written to \
                 memory after it was freed"
            ),
            Self::BadFreeList { after, next } => write!(
                f,
                "the list of free blocks leads from {after:#x} to {next:#x}, where no block is: something was written to \
                 memory after it was freed, or it was freed twice"
            ),
        }
    }
}

/// The number of chunks of one size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct SizeCount {
    /// Usable bytes of a chunk of this size.
    pub usable_bytes: u64,
    /// The number in use.
    pub in_use: u64,
    /// The number of free ones.
    pub free: u64,
}

/// The heap of a program that uses glibc's `malloc`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct GlibcHeap {
    arenas: Vec<Arena>,
    /// Sorted by address.
    chunks: Vec<Chunk>,
    damage: Vec<HeapDamage>,
    word_bytes: u64,
}

impl GlibcHeap {
    /// Finds and walks the heap.
    ///
    /// Returns `None` if the program uses another allocator, is linked statically with unknown
    /// modules, or if libc's data is missing from the image.
    #[must_use]
    pub fn find(image: &Image) -> Option<Self> {
        if image.machine().word_size == WordSize::Bits16 {
            return None;
        }
        let mut walker = Walker::new(image);
        walker.find_arenas();
        if walker.heap.arenas.is_empty() {
            return None;
        }
        for index in 0..walker.heap.arenas.len() {
            walker.walk_arena(index);
        }
        walker.find_mapped();
        walker.heap.chunks.sort_by_key(|chunk| chunk.address);
        walker.heap.chunks.dedup_by_key(|chunk| chunk.address);
        walker.mark_fast_bins();
        walker.mark_thread_caches();
        walker.heap.damage.sort_by_key(HeapDamage::address);
        Some(walker.heap)
    }

    /// Returns the arenas; the main arena is first.
    #[must_use]
    pub fn arenas(&self) -> &[Arena] {
        &self.arenas
    }

    /// Returns all chunks, by address.
    #[must_use]
    pub fn chunks(&self) -> &[Chunk] {
        &self.chunks
    }

    /// Returns the damage, by address.
    #[must_use]
    pub fn damage(&self) -> &[HeapDamage] {
        &self.damage
    }

    /// Finds the chunk that contains an address.
    #[must_use]
    pub fn chunk_at(&self, address: u64) -> Option<&Chunk> {
        let after = self.chunks.partition_point(|chunk| chunk.address <= address);
        let chunk = self.chunks.get(after.checked_sub(1)?)?;
        (address - chunk.address < chunk.size_bytes).then_some(chunk)
    }

    /// Returns address and size of the part of a chunk that the program can use.
    #[must_use]
    pub fn user_part(&self, chunk: &Chunk) -> (u64, u64) {
        // The first word of the next chunk belongs to this one while it is in use.
        let overhead = if chunk.state == ChunkState::Mapped { 2 } else { 1 } * self.word_bytes;
        (chunk.address + 2 * self.word_bytes, chunk.size_bytes.saturating_sub(overhead))
    }

    /// Counts the chunks in these states, and adds up their bytes.
    pub fn sum(&self, states: impl Fn(ChunkState) -> bool) -> (u64, u64) {
        let chunks = self.chunks.iter().filter(|chunk| states(chunk.state));
        chunks.fold((0, 0), |(count, bytes), chunk| (count + 1, chunk.size_bytes.saturating_add(bytes)))
    }

    /// Counts the chunks of each size, those with most bytes in use first.
    #[must_use]
    pub fn sizes(&self) -> Vec<SizeCount> {
        let mut by_size = std::collections::HashMap::<u64, SizeCount>::new();
        for chunk in &self.chunks {
            let (_, usable_bytes) = self.user_part(chunk);
            let entry = by_size.entry(usable_bytes).or_insert(SizeCount { usable_bytes, in_use: 0, free: 0 });
            if chunk.state.is_in_use() {
                entry.in_use += 1;
            } else {
                entry.free += 1;
            }
        }
        let mut sizes: Vec<SizeCount> = by_size.into_values().collect();
        let bytes = |size: &SizeCount| size.in_use.saturating_mul(size.usable_bytes);
        sizes.sort_by_key(|size| std::cmp::Reverse((bytes(size), size.usable_bytes)));
        sizes
    }

    /// Returns the chunks in use as blocks without stacks.
    #[must_use]
    pub fn blocks(&self) -> Vec<Block> {
        let block = |chunk: &Chunk| {
            let (user_address, size_bytes) = self.user_part(chunk);
            let prefix_bytes = (user_address - chunk.address) as u32;
            Block { user_address, size_bytes, prefix_bytes, stack: 0, layout: None, is_guarded: false }
        };
        self.chunks.iter().filter(|chunk| chunk.state.is_in_use()).map(block).collect()
    }

    /// Reports whether an arena manages an address, allocated or not.
    #[must_use]
    pub fn manages(&self, address: u64) -> bool {
        self.chunk_at(address).is_some()
            || self
                .arenas
                .iter()
                .flat_map(|arena| &arena.heaps)
                .any(|&(start, end)| (start..end).contains(&address))
    }

    /// For a broken size: returns the annotated block that ends before it, and the distance in
    /// bytes.
    #[must_use]
    pub fn blame(damage: &HeapDamage, blocks: &[Block]) -> Option<(Block, u64)> {
        const MAX_GAP: u64 = 64;
        let HeapDamage::BadSize { chunk, .. } = damage else { return None };
        let near = annotated::near(blocks, *chunk)?;
        match near.place {
            NearPlace::Behind(gap) if gap <= MAX_GAP => Some((near.block, gap)),
            _ => None,
        }
    }
}

struct Walker<'a> {
    image: &'a Image,
    word: u64,
    heap: GlibcHeap,
}

impl<'a> Walker<'a> {
    fn new(image: &'a Image) -> Self {
        let word = image.machine().word_size.bytes() as u64;
        Self { image, word, heap: GlibcHeap { word_bytes: word, ..GlibcHeap::default() } }
    }

    fn word_at(&self, address: u64) -> Option<u64> {
        self.image.word(address)
    }

    /// Returns the size of a chunk without flags, and the flags.
    fn size_of(&self, chunk: u64) -> Option<(u64, u64)> {
        let size = self.word_at(chunk.checked_add(self.word)?)?;
        Some((size & !FLAGS, size & FLAGS))
    }

    fn is_sound_size(&self, size: u64) -> bool {
        size >= 4 * self.word && size.is_multiple_of(2 * self.word)
    }

    fn add_damage(&mut self, damage: HeapDamage) {
        if self.heap.damage.len() < MAX_DAMAGES {
            self.heap.damage.push(damage);
        }
    }

    /// Searches the data of modules for the main arena's bins, or all memory if no modules are
    /// known.
    fn find_arenas(&mut self) {
        // The bins are libc's data. Some cores list few modules; then they may be anywhere.
        if self.image.modules().is_empty() || !self.find_arenas_in(true) {
            self.find_arenas_in(false);
        }
    }

    /// Searches the memory of modules, or all other memory; reports whether an arena was found.
    fn find_arenas_in(&mut self, of_modules: bool) -> bool {
        let image = self.image;
        let mut buffer = Vec::new();
        for piece in image.pieces().iter().filter(|piece| piece.is_writable && !piece.is_from_file) {
            if image.module_at(piece.range.start).is_some() != of_modules {
                continue;
            }
            let (start, end) = (piece.range.start.value(), piece.range.end.value());
            let mut at = start;
            while at < end {
                // Windows overlap by the size of all bins, so that one window contains all of them.
                let length = (end - at).min(1 << 20);
                if let Some(bytes) = image.bytes(at, length as usize, &mut buffer)
                    && let Some(bins) = self.find_bins(at, bytes)
                    && self.add_arenas(bins)
                {
                    return true;
                }
                if length < 1 << 20 {
                    break;
                }
                at = at.saturating_add(length - 2 * BINS * self.word - PAGE);
            }
        }
        false
    }

    /// Returns the address of the first bin, if all 127 are in these bytes.
    fn find_bins(&self, base: u64, bytes: &[u8]) -> Option<u64> {
        let word = self.word as usize;
        let mut words = bytes.chunks_exact(word).enumerate();
        let mut tried = HashSet::new();
        words.find_map(|(index, value)| {
            let place = base + (index * word) as u64;
            let own = place.wrapping_sub(2 * self.word);
            if self.image.number(value)? != own || self.word_at(place + self.word)? != own {
                return None;
            }
            // Bins before the first empty one may be in use.
            let mut candidates = (0..BINS).filter_map(|bin| place.checked_sub(bin * 2 * self.word));
            candidates.find(|&bins| tried.len() < MAX_TRIES && tried.insert(bins) && self.is_bins(bins))
        })
    }

    fn is_bins(&self, bins: u64) -> bool {
        let mut empty = 0;
        for bin in 0..BINS {
            let place = bins + bin * 2 * self.word;
            let own = place.wrapping_sub(2 * self.word);
            let (Some(forward), Some(backward)) = (self.word_at(place), self.word_at(place + self.word))
            else {
                return false;
            };
            if forward == own && backward == own {
                empty += 1;
            } else if self.word_at(forward.wrapping_add(3 * self.word)).is_none()
                || self.word_at(backward.wrapping_add(2 * self.word)).is_none()
            {
                return false;
            }
        }
        empty >= LEAST_EMPTY_BINS && self.top_of(bins).is_some()
    }

    /// Returns the arena's top chunk; before the first allocation, it is the bins themselves.
    fn top_of(&self, bins: u64) -> Option<u64> {
        let top = self.word_at(bins.checked_sub(2 * self.word)?)?;
        let is_unused = top == bins - 2 * self.word;
        (is_unused || self.size_of(top).is_some_and(|(size, _)| size > 0)).then_some(top)
    }

    /// Returns the address of the field `next`, after the bins and the bitmap of 128 bins.
    fn next_field(&self, bins: u64) -> u64 {
        bins + 2 * BINS * self.word + 16
    }

    /// Adds the arena of these bins, and all others on its circular list, which locates the arena's
    /// start.
    fn add_arenas(&mut self, bins: u64) -> bool {
        let Some(first) = self.word_at(self.next_field(bins)) else { return false };
        let is_own = |address: u64| address < bins && bins - address < 256;
        let mut others = Vec::new();
        let mut next = first;
        // The distance from arena to bins is unknown until the list closes; try each usual one.
        for distance in [14 * self.word, 13 * self.word, 15 * self.word, 16 * self.word] {
            others.clear();
            next = first;
            while !is_own(next) && others.len() < MAX_ARENAS && !others.contains(&next) {
                let Some(following) =
                    next.checked_add(distance).and_then(|bins| self.word_at(self.next_field(bins)))
                else {
                    break;
                };
                others.push(next);
                next = following;
            }
            if is_own(next) && (others.is_empty() || bins - next == distance) {
                break;
            }
        }
        if !is_own(next) {
            // The list is broken: use the main arena only.
            others.clear();
            next = bins - 14 * self.word;
        }
        let distance = bins - next;
        // The bins may belong to any arena. The main one is not inside a heap that its address maps
        // to.
        let mut addresses: Vec<u64> = [next].into_iter().chain(others).collect();
        let heap_bytes = self.heap_bytes();
        let is_of_heap = |address: &u64| self.word_at(address & !(heap_bytes - 1)) == Some(*address);
        if let Some(main) = addresses.iter().position(|address| !is_of_heap(address)) {
            addresses.swap(0, main);
        }
        for (index, address) in addresses.into_iter().enumerate() {
            let bins = address.saturating_add(distance);
            let Some(top) = self.top_of(bins) else { continue };
            let is_unused = top == bins - 2 * self.word;
            let top_bytes = if is_unused { 0 } else { self.size_of(top).map_or(0, |(size, _)| size) };
            let system_at = self.next_field(bins) + 3 * self.word;
            self.heap.arenas.push(Arena {
                address,
                is_main: index == 0,
                system_bytes: self.word_at(system_at).unwrap_or(0),
                top_bytes,
                heaps: Vec::new(),
                top: if is_unused { 0 } else { top },
                fields: bins,
            });
        }
        !self.heap.arenas.is_empty()
    }

    fn walk_arena(&mut self, index: usize) {
        let Some(arena) = self.heap.arenas.get(index).cloned() else { return };
        if arena.top == 0 {
            return;
        }
        let mut heaps = Vec::new();
        if arena.is_main {
            let end = arena.top.saturating_add(arena.top_bytes);
            let Some(piece) = self.image.piece_at(AbsoluteAddress::new(arena.top)) else { return };
            let lowest = piece.range.start.value();
            let start = end.saturating_sub(arena.system_bytes).max(lowest);
            let start = self.first_chunk(start, arena.top).or_else(|| self.first_chunk(lowest, arena.top));
            if let Some(start) = start {
                heaps.push((start, arena.top));
            }
        } else {
            self.heaps_of(&arena, &mut heaps);
        }
        for &(start, end) in &heaps {
            self.walk(start, end);
        }
        if let Some(arena) = self.heap.arenas.get_mut(index) {
            arena.heaps = heaps;
        }
    }

    /// Returns the maximum size of a heap of a secondary arena.
    const fn heap_bytes(&self) -> u64 {
        if self.word == 8 { 64 << 20 } else { 1 << 20 }
    }

    /// Collects an arena's heaps, which begin at multiples of their maximum size and link
    /// backwards.
    fn heaps_of(&self, arena: &Arena, heaps: &mut Vec<(u64, u64)>) {
        let heap_bytes = self.heap_bytes();
        let mut heap = arena.top & !(heap_bytes - 1);
        let mut end = arena.top;
        while heap != 0 && heaps.len() < MAX_ARENAS && self.word_at(heap) == Some(arena.address) {
            let header = if arena.address > heap && arena.address - heap < PAGE {
                self.next_field(arena.fields) + 5 * self.word - heap
            } else {
                4 * self.word
            };
            let start = (heap + header).next_multiple_of(2 * self.word);
            if let Some(start) = self.first_chunk(start, end) {
                heaps.push((start, end));
            }
            heap = self.word_at(heap + self.word).unwrap_or(0);
            let size = self.word_at(heap.saturating_add(2 * self.word)).unwrap_or(0).min(heap_bytes);
            end = heap.saturating_add(size);
        }
    }

    /// Finds the first address from `start` on, within the size of a header, with consecutive
    /// chunks.
    fn first_chunk(&self, start: u64, end: u64) -> Option<u64> {
        let align = if self.word == 8 { 16 } else { 8 };
        let mut places = (0..16).map(|step| start.next_multiple_of(align).saturating_add(step * align));
        places.find(|&place| place == end || place < end && self.is_sound_row(place, end))
    }

    fn is_sound_row(&self, place: u64, end: u64) -> bool {
        let mut at = place;
        for _ in 0..SOUND_ROW {
            if at == end {
                return true;
            }
            let Some((size, flags)) = self.size_of(at) else { return false };
            if !self.is_sound_size(size) || flags & MAPPED != 0 || size > end - at {
                return false;
            }
            at += size;
        }
        true
    }

    fn walk(&mut self, start: u64, end: u64) {
        let mut at = start;
        let mut before = None;
        while at < end {
            let sound = self
                .size_of(at)
                .filter(|&(size, flags)| self.is_sound_size(size) && flags & MAPPED == 0 && size <= end - at);
            let Some((size, _)) = sound else {
                // The last words of a heap that another one follows are fenceposts.
                if end - at <= 8 * self.word {
                    return;
                }
                let size = self.word_at(at.saturating_add(self.word)).unwrap_or(0);
                let resumed_at = self.resync(at, end);
                self.add_damage(HeapDamage::BadSize { chunk: at, size, before, resumed_at });
                let Some(resumed) = resumed_at else { return };
                (at, before) = (resumed, None);
                continue;
            };
            let next = at + size;
            let is_in_use = self.size_of(next).is_none_or(|(_, flags)| flags & PREVIOUS_IN_USE != 0);
            let state = if is_in_use { ChunkState::InUse } else { ChunkState::Free };
            if !is_in_use {
                self.check_free(at, size, next);
            }
            self.heap.chunks.push(Chunk { address: at, size_bytes: size, state });
            before = Some(at);
            at = next;
        }
    }

    fn resync(&self, at: u64, end: u64) -> Option<u64> {
        let step = 2 * self.word;
        let limit = end.min(at.saturating_add(RESYNC_BYTES));
        (1..)
            .map(|index| at + index * step)
            .take_while(|&place| place < limit)
            .find(|&place| self.is_sound_row(place, end))
    }

    fn check_free(&mut self, chunk: u64, size: u64, next: u64) {
        if let Some(remembered) = self.word_at(next)
            && remembered != size
        {
            self.add_damage(HeapDamage::SizesDiffer { chunk, size, remembered });
        }
        let (Some(forward), Some(backward)) =
            (self.word_at(chunk + 2 * self.word), self.word_at(chunk + 3 * self.word))
        else {
            return;
        };
        let leads_back = self.word_at(forward.wrapping_add(3 * self.word)) == Some(chunk)
            && self.word_at(backward.wrapping_add(2 * self.word)) == Some(chunk);
        if !leads_back {
            self.add_damage(HeapDamage::BrokenLinks { chunk, forward, backward });
        }
    }

    /// Finds chunks that are mappings of their own: they begin at a page, and consist of whole
    /// pages.
    fn find_mapped(&mut self) {
        let image = self.image;
        for piece in image.pieces().iter().filter(|piece| piece.is_writable && !piece.is_from_file) {
            let (start, end) = (piece.range.start.value(), piece.range.end.value());
            if image.module_at(piece.range.start).is_some()
                || image.mapping_at(piece.range.start).is_some_and(|mapping| !mapping.name.is_empty())
            {
                continue;
            }
            let mut at = start.next_multiple_of(PAGE);
            while at < end {
                let size = self.size_of(at).filter(|&(size, flags)| {
                    flags == MAPPED && size >= PAGE && size.is_multiple_of(PAGE) && size <= end - at
                });
                match size {
                    Some((size, _)) if self.word_at(at) == Some(0) => {
                        self.heap.chunks.push(Chunk {
                            address: at,
                            size_bytes: size,
                            state: ChunkState::Mapped,
                        });
                        at += size;
                    }
                    _ => at = at.saturating_add(PAGE),
                }
            }
        }
    }

    fn index_of(&self, chunk: u64) -> Option<usize> {
        self.heap.chunks.binary_search_by_key(&chunk, |chunk| chunk.address).ok()
    }

    fn mark_fast_bins(&mut self) {
        let arenas: Vec<u64> = self.heap.arenas.iter().map(|arena| arena.fields).collect();
        for bins in arenas {
            for bin in 0..FAST_BINS {
                let Some(head) = bins.checked_sub((2 + FAST_BINS - bin) * self.word) else { continue };
                if let Some(chunk) = self.word_at(head).filter(|&chunk| chunk != 0) {
                    self.mark_list(head, chunk, ChunkState::FastBin);
                }
            }
        }
    }

    /// Marks thread caches: tables of freed chunks, stored in a chunk, with a count and a list per
    /// size.
    fn mark_thread_caches(&mut self) {
        // (bins, bytes of a count): since 2.42, since 2.30, since 2.26.
        let kinds = [(76, 2), (64, 2), (64, 1)];
        let word = self.word;
        let align = 2 * word;
        let size_of =
            |(bins, number): (u64, u64)| (bins * number + bins * word + word).next_multiple_of(align);
        let candidates: Vec<(u64, (u64, u64))> = self
            .heap
            .chunks
            .iter()
            .filter(|chunk| chunk.state == ChunkState::InUse)
            .filter_map(|chunk| {
                let kind =
                    kinds.into_iter().find(|&kind| size_of(kind).abs_diff(chunk.size_bytes) < align)?;
                Some((chunk.address, kind))
            })
            .collect();
        for (chunk, (bins, number)) in candidates {
            let entries = chunk + 2 * word + (bins * number).next_multiple_of(word);
            let mut heads = Vec::new();
            let mut counts = vec![0; (bins * number) as usize];
            if self.image.read(AbsoluteAddress::new(chunk + 2 * word), &mut counts).is_none() {
                continue;
            }
            // A program's block of that size may hold a pointer to another block, but no matching
            // counts. Since 2.42 they count unused slots.
            let mut counts = counts.chunks(number as usize).map(|count| count.iter().any(|byte| *byte != 0));
            let is_table = (0..bins).all(|bin| match self.word_at(entries + bin * word) {
                first if bins == 64 && counts.next() != first.map(|first| first != 0) => false,
                Some(0) => true,
                Some(user) => {
                    let first = user.wrapping_sub(2 * word);
                    heads.push((entries + bin * word, first));
                    let size = self.index_of(first).and_then(|index| self.heap.chunks.get(index));
                    size.is_some_and(|chunk| chunk.size_bytes <= (bin + 2) * 16 + 16)
                }
                None => false,
            });
            if is_table {
                for (place, first) in heads {
                    self.mark_list(place, first, ChunkState::ThreadCache);
                }
            }
        }
    }

    /// Follows a list of freed chunks. Since glibc 2.32, its links are mixed with their own
    /// address.
    fn mark_list(&mut self, from: u64, first: u64, state: ChunkState) {
        let word = self.word;
        let (mut after, mut chunk) = (from, first);
        for _ in 0..MAX_LIST {
            let Some(place) = self.index_of(chunk).and_then(|index| self.heap.chunks.get_mut(index)) else {
                return self.add_damage(HeapDamage::BadFreeList { after, next: chunk });
            };
            // The list is cyclic, or a chunk is on two lists.
            if place.state != ChunkState::InUse {
                return;
            }
            place.state = state;
            let link = chunk + 2 * word;
            let Some(raw) = self.word_at(link) else { return };
            let user = raw ^ (link >> 12);
            // Links of thread caches lead to the user's part, those of fast bins to the chunk.
            let to_chunk =
                |link: u64| if state == ChunkState::ThreadCache { link.wrapping_sub(2 * word) } else { link };
            let next = if raw == 0 || user == 0 {
                return;
            } else if self.index_of(to_chunk(user)).is_some() {
                to_chunk(user)
            } else {
                to_chunk(raw)
            };
            if self.index_of(next).is_none() {
                return self.add_damage(HeapDamage::BadFreeList { after: chunk, next: user });
            }
            (after, chunk) = (chunk, next);
        }
    }
}

const _: () = assert!(OTHER_ARENA | MAPPED | PREVIOUS_IN_USE == FLAGS);
