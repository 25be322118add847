//! The modules of a stopped process: finds file and unwind table of an address.

use std::cell::OnceCell;
use std::collections::HashSet;
use std::fs::File;
use std::path::{Path, PathBuf};

use cairn_files::read_exact_at;
use cairn_format::{AbsoluteAddress, StatedAddress, WordSize};
use cairn_unwind::cfi::{Bases, FrameTable, Section};
use cairn_unwind::pdata::FunctionTable;
use cairn_unwind::{AddressRange, FnMemory, MemoryReader, Modules};

use super::elf_headers::{ElfHeaders, Placement};
use super::mapping::Mapping;
use crate::path_bytes::path_of;
use crate::pe::PeModule;

/// Maximum bytes of an unwind table; 512 MiB, more than real ones have. Larger claims are ignored.
const MAX_TABLE_BYTES: u64 = 1 << 29;

/// Suffix in the kernel's list for a deleted file.
const DELETED: &[u8] = b" (deleted)";

/// A loaded program or library.
#[derive(Debug)]
pub struct LoadedModule {
    headers: ElfHeaders,
    name: Vec<u8>,
    inode: u64,
    table: OnceCell<Option<UnwindBytes>>,
}

/// The part of a segment from `.eh_frame_hdr` or `.eh_frame` on, whichever is first.
#[derive(Debug)]
struct UnwindBytes {
    start: AbsoluteAddress,
    header: AbsoluteAddress,
    bytes: Vec<u8>,
}

impl LoadedModule {
    /// Returns the range from its first byte to its last.
    #[must_use]
    pub fn range(&self) -> AddressRange {
        self.headers.range
    }

    /// Returns the file's path as the process sees it, or the kernel's name of a mapping without a
    /// file.
    #[must_use]
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// Returns the build id.
    #[must_use]
    pub fn build_id(&self) -> Option<&[u8]> {
        self.headers.build_id.as_deref()
    }

    /// Returns the address of the dynamic section.
    pub(crate) fn dynamic(&self) -> Option<AbsoluteAddress> {
        self.headers.dynamic
    }

    /// Returns the wrapping difference of addresses in memory and those stated in the file.
    pub(crate) fn bias(&self) -> u64 {
        self.headers.bias
    }

    /// Returns the address that the file and its debug information use for `address`.
    #[must_use]
    pub fn stated_address(&self, address: AbsoluteAddress) -> StatedAddress {
        StatedAddress::new(address.value().wrapping_sub(self.headers.bias))
    }

    /// Returns the file below `root`, if it is the loaded one.
    ///
    /// It has the same build id or, without one, the same inode. A replaced file would give the
    /// names of other functions.
    #[must_use]
    pub fn file_below(&self, root: &Path) -> Option<PathBuf> {
        let name = self.name.strip_prefix(b"/")?;
        let path = root.join(path_of(name));
        let file = File::open(&path).ok()?;
        self.is_loaded_from(&file).then_some(path)
    }

    fn is_loaded_from(&self, file: &File) -> bool {
        let Ok(metadata) = file.metadata() else { return false };
        if !metadata.is_file() {
            return false;
        }
        match &self.headers.build_id {
            Some(_) => headers_of_file(file).is_some_and(|headers| headers.build_id == self.headers.build_id),
            None => is_inode(&metadata, self.inode),
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

    /// Reads the table from memory, which is what runs, or from the file if a core omits it.
    fn read_table(&self, memory: &impl MemoryReader, root: Option<&Path>) -> Option<UnwindBytes> {
        let header = self.headers.frame_header?;
        self.read_table_from(memory, header).or_else(|| {
            let path = self.file_below(root?)?;
            let file = File::open(path).ok()?;
            let headers = headers_of_file(&file)?;
            let loaded = |address: AbsoluteAddress| {
                headers.file_offset(address.value().wrapping_sub(self.headers.bias))
            };
            let memory = FnMemory(|address: AbsoluteAddress, into: &mut [u8]| {
                read_exact_at(&file, into, loaded(address)?).ok()
            });
            self.read_table_from(&memory, header)
        })
    }

    /// Reads what the file has at `address`.
    fn read_file(&self, address: AbsoluteAddress, into: &mut [u8], root: &Path) -> Option<()> {
        let file = File::open(self.file_below(root)?).ok()?;
        let stated = address.value().wrapping_sub(self.headers.bias);
        read_exact_at(&file, into, headers_of_file(&file)?.file_offset(stated)?).ok()
    }

    fn read_table_from(&self, memory: &impl MemoryReader, header: AbsoluteAddress) -> Option<UnwindBytes> {
        let segment = self.headers.segment_at(header)?;
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

/// Returns the start of `.eh_frame`, if its header uses the encoding that linkers emit.
fn frames_start(memory: &impl MemoryReader, header: AbsoluteAddress) -> Option<AbsoluteAddress> {
    /// Signed, four bytes, relative to its own address.
    const RELATIVE_I32: u8 = 0x1b;
    let mut bytes = [0; 8];
    memory.read(header, &mut bytes)?;
    let [1, RELATIVE_I32, _, _, a, b, c, d] = bytes else { return None };
    let distance = i64::from(i32::from_le_bytes([a, b, c, d]));
    Some(AbsoluteAddress::new(header.value().wrapping_add(4).wrapping_add_signed(distance)))
}

#[cfg(unix)]
fn is_inode(file: &std::fs::Metadata, inode: u64) -> bool {
    std::os::unix::fs::MetadataExt::ino(file) == inode
}

/// No file here has a number that an image of another system states.
#[cfg(not(unix))]
fn is_inode(_file: &std::fs::Metadata, _inode: u64) -> bool {
    false
}

fn headers_of_file(file: &File) -> Option<ElfHeaders> {
    let bytes =
        FnMemory(|address: AbsoluteAddress, into: &mut [u8]| read_exact_at(file, into, address.value()).ok());
    ElfHeaders::read(&bytes, AbsoluteAddress::new(0), Placement::File)
}

/// The mappings and modules of a process.
#[derive(Debug)]
pub struct ModuleMap {
    mappings: Vec<Mapping>,
    modules: Vec<LoadedModule>,
    /// Those of Windows, lowest first.
    pe_modules: Vec<PeModule>,
    /// The root directory of module paths.
    root: Option<PathBuf>,
}

impl ModuleMap {
    /// Finds the modules among `mappings`, by the ELF headers in `memory`.
    ///
    /// Paths are looked up below `root`; without it, no file is opened.
    #[must_use]
    pub fn new(mut mappings: Vec<Mapping>, memory: &impl MemoryReader, root: Option<PathBuf>) -> Self {
        mappings.sort_by_key(|mapping| mapping.range.start);
        // A damaged core may contain what no kernel creates: empty mappings, and two at one
        // address.
        let mut end = AbsoluteAddress::new(0);
        mappings.retain(|mapping| {
            let fits = mapping.range.start >= end && mapping.range.end > mapping.range.start;
            end = if fits { mapping.range.end } else { end };
            fits
        });
        // A file mapped as data, or a device, is not a module, and is not opened.
        let runs = |mapping: &&Mapping| mapping.is_executable && mapping.inode != 0;
        let run_inodes: HashSet<u64> = mappings.iter().filter(runs).map(|mapping| mapping.inode).collect();
        let mut modules: Vec<LoadedModule> = Vec::new();
        for (index, mapping) in mappings.iter().enumerate() {
            let begins_file = mapping.file_offset.value() == 0 && run_inodes.contains(&mapping.inode);
            let last = modules.last();
            let is_covered = last.is_some_and(|last| last.headers.range.contains(mapping.range.start));
            if (begins_file || mapping.is_vdso())
                && !is_covered
                && let Some(mut headers) = ElfHeaders::read(memory, mapping.range.start, Placement::Memory)
            {
                let own_end = end_of_file(mappings.get(index..).unwrap_or_default());
                headers.range = AddressRange::new(mapping.range.start, headers.range.end.min(own_end));
                if !runs_code(&mappings, mapping, headers.range) {
                    continue;
                }
                let name = mapping.name.strip_suffix(DELETED).unwrap_or(&mapping.name).to_vec();
                modules.push(LoadedModule { headers, name, inode: mapping.inode, table: OnceCell::new() });
            }
        }
        Self { mappings, modules, pe_modules: Vec::new(), root }
    }

    /// Adds modules of Windows, lowest first, which do not overlap.
    pub(crate) fn set_pe_modules(&mut self, modules: Vec<PeModule>) {
        self.pe_modules = modules;
    }

    fn pe_module_at(&self, address: AbsoluteAddress) -> Option<&PeModule> {
        let after = self.pe_modules.partition_point(|module| module.range().start <= address);
        self.pe_modules.get(after.checked_sub(1)?).filter(|module| module.range().contains(address))
    }

    /// Finds the module that contains `address`.
    #[must_use]
    pub fn module_at(&self, address: AbsoluteAddress) -> Option<&LoadedModule> {
        let after = self.modules.partition_point(|module| module.headers.range.start <= address);
        self.modules.get(after.checked_sub(1)?).filter(|module| module.headers.range.contains(address))
    }

    /// Returns all modules, lowest first.
    #[must_use]
    pub fn modules(&self) -> &[LoadedModule] {
        &self.modules
    }

    /// Returns all mappings, lowest first.
    #[must_use]
    pub fn mappings(&self) -> &[Mapping] {
        &self.mappings
    }

    /// Finds the mapping that contains `address`.
    #[must_use]
    pub fn mapping_at(&self, address: AbsoluteAddress) -> Option<&Mapping> {
        let after = self.mappings.partition_point(|mapping| mapping.range.start <= address);
        self.mappings.get(after.checked_sub(1)?).filter(|mapping| mapping.range.contains(address))
    }

    /// Returns the file of a module, if it is still the loaded one.
    #[must_use]
    pub fn file_of(&self, module: &LoadedModule) -> Option<PathBuf> {
        module.file_below(self.root.as_deref()?)
    }

    /// Returns a mask of the bits that user-space addresses of this process can have.
    ///
    /// No address is above the highest mapping, which the kernel places near the top. Higher bits
    /// of a return address are a signature.
    #[must_use]
    pub fn address_mask(&self) -> u64 {
        let is_user = |mapping: &&Mapping| mapping.range.end.value() >> 55 == 0;
        let highest = self.mappings.iter().rev().find(is_user).map_or(0, |mapping| mapping.range.end.value());
        match highest.leading_zeros() {
            64 => u64::MAX,
            zeros => u64::MAX >> zeros,
        }
    }

    /// Combines the map with memory, as the interface that walks use.
    pub(super) fn with_memory<'a, M>(&'a self, memory: &'a M) -> ModulesInMemory<'a, M> {
        ModulesInMemory { map: self, memory }
    }
}

/// Returns the start of the next file's mappings. A module's headers may claim more, but it ends
/// there.
fn end_of_file(mappings: &[Mapping]) -> AbsoluteAddress {
    let Some((first, others)) = mappings.split_first() else { return AbsoluteAddress::new(0) };
    if first.inode == 0 {
        return first.range.end;
    }
    let foreign = others.iter().find(|mapping| mapping.inode != 0 && mapping.inode != first.inode);
    foreign.map_or(AbsoluteAddress::new(u64::MAX), |mapping| mapping.range.start)
}

/// Excludes a second, data-only mapping of a loaded library, as debuggers create it.
fn runs_code(mappings: &[Mapping], first: &Mapping, range: AddressRange) -> bool {
    let of_this_file =
        |mapping: &&Mapping| mapping.range.start >= first.range.start && range.contains(mapping.range.start);
    mappings.iter().filter(of_this_file).any(|mapping| mapping.is_executable && mapping.inode == first.inode)
}

/// A [`ModuleMap`] with the memory from which unwind tables are read on first use.
#[derive(Debug)]
pub(super) struct ModulesInMemory<'a, M> {
    map: &'a ModuleMap,
    memory: &'a M,
}

impl<M: MemoryReader> Modules for ModulesInMemory<'_, M> {
    fn frame_table(&self, address: AbsoluteAddress) -> Option<FrameTable<'_>> {
        self.map.module_at(address)?.table(self.memory, self.map.root.as_deref())
    }

    fn function_table(&self, address: AbsoluteAddress) -> Option<FunctionTable<'_>> {
        Some(self.map.pe_module_at(address)?.function_table(self.memory))
    }

    fn is_executable(&self, address: AbsoluteAddress) -> bool {
        self.map.mapping_at(address).is_some_and(|mapping| mapping.is_executable)
    }

    fn is_generated(&self, address: AbsoluteAddress) -> bool {
        self.is_executable(address)
            && self.map.module_at(address).is_none()
            && self.map.pe_module_at(address).is_none()
    }

    fn read_code(&self, address: AbsoluteAddress, into: &mut [u8]) -> Option<()> {
        self.memory.read(address, into).or_else(|| {
            // A core omits the code of files.
            if let Some(module) = self.map.pe_module_at(address) {
                return module.read(address.value(), into, self.memory);
            }
            self.map.module_at(address)?.read_file(address, into, self.map.root.as_deref()?)
        })
    }
}
