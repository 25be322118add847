//! What can be wrong with a record, and the list of what a lenient decoder passed over.

use core::fmt;
use core::num::NonZeroUsize;

/// What is wrong with a record, and where.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DecodeError {
    /// Offset of the info byte, the instruction or the surplus byte that is wrong.
    pub offset: usize,
    /// What is wrong there.
    pub kind: DecodeErrorKind,
}

/// The ways in which a record can be wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum DecodeErrorKind {
    /// There is not even an info byte.
    Empty,
    /// The info byte states a version other than 0.
    UnsupportedVersion {
        /// The stated version.
        version: u8,
    },
    /// The info byte states word size 3.
    ReservedWordSize,
    /// An instruction that version 0 does not define.
    ReservedOpcode {
        /// The instruction.
        opcode: u8,
    },
    /// The data is over before the operand is.
    TruncatedOperand {
        /// Bytes the operand should have.
        expected: u8,
        /// Bytes that are left.
        found: u8,
    },
    /// An operand has more bytes than a word.
    OperandTooWide,
    /// The first address is relative.
    FirstAddressRelative,
    /// A repeat with no frame before it.
    RepeatFirst,
    /// A repeat of 0 times.
    ZeroRepeat,
    /// A repeat of more than [`MAX_REPEATS`](super::MAX_REPEATS) times, or of what
    /// [`Rules::with_repeat_limit`](super::Rules::with_repeat_limit) allows.
    RepeatTooLarge,
    /// There are bytes after the end.
    TrailingData,
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            DecodeErrorKind::Empty => f.write_str("no data, not even an info byte"),
            DecodeErrorKind::UnsupportedVersion { version } => {
                write!(f, "unknown backtrace format version {version} (only 0 is known)")
            }
            DecodeErrorKind::ReservedWordSize => f.write_str("the info byte has reserved word size 3"),
            DecodeErrorKind::ReservedOpcode { opcode } => write!(f, "reserved instruction {opcode:#04x}"),
            DecodeErrorKind::TruncatedOperand { expected, found } => {
                write!(f, "an operand of {expected} bytes is cut after {found}")
            }
            DecodeErrorKind::OperandTooWide => f.write_str("an operand is wider than the word"),
            DecodeErrorKind::FirstAddressRelative => f.write_str("the first address is relative"),
            DecodeErrorKind::RepeatFirst => f.write_str("a repeat has no frame before it"),
            DecodeErrorKind::ZeroRepeat => f.write_str("a frame is repeated 0 times"),
            DecodeErrorKind::RepeatTooLarge => f.write_str("a frame is repeated more often than allowed"),
            DecodeErrorKind::TrailingData => f.write_str("data after the end"),
        }?;
        write!(f, ", at byte {}", self.offset)
    }
}

impl core::error::Error for DecodeError {}

/// The kinds that a lenient decoder passes over; the index in [`Findings`] of each is its place
/// here.
const TOLERATED: [DecodeErrorKind; 5] = [
    DecodeErrorKind::FirstAddressRelative,
    DecodeErrorKind::OperandTooWide,
    DecodeErrorKind::ZeroRepeat,
    DecodeErrorKind::RepeatTooLarge,
    DecodeErrorKind::TrailingData,
];

/// What a lenient decoder tolerated so far: each deviation with the offset where it was first seen.
///
/// ```
/// use cairn_wire::cbf::{DecodeErrorKind, Decoder, Rules};
///
/// // A relative first address, a repeat of 0 times, and a reserved instruction.
/// let mut decoder = Decoder::new(&[0x02, 0x10, 0x7f, 0x88, 0x00, 0xff], Rules::LENIENT);
/// assert_eq!(decoder.by_ref().count(), 3);
/// let findings = decoder.findings();
/// assert_eq!(findings.first(DecodeErrorKind::ZeroRepeat), Some(3));
/// assert_eq!(findings.stopped_by().map(|error| error.offset), Some(5));
/// assert_eq!(findings.iter().count(), 3);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Findings {
    /// None is 0: that is the info byte, of which nothing is tolerated. Small, because each decoder
    /// begins with it.
    offsets: [Option<NonZeroUsize>; TOLERATED.len()],
    pub(super) stopped_by: Option<DecodeError>,
}

impl Findings {
    /// True when the record would have passed [`Rules::STRICT`](super::Rules::STRICT) so far.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The offset where a deviation of this kind was first seen.
    #[must_use]
    pub fn first(&self, kind: DecodeErrorKind) -> Option<usize> {
        self.iter().find(|error| error.kind == kind).map(|error| error.offset)
    }

    /// The error at which decoding stopped, if it did not reach the end.
    #[must_use]
    pub const fn stopped_by(&self) -> Option<DecodeError> {
        self.stopped_by
    }

    /// One error for each kind of deviation, the one that stopped the decoder last.
    pub fn iter(&self) -> impl Iterator<Item = DecodeError> + use<> {
        let tolerated = TOLERATED.into_iter().zip(self.offsets);
        tolerated
            .filter_map(|(kind, offset)| Some(DecodeError { offset: offset?.get(), kind }))
            .chain(self.stopped_by)
    }

    pub(super) fn note(&mut self, error: DecodeError) {
        for (kind, offset) in TOLERATED.iter().zip(&mut self.offsets) {
            if *kind == error.kind {
                *offset = offset.or(NonZeroUsize::new(error.offset));
            }
        }
    }
}
