//! From a memory image to answers: who allocated this block, what holds the memory, what is damaged, what leaked.
//!
//! ```no_run
//! use cairn_memory::heap::{Annotated, FindOptions};
//! use cairn_memory::image::{Image, OpenOptions};
//!
//! let image = Image::open("core.4711".as_ref(), &OpenOptions::default())?;
//! let found = Annotated::find(&image, &FindOptions::default());
//! println!("{} blocks, {} bytes", found.blocks().len(), found.live_bytes());
//! if let Some(near) = found.near(0x7f00_1234_5678) {
//!     println!("{:#x} is {:?}", near.block.user_address, near.place);
//! }
//! # Ok::<(), cairn_memory::image::ImageError>(())
//! ```
//!
//! - [`Annotated`]: blocks that say who made them, of three layouts, found by one pass over the memory.
//! - [`GlibcHeap`]: the heap of an ordinary program, by glibc's own bookkeeping: sizes, what is in use, what is corrupt.
//! - [`References`] and [`Reachability`]: what points to a block, and which blocks nothing points to.
//! - [`Damage`]: blocks that overlap, ends that were written past.
//! - [`BlockStacks`]: the stacks that blocks refer to, each once.
//!
//! Memory is that of the answer (32 bytes for a block), not that of the image.

mod annotated;
mod block_stacks;
mod candidates;
mod damage;
mod glibc;
mod lws_lists;
mod reach;

pub use annotated::{Annotated, Block, BlockLayout, FindOptions, Near, NearPlace};
pub use block_stacks::BlockStacks;
pub use damage::Damage;
pub use glibc::{Arena, Chunk, ChunkState, GlibcHeap, HeapDamage, SizeCount};
pub use reach::{Holder, Reachability, Reference, References};
