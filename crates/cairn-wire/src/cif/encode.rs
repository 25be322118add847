//! Writes an image map.

use core::fmt;

use super::known_prefixes::{EncoderSlot, KnownPrefixes};
use super::prefixes::{
    FIRST_EXTENDED_CODE, FLAT_FRAMEWORK, LONGEST_FRAMEWORK_NAME, LONGEST_STR, is_separator,
};
use super::{ImageMap, MAX_BUILD_ID_BYTES, MAX_IMAGES, MAX_PATH_BYTES, RELATIVE, info_byte};
use cairn_format::{AbsoluteAddress, Module, Sink, SinkFull, WordSize};

/// Dialects of the encoder.
#[derive(Clone, Copy, PartialEq, Eq, Default, Hash, Debug)]
#[non_exhaustive]
pub enum CifDialect {
    /// Right in every case, and read back right by Swift 6.2.3 as well.
    #[default]
    Canonical,
    /// The very bytes of Swift 6.2.3, faults included. Counts from 64 on with a useless leading
    /// byte, codes from 320 on cut to too few bytes (such paths come back wrong), framework names
    /// of 65 to 256 bytes (such a map cannot be read on). For comparing with what a Swift runtime
    /// writes, not for keeping data.
    Swift62,
}

/// Writes a map as Compact ImageMap Format.
///
/// `slots` is working memory. With one slot per image the output is the shortest that the format's
/// rules give, and the same for everyone. With fewer, even with none, it is longer and means the
/// same: a path whose prefixes were not remembered is spelled out again.
///
/// The time is in proportion to the bytes of the map for ten images as for a million: each search
/// for a known prefix takes at most nine steps per byte of one path component, however many
/// prefixes are known.
///
/// An empty build id and an empty path cannot be distinguished from an absent one, and are written
/// so.
///
/// # Errors
///
/// The content that the format cannot hold, with the number of the image, or
/// [`CifEncodeErrorKind::SinkFull`]. The bytes written before an error are no map.
///
/// # Examples
///
/// ```
/// use cairn_wire::cif::{self, CifDialect, EncoderSlot, ImageMap};
/// use cairn_format::{AbsoluteAddress, Module, SliceSink, WordSize};
///
/// let image = |base, path| Module {
///     base: AbsoluteAddress::new(base),
///     end: AbsoluteAddress::new(base + 0x100),
///     build_id: None,
///     path: Some(path),
/// };
/// let images = [image(0x1000, &b"/opt/x/app"[..]), image(0x2000, &b"/opt/x/libx.so"[..])];
/// let map = ImageMap { word_size: WordSize::Bits64, platform: "Linux", images: &images };
///
/// let mut buffer = [0; 64];
/// let mut sink = SliceSink::new(&mut buffer);
/// cif::encode(&map, CifDialect::Canonical, &mut [EncoderSlot::EMPTY; 2], &mut sink)?;
/// assert_eq!(
///     sink.written(),
///     b"\x02\x05Linux\x02\
///       \x09\x10\x00\x01\x00\x00\x0a/opt/x/app\x00\
///       \x09\x20\x00\x01\x00\x00\xa1\x80\x04x.so\x00"
/// );
/// # Ok::<(), cif::CifEncodeError>(())
/// ```
pub fn encode<S: Sink + ?Sized>(
    map: &ImageMap<'_>,
    dialect: CifDialect,
    slots: &mut [EncoderSlot],
    sink: &mut S,
) -> Result<(), CifEncodeError> {
    if dialect == CifDialect::Canonical && map.images.len() as u64 > MAX_IMAGES {
        return Err(CifEncodeError::of_map(CifEncodeErrorKind::TooManyImages));
    }
    put_header(map, dialect, sink)?;
    let mut prefixes = KnownPrefixes::new(map.images, slots);
    let mut last_base = 0;
    for (index, image) in map.images.iter().enumerate() {
        let mut encoder = ImageEncoder { dialect, index, image, sink: &mut *sink };
        let in_image = |kind| CifEncodeError { image: Some(index), kind };
        last_base = encoder.put_addresses(map.word_size, last_base).map_err(in_image)?;
        encoder.put_build_id().map_err(in_image)?;
        encoder.put_path(&mut prefixes).map_err(in_image)?;
    }
    Ok(())
}

fn put_header<S: Sink + ?Sized>(
    map: &ImageMap<'_>,
    dialect: CifDialect,
    sink: &mut S,
) -> Result<(), CifEncodeError> {
    let Ok(platform_length) = u8::try_from(map.platform.len()) else {
        return Err(CifEncodeError::of_map(CifEncodeErrorKind::PlatformTooLong));
    };
    sink.put(&[info_byte(map.word_size), platform_length])
        .and_then(|()| sink.put(map.platform.as_bytes()))
        .and_then(|()| put_count(map.images.len() as u64, dialect, sink))
        .map_err(|full| CifEncodeError::of_map(full.into()))
}

/// Writes the parts of one image, in the order of the methods.
struct ImageEncoder<'a, 's, S: ?Sized> {
    dialect: CifDialect,
    index: usize,
    image: &'a Module<'a>,
    sink: &'s mut S,
}

impl<S: Sink + ?Sized> ImageEncoder<'_, '_, S> {
    /// Writes the header byte, base and end; returns the base that the next image may relate to.
    fn put_addresses(&mut self, word_size: WordSize, last_base: i64) -> Result<i64, CifEncodeErrorKind> {
        let base = sign_extend(word_size, self.image.base)?;
        let end = sign_extend(word_size, self.image.end)?;
        if self.image.end < self.image.base {
            return Err(CifEncodeErrorKind::EndBeforeBase);
        }
        if super::crosses_middle(word_size, self.image.base.value(), self.image.end.value()) {
            return Err(CifEncodeErrorKind::TextCrossesMiddle);
        }
        let from_last = base.wrapping_sub(last_base);
        // A tie goes to the absolute address, the other way round than in the Compact Backtrace
        // Format.
        let (relative, address) =
            if signed_length(base) <= signed_length(from_last) { (0, base) } else { (RELATIVE, from_last) };
        let text_length = end.wrapping_sub(base);
        let (address_length, end_length) = (signed_length(address), signed_length(text_length));
        self.put(&[relative | (address_length - 1) << 3 | (end_length - 1)])?;
        self.put(low_bytes(&address.to_be_bytes(), address_length))?;
        self.put(low_bytes(&text_length.to_be_bytes(), end_length))?;
        Ok(base)
    }

    fn put_build_id(&mut self) -> Result<(), CifEncodeErrorKind> {
        let build_id = self.image.build_id.unwrap_or_default();
        match self.dialect {
            CifDialect::Canonical if build_id.len() as u64 > MAX_BUILD_ID_BYTES => {
                return Err(CifEncodeErrorKind::BuildIdTooLong);
            }
            CifDialect::Swift62 if self.image.build_id == Some(&[]) => {
                return Err(CifEncodeErrorKind::EmptyBuildId);
            }
            CifDialect::Canonical | CifDialect::Swift62 => {}
        }
        put_count(build_id.len() as u64, self.dialect, self.sink)?;
        self.put(build_id)
    }

    fn put_path(&mut self, prefixes: &mut KnownPrefixes<'_>) -> Result<(), CifEncodeErrorKind> {
        let path = self.image.path.unwrap_or_default();
        if core::str::from_utf8(path).is_err() {
            return Err(CifEncodeErrorKind::PathNotUtf8);
        }
        if self.dialect == CifDialect::Canonical && path.len() as u64 > MAX_PATH_BYTES {
            return Err(CifEncodeErrorKind::PathTooLong);
        }
        let mut rest = path;
        while let Some(prefix) = prefixes.longest(rest) {
            self.put_expand(prefix.code)?;
            rest = rest.get(prefix.length..).unwrap_or_default();
        }
        if let Some(framework) = self.framework(rest)? {
            return self.put_framework(framework);
        }
        prefixes.assign(self.index, path.len() - rest.len());
        for piece in rest.chunks(LONGEST_STR) {
            self.put(&[piece.len() as u8])?;
            self.put(piece)?;
        }
        self.put(&[0])
    }

    fn put_expand(&mut self, code: u64) -> Result<(), CifEncodeErrorKind> {
        let Some(extended) = code.checked_sub(FIRST_EXTENDED_CODE) else {
            return self.put(&[0x80 | code as u8]);
        };
        let bits = u64::BITS - extended.leading_zeros();
        let whole_bytes = match self.dialect {
            CifDialect::Canonical => bits.div_ceil(8),
            CifDialect::Swift62 => bits / 8,
        };
        let length = whole_bytes.max(1) as u8;
        self.put(&[0xc0 | (length - 1)])?;
        self.put(low_bytes(&extended.to_be_bytes(), length))
    }

    /// Splits `rest` if it is exactly `/<name>.framework/Versions/<version>/<name>`. The name must
    /// be that of the image.
    fn framework<'p>(&self, rest: &'p [u8]) -> Result<Option<Framework<'p>>, CifEncodeErrorKind> {
        let Some(framework) = Framework::parse(rest) else { return Ok(None) };
        let opcode_holds_it =
            framework.name.len() <= LONGEST_FRAMEWORK_NAME && framework.version != FLAT_FRAMEWORK;
        match self.dialect {
            CifDialect::Canonical => Ok(opcode_holds_it.then_some(framework)),
            CifDialect::Swift62 if framework.name.len() > 256 => {
                Err(CifEncodeErrorKind::FrameworkNameTooLong)
            }
            CifDialect::Swift62 => Ok(Some(framework)),
        }
    }

    fn put_framework(&mut self, framework: Framework<'_>) -> Result<(), CifEncodeErrorKind> {
        // Up to 64 bytes of name the length stays below the opcode's bits. Swift 6.2 lets longer
        // ones run into them.
        let length_less_one = framework.name.len().wrapping_sub(1) as u8;
        self.put(&[0x40 | length_less_one, framework.version])?;
        self.put(framework.name)
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), CifEncodeErrorKind> {
        Ok(self.sink.put(bytes)?)
    }
}

#[derive(Clone, Copy)]
struct Framework<'a> {
    name: &'a [u8],
    version: u8,
}

impl<'a> Framework<'a> {
    fn parse(rest: &'a [u8]) -> Option<Self> {
        let name = rest.rsplit(|&byte| is_separator(byte)).next().filter(|name| !name.is_empty())?;
        let after_name = rest.strip_prefix(b"/")?.strip_prefix(name)?;
        let (&version, after_version) = after_name.strip_prefix(b".framework/Versions/")?.split_first()?;
        (after_version.strip_prefix(b"/")? == name).then_some(Self { name, version })
    }
}

/// Sign-extends the address from its word to 64 bits, as the format does.
fn sign_extend(word_size: WordSize, address: AbsoluteAddress) -> Result<i64, CifEncodeErrorKind> {
    if address.value() > word_size.max_address() {
        return Err(CifEncodeErrorKind::AddressOutsideWord);
    }
    Ok(word_size.sign_extend(address.value()))
}

/// Returns bytes of the shortest two's complement form, 1 to 8.
pub(super) const fn signed_length(value: i64) -> u8 {
    // Folding negative numbers onto positive ones leaves at least one leading zero, the sign.
    let spare_bits = (value ^ (value >> 63)).leading_zeros() - 1;
    8 - (spare_bits / 8) as u8
}

/// Returns the last `length` bytes: the low ones of a big-endian number.
fn low_bytes(bytes: &[u8; 8], length: u8) -> &[u8] {
    bytes.get(8 - usize::from(length).min(8)..).unwrap_or_default()
}

/// Writes a count in groups of seven bits, the top bit of a byte set when more follow.
fn put_count<S: Sink + ?Sized>(count: u64, dialect: CifDialect, sink: &mut S) -> Result<(), SinkFull> {
    let bits = u64::BITS - count.leading_zeros();
    let groups = match dialect {
        CifDialect::Canonical => bits.div_ceil(7).max(1),
        CifDialect::Swift62 => bits / 7 + 1,
    };
    for group in (0..groups).rev() {
        // Ten groups of Swift 6.2 would shift by 63 at most.
        let low_seven_bits = (count >> (7 * group)) as u8 & 0x7f;
        let more = if group > 0 { 0x80 } else { 0 };
        sink.put(&[more | low_seven_bits])?;
    }
    Ok(())
}

/// Why a map was not written, and which image it is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CifEncodeError {
    /// Index of the image, or `None` when it is about the map as a whole.
    pub image: Option<usize>,
    /// Kind of the fault.
    pub kind: CifEncodeErrorKind,
}

impl CifEncodeError {
    const fn of_map(kind: CifEncodeErrorKind) -> Self {
        Self { image: None, kind }
    }
}

/// Why a map was not written.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum CifEncodeErrorKind {
    /// The sink took no more bytes.
    SinkFull,
    /// The name of the platform has more than 255 bytes.
    PlatformTooLong,
    /// There are more images than newer readers accept ([`MAX_IMAGES`]).
    TooManyImages,
    /// The base or the end is wider than the map's word.
    AddressOutsideWord,
    /// The image ends before it begins. Swift traps on it.
    EndBeforeBase,
    /// A 64-bit image crosses the middle of the address space; no reader here accepts that.
    TextCrossesMiddle,
    /// The build id is longer than newer readers accept ([`MAX_BUILD_ID_BYTES`]).
    BuildIdTooLong,
    /// Only in [`CifDialect::Swift62`]: the build id is there but has no bytes. Swift traps on it.
    EmptyBuildId,
    /// The path is not UTF-8. Leave it out, or replace the bytes that are not.
    PathNotUtf8,
    /// The path is longer than readers here accept ([`MAX_PATH_BYTES`]).
    PathTooLong,
    /// Only in [`CifDialect::Swift62`]: a framework's name has more than 256 bytes. Swift traps on
    /// it.
    FrameworkNameTooLong,
}

impl From<SinkFull> for CifEncodeErrorKind {
    fn from(_: SinkFull) -> Self {
        Self::SinkFull
    }
}

impl fmt::Display for CifEncodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.image {
            Some(image) => write!(f, "image {image}: {}", self.kind),
            None => write!(f, "image map: {}", self.kind),
        }
    }
}

impl fmt::Display for CifEncodeErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SinkFull => "the output buffer is full",
            Self::PlatformTooLong => "the platform name has more than 255 bytes",
            Self::TooManyImages => "more than 1048576 images",
            Self::AddressOutsideWord => "an address is wider than the map's word",
            Self::EndBeforeBase => "the end lies before the base",
            Self::TextCrossesMiddle => "the image crosses the middle of the 64-bit address space",
            Self::BuildIdTooLong => "the build id has more than 1024 bytes",
            Self::EmptyBuildId => "the build id is empty (Swift 6.2 stops on it; leave it out)",
            Self::PathNotUtf8 => "the path is not UTF-8",
            Self::PathTooLong => "the path has more than 131072 bytes",
            Self::FrameworkNameTooLong => {
                "the framework's name has more than 256 bytes (Swift 6.2 stops on it)"
            }
        })
    }
}

impl core::error::Error for CifEncodeError {}
