//! Compact ImageMap Format: the programs and libraries in a process and their addresses, as Swift's
//! runtime writes them.
//!
//! A backtrace of bare addresses is worth little without this map. For each image (a module, in
//! cairn's words) it states the base, the end of the code, the build id and the path; prefixes of
//! paths are written once.
//!
//! Read one with a [`CifDecoder`], write one with [`encode`]:
//!
//! ```
//! use cairn_wire::cif::{CifDecoder, DecoderSlot};
//!
//! let input = b"\x02\x05Linux\x02\
//!     \x09\x10\x00\x01\x00\x00\x0a/opt/x/app\x00\
//!     \x09\x20\x00\x01\x00\x00\xa1\x80\x04x.so\x00";
//! let mut slots = [DecoderSlot::EMPTY; 16];
//! for image in CifDecoder::strict(input, &mut slots)? {
//!     let module = image?.module;
//!     println!("{}-{} {}", module.base, module.end, module.path.unwrap());
//! }
//! // 0x1000-0x1100 /opt/x/app
//! // 0x2000-0x2100 /opt/x/libx.so
//! # Ok::<(), cairn_wire::cif::CifError>(())
//! ```
//!
//! # The bytes
//!
//! ```text
//! 02                    info: version << 2 | word size (0, 1, 2: 16, 32, 64 bits)
//! 05 4c 69 6e 75 78     platform: length and UTF-8 text, "Linux"
//! 02                    number of images: 7 bits a byte, most significant first, top bit set = more follow
//!
//! 09                    image 1: header  r 0 aaa eee   aaa = base bytes - 1, eee = end bytes - 1
//! 10 00                   base; r = 0: as it is (sign-extended)
//! 01 00                   end of text, counted from the base (sign-extended)
//! 00                      length of the build id, in the form of the number of images
//! 0a 2f 6f 70 74 ...      path: string data of 10 bytes, "/opt/x/app"; now code 32 is "/opt" and 33 is "/opt/x"
//! 00                      end of the path
//!
//! 09 20 00 01 00 00     image 2: another absolute base; r = 1 would count it from the base before
//! a1                      path: the text of code 33, "/opt/x",
//! 80                      that of code 0, "/lib",
//! 04 78 2e 73 6f 00       and "x.so"
//! ```
//!
//! Path opcodes:
//!
//! | byte      | meaning |
//! |-----------|---------|
//! | `00`      | end; as the first byte: there is no path |
//! | `01`-`3f` | the opcode is the number of bytes of string data |
//! | `40`-`7f` | a version byte and a name of opcode - `3f` bytes: `/<name>.framework/Versions/<version>/<name>`. Ends the path |
//! | `80`-`bf` | the text of code opcode - `80` |
//! | `c0`-`ff` | opcode - `bf` bytes hold v: the text of code v + 64 |
//!
//! Codes 0 to 11 are fixed: `/lib`, `/usr/lib`, `/usr/local/lib`, `/opt/lib`,
//! `/System/Library/Frameworks`, `/System/Library/PrivateFrameworks`, `/System/iOSSupport`,
//! `/Library/Frameworks`, `/System/Applications`, `/Applications`, `C:\Windows\System32`,
//! `C:\Program Files`. The rest up to 31 is reserved. From 32 on, every `/` or `\` in string data,
//! except its first byte, assigns the next code to the text from the start of the path's string
//! data up to there. Text that was expanded before the string data does not belong to it; text
//! expanded in its middle does.
//!
//! A writer takes the longest prefix known so far, again and again until none fits, and does not
//! care where a component ends: `/library` is code 0 and `rary`.
//!
//! # Where the published document and Swift differ
//!
//! - The document's example has a `00` after a framework. No writer puts it there, and readers
//!   would take it for the header of the next image.
//! - The document writes the count 127 as `7f`. Swift 6.2 writes `80 7f`: a useless `80` in front
//!   of every count whose number of bits is a multiple of seven. Both are read;
//!   [`CifDialect::Canonical`] writes the short one.
//! - Swift 6.2 writes prefix codes from 320 on with too few bytes, so that it reads its own paths
//!   back wrong, and lets framework names above 64 bytes run into the opcode.
//!   [`CifDialect::Canonical`] does neither.
//! - Swift 6.2 takes bases with the top bit set in 16- and 32-bit maps for negative numbers inside.
//!   So the end of a text across the middle of the address space is written as a negative offset,
//!   at times one byte wider than a word. In a 64-bit map, no text crosses the middle: strict
//!   reading and writing refuse it.
//! - Swift 6.2 traps on overflowing counts and codes, reports no error in a path and goes on in the
//!   middle of it, and replaces bad UTF-8. Newer Swift refuses more than [`MAX_IMAGES`] images,
//!   build ids above [`MAX_BUILD_ID_BYTES`], a platform that is not UTF-8 and empty texts, and
//!   drops paths that are not UTF-8. Strict reading here has the same limits but lets an empty text
//!   pass, with a finding.
//! - Newer Swift has frameworks without a `Versions` folder, `/<name>.framework/<name>`, under the
//!   version byte 1. They are read here and, since Swift 6.2 would not understand them, not
//!   written.
//! - The first drafts of the format had no platform. Such a map cannot be distinguished from a
//!   newer one, and is misread.
//!
//! # Bounds
//!
//! Reading takes time in proportion to the input and no memory but the caller's slots. A prefix may
//! contain expanded prefixes, so a few bytes can represent a text that doubles with every image;
//! therefore the text of a path is limited to [`MAX_PATH_BYTES`] and the nesting to 16, both far
//! beyond what any writer makes, and text is built only when it is read.

mod decode;
mod encode;
mod error;
mod known_prefixes;
mod opcode;
mod path_reader;
mod paths;
mod prefixes;
mod utf8;

pub use decode::{CifDecoder, Image, slots_needed};
pub use encode::{CifDialect, CifEncodeError, CifEncodeErrorKind, encode};
pub use error::{CifError, CifErrorKind};
pub use known_prefixes::EncoderSlot;
pub use paths::{DecoderSlot, Path, PathPieces};

use cairn_format::{Module, WordSize};

/// The most images in a map that newer Swift readers accept.
pub const MAX_IMAGES: u64 = 1 << 20;

/// The longest build id that newer Swift readers accept.
pub const MAX_BUILD_ID_BYTES: u64 = 1024;

/// The longest text of a path that is accepted here.
///
/// Linux and macOS end at 4096 bytes. Windows takes 32767 UTF-16 units, at most 98301 bytes of
/// UTF-8.
pub const MAX_PATH_BYTES: u64 = 1 << 17;

/// A map to be written.
///
/// The document asks for images in the order of their base addresses. Nothing depends on it; any
/// order is written and read, in somewhat more bytes.
#[derive(Clone, Copy, Debug)]
pub struct ImageMap<'a> {
    /// The width of addresses.
    pub word_size: WordSize,
    /// The name of the system, up to 255 bytes: `Linux`, `macOS`, `Windows`.
    pub platform: &'a str,
    /// The loaded modules. Paths must be UTF-8.
    pub images: &'a [Module<'a>],
}

/// Bit 7 of an image's header byte: the base counts from the one before.
const RELATIVE: u8 = 0x80;

/// Bit 6 of an image's header byte, always 0.
const RESERVED: u8 = 0x40;

/// Returns the first byte of a map of version 0.
const fn info_byte(word_size: WordSize) -> u8 {
    match word_size {
        WordSize::Bits16 => 0,
        WordSize::Bits32 => 1,
        WordSize::Bits64 => 2,
    }
}

/// Returns true for a text of a 64-bit map that crosses the middle of the address space.
fn crosses_middle(word_size: WordSize, base: u64, end: u64) -> bool {
    const MIDDLE: u64 = 1 << 63;
    word_size == WordSize::Bits64 && base < MIDDLE && end > MIDDLE
}
