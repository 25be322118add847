//! Mach-O: programs and libraries of macOS and its relatives, with a dSYM bundle beside them.
//!
//! A universal file holds one program per processor; the one with the recorded UUID is used, or
//! else the first. The linker leaves debug information out of the program; without a bundle, the
//! symbol table answers.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cairn_format::{StatedAddress, WordSize};
use object::read::macho::{FatArch, MachOFatFile32, MachOFatFile64};
use object::{Object, ObjectSegment};

use super::object_dwarf::ObjectDwarf;
use super::object_symbols::ObjectSymbols;
use super::{Bytes, FormatError};
use crate::locate::Locator;
use crate::mapped_file::FileBytes;
use crate::source::{FrameSink, Language, SymbolSource};
use crate::{BuildId, Difference, Unknown};

/// A program or library.
pub(crate) struct MachO {
    path: PathBuf,
    base: u64,
    word_size: WordSize,
    debug: DebugBundle,
    symbols: ObjectSymbols,
}

/// The source of lines.
enum DebugBundle {
    Dwarf {
        dwarf: ObjectDwarf,
        bundle: Option<PathBuf>,
    },
    /// When the bundle is of another build.
    OtherBuild(Unknown),
    None,
}

impl MachO {
    /// Opens a file, and finds its bundle.
    ///
    /// # Errors
    ///
    /// If it is not a Mach-O file, or its headers are broken.
    pub(crate) fn parse(
        path: &Path,
        bytes: Bytes,
        wanted: Option<&BuildId>,
        locator: &mut Locator<'_>,
    ) -> Result<Self, FormatError> {
        let content = &**bytes;
        let programs = programs(content)?;
        let is_wanted = |program: &&Program<'_>| wanted.is_some() && program.uuid().as_ref() == wanted;
        let chosen = programs.iter().find(is_wanted).or(programs.first());
        let chosen = chosen.ok_or("a universal file without a program in it")?;
        let (program, build_id) = (&chosen.object, chosen.uuid());
        let debug = match ObjectDwarf::new(path, &bytes, chosen.content, locator.options.max_unpacked_bytes)?
        {
            Some(dwarf) => DebugBundle::Dwarf { dwarf, bundle: None },
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

/// A program inside a file.
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

/// Returns the programs in a file: one, or those of a universal file.
fn programs(content: &[u8]) -> Result<Vec<Program<'_>>, FormatError> {
    fn each<'data, Fat: FatArch>(
        arches: &[Fat],
        content: &'data [u8],
    ) -> Result<Vec<Program<'data>>, FormatError> {
        arches.iter().map(|arch| Ok(Program::parse(arch.data(content)?)?)).collect()
    }
    match object::FileKind::parse(content)? {
        object::FileKind::MachOFat32 => each(MachOFatFile32::parse(content)?.arches(), content),
        object::FileKind::MachOFat64 => each(MachOFatFile64::parse(content)?.arches(), content),
        _ => Ok(vec![Program::parse(content)?]),
    }
}

/// Reports whether a program in the file is of this build.
pub(crate) fn holds_build(content: &[u8], build: &BuildId) -> bool {
    programs(content)
        .is_ok_and(|programs| programs.iter().any(|program| program.uuid().as_ref() == Some(build)))
}

/// Searches for `NAME.dSYM` beside the program and in the debug directories.
fn find_bundle(program: &Path, id: Option<&BuildId>, locator: &mut Locator<'_>) -> DebugBundle {
    let (Some(name), Some(id)) = (program.file_name(), id) else { return DebugBundle::None };
    let mut bundle = name.to_owned();
    bundle.push(".dSYM");
    let places: Vec<PathBuf> =
        program.parent().into_iter().chain(locator.named_places()).map(|place| place.join(&bundle)).collect();
    let mut different = DebugBundle::None;
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
            different = DebugBundle::OtherBuild(reason);
        } else if let Ok(Some(dwarf)) =
            ObjectDwarf::new(&path, &content, found.content, locator.options.max_unpacked_bytes)
        {
            return DebugBundle::Dwarf { dwarf, bundle: Some(path) };
        }
    }
    different
}

/// Returns the debug file in a bundle: the only file there, whatever its name.
pub(crate) fn in_bundle(bundle: &Path) -> Option<PathBuf> {
    let files = fs::read_dir(bundle.join("Contents/Resources/DWARF")).ok()?;
    let files = files.take(MAX_FILES_IN_BUNDLE).filter_map(|file| Some(file.ok()?.path()));
    files.filter(|path| fs::metadata(path).is_ok_and(|metadata| metadata.is_file())).min()
}

/// Maximum files to list in a bundle; 1000. Usual bundles have one, those of applications a few.
const MAX_FILES_IN_BUNDLE: usize = 1000;

impl SymbolSource for MachO {
    fn frames_at(&self, address: StatedAddress, out: &mut FrameSink) -> Result<(), Unknown> {
        let answer = match &self.debug {
            DebugBundle::Dwarf { dwarf, .. } => dwarf.frames_at(address, out),
            DebugBundle::OtherBuild(reason) => Err(reason.clone()),
            DebugBundle::None => Ok(()),
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
            Ok(()) if matches!(self.debug, DebugBundle::None) && self.symbols.is_empty() => {
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
        if let DebugBundle::Dwarf { bundle: Some(bundle), .. } = &self.debug {
            files.push(bundle.clone());
        }
        files
    }
}
