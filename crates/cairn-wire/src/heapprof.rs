//! heapprof blocks: heap memory that says who allocated it, found again in any memory image.
//!
//! The heapprof allocator puts the size and the callers of each allocation right in front of it,
//! between two magic words. No table is retained: the one who has the memory (a core file, a dump
//! read over JTAG) can search it for blocks and knows what the heap is full of. All words are as
//! wide as a pointer and in the byte order of the machine:
//!
//! ```text
//!   "HeaP" | user size | caller 0 … caller N-1 | "ProF" | pad to 8 | user data …
//!   ^ block                                                        ^ what malloc returned:
//!                                                                    block + round_up((N + 3) * word, 8)
//! ```
//!
//! The magics are the numbers 0x50616548 and 0x466f7250: the texts `HeaP` and `ProF` in
//! little-endian memory, with a zero upper half where words have 64 bits, and `\0\0\0\0PaeH` and
//! `\0\0\0\0ForP` in big-endian memory.
//!
//! - [`Search`] finds the blocks in a slice ([`Search::blocks`]), in windows of a larger dump
//!   ([`Searcher`]), or in chunks of any size as they arrive ([`StreamSearcher`]). All three find
//!   the same.
//! - [`CallerCounts`] finds the most frequent caller count; blocks with another one are
//!   mostly chance finds.
//! - [`HeaderWriter`] makes blocks, for allocators of one's own and for tests.
//! - [`write_cluster`] prints a group of blocks the way the reference's report does.
//!
//! ```
//! use cairn_format::AbsoluteAddress;
//! use cairn_wire::heapprof::{HeaderWriter, HeapprofLayout, Search};
//! let writer = HeaderWriter::new(HeapprofLayout::LittleEndian32, 2)?;
//! let mut memory = [0; 64];
//! writer.write_in_place(100, &[AbsoluteAddress::new(0x0804_8123)], &mut memory[8..])?;
//!
//! let block = Search::robust(HeapprofLayout::LittleEndian32).blocks(&memory).next().unwrap();
//! assert_eq!((block.offset(), block.size_bytes(), block.user_offset()), (8, 100, 8 + 24));
//! assert_eq!(block.callers().map(AbsoluteAddress::value).collect::<Vec<_>>(), [0x0804_8123, 0]);
//! # Ok::<(), cairn_wire::heapprof::HeapprofWriteError>(())
//! ```
//!
//! # Where the reference differs from what one would expect
//!
//! - `HEAPPROF_FRAMES` (default 16) callers are stored; the comment in its source says one less.
//! - Callers beyond the real depth of the stack are not cleared: zeros, or what stood there before.
//! - Freeing clears the two magics and nothing else, so size and callers of a freed block stay
//!   readable.
//! - A block made while the profiler itself is inside `malloc` has a size and no magics.
//! - Its search ignores the upper half of 64-bit magics, reads every byte offset, knows
//!   little-endian memory only, pairs a start with the *first* end after it (so that a stray start
//!   magic in user data swallows the next block), and stops with an error when an end magic
//!   directly follows a start magic. [`Search::compat`] does the same without the last;
//!   [`Search::robust`] does better.

mod layout;
mod report;
mod scan;
mod search;
mod stream;
mod writer;

pub use layout::{Block, Callers, HeapprofLayout, MAX_CALLERS};
pub use report::{percent, write_cluster};
pub use search::{
    Alignment, Blocks, CallerCounts, MAX_OVERLAP_BYTES, Search, SearchFindings, Searcher, WindowGap,
};
pub use stream::StreamSearcher;
pub use writer::{HeaderWriter, HeapprofWriteError, HeapprofWriteErrorKind};
