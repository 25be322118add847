//! Answers from an ELF module: debug information first, then symbol tables, then function starts.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use cairn_format::{StatedAddress, WordSize};
use gimli::SectionId;
use object::{Object, ObjectSegment, SegmentFlags};

use crate::demangle::demangle;
use crate::dwarf::{DebugFiles, Declared, DwarfError, Engine};
use crate::elf::data_symbols::DataSymbols;
use crate::elf::debug_object::DebugObject;
use crate::elf::mini_debug;
use crate::elf::symbol_table::SymbolTable;
use crate::elf::unwind_starts::UnwindStarts;
use crate::index::{Answer, Cache, Identity, Index};
use crate::source::{FrameSink, Language, SymbolSource};
use crate::{DataSymbol, Declaration, Unknown};

/// The files of one module, and what was parsed of them.
pub(crate) struct ElfSource {
    /// The mapped file, if it is present and is not the file with the debug information.
    program: Option<DebugObject>,
    debug: Arc<DebugFiles>,
    layout: Layout,
    engine: RwLock<Option<Arc<Engine>>>,
    index: Option<Index>,
    /// True if a recent index build failed.
    cannot_index: bool,
    /// The user's limit for unpacked bytes.
    max_unpacked_bytes: Option<u64>,
    /// The error that prevents an engine.
    broken: OnceLock<DwarfError>,
    symbols: OnceLock<SymbolTable>,
    data_symbols: OnceLock<DataSymbols>,
    starts: OnceLock<UnwindStarts>,
}

/// The facts in the program headers.
#[derive(Debug)]
struct Layout {
    base: StatedAddress,
    word_size: WordSize,
    /// First and last address of each executable segment, sorted; empty for unlinked files.
    code: Vec<(u64, u64)>,
}

impl ElfSource {
    /// Opens a module. `program` is the mapped file, unless that is `debug.main` itself.
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

    /// Reports whether an index saves time: parsing takes longer than searching one.
    fn is_worth_indexing(&self) -> bool {
        if self.cannot_index {
            return false;
        }
        let main = &self.debug.main;
        // A missing split file may appear later; an index would not notice.
        let object = main.object();
        let names_another = object.is_ok_and(|object| matches!(object.gnu_debugaltlink(), Ok(Some(_))));
        if names_another && self.debug.supplement.is_none() {
            return false;
        }
        let bytes = main.section_bytes(SectionId::DebugInfo) + main.section_bytes(SectionId::DebugLine);
        !self.has_index() && bytes >= WORTH_INDEXING_BYTES
    }

    /// Returns the identity that an index of these files must have.
    pub(crate) fn identity(&self) -> Identity {
        let files = [(0, self.program.as_ref()), (1, Some(&self.debug.main))];
        let others = [(2, self.debug.supplement.as_ref()), (3, self.debug.package.as_ref())];
        let all = files.into_iter().chain(others);
        Identity::of(all.filter_map(|(role, object)| Some((role, object?))))
    }

    /// Answers from this index from now on.
    pub(crate) fn use_index(&mut self, index: Index) {
        self.index = (index.code() == self.layout.code).then_some(index);
    }

    /// Replaces the default limit for unpacked bytes.
    pub(crate) fn limit_unpacking(&mut self, max_unpacked_bytes: Option<u64>) {
        self.max_unpacked_bytes = max_unpacked_bytes;
    }

    /// Disables building an index.
    pub(crate) fn do_not_index(&mut self) {
        self.cannot_index = true;
    }

    /// Returns the first and last address of each executable segment.
    pub(crate) fn code(&self) -> &[(u64, u64)] {
        &self.layout.code
    }

    pub(crate) fn is_code(&self, address: u64) -> bool {
        self.layout.is_code(address)
    }

    /// Reports whether a symbol or the unwind table has a function at the address.
    pub(crate) fn is_function(&self, address: u64) -> bool {
        self.symbols().find(address).is_some() || self.function_start(address).is_some()
    }

    fn objects(&self) -> impl Iterator<Item = &DebugObject> {
        self.program.iter().chain([&self.debug.main])
    }

    /// Creates a separate engine, for a sequential pass over all debug information.
    pub(crate) fn own_engine(&self) -> Result<Engine, DwarfError> {
        Engine::new(Arc::clone(&self.debug))
    }

    /// Returns the engine.
    ///
    /// One that caches too much is replaced by an empty one, because everything can be parsed
    /// again.
    pub(crate) fn engine(&self) -> Result<Arc<Engine>, DwarfError> {
        if let Some(problem) = self.broken.get() {
            return Err(*problem);
        }
        let present = self.engine.read().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(engine) = present.filter(|engine| engine.retained_bytes() < MAX_RETAINED_BYTES) {
            return Ok(engine);
        }
        let mut slot = self.engine.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(engine) = slot.as_ref().filter(|engine| engine.retained_bytes() < MAX_RETAINED_BYTES) {
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

    /// Returns the start of the function at an address, by the unwind table.
    pub(crate) fn function_start(&self, address: u64) -> Option<u64> {
        self.starts().find(self.mapped(), address)
    }

    /// Returns the bounds of all functions in the unwind table, unordered.
    pub(crate) fn function_boundaries(&self) -> impl Iterator<Item = u64> {
        self.starts().boundaries(self.mapped())
    }

    fn starts(&self) -> &UnwindStarts {
        let of_mapped = || self.mapped().object().map(|object| UnwindStarts::of(&object));
        self.starts.get_or_init(|| of_mapped().unwrap_or_default())
    }

    /// Returns the mapped file, or the one with the debug information if that is the only one.
    fn mapped(&self) -> &DebugObject {
        self.program.as_ref().unwrap_or(&self.debug.main)
    }

    /// Explains why an address in code has no name.
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
        // A file name without a directory adds nothing: the symbol table has it too.
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
        // A broken index is rebuilt.
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
        // The loader maps whole pages, and recordings count from the first one.
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

/// Minimum bytes of debug information worth an index; 1 MiB, which takes some milliseconds to
/// parse.
const WORTH_INDEXING_BYTES: u64 = 1 << 20;

/// Maximum bytes of parsed debug information per module; 512 MiB.
const MAX_RETAINED_BYTES: u64 = 512 << 20;

/// Bytes of the smallest page on any processor with ELF.
const PAGE_BYTES: u64 = 4096;

fn unreadable(path: &Path, error: &dyn std::fmt::Display) -> Unknown {
    Unknown::Unreadable { path: path.to_owned(), problem: error.to_string().into() }
}
