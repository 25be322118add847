//! PE: programs and libraries of Windows, with a PDB beside them, mingw's DWARF inside, or both, if
//! their objects come from different compilers.
//!
//! Stated addresses use the preferred image base. Without debug information, the symbol table, the
//! exports and the unwind table answer.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cairn_format::{StatedAddress, WordSize};
use object::read::pe::{ImageNtHeaders, PeFile};
use object::{Object, ObjectSection, pe};

use super::object_dwarf::ObjectDwarf;
use super::object_symbols::ObjectSymbols;
use super::pdb::Pdb;
use super::{Bytes, FormatError};
use crate::locate::Locator;
use crate::mapped_file::FileBytes;
use crate::source::{FrameSink, Language, RawFrame, SymbolSource};
use crate::{AnsweredBy, BuildId, Difference, Unknown};

/// A program or library.
pub(crate) struct Pe {
    path: PathBuf,
    image_base: u64,
    word_size: WordSize,
    /// Queried first: it has columns, and inlined calls of every compiler that emits it.
    dwarf: Option<ObjectDwarf>,
    /// Queried for addresses outside the DWARF: a program's objects may come from different
    /// compilers.
    pdb: DebugPdb,
    symbols: ObjectSymbols,
    /// Function bounds from `.pdata`, relative to the image base.
    functions: Vec<(u32, u32)>,
}

/// The result of the search for the PDB.
enum DebugPdb {
    Pdb(Pdb),
    /// When the PDB is of another build.
    OtherBuild(Unknown),
    None,
}

impl Pe {
    /// Opens a file, and finds its PDB.
    ///
    /// # Errors
    ///
    /// If it is not a PE file, or its headers are broken.
    pub(crate) fn parse(path: &Path, bytes: Bytes, locator: &mut Locator<'_>) -> Result<Self, FormatError> {
        let content = &**bytes;
        match object::FileKind::parse(content)? {
            object::FileKind::Pe32 => {
                Self::read::<pe::ImageNtHeaders32>(path, &bytes, locator, WordSize::Bits32)
            }
            object::FileKind::Pe64 => {
                Self::read::<pe::ImageNtHeaders64>(path, &bytes, locator, WordSize::Bits64)
            }
            kind => Err(format!("begins like a program for Windows or DOS, and is {kind:?}").into()),
        }
    }

    fn read<Headers: ImageNtHeaders>(
        path: &Path,
        bytes: &Bytes,
        locator: &mut Locator<'_>,
        word_size: WordSize,
    ) -> Result<Self, FormatError> {
        let content: &[u8] = bytes;
        let file = PeFile::<Headers>::parse(content)?;
        // A broken debug directory counts as absent: the rest of the file may be valid.
        let stated = file.pdb_info().ok().flatten();
        let build_id = stated.as_ref().map(|stated| build_id(&stated.guid(), stated.age()));
        let dwarf = ObjectDwarf::new(path, bytes, content, locator.options.max_unpacked_bytes)?;
        let pdb = match (&stated, &build_id) {
            (Some(stated), Some(id)) => find_pdb(path, stated.path(), id, locator),
            _ => DebugPdb::None,
        };
        let is_x86 = file.architecture() == object::Architecture::I386;
        let is_x86_64 = file.architecture() == object::Architecture::X86_64;
        let functions = if is_x86_64 { function_table(&file) } else { Vec::new() };
        Ok(Self {
            path: path.to_owned(),
            image_base: file.relative_address_base(),
            word_size,
            dwarf,
            pdb,
            symbols: ObjectSymbols::new(&file, if is_x86 { undecorated } else { |name| name }),
            functions,
        })
    }

    /// Pushes the PDB's frames of an address, converted from base-relative to stated addresses.
    fn ask_pdb(&self, stated: u64, out: &mut FrameSink) -> Result<(), Unknown> {
        let pdb = match &self.pdb {
            DebugPdb::Pdb(pdb) => pdb,
            DebugPdb::OtherBuild(reason) => return Err(reason.clone()),
            DebugPdb::None => return Ok(()),
        };
        let offset = stated.checked_sub(self.image_base).ok_or(Unknown::AddressOutside)?;
        pdb.frames_at(StatedAddress::new(offset), out)?;
        if let Some(start) = out.function_start() {
            out.set_function_start(StatedAddress::new(self.image_base.wrapping_add(start.value())));
        }
        out.set_answered_by(AnsweredBy::Pdb);
        Ok(())
    }

    /// Returns the symbol at the address.
    ///
    /// A PDB has every name that the file has. If it has no function here, the nearest preceding
    /// symbol is another function's; so it is if `.pdata` has a function in between.
    fn symbol(&self, address: u64, is_of_dwarf: bool) -> Option<(&str, u64)> {
        if matches!(self.pdb, DebugPdb::Pdb(_)) && !is_of_dwarf {
            return None;
        }
        let (name, start) = self.symbols.find(address)?;
        let offset = u32::try_from(address.checked_sub(self.image_base)?).ok()?;
        let after = self.functions.partition_point(|&(start, _)| start <= offset);
        let last = after.checked_sub(1).and_then(|last| self.functions.get(last));
        let is_other = last.is_some_and(|&(function, end)| {
            let function = self.image_base + u64::from(function);
            if offset < end { start < function } else { start <= function }
        });
        (!is_other).then_some((name, start))
    }

    /// Returns the start of the `.pdata` function at a distance from the base.
    fn function_start(&self, address: u64) -> Option<u64> {
        let offset = u32::try_from(address.checked_sub(self.image_base)?).ok()?;
        let after = self.functions.partition_point(|&(start, _)| start <= offset);
        let &(start, end) = self.functions.get(after.checked_sub(1)?)?;
        (offset < end).then_some(self.image_base + u64::from(start))
    }
}

/// Parses the entries of `.pdata`: start, end, and position of the unwind information.
fn function_table<'data>(file: &impl Object<'data>) -> Vec<(u32, u32)> {
    let data = file.section_by_name(".pdata").and_then(|section| section.data().ok()).unwrap_or_default();
    let number = |entry: &[u8], at: usize| {
        u32::from_le_bytes([entry[at], entry[at + 1], entry[at + 2], entry[at + 3]])
    };
    let mut functions: Vec<_> =
        data.chunks_exact(12).map(|entry| (number(entry, 0), number(entry, 4))).collect();
    functions.retain(|&(start, end)| start < end);
    functions.sort_unstable();
    functions
}

/// Searches for the PDB beside the program, at its stated path, and in the debug directories.
///
/// The debug directories are searched by name and in the layout of symbol servers.
fn find_pdb(program: &Path, stated: &[u8], id: &BuildId, locator: &mut Locator<'_>) -> DebugPdb {
    let stated = String::from_utf8_lossy(stated);
    let name = file_name(&stated);
    let mut places: Vec<PathBuf> =
        program.parent().map(|directory| directory.join(name)).into_iter().collect();
    places.extend(Some(PathBuf::from(&*stated)).filter(|path| crate::locate::is_here(path)));
    for directory in locator.named_places() {
        places.push(directory.join(name));
        places.extend(server_id(id).map(|id| directory.join(name).join(id).join(name)));
    }
    let mut different = DebugPdb::None;
    for path in places {
        if !locator.is_allowed(&path) {
            continue;
        }
        let Ok(bytes) = FileBytes::map(&path) else { continue };
        let Ok(found) = Pdb::parse(&path, Arc::new(bytes)) else { continue };
        let difference = (found.id() != id)
            .then(|| Difference::BuildId { expected: id.clone(), found: Some(found.id().clone()) });
        match locator.judge(&path, difference) {
            Ok(()) => return DebugPdb::Pdb(found),
            Err(reason) => different = DebugPdb::OtherBuild(reason),
        }
    }
    different
}

/// Returns the last component of a path recorded on Windows, the only system that separates by `\`.
pub(crate) fn windows_file_name(path: &Path) -> Option<&str> {
    let path = path.to_str().filter(|path| path.contains('\\'))?;
    Some(file_name(path))
}

/// Returns the last component of a Windows path, if it is a plain name.
fn file_name(path: &str) -> &str {
    let name = path.rsplit(['\\', '/']).next().unwrap_or_default();
    if matches!(name, "" | "." | "..") { "unnamed" } else { name }
}

/// Formats the directory name that a symbol server uses for a PDB: GUID and age. `None` for other
/// ids.
pub(crate) fn server_id(id: &BuildId) -> Option<String> {
    let (guid, age) = id.bytes().split_at_checked(16)?;
    let age = u32::from_le_bytes(age.try_into().ok()?);
    Some(format!("{}{age:X}", guid_text(guid)))
}

/// Formats a stored GUID: three numbers and eight bytes.
pub(crate) fn guid_text(guid: &[u8]) -> String {
    const ORDER: [usize; 16] = [3, 2, 1, 0, 5, 4, 7, 6, 8, 9, 10, 11, 12, 13, 14, 15];
    ORDER.iter().filter_map(|&at| guid.get(at)).map(|byte| format!("{byte:02X}")).collect()
}

/// Encodes a GUID and the age (four bytes) as a build id.
pub(crate) fn build_id(guid: &[u8; 16], age: u32) -> BuildId {
    BuildId::new(&[&guid[..], &age.to_le_bytes()].concat())
}

/// Strips the calling convention from a C name: `_name`, `_name@8`, `@name@8`.
///
/// Names with parameters come from other records, and have none.
pub(crate) fn undecorated(name: &str) -> &str {
    let Some(bare) = name.strip_prefix(['_', '@']).filter(|_| !name.contains('(')) else { return name };
    match bare.rsplit_once('@') {
        Some((bare, bytes)) if bytes.parse::<u32>().is_ok() => bare.strip_suffix('@').unwrap_or(bare),
        _ => bare,
    }
}

impl SymbolSource for Pe {
    fn frames_at(&self, address: StatedAddress, out: &mut FrameSink) -> Result<(), Unknown> {
        let stated = address.value();
        let of_dwarf = self.dwarf.as_ref().map_or(Ok(()), |dwarf| dwarf.frames_at(address, out));
        let is_of_dwarf = of_dwarf.is_ok() && !out.frames().is_empty();
        let answer = if is_of_dwarf {
            out.set_answered_by(AnsweredBy::Dwarf);
            Ok(())
        } else {
            let of_pdb = self.ask_pdb(stated, out);
            // Damage in one source does not suppress the other's answer.
            if out.is_empty() { of_dwarf.and(of_pdb) } else { of_pdb }
        };
        let mut start = self.function_start(stated);
        if let Some((name, at)) = self.symbol(stated, is_of_dwarf) {
            if out.wants_qualified_name() {
                out.qualify_outermost(name);
            }
            if out.frames().is_empty() {
                out.set_answered_by(AnsweredBy::Symbols);
            }
            out.name_outermost(name, Language::Unknown);
            start = Some(at);
        }
        if let Some(start) = start {
            out.set_function_start(StatedAddress::new(start));
            if out.frames().is_empty() {
                out.push(RawFrame::default());
                out.set_answered_by(AnsweredBy::UnwindTable);
            }
        }
        let has_debug_info = self.dwarf.is_some() || !matches!(self.pdb, DebugPdb::None);
        match answer {
            _ if !out.frames().is_empty() => Ok(()),
            Err(reason) => Err(reason),
            Ok(()) if !self.symbols.is_code(stated) => Err(Unknown::AddressOutside),
            Ok(()) if !has_debug_info && self.symbols.is_empty() => Err(Unknown::NoDebugInfo),
            Ok(()) => Err(Unknown::NotCovered),
        }
    }

    fn base(&self) -> StatedAddress {
        StatedAddress::new(self.image_base)
    }

    fn word_size(&self) -> WordSize {
        self.word_size
    }

    fn files(&self) -> Vec<PathBuf> {
        let mut files = vec![self.path.clone()];
        if let DebugPdb::Pdb(pdb) = &self.pdb {
            files.extend(pdb.files());
        }
        files
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calling_conventions_are_stripped_from_names() {
        for (name, expected) in [
            ("_main", "main"),
            ("_stdcall_one@8", "stdcall_one"),
            ("@fastcall_one@8", "fastcall_one"),
            ("_has@sign", "has@sign"),
            ("_vector@@16", "vector"),
            ("?f@@YAXXZ", "?f@@YAXXZ"),
            ("_start(int)", "_start(int)"),
        ] {
            assert_eq!(undecorated(name), expected);
        }
    }

    #[test]
    fn pdb_search_uses_the_last_path_component() {
        for (path, expected) in [
            (r"C:\build\app.pdb", "app.pdb"),
            ("/build/app.pdb", "app.pdb"),
            ("app.pdb", "app.pdb"),
            (r"C:\build\..", "unnamed"),
            ("", "unnamed"),
        ] {
            assert_eq!(file_name(path), expected);
        }
    }

    #[test]
    fn symbol_server_ids_format_guids_as_numbers() {
        let id = BuildId::from_hex("d3ca938cc0404f524c4c44205044422e1a000000").unwrap();
        assert_eq!(server_id(&id).unwrap(), "8C93CAD340C0524F4C4C44205044422E1A");
        assert_eq!(server_id(&BuildId::from_hex("d3ca938c").unwrap()), None);
    }
}
