//! Reasons why a program cannot be started, or not be recorded, and remedies.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// A reason why a program cannot be recorded. The text has the cause and a remedy.
#[derive(Debug)]
#[non_exhaustive]
pub enum Obstacle {
    /// No file of that name is there, or in the directories of `PATH`.
    NotFound {
        /// The name.
        name: PathBuf,
    },
    /// The file cannot be run.
    NotExecutable {
        /// The file.
        path: PathBuf,
        /// The cause.
        reason: String,
    },
    /// The file cannot be read.
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The program is linked statically: there is no loader that would load a library into it.
    Static {
        /// The file.
        path: PathBuf,
    },
    /// The file is glibc's loader, which runs the program that its arguments name.
    Loader {
        /// The file.
        path: PathBuf,
    },
    /// The program gains rights when it is run; the loader then loads no foreign libraries.
    GainsRights {
        /// The file.
        path: PathBuf,
        /// The source of the rights.
        by: &'static str,
    },
    /// The program is for another kind of processor, or has 32 bits.
    OtherMachine {
        /// The file.
        path: PathBuf,
        /// The program's kind of processor.
        machine: String,
    },
    /// The program uses another loader than glibc's.
    OtherLoader {
        /// The file.
        path: PathBuf,
        /// The loader.
        loader: String,
    },
    /// The program has a sanitizer that must be the first library, and that ends the program
    /// otherwise.
    Sanitizer {
        /// The file.
        path: PathBuf,
        /// The sanitizer's library.
        library: String,
    },
    /// The program has an allocator of its own, whose calls cannot be seen from outside.
    OwnAllocator {
        /// The file.
        path: PathBuf,
    },
}

impl Obstacle {
    /// Returns true when the program could run without being recorded.
    #[must_use]
    pub const fn can_run(&self) -> bool {
        !matches!(self, Self::NotFound { .. } | Self::NotExecutable { .. })
    }
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFound { name } => write!(f, "{}: no such program", name.display()),
            Self::NotExecutable { path, reason } => write!(f, "{}: cannot be run: {reason}", path.display()),
            Self::Unreadable { path, source } => {
                write!(
                    f,
                    "{}: {source}; cairn must read the program to see whether it can be recorded",
                    path.display()
                )
            }
            Self::Static { path } => write!(
                f,
                "{}: linked statically, so no library can be loaded into it; link it dynamically, or link cairn into it: the \
                 global allocator of cairn-heap in Rust, libcairn.a in C",
                path.display()
            ),
            Self::Loader { path } => write!(
                f,
                "{}: the loader itself; record the program that it runs, by its own name",
                path.display()
            ),
            Self::GainsRights { path, by } => write!(
                f,
                "{}: gains rights when it runs ({by}), and the loader then ignores LD_PRELOAD; record a copy of the file \
                 without them, or run cairn as the user that it becomes",
                path.display()
            ),
            Self::OtherMachine { path, machine } => write!(
                f,
                "{}: a program for {machine}; this cairn records programs for {}",
                path.display(),
                crate::program::OWN_MACHINE.1
            ),
            Self::OtherLoader { path, loader } => write!(
                f,
                "{}: runs with the loader {loader}; this cairn records programs that run with glibc's; build it for glibc",
                path.display()
            ),
            Self::Sanitizer { path, library } => write!(
                f,
                "{}: built with a sanitizer ({library}), which has to be the first of all libraries and brings its own malloc; \
                 build it without -fsanitize to record it",
                path.display()
            ),
            Self::OwnAllocator { path } => write!(
                f,
                "{}: has a malloc of its own linked in, whose calls are invisible from outside; build it without (jemalloc, \
                 tcmalloc and mimalloc can be recorded as shared libraries), or link cairn into it",
                path.display()
            ),
        }
    }
}

impl std::error::Error for Obstacle {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Unreadable { source, .. } => Some(source),
            _ => None,
        }
    }
}
