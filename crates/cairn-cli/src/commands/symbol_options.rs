//! Options that say where symbols are: one group, in every command that names addresses.

use std::path::PathBuf;

use cairn_analysis::heap;
use cairn_analysis::names::{AddressNames, file_name_of};
use cairn_symbols::SymbolizerOptions;
use clap::Args;

use super::index_later::{CacheOptions, Search};
use crate::output::{complain, max_unpacked_bytes, printable};

/// Options that name addresses and locate their symbols.
#[derive(Args)]
#[command(next_help_heading = "Symbols")]
pub(crate) struct SymbolOptions {
    #[command(flatten)]
    search: SymbolSearch,

    /// Look for no symbols: show modules and offsets only
    #[arg(long)]
    no_symbols: bool,
}

/// Locations of symbols.
#[derive(Args)]
#[command(next_help_heading = "Symbols")]
pub(crate) struct SymbolSearch {
    /// Look for programs, debug files and PDB files in this directory, by name or recorded path.
    /// May be repeated
    #[arg(long, value_name = "DIR", alias = "symbol-dir")]
    symbols: Vec<PathBuf>,

    /// Look for debug files in this directory, as in /usr/lib/debug: `.build-id/xx/yyy.debug`. May
    /// be repeated
    #[arg(long, value_name = "DIR", alias = "debug-file-directory")]
    debug_dir: Vec<PathBuf>,

    /// Look for recorded paths below this directory only: the root of the recorded machine
    #[arg(long, value_name = "DIR")]
    sysroot: Option<PathBuf>,

    /// Look in TO for files recorded below FROM. May be repeated
    #[arg(long, value_name = "FROM=TO", value_parser = parse_map, alias = "map")]
    map_path: Vec<(PathBuf, PathBuf)>,

    /// Also use files of other builds, and recorded paths without a build id; names may be wrong
    #[arg(long)]
    allow_mismatch: bool,

    /// Download missing files from the servers in DEBUGINFOD_URLS. Needs a cairn built with the
    /// feature debuginfod (default)
    #[arg(long, overrides_with = "no_debuginfod")]
    debuginfod: bool,

    /// Download nothing
    #[arg(long, overrides_with = "debuginfod")]
    no_debuginfod: bool,

    #[command(flatten)]
    cache: CacheOptions,
}

/// Applies `--max-unpacked` to compressed debug information.
pub(crate) fn limited(options: SymbolizerOptions) -> SymbolizerOptions {
    match max_unpacked_bytes() {
        Some(limit) => options.max_unpacked_bytes(limit),
        None => options,
    }
}

fn parse_map(text: &str) -> Result<(PathBuf, PathBuf), &'static str> {
    let (from, to) = text.split_once('=').ok_or("write it as FROM=TO, as in /build/app=/home/me/app")?;
    if from.is_empty() || to.is_empty() {
        return Err("neither side of FROM=TO may be empty");
    }
    Ok((from.into(), to.into()))
}

impl SymbolSearch {
    /// Returns the options of a symbolizer for files that the user names.
    pub(crate) fn symbolizer(&self) -> SymbolizerOptions {
        let options = limited(SymbolizerOptions::new()).allow_mismatch(self.allow_mismatch);
        let mut options = options.debuginfod(!self.no_debuginfod);
        for directory in &self.symbols {
            options = options.symbol_dir(directory);
        }
        for directory in &self.debug_dir {
            options = options.debug_dir(directory);
        }
        if let Some(sysroot) = &self.sysroot {
            options = options.sysroot(sysroot);
        }
        for (from, to) in &self.map_path {
            options = options.map_path(from, to);
        }
        self.cache.apply(options)
    }

    /// Starts another process that builds the missing indexes of these programs. For the end of a
    /// command, when the answers are printed.
    pub(crate) fn index_later(&self, programs: Vec<PathBuf>) {
        let mut search = Search::default().flag("--allow-mismatch", self.allow_mismatch);
        search = search.flag("--no-debuginfod", self.no_debuginfod);
        search = self.symbols.iter().fold(search, |search, path| search.path("--symbols", path));
        search = self.debug_dir.iter().fold(search, |search, path| search.path("--debug-dir", path));
        search = self.sysroot.iter().fold(search, |search, path| search.path("--sysroot", path));
        search = self.map_path.iter().fold(search, |search, (from, to)| search.map(from, to));
        self.cache.build_later(programs, search);
    }

    /// Builds the indexes of these files now; true if all of them exist afterwards.
    pub(crate) fn index_now(&self, files: &[PathBuf]) -> std::io::Result<bool> {
        self.cache.build_now(files, self.symbolizer())
    }
}

impl SymbolOptions {
    /// False if no names are wanted.
    pub(crate) fn wanted(&self) -> bool {
        !self.no_symbols
    }

    /// True if files of another build may name addresses too.
    pub(crate) fn allows_mismatch(&self) -> bool {
        self.search.allow_mismatch
    }

    /// False if the user says where the root of the recorded machine is.
    pub(crate) fn in_own_root(&self) -> bool {
        self.search.sysroot.is_none()
    }

    /// Returns the root of the recorded machine, if the user says where it is.
    pub(crate) fn root(&self) -> Option<&std::path::Path> {
        self.search.sysroot.as_deref()
    }

    /// Returns the options of a symbolizer for recordings and images.
    ///
    /// These may be untrusted and name any file of this machine.
    pub(crate) fn symbolizer(&self) -> SymbolizerOptions {
        self.search.symbolizer().only_checked_paths(true)
    }

    /// Starts another process that builds the indexes that were missed. For the end of a command,
    /// when the answers are printed.
    pub(crate) fn index_later(&self, names: &AddressNames) {
        self.index_these_later(names.without_index());
    }

    /// As [`index_later`](Self::index_later), for known programs.
    pub(crate) fn index_these_later(&self, programs: Vec<PathBuf>) {
        self.search.index_later(programs);
    }
}

/// Reports once per module why frames have no names and which files were not used.
///
/// Also reports used files of another build.
pub(crate) fn complain_about_modules(names: &AddressNames) {
    for (key, report) in names.reports() {
        let module = file_name_of(&key.path);
        // Mappings of the kernel, such as `[vdso]`, have no file.
        if module.starts_with('[') {
            continue;
        }
        for (_, why) in &report.refused {
            complain(&format_args!("{module}: a file was not used: {why}"));
        }
        for (_, why) in &report.mismatched {
            complain(&format_args!("{module}: names may be wrong: {why}"));
        }
        if key.build_id.is_empty()
            && key.size_bytes.is_none()
            && let Some(used) = report.used.first()
        {
            let used = used.display();
            complain(&format_args!(
                "{module}: names are those of {used}; whether that is the same build is not recorded"
            ));
        }
        if let Some(why) = &report.missing
            && report.refused.iter().all(|(_, refused)| refused != why)
        {
            complain(&format_args!("{module}: no symbols: {why}"));
        }
    }
}

/// Advises on missing names if most functions of a module have none.
///
/// The reason is that the debug files of these modules are not on this machine.
pub(crate) fn advice_on_names(names: &heap::Names<'_>) -> Option<String> {
    /// Modules that the advice names; 3, because the line has to stay short.
    const MOST_NAMED: usize = 3;
    let modules = names.mostly_unnamed();
    let named: Vec<_> = modules.iter().take(MOST_NAMED).map(|name| printable(name)).collect();
    let more = match modules.len().saturating_sub(MOST_NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    (!named.is_empty()).then(|| {
        format!(
            "functions without names in {}{more}: install their debug symbols (packages that end in -dbgsym or -debuginfo), \
             or say where their debug files are (--debug-dir); the recording need not be made again",
            named.join(", ")
        )
    })
}
