//! Faults of an image map.

use core::fmt;

/// Something in the input that the format does not allow, and where.
///
/// Strict reading ends with the first of them. Lenient reading keeps them as findings as long as
/// the rest can still be read, and ends with one only when it cannot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CifError {
    /// Offset of the byte, from the start of the input.
    pub offset: usize,
    /// Kind of the fault.
    pub kind: CifErrorKind,
}

/// Something that the format does not allow.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum CifErrorKind {
    /// There is no input.
    Empty,
    /// The first byte names a version other than 0.
    UnknownVersion(u8),
    /// The first byte has the word size 3, which is reserved.
    ReservedWordSize,
    /// The input ends before the map does. In a path: within its opcodes.
    Truncated,
    /// The platform's name is not UTF-8.
    PlatformNotUtf8,
    /// The number of images is above [`MAX_IMAGES`](super::MAX_IMAGES).
    TooManyImages,
    /// Bit 6 of an image's header byte is set.
    ReservedHeaderBit,
    /// An address or offset has more bytes than the map's word.
    OperandTooWide,
    /// The base is no address of the map's word size.
    BaseOutsideWord,
    /// The end of the text is no address of the map's word size.
    EndOutsideWord,
    /// The text ends before it begins.
    EndBeforeBase,
    /// In a 64-bit map the text crosses the middle of the address space. The map may state a
    /// distance or, as Swift's signed numbers do, a negative offset.
    TextCrossesMiddle,
    /// The text ends where it begins. Never an error here, but newer Swift readers refuse the map.
    EmptyText,
    /// The length of a build id is above [`MAX_BUILD_ID_BYTES`](super::MAX_BUILD_ID_BYTES).
    BuildIdTooLong,
    /// A path uses a prefix code that is reserved or was not assigned by the bytes before it.
    UnknownPrefixCode,
    /// A path uses a prefix code that was assigned, but the caller's slots were used up by then.
    NoSlotForPrefix,
    /// A path uses prefixes that contain prefixes, more than sixteen one inside the other.
    PrefixesNestTooDeep,
    /// The text of a path is longer than [`MAX_PATH_BYTES`](super::MAX_PATH_BYTES).
    PathTooLong,
    /// A path is not UTF-8.
    PathNotUtf8,
    /// More bytes follow the last image.
    TrailingData,
}

impl fmt::Display for CifError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "image map, byte {}: {}", self.offset, self.kind)
    }
}

impl fmt::Display for CifErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Empty => "there are no bytes",
            Self::UnknownVersion(version) => {
                return write!(f, "unknown format version {version} (only 0 is known)");
            }
            Self::ReservedWordSize => "word size 3 is reserved",
            Self::Truncated => "the input ends too early",
            Self::PlatformNotUtf8 => "the platform's name is not UTF-8",
            Self::TooManyImages => "more than 1048576 images are announced",
            Self::ReservedHeaderBit => "the reserved bit of an image header is set",
            Self::OperandTooWide => "an address has more bytes than the map's word",
            Self::BaseOutsideWord => "the base address does not fit the map's word",
            Self::EndOutsideWord => "the end of the text does not fit the map's word",
            Self::EndBeforeBase => "the text ends before its base",
            Self::TextCrossesMiddle => "the text crosses the middle of the 64-bit address space",
            Self::EmptyText => "the text is empty",
            Self::BuildIdTooLong => "a build id of more than 1024 bytes is announced",
            Self::UnknownPrefixCode => "a path uses a prefix code that is not defined",
            Self::NoSlotForPrefix => "a path uses a prefix that no slot was left for; pass more slots",
            Self::PrefixesNestTooDeep => "a path uses more than 16 prefixes one inside the other",
            Self::PathTooLong => "a path has more than 131072 bytes",
            Self::PathNotUtf8 => "a path is not UTF-8",
            Self::TrailingData => "more bytes follow the last image",
        })
    }
}

impl core::error::Error for CifError {}
