//! What a recording knows of a file, and what became of the search for its symbols.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use crate::Unknown;

/// The handle of one module of a [`Symbolizer`](crate::Symbolizer).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ModuleId(pub(crate) u32);

impl ModuleId {
    /// The module's number: the first one added is 0.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// What says that two files are of one build: a GNU build id, a Mach-O UUID, or a PDB's GUID and age as they are stored.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BuildId(Arc<[u8]>);

impl BuildId {
    /// Wraps the id's bytes.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Self {
        Self(bytes.into())
    }

    /// Reads the hexadecimal form, upper or lower case; `None` for anything else, and for an empty id.
    ///
    /// ```
    /// use cairn_symbols::BuildId;
    /// let id = BuildId::from_hex("09f3C0de").unwrap();
    /// assert_eq!(id.to_string(), "09f3c0de");
    /// assert_eq!(BuildId::from_hex("09f"), None);
    /// ```
    #[must_use]
    pub fn from_hex(text: &str) -> Option<Self> {
        let digits = text.as_bytes();
        if digits.is_empty() || !digits.len().is_multiple_of(2) {
            return None;
        }
        let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|value| u8::try_from(value).ok());
        let bytes: Option<Vec<u8>> =
            digits.chunks(2).map(|pair| Some(digit(pair[0])? << 4 | digit(pair[1])?)).collect();
        Some(Self(bytes?.into()))
    }

    /// The id's bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for BuildId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for BuildId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BuildId({self})")
    }
}

/// What a recording knows of a file that was mapped into the watched program.
///
/// The more of it is known, the surer it is that another file of the same name is noticed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct ModuleInfo {
    /// The file's path on the machine of the recording, or the kernel's word for what is no file, as `[vdso]`.
    pub path: PathBuf,
    /// The id of its build.
    pub build_id: Option<BuildId>,
    /// Its size; compared where there is no build id.
    pub size_bytes: Option<u64>,
    /// When it was last written; compared where there is no build id.
    pub modified: Option<SystemTime>,
}

impl ModuleInfo {
    /// A module of which only the path is known.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), ..Self::default() }
    }

    /// The same module with its build id.
    #[must_use]
    pub fn with_build_id(mut self, build_id: BuildId) -> Self {
        self.build_id = Some(build_id);
        self
    }

    /// The same module with its size.
    #[must_use]
    pub fn with_size_bytes(mut self, size_bytes: u64) -> Self {
        self.size_bytes = Some(size_bytes);
        self
    }

    /// The same module with the time of its last change.
    #[must_use]
    pub fn with_modified(mut self, modified: SystemTime) -> Self {
        self.modified = Some(modified);
        self
    }
}

/// What became of the search for a module's symbols.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct ModuleReport {
    /// The files that answer, the one that was mapped first.
    pub used: Vec<PathBuf>,
    /// Files that were found and are not used, and why.
    pub refused: Vec<(PathBuf, Unknown)>,
    /// Files that are used although they are of another build than the recorded one, because that was allowed.
    pub mismatched: Vec<(PathBuf, Unknown)>,
    /// Why nothing answers for this module, when nothing does.
    pub missing: Option<Unknown>,
    /// True when the answers come from the index on disk.
    pub from_index: bool,
}
