//! Which files were loaded where, and whether those on disk are the same: by the ELF headers in the image.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use cairn_format::AbsoluteAddress;
use cairn_format::heapblock::ByteOrder;
use cairn_symbols::BuildId;
use cairn_unwind::{AddressRange, MemoryReader};

use super::{Fields, FileBytes, Finding, Image, OpenOptions};
use crate::process::Mapping;

/// Real files have a dozen.
const MAX_PROGRAM_HEADERS: u64 = 1024;
/// Real notes take some hundred bytes.
const MAX_NOTE_BYTES: u64 = 1 << 16;

const LOAD: u32 = 1;
const NOTE: u32 = 4;

/// A program or library, as it was loaded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ImageModule {
    /// The file as the program saw it, or the kernel's word for what is no file. The program itself may be named otherwise by
    /// whoever opened the image.
    pub path: PathBuf,
    /// From its first byte to its last.
    pub range: AddressRange,
    /// What addresses in memory are larger by than the ones stated in the file.
    pub bias: u64,
    /// The GNU build id; empty when the image does not tell.
    pub build_id: Vec<u8>,
    /// Whether the file on disk is this one.
    pub file: FileState,
}

/// What is known of a module's file on disk.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum FileState {
    /// It is the one that was loaded.
    Same(PathBuf),
    /// It is of another build: with this id, or with none.
    Different(Option<BuildId>),
    /// There is none.
    Missing,
    /// The image does not tell the build, so nobody can say.
    Unknown,
}

impl FileState {
    /// Why such a file is not taken for the missing parts of an image.
    #[must_use]
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Self::Same(_) => "the file cannot be read",
            Self::Different(_) => "the file on disk is of a different build",
            Self::Missing => "there is no such file here",
            Self::Unknown => "the image does not tell which build it was, so the file on disk is not trusted",
        }
    }
}

impl ImageModule {
    pub(super) fn complaint(&self) -> Option<Finding> {
        let FileState::Different(found) = &self.file else { return None };
        Some(Finding::DifferentFile {
            path: self.path.clone(),
            expected: BuildId::new(&self.build_id).to_string(),
            found: found.as_ref().map(ToString::to_string),
        })
    }
}

/// What the headers of an ELF file say.
struct Elf {
    /// Stated address, file offset and bytes in memory of each loaded segment.
    loads: Vec<(u64, u64, u64)>,
    /// Stated address, file offset and length of each stretch of notes.
    notes: Vec<(u64, u64, u64)>,
    order: ByteOrder,
}

impl Elf {
    /// `read` gets a distance from the first byte of the file.
    fn read(read: &impl Fn(u64, &mut [u8]) -> Option<()>) -> Option<Self> {
        let mut header = [0; 64];
        // A 32-bit header has 52 bytes; what follows is mapped too.
        read(0, &mut header)?;
        let is_wide = match header {
            [0x7f, b'E', b'L', b'F', 1, ..] => false,
            [0x7f, b'E', b'L', b'F', 2, ..] => true,
            _ => return None,
        };
        let order = if header[5] == 2 { ByteOrder::BigEndian } else { ByteOrder::LittleEndian };
        let fields = Fields { bytes: &header, order, is_wide };
        let table = fields.word_at(32, 28)?;
        let entry_bytes = u64::from(fields.u16(if is_wide { 54 } else { 42 })?);
        let count = u64::from(fields.u16(if is_wide { 56 } else { 44 })?).min(MAX_PROGRAM_HEADERS);
        if entry_bytes != if is_wide { 56 } else { 32 } {
            return None;
        }
        let mut bytes = vec![0; usize::try_from(count * entry_bytes).ok()?];
        read(table, &mut bytes)?;
        let mut elf = Self { loads: Vec::new(), notes: Vec::new(), order };
        for entry in bytes.chunks_exact(entry_bytes as usize) {
            let fields = Fields { bytes: entry, order, is_wide };
            let (offset, address) = (fields.word_at(8, 4)?, fields.word_at(16, 8)?);
            let (file_bytes, memory_bytes) = (fields.word_at(32, 16)?, fields.word_at(40, 20)?);
            match fields.u32(0)? {
                LOAD => elf.loads.push((address, offset, memory_bytes)),
                NOTE => elf.notes.push((address, offset, file_bytes)),
                _ => {}
            }
        }
        Some(elf)
    }

    /// From the lowest stated address to the end of the highest.
    fn stated(&self) -> Option<(u64, u64)> {
        let start = self.loads.iter().map(|load| load.0).min()?;
        let end = self.loads.iter().map(|load| load.0.saturating_add(load.2)).max()?;
        Some((start, end))
    }

    /// What is added to a stated address when the file's first byte is loaded to `start`.
    fn bias(&self, start: u64) -> Option<u64> {
        let first = self.loads.iter().find(|load| load.1 < 0x1000)?;
        Some(start.wrapping_sub(first.0.wrapping_sub(first.1)))
    }

    fn build_id(
        &self,
        place: impl Fn(&(u64, u64, u64)) -> u64,
        read: &impl Fn(u64, &mut [u8]) -> Option<()>,
    ) -> Vec<u8> {
        let find = |note: &(u64, u64, u64)| {
            let mut bytes = vec![0; note.2.min(MAX_NOTE_BYTES) as usize];
            read(place(note), &mut bytes)?;
            build_id(&bytes, self.order)
        };
        self.notes.iter().find_map(find).unwrap_or_default()
    }
}

/// The description of the note that GNU's linker makes: name `GNU`, kind 3.
fn build_id(notes: &[u8], order: ByteOrder) -> Option<Vec<u8>> {
    const BUILD_ID: u32 = 3;
    let mut rest = Fields { bytes: notes, order, is_wide: false };
    loop {
        let (name_bytes, value_bytes, kind) = (rest.u32(0)?, rest.u32(4)?, rest.u32(8)?);
        let name = rest.slice(12, name_bytes.into())?;
        let behind_name = 12 + u64::from(name_bytes).next_multiple_of(4);
        let value = rest.slice(behind_name, value_bytes.into())?;
        if kind == BUILD_ID && name == b"GNU\0" && !value.is_empty() {
            return Some(value.to_vec());
        }
        rest = rest.at(behind_name + u64::from(value_bytes).next_multiple_of(4))?;
    }
}

fn reader_of(bytes: &[u8]) -> impl Fn(u64, &mut [u8]) -> Option<()> {
    |offset, into| {
        let from = bytes.get(usize::try_from(offset).ok()?..)?;
        // Small files end before a whole 64-bit header does.
        let there = from.len().min(into.len());
        into.get_mut(..there)?.copy_from_slice(from.get(..there)?);
        (there == into.len() || offset == 0).then_some(())
    }
}

/// Where an ELF file states that it is loaded, and its build id.
pub(super) fn stated_range(file: &[u8]) -> Option<(AddressRange, Vec<u8>)> {
    let read = reader_of(file);
    let elf = Elf::read(&read)?;
    let (start, end) = elf.stated()?;
    let range = AddressRange::new(AbsoluteAddress::new(start), AbsoluteAddress::new(end));
    Some((range, elf.build_id(|note| note.1, &read)))
}

/// Finds out about the file of a module.
pub(super) fn file_state(build_id: &[u8], path: &Path) -> FileState {
    let Ok(bytes) = FileBytes::open(path) else { return FileState::Missing };
    if build_id.is_empty() {
        return FileState::Unknown;
    }
    match stated_range(&bytes) {
        Some((_, found)) if found == build_id => FileState::Same(path.to_owned()),
        Some((_, found)) if !found.is_empty() => FileState::Different(Some(BuildId::new(&found))),
        _ => FileState::Different(None),
    }
}

/// The modules among the mappings of files, and those that the image lists by itself.
pub(super) fn find(
    image: &Image,
    mut named: Vec<ImageModule>,
    mappings: &[Mapping],
    options: &OpenOptions,
) -> Vec<ImageModule> {
    let mut ends: HashMap<&[u8], AbsoluteAddress> = HashMap::new();
    for mapping in mappings.iter().filter(|mapping| mapping.inode != 0) {
        let end = ends.entry(&mapping.name).or_insert(mapping.range.end);
        *end = mapping.range.end.max(*end);
    }
    let runs: HashSet<&[u8]> =
        mappings.iter().filter(|mapping| mapping.is_executable).map(|mapping| &*mapping.name).collect();
    for mapping in mappings {
        let is_vdso = mapping.is_vdso();
        if !is_vdso
            && (mapping.inode == 0 || mapping.file_offset.value() != 0 || !runs.contains(&*mapping.name))
        {
            continue;
        }
        let start = mapping.range.start;
        let read = |offset: u64, into: &mut [u8]| image.read(start.checked_add(offset)?, into);
        let Some(elf) = Elf::read(&read) else {
            // The page with the header was not dumped: the file is known by its name alone.
            named.push(ImageModule {
                path: PathBuf::from(OsStr::from_bytes(&mapping.name)),
                range: AddressRange::new(
                    start,
                    ends.get(&*mapping.name).copied().unwrap_or(mapping.range.end),
                ),
                bias: start.value(),
                build_id: Vec::new(),
                file: FileState::Unknown,
            });
            continue;
        };
        let Some(bias) = elf.bias(start.value()) else { continue };
        let id = elf.build_id(|note| bias.wrapping_add(note.0).wrapping_sub(start.value()), &read);
        let stated_end = elf.stated().map_or(start.value(), |(_, end)| bias.wrapping_add(end));
        let end = AbsoluteAddress::new(stated_end).max(mapping.range.end);
        named.push(ImageModule {
            path: PathBuf::from(OsStr::from_bytes(&mapping.name)),
            range: AddressRange::new(start, end),
            bias,
            build_id: id,
            file: if is_vdso { FileState::Missing } else { FileState::Unknown },
        });
    }
    named.sort_by_key(|module| module.range.start);
    named.dedup_by(|later, earlier| later.range.start < earlier.range.end && later.path == earlier.path);
    // What one file claims beyond the start of the next is not its own.
    for index in 1..named.len() {
        let next = named.get(index).map_or(AbsoluteAddress::new(u64::MAX), |module| module.range.start);
        if let Some(module) = named.get_mut(index - 1) {
            module.range.end = module.range.end.min(next);
        }
    }
    name_the_program(image, &mut named, options);
    for module in &mut named {
        if module.file == FileState::Unknown && !module.path.as_os_str().as_bytes().starts_with(b"[") {
            let below = module.path.strip_prefix("/").unwrap_or(&module.path);
            let given = options.program.as_ref() == Some(&module.path);
            let path = if given { module.path.clone() } else { options.root.join(below) };
            module.file = file_state(&module.build_id, &path);
        }
    }
    named
}

/// The program may lie elsewhere than where it ran: then the module with its build id, or with its name, is it.
fn name_the_program(image: &Image, modules: &mut [ImageModule], options: &OpenOptions) {
    let Some(program) = &options.program else { return };
    let id = FileBytes::open(program)
        .ok()
        .and_then(|bytes| stated_range(&bytes))
        .map(|(_, id)| id)
        .unwrap_or_default();
    let by_id = modules.iter().position(|module| !id.is_empty() && module.build_id == id);
    let by_name = || {
        let is_it = |module: &ImageModule| {
            module.path.file_name() == program.file_name()
                || !image.about().name.is_empty()
                    && module
                        .path
                        .file_name()
                        .is_some_and(|name| name.as_bytes().starts_with(image.about().name.as_bytes()))
        };
        modules.iter().position(is_it)
    };
    if let Some(module) = by_id.or_else(by_name).and_then(|index| modules.get_mut(index)) {
        module.path = program.clone();
    }
}
