//! Swift's JSON of a backtrace: the architecture, the frames, and the modules they lie in.
//!
//! ```
//! use cairn_wire::cbf::{CbfDecoder, Rules};
//! use cairn_format::{AbsoluteAddress, Frame, WordSize};
//! use cairn_wire::swift_json;
//!
//! let text = br#"{"architecture": "x86_64", "backtrace": "AhJAEAAhAjQhDcw"}"#;
//! let document = swift_json::read(text)?;
//! assert_eq!(document.architecture, "x86_64");
//! assert_eq!(document.word_size(), Some(WordSize::Bits64));
//!
//! let mut buffer = [0; 64];
//! let record = document.backtrace.decode_base64(&mut buffer)?;
//! let first = CbfDecoder::new(record, Rules::LENIENT).next();
//! assert_eq!(first, Some(Ok(Frame::ProgramCounter(AbsoluteAddress::new(0x401000)))));
//! # Ok::<(), Box<dyn core::error::Error>>(())
//! ```
//!
//! # The text
//!
//! ```text
//! {"architecture": "x86_64", "backtrace": "AhJAEAAhAjQhDcw", "imageMap": "AgVsaW51eAA"}
//!                  any text                base64 of         optional, may be null: base64 of
//!                                          a CBF record      a CIF map
//! ```
//!
//! The keys come in any order (Swift's own encoder does not fix one), and others may be between
//! them; those are skipped whatever they hold. Swift writes base64 without padding and reads it
//! with or without, in both alphabets; its JSON encoder writes the `/` of base64 as `\/`, so that
//! the base64 in a text may contain backslashes. The bytes within are described in
//! [`cbf`](crate::cbf) and [`cif`](crate::cif).
//!
//! A known key that occurs twice is refused: readers do not agree on which one counts, and a
//! backtrace that means one thing here and another there is worse than none.
//!
//! # Why not serde
//!
//! This crate depends on `core` alone, so that the same code reads a stack on a server and in a
//! bootloader. Four keys do not need a general reader: here the text is borrowed, nothing is
//! allocated, and the values of unknown keys are walked with 64 bits of memory in place of
//! recursion, so that a deeply nested text can exhaust nothing.

mod json_text;
mod scanner;

use core::fmt;

use crate::base64::{self, Padding};
use cairn_format::{Sink, SinkFull, WordSize};
pub use json_text::{Base64Bytes, Characters, JsonText};
use scanner::Scanner;

/// Objects and arrays in an unknown value may be nested so deep, not deeper.
pub const MAX_DEPTH: u32 = 64;

/// One backtrace, as pieces of the text that was read.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Document<'a> {
    /// The name that Swift gives to the processor, such as `x86_64` or `arm64`; see
    /// [`word_size_of`].
    pub architecture: JsonText<'a>,
    /// Base64 of a Compact Backtrace Format record.
    pub backtrace: JsonText<'a>,
    /// Base64 of a Compact ImageMap Format map, if there is one.
    pub image_map: Option<JsonText<'a>>,
}

impl Document<'_> {
    /// Returns the word size of the architecture, if it is a known one. The backtrace and the image
    /// map state their own; this is to check them by.
    #[must_use]
    pub fn word_size(&self) -> Option<WordSize> {
        ARCHITECTURES.iter().find(|(name, _)| self.architecture == **name).map(|&(_, word_size)| word_size)
    }
}

/// Returns the word size of an architecture that Swift, LLVM or Linux names; `None` if unknown.
///
/// ```
/// use cairn_format::WordSize;
/// use cairn_wire::swift_json::word_size_of;
/// assert_eq!(word_size_of("arm64_32"), Some(WordSize::Bits32));
/// assert_eq!(word_size_of("pdp11"), None);
/// ```
#[must_use]
pub fn word_size_of(architecture: &str) -> Option<WordSize> {
    ARCHITECTURES.iter().find(|(name, _)| *name == architecture).map(|&(_, word_size)| word_size)
}

/// Names and word sizes of architectures. Swift itself writes x86_64, i386, arm64 and arm; tools
/// around it write the others.
const ARCHITECTURES: [(&str, WordSize); 34] = {
    use WordSize::{Bits16, Bits32, Bits64};
    [
        ("x86_64", Bits64),
        ("x86_64h", Bits64),
        ("amd64", Bits64),
        ("arm64", Bits64),
        ("arm64e", Bits64),
        ("aarch64", Bits64),
        ("powerpc64", Bits64),
        ("powerpc64le", Bits64),
        ("ppc64", Bits64),
        ("ppc64le", Bits64),
        ("s390x", Bits64),
        ("riscv64", Bits64),
        ("mips64", Bits64),
        ("mips64el", Bits64),
        ("loongarch64", Bits64),
        ("wasm64", Bits64),
        ("i386", Bits32),
        ("i486", Bits32),
        ("i586", Bits32),
        ("i686", Bits32),
        ("x86", Bits32),
        ("arm", Bits32),
        ("armv6", Bits32),
        ("armv7", Bits32),
        ("armv7k", Bits32),
        ("armv7s", Bits32),
        ("thumbv7", Bits32),
        ("arm64_32", Bits32),
        ("powerpc", Bits32),
        ("ppc", Bits32),
        ("riscv32", Bits32),
        ("wasm32", Bits32),
        ("avr", Bits16),
        ("msp430", Bits16),
    ]
};

/// Reports a fault in a text and its offset.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SwiftJsonError {
    /// Offset of the first byte that is wrong, or of the end of the text when something is missing.
    pub offset: usize,
    /// Kind of the fault.
    pub kind: SwiftJsonErrorKind,
}

/// The ways in which a text can be wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SwiftJsonErrorKind {
    /// The bytes are not UTF-8.
    NotUtf8,
    /// The text is over before the JSON is.
    UnexpectedEnd,
    /// Another byte was expected by the grammar of JSON.
    NotJson {
        /// The expected content.
        expected: &'static str,
    },
    /// A control character in a string that should have been escaped.
    ControlCharacter,
    /// A backslash with something that is no escape, or half of a surrogate pair.
    BadEscape,
    /// More than [`MAX_DEPTH`] objects and arrays within each other.
    TooDeep,
    /// One of the three known keys occurs twice.
    DuplicateKey,
    /// The value of a known key is not a string.
    NotAString {
        /// The key.
        key: &'static str,
    },
    /// A key that has to be there is not.
    MissingKey {
        /// The key.
        key: &'static str,
    },
    /// Something follows the object.
    TrailingData,
}

impl fmt::Display for SwiftJsonError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            SwiftJsonErrorKind::NotUtf8 => f.write_str("not UTF-8"),
            SwiftJsonErrorKind::UnexpectedEnd => f.write_str("the JSON text is cut off"),
            SwiftJsonErrorKind::NotJson { expected } => write!(f, "not JSON: expected {expected}"),
            SwiftJsonErrorKind::ControlCharacter => f.write_str("not JSON: a control character in a string"),
            SwiftJsonErrorKind::BadEscape => f.write_str("not JSON: a wrong escape in a string"),
            SwiftJsonErrorKind::TooDeep => write!(f, "more than {MAX_DEPTH} values within each other"),
            SwiftJsonErrorKind::DuplicateKey => f.write_str("a key comes twice"),
            SwiftJsonErrorKind::NotAString { key } => write!(f, "the value of {key:?} is not a string"),
            SwiftJsonErrorKind::MissingKey { key } => write!(f, "no key {key:?}"),
            SwiftJsonErrorKind::TrailingData => f.write_str("data after the JSON object"),
        }?;
        write!(f, ", at byte {}", self.offset)
    }
}

impl core::error::Error for SwiftJsonError {}

/// Reads a text that is one backtrace.
///
/// # Errors
///
/// [`SwiftJsonError`] when the text is not JSON, or not that of a backtrace. Whether the base64 is
/// any, and what it holds, is found out when it is decoded.
///
/// ```
/// use cairn_wire::swift_json::{SwiftJsonErrorKind, read};
/// let error = read(br#"{"architecture": "arm64"}"#).unwrap_err();
/// assert_eq!(error.kind, SwiftJsonErrorKind::MissingKey { key: "backtrace" });
/// assert_eq!(error.to_string(), r#"no key "backtrace", at byte 24"#);
/// ```
pub fn read(text: &[u8]) -> Result<Document<'_>, SwiftJsonError> {
    let (document, rest) = read_first(text)?;
    let blank = rest.iter().take_while(|byte| scanner::is_space(**byte)).count();
    if blank < rest.len() {
        let offset = text.len() - rest.len() + blank;
        return Err(SwiftJsonError { offset, kind: SwiftJsonErrorKind::TrailingData });
    }
    Ok(document)
}

/// Reads the backtrace at the start of `text`, and returns the rest, for texts one after the other.
///
/// # Errors
///
/// As [`read`], but for data after the object.
///
/// ```
/// use cairn_wire::swift_json::read_first;
/// let lines = b"{\"architecture\": \"arm64\", \"backtrace\": \"Ag\"}\n{\"arch";
/// let (document, rest) = read_first(lines)?;
/// assert_eq!(document.architecture, "arm64");
/// assert_eq!(rest, b"\n{\"arch");
/// # Ok::<(), cairn_wire::swift_json::SwiftJsonError>(())
/// ```
pub fn read_first(text: &[u8]) -> Result<(Document<'_>, &[u8]), SwiftJsonError> {
    let mut scanner = Scanner::new(text);
    scanner.skip_space();
    scanner.expect(b'{', "an object")?;
    let mut found = Members::default();
    scanner.skip_space();
    if !scanner.eat(b'}') {
        loop {
            found.read_member(&mut scanner)?;
            scanner.skip_space();
            if scanner.eat(b'}') {
                break;
            }
            scanner.expect(b',', "a comma or the end of the object")?;
            scanner.skip_space();
        }
    }
    let missing =
        |key| SwiftJsonError { offset: scanner.position() - 1, kind: SwiftJsonErrorKind::MissingKey { key } };
    let document = Document {
        architecture: found.architecture.ok_or(missing("architecture"))?,
        backtrace: found.backtrace.ok_or(missing("backtrace"))?,
        image_map: found.image_map,
    };
    Ok((document, scanner.rest()))
}

/// The known members seen so far.
#[derive(Default)]
struct Members<'a> {
    architecture: Option<JsonText<'a>>,
    backtrace: Option<JsonText<'a>>,
    image_map: Option<JsonText<'a>>,
    /// `"imageMap": null` was seen. Swift takes it as absent, and it still must not come twice.
    image_map_is_null: bool,
}

impl<'a> Members<'a> {
    /// Returns one key and its value.
    fn read_member(&mut self, scanner: &mut Scanner<'a>) -> Result<(), SwiftJsonError> {
        let key_offset = scanner.position();
        let key = scanner.string("a key")?;
        scanner.skip_space();
        scanner.expect(b':', "a colon")?;
        scanner.skip_space();
        let (slot, name) = if key == "architecture" {
            (&mut self.architecture, "architecture")
        } else if key == "backtrace" {
            (&mut self.backtrace, "backtrace")
        } else if key == "imageMap" {
            (&mut self.image_map, "imageMap")
        } else {
            return scanner.skip_value();
        };
        if slot.is_some() || (name == "imageMap" && self.image_map_is_null) {
            return Err(SwiftJsonError { offset: key_offset, kind: SwiftJsonErrorKind::DuplicateKey });
        }
        if name == "imageMap" && scanner.peek() == Some(b'n') {
            self.image_map_is_null = true;
            return scanner.skip_value();
        }
        if scanner.peek().is_some_and(|byte| byte != b'"') {
            let kind = SwiftJsonErrorKind::NotAString { key: name };
            return Err(SwiftJsonError { offset: scanner.position(), kind });
        }
        *slot = Some(scanner.string("a string")?);
        Ok(())
    }
}

/// Writes the text of one backtrace, on one line and without a line feed.
///
/// `backtrace` is a Compact Backtrace Format record, `image_map` a Compact ImageMap Format map;
/// both are written as they are.
///
/// # Errors
///
/// [`SinkFull`] when `sink` cannot take the text.
///
/// ```
/// use cairn_format::SliceSink;
/// use cairn_wire::swift_json;
/// let mut buffer = [0; 80];
/// let mut sink = SliceSink::new(&mut buffer);
/// swift_json::write("arm64", &[0x02, 0x11, 0x01, 0x00, 0x01], None, &mut sink)?;
/// assert_eq!(sink.written(), br#"{"architecture": "arm64", "backtrace": "AhEBAAE"}"#);
/// # Ok::<(), cairn_format::SinkFull>(())
/// ```
pub fn write(
    architecture: &str,
    backtrace: &[u8],
    image_map: Option<&[u8]>,
    sink: &mut (impl Sink + ?Sized),
) -> Result<(), SinkFull> {
    let mut sink = sink;
    sink.put(b"{\"architecture\": \"")?;
    write_escaped(architecture, &mut sink)?;
    sink.put(b"\", \"backtrace\": \"")?;
    base64::encode(backtrace, Padding::Omitted, &mut sink)?;
    if let Some(image_map) = image_map {
        sink.put(b"\", \"imageMap\": \"")?;
        base64::encode(image_map, Padding::Omitted, &mut sink)?;
    }
    sink.put(b"\"}")
}

/// Returns the inside of a JSON string: only what must be escaped is.
fn write_escaped(text: &str, sink: &mut impl Sink) -> Result<(), SinkFull> {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let mut rest = text.as_bytes();
    loop {
        let plain = rest.iter().take_while(|byte| **byte >= 0x20 && !b"\"\\".contains(byte)).count();
        let (before, after) = rest.split_at_checked(plain).unwrap_or((rest, &[]));
        sink.put(before)?;
        let Some((&special, after)) = after.split_first() else { return Ok(()) };
        match special {
            b'"' | b'\\' => sink.put(&[b'\\', special])?,
            _ => {
                let [high, low] = [special >> 4, special & 0x0f].map(|digit| HEX[usize::from(digit & 0x0f)]);
                sink.put(&[b'\\', b'u', b'0', b'0', high, low])?;
            }
        }
        rest = after;
    }
}
