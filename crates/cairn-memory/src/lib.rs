//! Opens images of memory and finds the heaps in them: core files, minidumps, raw dumps, processes.
//!
//! ```no_run
//! use cairn_memory::heap::{Annotated, FindOptions};
//! use cairn_memory::image::{Image, OpenOptions};
//!
//! let image = Image::open("core.4711".as_ref(), &OpenOptions::default())?;
//! let found = Annotated::find(&image, &FindOptions::default());
//! println!("{} blocks, {} bytes", found.blocks().len(), found.live_bytes());
//! # Ok::<(), cairn_memory::image::ImageError>(())
//! ```
//!
//! | module | task |
//! |---|---|
//! | [`image`] | opens the memory of a dead process, or of another machine, as one value |
//! | [`heap`] | finds allocated blocks in an image: annotated, glibc's, damaged, and unreachable ones |
//! | [`process`] | walks the stacks of a running process's threads |
//! | [`python`] | puts Python frames into these stacks |
//!
//! The crate draws no conclusions and prints nothing: `cairn-analysis` does the first, `cairn-cli`
//! the second.

#![deny(unsafe_code)]

pub mod heap;
pub mod image;
mod mapped_file;
mod path_bytes;
mod pe;
pub mod process;
pub mod python;
