//! Mach-O: programs and libraries of macOS and its relatives, with a dSYM bundle beside them.
//!
//! A universal file holds one program for each processor; the one whose UUID was recorded is taken, else the first.
//! The linker puts no debug information into the program; without a bundle the symbol table answers.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cairn_format::{StatedAddress, WordSize};
use object::read::macho::{FatArch, MachOFatFile32, MachOFatFile64};
use object::{Object, ObjectSegment};

use super::object_dwarf::ObjectDwarf;
use super::object_symbols::ObjectSymbols;
use super::{Bytes, Problem};
use crate::locate::Locator;
use crate::mapped_file::FileBytes;
use crate::source::{FrameSink, Language, SymbolSource};
use crate::{BuildId, Difference, Unknown};

/// One program or library.
pub(crate) struct MachO {
    path: PathBuf,
    base: u64,
    word_size: WordSize,
    debug: Debug,
    symbols: ObjectSymbols,
}

/// Where lines come from.
enum Debug {
    Dwarf {
        dwarf: ObjectDwarf,
        bundle: Option<PathBuf>,
    },
    /// There is a bundle, and it is not that of this build.
    Different(Unknown),
    None,
}

impl MachO {
    /// Opens a file and looks for its bundle.
    ///
    /// # Errors
    ///
    /// When it is no Mach-O file, or its headers are broken.
    pub(crate) fn parse(
        path: &Path,
        bytes: Bytes,
        wanted: Option<&BuildId>,
        locator: &mut Locator<'_>,
    ) -> Result<Self, Problem> {
        let content = &**bytes;
        let programs = programs(content)?;
        let is_wanted = |program: &&Program<'_>| wanted.is_some() && program.uuid().as_ref() == wanted;
        let chosen = programs.iter().find(is_wanted).or(programs.first());
        let chosen = chosen.ok_or("a universal file without a program in it")?;
        let (program, build_id) = (&chosen.object, chosen.uuid());
        let debug = match ObjectDwarf::new(path, &bytes, chosen.content, locator.options.max_unpacked_bytes)?
        {
            Some(dwarf) => Debug::Dwarf { dwarf, bundle: None },
            None => find_bundle(path, build_id.as_ref(), locator),
        };
        let text = program.segments().find(|segment| matches!(segment.name(), Ok(Some("__TEXT"))));
        Ok(Self {
            path: path.to_owned(),
            base: text.map_or(0, |segment| segment.address()),
            word_size: if program.is_64() { WordSize::Bits64 } else { WordSize::Bits32 },
            debug,
            symbols: ObjectSymbols::new(program, |name| name.strip_prefix('_').unwrap_or(name)),
        })
    }
}

/// One program of a file.
struct Program<'data> {
    content: &'data [u8],
    object: object::File<'data>,
}

impl<'data> Program<'data> {
    fn parse(content: &'data [u8]) -> object::Result<Self> {
        Ok(Self { content, object: object::File::parse(content)? })
    }

    fn uuid(&self) -> Option<BuildId> {
        Some(BuildId::new(&self.object.mach_uuid().ok()??))
    }
}

/// The programs in a file: one, or those of a universal file.
fn programs(content: &[u8]) -> Result<Vec<Program<'_>>, Problem> {
    fn each<'data, Fat: FatArch>(
        arches: &[Fat],
        content: &'data [u8],
    ) -> Result<Vec<Program<'data>>, Problem> {
        arches.iter().map(|arch| Ok(Program::parse(arch.data(content)?)?)).collect()
    }
    match object::FileKind::parse(content)? {
        object::FileKind::MachOFat32 => each(MachOFatFile32::parse(content)?.arches(), content),
        object::FileKind::MachOFat64 => each(MachOFatFile64::parse(content)?.arches(), content),
        _ => Ok(vec![Program::parse(content)?]),
    }
}

/// True when one of the programs in the file is of this build.
pub(crate) fn holds_build(content: &[u8], build: &BuildId) -> bool {
    programs(content)
        .is_ok_and(|programs| programs.iter().any(|program| program.uuid().as_ref() == Some(build)))
}

/// Looks for `NAME.dSYM` next to the program and in the directories for debug files.
fn find_bundle(program: &Path, id: Option<&BuildId>, locator: &mut Locator<'_>) -> Debug {
    let (Some(name), Some(id)) = (program.file_name(), id) else { return Debug::None };
    let mut bundle = name.to_owned();
    bundle.push(".dSYM");
    let places: Vec<PathBuf> =
        program.parent().into_iter().chain(locator.named_places()).map(|place| place.join(&bundle)).collect();
    let mut different = Debug::None;
    for path in places.iter().filter_map(|place| in_bundle(place)) {
        if !locator.is_allowed(&path) {
            continue;
        }
        let Ok(content) = FileBytes::map(&path).map(Arc::new) else { continue };
        let Ok(programs) = programs(&content) else { continue };
        let same = programs.iter().find(|program| program.uuid().as_ref() == Some(id));
        let Some(found) = same.or(programs.first()) else { continue };
        let difference =
            same.is_none().then(|| Difference::BuildId { expected: id.clone(), found: found.uuid() });
        if let Err(reason) = locator.judge(&path, difference) {
            different = Debug::Different(reason);
        } else if let Ok(Some(dwarf)) =
            ObjectDwarf::new(&path, &content, found.content, locator.options.max_unpacked_bytes)
        {
            return Debug::Dwarf { dwarf, bundle: Some(path) };
        }
    }
    different
}

/// The file with the debug information in a bundle: the only one there, whatever its name.
pub(crate) fn in_bundle(bundle: &Path) -> Option<PathBuf> {
    let files = fs::read_dir(bundle.join("Contents/Resources/DWARF")).ok()?;
    let files = files.take(MAX_FILES_IN_BUNDLE).filter_map(|file| Some(file.ok()?.path()));
    files.filter(|path| fs::metadata(path).is_ok_and(|metadata| metadata.is_file())).min()
}

/// A bundle has one file, or a few when it is that of a whole application.
const MAX_FILES_IN_BUNDLE: usize = 1000;

impl SymbolSource for MachO {
    fn frames_at(&self, address: StatedAddress, out: &mut FrameSink) -> Result<(), Unknown> {
        let answer = match &self.debug {
            Debug::Dwarf { dwarf, .. } => dwarf.frames_at(address, out),
            Debug::Different(reason) => Err(reason.clone()),
            Debug::None => Ok(()),
        };
        if let Some((name, start)) = self.symbols.find(address.value()) {
            if out.wants_qualified_name() {
                out.qualify_outermost(name);
            }
            out.name_outermost(name, Language::Unknown);
            out.set_function_start(StatedAddress::new(start));
        }
        match answer {
            _ if !out.frames().is_empty() => Ok(()),
            Err(reason) => Err(reason),
            Ok(()) if !self.symbols.is_code(address.value()) => Err(Unknown::AddressOutside),
            Ok(()) if matches!(self.debug, Debug::None) && self.symbols.is_empty() => {
                Err(Unknown::NoDebugInfo)
            }
            Ok(()) => Err(Unknown::NotCovered),
        }
    }

    fn base(&self) -> StatedAddress {
        StatedAddress::new(self.base)
    }

    fn word_size(&self) -> WordSize {
        self.word_size
    }

    fn files(&self) -> Vec<PathBuf> {
        let mut files = vec![self.path.clone()];
        if let Debug::Dwarf { bundle: Some(bundle), .. } = &self.debug {
            files.push(bundle.clone());
        }
        files
    }
}
