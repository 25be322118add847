//! PE: programs and libraries of Windows, with a PDB beside them, DWARF inside as mingw makes it, or both: a program of
//! objects by different compilers.
//!
//! Stated addresses are those of the preferred image base. Of a file without any debug information the symbol table, what
//! it exports, and the table of functions for unwinding answer.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cairn_format::{StatedAddress, WordSize};
use object::read::pe::{ImageNtHeaders, PeFile};
use object::{Object, ObjectSection, pe};

use super::object_dwarf::ObjectDwarf;
use super::object_symbols::ObjectSymbols;
use super::pdb::Pdb;
use super::{Bytes, Problem};
use crate::locate::Locator;
use crate::mapped_file::FileBytes;
use crate::source::{FrameSink, Language, RawFrame, SymbolSource};
use crate::{AnsweredBy, BuildId, Difference, Unknown};

/// One program or library.
pub(crate) struct Pe {
    path: PathBuf,
    image_base: u64,
    word_size: WordSize,
    /// Asked first: where both know an address, it has columns and the inlined calls of every compiler that writes it.
    dwarf: Option<ObjectDwarf>,
    /// Asked where the DWARF does not cover an address: the objects of one program may come from different compilers.
    pdb: Debug,
    symbols: ObjectSymbols,
    /// Ranges from the table for unwinding, from the image base.
    functions: Vec<(u32, u32)>,
}

/// What was found of the PDB.
enum Debug {
    Pdb(Pdb),
    /// There is a PDB, and it is not that of this build.
    Different(Unknown),
    None,
}

impl Pe {
    /// Opens a file and looks for its PDB.
    ///
    /// # Errors
    ///
    /// When it is no PE file, or its headers are broken.
    pub(crate) fn parse(path: &Path, bytes: Bytes, locator: &mut Locator<'_>) -> Result<Self, Problem> {
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
    ) -> Result<Self, Problem> {
        let content: &[u8] = bytes;
        let file = PeFile::<Headers>::parse(content)?;
        // A directory that is broken is taken for none: the rest of the file may be fine.
        let stated = file.pdb_info().ok().flatten();
        let build_id = stated.as_ref().map(|stated| build_id(&stated.guid(), stated.age()));
        let dwarf = ObjectDwarf::new(path, bytes, content, locator.options.max_unpacked_bytes)?;
        let pdb = match (&stated, &build_id) {
            (Some(stated), Some(id)) => find_pdb(path, stated.path(), id, locator),
            _ => Debug::None,
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

    /// Pushes what the PDB knows of an address. It counts from the base, everything else here as the file does.
    fn ask_pdb(&self, stated: u64, out: &mut FrameSink) -> Result<(), Unknown> {
        let pdb = match &self.pdb {
            Debug::Pdb(pdb) => pdb,
            Debug::Different(reason) => return Err(reason.clone()),
            Debug::None => return Ok(()),
        };
        let offset = stated.checked_sub(self.image_base).ok_or(Unknown::AddressOutside)?;
        pdb.frames_at(StatedAddress::new(offset), out)?;
        if let Some(start) = out.function_start() {
            out.set_function_start(StatedAddress::new(self.image_base.wrapping_add(start.value())));
        }
        out.set_answered_by(AnsweredBy::Pdb);
        Ok(())
    }

    /// The name of the code at the address. A PDB has all names that the file has; where it knows of no function, the nearest
    /// name before would be that of another one. So would it be where the table for unwinding has a function in between.
    fn symbol(&self, address: u64, is_of_dwarf: bool) -> Option<(&str, u64)> {
        if matches!(self.pdb, Debug::Pdb(_)) && !is_of_dwarf {
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

    /// The start of the function that the table for unwinding has at this distance from the base.
    fn function_start(&self, address: u64) -> Option<u64> {
        let offset = u32::try_from(address.checked_sub(self.image_base)?).ok()?;
        let after = self.functions.partition_point(|&(start, _)| start <= offset);
        let &(start, end) = self.functions.get(after.checked_sub(1)?)?;
        (offset < end).then_some(self.image_base + u64::from(start))
    }
}

/// The entries of `.pdata`: start, end, and where the unwind information is.
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

/// Looks for the PDB next to the program, where the program says it is, and in the directories for debug files: by its
/// name, and as symbol servers lay them out.
fn find_pdb(program: &Path, stated: &[u8], id: &BuildId, locator: &mut Locator<'_>) -> Debug {
    let stated = String::from_utf8_lossy(stated);
    let name = file_name(&stated);
    let mut places: Vec<PathBuf> =
        program.parent().map(|directory| directory.join(name)).into_iter().collect();
    places.extend(Some(PathBuf::from(&*stated)).filter(|path| path.is_absolute()));
    for directory in locator.named_places() {
        places.push(directory.join(name));
        places.extend(server_id(id).map(|id| directory.join(name).join(id).join(name)));
    }
    let mut different = Debug::None;
    for path in places {
        if !locator.is_allowed(&path) {
            continue;
        }
        let Ok(bytes) = FileBytes::map(&path) else { continue };
        let Ok(found) = Pdb::parse(&path, Arc::new(bytes)) else { continue };
        let difference = (found.id() != id)
            .then(|| Difference::BuildId { expected: id.clone(), found: Some(found.id().clone()) });
        match locator.judge(&path, difference) {
            Ok(()) => return Debug::Pdb(found),
            Err(reason) => different = Debug::Different(reason),
        }
    }
    different
}

/// The last part of a path that Windows recorded: only there is `\` between the parts.
pub(crate) fn windows_file_name(path: &Path) -> Option<&str> {
    let path = path.to_str().filter(|path| path.contains('\\'))?;
    Some(file_name(path))
}

/// The last part of a path of Windows, and never one that leads elsewhere.
fn file_name(path: &str) -> &str {
    let name = path.rsplit(['\\', '/']).next().unwrap_or_default();
    if matches!(name, "" | "." | "..") { "unnamed" } else { name }
}

/// The name of the directory in which a symbol server keeps the PDB: the GUID as numbers, and the age. `None` for an id
/// that is no GUID and age.
pub(crate) fn server_id(id: &BuildId) -> Option<String> {
    let (guid, age) = id.bytes().split_at_checked(16)?;
    let age = u32::from_le_bytes(age.try_into().ok()?);
    Some(format!("{}{age:X}", guid_text(guid)))
}

/// A stored GUID as it is written: three numbers and eight bytes.
pub(crate) fn guid_text(guid: &[u8]) -> String {
    const ORDER: [usize; 16] = [3, 2, 1, 0, 5, 4, 7, 6, 8, 9, 10, 11, 12, 13, 14, 15];
    ORDER.iter().filter_map(|&at| guid.get(at)).map(|byte| format!("{byte:02X}")).collect()
}

/// A GUID as it is stored, and the age as four bytes.
pub(crate) fn build_id(guid: &[u8; 16], age: u32) -> BuildId {
    BuildId::new(&[&guid[..], &age.to_le_bytes()].concat())
}

/// The name of a C function without its calling convention: `_name`, `_name@8`, `@name@8`. Names with parameters come from
/// other records and have none.
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
            // What is broken in the one is no reason for silence of the other.
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
        let has_debug_info = self.dwarf.is_some() || !matches!(self.pdb, Debug::None);
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
        if let Debug::Pdb(pdb) = &self.pdb {
            files.extend(pdb.files());
        }
        files
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calling_conventions_are_no_part_of_names() {
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
    fn a_pdb_is_looked_for_by_the_last_part_of_its_name() {
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
    fn symbol_servers_write_the_guid_as_numbers() {
        let id = BuildId::from_hex("d3ca938cc0404f524c4c44205044422e1a000000").unwrap();
        assert_eq!(server_id(&id).unwrap(), "8C93CAD340C0524F4C4C44205044422E1A");
        assert_eq!(server_id(&BuildId::from_hex("d3ca938c").unwrap()), None);
    }
}
