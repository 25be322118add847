//! Indexes of symbols: their cache, and the process that builds them.
//!
//! Answering one address is faster than building an index, so commands build none. When its answers
//! are printed, a command starts `cairn symbolize --index-only FILE...`: detached, at the lowest
//! priority, one at a time for each cache directory, for at most ten minutes. The next command
//! finds the indexes.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::time::Duration;

use cairn_files::Directory;
use cairn_symbols::{Symbolizer, SymbolizerOptions};
use clap::Args;

use crate::output::complain;

/// Options of the cache of indexes.
#[derive(Args)]
pub(crate) struct CacheOptions {
    /// Cache indexes of large files in this directory. [default: cairn/symbols in the user's cache
    /// directory]
    #[arg(long, value_name = "DIR", conflicts_with = "no_cache")]
    cache_dir: Option<PathBuf>,

    /// Neither read nor write cached indexes
    #[arg(long)]
    no_cache: bool,
}

impl CacheOptions {
    /// Returns the cache directory; none without a home directory.
    fn directory(&self) -> Option<PathBuf> {
        if self.no_cache {
            return None;
        }
        let absolute =
            |variable| std::env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute());
        #[cfg(not(windows))]
        let user = || absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")));
        #[cfg(windows)]
        let user = || absolute("LOCALAPPDATA");
        let directory = self.cache_dir.clone().or_else(|| Some(user()?.join("cairn/symbols")))?;
        match Directory::check_private(&directory) {
            Err(error) if cairn_files::is_distrust(&error) => {
                static SAID: Once = Once::new();
                SAID.call_once(|| {
                    complain(&format_args!(
                        "note: no index of symbols is used: {error}; name a directory of your own with --cache-dir"
                    ));
                });
                None
            }
            _ => Some(directory),
        }
    }

    /// Adds the directory to the options of a symbolizer that builds no index by itself.
    pub(crate) fn apply(&self, options: SymbolizerOptions) -> SymbolizerOptions {
        self.directory().into_iter().fold(options, SymbolizerOptions::cache_dir).indexes_in_background(false)
    }

    /// Starts another process that builds the indexes of these programs, with the options of
    /// `search`. Errors are ignored: the answers were printed.
    pub(crate) fn build_later(&self, programs: Vec<PathBuf>, search: Search) {
        let _ = self.try_build_later(programs, search);
    }

    fn try_build_later(&self, programs: Vec<PathBuf>, search: Search) -> io::Result<()> {
        let Some(directory) = self.directory().filter(|_| !programs.is_empty()) else { return Ok(()) };
        let programs = programs.into_iter().take(MAX_PROGRAMS);
        // The new process would end at once if another one holds the lock.
        let lock = lock(&directory)?;
        drop(lock);
        let mut arguments: Vec<OsString> = vec!["symbolize".into()];
        arguments.extend(search.arguments);
        arguments.extend(["--cache-dir".into(), std::path::absolute(&directory)?.into()]);
        arguments.push("--index-only".into());
        for program in programs {
            arguments.push(std::path::absolute(program)?.into());
        }
        start(&arguments)
    }

    /// Builds the indexes of these files now; true if all of them exist afterwards.
    pub(crate) fn build_now(&self, files: &[PathBuf], options: SymbolizerOptions) -> io::Result<bool> {
        let directory = self.directory().ok_or_else(|| {
            io::Error::other(if cfg!(windows) {
                "there is no directory for indexes: give --cache-dir DIR, or set LOCALAPPDATA"
            } else {
                "there is no directory for indexes: give --cache-dir DIR, or set HOME to your own"
            })
        })?;
        let _lock = lock(&directory)?;
        std::thread::spawn(|| {
            std::thread::sleep(LONGEST);
            // The next builder removes the unfinished file by its name.
            std::process::exit(1);
        });
        let mut symbolizer = Symbolizer::new(options);
        let mut all = true;
        for file in files {
            // One after the other, so that the memory of one is free before the next.
            let module = symbolizer.add_file(file).map_err(io::Error::other)?;
            all &= symbolizer.build_index(module);
        }
        Ok(all)
    }
}

/// The search for debug files, as arguments of `cairn symbolize`.
#[derive(Default)]
pub(crate) struct Search {
    arguments: Vec<OsString>,
}

impl Search {
    /// Adds an option with a path, which becomes absolute.
    pub(crate) fn path(mut self, option: &str, path: &Path) -> Self {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        self.arguments.extend([option.into(), path.into()]);
        self
    }

    /// Adds `--map-path FROM=TO`; `from` is a path on another machine.
    pub(crate) fn map(mut self, from: &Path, to: &Path) -> Self {
        let to = std::path::absolute(to).unwrap_or_else(|_| to.to_owned());
        let mut both = from.as_os_str().to_owned();
        both.push("=");
        both.push(to);
        self.arguments.extend(["--map-path".into(), both]);
        self
    }

    /// Adds a flag if it is set.
    pub(crate) fn flag(mut self, option: &str, set: bool) -> Self {
        self.arguments.extend(set.then(|| option.into()));
        self
    }
}

#[cfg(target_os = "linux")]
fn start(arguments: &[OsString]) -> io::Result<()> {
    cairn_run::start_detached(&std::env::current_exe()?, "cairn".as_ref(), arguments)
}

/// Starts nothing.
///
/// A process would inherit the pipes of this one, and their reader would wait for its end.
#[cfg(not(target_os = "linux"))]
fn start(_arguments: &[OsString]) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Locks the cache directory for one builder. The kernel releases the lock when its holder ends.
fn lock(directory: &Path) -> io::Result<File> {
    let file = Directory::private(directory)?.modify_or_create(".builder.lock".as_ref())?;
    file.try_lock().map_err(|_| io::Error::other("another process builds indexes in the same directory"))?;
    Ok(file)
}

/// Maximum programs for one builder: the length of a command line is limited.
const MAX_PROGRAMS: usize = 256;

/// Maximum time of a builder. A program of one gigabyte takes about ten seconds.
const LONGEST: Duration = Duration::from_secs(600);
