//! The directory of units: which unit describes which addresses.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use gimli::{DebugInfoOffset, EndianSlice, RunTimeEndian, UnitRef};

use super::cuts::Cuts;
use super::functions::{CodeAttributes, Functions};
use super::hint::Hint;
use super::lines::LineTable;
use super::split::SplitUnit;
use crate::source::Language;

/// A slice of a section.
pub(super) type Reader<'a> = EndianSlice<'a, RunTimeEndian>;
pub(super) type Dwarf<'a> = gimli::Dwarf<Reader<'a>>;

/// An error in the debug information.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DwarfError {
    Dwarf(gimli::Error),
    /// See [`Budget`].
    TooMuch,
    TooDeep,
    NameTooLong,
}

impl From<gimli::Error> for DwarfError {
    fn from(error: gimli::Error) -> Self {
        Self::Dwarf(error)
    }
}

impl fmt::Display for DwarfError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dwarf(error) => error.fmt(f),
            Self::TooMuch => f.write_str("it lists far more address ranges than it has bytes"),
            Self::TooDeep => write!(f, "more than {} calls inlined into each other", crate::MAX_INLINE_DEPTH),
            Self::NameTooLong => write!(f, "a name of more than {} bytes", crate::MAX_NAME_BYTES),
        }
    }
}

/// Bounds the number of address ranges that may still be read.
///
/// A well-formed file refers to each list of ranges once. A file with a million references to one
/// long list would take a day to read; parsing stops when it has taken more steps than the file has
/// bytes.
#[derive(Debug)]
pub(super) struct Budget {
    steps: AtomicU64,
    retained_bytes: AtomicU64,
}

impl Budget {
    pub(super) fn new(file_bytes: u64) -> Self {
        let steps = AtomicU64::new(file_bytes.saturating_add(SMALL_CHANGE));
        Self { steps, retained_bytes: AtomicU64::new(0) }
    }

    /// Counts parsed items that stay in memory.
    pub(super) fn keep<T>(&self, items: &[T]) {
        self.retained_bytes.fetch_add(size_of_val(items) as u64, Ordering::Relaxed);
    }

    /// Counts parsed items that were freed.
    pub(super) fn release(&self, bytes: u64) {
        self.retained_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Returns the bytes of parsed items in memory.
    pub(super) fn retained_bytes(&self) -> u64 {
        self.retained_bytes.load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn spend(&self, steps: u64) -> Result<(), DwarfError> {
        let before = self.steps.fetch_sub(steps, Ordering::Relaxed);
        if before < steps || before > u64::MAX / 2 {
            self.steps.store(0, Ordering::Relaxed);
            return Err(DwarfError::TooMuch);
        }
        Ok(())
    }
}

/// Additional steps for every file, so that a small one is never rejected.
const SMALL_CHANGE: u64 = 1 << 20;

/// All units of a file, and the address ranges of each.
pub(super) struct Directory<'a> {
    pub(super) units: Vec<Unit<'a>>,
    ranges: Vec<UnitRange>,
    hint: Hint,
}

/// One unit; its tables are parsed on first use.
pub(super) struct Unit<'a> {
    pub(super) offset: DebugInfoOffset,
    pub(super) unit: gimli::Unit<Reader<'a>>,
    pub(super) language: Language,
    pub(super) lines: OnceLock<Result<LineTable, DwarfError>>,
    pub(super) functions: OnceLock<Result<Functions<'a>, DwarfError>>,
    pub(super) all_functions: OnceLock<Result<Functions<'a>, DwarfError>>,
    pub(super) split: OnceLock<Option<SplitUnit<'a>>>,
}

/// Address range of a unit. Sorted by end, because units can overlap.
struct UnitRange {
    begin: u64,
    end: u64,
    unit: u32,
    /// Smallest begin of this range and all after it; ends the search.
    smallest_begin: u64,
}

impl<'a> Directory<'a> {
    pub(super) fn read(dwarf: &Dwarf<'a>, budget: &Budget) -> Result<Self, DwarfError> {
        let mut by_table = aranges(dwarf, budget)?;
        by_table.sort_by_key(|&(offset, ..)| offset);
        let mut directory = Self { units: Vec::new(), ranges: Vec::new(), hint: Hint::default() };
        let mut headers = dwarf.units();
        while let Some(header) = headers.next()? {
            let Some(offset) = header.debug_info_offset() else { continue };
            let has_code = match header.type_() {
                gimli::UnitType::Type { .. } | gimli::UnitType::SplitType { .. } => continue,
                // A partial unit is referenced by others, and has no code of its own.
                gimli::UnitType::Partial => false,
                _ => true,
            };
            let Ok(unit) = dwarf.unit(header) else { continue };
            let mut unit = Unit {
                offset,
                unit,
                language: Language::Unknown,
                lines: OnceLock::new(),
                functions: OnceLock::new(),
                all_functions: OnceLock::new(),
                split: OnceLock::new(),
            };
            if has_code {
                directory.add_ranges(dwarf, &mut unit, &by_table, budget)?;
            }
            directory.units.push(unit);
        }
        directory.ranges.sort_unstable_by_key(|range| (range.end, range.unit));
        let mut smallest_begin = u64::MAX;
        for range in directory.ranges.iter_mut().rev() {
            smallest_begin = smallest_begin.min(range.begin);
            range.smallest_begin = smallest_begin;
        }
        Ok(directory)
    }

    /// Adds the address ranges of a unit, from the first source that has any.
    ///
    /// The sources are its own list of ranges, `.debug_aranges`, its first and last address, and
    /// its lines. `.debug_aranges` precedes first and last address because those can span code of
    /// other units.
    fn add_ranges(
        &mut self,
        dwarf: &Dwarf<'a>,
        unit: &mut Unit<'a>,
        by_table: &[(DebugInfoOffset, u64, u64)],
        budget: &Budget,
    ) -> Result<(), DwarfError> {
        let index = self.units.len() as u32;
        let reference = UnitRef::new(dwarf, &unit.unit);
        let mut place = CodeAttributes::default();
        let mut entries = unit.unit.entries_raw(None)?;
        let Some(abbreviation) = entries.read_abbreviation()? else { return Ok(()) };
        for &specification in abbreviation.attributes() {
            let attribute = entries.read_attribute(specification)?;
            if attribute.name() == gimli::DW_AT_language {
                unit.language = language(attribute.value());
            }
            place.take(attribute.name(), attribute.value(), reference)?;
        }
        let before = self.ranges.len();
        let mut add = |begin, end| self.ranges.push(UnitRange { begin, end, unit: index, smallest_begin: 0 });
        if !place.has_ranges() {
            let first = by_table.partition_point(|&(offset, ..)| offset.0 < unit.offset.0);
            let own = by_table[first..].iter().take_while(|&&(offset, ..)| offset == unit.offset);
            own.for_each(|&(_, begin, end)| add(begin, end));
        }
        if self.ranges.len() == before {
            let add = |begin, end| self.ranges.push(UnitRange { begin, end, unit: index, smallest_begin: 0 });
            place.for_each(reference, budget, add)?;
        }
        if self.ranges.len() == before
            && let Ok(lines) = unit.lines.get_or_init(|| LineTable::read(reference, budget))
        {
            let ranges = lines.sequences().map(|(begin, end)| UnitRange {
                begin,
                end,
                unit: index,
                smallest_begin: 0,
            });
            self.ranges.extend(ranges);
        }
        Ok(())
    }

    /// Finds the units that may describe an address; several if their code was merged by the
    /// linker.
    pub(super) fn find(&self, address: u64) -> impl Iterator<Item = &Unit<'a>> {
        let first = self.hint.partition_point(&self.ranges, |range| range.end <= address);
        self.ranges[first..]
            .iter()
            .take_while(move |range| range.smallest_begin <= address)
            .filter(move |range| range.begin <= address)
            .map(|range| &self.units[range.unit as usize])
    }

    /// Returns each unit with code, with the end of its code.
    pub(super) fn ends(&self) -> Vec<(u64, u32)> {
        let mut ends = vec![0; self.units.len()];
        self.ranges
            .iter()
            .for_each(|range| ends[range.unit as usize] = range.end.max(ends[range.unit as usize]));
        let mut ends: Vec<(u64, u32)> = ends.into_iter().zip(0..).filter(|&(end, _)| end != 0).collect();
        ends.sort_unstable();
        ends
    }

    /// Frees a unit's lines and functions. They are parsed again on the next use.
    pub(super) fn forget(&mut self, unit: u32, budget: &Budget) {
        let Some(unit) = self.units.get_mut(unit as usize) else { return };
        let lines = unit.lines.take().and_then(Result::ok);
        let functions = [unit.functions.take(), unit.all_functions.take()].into_iter().flatten();
        let retained =
            functions.filter_map(Result::ok).map(|functions| functions.retained_bytes()).sum::<u64>();
        budget.release(retained + lines.map_or(0, |lines| lines.retained_bytes()));
    }

    /// Finds the unit that holds the entry at an offset of the section.
    pub(super) fn at_offset(&self, offset: DebugInfoOffset) -> Option<&Unit<'a>> {
        let after = self.units.partition_point(|unit| unit.offset.0 <= offset.0);
        self.units.get(after.checked_sub(1)?)
    }

    /// Returns the units with code in a window, each once; adds their bounds to `out`.
    pub(super) fn overlapping(&self, begin: u64, end: u64, out: &mut Cuts) -> Vec<&Unit<'a>> {
        let first = self.ranges.partition_point(|range| range.end <= begin);
        let ranges = self.ranges[first..].iter().filter(|range| range.begin < end);
        let noted =
            ranges.inspect(|range| [range.begin, range.end].into_iter().for_each(|cut| out.insert(cut)));
        let mut units: Vec<u32> = noted.map(|range| range.unit).collect();
        units.sort_unstable();
        units.dedup();
        units.into_iter().map(|unit| &self.units[unit as usize]).collect()
    }
}

/// Reads the address table of all units, without its broken entries.
fn aranges(dwarf: &Dwarf<'_>, budget: &Budget) -> Result<Vec<(DebugInfoOffset, u64, u64)>, DwarfError> {
    let mut found = Vec::new();
    let mut headers = dwarf.debug_aranges.headers();
    while let Some(header) = headers.next()? {
        let mut entries = header.entries();
        // After an entry that overflows, valid ones follow; after any other error the iterator
        // ends.
        while let Some(entry) = entries.next().transpose() {
            budget.spend(1)?;
            let Ok(entry) = entry else { continue };
            let range = entry.range();
            if range.begin < range.end {
                found.push((header.debug_info_offset(), range.begin, range.end));
            }
        }
    }
    Ok(found)
}

pub(super) fn language(value: gimli::AttributeValue<Reader<'_>>) -> Language {
    let gimli::AttributeValue::Language(language) = value else { return Language::Unknown };
    match language {
        gimli::DW_LANG_Rust => Language::Rust,
        gimli::DW_LANG_C_plus_plus
        | gimli::DW_LANG_C_plus_plus_03
        | gimli::DW_LANG_C_plus_plus_11
        | gimli::DW_LANG_C_plus_plus_14
        | gimli::DW_LANG_C_plus_plus_17
        | gimli::DW_LANG_C_plus_plus_20
        | gimli::DW_LANG_ObjC_plus_plus => Language::Cpp,
        gimli::DW_LANG_C
        | gimli::DW_LANG_C89
        | gimli::DW_LANG_C99
        | gimli::DW_LANG_C11
        | gimli::DW_LANG_C17
        | gimli::DW_LANG_Mips_Assembler => Language::Plain,
        gimli::DW_LANG_Swift => Language::Swift,
        _ => Language::Unknown,
    }
}
