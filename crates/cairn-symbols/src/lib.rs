//! From an address in an executable to function, file, line, and the chain of inlined calls.
//!
//! [`Symbolizer`] answers for many modules, also for those of another machine's recording; [`FileSymbols`] is the short
//! way for one file at hand.
//!
//! ```no_run
//! use cairn_format::StatedAddress;
//! use cairn_symbols::FileSymbols;
//!
//! let symbols = FileSymbols::open("app.elf".as_ref())?;
//! for location in symbols.resolve(StatedAddress::new(0x406651)) {
//!     println!("{location}");
//! }
//! # Ok::<(), cairn_symbols::Error>(())
//! ```

#![deny(unsafe_code)]

mod debug_object;
#[cfg(feature = "debuginfod")]
mod debuginfod;
mod demangle;
mod dwarf;
mod elf_source;
mod error;
mod file_symbols;
mod index;
mod indexer;
mod loader_source;
mod locate;
mod lookup;
mod mapped_file;
mod mini_debug;
mod module;
mod open;
mod options;
mod resolution;
mod source;
mod symbol_table;
mod symbolizer;
mod unwind_starts;

pub use error::Error;
pub use file_symbols::{FileSymbols, Location};
pub use lookup::{AddressKind, Lookup, Place};
pub use module::{BuildId, ModuleId, ModuleInfo, ModuleReport};
pub use options::SymbolizerOptions;
pub use resolution::{Difference, Resolution, Resolutions, SourceFrame, Unknown};
pub use symbolizer::Symbolizer;

/// Real code stays below 50 even in template-heavy C++; a hostile file can claim inline chains without end.
const MAX_INLINE_DEPTH: usize = 1000;

/// The longest mangled names that compilers made so far have some ten thousand bytes.
const MAX_NAME_BYTES: usize = 1 << 20;
