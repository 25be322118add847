//! The functions of one unit, and the calls inlined into each.

use std::cell::RefCell;
use std::collections::BinaryHeap;
use std::sync::OnceLock;

use gimli::{AttributeValue, Section, UnitOffset, UnitRef};

use super::hint::Hint;
use super::units::{Budget, DwarfError, Reader};

/// The source of a name: the entry itself, or another one.
#[derive(Clone, Copy, Debug)]
pub(super) enum Origin<'a> {
    Nowhere,
    Written(Reader<'a>),
    InUnit(UnitOffset),
    InFile(gimli::DebugInfoOffset),
    InSupplement(gimli::DebugInfoOffset),
}

/// The functions of a unit that have code.
#[derive(Debug, Default)]
pub(super) struct Functions<'a> {
    pub(super) entries: Vec<FunctionEntry<'a>>,
    /// Sorted by begin.
    pub(super) ranges: Vec<FunctionRange>,
    /// True if the quick scan skipped entries that may contain further functions.
    pub(super) jumped: bool,
    hint: Hint,
}

#[derive(Debug)]
pub(super) struct FunctionEntry<'a> {
    pub(super) offset: UnitOffset,
    /// Boxed, because most functions of a unit are never queried.
    function: OnceLock<Box<Result<Function<'a>, DwarfError>>>,
}

/// One contiguous part of a function's code. A function can have several.
#[derive(Clone, Copy, Debug)]
pub(super) struct FunctionRange {
    pub(super) begin: u64,
    pub(super) end: u64,
    pub(super) function: u32,
    /// Largest end of this range and all before it; ends the backward search.
    largest_end: u64,
}

/// One function with all calls inlined into it.
#[derive(Debug)]
pub(super) struct Function<'a> {
    pub(super) origin: Origin<'a>,
    /// In file order, outer before inner.
    pub(super) inlined: Box<[InlinedCall<'a>]>,
    /// Sorted by begin; each piece continues to the next one.
    pub(super) pieces: Box<[InlinedPiece]>,
}

/// Part of a function, with its innermost inlined call, if any.
#[derive(Clone, Copy, Debug)]
pub(super) struct InlinedPiece {
    pub(super) begin: u64,
    pub(super) innermost: Option<u32>,
}

/// One inlined call.
#[derive(Debug)]
pub(super) struct InlinedCall<'a> {
    pub(super) offset: UnitOffset,
    pub(super) origin: Origin<'a>,
    /// The enclosing inlined call.
    pub(super) parent: Option<u32>,
    pub(super) call_file: Option<u32>,
    pub(super) call_line: u32,
    pub(super) call_column: u32,
}

/// A code range of one inlined call.
#[derive(Clone, Copy, Debug)]
struct InlinedRange {
    begin: u64,
    end: u64,
    inlined: u32,
}

impl<'a> Functions<'a> {
    /// Finds the functions of a unit.
    ///
    /// The quick scan skips the bodies of functions where the file links siblings; nested functions
    /// with code are rare, and a caller that misses one repeats the full scan.
    pub(super) fn read(
        unit: UnitRef<'_, Reader<'a>>,
        quickly: bool,
        budget: &Budget,
    ) -> Result<Self, DwarfError> {
        let mut functions = Self::default();
        // End of the outermost function in progress.
        let mut body_end = 0;
        let mut entries = unit.entries_raw(None)?;
        while !entries.is_empty() {
            let offset = entries.next_offset();
            let Some(abbreviation) = entries.read_abbreviation()? else { continue };
            let tag = abbreviation.tag();
            if tag == gimli::DW_TAG_subprogram {
                let mut place = CodeAttributes::default();
                let mut sibling = None;
                let wanted = |name| name == gimli::DW_AT_sibling || CodeAttributes::wants(name);
                read_attributes(&mut entries, abbreviation, wanted, |name, value| {
                    if name == gimli::DW_AT_sibling {
                        sibling = unit_offset(value);
                    }
                    place.take(name, value, unit)
                })?;
                let function = functions.entries.len() as u32;
                let before = functions.ranges.len();
                place.for_each(unit, budget, |begin, end| {
                    functions.ranges.push(FunctionRange { begin, end, function, largest_end: 0 });
                })?;
                if functions.ranges.len() > before {
                    functions.entries.push(FunctionEntry { offset, function: OnceLock::new() });
                }
                match sibling {
                    Some(sibling) if quickly => {
                        functions.jumped |= jump(&mut entries, unit, offset, sibling)?;
                    }
                    Some(sibling) => body_end = body_end.max(sibling.0),
                    // The last child of its parent; everything that follows counts as its body.
                    None if abbreviation.has_children() => body_end = usize::MAX,
                    None => {}
                }
            } else if (quickly || offset.0 >= body_end) && abbreviation.has_children() && is_type(tag) {
                let mut sibling = None;
                let wanted = |name| name == gimli::DW_AT_sibling;
                read_attributes(&mut entries, abbreviation, wanted, |_, value| {
                    sibling = unit_offset(value);
                    Ok(())
                })?;
                if let Some(sibling) = sibling {
                    functions.jumped |= jump(&mut entries, unit, offset, sibling)?;
                }
            } else {
                entries.skip_attributes(abbreviation.attributes())?;
            }
        }
        functions.entries.shrink_to_fit();
        functions.ranges.shrink_to_fit();
        functions.ranges.sort_unstable_by_key(|range| (range.begin, range.function));
        let mut largest_end = 0;
        for range in &mut functions.ranges {
            largest_end = range.end.max(largest_end);
            range.largest_end = largest_end;
        }
        budget.keep(&functions.entries);
        budget.keep(&functions.ranges);
        Ok(functions)
    }

    /// Finds the function at an address; among overlapping ones, the one that begins last.
    pub(super) fn find(&self, address: u64) -> Option<u32> {
        let after = self.hint.partition_point(&self.ranges, |range| range.begin <= address);
        self.ranges[..after]
            .iter()
            .rev()
            .take_while(|range| range.largest_end > address)
            .find(|range| range.end > address)
            .map(|range| range.function)
    }

    /// Returns the bytes counted with [`Budget::keep`], including functions parsed since.
    pub(super) fn retained_bytes(&self) -> u64 {
        let functions = self.entries.iter().filter_map(|entry| entry.function.get()?.as_ref().as_ref().ok());
        let inside = functions.map(Function::retained_bytes);
        (size_of_val(&*self.entries) + size_of_val(&*self.ranges) + inside.sum::<usize>()) as u64
    }
}

impl<'a> FunctionEntry<'a> {
    pub(super) fn function(
        &self,
        unit: UnitRef<'_, Reader<'a>>,
        budget: &Budget,
    ) -> Result<&Function<'a>, &DwarfError> {
        let read = || Box::new(Function::read(unit, self.offset, budget));
        self.function.get_or_init(read).as_ref().as_ref()
    }
}

impl<'a> Function<'a> {
    fn read(unit: UnitRef<'_, Reader<'a>>, offset: UnitOffset, budget: &Budget) -> Result<Self, DwarfError> {
        let mut entries = unit.entries_raw(Some(offset))?;
        let own_depth = entries.next_depth();
        let mut origin = Origin::Nowhere;
        let mut calls = Calls::default();
        let mut scratch = SCRATCH.take();
        scratch.ranges.clear();
        if let Some(abbreviation) = entries.read_abbreviation()? {
            let mut name = NameAttributes::default();
            read_attributes(&mut entries, abbreviation, NameAttributes::wants, |attribute, value| {
                name.take(attribute, value);
                Ok(())
            })?;
            origin = name.origin(unit);
        }
        // Stack of open inlined calls, with the depth of each.
        let mut open: Vec<(isize, u32)> = Vec::new();
        loop {
            let (depth, offset) = (entries.next_depth(), entries.next_offset());
            if depth <= own_depth || entries.is_empty() {
                break;
            }
            let Some(abbreviation) = entries.read_abbreviation()? else { continue };
            while open.last().is_some_and(|&(open_depth, _)| open_depth >= depth) {
                open.pop();
            }
            match abbreviation.tag() {
                gimli::DW_TAG_inlined_subroutine => {
                    let parent = open.last().map(|&(_, inlined)| inlined);
                    let ranges = &mut scratch.ranges;
                    let inlined =
                        calls.read(unit, &mut entries, offset, abbreviation, parent, ranges, budget)?;
                    open.push((depth, inlined));
                }
                // A nested function has its own inlined calls.
                gimli::DW_TAG_subprogram => skip_with_children(&mut entries, depth, abbreviation)?,
                _ => entries.skip_attributes(abbreviation.attributes())?,
            }
        }
        let function = Self { origin, inlined: calls.0.into(), pieces: pieces(&mut scratch) };
        SCRATCH.set(scratch);
        budget.keep(&function.inlined);
        budget.keep(&function.pieces);
        Ok(function)
    }

    fn retained_bytes(&self) -> usize {
        size_of_val(&*self.inlined) + size_of_val(&*self.pieces)
    }

    /// Finds the innermost call at an address.
    pub(super) fn innermost(&self, address: u64) -> Option<u32> {
        let after = self.pieces.partition_point(|piece| piece.begin <= address);
        self.pieces[after.checked_sub(1)?].innermost
    }
}

/// The inlined calls of one function, during parsing.
#[derive(Default)]
struct Calls<'a>(Vec<InlinedCall<'a>>);

impl<'a> Calls<'a> {
    #[allow(clippy::too_many_arguments, reason = "the entry, its unit, and the enclosing call")]
    fn read(
        &mut self,
        unit: UnitRef<'_, Reader<'a>>,
        entries: &mut gimli::EntriesRaw<'_, Reader<'a>>,
        offset: UnitOffset,
        abbreviation: &gimli::Abbreviation,
        parent: Option<u32>,
        ranges: &mut Vec<InlinedRange>,
        budget: &Budget,
    ) -> Result<u32, DwarfError> {
        let index = self.0.len() as u32;
        let mut place = CodeAttributes::default();
        let mut name = NameAttributes::default();
        let mut inlined = InlinedCall {
            offset,
            origin: Origin::Nowhere,
            parent,
            call_file: None,
            call_line: 0,
            call_column: 0,
        };
        let is_call =
            |name| matches!(name, gimli::DW_AT_call_file | gimli::DW_AT_call_line | gimli::DW_AT_call_column);
        let wanted = |name| is_call(name) || CodeAttributes::wants(name) || NameAttributes::wants(name);
        read_attributes(entries, abbreviation, wanted, |attribute, value| {
            let number = || value.udata_value().and_then(|value| u32::try_from(value).ok()).unwrap_or(0);
            match attribute {
                gimli::DW_AT_call_file => {
                    inlined.call_file = match value {
                        AttributeValue::FileIndex(file) => u32::try_from(file).ok(),
                        _ => None,
                    }
                }
                gimli::DW_AT_call_line => inlined.call_line = number(),
                gimli::DW_AT_call_column => inlined.call_column = number(),
                _ => {
                    name.take(attribute, value);
                    place.take(attribute, value, unit)?;
                }
            }
            Ok(())
        })?;
        inlined.origin = name.origin(unit);
        self.0.push(inlined);
        place
            .for_each(unit, budget, |begin, end| ranges.push(InlinedRange { begin, end, inlined: index }))?;
        Ok(index)
    }
}

thread_local! {
    /// Scratch space that the next function reuses: growing new tables costs more than filling
    /// them.
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

#[derive(Default)]
struct Scratch {
    ranges: Vec<InlinedRange>,
    cuts: Vec<u64>,
    open: BinaryHeap<(u32, u64)>,
    pieces: Vec<InlinedPiece>,
}

/// Overlays the ranges of all inlined calls.
///
/// The last call in the file that covers an address is the innermost, because later entries refine
/// earlier ones.
fn pieces(scratch: &mut Scratch) -> Box<[InlinedPiece]> {
    let Scratch { ranges, cuts, open, pieces } = scratch;
    ranges.sort_unstable_by_key(|range| range.begin);
    cuts.clear();
    cuts.extend(ranges.iter().flat_map(|range| [range.begin, range.end]));
    cuts.sort_unstable();
    cuts.dedup();
    pieces.clear();
    open.clear();
    let mut coming = ranges.iter().peekable();
    for &begin in &*cuts {
        while let Some(range) = coming.next_if(|range| range.begin <= begin) {
            open.push((range.inlined, range.end));
        }
        while open.peek().is_some_and(|&(_, end)| end <= begin) {
            open.pop();
        }
        let innermost = open.peek().map(|&(inlined, _)| inlined);
        if pieces.last().is_none_or(|last| last.innermost != innermost) {
            pieces.push(InlinedPiece { begin, innermost });
        }
    }
    pieces.as_slice().into()
}

/// Reads the wanted attributes of an entry, and skips the others without parsing their values.
///
/// Four of a function's fifteen to twenty attributes matter.
#[inline]
fn read_attributes<'a>(
    entries: &mut gimli::EntriesRaw<'_, Reader<'a>>,
    abbreviation: &gimli::Abbreviation,
    wanted: impl Fn(gimli::DwAt) -> bool,
    mut take: impl FnMut(gimli::DwAt, AttributeValue<Reader<'a>>) -> Result<(), DwarfError>,
) -> Result<(), DwarfError> {
    let all = abbreviation.attributes();
    let mut passed = 0;
    for (index, &specification) in all.iter().enumerate() {
        if !wanted(specification.name()) {
            continue;
        }
        if passed < index {
            entries.skip_attributes(&all[passed..index])?;
        }
        passed = index + 1;
        let attribute = entries.read_attribute_inline(specification)?;
        take(attribute.name(), attribute.value())?;
    }
    if passed < all.len() {
        entries.skip_attributes(&all[passed..])?;
    }
    Ok(())
}

/// Reports whether a tag is a type.
///
/// Types contain code only inside functions: the code of lambdas, and of members of local types.
fn is_type(tag: gimli::DwTag) -> bool {
    matches!(
        tag,
        gimli::DW_TAG_structure_type
            | gimli::DW_TAG_class_type
            | gimli::DW_TAG_union_type
            | gimli::DW_TAG_enumeration_type
            | gimli::DW_TAG_subroutine_type
            | gimli::DW_TAG_array_type
    )
}

fn unit_offset(value: AttributeValue<Reader<'_>>) -> Option<UnitOffset> {
    match value {
        AttributeValue::UnitRef(offset) => Some(offset),
        _ => None,
    }
}

/// Continues at the next sibling of the entry at `from`; forward only, so that a file cannot loop.
fn jump<'u, 'a>(
    entries: &mut gimli::EntriesRaw<'u, Reader<'a>>,
    unit: UnitRef<'u, Reader<'a>>,
    from: UnitOffset,
    sibling: UnitOffset,
) -> Result<bool, DwarfError> {
    let forward = sibling.0 > from.0 && sibling.0 > entries.next_offset().0;
    if forward {
        *entries = unit.unit.entries_raw(Some(sibling))?;
    }
    Ok(forward)
}

fn skip_with_children<'a>(
    entries: &mut gimli::EntriesRaw<'_, Reader<'a>>,
    depth: isize,
    abbreviation: &gimli::Abbreviation,
) -> Result<(), DwarfError> {
    entries.skip_attributes(abbreviation.attributes())?;
    while entries.next_depth() > depth && !entries.is_empty() {
        if let Some(abbreviation) = entries.read_abbreviation()? {
            entries.skip_attributes(abbreviation.attributes())?;
        }
    }
    Ok(())
}

/// The attributes that locate an entry's code.
#[derive(Default)]
pub(super) struct CodeAttributes {
    low: Option<u64>,
    high: Option<u64>,
    size: Option<u64>,
    ranges: Option<gimli::RangeListsOffset>,
}

impl CodeAttributes {
    /// Reports whether [`take`](Self::take) handles this attribute.
    #[inline]
    fn wants(name: gimli::DwAt) -> bool {
        matches!(name, gimli::DW_AT_low_pc | gimli::DW_AT_high_pc | gimli::DW_AT_ranges)
    }

    #[inline]
    pub(super) fn take<'a>(
        &mut self,
        name: gimli::DwAt,
        value: AttributeValue<Reader<'a>>,
        unit: UnitRef<'_, Reader<'a>>,
    ) -> Result<(), DwarfError> {
        match name {
            gimli::DW_AT_low_pc => match value {
                AttributeValue::Addr(address) => self.low = Some(address),
                AttributeValue::DebugAddrIndex(index) => self.low = Some(unit.address(index)?),
                _ => {}
            },
            gimli::DW_AT_high_pc => match value {
                AttributeValue::Addr(address) => self.high = Some(address),
                AttributeValue::DebugAddrIndex(index) => self.high = Some(unit.address(index)?),
                AttributeValue::Udata(size) => self.size = Some(size),
                _ => {}
            },
            gimli::DW_AT_ranges => self.ranges = unit.attr_ranges_offset(value)?,
            _ => {}
        }
        Ok(())
    }

    pub(super) fn has_ranges(&self) -> bool {
        self.ranges.is_some()
    }

    /// Calls `take` with each non-empty range.
    pub(super) fn for_each<'a>(
        &self,
        unit: UnitRef<'_, Reader<'a>>,
        budget: &Budget,
        mut take: impl FnMut(u64, u64),
    ) -> Result<(), DwarfError> {
        if let Some(offset) = self.ranges {
            let mut ranges = unit.ranges(offset)?;
            while let Some(range) = ranges.next()? {
                budget.spend(1)?;
                if range.begin < range.end {
                    take(range.begin, range.end);
                }
            }
            return Ok(());
        }
        let Some(begin) = self.low else { return Ok(()) };
        // Wraps for code that the linker discarded and marked with -1; the comparison drops it.
        let Some(end) = self.high.or_else(|| Some(begin.wrapping_add(self.size?))) else { return Ok(()) };
        if begin < end {
            take(begin, end);
        }
        Ok(())
    }
}

/// The attributes that name an entry, in order of preference.
///
/// They are the linkage name, the plain name, and a reference to another entry.
#[derive(Default)]
struct NameAttributes<'a> {
    linkage: Option<AttributeValue<Reader<'a>>>,
    plain: Option<AttributeValue<Reader<'a>>>,
    elsewhere: Option<Origin<'a>>,
}

impl<'a> NameAttributes<'a> {
    /// Reports whether [`take`](Self::take) handles this attribute.
    #[inline]
    fn wants(name: gimli::DwAt) -> bool {
        matches!(
            name,
            gimli::DW_AT_linkage_name
                | gimli::DW_AT_MIPS_linkage_name
                | gimli::DW_AT_name
                | gimli::DW_AT_abstract_origin
                | gimli::DW_AT_specification
        )
    }

    #[inline]
    fn take(&mut self, name: gimli::DwAt, value: AttributeValue<Reader<'a>>) {
        match name {
            gimli::DW_AT_linkage_name | gimli::DW_AT_MIPS_linkage_name => self.linkage = Some(value),
            gimli::DW_AT_name => self.plain = Some(value),
            gimli::DW_AT_abstract_origin | gimli::DW_AT_specification => {
                self.elsewhere = match value {
                    AttributeValue::UnitRef(offset) => Some(Origin::InUnit(offset)),
                    AttributeValue::DebugInfoRef(offset) => Some(Origin::InFile(offset)),
                    AttributeValue::DebugInfoRefSup(offset) => Some(Origin::InSupplement(offset)),
                    _ => self.elsewhere,
                }
            }
            _ => {}
        }
    }

    /// Chooses the source of the name. Only the chosen text is scanned for its end, to avoid cache
    /// misses.
    fn origin(&self, unit: UnitRef<'_, Reader<'a>>) -> Origin<'a> {
        if let Some(name) = self.linkage.and_then(|value| written(unit, value)) {
            return Origin::Written(name);
        }
        // A reference wins over a plain name: the entry that it refers to may have the linkage
        // name.
        self.elsewhere.or_else(|| Some(Origin::Written(self.plain(unit)?))).unwrap_or(Origin::Nowhere)
    }

    /// Returns the entry's own plain name.
    fn plain(&self, unit: UnitRef<'_, Reader<'a>>) -> Option<Reader<'a>> {
        self.plain.and_then(|value| written(unit, value))
    }
}

/// Returns the text of an attribute. The common forms are scanned for their end a word at a time.
fn written<'a>(unit: UnitRef<'_, Reader<'a>>, value: AttributeValue<Reader<'a>>) -> Option<Reader<'a>> {
    let (section, offset) = match value {
        AttributeValue::DebugStrRef(offset) => (unit.dwarf.debug_str.reader(), offset.0),
        AttributeValue::DebugStrRefSup(offset) => (unit.dwarf.sup()?.debug_str.reader(), offset.0),
        _ => return unit.attr_string(value).ok(),
    };
    let text = section.slice().get(offset..)?;
    let text = std::ffi::CStr::from_bytes_until_nul(text).ok()?;
    Some(section.range(offset..offset + text.count_bytes()))
}

/// Reads the name of the entry at `offset`, or its reference to the next entry.
pub(super) fn step<'a>(unit: UnitRef<'_, Reader<'a>>, offset: UnitOffset) -> Result<Step<'a>, DwarfError> {
    let mut entries = unit.entries_raw(Some(offset))?;
    let Some(abbreviation) = entries.read_abbreviation()? else {
        return Ok(Step { origin: Origin::Nowhere, plain: None });
    };
    let mut name = NameAttributes::default();
    read_attributes(&mut entries, abbreviation, NameAttributes::wants, |attribute, value| {
        name.take(attribute, value);
        Ok(())
    })?;
    let origin = name.origin(unit);
    let goes_on = !matches!(origin, Origin::Written(_));
    Ok(Step { origin, plain: if goes_on { name.plain(unit) } else { None } })
}

pub(super) struct Step<'a> {
    pub(super) origin: Origin<'a>,
    /// The entry's own name, in case the entry that it refers to has none.
    pub(super) plain: Option<Reader<'a>>,
}
