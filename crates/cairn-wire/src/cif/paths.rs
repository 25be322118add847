//! The path of a decoded image: opcodes in the input, turned into text piece by piece as it is
//! read.

use core::cell::Cell;
use core::fmt;

use super::opcode::{Opcode, next_opcode};
use super::prefixes::{FIRST_ASSIGNED_CODE, FIXED_PREFIXES, FLAT_FRAMEWORK};
use super::utf8::{Utf8Part, Utf8Stream};
use cairn_format::bytes::ByteReader;
use cairn_format::{Sink, SinkFull};

/// How many prefixes may stand one inside the other. Encoders that are known to exist never nest
/// any.
pub(super) const MAX_NESTING: usize = 16;

/// Working memory of the [`CifDecoder`](super::CifDecoder): where the text of one prefix lies in
/// the input.
#[derive(Clone, Copy, Debug)]
pub struct DecoderSlot {
    /// Offset of the path's first `str` opcode, where the text of the prefix begins.
    pub(super) start: usize,
    /// Offset of the separator that ends it.
    pub(super) end: usize,
    pub(super) text_length: u32,
    /// How many prefixes stand one inside the other in the text.
    pub(super) nesting: u8,
    pub(super) content: PrefixContent,
}

impl DecoderSlot {
    /// A slot that holds nothing, to fill an array or vector with.
    pub const EMPTY: Self =
        Self { start: 0, end: 0, text_length: 0, nesting: 0, content: PrefixContent::Unknown };
}

/// State of the text of a prefix.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PrefixContent {
    Utf8,
    /// It can be read, but is not UTF-8.
    Bytes,
    /// It has a part that could not be resolved.
    Unknown,
}

/// Meaning of a prefix code.
#[derive(Clone, Copy)]
pub(super) enum Prefix {
    Fixed(&'static [u8]),
    Assigned(DecoderSlot),
}

/// Finds a code that is known to have been assigned. `None` when it is reserved, or no slot was
/// left for it.
pub(super) fn prefix(slots: &[Cell<DecoderSlot>], code: u64) -> Option<Prefix> {
    match code.checked_sub(FIRST_ASSIGNED_CODE) {
        None => FIXED_PREFIXES.get(code as usize).copied().map(Prefix::Fixed),
        Some(index) => slots.get(usize::try_from(index).ok()?).map(|slot| Prefix::Assigned(slot.get())),
    }
}

/// The path of an image, as bytes. Reading it takes time in proportion to its length, which is at
/// most [`MAX_PATH_BYTES`](super::MAX_PATH_BYTES) whatever the input claims; not reading it costs
/// nothing.
///
/// In strict mode the bytes are UTF-8. [`Display`](fmt::Display) shows what is not as U+FFFD, as
/// Swift does.
///
/// ```
/// use cairn_format::SliceSink;
/// use cairn_wire::cif::{CifDecoder, DecoderSlot};
///
/// // The image's path is written as code 1, `/usr/lib`, and eight bytes of its own.
/// let input = b"\x02\x05Linux\x01\x09\x10\x00\x01\x00\x00\x81\x08/libz.so\x00";
/// let mut slots = [DecoderSlot::EMPTY; 8];
/// let image = CifDecoder::strict(input, &mut slots)?.next().unwrap()?;
/// let path = image.module.path.unwrap();
///
/// assert!(path == b"/usr/lib/libz.so");
/// assert_eq!(path.to_string(), "/usr/lib/libz.so");
/// assert!(path.pieces().eq([&b"/usr/lib"[..], b"/libz.so"]));
///
/// let mut buffer = [0; 32];
/// let mut sink = SliceSink::new(&mut buffer);
/// path.write_to(&mut sink).unwrap();
/// assert_eq!(sink.written(), b"/usr/lib/libz.so");
/// # Ok::<(), cairn_wire::cif::CifError>(())
/// ```
#[derive(Clone, Copy)]
pub struct Path<'a> {
    pub(super) input: &'a [u8],
    pub(super) slots: &'a [Cell<DecoderSlot>],
    /// Offset of the first opcode.
    pub(super) start: usize,
    /// Offset after the last one.
    pub(super) end: usize,
    pub(super) text_length: usize,
}

impl<'a> Path<'a> {
    /// Returns the number of bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a path that is there has at least one byte")]
    pub const fn len(&self) -> usize {
        self.text_length
    }

    /// Returns the slices that make up the path, in order. A character may begin in one and end in
    /// the next.
    #[must_use]
    pub fn pieces(&self) -> PathPieces<'a> {
        let mut stack = [Span::default(); MAX_NESTING + 1];
        if let Some(bottom) = stack.first_mut() {
            *bottom = Span { position: self.start, end: self.end };
        }
        PathPieces {
            input: self.input,
            slots: self.slots,
            stack,
            depth: 0,
            framework: FrameworkText::default(),
        }
    }

    /// Returns the bytes of the path.
    pub fn bytes(&self) -> impl Iterator<Item = u8> + use<'a> {
        self.pieces().flatten().copied()
    }

    /// Writes the bytes of the path.
    ///
    /// # Errors
    ///
    /// [`SinkFull`] when the sink takes no more; some pieces may have been written.
    pub fn write_to<S: Sink + ?Sized>(&self, sink: &mut S) -> Result<(), SinkFull> {
        self.pieces().try_for_each(|piece| sink.put(piece))
    }
}

impl PartialEq<[u8]> for Path<'_> {
    fn eq(&self, other: &[u8]) -> bool {
        if self.text_length != other.len() {
            return false;
        }
        let rest = self.pieces().try_fold(other, |rest, piece| rest.strip_prefix(piece));
        rest.is_some_and(<[u8]>::is_empty)
    }
}

impl<const N: usize> PartialEq<&[u8; N]> for Path<'_> {
    fn eq(&self, other: &&[u8; N]) -> bool {
        *self == other[..]
    }
}

impl PartialEq<&[u8]> for Path<'_> {
    fn eq(&self, other: &&[u8]) -> bool {
        *self == **other
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const REPLACEMENT: &str = "\u{fffd}";
        let mut text = Utf8Stream::default();
        for piece in self.pieces() {
            text.feed(piece, |part| match part {
                Utf8Part::Text(text) => f.write_str(text),
                Utf8Part::Invalid(_) => f.write_str(REPLACEMENT),
            })?;
        }
        if text.finish() { Ok(()) } else { f.write_str(REPLACEMENT) }
    }
}

impl fmt::Debug for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Path({self})")
    }
}

/// The slices of a [`Path`].
///
/// A prefix is a stretch of an earlier path: its opcodes are run again, up to its last byte.
/// Prefixes inside it go onto a small stack. Every stretch begins with bytes of its own, so the
/// work is in proportion to the output.
#[derive(Clone, Debug)]
pub struct PathPieces<'a> {
    input: &'a [u8],
    slots: &'a [Cell<DecoderSlot>],
    stack: [Span; MAX_NESTING + 1],
    depth: usize,
    framework: FrameworkText<'a>,
}

/// Opcodes yet to be run.
#[derive(Clone, Copy, Default, Debug)]
struct Span {
    position: usize,
    end: usize,
}

impl<'a> Iterator for PathPieces<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        if let Some(piece) = self.framework.next() {
            return Some(piece);
        }
        loop {
            let span = self.stack.get_mut(self.depth)?;
            let unread = self.input.get(span.position..span.end).unwrap_or_default();
            let mut reader = ByteReader::new(unread);
            match next_opcode(&mut reader) {
                Ok(Opcode::Str(piece)) => {
                    span.position += reader.position();
                    return Some(piece);
                }
                Ok(Opcode::Expand(code)) => {
                    span.position += reader.position();
                    match prefix(self.slots, code)? {
                        Prefix::Fixed(piece) => return Some(piece),
                        Prefix::Assigned(slot) => self.push(slot)?,
                    }
                }
                Ok(Opcode::Framework { version, name }) => {
                    span.position = span.end;
                    self.framework = FrameworkText::new(version, name);
                    return self.framework.next();
                }
                // The prefix ends within this string data.
                Err(_) if self.depth > 0 => {
                    self.depth -= 1;
                    if let Some(piece) = unread.get(1..).filter(|piece| !piece.is_empty()) {
                        return Some(piece);
                    }
                }
                Ok(Opcode::End) | Err(_) => {
                    span.position = span.end;
                    return None;
                }
            }
        }
    }
}

impl PathPieces<'_> {
    /// Goes on with the text of a prefix. The decoder has refused paths that nest deeper than the
    /// stack.
    fn push(&mut self, slot: DecoderSlot) -> Option<()> {
        let above = self.stack.get_mut(self.depth + 1)?;
        *above = Span { position: slot.start, end: slot.end };
        self.depth += 1;
        Some(())
    }
}

/// The text that a framework opcode represents, in parts. An empty part ends it.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct FrameworkText<'a> {
    parts: [&'a [u8]; 6],
    next: usize,
}

impl<'a> FrameworkText<'a> {
    pub(super) fn new(version: &'a [u8], name: &'a [u8]) -> Self {
        let parts = if version == [FLAT_FRAMEWORK] {
            [b"/", name, b".framework/", name, b"", b""]
        } else {
            [b"/", name, b".framework/Versions/", version, b"/", name]
        };
        Self { parts, next: 0 }
    }
}

impl<'a> Iterator for FrameworkText<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let part = self.parts.get(self.next).filter(|part| !part.is_empty())?;
        self.next += 1;
        Some(part)
    }
}
