//! Symbol files that are not ELF: PE with PDB or DWARF, Mach-O with dSYM, Breakpad, perf maps,
//! jitdump.
//!
//! The first bytes of a file decide its kind, never its name; perf maps are the exception, because
//! they have no magic number.

mod breakpad;
mod generated;
mod jitdump;
mod macho;
mod object_dwarf;
mod object_symbols;
mod overlay;
#[cfg_attr(not(feature = "pdb"), path = "pdb_disabled.rs")]
mod pdb;
mod pe;
mod perf_map;

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::locate::Locator;
use crate::mapped_file::FileBytes;
use crate::source::SymbolSource;
use crate::{BuildId, Unknown};

pub use generated::{GeneratedFormat, GeneratedNames, GeneratedPiece, SeenAddress};

/// The bytes of a file, mapped or in memory.
pub(crate) type Bytes = Arc<FileBytes>;

/// Describes where and how a file violates its format.
pub(crate) type FormatError = Box<dyn std::error::Error + Send + Sync>;

/// A kind of file that this module reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FileKind {
    /// A Windows program or library.
    Pe,
    /// The symbols of a Windows program.
    Pdb,
    /// A macOS program, or the file inside its dSYM bundle.
    MachO,
    /// Breakpad's text symbols.
    Breakpad,
    /// `/tmp/perf-PID.map`.
    PerfMap,
    /// The file that perf agents in just-in-time compilers write.
    JitDump,
}

/// Magic number of a PDB.
const PDB_MAGIC: &[u8] = b"Microsoft C/C++ MSF 7.00\r\n\x1a\x44\x53\0\0\0";

/// Detects the kind of a file from its first bytes; `None` if this module does not read it.
pub(crate) fn kind(path: &Path, head: &[u8]) -> Option<FileKind> {
    match head {
        [b'M', b'Z', ..] => Some(FileKind::Pe),
        _ if head.starts_with(PDB_MAGIC) => Some(FileKind::Pdb),
        [0xfe, 0xed, 0xfa, 0xce | 0xcf, ..] | [0xce | 0xcf, 0xfa, 0xed, 0xfe, ..] => Some(FileKind::MachO),
        // Java classes share this magic. A universal file has a small count where a class has its
        // version.
        [0xca, 0xfe, 0xba, 0xbe | 0xbf, 0, 0, 0, 0..30, ..] => Some(FileKind::MachO),
        [b'M', b'O', b'D', b'U', b'L', b'E', b' ', ..] => Some(FileKind::Breakpad),
        [b'J', b'i', b'T', b'D', ..] | [b'D', b'T', b'i', b'J', ..] => Some(FileKind::JitDump),
        _ if perf_map::is_name(path) => Some(FileKind::PerfMap),
        _ => None,
    }
}

/// Finds the symbol file inside a dSYM bundle.
pub(crate) use macho::in_bundle;

/// Returns the last component of a Windows path.
pub(crate) use pe::windows_file_name;

/// Opens a file as its kind. In a universal file, selects the program with the build id `wanted`.
pub(crate) fn open(
    kind: FileKind,
    path: &Path,
    bytes: FileBytes,
    wanted: Option<&BuildId>,
    locator: &mut Locator<'_>,
) -> Result<Arc<dyn SymbolSource>, Unknown> {
    let bytes: Bytes = Arc::new(bytes);
    let source: Result<Arc<dyn SymbolSource>, FormatError> = match kind {
        FileKind::Pe => pe::Pe::parse(path, bytes, locator).map(|source| Arc::new(source) as _),
        FileKind::Pdb => pdb::Pdb::parse(path, bytes).map(|source| Arc::new(source) as _),
        FileKind::MachO => {
            macho::MachO::parse(path, bytes, wanted, locator).map(|source| Arc::new(source) as _)
        }
        FileKind::Breakpad => breakpad::Breakpad::parse(path, bytes).map(|source| Arc::new(source) as _),
        FileKind::PerfMap => perf_map::PerfMap::parse(path, bytes).map(|source| Arc::new(source) as _),
        FileKind::JitDump => jitdump::JitDump::parse(path, bytes).map(|source| Arc::new(source) as _),
    };
    source
        .map_err(|problem| Unknown::Unreadable { path: path.to_owned(), problem: problem.to_string().into() })
}

/// Reports whether a file without a build id of its own contains this build.
///
/// Such a file is a universal file, a PDB, or Breakpad symbols.
pub(crate) fn holds_build(content: &[u8], build: &BuildId) -> bool {
    match kind(Path::new(""), content) {
        Some(FileKind::MachO) => macho::holds_build(content, build),
        Some(FileKind::Pdb) => pdb::read_id(content).as_ref() == Some(build),
        Some(FileKind::Breakpad) => breakpad::read_id(content).as_ref() == Some(build),
        _ => false,
    }
}

/// Reads text from the file. Empty if longer than any name, or if the file has been truncated.
pub(crate) fn text(bytes: &Bytes, start: usize, end: usize) -> Cow<'_, str> {
    let text = bytes.get(start..end).filter(|text| text.len() <= crate::MAX_NAME_BYTES);
    String::from_utf8_lossy(text.unwrap_or_default())
}

/// Lists paths below a symbol directory where a foreign module's PDB or Breakpad file may be.
///
/// Covers plain names and the layout of symbol servers, for modules that are not present
/// themselves.
pub(crate) fn places_of_symbols(directory: &Path, module: &Path, build: &BuildId) -> Vec<PathBuf> {
    let name = windows_file_name(module).or(module.file_name().and_then(|name| name.to_str()));
    let Some(name) = name else { return Vec::new() };
    let stem = name.strip_suffix(".exe").or(name.strip_suffix(".dll")).unwrap_or(name);
    let mut places = Vec::new();
    if let Some(id) = pe::server_id(build) {
        let pdb = format!("{stem}.pdb");
        places.push(directory.join(&pdb));
        places.push(directory.join(&pdb).join(&id).join(&pdb));
        places.push(directory.join(&pdb).join(&id).join(format!("{stem}.sym")));
    }
    places.push(directory.join(format!("{name}.sym")));
    places.extend(
        breakpad::server_ids(build).map(|id| directory.join(name).join(id).join(format!("{name}.sym"))),
    );
    places
}
