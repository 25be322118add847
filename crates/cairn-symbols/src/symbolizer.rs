//! Names addresses in many modules: opens each file once, on demand, and looks up each address
//! once.

use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use cairn_format::{StatedAddress, WordSize};

use crate::index::Indexer;
use crate::mapped_file::FileBytes;
use crate::open::{Opened, cache, open_bytes, open_file, open_module};
use crate::source::{FrameSink, SymbolSource};
use crate::{
    DataSymbol, Declaration, Error, Lookup, ModuleId, ModuleInfo, ModuleReport, Resolution, Resolutions,
    SymbolizerOptions, Unknown,
};

/// Names addresses in a set of modules.
///
/// A module's file is opened at its first query. [`resolve_many`](Self::resolve_many) is the fast
/// path; [`resolve`](Self::resolve) answers single queries.
///
/// # Memory
///
/// Files are mapped, so the kernel can evict their pages. Up to 512 MiB of parsed debug information
/// is cached per module, and parsed again beyond that. Compressed sections are inflated into
/// memory. Modules stay open as long as the symbolizer lives.
///
/// ```no_run
/// use cairn_format::StatedAddress;
/// use cairn_symbols::{Lookup, Symbolizer, SymbolizerOptions};
///
/// let mut symbolizer = Symbolizer::new(SymbolizerOptions::new());
/// let module = symbolizer.add_file("app.elf")?;
/// for frame in symbolizer.resolve(module, Lookup::stated(StatedAddress::new(0x406651))).frames() {
///     println!("{frame}");
/// }
/// # Ok::<(), cairn_symbols::Error>(())
/// ```
pub struct Symbolizer {
    options: SymbolizerOptions,
    modules: Vec<Module>,
    /// Caches of earlier answers; each answering thread borrows one.
    sinks: Mutex<Vec<FrameSink>>,
    indexer: Option<Indexer>,
}

struct Module {
    info: ModuleInfo,
    opened: OnceLock<Opened>,
    /// True once its index was requested, or is not wanted.
    index_settled: AtomicBool,
}

impl Module {
    fn new(info: ModuleInfo, opened: OnceLock<Opened>) -> Self {
        Self { info, opened, index_settled: AtomicBool::new(false) }
    }
}

impl fmt::Debug for Symbolizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Symbolizer").field("modules", &self.modules.len()).finish_non_exhaustive()
    }
}

impl Symbolizer {
    /// Creates a symbolizer without modules.
    #[must_use]
    pub fn new(options: SymbolizerOptions) -> Self {
        let indexer = cache(&options).map(Indexer::new);
        Self { options, modules: Vec::new(), sinks: Mutex::default(), indexer }
    }

    /// Adds a recorded module. The search for its files shows in its answers and its report.
    ///
    /// # Panics
    ///
    /// After four billion modules.
    pub fn add_module(&mut self, info: ModuleInfo) -> ModuleId {
        self.add(Module::new(info, OnceLock::new()))
    }

    /// Adds a file by its path, and opens it.
    ///
    /// # Errors
    ///
    /// [`Error::Open`] if it cannot be read, or is of an unknown kind.
    pub fn add_file(&mut self, path: impl Into<PathBuf>) -> Result<ModuleId, Error> {
        let info = ModuleInfo::new(path);
        let opened = open_file(&info.path, &self.options)?;
        Ok(self.add(Module::new(info, OnceLock::from(opened))))
    }

    /// Adds a module whose file is in memory, as the vdso in a core file.
    ///
    /// # Errors
    ///
    /// [`Error::Open`] if the bytes are of an unknown kind.
    pub fn add_image(&mut self, info: ModuleInfo, bytes: Vec<u8>) -> Result<ModuleId, Error> {
        let mut report = ModuleReport::default();
        let bytes = FileBytes::Owned(bytes);
        let source = open_bytes(info.path.clone(), bytes, info.build_id.as_ref(), &self.options, &mut report)
            .map_err(|reason| Error::Open { path: info.path.clone(), source: reason.to_string().into() })?;
        Ok(self.add_source(info, source))
    }

    /// Adds a module with an open source.
    pub(crate) fn add_source(&mut self, info: ModuleInfo, source: Arc<dyn SymbolSource>) -> ModuleId {
        self.add(Module::new(info, OnceLock::from(Opened::ready(source))))
    }

    fn add(&mut self, module: Module) -> ModuleId {
        let id = u32::try_from(self.modules.len()).expect("fewer modules than 4 billion");
        self.modules.push(module);
        ModuleId(id)
    }

    /// Resolves one address.
    ///
    /// # Panics
    ///
    /// If the module belongs to another symbolizer with more modules.
    #[must_use]
    pub fn resolve(&self, module: ModuleId, lookup: Lookup) -> Resolution {
        let mut sink = self.take_sink();
        let resolution = self.resolve_with(module, lookup, &mut sink);
        self.give_back(sink);
        self.want_index(module);
        resolution
    }

    /// Finds the declaration and start of each frame's function, innermost first.
    ///
    /// Empty if the kind of file has no declarations. They are read from the debug information even
    /// if there is an index, because indexes do not store them.
    ///
    /// ```no_run
    /// # use cairn_format::StatedAddress;
    /// # use cairn_symbols::{Lookup, Symbolizer, SymbolizerOptions};
    /// # let mut symbolizer = Symbolizer::new(SymbolizerOptions::new());
    /// let app = symbolizer.add_file("app.elf")?;
    /// let lookup = Lookup::stated(StatedAddress::new(0x406651));
    /// let innermost = symbolizer.declarations(app, lookup).into_iter().next();
    /// println!("declared in line {:?}", innermost.and_then(|declaration| declaration.line));
    /// # Ok::<(), cairn_symbols::Error>(())
    /// ```
    ///
    /// # Panics
    ///
    /// If the module belongs to another symbolizer with more modules.
    #[must_use]
    pub fn declarations(&self, module: ModuleId, lookup: Lookup) -> Vec<Declaration> {
        let Ok(source) = &self.opened(module).source else { return Vec::new() };
        lookup.stated_address(source.base()).map_or_else(Vec::new, |address| source.declarations_at(address))
    }

    /// Finds the symbol at an address of an ELF file, of code or data; `None` for other files.
    ///
    /// ```no_run
    /// # use cairn_format::StatedAddress;
    /// # use cairn_symbols::{Lookup, Symbolizer, SymbolizerOptions};
    /// # let mut symbolizer = Symbolizer::new(SymbolizerOptions::new());
    /// let app = symbolizer.add_file("app.elf")?;
    /// if let Some(symbol) = symbolizer.data_symbol(app, Lookup::stated(StatedAddress::new(0x604010))) {
    ///     println!("{} of {} bytes", symbol.name, symbol.size_bytes);
    /// }
    /// # Ok::<(), cairn_symbols::Error>(())
    /// ```
    ///
    /// # Panics
    ///
    /// If the module belongs to another symbolizer with more modules.
    #[must_use]
    pub fn data_symbol(&self, module: ModuleId, lookup: Lookup) -> Option<DataSymbol> {
        let source = self.opened(module).source.as_ref().ok()?;
        source.data_at(lookup.stated_address(source.base())?)
    }

    /// Resolves many addresses: sorts them, and looks up each distinct one once, on several
    /// threads.
    ///
    /// # Panics
    ///
    /// If a module belongs to another symbolizer with more modules, or for four billion lookups.
    #[must_use]
    pub fn resolve_many(&self, lookups: &[(ModuleId, Lookup)]) -> Resolutions {
        let count = u32::try_from(lookups.len()).expect("fewer lookups than 4 billion");
        let mut order: Vec<u32> = (0..count).collect();
        order.sort_unstable_by_key(|&index| lookups[index as usize]);
        let mut distinct: Vec<(ModuleId, Lookup)> = Vec::new();
        let mut places = vec![0; lookups.len()];
        for index in order {
            let lookup = lookups[index as usize];
            if distinct.last() != Some(&lookup) {
                distinct.push(lookup);
            }
            places[index as usize] = (distinct.len() - 1) as u32;
        }
        let answers = self.resolve_distinct(&distinct);
        distinct.dedup_by_key(|&mut (module, _)| module);
        distinct.into_iter().for_each(|(module, _)| self.want_index(module));
        Resolutions { distinct: answers, places }
    }

    /// Builds the index of a module now, if it is worthwhile; true if it is on disk afterwards.
    ///
    /// Opens the module.
    ///
    /// # Panics
    ///
    /// If the module belongs to another symbolizer with more modules.
    #[must_use]
    pub fn build_index(&self, module: ModuleId) -> bool {
        let Ok(source) = &self.opened(module).source else { return false };
        let Some(indexer) = &self.indexer else { return false };
        self.modules[module.index()].index_settled.store(true, Ordering::Relaxed);
        source.has_index() || source.wants_index() && indexer.build_now(&**source)
    }

    /// Waits for background builds of indexes. Dropping the symbolizer cancels unfinished ones.
    pub fn wait_for_indexes(&self) {
        self.indexer.iter().for_each(Indexer::wait);
    }

    /// Returns the programs that an index would speed up.
    ///
    /// [`build_index`](Self::build_index), with the same options and [`add_file`](Self::add_file),
    /// builds it.
    #[must_use]
    pub fn without_index(&self) -> Vec<PathBuf> {
        let opened = self.modules.iter().filter_map(|module| module.opened.get()?.source.as_ref().ok());
        let wanting = opened.filter(|source| self.indexer.is_some() && source.wants_index());
        let mut programs: Vec<PathBuf> =
            wanting.filter_map(|source| source.files().into_iter().next()).collect();
        programs.sort_unstable();
        programs.dedup();
        programs
    }

    /// Requests a background build of a module's index, once, after its first answer.
    fn want_index(&self, module: ModuleId) {
        let Some(indexer) = self.indexer.as_ref().filter(|_| self.options.indexes_in_background) else {
            return;
        };
        let module = &self.modules[module.index()];
        if module.index_settled.swap(true, Ordering::Relaxed) {
            return;
        }
        if let Some(Opened { source: Ok(source), .. }) = module.opened.get()
            && source.wants_index()
        {
            indexer.enqueue(Arc::clone(source));
        }
    }

    /// Answers sorted lookups.
    ///
    /// Neighbouring addresses go to one thread, because they are mostly in one unit; the pieces are
    /// small enough for the threads to finish together.
    fn resolve_distinct(&self, lookups: &[(ModuleId, Lookup)]) -> Vec<Resolution> {
        let threads = self.options.threads.min(lookups.len() / WORTH_A_THREAD);
        if threads <= 1 {
            let mut sink = self.take_sink();
            let answer =
                |&(module, lookup): &(ModuleId, Lookup)| self.resolve_with(module, lookup, &mut sink);
            let answers = lookups.iter().map(answer).collect();
            self.give_back(sink);
            return answers;
        }
        let piece = (lookups.len() / (threads * PIECES_PER_THREAD)).max(WORTH_A_THREAD / 2);
        let pieces: Vec<&[(ModuleId, Lookup)]> = lookups.chunks(piece).collect();
        let answers: Vec<OnceLock<Vec<Resolution>>> = pieces.iter().map(|_| OnceLock::new()).collect();
        let next = AtomicUsize::new(0);
        let work = || {
            let mut sink = self.take_sink();
            while let index = next.fetch_add(1, Ordering::Relaxed)
                && let Some(piece) = pieces.get(index)
            {
                let answer =
                    |&(module, lookup): &(ModuleId, Lookup)| self.resolve_with(module, lookup, &mut sink);
                let _ = answers[index].set(piece.iter().map(answer).collect());
            }
            self.give_back(sink);
        };
        std::thread::scope(|scope| {
            for _ in 1..threads {
                scope.spawn(work);
            }
            work();
        });
        answers.into_iter().flat_map(|piece| piece.into_inner().unwrap_or_default()).collect()
    }

    /// Reports which files answer for a module, which were refused, and why none does. Opens the
    /// module.
    ///
    /// # Panics
    ///
    /// If the module belongs to another symbolizer with more modules.
    #[must_use]
    pub fn module_report(&self, module: ModuleId) -> ModuleReport {
        self.opened(module).report.clone()
    }

    /// Returns the width of an address in the module; 64 bits if unknown. Opens the module.
    ///
    /// # Panics
    ///
    /// If the module belongs to another symbolizer with more modules.
    #[must_use]
    pub fn word_size(&self, module: ModuleId) -> WordSize {
        self.opened(module).source.as_ref().map_or(WordSize::Bits64, |source| source.word_size())
    }

    fn opened(&self, module: ModuleId) -> &Opened {
        let module = &self.modules[module.index()];
        module.opened.get_or_init(|| open_module(&module.info, &self.options))
    }

    fn resolve_with(&self, module: ModuleId, lookup: Lookup, sink: &mut FrameSink) -> Resolution {
        let source = match &self.opened(module).source {
            Ok(source) => source,
            Err(reason) => return Resolution::unknown(reason.clone()),
        };
        let Some(address) = lookup.stated_address(source.base()) else {
            return Resolution::unknown(Unknown::AddressOutside);
        };
        if let Err(reason) = source.frames_at(address, sink) {
            sink.clear();
            return Resolution::unknown(reason);
        }
        if let Some(start) = sink.function_start()
            && sink.frames().last().is_none_or(|outermost| outermost.function.is_none())
        {
            let name = self.name_of_start(module, start, source.base());
            sink.name_outermost_readable(&name);
        }
        let answered_by = sink.take_answered_by();
        let (frames, start) = sink.take();
        Resolution::known(frames, start, answered_by)
    }

    /// Names a function if only its start is known.
    fn name_of_start(&self, module: ModuleId, start: StatedAddress, base: StatedAddress) -> String {
        let path = &self.modules[module.index()].info.path;
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
        format!("{name}+{:#x}", start.value().wrapping_sub(base.value()))
    }

    fn take_sink(&self) -> FrameSink {
        self.sinks.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default()
    }

    fn give_back(&self, mut sink: FrameSink) {
        sink.tidy();
        self.sinks.lock().unwrap_or_else(PoisonError::into_inner).push(sink);
    }
}

/// Minimum lookups per thread; 128, whose answers cost as much as starting a thread with empty
/// caches.
const WORTH_A_THREAD: usize = 128;

/// Pieces of work per thread; 16, to balance units of different size.
const PIECES_PER_THREAD: usize = 16;
