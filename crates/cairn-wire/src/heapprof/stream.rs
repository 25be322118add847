//! A search over a dump that arrives in chunks.

use super::{
    layout::Block,
    search::{MAX_OVERLAP_BYTES, Search, SearchFindings, Searcher},
};

/// Size of the buffer: the bytes that the search needs again, and as many new ones. One filling is
/// enough to go on in the caller's chunk.
const CARRY_BYTES: usize = 2 * MAX_OVERLAP_BYTES;

/// Searches a dump that arrives in chunks of any size, and finds what a search of the whole would
/// find.
///
/// It keeps 1600 bytes; large chunks are searched where they are.
///
/// ```
/// use cairn_wire::heapprof::{HeapprofLayout, Search, StreamSearcher};
/// let dump = b"....HeaP\x10\0\0\0\x00\x80\x04\x08ProF....";
/// let mut stream = StreamSearcher::new(Search::robust(HeapprofLayout::LittleEndian32));
/// let mut found = Vec::new();
/// for chunk in dump.chunks(3) {
///     stream.push(chunk, |block| found.push((block.offset(), block.size_bytes())));
/// }
/// stream.finish(|block| found.push((block.offset(), block.size_bytes())));
/// assert_eq!(found, [(4, 0x10)]);
/// ```
#[derive(Clone, Debug)]
pub struct StreamSearcher {
    searcher: Searcher,
    carry: [u8; CARRY_BYTES],
    carried: usize,
    /// How many bytes were pushed: the offset of the next chunk.
    pushed: u64,
}

impl StreamSearcher {
    /// Creates a search at the start of a dump.
    #[must_use]
    pub const fn new(search: Search) -> Self {
        Self { searcher: search.searcher(), carry: [0; CARRY_BYTES], carried: 0, pushed: 0 }
    }

    /// Searches the next bytes of the dump. Blocks come in ascending order, each as soon as it is
    /// certain.
    pub fn push(&mut self, chunk: &[u8], mut on_block: impl FnMut(Block<'_>)) {
        let chunk_offset = self.pushed;
        if self.carried > 0 {
            if self.carry.len() - self.carried < chunk.len() {
                self.drop_unneeded();
            }
            let rest = self.top_up(chunk);
            self.search_carry(false, &mut on_block);
            if rest.is_empty() {
                return;
            }
            // The carry could not take the whole chunk, so it had been cleared of all but
            // MAX_OVERLAP_BYTES and now holds at least as many of the chunk. All that is needed
            // again lies in the chunk, where the search goes on.
            self.carried = 0;
        }
        self.search_chunk(chunk, chunk_offset, &mut on_block);
    }

    /// Ends the dump: blocks that hung on what might have followed are given now.
    pub fn finish(mut self, mut on_block: impl FnMut(Block<'_>)) -> SearchFindings {
        self.search_carry(true, &mut on_block);
        self.searcher.findings()
    }

    /// Returns what was seen so far that is neither a block nor nothing.
    #[must_use]
    pub const fn findings(&self) -> SearchFindings {
        self.searcher.findings()
    }

    /// Searches the rest of a chunk in place and stores its end.
    fn search_chunk(&mut self, chunk: &[u8], chunk_offset: u64, on_block: &mut impl FnMut(Block<'_>)) {
        while let Ok(Some(block)) = self.searcher.next_block(chunk, chunk_offset, false) {
            on_block(block);
        }
        let needed =
            usize::try_from(self.searcher.needed_from().saturating_sub(chunk_offset)).unwrap_or(chunk.len());
        self.top_up(chunk.get(needed..).unwrap_or_default());
        self.pushed = chunk_offset.saturating_add(chunk.len() as u64);
    }

    fn search_carry(&mut self, last: bool, on_block: &mut impl FnMut(Block<'_>)) {
        let carry = self.carry.get(..self.carried).unwrap_or_default();
        let offset = self.pushed.saturating_sub(self.carried as u64);
        while let Ok(Some(block)) = self.searcher.next_block(carry, offset, last) {
            on_block(block);
        }
    }

    /// Appends as many bytes to the carry as it has room for; returns the others.
    fn top_up<'c>(&mut self, bytes: &'c [u8]) -> &'c [u8] {
        let room = self.carry.get_mut(self.carried..).unwrap_or_default();
        let (taken, rest) = bytes.split_at(room.len().min(bytes.len()));
        room.iter_mut().zip(taken).for_each(|(place, &byte)| *place = byte);
        self.carried += taken.len();
        self.pushed = self.pushed.saturating_add(taken.len() as u64);
        rest
    }

    /// Moves the bytes that are needed again to the front of the carry.
    fn drop_unneeded(&mut self) {
        let offset = self.pushed.saturating_sub(self.carried as u64);
        let unneeded = self.searcher.needed_from().saturating_sub(offset);
        let unneeded = usize::try_from(unneeded).unwrap_or(self.carried).min(self.carried);
        self.carry.copy_within(unneeded..self.carried, 0);
        self.carried -= unneeded;
    }
}
