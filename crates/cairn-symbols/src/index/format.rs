//! Reads and writes the bytes of an index.
//!
//! Every page is compared with its checksum before use, and every number is also range-checked:
//! checksums detect damage, not malice.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::mapped_file::FileBytes;
use crate::source::{FrameSink, Language, RawFrame};
use cairn_format::StatedAddress;

/// Magic number of an index.
pub(super) const MAGIC: [u8; 8] = *b"cairnsym";

/// Version of the layout and of the answers; an index of another version is rebuilt.
pub(super) const VERSION: u32 = 3;

/// Segments per block; 32, because half a block is decoded for one answer on average.
pub(super) const BLOCK_SEGMENTS: usize = 32;

/// The parts behind the header, in file order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Part {
    /// Identity of the indexed files.
    Identity,
    /// First and last address of each executable range: pairs of u64.
    Code,
    /// Start of each block (u32 from the base), and the position of its segments (u32).
    Blocks,
    Segments,
    Scopes,
    /// Position of a name (u32), its length (24 bits) and language (8 bits).
    Names,
    /// Position of a path (u32) and its length (u32).
    Files,
    /// The text of all names and paths, in order of first use.
    Text,
    /// A CRC-32 (u32) of each page of the file in front of this part.
    Checks,
}

pub(super) const PARTS: usize = 9;

/// Bytes per checksum; 4096, the smallest unit that the system reads.
pub(super) const PAGE_BYTES: usize = 4096;

/// Magic, version, checksum; base; then an end for each part, from the start of the file.
pub(super) const HEADER_BYTES: usize = 8 + 4 + 4 + 8 + 8 * PARTS;

const _: () = assert!(HEADER_BYTES.is_multiple_of(8));

/// Flags of a segment.
pub(super) mod segment {
    /// On its own: nothing is known.
    pub(in super::super) const NOTHING: u8 = 1;
    /// With other flags: a discriminator follows all other fields.
    pub(in super::super) const DISCRIMINATOR: u8 = 1;
    pub(in super::super) const SCOPE: u8 = 2;
    pub(in super::super) const FILE: u8 = 4;
    pub(in super::super) const LINE: u8 = 8;
    pub(in super::super) const COLUMN: u8 = 16;
    pub(in super::super) const HAS_FILE: u8 = 32;
    pub(in super::super) const HAS_LINE: u8 = 64;
    pub(in super::super) const HAS_COLUMN: u8 = 128;
}

/// Flags of a scope.
pub(super) mod scope {
    pub(in super::super) const PARENT: u8 = 1;
    pub(in super::super) const NAME: u8 = 2;
    pub(in super::super) const FILE: u8 = 4;
    pub(in super::super) const LINE: u8 = 8;
    pub(in super::super) const COLUMN: u8 = 16;
    pub(in super::super) const START: u8 = 32;
}

/// A mapped index.
#[derive(Debug)]
pub(crate) struct Index {
    bytes: Arc<FileBytes>,
    base: u64,
    ends: [usize; PARTS],
    code: Vec<(u64, u64)>,
    /// One bit per page that has passed its checksum; each page is checked before its first use.
    checked_pages: Box<[AtomicU64]>,
    is_broken: AtomicBool,
}

/// The result of a query to an index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Answer {
    /// When frames were pushed, or the function start was set.
    Known,
    Nothing,
    /// When the index contradicts itself.
    Broken,
}

impl Index {
    /// Parses the header. `None` for a different version, a different format, or a truncated file.
    pub(crate) fn parse(bytes: FileBytes) -> Option<Self> {
        let header = bytes.get(..HEADER_BYTES)?;
        if header[..8] != MAGIC || u32_at(header, 8)? != VERSION {
            return None;
        }
        let mut checked = flate2::Crc::new();
        checked.update(&header[16..]);
        if u32_at(header, 12)? != checked.sum() {
            return None;
        }
        let base = u64_at(header, 16)?;
        let mut ends = [0; PARTS];
        let mut last = HEADER_BYTES;
        for (index, end) in ends.iter_mut().enumerate() {
            *end = usize::try_from(u64_at(header, 24 + 8 * index)?).ok()?;
            if *end < last {
                return None;
            }
            last = *end;
        }
        if last != bytes.len() {
            return None;
        }
        let pages = ends[Part::Text as usize].div_ceil(PAGE_BYTES);
        if ends[Part::Checks as usize] - ends[Part::Text as usize] != pages * 4 {
            return None;
        }
        let mut index = Self {
            bytes: Arc::new(bytes),
            base,
            ends,
            code: Vec::new(),
            checked_pages: (0..pages.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
            is_broken: AtomicBool::new(false),
        };
        let code = index.part(Part::Code);
        if code.len() > MAX_CODE_RANGES * 16 || index.read(Part::Identity, 0, usize::MAX).is_none() {
            return None;
        }
        let code = index.read(Part::Code, 0, usize::MAX)?;
        let pairs = code.chunks_exact(16).filter_map(|pair| Some((u64_at(pair, 0)?, u64_at(pair, 8)?)));
        index.code = pairs.collect();
        Some(index)
    }

    /// Returns the identity of the indexed files.
    pub(crate) fn identity(&self) -> &[u8] {
        self.part(Part::Identity)
    }

    /// Returns the first and last address of each executable range.
    pub(crate) fn code(&self) -> &[(u64, u64)] {
        &self.code
    }

    /// Reports whether an answer has met damaged or contradictory bytes.
    pub(crate) fn is_broken(&self) -> bool {
        self.is_broken.load(Ordering::Relaxed)
    }

    /// Pushes the frames of an address, innermost first.
    pub(crate) fn frames_at(&self, address: u64, out: &mut FrameSink) -> Answer {
        let answer = self.find_frames(address, out);
        if answer == Answer::Broken {
            self.is_broken.store(true, Ordering::Relaxed);
        }
        answer
    }

    fn find_frames(&self, address: u64, out: &mut FrameSink) -> Answer {
        let Some(offset) = address.checked_sub(self.base).and_then(|offset| u32::try_from(offset).ok())
        else {
            return Answer::Nothing;
        };
        match self.segment(offset) {
            Some(Some(segment)) => match self.push(segment, out) {
                Some(()) => Answer::Known,
                None => Answer::Broken,
            },
            Some(None) => Answer::Nothing,
            None => Answer::Broken,
        }
    }

    /// Finds the segment that covers an offset.
    ///
    /// Returns `Some(None)` if nothing is known, `None` if the index is broken.
    fn segment(&self, offset: u32) -> Option<Option<Segment>> {
        let (mut low, mut high) = (0, self.part(Part::Blocks).len() / 8);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.number(Part::Blocks, middle * 8)? <= offset {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        let Some(block) = low.checked_sub(1) else { return Some(None) };
        let mut start = self.number(Part::Blocks, block * 8)?;
        let first = self.number(Part::Blocks, block * 8 + 4)? as usize;
        let after = match self.part(Part::Blocks).len() {
            end if block * 8 + 16 <= end => self.number(Part::Blocks, block * 8 + 12)? as usize,
            _ => self.part(Part::Segments).len(),
        };
        let length = after.checked_sub(first)?;
        let mut input =
            Input { bytes: self.read(Part::Segments, first, length).filter(|bytes| bytes.len() == length)? };
        let mut present = None;
        let mut state = Segment::default();
        for index in 0..BLOCK_SEGMENTS {
            if input.bytes.is_empty() {
                break;
            }
            let flags = input.byte()?;
            if index > 0 {
                start = start.checked_add(input.number()?)?;
            }
            if start > offset {
                break;
            }
            let known = state.read(flags, &mut input)?;
            present = Some(known.then_some(state));
        }
        present
    }

    fn push(&self, segment: Segment, out: &mut FrameSink) -> Option<()> {
        let mut place = (
            segment.has(segment::HAS_FILE).then_some(segment.file),
            segment.has(segment::HAS_LINE).then_some(segment.line),
            segment.has(segment::HAS_COLUMN).then_some(segment.column),
        );
        let mut discriminator = Some(segment.discriminator).filter(|&number| number != 0);
        let mut at = segment.scope as usize;
        for _ in 0..=crate::MAX_INLINE_DEPTH {
            let mut input = Input { bytes: self.read(Part::Scopes, at, MAX_SCOPE_BYTES)? };
            let flags = input.byte()?;
            let mut field = |flag| if flags & flag != 0 { input.number().map(Some) } else { Some(None) };
            let parent = field(scope::PARENT)?;
            let name = field(scope::NAME)?;
            let call = (field(scope::FILE)?, field(scope::LINE)?, field(scope::COLUMN)?);
            let start = field(scope::START)?;
            let (name, language) = match name {
                Some(name) => self.name(name).map(|(name, language)| (Some(name), language))?,
                None => (None, Language::Unknown),
            };
            let (file, line, column) = place;
            let file = match file {
                Some(file) => Some(self.file(file)?),
                None => None,
            };
            let inlined = parent.is_some();
            // Only the start is known, and no line: the caller names the function.
            if name.is_some() || file.is_some() || line.is_some() || inlined || start.is_none() {
                out.push(RawFrame { name, language, file, line, column, discriminator, inlined });
            }
            let Some(parent) = parent else {
                if let Some(start) = start {
                    out.set_function_start(StatedAddress::new(self.base.checked_add(u64::from(start))?));
                }
                return Some(());
            };
            // Parents are written first; a distance of zero would be a cycle.
            at = at.checked_sub(parent as usize).filter(|&outer| outer < at)?;
            (place, discriminator) = (call, None);
        }
        None
    }

    fn name(&self, index: u32) -> Option<(&str, Language)> {
        let at = index as usize * 8;
        let (first, length) = (self.number(Part::Names, at)?, self.number(Part::Names, at + 4)?);
        let language = match length >> 24 {
            0 => Language::Unknown,
            1 => Language::Rust,
            2 => Language::Cpp,
            3 => Language::Plain,
            4 => Language::Swift,
            _ => return None,
        };
        Some((self.text(first, length & 0xff_ffff)?, language))
    }

    fn file(&self, index: u32) -> Option<&str> {
        let at = index as usize * 8;
        self.text(self.number(Part::Files, at)?, self.number(Part::Files, at + 4)?)
    }

    fn text(&self, first: u32, length: u32) -> Option<&str> {
        let text = self.read(Part::Text, first as usize, length as usize)?;
        std::str::from_utf8(text).ok().filter(|text| text.len() == length as usize)
    }

    fn number(&self, part: Part, at: usize) -> Option<u32> {
        u32_at(self.read(part, at, 4)?, 0)
    }

    /// Returns up to `most` bytes of a part from `at`.
    ///
    /// Returns `None` past its end, or if a page fails its checksum.
    fn read(&self, part: Part, at: usize, most: usize) -> Option<&[u8]> {
        let rest = self.part(part).get(at..)?;
        let bytes = rest.get(..most).unwrap_or(rest);
        let (begin, _) = self.range(part);
        let first = begin + at;
        let pages = first / PAGE_BYTES..(first + bytes.len()).div_ceil(PAGE_BYTES);
        pages.into_iter().all(|page| self.is_sound(page)).then_some(bytes)
    }

    /// Compares a page with its checksum on first use.
    #[inline]
    fn is_sound(&self, page: usize) -> bool {
        let Some(word) = self.checked_pages.get(page / 64) else { return false };
        let bit = 1 << (page % 64);
        // Relaxed suffices: the mapped bytes exist before the bit is set.
        word.load(Ordering::Relaxed) & bit != 0 || {
            let is_sound = self.compare(page) == Some(true);
            if is_sound {
                word.fetch_or(bit, Ordering::Relaxed);
            }
            is_sound
        }
    }

    #[cold]
    fn compare(&self, page: usize) -> Option<bool> {
        let begin = page * PAGE_BYTES;
        let end = (begin + PAGE_BYTES).min(self.ends[Part::Text as usize]);
        let mut checksum = flate2::Crc::new();
        checksum.update(self.bytes.get(begin..end)?);
        Some(u32_at(self.part(Part::Checks), page * 4)? == checksum.sum())
    }

    /// Returns the start and end of a part in the file.
    fn range(&self, part: Part) -> (usize, usize) {
        let index = part as usize;
        (if index == 0 { HEADER_BYTES } else { self.ends[index - 1] }, self.ends[index])
    }

    fn part(&self, part: Part) -> &[u8] {
        let (begin, end) = self.range(part);
        // `parse` has checked the order of the ends, so this range is never cut.
        self.bytes.get(begin..end).unwrap_or_default()
    }
}

/// Flags, and six numbers.
const MAX_SCOPE_BYTES: usize = 1 + 6 * 5;

/// Maximum executable ranges; 4096, more than any linked program has.
const MAX_CODE_RANGES: usize = 1 << 12;

pub(super) fn language_number(language: Language) -> u32 {
    match language {
        Language::Unknown => 0,
        Language::Rust => 1,
        Language::Cpp => 2,
        Language::Plain => 3,
        Language::Swift => 4,
    }
}

/// The facts known from an address on. Fields that equal the previous segment's are not written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Segment {
    pub(super) flags: u8,
    pub(super) scope: u32,
    pub(super) file: u32,
    pub(super) line: u32,
    pub(super) column: u32,
    /// 0 where there is none; there is none without a line.
    pub(super) discriminator: u32,
}

impl Segment {
    fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Reads the changed fields; false if nothing is known.
    fn read(&mut self, flags: u8, input: &mut Input<'_>) -> Option<bool> {
        if flags == segment::NOTHING {
            return Some(false);
        }
        if flags & segment::SCOPE != 0 {
            self.scope = self.scope.wrapping_add_signed(input.difference()?);
        }
        if flags & segment::FILE != 0 {
            self.file = self.file.wrapping_add_signed(input.difference()?);
        }
        if flags & segment::LINE != 0 {
            self.line = self.line.wrapping_add_signed(input.difference()?);
        }
        if flags & segment::COLUMN != 0 {
            self.column = input.number()?;
        }
        self.discriminator = if flags & segment::DISCRIMINATOR != 0 { input.number()? } else { 0 };
        self.flags = flags;
        Some(true)
    }

    /// Writes the fields that changed since `before`.
    pub(super) fn write(&self, before: &mut Self, step: Option<u32>, out: &mut Vec<u8>) {
        let mut flags = self.flags;
        let changed = [
            (self.scope != before.scope, segment::SCOPE),
            (self.file != before.file && self.has(segment::HAS_FILE), segment::FILE),
            (self.line != before.line && self.has(segment::HAS_LINE), segment::LINE),
            (self.column != before.column && self.has(segment::HAS_COLUMN), segment::COLUMN),
            (self.discriminator != 0, segment::DISCRIMINATOR),
        ];
        changed.iter().filter(|(changed, _)| *changed).for_each(|(_, flag)| flags |= flag);
        out.push(flags);
        step.into_iter().for_each(|step| write_number(step, out));
        if flags & segment::SCOPE != 0 {
            write_difference(self.scope, before.scope, out);
            before.scope = self.scope;
        }
        if flags & segment::FILE != 0 {
            write_difference(self.file, before.file, out);
            before.file = self.file;
        }
        if flags & segment::LINE != 0 {
            write_difference(self.line, before.line, out);
            before.line = self.line;
        }
        if flags & segment::COLUMN != 0 {
            write_number(self.column, out);
            before.column = self.column;
        }
        if self.discriminator != 0 {
            write_number(self.discriminator, out);
        }
    }
}

struct Input<'a> {
    bytes: &'a [u8],
}

impl Input<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.bytes.split_first()?;
        self.bytes = rest;
        Some(first)
    }

    /// Reads a LEB128 number: seven bits per byte, lowest first, the high bit set if more follow.
    fn number(&mut self) -> Option<u32> {
        let mut value = 0_u32;
        for shift in [0, 7, 14, 21, 28] {
            let byte = self.byte()?;
            value |= u32::from(byte & 0x7f).checked_shl(shift)?;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    /// Reads a zigzag number: small differences of either sign are small numbers.
    fn difference(&mut self) -> Option<i32> {
        let number = self.number()?;
        Some((number >> 1).cast_signed() ^ -(number & 1).cast_signed())
    }
}

pub(super) fn write_number(mut value: u32, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn write_difference(now: u32, before: u32, out: &mut Vec<u8>) {
    let difference = now.wrapping_sub(before).cast_signed();
    write_number(((difference << 1) ^ (difference >> 31)).cast_unsigned(), out);
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at.checked_add(4)?)?.try_into().ok().map(u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..at.checked_add(8)?)?.try_into().ok().map(u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn index_numbers_round_trip() {
        for value in [0, 1, 127, 128, 300, 1 << 21, u32::MAX] {
            let mut bytes = Vec::new();
            write_number(value, &mut bytes);
            assert_eq!(Input { bytes: &bytes }.number(), Some(value));
            assert_eq!(Input { bytes: &bytes[..bytes.len() - 1] }.number(), None);
            let mut bytes = Vec::new();
            write_difference(value, 1000, &mut bytes);
            let read = Input { bytes: &bytes }.difference().unwrap();
            assert_eq!(1000_u32.wrapping_add_signed(read), value);
        }
    }
}
