//! The recorded identity of a module, and the report of the search for its symbols.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use crate::Unknown;

/// Identifies one module of a [`Symbolizer`](crate::Symbolizer).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ModuleId(pub(crate) u32);

impl ModuleId {
    /// Returns the module's number, counted from 0 in order of addition.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Identifies a build: a GNU build id, a Mach-O UUID, or a PDB's GUID and age as stored.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BuildId(Arc<[u8]>);

impl BuildId {
    /// Wraps the bytes of an id.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Self {
        Self(bytes.into())
    }

    /// Parses hexadecimal of either case; `None` for anything else, and for an empty id.
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

    /// Returns the bytes of the id.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for BuildId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        cairn_format::Hexadecimal(&self.0).fmt(f)
    }
}

impl fmt::Debug for BuildId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BuildId({self})")
    }
}

/// Describes a file that was mapped into the watched program.
///
/// Each additional fact makes it more likely that a different file of the same name is noticed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct ModuleInfo {
    /// Path on the recorded machine, or the kernel's name of a mapping without a file, as `[vdso]`.
    pub path: PathBuf,
    /// Build id, if one was recorded.
    pub build_id: Option<BuildId>,
    /// Size; compared if there is no build id.
    pub size_bytes: Option<u64>,
    /// Modification time; compared if there is no build id.
    pub modified: Option<SystemTime>,
}

impl ModuleInfo {
    /// Creates a module with a path only.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), ..Self::default() }
    }

    /// Sets the build id.
    #[must_use]
    pub fn with_build_id(mut self, build_id: BuildId) -> Self {
        self.build_id = Some(build_id);
        self
    }

    /// Sets the size.
    #[must_use]
    pub fn with_size_bytes(mut self, size_bytes: u64) -> Self {
        self.size_bytes = Some(size_bytes);
        self
    }

    /// Sets the modification time.
    #[must_use]
    pub fn with_modified(mut self, modified: SystemTime) -> Self {
        self.modified = Some(modified);
        self
    }
}

/// Reports the search for a module's symbols.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct ModuleReport {
    /// The files that answer; the mapped file first.
    pub used: Vec<PathBuf>,
    /// Files that were found but not used, with the reason.
    pub refused: Vec<(PathBuf, Unknown)>,
    /// Files that are used although their build differs from the recorded one, because that was
    /// allowed.
    pub mismatched: Vec<(PathBuf, Unknown)>,
    /// The reason if nothing answers for this module.
    pub missing: Option<Unknown>,
    /// Whether the answers come from the index on disk.
    pub from_index: bool,
}
