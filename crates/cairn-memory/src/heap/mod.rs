//! Finds blocks in a memory image: who allocated them, who refers to them, which are damaged or
//! leaked.
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
//! - [`Annotated`]: annotated blocks of three layouts, found by one pass over the memory.
//! - [`GlibcHeap`]: the heap of an ordinary program, by glibc's own bookkeeping: sizes, states,
//!   damage.
//! - [`References`] and [`Reachability`]: the pointers to a block, and the blocks without pointers.
//! - [`Damage`]: overlapping blocks, and writes past the end of a block.
//! - [`BlockStacks`]: the stacks that blocks refer to, each once.
//!
//! Memory use follows the answer (32 bytes per block), not the size of the image.

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
