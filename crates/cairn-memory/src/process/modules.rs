//! The modules of a process that holds still: from an address to the file and to its unwind table.

use std::cell::OnceCell;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use cairn_format::{AbsoluteAddress, StatedAddress, WordSize};
use cairn_unwind::cfi::{Bases, FrameTable, Section};
use cairn_unwind::{AddressRange, FnMemory, MemoryReader, Modules};

use super::image::{Image, Place};
use super::mapping::Mapping;

/// No unwind table is larger; a process that claims one is not believed.
const MAX_TABLE_BYTES: u64 = 1 << 29;

/// What the kernel writes behind the name of a file that is gone.
const DELETED: &[u8] = b" (deleted)";

/// One program or library, as it was loaded.
#[derive(Debug)]
pub struct LoadedModule {
    image: Image,
    name: Vec<u8>,
    inode: u64,
    table: OnceCell<Option<UnwindBytes>>,
}

/// The part of a segment from the first of `.eh_frame_hdr` and `.eh_frame` on.
#[derive(Debug)]
struct UnwindBytes {
    start: AbsoluteAddress,
    header: AbsoluteAddress,
    bytes: Vec<u8>,
}

impl LoadedModule {
    /// From its first byte to its last.
    #[must_use]
    pub fn range(&self) -> AddressRange {
        self.image.range
    }

    /// The file's path as the process sees it, or the kernel's word for what is no file.
    #[must_use]
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// What the linker stamped on it.
    #[must_use]
    pub fn build_id(&self) -> Option<&[u8]> {
        self.image.build_id.as_deref()
    }

    /// What the file and its debug information call the place at `address`.
    #[must_use]
    pub fn stated_address(&self, address: AbsoluteAddress) -> StatedAddress {
        StatedAddress::new(address.value().wrapping_sub(self.image.bias))
    }

    /// The file below `root`, if it is the one that was loaded: with the same build id, or, where there is none, the same
    /// inode. A file that was replaced since would answer with the names of other functions.
    #[must_use]
    pub fn file_below(&self, root: &Path) -> Option<PathBuf> {
        let name = self.name.strip_prefix(b"/")?;
        let path = root.join(OsStr::from_bytes(name));
        let file = File::open(&path).ok()?;
        self.is_loaded_from(&file).then_some(path)
    }

    fn is_loaded_from(&self, file: &File) -> bool {
        use std::os::unix::fs::MetadataExt;
        let Ok(metadata) = file.metadata() else { return false };
        if !metadata.is_file() {
            return false;
        }
        match &self.image.build_id {
            Some(_) => image_of_file(file).is_some_and(|image| image.build_id == self.image.build_id),
            None => metadata.ino() == self.inode,
        }
    }

    fn table(&self, memory: &impl MemoryReader, root: Option<&Path>) -> Option<FrameTable<'_>> {
        let unwind = self.table.get_or_init(|| self.read_table(memory, root)).as_ref()?;
        let offset = usize::try_from(unwind.header.value().checked_sub(unwind.start.value())?).ok()?;
        FrameTable::with_header_and_bases(
            Section::new(unwind.bytes.get(offset..)?, unwind.header),
            Section::new(&unwind.bytes, unwind.start),
            Bases::default(),
            WordSize::Bits64,
        )
        .ok()
    }

    /// From memory, which is what runs; from the file where a core left the memory out.
    fn read_table(&self, memory: &impl MemoryReader, root: Option<&Path>) -> Option<UnwindBytes> {
        let header = self.image.frame_header?;
        self.read_table_from(memory, header).or_else(|| {
            let path = self.file_below(root?)?;
            let file = File::open(path).ok()?;
            let image = image_of_file(&file)?;
            let loaded =
                |address: AbsoluteAddress| image.file_offset(address.value().wrapping_sub(self.image.bias));
            let memory = FnMemory(|address: AbsoluteAddress, into: &mut [u8]| {
                file.read_exact_at(into, loaded(address)?).ok()
            });
            self.read_table_from(&memory, header)
        })
    }

    fn read_table_from(&self, memory: &impl MemoryReader, header: AbsoluteAddress) -> Option<UnwindBytes> {
        let segment = self.image.segment_at(header)?;
        let start = match frames_start(memory, header) {
            Some(frames) if segment.contains(frames) => frames.min(header),
            _ => segment.start,
        };
        let length =
            segment.end.value().checked_sub(start.value()).filter(|&bytes| bytes <= MAX_TABLE_BYTES)?;
        let mut bytes = vec![0; usize::try_from(length).ok()?];
        memory.read(start, &mut bytes)?;
        Some(UnwindBytes { start, header, bytes })
    }
}

/// Where `.eh_frame` starts, as its header says in the encoding that linkers use.
fn frames_start(memory: &impl MemoryReader, header: AbsoluteAddress) -> Option<AbsoluteAddress> {
    /// Signed, four bytes, counted from its own place.
    const RELATIVE_I32: u8 = 0x1b;
    let mut bytes = [0; 8];
    memory.read(header, &mut bytes)?;
    let [1, RELATIVE_I32, _, _, a, b, c, d] = bytes else { return None };
    let distance = i64::from(i32::from_le_bytes([a, b, c, d]));
    Some(AbsoluteAddress::new(header.value().wrapping_add(4).wrapping_add_signed(distance)))
}

fn image_of_file(file: &File) -> Option<Image> {
    let bytes =
        FnMemory(|address: AbsoluteAddress, into: &mut [u8]| file.read_exact_at(into, address.value()).ok());
    Image::read(&bytes, AbsoluteAddress::new(0), Place::File)
}

/// The mappings and modules of a process.
#[derive(Debug)]
pub struct ModuleMap {
    mappings: Vec<Mapping>,
    modules: Vec<LoadedModule>,
    /// Where the paths of the modules begin.
    root: Option<PathBuf>,
}

impl ModuleMap {
    /// Finds the modules among `mappings`, by the ELF headers in `memory`. Paths are looked up below `root`; without one
    /// no file is opened.
    #[must_use]
    pub fn new(mut mappings: Vec<Mapping>, memory: &impl MemoryReader, root: Option<PathBuf>) -> Self {
        mappings.sort_by_key(|mapping| mapping.range.start);
        // A damaged core claims what no kernel does: mappings without a byte, and two at one address.
        let mut end = AbsoluteAddress::new(0);
        mappings.retain(|mapping| {
            let fits = mapping.range.start >= end && mapping.range.end > mapping.range.start;
            end = if fits { mapping.range.end } else { end };
            fits
        });
        // A file that is mapped to be read, or a device, is no module, and is not touched.
        let runs = |mapping: &&Mapping| mapping.is_executable && mapping.inode != 0;
        let run_inodes: HashSet<u64> = mappings.iter().filter(runs).map(|mapping| mapping.inode).collect();
        let mut modules: Vec<LoadedModule> = Vec::new();
        for (index, mapping) in mappings.iter().enumerate() {
            let begins_file = mapping.file_offset.value() == 0 && run_inodes.contains(&mapping.inode);
            let last = modules.last();
            let is_covered = last.is_some_and(|last| last.image.range.contains(mapping.range.start));
            if (begins_file || mapping.is_vdso())
                && !is_covered
                && let Some(mut image) = Image::read(memory, mapping.range.start, Place::Memory)
            {
                let own_end = end_of_file(mappings.get(index..).unwrap_or_default());
                image.range = AddressRange::new(mapping.range.start, image.range.end.min(own_end));
                if !runs_code(&mappings, mapping, image.range) {
                    continue;
                }
                let name = mapping.name.strip_suffix(DELETED).unwrap_or(&mapping.name).to_vec();
                modules.push(LoadedModule { image, name, inode: mapping.inode, table: OnceCell::new() });
            }
        }
        Self { mappings, modules, root }
    }

    /// The module that covers `address`.
    #[must_use]
    pub fn module_at(&self, address: AbsoluteAddress) -> Option<&LoadedModule> {
        let after = self.modules.partition_point(|module| module.image.range.start <= address);
        self.modules.get(after.checked_sub(1)?).filter(|module| module.image.range.contains(address))
    }

    /// All modules, lowest first.
    #[must_use]
    pub fn modules(&self) -> &[LoadedModule] {
        &self.modules
    }

    /// All mappings, lowest first.
    #[must_use]
    pub fn mappings(&self) -> &[Mapping] {
        &self.mappings
    }

    /// The mapping that covers `address`.
    #[must_use]
    pub fn mapping_at(&self, address: AbsoluteAddress) -> Option<&Mapping> {
        let after = self.mappings.partition_point(|mapping| mapping.range.start <= address);
        self.mappings.get(after.checked_sub(1)?).filter(|mapping| mapping.range.contains(address))
    }

    /// The file of a module, if it is still the one that was loaded.
    #[must_use]
    pub fn file_of(&self, module: &LoadedModule) -> Option<PathBuf> {
        module.file_below(self.root.as_deref()?)
    }

    /// The bits that an address in user space of this process can have: none lies above the highest mapping, which the
    /// kernel puts close to the top. What a return address has above them is a signature.
    #[must_use]
    pub fn address_mask(&self) -> u64 {
        let is_user = |mapping: &&Mapping| mapping.range.end.value() >> 55 == 0;
        let highest = self.mappings.iter().rev().find(is_user).map_or(0, |mapping| mapping.range.end.value());
        match highest.leading_zeros() {
            64 => u64::MAX,
            zeros => u64::MAX >> zeros,
        }
    }

    /// The view that a walk asks.
    pub(super) fn with_memory<'a, M>(&'a self, memory: &'a M) -> ModulesInMemory<'a, M> {
        ModulesInMemory { map: self, memory }
    }
}

/// Where another file begins behind the one that the first of `mappings` belongs to. What its headers claim beyond is not
/// its own.
fn end_of_file(mappings: &[Mapping]) -> AbsoluteAddress {
    let Some((first, others)) = mappings.split_first() else { return AbsoluteAddress::new(0) };
    if first.inode == 0 {
        return first.range.end;
    }
    let foreign = others.iter().find(|mapping| mapping.inode != 0 && mapping.inode != first.inode);
    foreign.map_or(AbsoluteAddress::new(u64::MAX), |mapping| mapping.range.start)
}

/// A library of which one copy is loaded may be mapped once more to be read, as debuggers do: that copy is no module.
fn runs_code(mappings: &[Mapping], first: &Mapping, range: AddressRange) -> bool {
    let of_this_file =
        |mapping: &&Mapping| mapping.range.start >= first.range.start && range.contains(mapping.range.start);
    mappings.iter().filter(of_this_file).any(|mapping| mapping.is_executable && mapping.inode == first.inode)
}

/// A [`ModuleMap`] with the memory that unwind tables are read from when they are first wanted.
#[derive(Debug)]
pub(super) struct ModulesInMemory<'a, M> {
    map: &'a ModuleMap,
    memory: &'a M,
}

impl<M: MemoryReader> Modules for ModulesInMemory<'_, M> {
    fn frame_table(&self, address: AbsoluteAddress) -> Option<FrameTable<'_>> {
        self.map.module_at(address)?.table(self.memory, self.map.root.as_deref())
    }

    fn is_executable(&self, address: AbsoluteAddress) -> bool {
        self.map.mapping_at(address).is_some_and(|mapping| mapping.is_executable)
    }
}
