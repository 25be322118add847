//! CIE and FDE: the records of the table.

use cairn_format::{AbsoluteAddress, WordSize};

use super::cursor::Cursor;
use super::pointer::{self, PointerContext};
use super::table::Flavor;
use super::{CfiError, CfiErrorKind};
use crate::AddressRange;

/// One FDE: the range of code that it covers, and its program.
#[derive(Clone, Copy, Debug)]
pub struct FrameEntry<'a> {
    /// Offset of the entry from the start of the section's slice.
    pub offset: usize,
    /// The code that it covers.
    pub range: AddressRange,
    pub(super) cie_offset: usize,
    pub(super) program: Cursor<'a>,
}

impl FrameEntry<'_> {
    #[inline]
    pub(super) fn empty() -> Self {
        let nowhere = AbsoluteAddress::new(0);
        let range = AddressRange::new(nowhere, nowhere);
        Self { offset: 0, range, cie_offset: 0, program: Cursor::EMPTY }
    }
}

/// A CIE: the part that several FDEs share.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cie<'a> {
    pub(super) code_alignment: u64,
    pub(super) data_alignment: i64,
    pub(super) return_address_register: u16,
    pub(super) pointer_encoding: u8,
    pub(super) segment_bytes: u8,
    pub(super) has_augmentation_data: bool,
    pub(super) is_signal_frame: bool,
    pub(super) address_bytes: u8,
    pub(super) program: Cursor<'a>,
}

/// The start of every entry.
struct EntryStart<'a> {
    /// The bytes after the id field.
    body: Cursor<'a>,
    /// Offset of the CIE, or `None` when the entry is one.
    cie_offset: Option<usize>,
}

/// Reads the length and the id of the entry at the cursor; `None` for the terminator and at the
/// end.
#[inline]
fn start_entry<'a>(cursor: &mut Cursor<'a>, flavor: Flavor) -> Result<Option<EntryStart<'a>>, CfiError> {
    if cursor.is_empty() {
        return Ok(None);
    }
    let short_length = cursor.u32()?;
    let (length, is_64_bit) = match short_length {
        0 => return Ok(None),
        0xffff_ffff => (cursor.u64()?, true),
        // Reserved by DWARF for future lengths.
        0xffff_fff0.. => return Err(cursor.error(CfiErrorKind::OutOfRange)),
        length => (u64::from(length), false),
    };
    let mut body = cursor.take(length)?;
    let id_offset = body.offset();
    let cie_offset = match flavor {
        Flavor::EhFrame => match body.u32()? {
            0 => None,
            distance => {
                let offset = id_offset.checked_sub(distance as usize);
                Some(offset.ok_or(CfiError { offset: id_offset, kind: CfiErrorKind::NoCie })?)
            }
        },
        Flavor::DebugFrame => {
            let (id, cie_id) =
                if is_64_bit { (body.u64()?, u64::MAX) } else { (u64::from(body.u32()?), 0xffff_ffff) };
            (id != cie_id).then_some(usize::try_from(id).unwrap_or(usize::MAX))
        }
    };
    Ok(Some(EntryStart { body, cie_offset }))
}

impl<'a> Cie<'a> {
    fn empty() -> Self {
        Self {
            code_alignment: 0,
            data_alignment: 0,
            return_address_register: 0,
            pointer_encoding: 0,
            segment_bytes: 0,
            has_augmentation_data: false,
            is_signal_frame: false,
            address_bytes: 0,
            program: Cursor::EMPTY,
        }
    }

    /// Reads the CIE at `offset`.
    pub(super) fn parse(
        context: &PointerContext<'a>,
        flavor: Flavor,
        offset: usize,
    ) -> Result<Self, CfiError> {
        let mut cie = Self::empty();
        cie.fill(context, flavor, offset)?;
        Ok(cie)
    }

    /// Fills this value with the CIE at `offset`.
    #[inline(never)]
    fn fill(&mut self, context: &PointerContext<'a>, flavor: Flavor, offset: usize) -> Result<(), CfiError> {
        let section = context.section.bytes;
        let mut cursor = Cursor::new(section, offset, section.len())?;
        match start_entry(&mut cursor, flavor)? {
            Some(EntryStart { body, cie_offset: None }) => self.fill_from_body(context, body),
            _ => Err(CfiError { offset, kind: CfiErrorKind::NoCie }),
        }
    }

    #[inline]
    fn fill_from_body(&mut self, context: &PointerContext<'a>, mut body: Cursor<'a>) -> Result<(), CfiError> {
        let version = body.byte()?;
        if !matches!(version, 1 | 3 | 4) {
            return Err(body.error(CfiErrorKind::UnknownVersion));
        }
        let augmentation = take_string(&mut body)?;
        (self.address_bytes, self.segment_bytes) = (context.word_size.bytes() as u8, 0);
        let is_ancient = augmentation.rest() == b"eh";
        if is_ancient {
            // Old GCC (before 3.0): a pointer to exception tables follows.
            body.take(u64::from(self.address_bytes))?;
        }
        if version == 4 {
            [self.address_bytes, self.segment_bytes] = body.array::<2>()?;
        }
        self.code_alignment = body.uleb()?;
        self.data_alignment = body.sleb()?;
        let register = if version == 1 { u64::from(body.byte()?) } else { body.uleb()? };
        self.return_address_register = u16::try_from(register).unwrap_or(u16::MAX);
        self.program = body;
        if is_ancient { Ok(()) } else { self.parse_augmentation(context, augmentation, body) }
    }

    /// Reads the data of the augmentation string's letters.
    #[inline]
    fn parse_augmentation(
        &mut self,
        context: &PointerContext<'a>,
        mut letters: Cursor<'a>,
        mut body: Cursor<'a>,
    ) -> Result<(), CfiError> {
        if letters.is_empty() {
            return Ok(());
        }
        // Only `z` states the length of the data; without it, an unknown letter makes the rest
        // unreadable.
        if letters.byte()? != b'z' {
            return Err(letters.error(CfiErrorKind::UnknownAugmentation));
        }
        self.has_augmentation_data = true;
        let length = body.uleb()?;
        let mut data = body.take(length)?;
        self.program = body;
        while let Ok(letter) = letters.byte() {
            match letter {
                b'R' => self.pointer_encoding = data.byte()?,
                b'L' => {
                    data.byte()?;
                }
                b'P' => {
                    let encoding = data.byte()?;
                    skip_personality(&mut data, encoding, context)?;
                }
                b'S' => self.is_signal_frame = true,
                // AArch64: signed with key B; tagged stack memory. Neither changes how a frame is
                // unwound.
                b'B' | b'G' => {}
                // The data of an unknown letter can only be the rest of the stated length.
                _ => break,
            }
        }
        Ok(())
    }
}

/// Skips the pointer to the personality routine. It is commonly indirect, which does not matter for
/// its width.
fn skip_personality(
    data: &mut Cursor<'_>,
    encoding: u8,
    context: &PointerContext<'_>,
) -> Result<(), CfiError> {
    const INDIRECT: u8 = 0x80;
    const FORM: u8 = 0x0f;
    const ALIGNED: u8 = 0x50;
    if encoding & !INDIRECT == ALIGNED {
        return pointer::read_pointer(data, ALIGNED, context, None).map(|_| ());
    }
    pointer::read_form(data, encoding & FORM, context.word_size).map(|_| ())
}

/// The bytes up to the next zero, which is skipped.
#[inline]
fn take_string<'a>(cursor: &mut Cursor<'a>) -> Result<Cursor<'a>, CfiError> {
    let length = cursor.rest().iter().position(|&byte| byte == 0);
    let length = length.ok_or_else(|| cursor.error(CfiErrorKind::UnexpectedEnd))?;
    let string = cursor.take(length as u64)?;
    cursor.byte()?;
    Ok(string)
}

/// An FDE and its CIE. It is filled in place, because returning it by value would take twice the
/// stack space.
pub(super) struct Found<'a> {
    pub(super) entry: FrameEntry<'a>,
    pub(super) cie: Cie<'a>,
}

impl<'a> Found<'a> {
    #[inline]
    pub(super) fn empty() -> Self {
        Self { entry: FrameEntry::empty(), cie: Cie::empty() }
    }

    /// Fills this value with the FDE at `offset` and its CIE.
    #[inline]
    pub(super) fn fill(
        &mut self,
        context: &PointerContext<'a>,
        flavor: Flavor,
        offset: usize,
    ) -> Result<(), CfiError> {
        let (body, cie_offset) = start_fde(context, flavor, offset)?;
        self.cie.fill(context, flavor, cie_offset)?;
        self.entry = parse_fde_body(context, &self.cie, cie_offset, offset, body)?;
        Ok(())
    }
}

/// The CIEs that look-ups used last. Most modules have two: of functions with a personality routine
/// and without.
#[derive(Clone, Copy, Debug)]
pub(super) struct CieCache<'a> {
    places: [(usize, Cie<'a>); 2],
    next: usize,
}

impl<'a> CieCache<'a> {
    /// No entry is there.
    const EMPTY_PLACE: usize = usize::MAX;

    pub(super) fn empty() -> Self {
        Self { places: [(Self::EMPTY_PLACE, Cie::empty()); 2], next: 0 }
    }

    /// Fills `entry` with the FDE at `offset`. Returns the place of its CIE, which is read if it is
    /// not here.
    #[inline]
    pub(super) fn fill(
        &mut self,
        context: &PointerContext<'a>,
        flavor: Flavor,
        offset: usize,
        entry: &mut FrameEntry<'a>,
    ) -> Result<usize, CfiError> {
        let (body, cie_offset) = start_fde(context, flavor, offset)?;
        let known = self.places.iter().position(|(place, _)| *place == cie_offset);
        let place = match known {
            Some(place) => place,
            None => self.add(context, flavor, cie_offset)?,
        };
        *entry = parse_fde_body(context, self.cie(place)?, cie_offset, offset, body)?;
        Ok(place)
    }

    /// The CIE at a place that [`fill`](Self::fill) returned.
    #[inline]
    pub(super) fn cie(&self, place: usize) -> Result<&Cie<'a>, CfiError> {
        let found = self.places.get(place).map(|(_, cie)| cie);
        found.ok_or(CfiError { offset: 0, kind: CfiErrorKind::NoCie })
    }

    #[cold]
    #[inline(never)]
    fn add(
        &mut self,
        context: &PointerContext<'a>,
        flavor: Flavor,
        offset: usize,
    ) -> Result<usize, CfiError> {
        let place = self.next % 2;
        let (at, cie) = &mut self.places[place];
        *at = Self::EMPTY_PLACE;
        *cie = Cie::empty();
        cie.fill(context, flavor, offset)?;
        *at = offset;
        self.next = 1 - place;
        Ok(place)
    }
}

/// The bytes of the FDE at `offset` behind its head, and the offset of its CIE.
#[inline]
fn start_fde<'a>(
    context: &PointerContext<'a>,
    flavor: Flavor,
    offset: usize,
) -> Result<(Cursor<'a>, usize), CfiError> {
    let section = context.section.bytes;
    let mut cursor = Cursor::new(section, offset, section.len())?;
    match start_entry(&mut cursor, flavor)? {
        Some(EntryStart { body, cie_offset: Some(cie_offset) }) => Ok((body, cie_offset)),
        _ => Err(CfiError { offset, kind: CfiErrorKind::NoCie }),
    }
}

#[inline]
fn parse_fde_body<'a>(
    context: &PointerContext<'a>,
    cie: &Cie<'a>,
    cie_offset: usize,
    offset: usize,
    body: Cursor<'a>,
) -> Result<FrameEntry<'a>, CfiError> {
    if cie.address_bytes == context.word_size.bytes() as u8 {
        parse_fde_fields(context, cie, cie_offset, offset, body)
    } else {
        parse_fde_of_other_width(context, cie, cie_offset, offset, body)
    }
}

/// The word size of addresses, if the CIE states another one than the module's.
#[cold]
#[inline(never)]
fn parse_fde_of_other_width<'a>(
    context: &PointerContext<'a>,
    cie: &Cie<'a>,
    cie_offset: usize,
    offset: usize,
    body: Cursor<'a>,
) -> Result<FrameEntry<'a>, CfiError> {
    let unknown = CfiError { offset, kind: CfiErrorKind::UnknownPointerEncoding };
    let word_size = WordSize::from_bits(u32::from(cie.address_bytes) * 8).ok_or(unknown)?;
    let context = PointerContext { word_size, ..*context };
    parse_fde_fields(&context, cie, cie_offset, offset, body)
}

#[inline]
fn parse_fde_fields<'a>(
    context: &PointerContext<'a>,
    cie: &Cie<'a>,
    cie_offset: usize,
    offset: usize,
    mut body: Cursor<'a>,
) -> Result<FrameEntry<'a>, CfiError> {
    body.take(u64::from(cie.segment_bytes))?;
    let start = pointer::read_pointer(&mut body, cie.pointer_encoding, context, None)?;
    let length = pointer::read_form(&mut body, cie.pointer_encoding, context.word_size)?;
    // A range that wraps around covers nothing that a program could run; cut it at the end of the
    // address space.
    let end = start.saturating_add(length);
    if cie.has_augmentation_data {
        let augmentation_bytes = body.uleb()?;
        body.take(augmentation_bytes)?;
    }
    let range = AddressRange::new(AbsoluteAddress::new(start), AbsoluteAddress::new(end));
    Ok(FrameEntry { offset, range, cie_offset, program: body })
}

/// Iterates over the FDEs of a section, in its order. Stops at the terminator, at the end, and
/// after an error.
#[derive(Clone, Debug)]
pub struct FrameEntries<'a> {
    context: PointerContext<'a>,
    flavor: Flavor,
    offset: usize,
    is_done: bool,
}

impl<'a> FrameEntries<'a> {
    pub(super) fn new(context: PointerContext<'a>, flavor: Flavor) -> Self {
        Self { context, flavor, offset: 0, is_done: false }
    }

    /// The offset of the next entry; once the iterator has ended without an error, of the
    /// terminator.
    pub(super) const fn offset(&self) -> usize {
        self.offset
    }

    fn advance(&mut self) -> Result<Option<FrameEntry<'a>>, CfiError> {
        let section = self.context.section.bytes;
        loop {
            let offset = self.offset;
            let mut cursor = Cursor::new(section, offset, section.len())?;
            let Some(start) = start_entry(&mut cursor, self.flavor)? else { return Ok(None) };
            self.offset = cursor.offset();
            if let Some(cie_offset) = start.cie_offset {
                let cie = Cie::parse(&self.context, self.flavor, cie_offset)?;
                return parse_fde_body(&self.context, &cie, cie_offset, offset, start.body).map(Some);
            }
        }
    }
}

impl<'a> Iterator for FrameEntries<'a> {
    type Item = Result<FrameEntry<'a>, CfiError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_done {
            return None;
        }
        let entry = self.advance().transpose();
        self.is_done = !matches!(entry, Some(Ok(_)));
        entry
    }
}
