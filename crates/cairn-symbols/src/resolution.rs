//! The answers of a symbolizer: frames, or the reason for none.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use cairn_format::StatedAddress;

use crate::BuildId;

/// A source position of an address.
///
/// Texts are shared: equal names in the answers of one symbolizer are mostly one allocation.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct SourceFrame {
    /// Readable name of the function; `module+0x…` if only its start is known.
    pub function: Option<Arc<str>>,
    /// The linkage name.
    pub raw_name: Option<Arc<str>>,
    /// Source file as the compiler wrote it.
    pub file: Option<Arc<str>>,
    /// Line in the source file, from 1.
    pub line: Option<u32>,
    /// Column in the line, from 1.
    pub column: Option<u32>,
    /// Distinguishes basic blocks of one line, if the compiler numbered them; innermost frame only.
    pub discriminator: Option<u32>,
    /// True if the compiler inlined this function into that of the next frame.
    pub inlined: bool,
}

impl fmt::Display for SourceFrame {
    /// Writes `function at file:line`, as far as known.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.function.as_deref().unwrap_or("??"))?;
        match (&self.file, self.line) {
            (Some(file), Some(line)) => write!(f, " at {file}:{line}"),
            (Some(file), None) => write!(f, " at {file}"),
            (None, _) => Ok(()),
        }
    }
}

/// The answer to a lookup: at least one frame, or the reason for none.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Resolution {
    frames: Arc<[SourceFrame]>,
    function_start: Option<StatedAddress>,
    answered_by: Option<AnsweredBy>,
    unknown: Option<Unknown>,
}

/// The source that answered, in modules with several.
///
/// ```
/// use cairn_symbols::AnsweredBy;
///
/// assert_eq!(AnsweredBy::Pdb.to_string(), "PDB");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum AnsweredBy {
    /// The DWARF inside the file covers the address.
    Dwarf,
    /// The PDB covers the address, and the DWARF does not.
    Pdb,
    /// Only the symbol table or the exports have a name.
    Symbols,
    /// Only the unwind table states where the function begins.
    UnwindTable,
}

impl fmt::Display for AnsweredBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Dwarf => "DWARF",
            Self::Pdb => "PDB",
            Self::Symbols => "symbols",
            Self::UnwindTable => "unwind table",
        })
    }
}

impl Resolution {
    pub(crate) fn known(
        frames: Arc<[SourceFrame]>,
        function_start: Option<StatedAddress>,
        answered_by: Option<AnsweredBy>,
    ) -> Self {
        Self { frames, function_start, answered_by, unknown: None }
    }

    pub(crate) fn unknown(reason: Unknown) -> Self {
        Self { frames: Arc::default(), function_start: None, answered_by: None, unknown: Some(reason) }
    }

    /// Returns the frames, innermost inlined call first, the containing function last; empty if
    /// unknown.
    #[must_use]
    pub fn frames(&self) -> &[SourceFrame] {
        &self.frames
    }

    /// Returns the reason if there are no frames.
    #[must_use]
    pub fn reason(&self) -> Option<&Unknown> {
        self.unknown.as_ref()
    }

    /// Returns the source that answered; `None` for modules with a single source, and without an
    /// answer.
    #[must_use]
    pub fn answered_by(&self) -> Option<AnsweredBy> {
        self.answered_by
    }

    /// Returns the start of the containing function, if symbol or unwind tables state it.
    #[must_use]
    pub fn function_start(&self) -> Option<StatedAddress> {
        self.function_start
    }
}

/// The answers to many lookups, in order; equal ones share storage.
#[derive(Clone, Debug, Default)]
pub struct Resolutions {
    pub(crate) distinct: Vec<Resolution>,
    pub(crate) places: Vec<u32>,
}

impl Resolutions {
    /// Returns the number of lookups.
    #[must_use]
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Reports whether there were no lookups.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Returns the answer to the lookup at an index.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<&Resolution> {
        self.distinct.get(self.distinct_index(index)?)
    }

    /// Iterates over the answers in the order of the lookups.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Resolution> {
        self.places.iter().map(|&place| &self.distinct[place as usize])
    }

    /// Returns each distinct answer once, so that printers format each only once.
    #[must_use]
    pub fn distinct(&self) -> &[Resolution] {
        &self.distinct
    }

    /// Returns the position in [`distinct`](Self::distinct) of the answer to a lookup.
    #[must_use]
    pub fn distinct_index(&self, index: usize) -> Option<usize> {
        self.places.get(index).map(|&place| place as usize)
    }
}

/// The source position and start address of a function or variable.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Declaration {
    /// Source file as the compiler wrote it.
    pub file: Option<Arc<str>>,
    /// Line in the source file, from 1.
    pub line: Option<u32>,
    /// First address; unknown for inlined calls in several pieces.
    pub start: Option<StatedAddress>,
}

/// A symbol at an address, of code or data.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct DataSymbol {
    /// Readable name.
    pub name: Arc<str>,
    /// Linkage name.
    pub raw_name: Arc<str>,
    /// Size in bytes; 0 if the symbol table has none.
    pub size_bytes: u64,
    /// Start and declaration. A local symbol without debug information has its source file only,
    /// without the directory.
    pub declaration: Declaration,
}

/// Explains why an address has no name.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Unknown {
    /// When no file was found under the module's path or build id.
    NoSuchFile {
        /// The path that was searched for.
        path: PathBuf,
    },
    /// When the file cannot be read, or is not what it should be.
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The cause.
        problem: Arc<str>,
    },
    /// When the module's path was not opened because no build id was recorded for it.
    ///
    /// Happens only with [`only_checked_paths`](crate::SymbolizerOptions::only_checked_paths).
    NotChecked {
        /// The path.
        path: PathBuf,
    },
    /// When the found file is of another build than the recorded one.
    DifferentBuild {
        /// The file.
        path: PathBuf,
        /// The difference.
        difference: Difference,
    },
    /// When the file has no debug information and no symbols, and no debug file was found.
    NoDebugInfo,
    /// When the address is outside the module's code.
    AddressOutside,
    /// When the address is in the module's code, but nothing covers it.
    NotCovered,
    /// When the debug information that should cover the address is broken.
    Broken {
        /// The cause.
        problem: Arc<str>,
    },
}

/// The difference between a file and the recorded one.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Difference {
    /// When the build ids differ, or the file has none.
    BuildId {
        /// The recorded build id.
        expected: BuildId,
        /// The file's build id.
        found: Option<BuildId>,
    },
    /// When the sizes differ.
    Size {
        /// The recorded size.
        expected: u64,
        /// The file's size.
        found: u64,
    },
    /// When the modification times differ.
    Modified,
    /// When the file's checksum differs from the one that the program states.
    Checksum {
        /// The stated checksum.
        expected: u32,
        /// The file's checksum.
        found: u32,
    },
}

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuchFile { path } => write!(f, "no such file: {}", path.display()),
            Self::NotChecked { path } => write!(
                f,
                "{} was not opened, because no build id was recorded for it; --allow-mismatch opens it, --symbols \
                 searches a directory",
                path.display()
            ),
            Self::Unreadable { path, problem } => write!(f, "{}: {problem}", path.display()),
            Self::DifferentBuild { path, difference } => {
                write!(f, "{} is of a different build: {difference}", path.display())
            }
            Self::NoDebugInfo => f.write_str("no debug information and no symbols"),
            Self::AddressOutside => f.write_str("the address is outside of the module's code"),
            Self::NotCovered => f.write_str("nothing is known of this part of the module"),
            Self::Broken { problem } => write!(f, "broken debug information: {problem}"),
        }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BuildId { expected, found: Some(found) } => {
                write!(f, "its build id is {found}, recorded was {expected}")
            }
            Self::BuildId { expected, found: None } => {
                write!(f, "it has no build id, recorded was {expected}")
            }
            Self::Size { expected, found } => write!(f, "it has {found} bytes, recorded were {expected}"),
            Self::Modified => f.write_str("it was changed at another time than the recorded one"),
            Self::Checksum { expected, found } => {
                write!(f, "its checksum is {found:08x}, the program states {expected:08x}")
            }
        }
    }
}
