//! Faults of a record, and the list of faults that a lenient decoder tolerated.

use core::fmt;
use core::num::NonZeroUsize;

/// Reports a fault in a record and its offset.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CbfError {
    /// Offset of the info byte, the instruction or the surplus byte that is wrong.
    pub offset: usize,
    /// Kind of the fault.
    pub kind: CbfErrorKind,
}

/// The ways in which a record can be wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum CbfErrorKind {
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

impl fmt::Display for CbfError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            CbfErrorKind::Empty => f.write_str("no data, not even an info byte"),
            CbfErrorKind::UnsupportedVersion { version } => {
                write!(f, "unknown backtrace format version {version} (only 0 is known)")
            }
            CbfErrorKind::ReservedWordSize => f.write_str("the info byte has reserved word size 3"),
            CbfErrorKind::ReservedOpcode { opcode } => write!(f, "reserved instruction {opcode:#04x}"),
            CbfErrorKind::TruncatedOperand { expected, found } => {
                write!(f, "an operand of {expected} bytes is cut after {found}")
            }
            CbfErrorKind::OperandTooWide => f.write_str("an operand is wider than the word"),
            CbfErrorKind::FirstAddressRelative => f.write_str("the first address is relative"),
            CbfErrorKind::RepeatFirst => f.write_str("a repeat has no frame before it"),
            CbfErrorKind::ZeroRepeat => f.write_str("a frame is repeated 0 times"),
            CbfErrorKind::RepeatTooLarge => f.write_str("a frame is repeated more often than allowed"),
            CbfErrorKind::TrailingData => f.write_str("data after the end"),
        }?;
        write!(f, ", at byte {}", self.offset)
    }
}

impl core::error::Error for CbfError {}

/// The kinds that a lenient decoder skips; the index in [`CbfFindings`] of each is its place
/// here.
const TOLERATED: [CbfErrorKind; 5] = [
    CbfErrorKind::FirstAddressRelative,
    CbfErrorKind::OperandTooWide,
    CbfErrorKind::ZeroRepeat,
    CbfErrorKind::RepeatTooLarge,
    CbfErrorKind::TrailingData,
];

/// Deviations that a lenient decoder tolerated so far, each with the offset of its first
/// occurrence.
///
/// ```
/// use cairn_wire::cbf::{CbfErrorKind, CbfDecoder, Rules};
///
/// // A relative first address, a repeat of 0 times, and a reserved instruction.
/// let mut decoder = CbfDecoder::new(&[0x02, 0x10, 0x7f, 0x88, 0x00, 0xff], Rules::LENIENT);
/// assert_eq!(decoder.by_ref().count(), 3);
/// let findings = decoder.findings();
/// assert_eq!(findings.first(CbfErrorKind::ZeroRepeat), Some(3));
/// assert_eq!(findings.stopped_by().map(|error| error.offset), Some(5));
/// assert_eq!(findings.iter().count(), 3);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct CbfFindings {
    /// None is 0: that is the info byte, which has no tolerated faults. Small, because each decoder
    /// begins with it.
    offsets: [Option<NonZeroUsize>; TOLERATED.len()],
    pub(super) stopped_by: Option<CbfError>,
}

impl CbfFindings {
    /// Returns true when the record would have passed [`Rules::STRICT`](super::Rules::STRICT) so
    /// far.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the offset where a deviation of this kind was first seen.
    #[must_use]
    pub fn first(&self, kind: CbfErrorKind) -> Option<usize> {
        self.iter().find(|error| error.kind == kind).map(|error| error.offset)
    }

    /// Returns the error at which decoding stopped, if it did not reach the end.
    #[must_use]
    pub const fn stopped_by(&self) -> Option<CbfError> {
        self.stopped_by
    }

    /// Returns one error for each kind of deviation, the one that stopped the decoder last.
    pub fn iter(&self) -> impl Iterator<Item = CbfError> + use<> {
        let tolerated = TOLERATED.into_iter().zip(self.offsets);
        tolerated
            .filter_map(|(kind, offset)| Some(CbfError { offset: offset?.get(), kind }))
            .chain(self.stopped_by)
    }

    pub(super) fn note(&mut self, error: CbfError) {
        for (kind, offset) in TOLERATED.iter().zip(&mut self.offsets) {
            if *kind == error.kind {
                *offset = offset.or(NonZeroUsize::new(error.offset));
            }
        }
    }
}
