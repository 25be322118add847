//! The functions of one unit, and the calls inlined into each.

use std::collections::BinaryHeap;
use std::sync::OnceLock;

use gimli::{AttributeValue, UnitOffset, UnitRef};

use super::units::{Budget, Problem, Reader};

/// Where a name is: written at the entry, or at another one.
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
    /// True when something was jumped over that could hold more of them.
    pub(super) jumped: bool,
}

#[derive(Debug)]
pub(super) struct FunctionEntry<'a> {
    offset: UnitOffset,
    function: OnceLock<Result<Function<'a>, Problem>>,
}

/// One piece of a function's code. A function can have several.
#[derive(Clone, Copy, Debug)]
pub(super) struct FunctionRange {
    pub(super) begin: u64,
    pub(super) end: u64,
    pub(super) function: u32,
    /// The largest end of this range and all before it: where to stop looking further back.
    largest_end: u64,
}

/// One function with all that is inlined into it.
#[derive(Debug)]
pub(super) struct Function<'a> {
    pub(super) origin: Origin<'a>,
    /// In the order of the file, outer before inner.
    pub(super) inlined: Vec<Inlined<'a>>,
    /// Sorted by begin: from here on, up to the next one, this is the innermost call.
    pub(super) pieces: Vec<InlinedPiece>,
}

/// A piece of a function with one innermost inlined call, or none.
#[derive(Clone, Copy, Debug)]
pub(super) struct InlinedPiece {
    pub(super) begin: u64,
    pub(super) innermost: Option<u32>,
}

/// One inlined call.
#[derive(Debug)]
pub(super) struct Inlined<'a> {
    pub(super) origin: Origin<'a>,
    /// The call that this one is inside of.
    pub(super) parent: Option<u32>,
    pub(super) call_file: Option<u64>,
    pub(super) call_line: u32,
    pub(super) call_column: u32,
}

/// Where one inlined call has code.
#[derive(Clone, Copy, Debug)]
struct InlinedRange {
    begin: u64,
    end: u64,
    inlined: u32,
}

impl<'a> Functions<'a> {
    /// Finds the functions of a unit. The quick way jumps over the insides of functions, where the file says how; few hold
    /// other functions with code, and a caller that misses one asks again, thoroughly.
    pub(super) fn read(
        unit: UnitRef<'_, Reader<'a>>,
        quickly: bool,
        budget: &Budget,
    ) -> Result<Self, Problem> {
        let mut functions = Self::default();
        // Where the outermost function that is being read ends.
        let mut body_end = 0;
        let mut entries = unit.entries_raw(None)?;
        while !entries.is_empty() {
            let offset = entries.next_offset();
            let Some(abbreviation) = entries.read_abbreviation()? else { continue };
            let tag = abbreviation.tag();
            if tag == gimli::DW_TAG_subprogram {
                let mut place = CodePlace::default();
                let mut sibling = None;
                for &specification in abbreviation.attributes() {
                    let attribute = entries.read_attribute_inline(specification)?;
                    match attribute.name() {
                        gimli::DW_AT_sibling => sibling = unit_offset(attribute.value()),
                        name => place.take(name, attribute.value(), unit)?,
                    }
                }
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
                    // The last one of its parent; what follows is taken for its inside.
                    None if abbreviation.has_children() => body_end = usize::MAX,
                    None => {}
                }
            } else if (quickly || offset.0 >= body_end) && abbreviation.has_children() && is_type(tag) {
                let mut sibling = None;
                for &specification in abbreviation.attributes() {
                    let attribute = entries.read_attribute(specification)?;
                    if attribute.name() == gimli::DW_AT_sibling {
                        sibling = unit_offset(attribute.value());
                    }
                }
                if let Some(sibling) = sibling {
                    functions.jumped |= jump(&mut entries, unit, offset, sibling)?;
                }
            } else {
                entries.skip_attributes(abbreviation.attributes())?;
            }
        }
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

    /// The function at an address; the one that begins last, should several overlap.
    pub(super) fn find(&self, address: u64) -> Option<u32> {
        let after = self.ranges.partition_point(|range| range.begin <= address);
        self.ranges[..after]
            .iter()
            .rev()
            .take_while(|range| range.largest_end > address)
            .find(|range| range.end > address)
            .map(|range| range.function)
    }
}

impl<'a> FunctionEntry<'a> {
    pub(super) fn function(
        &self,
        unit: UnitRef<'_, Reader<'a>>,
        budget: &Budget,
    ) -> Result<&Function<'a>, &Problem> {
        self.function.get_or_init(|| Function::read(unit, self.offset, budget)).as_ref()
    }
}

impl<'a> Function<'a> {
    fn read(unit: UnitRef<'_, Reader<'a>>, offset: UnitOffset, budget: &Budget) -> Result<Self, Problem> {
        let mut entries = unit.entries_raw(Some(offset))?;
        let own_depth = entries.next_depth();
        let mut function = Self { origin: Origin::Nowhere, inlined: Vec::new(), pieces: Vec::new() };
        let mut ranges = Vec::new();
        if let Some(abbreviation) = entries.read_abbreviation()? {
            let mut name = NamePlace::default();
            for &specification in abbreviation.attributes() {
                let attribute = entries.read_attribute(specification)?;
                name.take(attribute.name(), attribute.value(), unit);
            }
            function.origin = name.origin();
        }
        // The inlined calls that are open, with the depth of each.
        let mut open: Vec<(isize, u32)> = Vec::new();
        loop {
            let depth = entries.next_depth();
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
                    let inlined = function.read_inlined(
                        unit,
                        &mut entries,
                        abbreviation,
                        parent,
                        &mut ranges,
                        budget,
                    )?;
                    open.push((depth, inlined));
                }
                // A function inside of this one: its calls are its own.
                gimli::DW_TAG_subprogram => skip_with_children(&mut entries, depth, abbreviation)?,
                _ => entries.skip_attributes(abbreviation.attributes())?,
            }
        }
        function.pieces = pieces(ranges);
        budget.keep(&function.inlined);
        budget.keep(&function.pieces);
        Ok(function)
    }

    fn read_inlined(
        &mut self,
        unit: UnitRef<'_, Reader<'a>>,
        entries: &mut gimli::EntriesRaw<'_, Reader<'a>>,
        abbreviation: &gimli::Abbreviation,
        parent: Option<u32>,
        ranges: &mut Vec<InlinedRange>,
        budget: &Budget,
    ) -> Result<u32, Problem> {
        let index = self.inlined.len() as u32;
        let mut place = CodePlace::default();
        let mut name = NamePlace::default();
        let mut inlined =
            Inlined { origin: Origin::Nowhere, parent, call_file: None, call_line: 0, call_column: 0 };
        for &specification in abbreviation.attributes() {
            let attribute = entries.read_attribute_inline(specification)?;
            let number = || attribute.udata_value().and_then(|value| u32::try_from(value).ok()).unwrap_or(0);
            match attribute.name() {
                gimli::DW_AT_call_file => {
                    inlined.call_file = match attribute.value() {
                        AttributeValue::FileIndex(file) => Some(file),
                        _ => None,
                    }
                }
                gimli::DW_AT_call_line => inlined.call_line = number(),
                gimli::DW_AT_call_column => inlined.call_column = number(),
                other => {
                    name.take(other, attribute.value(), unit);
                    place.take(other, attribute.value(), unit)?;
                }
            }
        }
        inlined.origin = name.origin();
        self.inlined.push(inlined);
        place
            .for_each(unit, budget, |begin, end| ranges.push(InlinedRange { begin, end, inlined: index }))?;
        Ok(index)
    }

    /// The innermost call at an address.
    pub(super) fn innermost(&self, address: u64) -> Option<u32> {
        let after = self.pieces.partition_point(|piece| piece.begin <= address);
        self.pieces[after.checked_sub(1)?].innermost
    }
}

/// Lays the ranges of all inlined calls over each other: of those that cover an address, the last one of the file is the
/// innermost, as later entries refine earlier ones.
fn pieces(mut ranges: Vec<InlinedRange>) -> Vec<InlinedPiece> {
    ranges.sort_unstable_by_key(|range| range.begin);
    let mut cuts: Vec<u64> = ranges.iter().flat_map(|range| [range.begin, range.end]).collect();
    cuts.sort_unstable();
    cuts.dedup();
    let mut pieces: Vec<InlinedPiece> = Vec::with_capacity(cuts.len());
    let mut open: BinaryHeap<(u32, u64)> = BinaryHeap::new();
    let mut coming = ranges.iter().peekable();
    for begin in cuts {
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
    pieces.shrink_to_fit();
    pieces
}

/// Types of these kinds list members and declarations. Only those inside of functions hold code: that of lambdas, and of
/// the members of local types.
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

/// Goes on at the next sibling of the entry at `from`. Only forward: a file that points back would be read for ever.
fn jump<'u, 'a>(
    entries: &mut gimli::EntriesRaw<'u, Reader<'a>>,
    unit: UnitRef<'u, Reader<'a>>,
    from: UnitOffset,
    sibling: UnitOffset,
) -> Result<bool, Problem> {
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
) -> Result<(), Problem> {
    entries.skip_attributes(abbreviation.attributes())?;
    while entries.next_depth() > depth && !entries.is_empty() {
        if let Some(abbreviation) = entries.read_abbreviation()? {
            entries.skip_attributes(abbreviation.attributes())?;
        }
    }
    Ok(())
}

/// The attributes that say where an entry's code is.
#[derive(Default)]
pub(super) struct CodePlace {
    low: Option<u64>,
    high: Option<u64>,
    size: Option<u64>,
    ranges: Option<gimli::RangeListsOffset>,
}

impl CodePlace {
    #[inline]
    pub(super) fn take<'a>(
        &mut self,
        name: gimli::DwAt,
        value: AttributeValue<Reader<'a>>,
        unit: UnitRef<'_, Reader<'a>>,
    ) -> Result<(), Problem> {
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

    /// Calls `take` with each piece that is not empty.
    pub(super) fn for_each<'a>(
        &self,
        unit: UnitRef<'_, Reader<'a>>,
        budget: &Budget,
        mut take: impl FnMut(u64, u64),
    ) -> Result<(), Problem> {
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
        // Wraps for code that the linker threw away and marked with -1; the comparison drops it.
        let Some(end) = self.high.or_else(|| Some(begin.wrapping_add(self.size?))) else { return Ok(()) };
        if begin < end {
            take(begin, end);
        }
        Ok(())
    }
}

/// The attributes that say what an entry is called. The linker's name is the best, then the plain one, then another
/// entry's.
#[derive(Default)]
struct NamePlace<'a> {
    linkage: Option<AttributeValue<Reader<'a>>>,
    plain: Option<AttributeValue<Reader<'a>>>,
    elsewhere: Option<Origin<'a>>,
    written: Option<Reader<'a>>,
}

impl<'a> NamePlace<'a> {
    #[inline]
    fn take(&mut self, name: gimli::DwAt, value: AttributeValue<Reader<'a>>, unit: UnitRef<'_, Reader<'a>>) {
        match name {
            gimli::DW_AT_linkage_name | gimli::DW_AT_MIPS_linkage_name => {
                if let Ok(name) = unit.attr_string(value) {
                    self.linkage = Some(value);
                    self.written = Some(name);
                }
            }
            gimli::DW_AT_name if self.linkage.is_none() => {
                if let Ok(name) = unit.attr_string(value) {
                    self.plain = Some(value);
                    self.written = Some(name);
                }
            }
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

    fn origin(&self) -> Origin<'a> {
        match (self.linkage, self.elsewhere, self.written) {
            (Some(_), _, Some(name)) => Origin::Written(name),
            (_, Some(elsewhere), None) => elsewhere,
            // A plain name beside a reference: the entry referred to may know the linker's name.
            (None, Some(elsewhere), Some(_)) => elsewhere,
            (_, None, Some(name)) => Origin::Written(name),
            _ => Origin::Nowhere,
        }
    }
}

/// One step to a name: what the entry at `offset` says.
pub(super) fn step<'a>(unit: UnitRef<'_, Reader<'a>>, offset: UnitOffset) -> Result<Step<'a>, Problem> {
    let mut entries = unit.entries_raw(Some(offset))?;
    let Some(abbreviation) = entries.read_abbreviation()? else {
        return Ok(Step { origin: Origin::Nowhere, plain: None });
    };
    let mut name = NamePlace::default();
    for &specification in abbreviation.attributes() {
        let attribute = entries.read_attribute(specification)?;
        name.take(attribute.name(), attribute.value(), unit);
    }
    Ok(Step { origin: name.origin(), plain: name.written })
}

pub(super) struct Step<'a> {
    pub(super) origin: Origin<'a>,
    /// The entry's own name, should the entry it refers to have none.
    pub(super) plain: Option<Reader<'a>>,
}
