//! The options of a symbolizer: where to search, what to use, what to cache.

use std::path::PathBuf;

/// Options of a [`Symbolizer`](crate::Symbolizer): where it searches for files, and how it uses
/// them.
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
    /// Creates the default options.
    ///
    /// They search recorded paths and `/usr/lib/debug`, store no index, and refuse files of another
    /// build. With the feature `debuginfod`, servers in `DEBUGINFOD_URLS` are queried last.
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

    /// Adds a directory of debug files, searched before `/usr/lib/debug`.
    ///
    /// Files are found as `.build-id/xx/yyy.debug`, and by the name that the program states.
    #[must_use]
    pub fn debug_dir(mut self, directory: impl Into<PathBuf>) -> Self {
        self.debug_dirs.push(directory.into());
        self
    }

    /// Adds a directory of the recorded files themselves.
    ///
    /// Files are found by their whole path, by their name alone, and as `.build-id/xx/yyy.debug`.
    #[must_use]
    pub fn symbol_dir(mut self, directory: impl Into<PathBuf>) -> Self {
        self.symbol_dirs.push(directory.into());
        self
    }

    /// Searches recorded paths and `/usr/lib/debug` below this directory.
    ///
    /// No file outside it is opened, except below directories that other options name.
    #[must_use]
    pub fn sysroot(mut self, directory: impl Into<PathBuf>) -> Self {
        self.sysroot = Some(directory.into());
        self
    }

    /// Searches for files below `from` in `to` instead; the longest matching `from` applies.
    #[must_use]
    pub fn map_path(mut self, from: impl Into<PathBuf>, to: impl Into<PathBuf>) -> Self {
        self.path_maps.push((from.into(), to.into()));
        self
    }

    /// Stores an index of each file's symbols in this directory, for later processes.
    #[must_use]
    pub fn cache_dir(mut self, directory: impl Into<PathBuf>) -> Self {
        self.cache_dir = Some(directory.into());
        self
    }

    /// Sets the maximum size of the cache directory; 2 GiB by default.
    ///
    /// The least recently used indexes are deleted first.
    #[must_use]
    pub fn cache_limit_bytes(mut self, limit: u64) -> Self {
        self.cache_limit_bytes = limit;
        self
    }

    /// Sets whether a background thread builds missing indexes; true by default.
    ///
    /// A module's index is built after its first answer. A short-lived process disables this, and
    /// lets another process build the indexes for the files that
    /// [`Symbolizer::without_index`](crate::Symbolizer::without_index) returns.
    #[must_use]
    pub fn indexes_in_background(mut self, build: bool) -> Self {
        self.indexes_in_background = build;
        self
    }

    /// Uses files of another build than the recorded one, and reports them.
    #[must_use]
    pub fn allow_mismatch(mut self, allow: bool) -> Self {
        self.allow_mismatch = allow;
        self
    }

    /// Opens a recorded path only if a recorded build id verifies the file; off by default.
    ///
    /// For recordings of strangers, which may name any file of this machine. Files below
    /// directories that other options name are searched as usual, and
    /// [`allow_mismatch`](Self::allow_mismatch) opens all recorded paths.
    #[must_use]
    pub fn only_checked_paths(mut self, only: bool) -> Self {
        self.only_checked_paths = only;
        self
    }

    /// Sets whether the servers in `DEBUGINFOD_URLS` are queried for missing files; true by
    /// default.
    ///
    /// Without the feature `debuginfod`, no server is queried.
    #[must_use]
    pub fn debuginfod(mut self, ask: bool) -> Self {
        self.debuginfod = ask;
        self
    }

    /// Sets the number of threads; at least one, all processors by default.
    #[must_use]
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads.max(1);
        self
    }

    /// Sets the maximum bytes to which one file's debug information may unpack.
    ///
    /// The default depends on the file's size
    /// ([`UnpackBound::DEBUG_SECTIONS`](cairn_format::unpack::UnpackBound::DEBUG_SECTIONS)).
    #[must_use]
    pub fn max_unpacked_bytes(mut self, limit: u64) -> Self {
        self.max_unpacked_bytes = Some(limit);
        self
    }
}

/// Default size of the cache directory; 2 GiB, enough for dozens of large programs.
///
/// An index is about a tenth of its file.
const DEFAULT_CACHE_LIMIT_BYTES: u64 = 2 << 30;
