//! Resolves an address to frames, over the units of one module.

mod declarations;

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use gimli::{SectionId, UnitOffset, UnitRef};
use self_cell::self_cell;

pub(crate) use declarations::Declared;
use declarations::Variable;

use super::cuts::Cuts;
use super::functions::{Function, Functions, Origin, step};
use super::lines::{LineTable, Row};
use super::split::{FindSplit, Splits};
use super::units::{Budget, Directory, Dwarf, DwarfError, Reader, Unit};
use crate::elf::debug_object::DebugObject;
use crate::source::{FrameSink, Language, RawFrame, TextKey, TextTable};

/// The files whose debug information belongs together.
pub(crate) struct DebugFiles {
    pub(crate) main: DebugObject,
    /// The shared part that dwz moved to a file of its own.
    pub(crate) supplement: Option<DebugObject>,
    /// A package of all split files.
    pub(crate) package: Option<DebugObject>,
    pub(crate) find_split: Arc<FindSplit>,
}

/// Answers queries from the debug information of one module.
pub(crate) struct Engine(EngineCell);

struct Owner {
    files: Arc<DebugFiles>,
    /// One per unit.
    split_files: Vec<OnceLock<Option<DebugObject>>>,
}

self_cell!(
    struct EngineCell {
        owner: Owner,
        #[not_covariant]
        dependent: ModuleDebugInfo,
    }
);

/// The parsed debug information of the module.
pub(super) struct ModuleDebugInfo<'a> {
    dwarf: Dwarf<'a>,
    directory: Directory<'a>,
    supplement: Option<Directory<'a>>,
    splits: Splits<'a>,
    budget: Budget,
    /// Unique among all engines of this process.
    number: u64,
    /// All variables, after the first query for one.
    variables: OnceLock<Vec<Variable>>,
    /// State of a build of an index.
    index_build: IndexBuildState,
}

/// State between two windows of an index build.
#[derive(Default)]
struct IndexBuildState {
    /// Numbers of the names of inlined functions, by where the names are stored.
    names: TextTable<Option<u32>>,
    /// Units by the end of their code, and how many of them were freed.
    ends: Vec<(u64, u32)>,
    forgotten: usize,
}

impl Engine {
    /// Parses the directory of units.
    pub(crate) fn new(files: Arc<DebugFiles>) -> Result<Self, DwarfError> {
        files.main.inflate_all();
        let units = count_units(&files.main);
        let split_files = std::iter::repeat_with(OnceLock::new).take(units).collect();
        EngineCell::try_new(Owner { files, split_files }, |owner| ModuleDebugInfo::new(owner)).map(Self)
    }

    /// Emits all answers from `begin` up to `end`; they may also change at the addresses `extra`.
    pub(crate) fn emit_window(
        &mut self,
        begin: u64,
        end: u64,
        extra: &[u64],
        sink: &mut dyn SegmentSink,
    ) -> Result<(), DwarfError> {
        self.0.with_dependent_mut(|_, reading| reading.emit_window(begin, end, extra, sink))
    }

    /// Frees units whose code lies entirely before an address, for sequential readers.
    ///
    /// They are parsed again if queried again.
    pub(crate) fn forget_before(&mut self, address: u64) {
        self.0.with_dependent_mut(|_, reading| reading.forget_before(address));
    }

    /// Reports whether a unit refers to a split file that was not found.
    pub(crate) fn misses_split_files(&self) -> bool {
        self.0.with_dependent(|_, reading| reading.splits.is_missing_some())
    }

    /// Returns the bytes of parsed debug information in memory.
    pub(crate) fn retained_bytes(&self) -> u64 {
        self.0.with_dependent(|_, reading| reading.budget.retained_bytes())
    }

    /// Pushes the frames of an address; none if nothing covers it.
    pub(crate) fn frames_at(&self, address: u64, out: &mut FrameSink) -> Result<(), DwarfError> {
        self.0.with_dependent(|_, reading| reading.frames_at(address, out))
    }

    /// Returns the declaration of each frame's function.
    pub(crate) fn declarations_at(&self, address: u64) -> Result<Vec<Declared>, DwarfError> {
        self.0.with_dependent(|_, reading| reading.declarations(address))
    }

    /// Finds the declaration of the variable that begins at an address.
    pub(crate) fn variable_at(&self, address: u64) -> Result<Option<Declared>, DwarfError> {
        self.0.with_dependent(|_, reading| reading.variable(address))
    }
}

/// Receives every answer of a window of addresses.
pub(crate) trait SegmentSink {
    /// Adds a function; `name` is `None` if only its address is known.
    fn root(&mut self, address: u64, name: Option<(&str, Language)>) -> ScopeId;
    /// Adds a call inlined into a scope, with the position of the call.
    fn inlined(&mut self, into: ScopeId, name: Option<u32>, call: SourcePosition) -> ScopeId;
    /// Adds the name of an inlined function.
    fn name(&mut self, name: (&str, Language)) -> u32;
    /// Adds a source file.
    fn file(&mut self, path: &str) -> u32;
    /// Starts a segment: these facts hold from this address on.
    fn segment(&mut self, address: u64, known: Option<(ScopeId, SourcePosition)>);
}

/// A function, or a call inlined into it, as numbered by the receiver.
pub(crate) type ScopeId = u32;

/// A position in the source, with the file as numbered by the receiver.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct SourcePosition {
    pub(crate) file: Option<u32>,
    pub(crate) line: Option<u32>,
    pub(crate) column: Option<u32>,
    /// Never zero.
    pub(crate) discriminator: Option<u32>,
}

/// Key of a function: true if the quick scan found it, and its number.
type FunctionKey = (bool, u32);

/// Scopes and files that this window has emitted.
///
/// Addresses ascend, so function and unit are mostly unchanged; a hash table is consulted only when
/// they change.
#[derive(Default)]
struct KnownScopes {
    function: (usize, FunctionKey),
    /// Scopes of that function and its inlined calls, or [`UNNUMBERED`].
    scopes: Vec<ScopeId>,
    other_functions: HashMap<(usize, FunctionKey), Vec<ScopeId>>,
    unit: usize,
    /// Numbers of that unit's files, [`NO_FILE`], or [`UNNUMBERED`].
    files: Vec<u32>,
    other_units: HashMap<usize, Vec<u32>>,
    /// Across windows: the number of each name.
    names: TextTable<Option<u32>>,
}

const UNNUMBERED: u32 = u32::MAX;

const NO_FILE: u32 = u32::MAX - 1;

impl KnownScopes {
    fn enter_function(&mut self, function: (usize, FunctionKey), inlined: usize) {
        if self.function != function {
            let scopes = self.other_functions.remove(&function).unwrap_or_default();
            let left = std::mem::replace(&mut self.scopes, scopes);
            self.other_functions.insert(std::mem::replace(&mut self.function, function), left);
        }
        self.scopes.resize(inlined + 1, UNNUMBERED);
    }

    /// Returns the number of a unit's file; calls `emit` to number a new one.
    fn file(&mut self, unit: usize, index: u64, emit: impl FnOnce() -> Option<u32>) -> Option<u32> {
        if self.unit != unit {
            let files = self.other_units.remove(&unit).unwrap_or_default();
            let left = std::mem::replace(&mut self.files, files);
            self.other_units.insert(std::mem::replace(&mut self.unit, unit), left);
        }
        let index = usize::try_from(index).ok().filter(|&index| index < MAX_NUMBERED_FILES)?;
        if index >= self.files.len() {
            self.files.resize(index + 1, UNNUMBERED);
        }
        let number = &mut self.files[index];
        if *number == UNNUMBERED {
            *number = emit().unwrap_or(NO_FILE);
        }
        (*number != NO_FILE).then_some(*number)
    }
}

/// Maximum files per unit; 1 Mi, far above real units. Larger numbers count as no file.
const MAX_NUMBERED_FILES: usize = 1 << 20;

fn count_units(object: &DebugObject) -> usize {
    let info = gimli::DebugInfo::from(object.plain(SectionId::DebugInfo));
    let mut headers = info.units();
    let mut count = 0;
    while let Ok(Some(_)) = headers.next() {
        count += 1;
    }
    count
}

impl<'a> ModuleDebugInfo<'a> {
    fn new(owner: &'a Owner) -> Result<Self, DwarfError> {
        let files = &*owner.files;
        let mut dwarf = Dwarf::load(|id| Ok::<_, DwarfError>(files.main.needed(id)))?;
        let mut bytes =
            (files.main.bytes().len() as u64).saturating_add(files.main.section_bytes(SectionId::DebugInfo));
        if let Some(supplement) = &files.supplement {
            dwarf.load_sup(|id| Ok::<_, DwarfError>(supplement.needed(id)))?;
            bytes = bytes.saturating_add(supplement.bytes().len() as u64);
        }
        dwarf.populate_abbreviations_cache(gimli::AbbreviationsCacheStrategy::Duplicates);
        let budget = Budget::new(bytes);
        let directory = Directory::read(&dwarf, &budget)?;
        let supplement = dwarf.sup().map(|sup| Directory::read(sup, &budget)).transpose()?;
        let splits = Splits::new(files.package.as_ref(), &owner.split_files, &*files.find_split);
        static READERS: AtomicU64 = AtomicU64::new(0);
        let number = READERS.fetch_add(1, Ordering::Relaxed);
        let (variables, index_build) = (OnceLock::new(), IndexBuildState::default());
        Ok(Self { dwarf, directory, supplement, splits, budget, number, variables, index_build })
    }

    fn frames_at(&self, address: u64, out: &mut FrameSink) -> Result<(), DwarfError> {
        for unit in self.directory.find(address) {
            let view = self.view(unit);
            let function = self.function_at(unit, &view, address)?.map(|(_, function)| function);
            let lines = self.lines(unit).map_err(|problem| *problem)?;
            let row = lines.find(address);
            match function {
                Some(function) => return self.push_frames(&view, function, lines, row, address, out),
                None if row.is_some() => {
                    return self.push_frame(
                        &view,
                        lines,
                        Origin::Nowhere,
                        row.map(FramePosition::from),
                        false,
                        out,
                    );
                }
                None => {}
            }
        }
        Ok(())
    }

    /// Returns the unit with its entries, from this file or a split one.
    fn view<'s>(&'s self, unit: &'s Unit<'a>) -> UnitView<'s, 'a> {
        let line_unit = UnitRef::new(&self.dwarf, &unit.unit);
        if unit.unit.dwo_id.is_some() {
            let index = self.directory.units.partition_point(|other| other.offset.0 < unit.offset.0);
            let split = unit.split.get_or_init(|| self.splits.load(&self.dwarf, unit, index));
            if let Some(split) = split {
                return UnitView {
                    unit: UnitRef::new(&split.dwarf, &split.unit),
                    line_unit,
                    offset: unit.offset.0,
                    language: split.language,
                    is_split: true,
                };
            }
        }
        UnitView {
            unit: line_unit,
            line_unit,
            offset: unit.offset.0,
            language: unit.language,
            is_split: false,
        }
    }

    fn function_at<'s>(
        &'s self,
        unit: &'s Unit<'a>,
        view: &UnitView<'s, 'a>,
        address: u64,
    ) -> Result<Option<(FunctionKey, &'s Function<'a>)>, DwarfError> {
        for quickly in [true, false] {
            let functions = self.functions(unit, view, quickly).map_err(|problem| *problem)?;
            if let Some(index) = functions.find(address) {
                let function = functions.entries[index as usize].function(view.unit, &self.budget);
                return function
                    .map(|function| Some(((quickly, index), function)))
                    .map_err(|problem| *problem);
            }
            if !functions.jumped {
                break;
            }
        }
        Ok(None)
    }

    fn functions<'s>(
        &'s self,
        unit: &'s Unit<'a>,
        view: &UnitView<'s, 'a>,
        quickly: bool,
    ) -> Result<&'s Functions<'a>, &'s DwarfError> {
        let slot = if quickly { &unit.functions } else { &unit.all_functions };
        slot.get_or_init(|| Functions::read(view.unit, quickly, &self.budget)).as_ref()
    }

    fn lines<'s>(&'s self, unit: &'s Unit<'a>) -> Result<&'s LineTable, &'s DwarfError> {
        unit.lines
            .get_or_init(|| LineTable::read(UnitRef::new(&self.dwarf, &unit.unit), &self.budget))
            .as_ref()
    }

    fn push_frames(
        &self,
        view: &UnitView<'_, 'a>,
        function: &Function<'a>,
        lines: &LineTable,
        row: Option<Row>,
        address: u64,
        out: &mut FrameSink,
    ) -> Result<(), DwarfError> {
        let mut place = row.map(FramePosition::from);
        let mut next = function.innermost(address);
        let mut depth = 0;
        while let Some(index) = next {
            let inlined = &function.inlined[index as usize];
            depth += 1;
            if depth > crate::MAX_INLINE_DEPTH {
                return Err(DwarfError::TooDeep);
            }
            self.push_frame(view, lines, inlined.origin, place, true, out)?;
            place = Some(FramePosition {
                file: inlined.call_file.map(u64::from),
                line: (inlined.call_line != 0).then_some(inlined.call_line),
                column: (inlined.call_column != 0).then_some(inlined.call_column),
                discriminator: None,
            });
            next = inlined.parent;
        }
        self.push_frame(view, lines, function.origin, place, false, out)
    }

    /// Emits all answers of a window of addresses, in order; each holds up to the next.
    fn emit_window(
        &mut self,
        begin: u64,
        end: u64,
        extra: &[u64],
        sink: &mut dyn SegmentSink,
    ) -> Result<(), DwarfError> {
        let mut cuts = Cuts::new(begin, end);
        cuts.insert(begin);
        extra.iter().for_each(|&cut| cuts.insert(cut));
        for unit in self.directory.overlapping(begin, end, &mut cuts) {
            self.boundaries(unit, begin, end, &mut cuts)?;
        }
        let names = std::mem::take(&mut self.index_build.names);
        let mut known = KnownScopes { names, ..KnownScopes::default() };
        cuts.iter().try_for_each(|address| self.emit(address, &mut known, sink))?;
        self.index_build.names = known.names;
        Ok(())
    }

    fn forget_before(&mut self, address: u64) {
        if self.index_build.ends.is_empty() {
            self.index_build.ends = self.directory.ends();
        }
        while let Some(&(end, unit)) = self.index_build.ends.get(self.index_build.forgotten)
            && end <= address
        {
            self.directory.forget(unit, &self.budget);
            self.index_build.forgotten += 1;
        }
    }

    fn boundaries(&self, unit: &Unit<'a>, begin: u64, end: u64, out: &mut Cuts) -> Result<(), DwarfError> {
        let view = self.view(unit);
        self.lines(unit).map_err(|problem| *problem)?.boundaries(begin, end, out);
        for quickly in [true, false] {
            let functions = self.functions(unit, &view, quickly).map_err(|problem| *problem)?;
            for range in functions.ranges.iter().filter(|range| range.begin < end && range.end > begin) {
                out.insert(range.begin);
                out.insert(range.end);
                let entry = &functions.entries[range.function as usize];
                let function = entry.function(view.unit, &self.budget).map_err(|problem| *problem)?;
                let pieces = &function.pieces;
                let pieces = &pieces[pieces.partition_point(|piece| piece.begin < begin)..];
                pieces.iter().take_while(|piece| piece.begin < end).for_each(|piece| out.insert(piece.begin));
            }
            if !functions.jumped {
                break;
            }
        }
        Ok(())
    }

    fn emit(
        &self,
        address: u64,
        known: &mut KnownScopes,
        sink: &mut dyn SegmentSink,
    ) -> Result<(), DwarfError> {
        for unit in self.directory.find(address) {
            let view = self.view(unit);
            let function = self.function_at(unit, &view, address)?;
            let lines = self.lines(unit).map_err(|problem| *problem)?;
            let row = lines.find(address);
            if function.is_none() && row.is_none() {
                continue;
            }
            let scope = match function {
                Some((key, function)) => {
                    let key = (unit.offset.0, key);
                    self.scope(address, &view, lines, key, function, known, sink)?
                }
                None => sink.root(address, None),
            };
            let place =
                self.emit_position(unit.offset.0, &view, lines, row.map(FramePosition::from), known, sink);
            sink.segment(address, Some((scope, place)));
            return Ok(());
        }
        sink.segment(address, None);
        Ok(())
    }

    /// Returns the scope of an address in a function, and emits it if it is new.
    #[allow(clippy::too_many_arguments, reason = "the receiver, the unit, and the cached scopes")]
    fn scope(
        &self,
        address: u64,
        view: &UnitView<'_, 'a>,
        lines: &LineTable,
        key: (usize, FunctionKey),
        function: &Function<'a>,
        known: &mut KnownScopes,
        sink: &mut dyn SegmentSink,
    ) -> Result<ScopeId, DwarfError> {
        known.enter_function(key, function.inlined.len());
        // Walk outward from the innermost call to the first known scope.
        let mut path = Vec::new();
        let mut next = function.innermost(address);
        let mut scope = UNNUMBERED;
        while let Some(index) = next {
            scope = known.scopes[index as usize + 1];
            if scope != UNNUMBERED {
                break;
            }
            path.push(index);
            if path.len() > crate::MAX_INLINE_DEPTH {
                return Err(DwarfError::TooDeep);
            }
            next = function.inlined[index as usize].parent;
        }
        if scope == UNNUMBERED {
            scope = known.scopes[0];
        }
        // A nameless function is named after its symbol, which can differ between its parts.
        let mut is_memorable = true;
        if scope == UNNUMBERED {
            let name = self.name(view, function.origin)?;
            scope = sink.root(address, name.as_deref().map(|name| (name, view.language)));
            is_memorable = name.is_some();
            if is_memorable {
                known.scopes[0] = scope;
            }
        }
        while let Some(index) = path.pop() {
            let inlined = &function.inlined[index as usize];
            let place = FramePosition {
                file: inlined.call_file.map(u64::from),
                line: (inlined.call_line != 0).then_some(inlined.call_line),
                column: (inlined.call_column != 0).then_some(inlined.call_column),
                discriminator: None,
            };
            let call = self.emit_position(key.0, view, lines, Some(place), known, sink);
            let name = self.emit_name(view, inlined.origin, known, sink)?;
            scope = sink.inlined(scope, name, call);
            if is_memorable {
                known.scopes[index as usize + 1] = scope;
            }
        }
        Ok(scope)
    }

    fn emit_name(
        &self,
        view: &UnitView<'_, 'a>,
        origin: Origin<'a>,
        known: &mut KnownScopes,
        sink: &mut dyn SegmentSink,
    ) -> Result<Option<u32>, DwarfError> {
        let place = self.name_key(view, origin);
        if let Some(&number) = place.and_then(|place| known.names.get(&place)) {
            return Ok(number);
        }
        let name = self.name(view, origin)?;
        let number = name.as_deref().map(|name| sink.name((name, view.language)));
        if let Some(place) = place {
            known.names.insert(place, number);
        }
        Ok(number)
    }

    fn emit_position(
        &self,
        unit: usize,
        view: &UnitView<'_, 'a>,
        lines: &LineTable,
        place: Option<FramePosition>,
        known: &mut KnownScopes,
        sink: &mut dyn SegmentSink,
    ) -> SourcePosition {
        let Some(place) = place else { return SourcePosition::default() };
        let file = place.file.and_then(|index| {
            known.file(unit, index, || lines.file(view.line_unit, index).map(|file| sink.file(file)))
        });
        SourcePosition { file, line: place.line, column: place.column, discriminator: place.discriminator }
    }

    fn push_frame(
        &self,
        view: &UnitView<'_, 'a>,
        lines: &LineTable,
        origin: Origin<'a>,
        place: Option<FramePosition>,
        inlined: bool,
        out: &mut FrameSink,
    ) -> Result<(), DwarfError> {
        let stored = self.name_key(view, origin);
        let name = out.name_at(stored, view.language, || self.name(view, origin))?;
        let file = place.and_then(|place| place.file).and_then(|index| {
            out.file_at(self.place_of_file(view, index), || lines.file(view.line_unit, index))
        });
        let frame = RawFrame {
            language: view.language,
            line: place.and_then(|place| place.line),
            column: place.and_then(|place| place.column),
            discriminator: place.and_then(|place| place.discriminator),
            inlined,
            ..RawFrame::default()
        };
        out.push_retained(frame, name, file);
        Ok(())
    }

    /// Returns a key for a name, so that equal keys mean equal names.
    ///
    /// A name stored at its function is keyed by its memory address, which is stable while this
    /// engine lives. `None` for names in split files, whose offsets are not unique.
    fn name_key(&self, view: &UnitView<'_, 'a>, origin: Origin<'a>) -> Option<TextKey> {
        let (kind, at) = match origin {
            Origin::Nowhere => return None,
            Origin::Written(name) => (TextKeyKind::Memory, name.slice().as_ptr() as usize),
            _ if view.is_split => return None,
            Origin::InUnit(offset) => (TextKeyKind::Info, view.offset.checked_add(offset.0)?),
            Origin::InFile(offset) => (TextKeyKind::Info, offset.0),
            Origin::InSupplement(offset) => (TextKeyKind::Supplement, offset.0),
        };
        let reader = (self.number << 8) | (view.language as u64) << 4 | kind as u64;
        Some(TextKey { reader, at: at as u64 })
    }

    fn place_of_file(&self, view: &UnitView<'_, 'a>, index: u64) -> Option<TextKey> {
        // Both fit for files below a terabyte with fewer than 16 million files per unit.
        let unit = u64::try_from(view.offset).ok().filter(|&unit| unit < 1 << 40)?;
        let at = (index < 1 << 24).then_some(unit << 24 | index)?;
        Some(TextKey { reader: (self.number << 8) | TextKeyKind::File as u64, at })
    }

    /// Follows references between entries to a name. A cycle ends without a name.
    fn name(&self, view: &UnitView<'_, 'a>, origin: Origin<'a>) -> Result<Option<Cow<'a, str>>, DwarfError> {
        let mut origin = origin;
        let mut unit = view.unit;
        let mut plain = None;
        for _ in 0..MAX_REFERENCES {
            let offset = match origin {
                Origin::Written(name) => return text(name).map(Some),
                Origin::Nowhere => break,
                Origin::InUnit(offset) => offset,
                Origin::InFile(_) | Origin::InSupplement(_) => {
                    let Some((dwarf, other, offset)) = self.other_unit(view, unit, origin) else { break };
                    unit = UnitRef::new(dwarf, &other.unit);
                    offset
                }
            };
            let found = step(unit, offset)?;
            plain = plain.or(found.plain);
            origin = found.origin;
        }
        plain.map(text).transpose()
    }

    /// Resolves a reference from an entry of `from` to another unit.
    fn other_unit(
        &self,
        view: &UnitView<'_, 'a>,
        from: UnitRef<'_, Reader<'a>>,
        origin: Origin<'a>,
    ) -> Option<(&Dwarf<'a>, &Unit<'a>, UnitOffset)> {
        let (offset, supplement) = match origin {
            Origin::InFile(offset) if !view.is_split => (offset, false),
            Origin::InSupplement(offset) => (offset, true),
            _ => return None,
        };
        let in_supplement = supplement || !std::ptr::eq(from.dwarf, &self.dwarf);
        let (directory, dwarf) = if in_supplement {
            (self.supplement.as_ref()?, self.dwarf.sup()?)
        } else {
            (&self.directory, &self.dwarf)
        };
        let other = directory.at_offset(offset)?;
        Some((dwarf, other, offset.to_unit_offset(&other.unit.header)?))
    }
}

/// The kind of number in a [`TextKey`].
#[derive(Clone, Copy)]
enum TextKeyKind {
    /// The address of a byte in memory.
    Memory,
    /// The offset of an entry in the file.
    Info,
    /// The offset of an entry in the supplement.
    Supplement,
    /// A unit, and a file in it.
    File,
}

/// Maximum references to follow; 16, because three occur in practice.
///
/// They lead from a call to its abstract function, to its declaration, through a partial unit.
const MAX_REFERENCES: usize = 16;

fn text(name: Reader<'_>) -> Result<Cow<'_, str>, DwarfError> {
    if name.len() > crate::MAX_NAME_BYTES {
        return Err(DwarfError::NameTooLong);
    }
    Ok(name.to_string_lossy())
}

/// A unit with its entries and its lines, which can be in different files.
struct UnitView<'s, 'a> {
    unit: UnitRef<'s, Reader<'a>>,
    line_unit: UnitRef<'s, Reader<'a>>,
    /// Offset of the unit in the file with the lines.
    offset: usize,
    language: Language,
    is_split: bool,
}

#[derive(Clone, Copy)]
struct FramePosition {
    file: Option<u64>,
    line: Option<u32>,
    column: Option<u32>,
    discriminator: Option<u32>,
}

impl From<Row> for FramePosition {
    fn from(row: Row) -> Self {
        let known = row.line != 0;
        Self {
            file: Some(u64::from(row.file)),
            line: known.then_some(row.line),
            column: known.then_some(row.column),
            discriminator: (known && row.discriminator != 0).then_some(row.discriminator),
        }
    }
}
