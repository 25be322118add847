//! Resolves addresses in executables to functions, source lines, and chains of inlined calls.
//!
//! A [`Symbolizer`] works on single files and on the many modules of a recording from another
//! machine.
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
pub mod shorten;
mod source;
mod symbolizer;

pub use elf::Section;
pub use error::Error;
pub use kinds::{GeneratedFormat, GeneratedNames, GeneratedPiece, SeenAddress};
pub use lookup::{AddressKind, Lookup, Place};
pub use module::{BuildId, ModuleId, ModuleInfo, ModuleReport};
pub use options::SymbolizerOptions;
pub use resolution::{
    AnsweredBy, DataSymbol, Declaration, Difference, Resolution, Resolutions, SourceFrame, Unknown,
};
pub use symbolizer::Symbolizer;

/// Maximum depth of inlined calls; 1000, because real code stays below 50.
///
/// This holds even for template-heavy C++, but a hostile file can claim endless inline chains.
const MAX_INLINE_DEPTH: usize = 1000;

/// Maximum bytes of a mangled name; 1 MiB.
///
/// The longest names that compilers have emitted have about ten thousand bytes.
const MAX_NAME_BYTES: usize = 1 << 20;
