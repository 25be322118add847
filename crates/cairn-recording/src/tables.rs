//! The tables of a recording while they are read: modules, addresses, the stack tree, threads.
//!
//! The stack tree is as the recorder has it in memory, four bytes a frame:
//!
//! ```text
//! words:   | 0 | HEAD parent | pc | pc | pc | HEAD parent | pc | ...
//! ```
//!
//! A node's number is its index, its parent is the word before it, or behind a HEAD word the one
//! that this names. A parent has a smaller number always: words that say otherwise are left out, so
//! no walk outwards can run in a circle.
//!
//! Numbers come from strangers and are used as indices, so tables grow only to a multiple of what
//! was read.

use std::collections::BTreeMap;

use cairn_format::recording::{
    self, Clock, InterpreterState, LineTableFormat, LoadedModule, MAX_CODE_NAME_BYTES, PcKind, Record,
};
use cairn_format::{AbsoluteAddress, ModuleOffset};

use super::clock::TimeScale;
use super::generated::GeneratedCode;
use super::model::{Module, ModuleId, PcId, Place, StackFrame, StackId, Thread};
use crate::spool::lives::Lives;

/// Marks a word that begins a run and names its parent.
pub(crate) const HEAD: u32 = 1 << 31;

/// Entries that a table may have beyond those that were read.
const SLACK: usize = 1 << 20;
/// And how many times as many as were read.
const GAPS: usize = 16;

/// The stacks of a recording as a tree, with the places of their frames.
#[derive(Clone, Default, Debug)]
pub struct StackTree {
    words: Vec<u32>,
    pcs: Vec<Pc>,
    codes: BTreeMap<u32, Code>,
}

/// Code of an interpreter that is on stacks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Code {
    /// The source file, as the interpreter names it. A name from a stranger's file, not one to open
    /// unasked.
    pub file: Vec<u8>,
    /// The function, qualified where the interpreter knows that.
    pub name: Vec<u8>,
    /// The line that the line table begins with.
    pub first_line: u32,
    /// Encoding of the line table.
    pub format: LineTableFormat,
    /// The line table; shorter than it was where a part is missing in the file.
    pub line_table: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Pc {
    pub(crate) address: u64,
    pub(crate) module: u32,
    /// Number of the [`PcKind`]; [`NO_PC`] for numbers that were not read.
    kind: u32,
}

const NO_PC: Pc = Pc { address: 0, module: 0, kind: u32::MAX };

impl Pc {
    pub(crate) fn kind(self) -> Option<PcKind> {
        PcKind::from_number(self.kind)
    }
}

impl StackTree {
    /// One more than the largest number of a stack: the size of a table to keep beside.
    #[must_use]
    pub fn len(&self) -> usize {
        self.words.len().max(1)
    }

    /// True when no stack was recorded.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.words.len() <= 1
    }

    /// All stacks, by rising number: parents before children.
    pub fn ids(&self) -> impl Iterator<Item = StackId> + '_ {
        (1..self.words.len()).filter_map(|index| {
            let id = StackId(index as u32);
            self.pc(id).map(|_| id)
        })
    }

    /// The stack without its innermost frame, which has a smaller number. `None` for the empty
    /// stack, a lost one, and one whose outer frames are missing in the file.
    #[must_use]
    pub fn parent(&self, stack: StackId) -> Option<StackId> {
        let before = self.words.get(stack.index().checked_sub(1)?)?;
        self.pc(stack)?;
        match before {
            0 => None,
            before if before & HEAD != 0 => Some(StackId(before & !HEAD)),
            _ => Some(StackId(stack.0 - 1)),
        }
    }

    /// The innermost frame, as a number that is equal for equal frames.
    #[must_use]
    pub fn pc(&self, stack: StackId) -> Option<PcId> {
        self.words.get(stack.index()).filter(|&&word| word != 0 && word & HEAD == 0).map(|&word| PcId(word))
    }

    /// Counts the frames of a kind.
    #[must_use]
    pub fn count_of_kind(&self, kind: PcKind) -> usize {
        self.pcs.iter().filter(|pc| pc.kind == kind.number()).count()
    }

    /// One more than the largest number of a frame.
    #[must_use]
    pub fn pcs_len(&self) -> usize {
        self.pcs.len()
    }

    /// The frames of a stack, innermost first. The last one says where applicable why the stack was
    /// not followed further.
    pub fn pc_ids(&self, stack: StackId) -> impl Iterator<Item = PcId> + '_ {
        let mut next = Some(stack);
        std::iter::from_fn(move || {
            let stack = next?;
            let pc = self.pc(stack)?;
            // Smaller each time, so this ends.
            next = self.parent(stack);
            Some(pc)
        })
    }

    /// Code of an interpreter, by its number.
    ///
    /// That is the upper half of the address of a frame of the kind [`PcKind::Interpreted`].
    #[must_use]
    pub fn code(&self, number: u32) -> Option<&Code> {
        self.codes.get(&number)
    }

    /// All code of interpreters, by number.
    pub fn codes(&self) -> impl Iterator<Item = (u32, &Code)> {
        self.codes.iter().map(|(&number, code)| (number, code))
    }

    pub(crate) fn word(&self, index: usize) -> Option<u32> {
        self.words.get(index).copied()
    }

    pub(crate) fn raw_pc(&self, number: u32) -> Option<Pc> {
        self.pcs.get(number as usize).copied().filter(|pc| pc.kind != u32::MAX)
    }
}

/// All tables of a recording.
#[derive(Clone, Default, Debug)]
pub(crate) struct Tables {
    pub(crate) stacks: StackTree,
    pub(crate) modules: Vec<Module>,
    pub(crate) threads: Vec<Thread>,
    pub(crate) interpreters: Vec<Interpreter>,
    pub(crate) generated: GeneratedCode,
}

/// An interpreter in the process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Interpreter {
    /// Its version, as CPython's `PY_VERSION_HEX`; 0 when it is not known.
    pub version: u32,
    /// Number of the [`InterpreterState`].
    state: u32,
}

impl Interpreter {
    pub(crate) const fn new(version: u32, state: InterpreterState) -> Self {
        Self { version, state: state.number() }
    }

    /// Whether its frames are recorded.
    #[must_use]
    pub fn state(self) -> InterpreterState {
        InterpreterState::from_number(self.state).unwrap_or(InterpreterState::UnknownVersion)
    }

    /// Whether all of its objects are recorded.
    ///
    /// Its allocators can be replaced from 3.5 on, and are on x86-64.
    #[must_use]
    pub fn has_all_objects(self) -> bool {
        self.version >= 0x0305_0000 && self.state() != InterpreterState::OtherProcessor
    }

    /// The version as people write it; `None` when it is not known.
    #[must_use]
    pub fn version_text(self) -> Option<String> {
        let part = |shift: u32| self.version >> shift & 0xff;
        (self.version != 0).then(|| format!("{}.{}.{}", part(24), part(16), part(8)))
    }
}

impl Tables {
    pub(crate) fn module(&self, id: ModuleId) -> Option<&Module> {
        let index = self.modules.binary_search_by_key(&id, |module| module.id).ok()?;
        self.modules.get(index)
    }

    /// Adds what another part of the same recording knows.
    pub(crate) fn absorb(&mut self, other: Self) {
        let (own, more) = (&mut self.stacks, other.stacks);
        own.pcs.resize(own.pcs.len().max(more.pcs.len()), NO_PC);
        for (place, pc) in own.pcs.iter_mut().zip(more.pcs) {
            if place.kind == NO_PC.kind {
                *place = pc;
            }
        }
        own.words.resize(own.words.len().max(more.words.len()), 0);
        for (place, word) in own.words.iter_mut().zip(more.words) {
            if *place == 0 {
                *place = word;
            }
        }
        for (number, code) in more.codes {
            own.codes.entry(number).or_insert(code);
        }
        self.interpreters.extend(other.interpreters);
        self.interpreters.sort_unstable();
        self.interpreters.dedup();
        for module in other.modules {
            match self.modules.binary_search_by_key(&module.id, |known| known.id) {
                Ok(index) => {
                    if let Some(known) = self.modules.get_mut(index) {
                        known.unloaded_nanos = known.unloaded_nanos.or(module.unloaded_nanos);
                    }
                }
                Err(index) => self.modules.insert(index, module),
            }
        }
        for thread in other.threads {
            match self.threads.binary_search_by_key(&thread.id, |known| known.id) {
                Ok(index) => {
                    if let Some(known) = self.threads.get_mut(index) {
                        known.ended_nanos = known.ended_nanos.or(thread.ended_nanos);
                        known.add_names(thread);
                    }
                }
                Err(index) => self.threads.insert(index, thread),
            }
        }
    }

    pub(crate) fn frame(&self, pc: PcId) -> Option<StackFrame> {
        let entry = self.stacks.raw_pc(pc.0)?;
        let address = AbsoluteAddress::new(entry.address);
        let place = match self.module(ModuleId(entry.module)) {
            // A module's end is the address that its last call returns to, so it counts as inside.
            Some(module) if module.start <= address && address <= module.end => {
                Place::Module(module.id, ModuleOffset::new(entry.address - module.start.value()))
            }
            _ => Place::Absolute(address),
        };
        Some(StackFrame { kind: entry.kind()?, place, address })
    }
}

/// Collects the tables from records in any order.
#[derive(Clone, Default, Debug)]
pub(crate) struct TableBuilder {
    stacks: StackTree,
    words_read: usize,
    pcs_read: usize,
    modules: BTreeMap<u32, RawModule>,
    pub(crate) threads: Lives,
    pub(crate) clocks: Vec<Clock>,
    interpreters: Vec<Interpreter>,
    pub(crate) generated: GeneratedCode,
    /// Where the chunk that is being taken begins.
    pub(crate) place: u64,
    pub(crate) bad_rows: u64,
    rows_of_code: usize,
}

/// Interpreters that are read from one recording; 64, so that a damaged file takes no memory.
const MOST_INTERPRETERS: usize = 64;
/// A longer line table is no program's: the recorder cuts it at 1 MiB.
const MOST_LINE_TABLE_BYTES: usize = 1 << 20;

#[derive(Clone, Debug)]
pub(crate) struct RawModule {
    pub(crate) loaded: u64,
    pub(crate) unloaded: Option<u64>,
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) bias: u64,
    pub(crate) build_id: Vec<u8>,
    pub(crate) path: Vec<u8>,
}

impl TableBuilder {
    /// Takes what is for the tables, but what is said of threads, which depends on the lane.
    #[inline]
    pub(crate) fn record(&mut self, record: &Record<'_>) {
        match record {
            Record::Alloc { .. } | Record::Free { .. } | Record::Move { .. } | Record::Stamp { .. } => {}
            other => self.rare_record(other),
        }
    }

    fn rare_record(&mut self, record: &Record<'_>) {
        match *record {
            Record::Pc { number, kind, address, module } => self.pc(number, kind, address, module),
            Record::TreeWords { first, words } => self.words(first, words),
            Record::ModuleLoaded(module) => self.module_loaded(&module),
            Record::ModuleUnloaded { number, counter } => self.module_unloaded(number, counter),
            Record::Clock(clock) => self.clocks.push(clock),
            Record::Code(code) => self.code(&code),
            Record::CodeLines { code, offset, bytes } => self.code_lines(code, offset, bytes),
            Record::Interpreter { version, state } => self.interpreter(version, state),
            _ => {}
        }
    }

    pub(crate) fn pc(&mut self, number: u32, kind: PcKind, address: u64, module: u32) {
        self.pcs_read += 1;
        let index = number as usize;
        if index == 0 || number & HEAD != 0 || index > self.pcs_read * GAPS + SLACK {
            self.bad_rows += 1;
            return;
        }
        if self.stacks.pcs.len() <= index {
            self.stacks.pcs.resize(index + 1, NO_PC);
        }
        if let Some(place) = self.stacks.pcs.get_mut(index) {
            *place = Pc { address, module, kind: kind.number() };
        }
        if module == 0 && self.place > 0 {
            self.generated.note_seen(number, self.place);
        }
    }

    pub(crate) fn code(&mut self, code: &recording::Code<'_>) {
        self.rows_of_code += 1;
        let is_cut = |name: &[u8]| name.len() > MAX_CODE_NAME_BYTES;
        if code.number == 0 || is_cut(code.file) || is_cut(code.name) {
            self.bad_rows += 1;
            return;
        }
        // Its line table may have been in front, in a segment of another thread.
        let known = self.stacks.codes.remove(&code.number);
        let line_table = known.map(|known| known.line_table).unwrap_or_default();
        let read = Code {
            file: code.file.to_vec(),
            name: code.name.to_vec(),
            first_line: code.first_line,
            format: code.format,
            line_table,
        };
        self.stacks.codes.insert(code.number, read);
    }

    pub(crate) fn code_lines(&mut self, code: u32, offset: u32, bytes: &[u8]) {
        self.rows_of_code += 1;
        let code = self.stacks.codes.entry(code).or_insert_with(|| Code {
            file: Vec::new(),
            name: Vec::new(),
            first_line: 0,
            format: LineTableFormat::Python311,
            line_table: Vec::new(),
        });
        let (start, end) = (offset as usize, (offset as usize).saturating_add(bytes.len()));
        // One thread writes the parts of a table in order: a gap is damage, and all behind it is
        // left out. A part may come twice.
        if start > code.line_table.len() || end > MOST_LINE_TABLE_BYTES {
            self.bad_rows += 1;
        } else if end > code.line_table.len() {
            code.line_table.truncate(start);
            code.line_table.extend_from_slice(bytes);
        }
    }

    pub(crate) fn interpreter(&mut self, version: u32, state: InterpreterState) {
        self.rows_of_code += 1;
        let found = Interpreter::new(version, state);
        if !self.interpreters.contains(&found) && self.interpreters.len() < MOST_INTERPRETERS {
            self.interpreters.push(found);
        }
    }

    pub(crate) fn words(&mut self, first: u32, words: impl ExactSizeIterator<Item = u32>) {
        self.words_read += words.len();
        let (start, count) = (first as usize, words.len());
        if start == 0 || start + count > self.words_read * GAPS + SLACK || start + count > HEAD as usize {
            self.bad_rows += 1;
            return;
        }
        let table = &mut self.stacks.words;
        if table.len() < start + count {
            table.resize(start + count, 0);
        }
        for (index, word) in (start..).zip(words) {
            // The one rule that makes the tree a tree: a parent comes before its child.
            let is_bad = word & HEAD != 0 && (word & !HEAD) as usize >= index;
            self.bad_rows += u64::from(is_bad);
            if let Some(place) = table.get_mut(index) {
                *place = if is_bad { 0 } else { word };
            }
        }
    }

    pub(crate) fn module_loaded(&mut self, module: &LoadedModule<'_>) {
        let unloaded = self.modules.get(&module.number).and_then(|known| known.unloaded);
        let module_is_sane = module.number != 0 && module.start <= module.end;
        if !module_is_sane {
            self.bad_rows += 1;
            return;
        }
        self.modules.insert(
            module.number,
            RawModule {
                loaded: module.counter,
                unloaded,
                start: module.start,
                end: module.end,
                bias: module.bias,
                build_id: module.build_id.to_vec(),
                path: module.path.to_vec(),
            },
        );
    }

    pub(crate) fn module_unloaded(&mut self, number: u32, counter: u64) {
        match self.modules.get_mut(&number) {
            Some(module) => module.unloaded = Some(counter),
            // In another thread's segment, which is read later: the row is completed then.
            None => {
                self.unloaded_early(number, counter);
            }
        }
    }

    fn unloaded_early(&mut self, number: u32, counter: u64) {
        let empty = RawModule {
            loaded: 0,
            unloaded: Some(counter),
            start: 0,
            end: 0,
            bias: 0,
            build_id: Vec::new(),
            path: Vec::new(),
        };
        self.modules.insert(number, empty);
    }

    /// Changes with every row of modules, addresses and stacks, and with every piece of names.
    pub(crate) fn version(&self) -> (usize, usize, usize) {
        let others = self.rows_of_code + self.generated.pieces().len();
        (self.modules.len() + others, self.pcs_read, self.words_read)
    }

    pub(crate) fn raw_modules(&self) -> &BTreeMap<u32, RawModule> {
        &self.modules
    }

    /// Takes back the stacks that [`take_tables`](Self::take_tables) gave, to add to them.
    pub(crate) fn give_stacks(&mut self, tables: &mut Tables) {
        self.stacks = std::mem::take(&mut tables.stacks);
    }

    /// As [`finish`](Self::finish), without a copy of the stacks.
    pub(crate) fn take_tables(&mut self, scale: &TimeScale) -> Tables {
        let stacks = std::mem::take(&mut self.stacks);
        Tables { stacks, ..self.finish(scale) }
    }

    /// The tables, with the times of this scale.
    pub(crate) fn finish(&self, scale: &TimeScale) -> Tables {
        let is_whole = |(_, module): &(&u32, &RawModule)| module.end != 0 || !module.path.is_empty();
        let modules = self.modules.iter().filter(is_whole).map(|(&number, module)| Module {
            id: ModuleId(number),
            path: module.path.clone(),
            build_id: module.build_id.clone(),
            start: AbsoluteAddress::new(module.start),
            end: AbsoluteAddress::new(module.end),
            bias: module.bias,
            loaded_nanos: scale.nanos(module.loaded),
            unloaded_nanos: module.unloaded.map(|counter| scale.nanos(counter)),
        });
        let threads = self.threads.threads(scale);
        Tables {
            stacks: self.stacks.clone(),
            modules: modules.collect(),
            threads,
            interpreters: self.interpreters.clone(),
            generated: self.generated.clone(),
        }
    }
}
