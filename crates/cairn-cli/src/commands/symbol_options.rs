//! Options for the search of symbols, which several subcommands share.

use std::path::PathBuf;

use cairn_analysis::heap;
use cairn_analysis::names::{Names, file_name_of};
use cairn_symbols::SymbolizerOptions;
use clap::Args;

use super::index_later::{CacheOptions, Search};
use crate::output::{complain, max_unpacked_bytes, printable};

/// Where the symbols are.
#[derive(Args)]
#[command(next_help_heading = "Where symbols are searched for")]
pub(crate) struct SymbolOptions {
    /// Directory with programs, debug files or PDB files, by their names or their recorded paths.
    /// May be repeated
    #[arg(long, value_name = "DIR")]
    symbols: Vec<PathBuf>,

    /// Directory with debug files, as /usr/lib/debug is one: `.build-id/xx/yyy.debug`. May be
    /// repeated
    #[arg(long, value_name = "DIR")]
    debug_dir: Vec<PathBuf>,

    /// Directory that holds the root of the recorded machine; recorded paths are looked up below
    /// it, and nowhere else
    #[arg(long, value_name = "DIR")]
    sysroot: Option<PathBuf>,

    /// Look for files recorded below FROM in TO. May be repeated
    #[arg(long, value_name = "FROM=TO", value_parser = parse_map)]
    map_path: Vec<(PathBuf, PathBuf)>,

    /// Use files of another build than the recorded one too, and recorded paths without a build id;
    /// names may then be wrong
    #[arg(long)]
    allow_mismatch: bool,

    /// Look for no symbols: modules and offsets only
    #[arg(long)]
    no_symbols: bool,

    /// Ask the servers in DEBUGINFOD_URLS for files that are not here, if this cairn was built with
    /// the feature debuginfod; this is the default
    #[arg(long, overrides_with = "no_debuginfod")]
    debuginfod: bool,

    /// Ask no servers for files
    #[arg(long, overrides_with = "debuginfod")]
    no_debuginfod: bool,

    #[command(flatten)]
    cache: CacheOptions,
}

/// With what the user says of compressed debug information.
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

impl SymbolOptions {
    /// False when no names are wanted.
    pub(crate) fn wanted(&self) -> bool {
        !self.no_symbols
    }

    /// True when files of another build may name addresses too.
    pub(crate) fn allows_mismatch(&self) -> bool {
        self.allow_mismatch
    }

    /// False when the user says where the root of the recorded machine is.
    pub(crate) fn in_own_root(&self) -> bool {
        self.sysroot.is_none()
    }

    /// The root of the recorded machine, where the user says where it is.
    pub(crate) fn root(&self) -> Option<&std::path::Path> {
        self.sysroot.as_deref()
    }

    /// For recordings and images, which may come from strangers and name any file of this machine.
    pub(crate) fn symbolizer(&self) -> SymbolizerOptions {
        let options = limited(SymbolizerOptions::new()).allow_mismatch(self.allow_mismatch);
        let mut options = options.only_checked_paths(true).debuginfod(self.debuginfod || !self.no_debuginfod);
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

    /// Has another process build the missing indexes. To be called after the answers.
    pub(crate) fn index_later(&self, names: &Names) {
        self.index_these_later(names.without_index());
    }

    /// The same for programs that are known.
    pub(crate) fn index_these_later(&self, programs: Vec<PathBuf>) {
        let mut search = Search::default().flag("--allow-mismatch", self.allow_mismatch);
        search = search.flag("--no-debuginfod", self.no_debuginfod);
        search = self.symbols.iter().fold(search, |search, path| search.path("--symbol-dir", path));
        search = self.debug_dir.iter().fold(search, |search, path| search.path("--debug-dir", path));
        search = self.sysroot.iter().fold(search, |search, path| search.path("--sysroot", path));
        search = self.map_path.iter().fold(search, |search, (from, to)| search.map(from, to));
        self.cache.build_later(programs, search);
    }
}

/// Says for each module once why its frames have no names, and which files were not used or are of
/// another build.
pub(crate) fn complain_about_modules(names: &Names) {
    for (key, report) in names.reports() {
        let module = file_name_of(&key.path);
        // Mappings of the kernel itself, such as `[vdso]`, have no file.
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

/// Returns advice on missing names: most functions of these modules have none, because their debug
/// files are not here.
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
