//! The kinds of symbol files that are not ELF: PE with PDB or DWARF, Mach-O with dSYM, Breakpad's text, and what
//! just-in-time compilers leave behind.
//!
//! A kind is told by the file's first bytes, never by its name, except for perf's maps, which have no mark.

mod breakpad;
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

/// The bytes of a file, wherever they are.
pub(crate) type Bytes = Arc<FileBytes>;

/// Why a file is not what its first bytes promise: what is wrong, and where.
pub(crate) type Problem = Box<dyn std::error::Error + Send + Sync>;

/// A kind of file that has its own source here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// A program of Windows.
    Pe,
    /// The symbols of a program of Windows.
    Pdb,
    /// A program of macOS, or the inside of its dSYM bundle.
    MachO,
    /// Breakpad's text.
    Breakpad,
    /// `/tmp/perf-PID.map`.
    PerfMap,
    /// The file that perf's agents in just-in-time compilers write.
    JitDump,
}

/// The first bytes of a PDB.
const PDB_MAGIC: &[u8] = b"Microsoft C/C++ MSF 7.00\r\n\x1a\x44\x53\0\0\0";

/// What kind of file begins with these bytes; `None` when it is none of those that are read here.
pub(crate) fn kind(path: &Path, head: &[u8]) -> Option<Kind> {
    match head {
        [b'M', b'Z', ..] => Some(Kind::Pe),
        _ if head.starts_with(PDB_MAGIC) => Some(Kind::Pdb),
        [0xfe, 0xed, 0xfa, 0xce | 0xcf, ..] | [0xce | 0xcf, 0xfa, 0xed, 0xfe, ..] => Some(Kind::MachO),
        // A Java class begins like a universal file; the count of programs, which is small, is its version, which is not.
        [0xca, 0xfe, 0xba, 0xbe | 0xbf, 0, 0, 0, 0..30, ..] => Some(Kind::MachO),
        [b'M', b'O', b'D', b'U', b'L', b'E', b' ', ..] => Some(Kind::Breakpad),
        [b'J', b'i', b'T', b'D', ..] | [b'D', b'T', b'i', b'J', ..] => Some(Kind::JitDump),
        _ if perf_map::is_name(path) => Some(Kind::PerfMap),
        _ => None,
    }
}

/// The file with the symbols in a directory that is one of macOS's bundles of debug information.
pub(crate) use macho::in_bundle;

/// The last part of a path that Windows recorded.
pub(crate) use pe::windows_file_name;

/// Opens a file as its kind. Of a universal file the program of the build `wanted` is taken.
pub(crate) fn open(
    kind: Kind,
    path: &Path,
    bytes: FileBytes,
    wanted: Option<&BuildId>,
    locator: &mut Locator<'_>,
) -> Result<Arc<dyn SymbolSource>, Unknown> {
    let bytes: Bytes = Arc::new(bytes);
    let source: Result<Arc<dyn SymbolSource>, Problem> = match kind {
        Kind::Pe => pe::Pe::parse(path, bytes, locator).map(|source| Arc::new(source) as _),
        Kind::Pdb => pdb::Pdb::parse(path, bytes).map(|source| Arc::new(source) as _),
        Kind::MachO => macho::MachO::parse(path, bytes, wanted, locator).map(|source| Arc::new(source) as _),
        Kind::Breakpad => breakpad::Breakpad::parse(path, bytes).map(|source| Arc::new(source) as _),
        Kind::PerfMap => perf_map::PerfMap::parse(path, bytes).map(|source| Arc::new(source) as _),
        Kind::JitDump => jitdump::JitDump::parse(path, bytes).map(|source| Arc::new(source) as _),
    };
    source
        .map_err(|problem| Unknown::Unreadable { path: path.to_owned(), problem: problem.to_string().into() })
}

/// True when a file that has no id of its own is, or holds, something of this build: a universal file, a PDB, symbols of
/// Breakpad.
pub(crate) fn holds_build(content: &[u8], build: &BuildId) -> bool {
    match kind(Path::new(""), content) {
        Some(Kind::MachO) => macho::holds_build(content, build),
        Some(Kind::Pdb) => pdb::read_id(content).as_ref() == Some(build),
        Some(Kind::Breakpad) => breakpad::read_id(content).as_ref() == Some(build),
        _ => false,
    }
}

/// The text at this place of the file. Empty when it is longer than any name, or when the file has become shorter.
pub(crate) fn text(bytes: &Bytes, start: usize, end: usize) -> Cow<'_, str> {
    let text = bytes.get(start..end).filter(|text| text.len() <= crate::MAX_NAME_BYTES);
    String::from_utf8_lossy(text.unwrap_or_default())
}

/// Where the symbols of a module of another system may be when the module itself is not here, below a directory that an
/// option names: PDBs and Breakpad's symbols by name, and as symbol servers lay them out.
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
