//! From an address in an executable to function, file, line, and the chain of inlined calls.
//!
//! [`Symbolizer`] answers for one file at hand as for many modules of another machine's recording.
//!
//! ```no_run
//! use cairn_format::StatedAddress;
//! use cairn_symbols::{Lookup, Symbolizer, SymbolizerOptions};
//!
//! let mut symbolizer = Symbolizer::new(SymbolizerOptions::new());
//! let app = symbolizer.add_file("app.elf")?;
//! for frame in symbolizer.resolve(app, Lookup::stated(StatedAddress::new(0x406651))).frames() {
//!     println!("{frame}");
//! }
//! # Ok::<(), cairn_symbols::Error>(())
//! ```

#![deny(unsafe_code)]

#[cfg(all(feature = "debuginfod", target_os = "linux"))]
mod debuginfod;
pub mod demangle;
mod dwarf;
mod elf;
mod error;
mod index;
mod kinds;
mod locate;
mod lookup;
mod mapped_file;
mod module;
mod open;
mod options;
mod resolution;
mod source;
mod symbolizer;

pub use elf::Section;
pub use error::Error;
pub use lookup::{AddressKind, Lookup, Place};
pub use module::{BuildId, ModuleId, ModuleInfo, ModuleReport};
pub use options::SymbolizerOptions;
pub use resolution::{
    AnsweredBy, DataSymbol, Declaration, Difference, Resolution, Resolutions, SourceFrame, Unknown,
};
pub use symbolizer::Symbolizer;

/// Real code stays below 50 even in template-heavy C++; a hostile file can claim inline chains without end.
const MAX_INLINE_DEPTH: usize = 1000;

/// The longest mangled names that compilers made so far have some ten thousand bytes.
const MAX_NAME_BYTES: usize = 1 << 20;
