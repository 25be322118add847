//! What is answered: frames, or the reason for none.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use cairn_format::StatedAddress;

use crate::BuildId;

/// One source location of an address.
///
/// The texts are shared: equal names of one symbolizer's answers are mostly one allocation.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct SourceFrame {
    /// Readable name of the function; `module+0x…` when only its first address is known.
    pub function: Option<Arc<str>>,
    /// Its name as the linker knows it.
    pub raw_name: Option<Arc<str>>,
    /// Source file as the compiler wrote it.
    pub file: Option<Arc<str>>,
    /// Line in the source file, from 1.
    pub line: Option<u32>,
    /// Column in the line, from 1.
    pub column: Option<u32>,
    /// Tells blocks of one line apart, where the compiler numbered them; of the innermost frame alone.
    pub discriminator: Option<u32>,
    /// True when the compiler put this function's body into the next frame's function.
    pub inlined: bool,
}

impl fmt::Display for SourceFrame {
    /// `function at file:line`, as far as it is known.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.function.as_deref().unwrap_or("??"))?;
        match (&self.file, self.line) {
            (Some(file), Some(line)) => write!(f, " at {file}:{line}"),
            (Some(file), None) => write!(f, " at {file}"),
            (None, _) => Ok(()),
        }
    }
}

/// The answer to one lookup: at least one frame, or the reason for none.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Resolution {
    frames: Arc<[SourceFrame]>,
    function_start: Option<StatedAddress>,
    answered_by: Option<AnsweredBy>,
    unknown: Option<Unknown>,
}

/// Which of several sources of a module knew an address.
///
/// ```
/// use cairn_symbols::AnsweredBy;
///
/// assert_eq!(AnsweredBy::Pdb.to_string(), "PDB");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum AnsweredBy {
    /// When it is covered by the DWARF inside the file.
    Dwarf,
    /// When the PDB knows it, and the DWARF does not.
    Pdb,
    /// When it has no more than a name, in the symbol table or among the exports.
    Symbols,
    /// When the table for unwinding alone says where its function begins.
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

    /// Innermost inlined call first, the function that holds the address last. Empty when nothing is known.
    #[must_use]
    pub fn frames(&self) -> &[SourceFrame] {
        &self.frames
    }

    /// Why there are no frames; `None` when there are some.
    #[must_use]
    pub fn reason(&self) -> Option<&Unknown> {
        self.unknown.as_ref()
    }

    /// Which source of the module knew the address; `None` for kinds of files that have one source, and for no answer.
    #[must_use]
    pub fn answered_by(&self) -> Option<AnsweredBy> {
        self.answered_by
    }

    /// The first address of the function that holds the address, where the symbol or unwind tables told it.
    #[must_use]
    pub fn function_start(&self) -> Option<StatedAddress> {
        self.function_start
    }
}

/// The answers to many lookups, in the order of the lookups, each distinct one kept once.
#[derive(Clone, Debug, Default)]
pub struct Resolutions {
    pub(crate) distinct: Vec<Resolution>,
    pub(crate) places: Vec<u32>,
}

impl Resolutions {
    /// How many lookups were answered.
    #[must_use]
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// True when nothing was asked.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// The answer to the lookup of this index.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<&Resolution> {
        self.distinct.get(self.distinct_index(index)?)
    }

    /// The answers in the order of the lookups.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Resolution> {
        self.places.iter().map(|&place| &self.distinct[place as usize])
    }

    /// Each distinct answer once. Who prints answers formats these, and then copies text.
    #[must_use]
    pub fn distinct(&self) -> &[Resolution] {
        &self.distinct
    }

    /// Where in [`distinct`](Self::distinct) the answer to the lookup of this index is.
    #[must_use]
    pub fn distinct_index(&self, index: usize) -> Option<usize> {
        self.places.get(index).map(|&place| place as usize)
    }
}

/// Where a function or a variable is written in its source, and where it begins.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Declaration {
    /// Source file as the compiler wrote it.
    pub file: Option<Arc<str>>,
    /// Line in the source file, from 1.
    pub line: Option<u32>,
    /// First address; not known of inlined calls whose code is in several pieces.
    pub start: Option<StatedAddress>,
}

/// What symbol tables name at an address, be it code or data.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct DataSymbol {
    /// Its readable name.
    pub name: Arc<str>,
    /// Its name as the linker knows it.
    pub raw_name: Arc<str>,
    /// Its size; 0 where the symbol table has none.
    pub size_bytes: u64,
    /// Where it begins, and where a variable is declared. Of a local symbol without debug information: the source file
    /// alone, without its directory.
    pub declaration: Declaration,
}

/// Why an address has no name.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Unknown {
    /// No file was found under the module's name, nor under its build id.
    NoSuchFile {
        /// The name that was searched for.
        path: PathBuf,
    },
    /// The file is there and cannot be read, or is not what it should be.
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: Arc<str>,
    },
    /// No build id was recorded for the module, so that its path was not opened
    /// ([`only_checked_paths`](crate::SymbolizerOptions::only_checked_paths)).
    NotChecked {
        /// The path.
        path: PathBuf,
    },
    /// The file that was found is of another build than the one that was recorded.
    DifferentBuild {
        /// The file.
        path: PathBuf,
        /// What tells them apart.
        difference: Difference,
    },
    /// The file has neither debug information nor a symbol table, and no debug file was found for it.
    NoDebugInfo,
    /// The address is in no part of the module that holds code.
    AddressOutside,
    /// The address is in the module's code, and nothing that is known of the module covers it.
    NotCovered,
    /// The debug information that should cover the address is broken.
    Broken {
        /// What is wrong with it.
        problem: Arc<str>,
    },
}

/// What tells a file from the one that was recorded.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Difference {
    /// Their build ids; a found file may have none.
    BuildId {
        /// What was recorded.
        expected: BuildId,
        /// What the file says.
        found: Option<BuildId>,
    },
    /// Their sizes.
    Size {
        /// What was recorded.
        expected: u64,
        /// What the file has.
        found: u64,
    },
    /// When they were last written.
    Modified,
    /// The checksum that the program states of its debug file.
    Checksum {
        /// What the program states.
        expected: u32,
        /// What the file has.
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
