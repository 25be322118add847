//! From an address to frames, over the units of one file.

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
use super::lines::{Lines, Row};
use super::split::{FindSplit, Splits};
use super::units::{Budget, Directory, Dwarf, Problem, Reader, Unit};
use crate::elf::debug_object::DebugObject;
use crate::source::{ByPlace, FrameSink, Language, RawFrame, TextPlace};

/// The files whose debug information belongs together.
pub(crate) struct DebugFiles {
    pub(crate) main: DebugObject,
    /// What several files share, cut out by dwz.
    pub(crate) supplement: Option<DebugObject>,
    /// All split files in one.
    pub(crate) package: Option<DebugObject>,
    pub(crate) find_split: Arc<FindSplit>,
}

/// What the debug information of some files answers.
pub(crate) struct Engine(EngineCell);

struct Owner {
    files: Arc<DebugFiles>,
    /// One for each unit.
    split_files: Vec<OnceLock<Option<DebugObject>>>,
}

self_cell!(
    struct EngineCell {
        owner: Owner,
        #[not_covariant]
        dependent: Reading,
    }
);

/// Everything that is read of the files so far.
pub(super) struct Reading<'a> {
    dwarf: Dwarf<'a>,
    directory: Directory<'a>,
    supplement: Option<Directory<'a>>,
    splits: Splits<'a>,
    budget: Budget,
    /// Of all readers that there were in this process.
    number: u64,
    /// All variables, once one was asked for.
    variables: OnceLock<Vec<Variable>>,
    /// What is told to whoever makes an index.
    telling: Telling,
}

/// What was told so far.
#[derive(Default)]
struct Telling {
    /// The numbers that names of inlined functions were given, by where they are stored.
    names: ByPlace<Option<u32>>,
    /// Units by the end of their code, and how many of them are forgotten.
    ends: Vec<(u64, u32)>,
    forgotten: usize,
}

impl Engine {
    /// Reads the directory of units.
    pub(crate) fn new(files: Arc<DebugFiles>) -> Result<Self, Problem> {
        files.main.inflate_all();
        let units = count_units(&files.main);
        let split_files = std::iter::repeat_with(OnceLock::new).take(units).collect();
        EngineCell::try_new(Owner { files, split_files }, |owner| Reading::new(owner)).map(Self)
    }

    /// Tells all answers from `begin` up to `end`; they may also change at the addresses `extra`.
    pub(crate) fn tell_window(
        &mut self,
        begin: u64,
        end: u64,
        extra: &[u64],
        told: &mut dyn Told,
    ) -> Result<(), Problem> {
        self.0.with_dependent_mut(|_, reading| reading.tell_window(begin, end, extra, told))
    }

    /// Drops what was read of units all of whose code lies before an address, for one who asks in order. It is read anew should
    /// it be asked for again.
    pub(crate) fn forget_before(&mut self, address: u64) {
        self.0.with_dependent_mut(|_, reading| reading.forget_before(address));
    }

    /// True when a unit refers to a split file that was not found.
    pub(crate) fn misses_split_files(&self) -> bool {
        self.0.with_dependent(|_, reading| reading.splits.is_missing_some())
    }

    /// How much was read that stays in memory.
    pub(crate) fn kept_bytes(&self) -> u64 {
        self.0.with_dependent(|_, reading| reading.budget.kept_bytes())
    }

    /// Pushes the frames of an address; nothing when nothing is known of it.
    pub(crate) fn frames_at(&self, address: u64, out: &mut FrameSink) -> Result<(), Problem> {
        self.0.with_dependent(|_, reading| reading.frames_at(address, out))
    }

    /// Where the function of each frame of an address is declared.
    pub(crate) fn declarations_at(&self, address: u64) -> Result<Vec<Declared>, Problem> {
        self.0.with_dependent(|_, reading| reading.declarations(address))
    }

    /// Where the variable that begins at an address is declared.
    pub(crate) fn variable_at(&self, address: u64) -> Result<Option<Declared>, Problem> {
        self.0.with_dependent(|_, reading| reading.variable(address))
    }
}

/// Takes in every answer that the debug information of a window of addresses has.
pub(crate) trait Told {
    /// A function, by its name, or by the address when it has none.
    fn root(&mut self, address: u64, name: Option<(&str, Language)>) -> ScopeId;
    /// A call inlined into a scope, and the place of the call.
    fn inlined(&mut self, into: ScopeId, name: Option<u32>, call: ToldPlace) -> ScopeId;
    /// The name of an inlined function.
    fn name(&mut self, name: (&str, Language)) -> u32;
    /// A source file.
    fn file(&mut self, path: &str) -> u32;
    /// What is known from this address on.
    fn segment(&mut self, address: u64, known: Option<(ScopeId, ToldPlace)>);
}

/// A function, or a call inlined into it, as the one who is told numbers them.
pub(crate) type ScopeId = u32;

/// A place in the sources, with the file as the one who is told numbers them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct ToldPlace {
    pub(crate) file: Option<u32>,
    pub(crate) line: Option<u32>,
    pub(crate) column: Option<u32>,
    /// Never zero.
    pub(crate) discriminator: Option<u32>,
}

/// Whether it was found quickly, and which one it is.
type FunctionKey = (bool, u32);

/// What was told in this window. Addresses come in order, so the function and the unit are mostly those of the address
/// before; only when they change, a table is asked.
#[derive(Default)]
struct KnownScopes {
    function: (usize, FunctionKey),
    /// Of that function: its own scope, then that of each inlined call, or [`UNTOLD`].
    scopes: Vec<ScopeId>,
    other_functions: HashMap<(usize, FunctionKey), Vec<ScopeId>>,
    unit: usize,
    /// Of that unit: the number that each file was given, [`NO_FILE`], or [`UNTOLD`].
    files: Vec<u32>,
    other_units: HashMap<usize, Vec<u32>>,
    /// Of all windows: the number that each name was given.
    names: ByPlace<Option<u32>>,
}

const UNTOLD: u32 = u32::MAX;

const NO_FILE: u32 = u32::MAX - 1;

impl KnownScopes {
    fn enter_function(&mut self, function: (usize, FunctionKey), inlined: usize) {
        if self.function != function {
            let scopes = self.other_functions.remove(&function).unwrap_or_default();
            let left = std::mem::replace(&mut self.scopes, scopes);
            self.other_functions.insert(std::mem::replace(&mut self.function, function), left);
        }
        self.scopes.resize(inlined + 1, UNTOLD);
    }

    /// The number of a file of a unit; `tell` gives one to a file that has none.
    fn file(&mut self, unit: usize, index: u64, tell: impl FnOnce() -> Option<u32>) -> Option<u32> {
        if self.unit != unit {
            let files = self.other_units.remove(&unit).unwrap_or_default();
            let left = std::mem::replace(&mut self.files, files);
            self.other_units.insert(std::mem::replace(&mut self.unit, unit), left);
        }
        let index = usize::try_from(index).ok().filter(|&index| index < MAX_NUMBERED_FILES)?;
        if index >= self.files.len() {
            self.files.resize(index + 1, UNTOLD);
        }
        let number = &mut self.files[index];
        if *number == UNTOLD {
            *number = tell().unwrap_or(NO_FILE);
        }
        (*number != NO_FILE).then_some(*number)
    }
}

/// Far more files than a unit has; a number beyond it is that of no file.
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

impl<'a> Reading<'a> {
    fn new(owner: &'a Owner) -> Result<Self, Problem> {
        let files = &*owner.files;
        let mut dwarf = Dwarf::load(|id| Ok::<_, Problem>(files.main.needed(id)))?;
        let mut bytes =
            (files.main.bytes().len() as u64).saturating_add(files.main.section_bytes(SectionId::DebugInfo));
        if let Some(supplement) = &files.supplement {
            dwarf.load_sup(|id| Ok::<_, Problem>(supplement.needed(id)))?;
            bytes = bytes.saturating_add(supplement.bytes().len() as u64);
        }
        dwarf.populate_abbreviations_cache(gimli::AbbreviationsCacheStrategy::Duplicates);
        let budget = Budget::new(bytes);
        let directory = Directory::read(&dwarf, &budget)?;
        let supplement = dwarf.sup().map(|sup| Directory::read(sup, &budget)).transpose()?;
        let splits = Splits::new(files.package.as_ref(), &owner.split_files, &*files.find_split);
        static READERS: AtomicU64 = AtomicU64::new(0);
        let number = READERS.fetch_add(1, Ordering::Relaxed);
        let (variables, telling) = (OnceLock::new(), Telling::default());
        Ok(Self { dwarf, directory, supplement, splits, budget, number, variables, telling })
    }

    fn frames_at(&self, address: u64, out: &mut FrameSink) -> Result<(), Problem> {
        for unit in self.directory.find(address) {
            let view = self.view(unit);
            let function = self.function_at(unit, &view, address)?.map(|(_, function)| function);
            let lines = self.lines(unit).map_err(|problem| *problem)?;
            let row = lines.find(address);
            match function {
                Some(function) => return self.push_frames(&view, function, lines, row, address, out),
                None if row.is_some() => {
                    return self.push_frame(&view, lines, Origin::Nowhere, row.map(Place::from), false, out);
                }
                None => {}
            }
        }
        Ok(())
    }

    /// Where the unit's entries are: in this file or in a split one.
    fn view<'s>(&'s self, unit: &'s Unit<'a>) -> View<'s, 'a> {
        let line_unit = UnitRef::new(&self.dwarf, &unit.unit);
        if unit.unit.dwo_id.is_some() {
            let index = self.directory.units.partition_point(|other| other.offset.0 < unit.offset.0);
            let split = unit.split.get_or_init(|| self.splits.load(&self.dwarf, unit, index));
            if let Some(split) = split {
                return View {
                    unit: UnitRef::new(&split.dwarf, &split.unit),
                    line_unit,
                    offset: unit.offset.0,
                    language: split.language,
                    is_split: true,
                };
            }
        }
        View { unit: line_unit, line_unit, offset: unit.offset.0, language: unit.language, is_split: false }
    }

    fn function_at<'s>(
        &'s self,
        unit: &'s Unit<'a>,
        view: &View<'s, 'a>,
        address: u64,
    ) -> Result<Option<(FunctionKey, &'s Function<'a>)>, Problem> {
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
        view: &View<'s, 'a>,
        quickly: bool,
    ) -> Result<&'s Functions<'a>, &'s Problem> {
        let slot = if quickly { &unit.functions } else { &unit.all_functions };
        slot.get_or_init(|| Functions::read(view.unit, quickly, &self.budget)).as_ref()
    }

    fn lines<'s>(&'s self, unit: &'s Unit<'a>) -> Result<&'s Lines, &'s Problem> {
        unit.lines.get_or_init(|| Lines::read(UnitRef::new(&self.dwarf, &unit.unit), &self.budget)).as_ref()
    }

    fn push_frames(
        &self,
        view: &View<'_, 'a>,
        function: &Function<'a>,
        lines: &Lines,
        row: Option<Row>,
        address: u64,
        out: &mut FrameSink,
    ) -> Result<(), Problem> {
        let mut place = row.map(Place::from);
        let mut next = function.innermost(address);
        let mut depth = 0;
        while let Some(index) = next {
            let inlined = &function.inlined[index as usize];
            depth += 1;
            if depth > crate::MAX_INLINE_DEPTH {
                return Err(Problem::TooDeep);
            }
            self.push_frame(view, lines, inlined.origin, place, true, out)?;
            place = Some(Place {
                file: inlined.call_file.map(u64::from),
                line: (inlined.call_line != 0).then_some(inlined.call_line),
                column: (inlined.call_column != 0).then_some(inlined.call_column),
                discriminator: None,
            });
            next = inlined.parent;
        }
        self.push_frame(view, lines, function.origin, place, false, out)
    }

    /// Tells all answers of a window of addresses, in order: each one counts up to the next.
    fn tell_window(
        &mut self,
        begin: u64,
        end: u64,
        extra: &[u64],
        told: &mut dyn Told,
    ) -> Result<(), Problem> {
        let mut cuts = Cuts::new(begin, end);
        cuts.insert(begin);
        extra.iter().for_each(|&cut| cuts.insert(cut));
        for unit in self.directory.overlapping(begin, end, &mut cuts) {
            self.boundaries(unit, begin, end, &mut cuts)?;
        }
        let names = std::mem::take(&mut self.telling.names);
        let mut known = KnownScopes { names, ..KnownScopes::default() };
        cuts.iter().try_for_each(|address| self.tell(address, &mut known, told))?;
        self.telling.names = known.names;
        Ok(())
    }

    fn forget_before(&mut self, address: u64) {
        if self.telling.ends.is_empty() {
            self.telling.ends = self.directory.ends();
        }
        while let Some(&(end, unit)) = self.telling.ends.get(self.telling.forgotten)
            && end <= address
        {
            self.directory.forget(unit, &self.budget);
            self.telling.forgotten += 1;
        }
    }

    fn boundaries(&self, unit: &Unit<'a>, begin: u64, end: u64, out: &mut Cuts) -> Result<(), Problem> {
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

    fn tell(&self, address: u64, known: &mut KnownScopes, told: &mut dyn Told) -> Result<(), Problem> {
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
                    self.scope(address, &view, lines, key, function, known, told)?
                }
                None => told.root(address, None),
            };
            let place = self.told_place(unit.offset.0, &view, lines, row.map(Place::from), known, told);
            told.segment(address, Some((scope, place)));
            return Ok(());
        }
        told.segment(address, None);
        Ok(())
    }

    /// The scope of an address in a function, made and told of when it is new.
    #[allow(
        clippy::too_many_arguments,
        reason = "what is told, where it is read, and what is known of it already"
    )]
    fn scope(
        &self,
        address: u64,
        view: &View<'_, 'a>,
        lines: &Lines,
        key: (usize, FunctionKey),
        function: &Function<'a>,
        known: &mut KnownScopes,
        told: &mut dyn Told,
    ) -> Result<ScopeId, Problem> {
        known.enter_function(key, function.inlined.len());
        // From the innermost call out to the first scope that is known.
        let mut path = Vec::new();
        let mut next = function.innermost(address);
        let mut scope = UNTOLD;
        while let Some(index) = next {
            scope = known.scopes[index as usize + 1];
            if scope != UNTOLD {
                break;
            }
            path.push(index);
            if path.len() > crate::MAX_INLINE_DEPTH {
                return Err(Problem::TooDeep);
            }
            next = function.inlined[index as usize].parent;
        }
        if scope == UNTOLD {
            scope = known.scopes[0];
        }
        // A function without a name is called as the symbol at the address, which can differ from piece to piece.
        let mut is_memorable = true;
        if scope == UNTOLD {
            let name = self.name(view, function.origin)?;
            scope = told.root(address, name.as_deref().map(|name| (name, view.language)));
            is_memorable = name.is_some();
            if is_memorable {
                known.scopes[0] = scope;
            }
        }
        while let Some(index) = path.pop() {
            let inlined = &function.inlined[index as usize];
            let place = Place {
                file: inlined.call_file.map(u64::from),
                line: (inlined.call_line != 0).then_some(inlined.call_line),
                column: (inlined.call_column != 0).then_some(inlined.call_column),
                discriminator: None,
            };
            let call = self.told_place(key.0, view, lines, Some(place), known, told);
            let name = self.told_name(view, inlined.origin, known, told)?;
            scope = told.inlined(scope, name, call);
            if is_memorable {
                known.scopes[index as usize + 1] = scope;
            }
        }
        Ok(scope)
    }

    fn told_name(
        &self,
        view: &View<'_, 'a>,
        origin: Origin<'a>,
        known: &mut KnownScopes,
        told: &mut dyn Told,
    ) -> Result<Option<u32>, Problem> {
        let place = self.place_of_name(view, origin);
        if let Some(&number) = place.and_then(|place| known.names.get(&place)) {
            return Ok(number);
        }
        let name = self.name(view, origin)?;
        let number = name.as_deref().map(|name| told.name((name, view.language)));
        if let Some(place) = place {
            known.names.insert(place, number);
        }
        Ok(number)
    }

    fn told_place(
        &self,
        unit: usize,
        view: &View<'_, 'a>,
        lines: &Lines,
        place: Option<Place>,
        known: &mut KnownScopes,
        told: &mut dyn Told,
    ) -> ToldPlace {
        let Some(place) = place else { return ToldPlace::default() };
        let file = place.file.and_then(|index| {
            known.file(unit, index, || lines.file(view.line_unit, index).map(|file| told.file(file)))
        });
        ToldPlace { file, line: place.line, column: place.column, discriminator: place.discriminator }
    }

    fn push_frame(
        &self,
        view: &View<'_, 'a>,
        lines: &Lines,
        origin: Origin<'a>,
        place: Option<Place>,
        inlined: bool,
        out: &mut FrameSink,
    ) -> Result<(), Problem> {
        let stored = self.place_of_name(view, origin);
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
        out.push_kept(frame, name, file);
        Ok(())
    }

    /// What is the same whenever the name is. A name that is written at its function is found by where it lies in memory, as this
    /// reader keeps its sections until it goes away. `None` for those of split files, which have offsets of their own.
    fn place_of_name(&self, view: &View<'_, 'a>, origin: Origin<'a>) -> Option<TextPlace> {
        let (kind, at) = match origin {
            Origin::Nowhere => return None,
            Origin::Written(name) => (PlaceKind::Memory, name.slice().as_ptr() as usize),
            _ if view.is_split => return None,
            Origin::InUnit(offset) => (PlaceKind::Info, view.offset.checked_add(offset.0)?),
            Origin::InFile(offset) => (PlaceKind::Info, offset.0),
            Origin::InSupplement(offset) => (PlaceKind::Supplement, offset.0),
        };
        let reader = (self.number << 8) | (view.language as u64) << 4 | kind as u64;
        Some(TextPlace { reader, at: at as u64 })
    }

    fn place_of_file(&self, view: &View<'_, 'a>, index: u64) -> Option<TextPlace> {
        // Both fit for every file that is smaller than a terabyte, and lists fewer than 16 million.
        let unit = u64::try_from(view.offset).ok().filter(|&unit| unit < 1 << 40)?;
        let at = (index < 1 << 24).then_some(unit << 24 | index)?;
        Some(TextPlace { reader: (self.number << 8) | PlaceKind::File as u64, at })
    }

    /// Follows references between entries to a name. A ring of references ends as no name.
    fn name(&self, view: &View<'_, 'a>, origin: Origin<'a>) -> Result<Option<Cow<'a, str>>, Problem> {
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

    /// Where a reference leads that an entry of `from` makes to another unit.
    fn other_unit(
        &self,
        view: &View<'_, 'a>,
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

/// What kind of number a [`TextPlace`] has.
#[derive(Clone, Copy)]
enum PlaceKind {
    /// Of a byte in memory.
    Memory,
    /// Of an entry in the file.
    Info,
    /// Of an entry in what several files share.
    Supplement,
    /// Of a unit, and a file in it.
    File,
}

/// From a call to the abstract function, to its declaration, perhaps through a partial unit: three in practice.
const MAX_REFERENCES: usize = 16;

fn text(name: Reader<'_>) -> Result<Cow<'_, str>, Problem> {
    if name.len() > crate::MAX_NAME_BYTES {
        return Err(Problem::NameTooLong);
    }
    Ok(name.to_string_lossy())
}

/// A unit as it is read: entries and lines can be in different files.
struct View<'s, 'a> {
    unit: UnitRef<'s, Reader<'a>>,
    line_unit: UnitRef<'s, Reader<'a>>,
    /// Of the unit in the file with the lines.
    offset: usize,
    language: Language,
    is_split: bool,
}

#[derive(Clone, Copy)]
struct Place {
    file: Option<u64>,
    line: Option<u32>,
    column: Option<u32>,
    discriminator: Option<u32>,
}

impl From<Row> for Place {
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
