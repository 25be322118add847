//! Reads an image map, one image at a time.

use core::cell::Cell;

use super::encode::signed_length;
use super::error::{CifError, CifErrorKind};
use super::path_reader::{PathReader, PathResult};
use super::paths::{DecoderSlot, Path};
use super::{MAX_BUILD_ID_BYTES, MAX_IMAGES, RELATIVE, RESERVED};
use cairn_format::bytes::ByteReader;
use cairn_format::{AbsoluteAddress, Module, WordSize};

/// An image as the map has it.
#[derive(Clone, Copy, Debug)]
pub struct Image<'a> {
    /// Base, end of text, build id and path.
    pub module: Module<'a, Path<'a>>,
    /// Offset of the image in the input.
    pub offset: usize,
    findings: CifFindings,
}

impl Image<'_> {
    /// Returns what is wrong with this image. In strict mode that can only be
    /// [`CifErrorKind::EmptyText`].
    #[must_use]
    pub fn findings(&self) -> &[CifError] {
        self.findings.as_slice()
    }
}

/// Reads a map: the header at once, then image by image.
///
/// The decoder needs slots to remember where the text of each prefix lies, one per prefix that the
/// map defines. [`slots_needed`] counts them; 256 do for most processes. A path that needs a prefix
/// without a slot is an error in strict mode and missing in lenient mode, with a finding.
///
/// An `Err` is always the last item: it says why the rest was not read. All images before it are
/// valid.
///
/// - **Strict** refuses what the document does not allow, with the limits that newer Swift readers
///   set.
/// - **Lenient** reads all that it can. An image whose path is broken comes without path; other
///   anomalies are in [`Image::findings`], or in [`findings`](Self::findings) for the map itself.
///   It ends with an `Err` only if the rest cannot be located.
///
/// The time for the whole map is in proportion to the bytes of the input, however many images they
/// announce. Reading the text of a path costs extra, see [`Path`].
///
/// # Examples
///
/// ```
/// use cairn_wire::cif::{CifErrorKind, CifDecoder, DecoderSlot};
///
/// // Three images are announced, the second has a prefix code that nothing defines, the third is missing.
/// let input = b"\x02\x05Linux\x03\
///     \x09\x10\x00\x01\x00\x02\xbe\xef\x80\x0a/libbar.so\x00\
///     \x09\x20\x00\x01\x00\x00\xa8\x00";
/// let mut slots = [DecoderSlot::EMPTY; 256];
/// let mut decoder = CifDecoder::lenient(input, &mut slots)?;
/// assert_eq!(decoder.platform(), b"Linux");
///
/// let first = decoder.next().unwrap()?;
/// assert_eq!(first.module.base.value(), 0x1000);
/// assert_eq!(first.module.build_id, Some(&b"\xbe\xef"[..]));
/// assert_eq!(first.module.path.unwrap().to_string(), "/lib/libbar.so");
///
/// let second = decoder.next().unwrap()?;
/// assert!(second.module.path.is_none());
/// assert_eq!(second.findings()[0].kind, CifErrorKind::UnknownPrefixCode);
///
/// let error = decoder.next().unwrap().unwrap_err();
/// assert_eq!(error.to_string(), "image map, byte 37: the input ends too early");
/// assert!(decoder.next().is_none());
/// # Ok::<(), cairn_wire::cif::CifError>(())
/// ```
#[derive(Debug)]
pub struct CifDecoder<'a> {
    reader: ByteReader<'a>,
    input: &'a [u8],
    slots: &'a [Cell<DecoderSlot>],
    assigned: usize,
    strictness: Strictness,
    word_size: WordSize,
    platform: &'a [u8],
    announced: u64,
    remaining: u64,
    finished: bool,
    /// The base of the previous image, before it is cut to the word.
    last_base: i64,
    findings: CifFindings,
}

impl<'a> CifDecoder<'a> {
    /// Reads the header of a map, and will stop at the first byte that is not allowed.
    ///
    /// # Errors
    ///
    /// Any error in the header.
    pub fn strict(input: &'a [u8], slots: &'a mut [DecoderSlot]) -> Result<Self, CifError> {
        Self::new(input, slots, Strictness::Strict)
    }

    /// Reads the header of a map; later faults become findings.
    ///
    /// # Errors
    ///
    /// When there is no header: no bytes, an unknown version or word size, a cut platform or count.
    pub fn lenient(input: &'a [u8], slots: &'a mut [DecoderSlot]) -> Result<Self, CifError> {
        Self::new(input, slots, Strictness::Lenient)
    }

    fn new(input: &'a [u8], slots: &'a mut [DecoderSlot], strictness: Strictness) -> Result<Self, CifError> {
        let mut reader = ByteReader::new(input);
        let mut findings = CifFindings::new(strictness);
        let word_size = read_info_byte(&mut reader)?;
        let platform_offset = reader.position() + 1;
        let platform = read_platform(&mut reader).ok_or(truncated(input))?;
        if core::str::from_utf8(platform).is_err() {
            findings.report(platform_offset, CifErrorKind::PlatformNotUtf8)?;
        }
        let count_offset = reader.position();
        let announced = read_count(&mut reader).ok_or(truncated(input))?;
        if announced > MAX_IMAGES {
            findings.report(count_offset, CifErrorKind::TooManyImages)?;
        }
        Ok(Self {
            reader,
            input,
            slots: Cell::from_mut(slots).as_slice_of_cells(),
            assigned: 0,
            strictness,
            word_size,
            platform,
            announced,
            remaining: announced,
            finished: false,
            last_base: 0,
            findings,
        })
    }

    /// Returns the width of addresses in this map.
    #[must_use]
    pub const fn word_size(&self) -> WordSize {
        self.word_size
    }

    /// Returns the name of the platform. In strict mode it is UTF-8.
    #[must_use]
    pub const fn platform(&self) -> &'a [u8] {
        self.platform
    }

    /// Returns how many images the header announces. The input may end sooner: do not allocate
    /// memory for this number.
    #[must_use]
    pub const fn announced_images(&self) -> u64 {
        self.announced
    }

    /// Returns the number of prefixes that the bytes read so far define, with or without slots.
    #[must_use]
    pub const fn prefixes_defined(&self) -> usize {
        self.assigned
    }

    /// Returns the faults of the header and, if the last item was an error, of the image it cut
    /// off.
    #[must_use]
    pub fn findings(&self) -> &[CifError] {
        self.findings.as_slice()
    }

    fn read_image(&mut self) -> Result<Image<'a>, CifError> {
        let offset = self.reader.position();
        let mut findings = CifFindings::new(self.strictness);
        match self.read_module(&mut findings) {
            Ok(module) => Ok(Image { module, offset, findings }),
            Err(error) => {
                // There is no image to carry them, and they may well be the cause: a false length,
                // say.
                findings
                    .as_slice()
                    .iter()
                    .for_each(|finding| self.findings.note(finding.offset, finding.kind));
                Err(error)
            }
        }
    }

    fn read_module(&mut self, findings: &mut CifFindings) -> Result<Module<'a, Path<'a>>, CifError> {
        let (base, end) = self.read_addresses(findings)?;
        let build_id = self.read_build_id(findings)?;
        let path = self.read_path(findings)?;
        Ok(Module { base, end, build_id, path })
    }

    fn read_addresses(
        &mut self,
        findings: &mut CifFindings,
    ) -> Result<(AbsoluteAddress, AbsoluteAddress), CifError> {
        let offset = self.reader.position();
        let header = self.reader.byte().ok_or(truncated(self.input))?;
        if header & RESERVED != 0 {
            findings.report(offset, CifErrorKind::ReservedHeaderBit)?;
        }
        let base = self.read_base(header, findings)?;
        let end = self.read_end(header, base, findings)?;
        if end == base {
            findings.note(offset, CifErrorKind::EmptyText);
        }
        Ok((AbsoluteAddress::new(base), AbsoluteAddress::new(end)))
    }

    fn read_base(&mut self, header: u8, findings: &mut CifFindings) -> Result<u64, CifError> {
        let offset = self.reader.position();
        let length = usize::from(header >> 3 & 7) + 1;
        let operand = self.read_signed(length)?;
        if length > self.word_size.bytes() {
            findings.report(offset, CifErrorKind::OperandTooWide)?;
        }
        let last = if header & RELATIVE == 0 { 0 } else { self.last_base };
        // In 64 bits the sum may wrap: from the last user address to the first kernel address is a
        // small step up.
        self.last_base = last.wrapping_add(operand);
        if !is_address(self.word_size, self.last_base) {
            findings.report(offset, CifErrorKind::BaseOutsideWord)?;
        }
        Ok(self.word_size.truncate(self.last_base as u64))
    }

    fn read_end(&mut self, header: u8, base: u64, findings: &mut CifFindings) -> Result<u64, CifError> {
        let offset = self.reader.position();
        let length = usize::from(header & 7) + 1;
        let operand = self.read_signed(length)?;
        let end = check_end(self.word_size, base, operand);
        let allowed = match end {
            // The offset of a text that crosses the middle may need one byte more than a word, see
            // `check_end`.
            Ok(EndForm::Crossing) => usize::from(signed_length(operand)).max(self.word_size.bytes()),
            _ => self.word_size.bytes(),
        };
        if length > allowed {
            findings.report(offset, CifErrorKind::OperandTooWide)?;
        }
        if let Err(kind) = end {
            findings.report(offset, kind)?;
        }
        Ok(self.word_size.truncate(base.wrapping_add(operand as u64)))
    }

    fn read_signed(&mut self, length: usize) -> Result<i64, CifError> {
        self.reader.signed_big_endian(length).ok_or(truncated(self.input))
    }

    fn read_build_id(&mut self, findings: &mut CifFindings) -> Result<Option<&'a [u8]>, CifError> {
        let offset = self.reader.position();
        let length = read_count(&mut self.reader).ok_or(truncated(self.input))?;
        if length > MAX_BUILD_ID_BYTES {
            findings.report(offset, CifErrorKind::BuildIdTooLong)?;
        }
        let length = usize::try_from(length).map_err(|_| truncated(self.input))?;
        let build_id = self.reader.take(length).ok_or(truncated(self.input))?;
        Ok(Some(build_id).filter(|build_id| !build_id.is_empty()))
    }

    fn read_path(&mut self, findings: &mut CifFindings) -> Result<Option<Path<'a>>, CifError> {
        let start = self.reader.position();
        let reader = PathReader::new(self.input, self.reader, self.slots, self.assigned);
        let PathResult { rest, assigned, text_length, problem } = reader.read();
        let text_length = usize::try_from(text_length).unwrap_or(usize::MAX);
        self.reader = rest;
        self.assigned = assigned;
        if let Some(problem) = problem {
            findings.report(problem.offset, problem.kind)?;
        }
        let readable = problem.is_none_or(|problem| problem.kind == CifErrorKind::PathNotUtf8);
        if !readable || text_length == 0 {
            return Ok(None);
        }
        let end = rest.position();
        Ok(Some(Path { input: self.input, slots: self.slots, start, end, text_length }))
    }
}

impl<'a> Iterator for CifDecoder<'a> {
    type Item = Result<Image<'a>, CifError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.finished {
            return None;
        }
        let item = if self.remaining > 0 {
            self.remaining -= 1;
            self.read_image()
        } else if self.reader.is_empty() {
            self.finished = true;
            return None;
        } else {
            Err(CifError { offset: self.reader.position(), kind: CifErrorKind::TrailingData })
        };
        self.finished = item.is_err();
        Some(item)
    }
}

impl core::iter::FusedIterator for CifDecoder<'_> {}

/// Counts the slots that the [`CifDecoder`] needs for all paths of this map. It reads the map once,
/// in lenient mode.
///
/// Never more than the input has bytes. A map without a header needs none.
///
/// ```
/// use cairn_wire::cif::{DecoderSlot, slots_needed};
/// let input = b"\x02\x00\x01\x09\x10\x00\x01\x00\x00\x0a/opt/x/app\x00";
/// let slots = vec![DecoderSlot::EMPTY; slots_needed(input)];
/// assert_eq!(slots.len(), 2);
/// ```
#[must_use]
pub fn slots_needed(input: &[u8]) -> usize {
    let Ok(mut decoder) = CifDecoder::lenient(input, &mut []) else { return 0 };
    decoder.by_ref().for_each(drop);
    decoder.prefixes_defined()
}

fn truncated(input: &[u8]) -> CifError {
    CifError { offset: input.len(), kind: CifErrorKind::Truncated }
}

fn read_info_byte(reader: &mut ByteReader<'_>) -> Result<WordSize, CifError> {
    let at = |kind| CifError { offset: 0, kind };
    let info = reader.byte().ok_or(at(CifErrorKind::Empty))?;
    // Another version may well mean something else by the other bits: it is looked at first.
    match (info >> 2, info & 3) {
        (0, 0) => Ok(WordSize::Bits16),
        (0, 1) => Ok(WordSize::Bits32),
        (0, 2) => Ok(WordSize::Bits64),
        (0, _) => Err(at(CifErrorKind::ReservedWordSize)),
        (version, _) => Err(at(CifErrorKind::UnknownVersion(version))),
    }
}

fn read_platform<'a>(reader: &mut ByteReader<'a>) -> Option<&'a [u8]> {
    let length = reader.byte()?;
    reader.take(length.into())
}

/// Returns a count in groups of seven bits, most significant first. One beyond 64 bits reads as
/// `u64::MAX`.
fn read_count(reader: &mut ByteReader<'_>) -> Option<u64> {
    let mut count = 0_u64;
    loop {
        let byte = reader.byte()?;
        count = match count.checked_mul(0x80) {
            Some(shifted) => shifted | u64::from(byte & 0x7f),
            None => u64::MAX,
        };
        if byte & 0x80 == 0 {
            return Some(count);
        }
    }
}

/// Returns true if this is an address of the word, stated as a signed or as an unsigned number.
const fn is_address(word_size: WordSize, address: i64) -> bool {
    let lowest = word_size.sign_extend(word_size.max_address() / 2 + 1);
    match word_size {
        WordSize::Bits64 => true,
        WordSize::Bits16 | WordSize::Bits32 => lowest <= address && address <= word_size.max_address() as i64,
    }
}

/// How the end of a text was stated.
enum EndForm {
    /// As a distance from the base.
    Distance,
    /// As a step down from the base, because the text crosses the middle of the address space.
    Crossing,
}

/// Checks that base plus offset is an address of the word and not below the base.
///
/// Swift widens addresses as signed numbers before it subtracts. The upper half of the address
/// space thereby lies *below* the lower half, and a text that begins in one and ends in the other
/// gets a negative offset, in the worst case of one byte more than a word: 16 bits, 0x7f00 to
/// 0x8100 is `ff 02 00`. That is no other map's meaning, so it is allowed.
///
/// In 64 bits no text crosses the middle: processors leave the addresses around it out. There a
/// negative offset, and a distance that leads across, is damage.
fn check_end(word_size: WordSize, base: u64, offset: i64) -> Result<EndForm, CifErrorKind> {
    if super::crosses_middle(word_size, base, base.wrapping_add(offset as u64)) {
        return Err(CifErrorKind::TextCrossesMiddle);
    }
    if let Ok(distance) = u64::try_from(offset) {
        let room = word_size.max_address() - base;
        return if distance <= room { Ok(EndForm::Distance) } else { Err(CifErrorKind::EndOutsideWord) };
    }
    let upper_half = word_size.max_address() / 2 + 1;
    let Some(end) = i64::try_from(base).ok().filter(|_| base < upper_half).map(|base| base + offset) else {
        return Err(CifErrorKind::EndBeforeBase);
    };
    if end >= 0 {
        Err(CifErrorKind::EndBeforeBase)
    } else if end < word_size.sign_extend(upper_half) {
        Err(CifErrorKind::EndOutsideWord)
    } else {
        Ok(EndForm::Crossing)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Strictness {
    Strict,
    Lenient,
}

/// Faults that were found and tolerated. An image has at most one finding about each of its parts.
#[derive(Clone, Copy, Debug)]
struct CifFindings {
    strictness: Strictness,
    list: [CifError; Self::MOST],
    count: usize,
}

impl CifFindings {
    /// Maximum number of findings. Platform and count of the map; header bit, width and value of
    /// the base, width and value of the end, emptiness and build id of an image without path. One
    /// with its path, alone, has fewer.
    const MOST: usize = 9;

    const fn new(strictness: Strictness) -> Self {
        let none = CifError { offset: 0, kind: CifErrorKind::Empty };
        Self { strictness, list: [none; Self::MOST], count: 0 }
    }

    /// Returns an error in strict mode, a finding in lenient mode.
    fn report(&mut self, offset: usize, kind: CifErrorKind) -> Result<(), CifError> {
        match self.strictness {
            Strictness::Strict => Err(CifError { offset, kind }),
            Strictness::Lenient => {
                self.note(offset, kind);
                Ok(())
            }
        }
    }

    /// A finding in both modes.
    fn note(&mut self, offset: usize, kind: CifErrorKind) {
        if let Some(place) = self.list.get_mut(self.count) {
            *place = CifError { offset, kind };
            self.count += 1;
        }
    }

    fn as_slice(&self) -> &[CifError] {
        self.list.get(..self.count).unwrap_or_default()
    }
}
