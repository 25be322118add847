//! The directory of units: which part of the file describes which addresses.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use gimli::{DebugInfoOffset, EndianSlice, RunTimeEndian, UnitRef};

use super::cuts::Cuts;
use super::functions::{CodePlace, Functions};
use super::hint::Hint;
use super::lines::Lines;
use super::split::SplitUnit;
use crate::source::Language;

/// A piece of a section.
pub(super) type Reader<'a> = EndianSlice<'a, RunTimeEndian>;
pub(super) type Dwarf<'a> = gimli::Dwarf<Reader<'a>>;

/// What is wrong with the debug information.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Problem {
    Dwarf(gimli::Error),
    /// See [`Budget`].
    TooMuch,
    TooDeep,
    NameTooLong,
}

impl From<gimli::Error> for Problem {
    fn from(error: gimli::Error) -> Self {
        Self::Dwarf(error)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dwarf(error) => error.fmt(f),
            Self::TooMuch => f.write_str("it lists far more address ranges than it has bytes"),
            Self::TooDeep => write!(f, "more than {} calls inlined into each other", crate::MAX_INLINE_DEPTH),
            Self::NameTooLong => write!(f, "a name of more than {} bytes", crate::MAX_NAME_BYTES),
        }
    }
}

/// How many address ranges may still be read.
///
/// An honest file refers to each list of ranges once. One that refers to a long list from a million entries would take a
/// day to read; it is given up when it has cost more steps than it has bytes.
#[derive(Debug)]
pub(super) struct Budget {
    steps: AtomicU64,
    kept_bytes: AtomicU64,
}

impl Budget {
    pub(super) fn new(file_bytes: u64) -> Self {
        let steps = AtomicU64::new(file_bytes.saturating_add(SMALL_CHANGE));
        Self { steps, kept_bytes: AtomicU64::new(0) }
    }

    /// Notes that something was read that stays in memory.
    pub(super) fn keep<T>(&self, items: &[T]) {
        self.kept_bytes.fetch_add(size_of_val(items) as u64, Ordering::Relaxed);
    }

    /// Notes that something is not in memory any more.
    pub(super) fn release(&self, bytes: u64) {
        self.kept_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// How much was read that stays in memory.
    pub(super) fn kept_bytes(&self) -> u64 {
        self.kept_bytes.load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn spend(&self, steps: u64) -> Result<(), Problem> {
        let before = self.steps.fetch_sub(steps, Ordering::Relaxed);
        if before < steps || before > u64::MAX / 2 {
            self.steps.store(0, Ordering::Relaxed);
            return Err(Problem::TooMuch);
        }
        Ok(())
    }
}

/// So that a small file is never given up.
const SMALL_CHANGE: u64 = 1 << 20;

/// All units of a file, and where the code of each is.
pub(super) struct Directory<'a> {
    pub(super) units: Vec<Unit<'a>>,
    ranges: Vec<UnitRange>,
    hint: Hint,
}

/// One unit; what is known of it fills up as it is asked for.
pub(super) struct Unit<'a> {
    pub(super) offset: DebugInfoOffset,
    pub(super) unit: gimli::Unit<Reader<'a>>,
    pub(super) language: Language,
    pub(super) lines: OnceLock<Result<Lines, Problem>>,
    pub(super) functions: OnceLock<Result<Functions<'a>, Problem>>,
    pub(super) all_functions: OnceLock<Result<Functions<'a>, Problem>>,
    pub(super) split: OnceLock<Option<SplitUnit<'a>>>,
}

/// Sorted by end, as units can overlap.
struct UnitRange {
    begin: u64,
    end: u64,
    unit: u32,
    /// The smallest begin of this range and all behind it: where to stop looking further.
    smallest_begin: u64,
}

impl<'a> Directory<'a> {
    pub(super) fn read(dwarf: &Dwarf<'a>, budget: &Budget) -> Result<Self, Problem> {
        let mut by_table = aranges(dwarf, budget)?;
        by_table.sort_by_key(|&(offset, ..)| offset);
        let mut directory = Self { units: Vec::new(), ranges: Vec::new(), hint: Hint::default() };
        let mut headers = dwarf.units();
        while let Some(header) = headers.next()? {
            let Some(offset) = header.debug_info_offset() else { continue };
            let has_code = match header.type_() {
                gimli::UnitType::Type { .. } | gimli::UnitType::SplitType { .. } => continue,
                // Others refer to it; it has no code of its own.
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

    /// Where a unit's code is: by its own list of ranges, or by the table for all units, or by its first and last address,
    /// or by its lines. The table comes before first and last address because those can span what is not the unit's.
    fn add_ranges(
        &mut self,
        dwarf: &Dwarf<'a>,
        unit: &mut Unit<'a>,
        by_table: &[(DebugInfoOffset, u64, u64)],
        budget: &Budget,
    ) -> Result<(), Problem> {
        let index = self.units.len() as u32;
        let reference = UnitRef::new(dwarf, &unit.unit);
        let mut place = CodePlace::default();
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
            && let Ok(lines) = unit.lines.get_or_init(|| Lines::read(reference, budget))
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

    /// The units that may know an address. Several can: code that is in many units and linked once.
    pub(super) fn find(&self, address: u64) -> impl Iterator<Item = &Unit<'a>> {
        let first = self.hint.partition_point(&self.ranges, |range| range.end <= address);
        self.ranges[first..]
            .iter()
            .take_while(move |range| range.smallest_begin <= address)
            .filter(move |range| range.begin <= address)
            .map(|range| &self.units[range.unit as usize])
    }

    /// Each unit with code, by where its code ends.
    pub(super) fn ends(&self) -> Vec<(u64, u32)> {
        let mut ends = vec![0; self.units.len()];
        self.ranges
            .iter()
            .for_each(|range| ends[range.unit as usize] = range.end.max(ends[range.unit as usize]));
        let mut ends: Vec<(u64, u32)> = ends.into_iter().zip(0..).filter(|&(end, _)| end != 0).collect();
        ends.sort_unstable();
        ends
    }

    /// Drops what was read of a unit's lines and functions. They are read anew when they are asked for again.
    pub(super) fn forget(&mut self, unit: u32, budget: &Budget) {
        let Some(unit) = self.units.get_mut(unit as usize) else { return };
        let lines = unit.lines.take().and_then(Result::ok);
        let functions = [unit.functions.take(), unit.all_functions.take()].into_iter().flatten();
        let kept = functions.filter_map(Result::ok).map(|functions| functions.kept_bytes()).sum::<u64>();
        budget.release(kept + lines.map_or(0, |lines| lines.kept_bytes()));
    }

    /// The unit that holds the entry at an offset of the section.
    pub(super) fn at_offset(&self, offset: DebugInfoOffset) -> Option<&Unit<'a>> {
        let after = self.units.partition_point(|unit| unit.offset.0 <= offset.0);
        self.units.get(after.checked_sub(1)?)
    }

    /// The units with code in a window, each once; where they begin and end goes to `out`.
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

/// The table of addresses for all units; what of it is broken is left out.
fn aranges(dwarf: &Dwarf<'_>, budget: &Budget) -> Result<Vec<(DebugInfoOffset, u64, u64)>, Problem> {
    let mut found = Vec::new();
    let mut headers = dwarf.debug_aranges.headers();
    while let Some(header) = headers.next()? {
        let mut entries = header.entries();
        // An entry that overflows is followed by good ones; the iterator ends by itself after any other error.
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
