//! Where a symbolizer looks, what it may use, and what it keeps.

use std::path::PathBuf;

/// Where a [`Symbolizer`](crate::Symbolizer) looks for files, and what it may do with them.
///
/// ```
/// use cairn_symbols::SymbolizerOptions;
/// let options = SymbolizerOptions::new()
///     .debug_dir("/srv/debug")
///     .sysroot("/srv/target-root")
///     .map_path("/build/app", "/home/me/app");
/// # let _ = options;
/// ```
#[derive(Clone, Debug)]
pub struct SymbolizerOptions {
    pub(crate) debug_dirs: Vec<PathBuf>,
    pub(crate) symbol_dirs: Vec<PathBuf>,
    pub(crate) sysroot: Option<PathBuf>,
    pub(crate) path_maps: Vec<(PathBuf, PathBuf)>,
    pub(crate) cache_dir: Option<PathBuf>,
    pub(crate) cache_limit_bytes: u64,
    pub(crate) indexes_in_background: bool,
    pub(crate) allow_mismatch: bool,
    pub(crate) only_checked_paths: bool,
    pub(crate) debuginfod: bool,
    pub(crate) threads: usize,
    pub(crate) max_unpacked_bytes: Option<u64>,
}

impl Default for SymbolizerOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl SymbolizerOptions {
    /// Looks at the recorded paths and in `/usr/lib/debug`, keeps no index, refuses files of another build. With the feature
    /// `debuginfod`, servers that the environment names in `DEBUGINFOD_URLS` are asked last.
    #[must_use]
    pub fn new() -> Self {
        Self {
            debug_dirs: Vec::new(),
            symbol_dirs: Vec::new(),
            sysroot: None,
            path_maps: Vec::new(),
            cache_dir: None,
            cache_limit_bytes: DEFAULT_CACHE_LIMIT_BYTES,
            indexes_in_background: true,
            allow_mismatch: false,
            only_checked_paths: false,
            debuginfod: true,
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            max_unpacked_bytes: None,
        }
    }

    /// Also looks for debug files in this directory, before `/usr/lib/debug`: as `.build-id/xx/yyy.debug`, and by the name
    /// that the program states.
    #[must_use]
    pub fn debug_dir(mut self, directory: impl Into<PathBuf>) -> Self {
        self.debug_dirs.push(directory.into());
        self
    }

    /// Also looks for the recorded files themselves in this directory: by their whole path, by their name alone, and as
    /// `.build-id/xx/yyy.debug`.
    #[must_use]
    pub fn symbol_dir(mut self, directory: impl Into<PathBuf>) -> Self {
        self.symbol_dirs.push(directory.into());
        self
    }

    /// Takes all recorded paths, and `/usr/lib/debug`, as below this directory, and opens nothing outside of it but what
    /// other options name.
    #[must_use]
    pub fn sysroot(mut self, directory: impl Into<PathBuf>) -> Self {
        self.sysroot = Some(directory.into());
        self
    }

    /// Looks for recorded files below `from` in `to` instead; the longest `from` that fits is taken.
    #[must_use]
    pub fn map_path(mut self, from: impl Into<PathBuf>, to: impl Into<PathBuf>) -> Self {
        self.path_maps.push((from.into(), to.into()));
        self
    }

    /// Keeps an index of each file's symbols in this directory, for the next time.
    #[must_use]
    pub fn cache_dir(mut self, directory: impl Into<PathBuf>) -> Self {
        self.cache_dir = Some(directory.into());
        self
    }

    /// The most bytes that the cache directory holds; the indexes unused for longest are deleted first. 2 GiB if not set.
    #[must_use]
    pub fn cache_limit_bytes(mut self, limit: u64) -> Self {
        self.cache_limit_bytes = limit;
        self
    }

    /// Whether a thread of this process builds missing indexes after a module's first answer, as it does if this is not set.
    /// Who does not run for long says no, and has another process build what
    /// [`Symbolizer::without_index`](crate::Symbolizer::without_index) tells.
    #[must_use]
    pub fn indexes_in_background(mut self, build: bool) -> Self {
        self.indexes_in_background = build;
        self
    }

    /// Uses files of another build than the recorded one, and says so in the module's report.
    #[must_use]
    pub fn allow_mismatch(mut self, allow: bool) -> Self {
        self.allow_mismatch = allow;
        self
    }

    /// Opens a recorded path only where the file can be checked by a recorded build id: for
    /// recordings of strangers, which may name any file of this machine. Files below directories
    /// that other options name are searched for as before, and
    /// [`allow_mismatch`](Self::allow_mismatch) opens all recorded paths. Not so if not set.
    #[must_use]
    pub fn only_checked_paths(mut self, only: bool) -> Self {
        self.only_checked_paths = only;
        self
    }

    /// Whether servers that the environment names in `DEBUGINFOD_URLS` are asked for files that are not here, as they are if
    /// this is not set. Without the feature `debuginfod` nobody is asked.
    #[must_use]
    pub fn debuginfod(mut self, ask: bool) -> Self {
        self.debuginfod = ask;
        self
    }

    /// How many threads answer; all processors if not set, and never fewer than one.
    #[must_use]
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads.max(1);
        self
    }

    /// How many bytes the compressed debug information of one file may unpack to, whatever its
    /// size; what is usual for its size if this is not set
    /// ([`UnpackBound::DEBUG_SECTIONS`](cairn_format::unpack::UnpackBound::DEBUG_SECTIONS)).
    #[must_use]
    pub fn max_unpacked_bytes(mut self, limit: u64) -> Self {
        self.max_unpacked_bytes = Some(limit);
        self
    }
}

/// Some dozens of large programs: an index is about a tenth of the file.
const DEFAULT_CACHE_LIMIT_BYTES: u64 = 2 << 30;
