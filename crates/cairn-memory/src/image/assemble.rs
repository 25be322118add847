//! Assembles an image from the parts that a reader found: sorts memory, finds modules, and fills
//! gaps from module files.

use std::collections::BTreeSet;
use std::sync::Arc;

use cairn_format::AbsoluteAddress;
use cairn_unwind::{AddressRange, MemoryReader};

use super::module_files::ModuleFiles;
use super::{
    About, Backing, FileState, Finding, Image, ImageModule, ImageThread, Machine, OpenOptions, Piece, length,
    modules,
};
use crate::mapped_file::FileBytes;
use crate::pe::PeModule;
use crate::process::{Mapping, ModuleMap, ProcessMemory};

/// The result of a reader.
pub(super) struct Parts {
    pub(super) machine: Machine,
    pub(super) about: About,
    pub(super) pieces: Vec<Piece>,
    pub(super) files: Vec<Arc<FileBytes>>,
    pub(super) process: Option<ProcessMemory>,
    pub(super) mappings: Vec<Mapping>,
    /// Starts of mapped files whose access rights the image does not state.
    pub(super) without_segment: BTreeSet<AbsoluteAddress>,
    /// Modules that the image lists itself.
    pub(super) named: Vec<ImageModule>,
    pub(super) threads: Vec<ImageThread>,
    pub(super) findings: Vec<Finding>,
    pub(super) lost_bytes: u64,
}

impl Parts {
    /// Creates the parts of an image without memory, threads or modules.
    pub(super) fn new(machine: Machine, about: About, findings: Vec<Finding>) -> Self {
        Self {
            machine,
            about,
            pieces: Vec::new(),
            files: Vec::new(),
            process: None,
            mappings: Vec::new(),
            without_segment: BTreeSet::new(),
            named: Vec::new(),
            threads: Vec::new(),
            findings,
            lost_bytes: 0,
        }
    }
}

/// A memory without any bytes.
struct NoMemory;

impl MemoryReader for NoMemory {
    fn read(&self, _address: AbsoluteAddress, _into: &mut [u8]) -> Option<()> {
        None
    }
}

impl Image {
    /// Assembles an image. `pieces` may be in any order and overlap.
    pub(super) fn assemble(parts: Parts, options: &OpenOptions) -> Self {
        let Parts {
            machine,
            about,
            pieces,
            files,
            process,
            mappings,
            without_segment,
            named,
            threads,
            mut findings,
            lost_bytes,
        } = parts;
        let mut pieces = pieces;
        pieces.iter_mut().for_each(|piece| piece.range = below_the_end(piece.range));
        let mut mappings = mappings;
        mappings.iter_mut().for_each(|mapping| mapping.range = below_the_end(mapping.range));
        let pieces = without_overlaps(pieces, &mut findings);
        let mut image = Self {
            machine,
            about,
            pieces,
            files,
            process,
            modules: Vec::new(),
            map: ModuleMap::new(Vec::new(), &NoMemory, None),
            threads: Vec::new(),
            walkable: Vec::new(),
            findings,
            lost_bytes,
        };
        let mut module_files = ModuleFiles::default();
        let in_parts = modules::complete_rights(
            &image,
            &mut mappings,
            &without_segment,
            &threads,
            options,
            &mut module_files,
        );
        image.modules = modules::find(&image, named, &mappings, &in_parts, options, &mut module_files);
        image.threads = threads;
        image.fill_from_files(&mappings, &mut module_files);
        image.map = ModuleMap::new(mappings, &image, Some(options.root.clone()));
        image.map.set_pe_modules(pe_modules(&image.modules, &mut module_files));
        let mask = image.map.address_mask();
        image.walkable = image.threads.iter().filter_map(|thread| thread.walkable(mask)).collect();
        image
    }

    /// Adds memory that the image omits, from module files of the same build; reports remaining
    /// gaps.
    fn fill_from_files(&mut self, mappings: &[Mapping], module_files: &mut ModuleFiles) {
        let mut unfilled: Vec<u64> = vec![0; self.modules.len()];
        let mut leave_out = |index: usize, hole: AddressRange| {
            if let Some(bytes) = unfilled.get_mut(index) {
                *bytes = bytes.saturating_add(length(hole));
            }
        };
        let mut opened: Vec<Option<usize>> = vec![None; self.modules.len()];
        let mut writable: Vec<Vec<AddressRange>> = vec![Vec::new(); self.modules.len()];
        let mut unknown_data: Vec<u64> = vec![0; self.modules.len()];
        // The rule that dumps stacks also dumps pages that the program wrote to, so an omitted page
        // is unchanged. A minidump has stacks but no data.
        let is_minidump = self.about.kind == "minidump";
        let has_stack =
            self.threads.iter().any(|thread| thread.sp.is_some_and(|sp| self.piece_at(sp).is_some()));
        let has_all_writes = has_stack && !is_minidump;
        let mut added = Vec::new();
        for mapping in mappings.iter().filter(|mapping| mapping.inode != 0) {
            let Some(index) = self.module_index_at(mapping.range.start) else { continue };
            let Some(module) = self.modules.get(index) else { continue };
            // Its sections are not where a mapping of the whole file would have them, and the
            // loader has changed addresses in them.
            if module.pe.is_some() {
                continue;
            }
            for hole in self.holes_in(mapping.range) {
                let FileState::Same(path) = &module.file else {
                    leave_out(index, hole);
                    continue;
                };
                let file = match opened.get(index).copied().flatten() {
                    Some(file) => file,
                    None => {
                        let Some(bytes) = module_files.open(path) else {
                            leave_out(index, hole);
                            continue;
                        };
                        self.files.push(bytes);
                        let file = self.files.len() - 1;
                        if let (Some(known), Some(pages), Some(bytes)) =
                            (opened.get_mut(index), writable.get_mut(index), self.files.last())
                        {
                            *known = Some(file);
                            *pages = modules::writable_pages(bytes, module.range.start);
                        }
                        file
                    }
                };
                let is_writable = writable
                    .get(index)
                    .is_some_and(|pages| pages.iter().any(|pages| pages.contains(hole.start)));
                if is_writable && !has_all_writes {
                    if let Some(bytes) = unknown_data.get_mut(index) {
                        *bytes = bytes.saturating_add(length(hole));
                    }
                    continue;
                }
                let into = hole.start.value() - mapping.range.start.value();
                let offset = mapping.file_offset.value().saturating_add(into);
                let there = self.files.get(file).map_or(0, |file| file.len() as u64);
                let bytes = length(hole).min(there.saturating_sub(offset));
                if bytes > 0 {
                    added.push(Piece {
                        range: AddressRange::new(
                            hole.start,
                            AbsoluteAddress::new(hole.start.value().saturating_add(bytes)),
                        ),
                        is_writable: false,
                        is_from_file: true,
                        backing: Backing::File { file, offset: offset as usize },
                    });
                }
            }
        }
        self.pieces.extend(added);
        self.pieces.sort_by_key(|piece| piece.range.start);
        for (module, (bytes, data_bytes)) in self.modules.iter().zip(unfilled.into_iter().zip(unknown_data)) {
            if let Some(finding) = module.complaint() {
                self.findings.push(finding);
            }
            // The vdso is not a file.
            let is_file = !module.path.as_os_str().as_encoded_bytes().starts_with(b"[");
            if !module.is_identified && is_file {
                let path = module.path.clone();
                self.findings
                    .push(Finding::NotIdentified { path, bytes: if is_minidump { 0 } else { bytes } });
                continue;
            }
            // Minidumps omit all modules, by design.
            let missing = [
                (bytes, module.file.reason()),
                (data_bytes, "the program could write there, and the file has only the initial content"),
            ];
            for (bytes, reason) in missing.into_iter().filter(|(bytes, _)| *bytes > 0 && !is_minidump) {
                self.findings.push(Finding::NotFilled { path: module.path.clone(), bytes, reason });
            }
        }
    }

    /// Returns the parts of a range that no piece covers.
    fn holes_in(&self, range: AddressRange) -> Vec<AddressRange> {
        let first = self.pieces.partition_point(|piece| piece.range.end <= range.start);
        let mut holes = Vec::new();
        let mut at = range.start;
        for piece in self.pieces.iter().skip(first).take_while(|piece| piece.range.start < range.end) {
            if at < piece.range.start {
                holes.push(AddressRange::new(at, piece.range.start));
            }
            at = at.max(piece.range.end);
        }
        if at < range.end {
            holes.push(AddressRange::new(at, range.end));
        }
        holes
    }
}

/// The modules of Windows, with the files that are here.
fn pe_modules(modules: &[ImageModule], module_files: &mut ModuleFiles) -> Vec<PeModule> {
    let of_windows = modules.iter().filter(|module| module.pe.is_some());
    let with_file = of_windows.map(|module| {
        let file = match &module.file {
            FileState::Same(path) => module_files.open(path),
            _ => None,
        };
        PeModule::new(module.range, file)
    });
    with_file.collect()
}

/// Cuts a range below the last 64 KiB of the 64-bit address space, which no system uses.
///
/// Adding a header or a page to an image's address then cannot overflow.
fn below_the_end(range: AddressRange) -> AddressRange {
    const END: AbsoluteAddress = AbsoluteAddress::new(u64::MAX << 16);
    AddressRange::new(range.start.min(END), range.end.min(END))
}

/// Sorts pieces; at overlaps, the first one listed remains complete.
fn without_overlaps(mut pieces: Vec<Piece>, findings: &mut Vec<Finding>) -> Vec<Piece> {
    pieces.retain(|piece| piece.range.start < piece.range.end);
    pieces.sort_by_key(|piece| piece.range.start);
    let mut retained: Vec<Piece> = Vec::with_capacity(pieces.len());
    for mut piece in pieces {
        if let Some(last) = retained.last()
            && piece.range.start < last.range.end
        {
            let end = last.range.end.min(piece.range.end);
            let bytes = end.value() - piece.range.start.value();
            findings.push(Finding::Overlap { address: piece.range.start, bytes });
            if let Backing::File { offset, .. } = &mut piece.backing {
                *offset = offset.saturating_add(bytes as usize);
            }
            piece.range.start = end;
            if piece.range.start >= piece.range.end {
                continue;
            }
        }
        retained.push(piece);
    }
    retained
}
