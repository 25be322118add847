//! Opens modules and files with the source that reads their kind.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::dwarf::{DebugFiles, FindSplit};
use crate::elf::debug_object::DebugObject;
use crate::elf::{ElfSource, mini_debug};
use crate::index::Cache;
use crate::locate::Locator;
use crate::mapped_file::FileBytes;
use crate::source::SymbolSource;
use crate::{BuildId, Error, ModuleInfo, ModuleReport, SymbolizerOptions, Unknown, kinds};

/// A source, and the report of its search.
pub(crate) struct Opened {
    pub(crate) source: Result<Arc<dyn SymbolSource>, Unknown>,
    pub(crate) report: ModuleReport,
}

impl Opened {
    fn new(source: Result<Arc<dyn SymbolSource>, Unknown>, mut report: ModuleReport) -> Self {
        match &source {
            Ok(source) => {
                report.used = source.files();
                report.from_index = source.has_index();
            }
            Err(reason) => report.missing = Some(reason.clone()),
        }
        Self { source, report }
    }

    /// Wraps a source that is already open.
    pub(crate) fn ready(source: Arc<dyn SymbolSource>) -> Self {
        Self::new(Ok(source), ModuleReport::default())
    }
}

/// Searches for a recorded module's files and opens them.
pub(crate) fn open_module(info: &ModuleInfo, options: &SymbolizerOptions) -> Opened {
    let mut report = ModuleReport::default();
    let found = Locator { options, report: &mut report }.program(info);
    let source =
        found.and_then(|(path, bytes)| open_bytes(path, bytes, info.build_id.as_ref(), options, &mut report));
    Opened::new(source, report)
}

/// Opens a given file, and searches for the files that belong to it.
pub(crate) fn open_file(path: &Path, options: &SymbolizerOptions) -> Result<Opened, Error> {
    let bundled = kinds::in_bundle(path);
    let path = bundled.as_deref().unwrap_or(path);
    let error = |source| Error::Open { path: path.to_owned(), source };
    let bytes = FileBytes::map(path).map_err(|cause| error(cause.into()))?;
    let mut report = ModuleReport::default();
    match open_bytes(path.to_owned(), bytes, None, options, &mut report) {
        Ok(source) => Ok(Opened::new(Ok(source), report)),
        Err(Unknown::Unreadable { problem, .. }) => Err(error(problem.to_string().into())),
        Err(reason) => Err(error(reason.to_string().into())),
    }
}

/// Opens a file's bytes as the kind that they are. `wanted` selects among several programs in one
/// file.
pub(crate) fn open_bytes(
    path: PathBuf,
    bytes: FileBytes,
    wanted: Option<&BuildId>,
    options: &SymbolizerOptions,
    report: &mut ModuleReport,
) -> Result<Arc<dyn SymbolSource>, Unknown> {
    if let Some(kind) = kinds::kind(&path, &bytes) {
        return kinds::open(kind, &path, bytes, wanted, &mut Locator { options, report });
    }
    if bytes.starts_with(b"\x7fELF") {
        return open_elf(&path, bytes, options, report)
            .map(|source| Arc::new(source) as Arc<dyn SymbolSource>);
    }
    let problem = "neither a program (ELF, PE, Mach-O) nor symbols (PDB, dSYM, Breakpad, perf map, jitdump)";
    Err(Unknown::Unreadable { path, problem: problem.into() })
}

/// Returns the directory of indexes, if the options name one.
pub(crate) fn cache(options: &SymbolizerOptions) -> Option<Cache> {
    let directory = options.cache_dir.clone()?;
    Some(Cache { directory, limit_bytes: options.cache_limit_bytes })
}

fn open_elf(
    path: &Path,
    bytes: FileBytes,
    options: &SymbolizerOptions,
    report: &mut ModuleReport,
) -> Result<ElfSource, Unknown> {
    let parsed = DebugObject::parse(path, bytes, options.max_unpacked_bytes);
    let program = parsed.map_err(|problem| Unknown::Unreadable { path: path.to_owned(), problem })?;
    let mut locator = Locator { options, report };
    let separate = if program.has_debug_info() { None } else { locator.debug_file(&program) };
    let main = separate.as_ref().unwrap_or(&program);
    let small =
        program.object().ok().and_then(|object| mini_debug::refused(&object, options.max_unpacked_bytes));
    if let Some(limit) = small {
        let problem = format!("its section .gnu_debugdata {limit}").into();
        locator
            .report
            .refused
            .push((path.to_owned(), Unknown::Unreadable { path: path.to_owned(), problem }));
    }
    let supplement = locator.supplement(main);
    let package = locator.package(&[program.path(), main.path()]);
    let find_split: Arc<FindSplit> = {
        let (options, program) = (options.clone(), program.path().to_owned());
        Arc::new(move |wanted| {
            let mut unreported = ModuleReport::default();
            let mut locator = Locator { options: &options, report: &mut unreported };
            locator.split(&program, wanted.directory.as_deref(), &wanted.name)
        })
    };
    let (program, main) = match separate {
        Some(separate) => (Some(program), separate),
        None => (None, program),
    };
    let mut source = ElfSource::new(program, DebugFiles { main, supplement, package, find_split })?;
    source.limit_unpacking(options.max_unpacked_bytes);
    if let Some(cache) = cache(options) {
        let identity = source.identity();
        match cache.open(&identity) {
            Some(index) => source.use_index(index),
            None if cache.failed_lately(&identity) => source.do_not_index(),
            None => {}
        }
    }
    Ok(source)
}
