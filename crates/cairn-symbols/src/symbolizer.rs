//! Many modules, many addresses: each file is opened once and late, each distinct address is looked up once.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Mutex, OnceLock, PoisonError};

use cairn_format::{StatedAddress, WordSize};

use crate::open::open;
use crate::source::{FrameSink, SymbolSource};
use crate::{
    Error, Lookup, ModuleId, ModuleInfo, ModuleReport, Resolution, Resolutions, SymbolizerOptions, Unknown,
};

/// Names addresses of a set of modules.
///
/// A module's file is opened at the first question to it. [`resolve_many`](Self::resolve_many) is the fast way;
/// [`resolve`](Self::resolve) answers one after the other as they come.
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
    /// Of answers given one by one: the names are kept from one to the next.
    sink: Mutex<FrameSink>,
}

struct Module {
    info: ModuleInfo,
    opened: OnceLock<Opened>,
}

struct Opened {
    source: Result<Box<dyn SymbolSource>, Unknown>,
    report: ModuleReport,
}

impl fmt::Debug for Symbolizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Symbolizer").field("modules", &self.modules.len()).finish_non_exhaustive()
    }
}

impl Symbolizer {
    /// A symbolizer without modules.
    #[must_use]
    pub fn new(options: SymbolizerOptions) -> Self {
        Self { options, modules: Vec::new(), sink: Mutex::default() }
    }

    /// Adds a module that a recording tells of. Whether anything is known of it shows in its answers and in its report.
    pub fn add_module(&mut self, info: ModuleInfo) -> ModuleId {
        self.add(Module { info, opened: OnceLock::new() })
    }

    /// Adds a file that is here, by its path as it stands, and opens it.
    ///
    /// # Errors
    ///
    /// [`Error::Open`] when it cannot be read, or is of no kind that is known here.
    pub fn add_file(&mut self, path: impl Into<PathBuf>) -> Result<ModuleId, Error> {
        let info = ModuleInfo::new(path);
        let source = open(&info.path, &info, &self.options)?;
        Ok(self.add_source(info, source))
    }

    /// Adds a module whose symbols are at hand.
    pub(crate) fn add_source(&mut self, info: ModuleInfo, source: Box<dyn SymbolSource>) -> ModuleId {
        let report = ModuleReport { used: source.files(), ..ModuleReport::default() };
        self.add(Module { info, opened: OnceLock::from(Opened { source: Ok(source), report }) })
    }

    fn add(&mut self, module: Module) -> ModuleId {
        let id = u32::try_from(self.modules.len()).expect("fewer modules than 4 billion");
        self.modules.push(module);
        ModuleId(id)
    }

    /// What is known of the address, now.
    #[must_use]
    pub fn resolve(&self, module: ModuleId, lookup: Lookup) -> Resolution {
        let mut sink = self.sink.lock().unwrap_or_else(PoisonError::into_inner);
        let opened = self.opened(module);
        let source = match &opened.source {
            Ok(source) => source,
            Err(reason) => return Resolution::unknown(reason.clone()),
        };
        let Some(address) = lookup.stated_address(source.base()) else {
            return Resolution::unknown(Unknown::AddressOutside);
        };
        let result = source.frames_at(address, &mut sink);
        self.finish(module, address, &mut sink, result)
    }

    /// What is known of many addresses: sorted, each distinct one looked up once, on all threads.
    #[must_use]
    pub fn resolve_many(&self, lookups: &[(ModuleId, Lookup)]) -> Resolutions {
        let mut order: Vec<u32> = (0..u32::try_from(lookups.len()).expect("fewer than 4 billion")).collect();
        order.sort_unstable_by_key(|&index| lookups[index as usize]);
        let mut resolutions = Resolutions { distinct: Vec::new(), places: vec![0; lookups.len()] };
        let mut last = None;
        for index in order {
            let lookup = lookups[index as usize];
            if last != Some(lookup) {
                resolutions.distinct.push(self.resolve(lookup.0, lookup.1));
                last = Some(lookup);
            }
            resolutions.places[index as usize] = (resolutions.distinct.len() - 1) as u32;
        }
        resolutions
    }

    /// Which files answer for the module, which were refused, and why nothing answers when nothing does. Opens it.
    #[must_use]
    pub fn module_report(&self, module: ModuleId) -> ModuleReport {
        self.opened(module).report.clone()
    }

    /// Width of an address in the module; 64 bits when nothing is known of it. Opens it.
    #[must_use]
    pub fn word_size(&self, module: ModuleId) -> WordSize {
        self.opened(module).source.as_ref().map_or(WordSize::Bits64, |source| source.word_size())
    }

    fn opened(&self, module: ModuleId) -> &Opened {
        let module = &self.modules[module.index()];
        module.opened.get_or_init(|| match open(&module.info.path, &module.info, &self.options) {
            Ok(source) => {
                let report = ModuleReport { used: source.files(), ..ModuleReport::default() };
                Opened { source: Ok(source), report }
            }
            Err(_) => {
                let missing = Unknown::NoSuchFile { path: module.info.path.clone() };
                let report = ModuleReport { missing: Some(missing.clone()), ..ModuleReport::default() };
                Opened { source: Err(missing), report }
            }
        })
    }

    fn finish(
        &self,
        module: ModuleId,
        address: StatedAddress,
        sink: &mut FrameSink,
        result: Result<(), Unknown>,
    ) -> Resolution {
        let _ = (module, address);
        let (frames, start) = sink.take();
        match result {
            Ok(()) => Resolution::known(frames, start),
            Err(reason) => Resolution::unknown(reason),
        }
    }
}
