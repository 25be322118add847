//! Which files were loaded where, and whether those on disk are the same: by the ELF headers in the image.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use cairn_format::AbsoluteAddress;
use cairn_unwind::{AddressRange, MemoryReader};
use cairn_wire::heapblock::ByteOrder;

use super::{Fields, FileBytes, Finding, Image, ImageThread, OpenOptions};
use crate::process::Mapping;

/// Real files have a dozen.
const MAX_PROGRAM_HEADERS: u64 = 1024;
/// Real notes take some hundred bytes.
const MAX_NOTE_BYTES: u64 = 1 << 16;

const LOAD: u32 = 1;
const NOTE: u32 = 4;
const EXECUTABLE: u32 = 1;
const WRITABLE: u32 = 2;

/// Behind the name of a file that was gone when the image was made.
const DELETED: &[u8] = b" (deleted)";

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
    /// False when the image holds neither the build id nor the file's ELF header: any build of a file of this name may have
    /// run, and the names of its functions cannot be known.
    pub is_identified: bool,
}

/// What is known of a module's file on disk.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum FileState {
    /// It is the one that was loaded.
    Same(PathBuf),
    /// It is of another build: with this id, or with none.
    Different(Option<Vec<u8>>),
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
            expected: hexadecimal(&self.build_id),
            found: found.as_deref().map(hexadecimal),
        })
    }
}

/// Formats a build id as tools print it.
fn hexadecimal(build_id: &[u8]) -> String {
    build_id.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A loaded segment, as the program headers state it.
#[derive(Clone, Copy)]
struct Load {
    address: u64,
    file_offset: u64,
    memory_bytes: u64,
    flags: u32,
}

/// What the headers of an ELF file say.
struct Elf {
    loads: Vec<Load>,
    /// Stated address, file offset and length of each stretch of notes.
    notes: Vec<(u64, u64, u64)>,
    order: ByteOrder,
    /// From the file's first byte to the end of its program headers, where those follow the first header.
    header_bytes: usize,
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

    /// From the lowest stated address to the end of the highest.
    fn stated(&self) -> Option<(u64, u64)> {
        let start = self.loads.iter().map(|load| load.address).min()?;
        let end = self.loads.iter().map(|load| load.address.saturating_add(load.memory_bytes)).max()?;
        Some((start, end))
    }

    /// What is added to a stated address when the file's first byte is loaded to `start`.
    fn bias(&self, start: u64) -> Option<u64> {
        let first = self.loads.iter().find(|load| load.file_offset < 0x1000)?;
        Some(start.wrapping_sub(first.address.wrapping_sub(first.file_offset)))
    }

    /// The whole pages of the segments with a right, where the file's first byte is loaded to `start`.
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

/// The pages that a file's own headers state as writable, where its first byte is loaded to `start`.
pub(super) fn writable_pages(file: &[u8], start: AbsoluteAddress) -> Vec<AddressRange> {
    Elf::read(&reader_of(file)).map_or_else(Vec::new, |elf| elf.pages_with(WRITABLE, start.value()))
}

/// The place of a module below the directory in which paths are looked up.
fn place_below(root: &Path, path: &Path) -> PathBuf {
    let bytes = path.as_os_str().as_bytes();
    let path = Path::new(OsStr::from_bytes(bytes.strip_suffix(DELETED).unwrap_or(bytes)));
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// The library with this build id in the directories that loaders search, where the image has no more than its name:
/// Crashpad takes the name that a library gives itself.
fn library_of_build(name: &Path, build_id: &[u8], options: &OpenOptions) -> Option<PathBuf> {
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
    let is_it = |path: &Path| {
        let found = FileBytes::open(path).ok().and_then(|bytes| stated_range(&bytes));
        found.is_some_and(|(_, id)| id == build_id)
    };
    own.filter(|path| is_it(path))
        .or_else(|| recorded.into_iter().find(|path| is_it(&place_below(&options.root, path))))
}

fn overlaps(one: AddressRange, other: AddressRange) -> bool {
    one.start < other.end && other.start < one.end
}

/// Finds out which mappings hold code where the image states no access rights: by the program headers of their file, in
/// the image or else on disk, and by the pcs of threads. Returns the names of files that were loaded part by part, as
/// programs are, and whose headers are nowhere.
///
/// The file on disk may be of another build. It decides here whether a mapping is listed as a module, and no more.
pub(super) fn complete_rights(
    image: &Image,
    mappings: &mut [Mapping],
    without_segment: &BTreeSet<AbsoluteAddress>,
    threads: &[ImageThread],
    options: &OpenOptions,
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
            let path = place_below(&options.root, Path::new(OsStr::from_bytes(&mapping.name)));
            match FileBytes::open(&path) {
                Ok(file) => Elf::read(&reader_of(&file)).map(|elf| elf.pages_with(EXECUTABLE, start.value())),
                Err(_) => {
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

/// Compares the file of a module with the build that ran. `is_like_image` compares its headers with those in the image, for
/// a module without a build id.
pub(super) fn file_state(
    build_id: &[u8],
    path: &Path,
    is_like_image: impl FnOnce(&[u8]) -> bool,
) -> FileState {
    let Ok(bytes) = FileBytes::open(path) else { return FileState::Missing };
    if build_id.is_empty() {
        return if is_like_image(&bytes) { FileState::Unknown } else { FileState::Different(None) };
    }
    match stated_range(&bytes) {
        Some((_, found)) if found == build_id => FileState::Same(path.to_owned()),
        Some((_, found)) if !found.is_empty() => FileState::Different(Some(found)),
        _ => FileState::Different(None),
    }
}

/// Whether the headers that the image has of a module are those of a file. True where the image has none.
fn has_headers_of(image: &Image, start: AbsoluteAddress, file: &[u8]) -> bool {
    let read = |offset: u64, into: &mut [u8]| image.read(start.checked_add(offset)?, into);
    let Some(elf) = Elf::read(&read) else { return true };
    let mut in_image = vec![0; elf.header_bytes];
    read(0, &mut in_image).is_none() || file.get(..in_image.len()) == Some(&in_image)
}

/// The modules among the mappings of files, and those that the image lists by itself. `in_parts` names the files that are
/// modules though nothing says where their code is.
pub(super) fn find(
    image: &Image,
    mut named: Vec<ImageModule>,
    mappings: &[Mapping],
    in_parts: &HashSet<Vec<u8>>,
    options: &OpenOptions,
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
                is_identified: false,
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
            is_identified: true,
        });
    }
    named.sort_by_key(|module| module.range.start);
    // A minidump may list a module by itself and its mapping; the first has the build id.
    named.dedup_by(|later, earlier| {
        later.range.start == earlier.range.start
            || later.range.start < earlier.range.end && later.path == earlier.path
    });
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
            let given = options.program.as_ref() == Some(&module.path);
            if !given && let Some(found) = library_of_build(&module.path, &module.build_id, options) {
                module.path = found;
            }
            let path = if given { module.path.clone() } else { place_below(&options.root, &module.path) };
            let start = module.range.start;
            module.file = file_state(&module.build_id, &path, |file| has_headers_of(image, start, file));
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
