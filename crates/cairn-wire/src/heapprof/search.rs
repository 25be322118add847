//! The two searches, as one resumable state machine over windows of a dump.
//!
//! Everything a search remembers is a position from the start of the dump, so that it can go on in
//! the next window as if there had been only one. It asks for at most [`MAX_OVERLAP_BYTES`] of what
//! it has already seen.
//!
//! ```text
//!   robust                                              compat
//!          .--- start word: remember the nearest             find start ---> find first end within 99 words behind it
//!          v                                                   ^                |            |             |
//!     find a magic word                                        |          none, or odd    1 word       2..99 words
//!          |   ^                                               |          distance          |             |
//!          |   '--- no start remembered, or not 2..99 words    |              |           finding       block
//!          v                                                   |              v             v             v
//!     end word, 2..99 words behind the start: block            '----- go on a word behind the start; at the end
//! ```

use core::fmt;

use super::{
    layout::{Block, HeapprofLayout, MAX_CALLERS},
    scan,
};

/// A window must repeat at most that many bytes of the one before it: 100 words of 64 bits.
pub const MAX_OVERLAP_BYTES: usize = 100 * 8;

/// Maximum distance of a start magic from its end magic, in words: the start, the size, the
/// callers.
const MAX_DISTANCE_WORDS: usize = MAX_CALLERS + 2;

/// Where a search searches for magic words.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub enum Alignment {
    /// At multiples of the word size from the start of the dump. Where memory was dumped as it was
    /// mapped, allocators leave no other place.
    #[default]
    Word,
    /// At every byte, for dumps that start somewhere.
    Byte,
}

/// Settings of a search.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Search {
    layout: HeapprofLayout,
    rule: Rule,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Rule {
    Compat,
    Robust(Alignment),
}

impl Search {
    /// Finds aligned magic words, and pairs each end word with the *nearest* start word before it.
    /// Neither stray text nor one damaged block then hides another.
    #[must_use]
    pub const fn robust(layout: HeapprofLayout) -> Self {
        Self { layout, rule: Rule::Robust(Alignment::Word) }
    }

    /// Finds the same blocks as the reference's search, in the same order, faults included. Only a
    /// start magic directly in front of an end magic is skipped; the reference stops there with an
    /// error. Like the reference it knows little-endian memory only and reads every byte, so it
    /// takes just the word size from `layout`.
    ///
    /// ```
    /// use cairn_wire::heapprof::{HeapprofLayout, Search};
    /// // A stray start magic: the reference loses the block behind it.
    /// let memory = b"HeaP....HeaP\x10\0\0\0ProF";
    /// let found = |search: Search| search.blocks(memory).next().map(|block| (block.offset(), block.caller_count()));
    /// assert_eq!(found(Search::compat(HeapprofLayout::LittleEndian32)), Some((0, 2)));
    /// assert_eq!(found(Search::robust(HeapprofLayout::LittleEndian32)), Some((8, 0)));
    /// ```
    #[must_use]
    pub const fn compat(layout: HeapprofLayout) -> Self {
        Self { layout: layout.little_endian(), rule: Rule::Compat }
    }

    /// Searches these places only. The reference's search reads every byte whatever is said
    /// here.
    #[must_use]
    pub const fn alignment(self, alignment: Alignment) -> Self {
        match self.rule {
            Rule::Compat => self,
            Rule::Robust(_) => Self { rule: Rule::Robust(alignment), ..self },
        }
    }

    /// Iterates over the blocks in `memory`, a whole dump.
    #[must_use]
    pub const fn blocks(self, memory: &[u8]) -> Blocks<'_> {
        Blocks { searcher: self.searcher(), memory }
    }

    /// Returns a search that is fed windows of a dump.
    #[must_use]
    pub const fn searcher(self) -> Searcher {
        Searcher {
            search: self,
            position: 0,
            pending_start: None,
            block_end: 0,
            next_end: None,
            end_free_until: 0,
            findings: SearchFindings { adjacent_magics: 0, first_adjacent_magics: None },
        }
    }
}

/// Anomalies that a search met.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct SearchFindings {
    /// How many times an end magic directly followed a start magic, with no room for a size.
    pub adjacent_magics: u64,
    /// Where that was first: bytes from the start of the dump to the start magic.
    pub first_adjacent_magics: Option<u64>,
}

/// Iterates over the blocks in a slice, in ascending order.
#[derive(Clone, Debug)]
pub struct Blocks<'a> {
    searcher: Searcher,
    memory: &'a [u8],
}

impl Blocks<'_> {
    /// Returns what was seen so far that is neither a block nor nothing.
    #[must_use]
    pub const fn findings(&self) -> SearchFindings {
        self.searcher.findings
    }
}

impl<'a> Iterator for Blocks<'a> {
    type Item = Block<'a>;

    fn next(&mut self) -> Option<Self::Item> {
        self.searcher.next_block(self.memory, 0, true).ok().flatten()
    }
}

impl core::iter::FusedIterator for Blocks<'_> {}

/// A search that is fed windows of a dump, one after the other.
///
/// ```
/// use cairn_wire::heapprof::{HeapprofLayout, Search};
/// let dump = b"....HeaP\x10\0\0\0\x00\x80\x04\x08ProF....";
/// let mut searcher = Search::robust(HeapprofLayout::LittleEndian32).searcher();
/// let mut found = Vec::new();
/// for (window, last) in [(0..14, false), (4..24, true)] {
///     assert!(window.start as u64 <= searcher.needed_from());
///     while let Some(block) = searcher.next_block(&dump[window.clone()], window.start as u64, last)? {
///         found.push(block.offset());
///     }
/// }
/// assert_eq!(found, [4]);
/// # Ok::<(), cairn_wire::heapprof::WindowGap>(())
/// ```
#[derive(Clone, Debug)]
pub struct Searcher {
    search: Search,
    /// The next place to look at.
    position: u64,
    /// Robust: the nearest start word after the last block.
    pending_start: Option<u64>,
    /// Robust: where the end word of the last block ends.
    block_end: u64,
    /// Compat: the first end magic at or after the last start that was examined.
    next_end: Option<u64>,
    /// Compat: if `next_end` lies after us, no end magic starts between there and here.
    end_free_until: u64,
    findings: SearchFindings,
}

impl Searcher {
    /// Returns the next block in `window`, which begins `window_offset` bytes into the dump.
    /// Returns `None` if the window has no further block that is certain without the bytes after
    /// it. `last` says that no bytes follow.
    ///
    /// Call it until it returns `None`, then go on with the next window, which must start at or
    /// before [`needed_from`](Self::needed_from): an overlap of [`MAX_OVERLAP_BYTES`] is always
    /// enough.
    ///
    /// # Errors
    ///
    /// [`WindowGap`] when the window starts after the first byte still needed. The search has not
    /// moved then.
    pub fn next_block<'w>(
        &mut self,
        window: &'w [u8],
        window_offset: u64,
        last: bool,
    ) -> Result<Option<Block<'w>>, WindowGap> {
        let needed_from = self.needed_from();
        if window_offset > needed_from {
            return Err(WindowGap { needed_from, window_offset });
        }
        let window = Window { bytes: window, offset: window_offset, last };
        Ok(match self.search.rule {
            Rule::Robust(alignment) => self.next_robust(&window, alignment),
            Rule::Compat => self.next_compat(&window),
        })
    }

    /// Returns the first byte of the dump that the search still needs to see (again).
    #[must_use]
    pub fn needed_from(&self) -> u64 {
        self.pending_start.map_or(self.position, |start| start.min(self.position))
    }

    /// Returns what was seen so far that is neither a block nor nothing.
    #[must_use]
    pub const fn findings(&self) -> SearchFindings {
        self.findings
    }

    fn next_robust<'w>(&mut self, window: &Window<'w>, alignment: Alignment) -> Option<Block<'w>> {
        let layout = self.search.layout;
        let word = layout.word_bytes();
        let step = if alignment == Alignment::Byte { 1 } else { word };
        let (start_word, end_word) = (layout.start_word(), layout.end_word());
        let (start_word, end_word) = (start_word.get(..word)?, end_word.get(..word)?);
        // The scan searches for the half of a 64-bit magic that is not zero; it comes second in
        // big-endian memory.
        let lead = if layout == HeapprofLayout::BigEndian64 { 4 } else { 0 };
        let needles = [*start_word.get(lead..)?.first_chunk()?, *end_word.get(lead..)?.first_chunk()?];
        let trail = word - 4 - lead;
        let scannable = window.bytes.get(..window.bytes.len().saturating_sub(trail))?;

        loop {
            let from = window.index(self.position)?;
            let Some(place) = scan::find(scannable, from.saturating_add(lead), step, &needles) else {
                self.position = window.position_after_scan(from, word, step);
                self.forget_distant_start();
                return None;
            };
            let place = place - lead;
            let at = window.offset.saturating_add(place as u64);
            self.position = at.saturating_add(step as u64);
            let found = window.bytes.get(place..)?.get(..word)?;
            if found == start_word {
                if at >= self.block_end {
                    self.pending_start = Some(at);
                }
            } else if found == end_word {
                if let Some(block) = self.close_robust(window, at) {
                    return Some(block);
                }
            }
        }
    }

    /// Returns the block that the end word at `end` closes, if there is one.
    fn close_robust<'w>(&mut self, window: &Window<'w>, end: u64) -> Option<Block<'w>> {
        let start = self.pending_start?;
        match self.words_between(start, end)? {
            1 => {
                self.note_adjacent(start);
                None
            }
            2..=MAX_DISTANCE_WORDS => {
                self.pending_start = None;
                self.block_end = end.saturating_add(self.search.layout.word_bytes() as u64);
                self.block(window, start, end)
            }
            _ => None,
        }
    }

    /// Drops a start that is too far away for any later end. The window then need not reach back to
    /// it.
    fn forget_distant_start(&mut self) {
        let reach = (MAX_DISTANCE_WORDS * self.search.layout.word_bytes()) as u64;
        self.pending_start = self.pending_start.filter(|&start| self.position - start <= reach);
    }

    fn next_compat<'w>(&mut self, window: &Window<'w>) -> Option<Block<'w>> {
        let word = self.search.layout.word_bytes();
        loop {
            let from = window.index(self.position)?;
            let Some(place) = scan::find(window.bytes, from, 1, &[*b"HeaP"]) else {
                self.position = window.position_after_scan(from, 4, 1);
                return None;
            };
            let start = window.offset.saturating_add(place as u64);
            self.position = start;
            let end = match self.end_behind(window, start, place) {
                EndAfter::At(end) => Some(end),
                EndAfter::OutOfReach => None,
                EndAfter::NotKnownYet => return None,
            };
            self.position = start.saturating_add(word as u64);
            if let Some(end) = end {
                match self.words_between(start, end) {
                    Some(1) => self.note_adjacent(start),
                    Some(2..=MAX_DISTANCE_WORDS) => {
                        self.position = end;
                        return self.block(window, start, end);
                    }
                    _ => {}
                }
            }
        }
    }

    /// Returns the first end magic after `start`. Reads no byte twice, however many starts
    /// precede one end.
    fn end_behind(&mut self, window: &Window<'_>, start: u64, place: usize) -> EndAfter {
        if let Some(end) = self.next_end.filter(|&end| end >= start) {
            return EndAfter::At(end);
        }
        self.next_end = None;
        let reach = MAX_DISTANCE_WORDS * self.search.layout.word_bytes() + 4;
        let reachable = place.saturating_add(reach).min(window.bytes.len());
        let from = window.index(self.end_free_until.max(start)).unwrap_or(reachable);
        let Some(bytes) = window.bytes.get(..reachable) else { return EndAfter::OutOfReach };
        if let Some(found) = scan::find(bytes, from, 1, &[*b"ProF"]) {
            let end = window.offset.saturating_add(found as u64);
            self.next_end = Some(end);
            return EndAfter::At(end);
        }
        let free_until = window.offset.saturating_add(reachable.saturating_sub(3) as u64);
        self.end_free_until = self.end_free_until.max(free_until);
        if reachable - place < reach && !window.last { EndAfter::NotKnownYet } else { EndAfter::OutOfReach }
    }

    /// Returns how many words apart two places are; `None` when that is no whole number.
    fn words_between(&self, start: u64, end: u64) -> Option<usize> {
        let bytes = usize::try_from(end.checked_sub(start)?).ok()?;
        let word = self.search.layout.word_bytes();
        (bytes % word == 0).then_some(bytes / word)
    }

    /// Returns the block with its magics at these places, which the window holds.
    fn block<'w>(&self, window: &Window<'w>, start: u64, end: u64) -> Option<Block<'w>> {
        let layout = self.search.layout;
        let words = window.bytes.get(window.index(start)?..window.index(end)?)?.get(layout.word_bytes()..)?;
        Some(Block::new(layout, start, words))
    }

    fn note_adjacent(&mut self, start: u64) {
        self.findings.adjacent_magics += 1;
        self.findings.first_adjacent_magics.get_or_insert(start);
    }
}

enum EndAfter {
    /// The first end magic is here, perhaps not a whole number of words away.
    At(u64),
    /// No end magic is near enough for a block.
    OutOfReach,
    /// The window ends too early to tell.
    NotKnownYet,
}

/// A part of the dump.
struct Window<'w> {
    bytes: &'w [u8],
    offset: u64,
    last: bool,
}

impl Window<'_> {
    /// Returns the index in the window of a place in the dump. It may lie after the window's end.
    fn index(&self, position: u64) -> Option<usize> {
        usize::try_from(position.checked_sub(self.offset)?).ok()
    }

    /// Returns the first place that a scan from `from` could not check, with fewer than `width`
    /// bytes left.
    fn position_after_scan(&self, from: usize, width: usize, step: usize) -> u64 {
        let first_cut = (self.bytes.len() + 1).saturating_sub(width);
        let steps = first_cut.saturating_sub(from).div_ceil(step);
        self.offset.saturating_add((from.saturating_add(steps * step)) as u64)
    }
}

/// The window starts after bytes that the search still needs. Results would differ from those of a
/// whole search.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WindowGap {
    /// The first byte of the dump that the window had to contain.
    pub needed_from: u64,
    /// The first byte that it did contain.
    pub window_offset: u64,
}

impl fmt::Display for WindowGap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { needed_from, window_offset } = self;
        write!(
            f,
            "the window starts at byte {window_offset} of the dump, but the search needs it from byte {needed_from}"
        )
    }
}

impl core::error::Error for WindowGap {}

/// Counts blocks by their number of callers. One pass finds the most frequent number, a second
/// selects the blocks that have it.
///
/// An allocator gives all its blocks the same number of callers, so a block with another number is
/// mostly a chance find.
///
/// ```
/// use cairn_wire::heapprof::{CallerCounts, HeapprofLayout, Search};
/// let memory = b"HeaP\x10\0\0\0ProF....HeaP\x20\0\0\0\x00\x80\x04\x08ProFHeaP\x30\0\0\0\x00\x80\x04\x08ProF";
/// let blocks = Search::robust(HeapprofLayout::LittleEndian32).blocks(memory);
/// let counts: CallerCounts = blocks.clone().collect();
/// let retained: Vec<_> = blocks.filter(|block| counts.is_usual(block)).map(|block| block.size_bytes()).collect();
/// assert_eq!((counts.most_frequent(), retained), (Some(1), vec![0x20, 0x30]));
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CallerCounts {
    blocks: [u64; MAX_CALLERS + 1],
}

impl CallerCounts {
    /// No block counted.
    #[must_use]
    pub const fn new() -> Self {
        Self { blocks: [0; MAX_CALLERS + 1] }
    }

    /// Counts a block.
    pub fn add(&mut self, block: &Block<'_>) {
        if let Some(count) = self.blocks.get_mut(block.caller_count()) {
            *count = count.saturating_add(1);
        }
    }

    /// Returns the most frequent caller count, the largest on a tie. A stray magic in the callers
    /// makes a block appear shorter. `None` when no block was counted.
    #[must_use]
    pub fn most_frequent(&self) -> Option<usize> {
        let (callers, &blocks) = self.blocks.iter().enumerate().max_by_key(|&(_, blocks)| blocks)?;
        (blocks > 0).then_some(callers)
    }

    /// Returns whether the block has the most frequent caller count.
    #[must_use]
    pub fn is_usual(&self, block: &Block<'_>) -> bool {
        self.most_frequent() == Some(block.caller_count())
    }
}

impl Default for CallerCounts {
    fn default() -> Self {
        Self::new()
    }
}

impl<'a> FromIterator<Block<'a>> for CallerCounts {
    fn from_iter<I: IntoIterator<Item = Block<'a>>>(blocks: I) -> Self {
        let mut counts = Self::new();
        blocks.into_iter().for_each(|block| counts.add(&block));
        counts
    }
}
