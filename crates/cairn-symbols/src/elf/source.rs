//! The symbols of an ELF file: debug information first, then symbol tables, then where functions begin.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use cairn_format::{StatedAddress, WordSize};
use gimli::SectionId;
use object::{Object, ObjectSegment, SegmentFlags};

use crate::demangle::demangle;
use crate::dwarf::{DebugFiles, Declared, Engine, Problem};
use crate::elf::data_symbols::DataSymbols;
use crate::elf::debug_object::DebugObject;
use crate::elf::mini_debug;
use crate::elf::symbol_table::SymbolTable;
use crate::elf::unwind_starts::UnwindStarts;
use crate::index::{Answer, Cache, Identity, Index};
use crate::source::{FrameSink, Language, SymbolSource};
use crate::{DataSymbol, Declaration, Unknown};

/// The files of one module, and what was read of them.
pub(crate) struct ElfSource {
    /// The file that was mapped, when it is here and is not the one with the debug information.
    program: Option<DebugObject>,
    debug: Arc<DebugFiles>,
    layout: Layout,
    engine: RwLock<Option<Arc<Engine>>>,
    index: Option<Index>,
    /// True when an index was tried for in vain lately.
    cannot_index: bool,
    /// The user's limit of what may be unpacked.
    max_unpacked_bytes: Option<u64>,
    /// Why there is no engine.
    broken: OnceLock<Problem>,
    symbols: OnceLock<SymbolTable>,
    data_symbols: OnceLock<DataSymbols>,
    starts: OnceLock<UnwindStarts>,
}

/// What the program headers say.
#[derive(Debug)]
struct Layout {
    base: StatedAddress,
    word_size: WordSize,
    /// First and last address of what is executable, sorted; empty for a file that is not linked.
    code: Vec<(u64, u64)>,
}

impl ElfSource {
    /// `program` is the mapped file, unless that is `debug.main` itself.
    pub(crate) fn new(program: Option<DebugObject>, debug: DebugFiles) -> Result<Self, Unknown> {
        let main = program.as_ref().unwrap_or(&debug.main);
        let object = main.object().map_err(|error| unreadable(main.path(), &error))?;
        let layout = Layout::of(&object);
        Ok(Self {
            layout,
            program,
            debug: Arc::new(debug),
            engine: RwLock::default(),
            broken: OnceLock::new(),
            index: None,
            cannot_index: false,
            max_unpacked_bytes: None,
            symbols: OnceLock::new(),
            data_symbols: OnceLock::new(),
            starts: OnceLock::new(),
        })
    }

    /// True when an index is worth its disk: the debug information takes longer to read than to look for.
    fn is_worth_indexing(&self) -> bool {
        if self.cannot_index {
            return false;
        }
        let main = &self.debug.main;
        // What is missing today may be there tomorrow; an index would not notice.
        let object = main.object();
        let names_another = object.is_ok_and(|object| matches!(object.gnu_debugaltlink(), Ok(Some(_))));
        if names_another && self.debug.supplement.is_none() {
            return false;
        }
        let bytes = main.section_bytes(SectionId::DebugInfo) + main.section_bytes(SectionId::DebugLine);
        !self.has_index() && bytes >= WORTH_INDEXING_BYTES
    }

    /// What tells an index of these files from another.
    pub(crate) fn identity(&self) -> Identity {
        let files = [(0, self.program.as_ref()), (1, Some(&self.debug.main))];
        let others = [(2, self.debug.supplement.as_ref()), (3, self.debug.package.as_ref())];
        let all = files.into_iter().chain(others);
        Identity::of(all.filter_map(|(role, object)| Some((role, object?))))
    }

    /// Answers from an index from now on.
    pub(crate) fn use_index(&mut self, index: Index) {
        self.index = (index.code() == self.layout.code).then_some(index);
    }

    /// Takes the user's limit in place of the default one.
    pub(crate) fn limit_unpacking(&mut self, max_unpacked_bytes: Option<u64>) {
        self.max_unpacked_bytes = max_unpacked_bytes;
    }

    /// Asks for no index from now on.
    pub(crate) fn do_not_index(&mut self) {
        self.cannot_index = true;
    }

    /// First and last address of what is executable.
    pub(crate) fn code(&self) -> &[(u64, u64)] {
        &self.layout.code
    }

    pub(crate) fn is_code(&self, address: u64) -> bool {
        self.layout.is_code(address)
    }

    /// True when a symbol or the unwind table knows of a function at the address.
    pub(crate) fn is_function(&self, address: u64) -> bool {
        self.symbols().find(address).is_some() || self.function_start(address).is_some()
    }

    fn objects(&self) -> impl Iterator<Item = &DebugObject> {
        self.program.iter().chain([&self.debug.main])
    }

    /// A reader of the debug information for one who reads all of it once, and forgets.
    pub(crate) fn own_engine(&self) -> Result<Engine, Problem> {
        Engine::new(Arc::clone(&self.debug))
    }

    /// The reader of the debug information. It is begun anew when it has kept too much: what it has read before is in the
    /// file still.
    pub(crate) fn engine(&self) -> Result<Arc<Engine>, Problem> {
        if let Some(problem) = self.broken.get() {
            return Err(*problem);
        }
        let present = self.engine.read().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(engine) = present.filter(|engine| engine.kept_bytes() < MAX_KEPT_BYTES) {
            return Ok(engine);
        }
        let mut slot = self.engine.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(engine) = slot.as_ref().filter(|engine| engine.kept_bytes() < MAX_KEPT_BYTES) {
            return Ok(Arc::clone(engine));
        }
        let engine = Engine::new(Arc::clone(&self.debug)).inspect_err(|problem| {
            let _ = self.broken.set(*problem);
        })?;
        let engine = Arc::new(engine);
        *slot = Some(Arc::clone(&engine));
        Ok(engine)
    }

    pub(crate) fn symbols(&self) -> &SymbolTable {
        self.symbols.get_or_init(|| {
            let mut table = SymbolTable::default();
            self.objects().filter_map(|object| object.object().ok()).for_each(|object| table.add(&object));
            let limit = self.max_unpacked_bytes;
            if let Some(small) =
                self.mapped().object().ok().and_then(|object| mini_debug::unpack(&object, limit))
                && let Ok(object) = object::File::parse(&*small)
            {
                table.add(&object);
            }
            table.finish();
            table
        })
    }

    fn data_symbols(&self) -> &DataSymbols {
        self.data_symbols.get_or_init(|| {
            let mut table = DataSymbols::default();
            self.objects().filter_map(|object| object.object().ok()).for_each(|object| table.add(&object));
            table.finish();
            table
        })
    }

    /// The first address of the function at an address, by the unwind table.
    pub(crate) fn function_start(&self, address: u64) -> Option<u64> {
        self.starts().find(self.mapped(), address)
    }

    /// Where functions begin and end by the unwind table, in no order.
    pub(crate) fn function_boundaries(&self) -> impl Iterator<Item = u64> {
        self.starts().boundaries(self.mapped())
    }

    fn starts(&self) -> &UnwindStarts {
        let of_mapped = || self.mapped().object().map(|object| UnwindStarts::of(&object));
        self.starts.get_or_init(|| of_mapped().unwrap_or_default())
    }

    /// The mapped file, or the one with the debug information where that is all there is.
    fn mapped(&self) -> &DebugObject {
        self.program.as_ref().unwrap_or(&self.debug.main)
    }

    /// Why an address in the code has no name.
    fn nothing_known(&self) -> Unknown {
        if self.debug.main.has_debug_info() || !self.symbols().is_empty() {
            Unknown::NotCovered
        } else {
            Unknown::NoDebugInfo
        }
    }
}

impl SymbolSource for ElfSource {
    fn frames_at(&self, address: StatedAddress, out: &mut FrameSink) -> Result<(), Unknown> {
        let address = address.value();
        if !self.layout.is_code(address) {
            return Err(Unknown::AddressOutside);
        }
        if let Some(index) = &self.index {
            match index.frames_at(address, out) {
                Answer::Known => return Ok(()),
                Answer::Nothing => return Err(self.nothing_known()),
                // The files themselves are still there.
                Answer::Broken => out.clear(),
            }
        }
        let mut problem = None;
        if self.debug.main.has_debug_info() {
            let answered = self.engine().and_then(|engine| engine.frames_at(address, out));
            if let Err(found) = answered {
                out.clear();
                problem = Some(found);
            }
        }
        if out.frames().last().is_some_and(|outermost| outermost.function.is_some()) {
            if out.wants_qualified_name()
                && let Some(symbol) = self.symbols().find(address)
            {
                out.qualify_outermost(symbol.name);
            }
            return Ok(());
        }
        if let Some(symbol) = self.symbols().find(address) {
            match out.is_empty() {
                true => out.push_symbol(symbol.name, symbol.file),
                false => out.name_outermost(symbol.name, Language::Unknown),
            }
            out.set_function_start(StatedAddress::new(symbol.start));
        } else if let Some(start) = self.function_start(address) {
            out.set_function_start(StatedAddress::new(start));
        }
        match (out.is_empty(), problem) {
            (false, _) => Ok(()),
            (true, Some(problem)) => Err(Unknown::Broken { problem: problem.to_string().into() }),
            (true, None) => Err(self.nothing_known()),
        }
    }

    fn declarations_at(&self, address: StatedAddress) -> Vec<Declaration> {
        let address = address.value();
        if !self.layout.is_code(address) {
            return Vec::new();
        }
        let engine = if self.debug.main.has_debug_info() { self.engine().ok() } else { None };
        let declared = engine.and_then(|engine| engine.declarations_at(address).ok()).unwrap_or_default();
        let mut all: Vec<Declaration> = declared.into_iter().map(declaration).collect();
        if let Some(symbol) = self.symbols().find(address) {
            if all.is_empty() {
                all.push(Declaration::default());
            }
            // A part of a function that lies elsewhere has a symbol of its own.
            all.iter_mut()
                .last()
                .into_iter()
                .for_each(|all| all.start = Some(StatedAddress::new(symbol.start)));
        }
        all
    }

    fn data_at(&self, address: StatedAddress) -> Option<DataSymbol> {
        let found = self.data_symbols().find(address.value())?;
        let engine = if self.debug.main.has_debug_info() { self.engine().ok() } else { None };
        let declared = engine.and_then(|engine| engine.variable_at(found.start).ok()?);
        // A file alone does not say where: the symbol table knows as much.
        let declared = declared.filter(|declared| declared.line.is_some());
        let mut declaration = declared.map(declaration).unwrap_or_default();
        if declaration.line.is_none() {
            declaration.file = found.file.map(Arc::from);
        }
        declaration.start = Some(StatedAddress::new(found.start));
        let raw_name: Arc<str> = found.name.into();
        let readable = demangle(found.name, Language::Unknown);
        let name = readable.map_or_else(|| Arc::clone(&raw_name), Arc::from);
        Some(DataSymbol { name, raw_name, size_bytes: found.size_bytes, declaration })
    }

    fn base(&self) -> StatedAddress {
        self.layout.base
    }

    fn word_size(&self) -> WordSize {
        self.layout.word_size
    }

    fn wants_index(&self) -> bool {
        self.is_worth_indexing()
    }

    fn has_index(&self) -> bool {
        // One that is broken is made anew.
        self.index.as_ref().is_some_and(|index| !index.is_broken())
    }

    fn build_index(&self, cache: &Cache, cancelled: &AtomicBool) -> bool {
        let identity = self.identity();
        match crate::index::build(self, identity.bytes(), cancelled) {
            Some(index) => cache.store(&identity, &index).is_ok(),
            None => {
                if !cancelled.load(Ordering::Relaxed) {
                    cache.note_failure(&identity);
                }
                false
            }
        }
    }

    fn files(&self) -> Vec<PathBuf> {
        let files = self.objects();
        let others = [&self.debug.supplement, &self.debug.package].into_iter().flatten();
        files.chain(others).map(|object| object.path().to_owned()).collect()
    }
}

fn declaration(declared: Declared) -> Declaration {
    let Declared { file, line, low } = declared;
    Declaration { file, line, start: low.map(StatedAddress::new) }
}

impl Layout {
    fn of(object: &object::File<'_>) -> Self {
        const EXECUTABLE: u32 = 1;
        let mut code: Vec<(u64, u64)> = object
            .segments()
            .filter(|segment| {
                matches!(segment.flags(), SegmentFlags::Elf { p_flags, .. } if p_flags.0 & EXECUTABLE != 0)
            })
            .map(|segment| (segment.address(), segment.address().saturating_add(segment.size())))
            .collect();
        code.sort_unstable();
        // The loader maps whole pages; a recording counts from the first one.
        let first = object.segments().map(|segment| segment.address()).min().unwrap_or(0);
        Self {
            base: StatedAddress::new(first & !(PAGE_BYTES - 1)),
            word_size: if object.is_64() { WordSize::Bits64 } else { WordSize::Bits32 },
            code,
        }
    }

    fn is_code(&self, address: u64) -> bool {
        self.code.is_empty() || self.code.iter().any(|&(start, end)| start <= address && address < end)
    }
}

/// Reading this much takes some milliseconds.
const WORTH_INDEXING_BYTES: u64 = 1 << 20;

/// The most that is kept of one module's debug information at a time.
const MAX_KEPT_BYTES: u64 = 512 << 20;

/// The smallest page of all processors that ELF is used on.
const PAGE_BYTES: u64 = 4096;

fn unreadable(path: &Path, error: &dyn std::fmt::Display) -> Unknown {
    Unknown::Unreadable { path: path.to_owned(), problem: error.to_string().into() }
}
