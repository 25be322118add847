//! Annotates heap blocks with their size and stack in 16 bytes; any memory image can be searched
//! for them.
//!
//! Two older layouts exist: [`lws::metadata`](crate::lws::metadata), small and hard to find,
//! because nothing in it is constant, and [`heapprof`](crate::heapprof), easy to find and 152 bytes
//! long, which also takes any text `HeaP … ProF` for a block. This one is small, found at memory
//! speed, and not mistaken:
//!
//! ```text
//!   prefix_bytes: a multiple of the block's alignment
//!   |<------------------------------------------------------->|
//!   | pad | stack, only if inline | check size stack magic|…  | user data … | guard, 1-8 bytes, optional |
//!                                 |<------ 16 bytes --------->|
//!                                                             ^ user address
//!
//!   word 0   check      hash of the other three, plus the user address / 4
//!   word 1   size       of the user's data in bytes, bits 0-31
//!   word 2   stack      number in the stack table, or length (0-15) and check (16-31) of the inline stack, or the program's own
//!   word 3   magic      bits 16-31: 0xCA1A live, 0xF4EE freed
//!            size       bits 8-15: bits 32-39 of the size
//!            kind       bits 6-7: what word 2 is ([`StackKind`])
//!            guarded    bit 5
//!            alignment  bits 0-4: its logarithm to base 2
//! ```
//!
//! Words have 32 bits and the byte order of the machine, on 64-bit machines as on others.
//!
//! - [`Header`] is what a header says; [`Header::to_words`] and [`Header::from_words`] (bytes:
//!   [`Header::to_bytes`], [`Header::from_bytes`]) define the bytes for writers and for searches.
//! - [`guard`] is the pattern after the user's data: it reveals writes past the end of a block.
//! - [`inline_stack`] is for images without a stack table: the Compact Backtrace Format, in front
//!   of the header.
//! - [`stack_table`] is the table in the program's memory that the numbers refer to.
//! - [`Anchor`] is a landmark that a heap leaves in memory: which layout it has, where its table
//!   and its lists are.
//!
//! ```
//! use cairn_wire::heapblock::{ByteOrder, Header, StackReference, BlockState};
//!
//! let header = Header::new(100, StackReference::Number(7), 4, true).unwrap();
//! let bytes = header.to_bytes(0x7f00_0000_1010, ByteOrder::LittleEndian);
//!
//! let (found, state) = Header::from_bytes(bytes, 0x7f00_0000_1010, ByteOrder::LittleEndian)?;
//! assert_eq!((found, state), (header, BlockState::Live));
//! assert_eq!((found.size_bytes(), found.prefix_bytes(), found.guard_bytes()), (100, 16, 4));
//!
//! // The same bytes elsewhere are a copy and no block.
//! assert!(Header::from_bytes(bytes, 0x7f00_0000_2010, ByteOrder::LittleEndian).is_err());
//! # Ok::<(), cairn_wire::heapblock::HeaderError>(())
//! ```
//!
//! # Why these fields in this order
//!
//! - **The check comes first**, at the lowest address: what overflows from the block before
//!   destroys it before anything else. A header whose magic is right and whose check is not, where
//!   a block is expected, was overwritten from below.
//! - **The magic comes last**, so that a search compares one aligned word in 16 bytes and hashes
//!   one place in 65,536.
//! - **The address is in the check**: a header on the stack of who made it, in a copy of the block,
//!   in a page that was moved is none. It is added and not hashed, so a header reveals the address
//!   that it was made for ([`Header::implied_address`]): a dump whose load address nobody wrote
//!   down reveals it by itself.
//! - **Freeing changes the magic alone**, one store. The check still holds for the old one, so a
//!   freed block is given from chance, and a second `free` is noticed.
//! - **The alignment, not the distance** to the underlying allocation, which follows from it: 5
//!   bits in place of 31.
//!
//! # Probability of false blocks
//!
//! 16 bits of magic and 32 of check must agree by chance: 2^-48 for a place in random bytes. That
//! is 0.0000024 blocks in 10 GB searched at every 16th byte, and 0.0000095 at every fourth. In
//! memory that is not random the magic may be frequent, and the check alone errs once in 2^32; it
//! depends on all other bits, as a test measures.

mod anchor;
mod byte_order;
pub mod guard;
mod header;
pub mod inline_stack;
pub mod stack_table;

pub use anchor::{ANCHOR_BYTES, ANCHOR_MAGIC, Anchor, AnchorError, BlockLayout};
pub use byte_order::ByteOrder;
pub use header::{
    BlockState, FREED_MAGIC, HEADER_BYTES, Header, HeaderError, LIVE_MAGIC, MAX_ALIGNMENT_LOG2, SIZE_LIMIT,
    StackKind, StackReference,
};
