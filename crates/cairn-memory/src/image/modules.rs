//! Finds loaded modules by the ELF headers in the image, and compares them with the files on disk.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};

use cairn_format::{AbsoluteAddress, Hexadecimal};
use cairn_unwind::{AddressRange, MemoryReader};
use cairn_wire::heapblock::ByteOrder;

use super::module_files::ModuleFiles;
use super::{Fields, Finding, Image, ImageThread, OpenOptions};
use crate::path_bytes::{below, bytes_of, path_of};
use crate::pe::{PeIdentity, PeStamp};
use crate::process::Mapping;

/// Maximum program headers; 1024, because real files have a dozen.
const MAX_PROGRAM_HEADERS: u64 = 1024;
/// Maximum bytes of notes; 64 KiB, because real ones have some hundred.
const MAX_NOTE_BYTES: u64 = 1 << 16;

const LOAD: u32 = 1;
const NOTE: u32 = 4;
const EXECUTABLE: u32 = 1;
const WRITABLE: u32 = 2;

/// Suffix of a file that was deleted before the image was made.
const DELETED: &[u8] = b" (deleted)";

/// A loaded program or library.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ImageModule {
    /// The file as the program saw it, or the kernel's name of a mapping without a file. For the
    /// program itself, [`OpenOptions::program`] may replace it.
    pub path: PathBuf,
    /// From its first byte to its last.
    pub range: AddressRange,
    /// Difference of addresses in memory and those stated in the file.
    pub bias: u64,
    /// GNU build id; empty if the image does not have it.
    pub build_id: Vec<u8>,
    /// The state of the file on disk.
    pub file: FileState,
    /// False if the image has neither build id nor ELF header.
    ///
    /// Any build of the file may have run, so its function names are unknown.
    pub is_identified: bool,
    /// Link time and size of a module of Windows.
    pub(crate) pe: Option<PeStamp>,
}

/// The state of a module's file on disk.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum FileState {
    /// The loaded file is present.
    Same(PathBuf),
    /// Another build is present, with this id or without one.
    Different(Option<Vec<u8>>),
    /// There is no file.
    Missing,
    /// The image does not identify the build, so the file cannot be compared.
    Unknown,
}

impl FileState {
    /// Explains why the file does not replace missing parts of the image.
    #[must_use]
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Self::Same(_) => "the file cannot be read",
            Self::Different(_) => "the file on disk is of a different build",
            Self::Missing => "there is no such file here",
            Self::Unknown => {
                "nothing in the image says which build it was, so the file on disk is not trusted"
            }
        }
    }
}

impl ImageModule {
    pub(super) fn complaint(&self) -> Option<Finding> {
        let FileState::Different(found) = &self.file else { return None };
        if self.build_id.is_empty() {
            return Some(Finding::DifferentHeader { path: self.path.clone() });
        }
        Some(Finding::DifferentFile {
            path: self.path.clone(),
            expected: Hexadecimal(&self.build_id).to_string(),
            found: found.as_deref().map(|id| Hexadecimal(id).to_string()),
        })
    }
}

/// A loadable segment, as stated in the program headers.
#[derive(Clone, Copy)]
struct Load {
    address: u64,
    file_offset: u64,
    memory_bytes: u64,
    flags: u32,
}

/// The headers of an ELF file.
struct Elf {
    loads: Vec<Load>,
    /// Stated address, file offset and length of each range of notes.
    notes: Vec<(u64, u64, u64)>,
    order: ByteOrder,
    /// Bytes from the file's start to the end of its program headers, if those follow the first
    /// header.
    header_bytes: usize,
}

impl Elf {
    /// Parses the headers. `read` takes an offset from the file's first byte.
    fn read(read: &impl Fn(u64, &mut [u8]) -> Option<()>) -> Option<Self> {
        let mut header = [0; 64];
        // A 32-bit header has 52 bytes; the bytes after it are mapped too.
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
        let first_bytes = if is_wide { 64 } else { 52 };
        let header_bytes = if table == first_bytes { first_bytes as usize + bytes.len() } else { 0 };
        let mut elf = Self { loads: Vec::new(), notes: Vec::new(), order, header_bytes };
        for entry in bytes.chunks_exact(entry_bytes as usize) {
            let fields = Fields { bytes: entry, order, is_wide };
            let (offset, address) = (fields.word_at(8, 4)?, fields.word_at(16, 8)?);
            let (file_bytes, memory_bytes) = (fields.word_at(32, 16)?, fields.word_at(40, 20)?);
            match fields.u32(0)? {
                LOAD => {
                    let flags = fields.u32(if is_wide { 4 } else { 24 })?;
                    elf.loads.push(Load { address, file_offset: offset, memory_bytes, flags });
                }
                NOTE => elf.notes.push((address, offset, file_bytes)),
                _ => {}
            }
        }
        Some(elf)
    }

    /// Returns the lowest stated address and the end of the highest segment.
    fn stated(&self) -> Option<(u64, u64)> {
        let start = self.loads.iter().map(|load| load.address).min()?;
        let end = self.loads.iter().map(|load| load.address.saturating_add(load.memory_bytes)).max()?;
        Some((start, end))
    }

    /// Returns the bias of a file whose first byte is loaded to `start`.
    fn bias(&self, start: u64) -> Option<u64> {
        let first = self.loads.iter().find(|load| load.file_offset < 0x1000)?;
        Some(start.wrapping_sub(first.address.wrapping_sub(first.file_offset)))
    }

    /// Returns the pages of segments with this right, for a file loaded to `start`.
    fn pages_with(&self, right: u32, start: u64) -> Vec<AddressRange> {
        const PAGE: u64 = 0x1000;
        let Some(bias) = self.bias(start) else { return Vec::new() };
        let with_right = self.loads.iter().filter(|load| load.flags & right != 0);
        let pages = with_right.map(|load| {
            let from = bias.wrapping_add(load.address);
            let to = from.saturating_add(load.memory_bytes);
            let to = to.checked_next_multiple_of(PAGE).unwrap_or(u64::MAX);
            AddressRange::new(AbsoluteAddress::new(from & !(PAGE - 1)), AbsoluteAddress::new(to))
        });
        pages.collect()
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

/// Finds the linker's build id note: name `GNU`, type 3.
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
        // Small files end before a whole 64-bit header.
        let there = from.len().min(into.len());
        into.get_mut(..there)?.copy_from_slice(from.get(..there)?);
        (there == into.len() || offset == 0).then_some(())
    }
}

/// Returns the load addresses and build id that an ELF file states.
pub(super) fn stated_range(file: &[u8]) -> Option<(AddressRange, Vec<u8>)> {
    let read = reader_of(file);
    let elf = Elf::read(&read)?;
    let (start, end) = elf.stated()?;
    let range = AddressRange::new(AbsoluteAddress::new(start), AbsoluteAddress::new(end));
    Some((range, elf.build_id(|note| note.1, &read)))
}

/// Returns the pages that a file states as writable, if its first byte is loaded to `start`.
pub(super) fn writable_pages(file: &[u8], start: AbsoluteAddress) -> Vec<AddressRange> {
    Elf::read(&reader_of(file)).map_or_else(Vec::new, |elf| elf.pages_with(WRITABLE, start.value()))
}

/// Maps the path of a module below a root directory.
fn path_below(root: &Path, path: &Path) -> PathBuf {
    let bytes = bytes_of(path);
    below(root, &path_of(bytes.strip_suffix(DELETED).unwrap_or(&bytes)))
}

/// Finds a library by build id in the loader's directories.
///
/// Needed for images that have only its name: Crashpad records a library's soname.
fn library_of_build(
    name: &Path,
    build_id: &[u8],
    options: &OpenOptions,
    module_files: &mut ModuleFiles,
) -> Option<PathBuf> {
    const DIRECTORIES: [&str; 10] = [
        "/lib/x86_64-linux-gnu",
        "/usr/lib/x86_64-linux-gnu",
        "/lib/aarch64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu",
        "/lib64",
        "/usr/lib64",
        "/lib",
        "/usr/lib",
        "/usr/local/lib",
        "/usr/local/lib64",
    ];
    if build_id.is_empty() || name.components().count() != 1 || name.file_name().is_none() {
        return None;
    }
    let own = options.program.as_deref().and_then(Path::parent).map(|directory| directory.join(name));
    let recorded = DIRECTORIES.iter().map(|directory| Path::new(directory).join(name));
    let mut is_it = |path: &Path| {
        let found = module_files.open(path).and_then(|bytes| stated_range(&bytes));
        found.is_some_and(|(_, id)| id == build_id)
    };
    if let Some(own) = own.filter(|path| is_it(path)) {
        return Some(own);
    }
    recorded.into_iter().find(|path| is_it(&path_below(&options.root, path)))
}

fn overlaps(one: AddressRange, other: AddressRange) -> bool {
    one.start < other.end && other.start < one.end
}

/// Determines which mappings contain code, if the image states no access rights.
///
/// Uses the program headers of their file, in the image or else on disk, and the pcs of threads.
/// Returns the names of files that were loaded in parts, as programs are, but whose headers are
/// missing. A file on disk may be of another build; here it only decides whether a mapping is
/// listed as a module.
pub(super) fn complete_rights(
    image: &Image,
    mappings: &mut [Mapping],
    without_segment: &BTreeSet<AbsoluteAddress>,
    threads: &[ImageThread],
    options: &OpenOptions,
    module_files: &mut ModuleFiles,
) -> HashSet<Vec<u8>> {
    let is_open = |mapping: &Mapping| mapping.inode != 0 && without_segment.contains(&mapping.range.start);
    let open: HashSet<u64> =
        mappings.iter().filter(|mapping| is_open(mapping)).map(|mapping| mapping.inode).collect();
    let mut code: HashMap<u64, Vec<AddressRange>> = HashMap::new();
    let mut headless: HashSet<u64> = HashSet::new();
    for mapping in mappings.iter().filter(|mapping| open.contains(&mapping.inode)) {
        if mapping.file_offset.value() != 0 {
            continue;
        }
        let start = mapping.range.start;
        let read = |offset: u64, into: &mut [u8]| image.read(start.checked_add(offset)?, into);
        let pages = if read(0, &mut [0; 4]).is_some() {
            Elf::read(&read).map(|elf| elf.pages_with(EXECUTABLE, start.value()))
        } else {
            let path = path_below(&options.root, &path_of(&mapping.name));
            match module_files.open(&path) {
                Some(file) => {
                    Elf::read(&reader_of(&file)).map(|elf| elf.pages_with(EXECUTABLE, start.value()))
                }
                None => {
                    headless.insert(mapping.inode);
                    None
                }
            }
        };
        code.entry(mapping.inode).or_default().extend(pages.unwrap_or_default());
    }
    let pcs: Vec<AbsoluteAddress> = threads.iter().filter_map(|thread| thread.pc).collect();
    for mapping in mappings.iter_mut().filter(|mapping| is_open(mapping)) {
        let pages = code.get(&mapping.inode).map_or(&[][..], Vec::as_slice);
        mapping.is_executable = pages.iter().any(|&pages| overlaps(pages, mapping.range))
            || pcs.iter().any(|&pc| mapping.range.contains(pc));
    }
    let in_parts = |mapping: &&Mapping| headless.contains(&mapping.inode) && mapping.file_offset.value() != 0;
    mappings.iter().filter(in_parts).map(|mapping| mapping.name.clone()).collect()
}

/// Compares the file of a module with the build that ran.
///
/// Without a build id, `is_like_image` compares its headers with those in the image.
pub(super) fn file_state(
    build_id: &[u8],
    path: &Path,
    file: Option<&[u8]>,
    is_like_image: impl FnOnce(&[u8]) -> bool,
) -> FileState {
    let Some(bytes) = file else { return FileState::Missing };
    if build_id.is_empty() {
        return if is_like_image(bytes) { FileState::Unknown } else { FileState::Different(None) };
    }
    match stated_range(bytes) {
        Some((_, found)) if found == build_id => FileState::Same(path.to_owned()),
        Some((_, found)) if !found.is_empty() => FileState::Different(Some(found)),
        _ => FileState::Different(None),
    }
}

/// Compares a module's headers in the image with a file's. True if the image has none.
fn has_headers_of(image: &Image, start: AbsoluteAddress, file: &[u8]) -> bool {
    let read = |offset: u64, into: &mut [u8]| image.read(start.checked_add(offset)?, into);
    let Some(elf) = Elf::read(&read) else { return true };
    let mut in_image = vec![0; elf.header_bytes];
    read(0, &mut in_image).is_none() || file.get(..in_image.len()) == Some(&in_image)
}

/// Combines the modules among the mappings with those that the image lists itself.
///
/// `in_parts` names files that are modules although their code is not identified.
pub(super) fn find(
    image: &Image,
    mut named: Vec<ImageModule>,
    mappings: &[Mapping],
    in_parts: &HashSet<Vec<u8>>,
    options: &OpenOptions,
    module_files: &mut ModuleFiles,
) -> Vec<ImageModule> {
    let mut ends: HashMap<&[u8], AbsoluteAddress> = HashMap::new();
    for mapping in mappings.iter().filter(|mapping| mapping.inode != 0) {
        let end = ends.entry(&mapping.name).or_insert(mapping.range.end);
        *end = mapping.range.end.max(*end);
    }
    let mut runs: HashSet<&[u8]> =
        mappings.iter().filter(|mapping| mapping.is_executable).map(|mapping| &*mapping.name).collect();
    runs.extend(in_parts.iter().map(Vec::as_slice));
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
            // The header's page was not dumped: only the file's name is known.
            named.push(ImageModule {
                path: path_of(&mapping.name),
                range: AddressRange::new(
                    start,
                    ends.get(&*mapping.name).copied().unwrap_or(mapping.range.end),
                ),
                bias: start.value(),
                build_id: Vec::new(),
                file: FileState::Unknown,
                is_identified: false,
                pe: None,
            });
            continue;
        };
        let Some(bias) = elf.bias(start.value()) else { continue };
        let id = elf.build_id(|note| bias.wrapping_add(note.0).wrapping_sub(start.value()), &read);
        let stated_end = elf.stated().map_or(start.value(), |(_, end)| bias.wrapping_add(end));
        let end = AbsoluteAddress::new(stated_end).max(mapping.range.end);
        named.push(ImageModule {
            path: path_of(&mapping.name),
            range: AddressRange::new(start, end),
            bias,
            build_id: id,
            file: if is_vdso { FileState::Missing } else { FileState::Unknown },
            is_identified: true,
            pe: None,
        });
    }
    named.sort_by_key(|module| module.range.start);
    // A minidump may list both a module and its mapping; the first has the build id.
    named.dedup_by(|later, earlier| {
        later.range.start == earlier.range.start
            || later.range.start < earlier.range.end && later.path == earlier.path
    });
    // A module ends at the start of the next one, whatever its headers claim.
    for index in 1..named.len() {
        let next = named.get(index).map_or(AbsoluteAddress::new(u64::MAX), |module| module.range.start);
        if let Some(module) = named.get_mut(index - 1) {
            module.range.end = module.range.end.min(next);
        }
    }
    name_the_program(image, &mut named, options, module_files);
    for module in &mut named {
        if let Some(stamp) = module.pe {
            find_pe_file(module, stamp, options, module_files);
            continue;
        }
        if module.file == FileState::Unknown && !module.path.as_os_str().as_encoded_bytes().starts_with(b"[")
        {
            let given = options.program.as_ref() == Some(&module.path);
            if !given
                && let Some(found) = library_of_build(&module.path, &module.build_id, options, module_files)
            {
                module.path = found;
            }
            let path = if given { module.path.clone() } else { path_below(&options.root, &module.path) };
            let start = module.range.start;
            let file = module_files.open(&path);
            let is_like_image = |file: &[u8]| has_headers_of(image, start, file);
            module.file =
                file_state(&module.build_id, &path, file.as_ref().map(|file| &***file), is_like_image);
        }
    }
    named
}

/// Searches for the file of a Windows module, below the root and beside the program. A module that
/// was found gets the path here.
fn find_pe_file(
    module: &mut ImageModule,
    stamp: PeStamp,
    options: &OpenOptions,
    module_files: &mut ModuleFiles,
) {
    module.file = FileState::Missing;
    for path in places_of_pe(&module.path.to_string_lossy(), options) {
        let Some(file) = module_files.open(&path) else { continue };
        let state = match PeIdentity::of_file(&file) {
            Some(found) if found.is_of(stamp, &module.build_id) => {
                module.file = FileState::Same(path.clone());
                module.path = path;
                // Names are searched by it, and the image need not have it.
                module.build_id = found.build_id;
                module.bias = module.range.start.value().wrapping_sub(found.image_base);
                return;
            }
            Some(found) => FileState::Different(Some(found.build_id).filter(|id| !id.is_empty())),
            // A library of the system that wine runs on: nothing identifies its build.
            None => FileState::Unknown,
        };
        if module.file == FileState::Missing {
            module.file = state;
        }
    }
}

/// The paths at which the file of a Windows module may be.
fn places_of_pe(path: &str, options: &OpenOptions) -> Vec<PathBuf> {
    let parts: Vec<&str> = path.split(['\\', '/']).filter(|part| !part.is_empty()).collect();
    let Some(name) = parts.last() else { return Vec::new() };
    let program = options.program.as_deref();
    let is_program = |program: &&Path| {
        program.file_name().is_some_and(|found| found.eq_ignore_ascii_case(std::ffi::OsStr::new(name)))
    };
    let given = program.filter(is_program).map(Path::to_owned);
    let as_recorded = path_below(&options.root, Path::new(path));
    // A drive is a directory of the root that may have been left out.
    let below_root = parts.iter().filter(|part| !part.ends_with(':')).collect::<PathBuf>();
    let beside = program.and_then(Path::parent).map(|directory| directory.join(name));
    let places =
        [Some(as_recorded), Some(options.root.join(below_root)), Some(options.root.join(name)), beside];
    given.into_iter().chain(places.into_iter().flatten()).collect()
}

/// Renames the program's module to the path in the options, found by build id or else by name.
fn name_the_program(
    image: &Image,
    modules: &mut [ImageModule],
    options: &OpenOptions,
    module_files: &mut ModuleFiles,
) {
    let Some(program) = &options.program else { return };
    let id = module_files
        .open(program)
        .and_then(|bytes| stated_range(&bytes))
        .map(|(_, id)| id)
        .unwrap_or_default();
    let by_id = modules.iter().position(|module| !id.is_empty() && module.build_id == id);
    let by_name = || {
        let is_it = |module: &ImageModule| {
            module.path.file_name() == program.file_name()
                || !image.about().name.is_empty()
                    && module.path.file_name().is_some_and(|name| {
                        name.as_encoded_bytes().starts_with(image.about().name.as_bytes())
                    })
        };
        modules.iter().position(is_it)
    };
    if let Some(module) = by_id.or_else(by_name).and_then(|index| modules.get_mut(index)) {
        module.path = program.clone();
    }
}
