//! Minidumps, as Breakpad and Crashpad write them on every system: a directory of streams of
//! tables.
//!
//! Parsed by hand, because an image needs only threads, modules and memory, and the crate for
//! minidumps has 46 dependencies.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cairn_format::{AbsoluteAddress, WordSize};
use cairn_unwind::{AddressRange, Registers, x86_64};
use cairn_wire::heapblock::ByteOrder;

use super::registers::{ImageThread, elf};
use super::{
    About, Backing, Fields, FileBytes, FileState, Finding, Image, ImageError, ImageModule, Machine,
    OpenOptions, Parts, Piece,
};
use crate::pe::PeStamp;
use crate::process::{Mapping, ThreadRegisters, parse_mappings};

const THREADS: u32 = 3;
const MODULES: u32 = 4;
const MEMORY: u32 = 5;
const EXCEPTION: u32 = 6;
const SYSTEM: u32 = 7;
const MEMORY_64: u32 = 9;
const MISCELLANEOUS: u32 = 15;
const THREAD_NAMES: u32 = 24;
const LINUX_COMMAND_LINE: u32 = 0x4767_0006;
const LINUX_MAPS: u32 = 0x4767_0009;

const THREAD_BYTES: u64 = 48;
const MODULE_BYTES: u64 = 108;
const THREAD_NAME_BYTES: u64 = 12;

const WINDOWS: u32 = 2;
/// Exceptions of Windows that state an address of data.
const ACCESS_VIOLATION: u32 = 0xc000_0005;
const IN_PAGE_ERROR: u32 = 0xc000_0006;
/// Signal number of a dump that was requested without a crash.
const DUMP_REQUESTED: u32 = u32::MAX;

const X86: u16 = 0;
const ARM: u16 = 5;
const AMD64: u16 = 9;
const ARM64: u16 = 12;
/// The number that Breakpad used before there was an official one.
const ARM64_OLD: u16 = 0x8003;

struct DumpReader<'a> {
    file: Fields<'a>,
    parts: Parts,
    processor: u16,
    is_windows: bool,
    crashed: Option<u32>,
}

pub(super) fn read(
    bytes: FileBytes,
    path: &Path,
    options: &OpenOptions,
    findings: Vec<Finding>,
) -> Result<Image, ImageError> {
    let file = Fields { bytes: &bytes, order: ByteOrder::LittleEndian, is_wide: true };
    let cut = || ImageError::Damaged {
        path: path.to_owned(),
        offset: bytes.len() as u64,
        problem: "the file ends inside of its first header".to_owned(),
    };
    let (stated, directory) = (file.u32(8).ok_or_else(cut)?, u64::from(file.u32(12).ok_or_else(cut)?));
    let mut reader = DumpReader {
        file,
        parts: Parts::new(Machine::default(), About { kind: "minidump", ..About::default() }, findings),
        processor: AMD64,
        is_windows: false,
        crashed: None,
    };
    let room = (bytes.len() as u64).saturating_sub(directory) / 12;
    let count = u64::from(stated).min(room);
    if count < stated.into() {
        reader.parts.findings.push(Finding::ShortTable {
            table: "streams",
            stated: stated.into(),
            found: count,
        });
    }
    let mut streams: Vec<(u32, u64, u64)> = (0..count)
        .filter_map(|index| {
            let entry = file.at(directory + index * 12)?;
            Some((entry.u32(0)?, entry.u32(8)?.into(), entry.u32(4)?.into()))
        })
        .collect();
    // The processor determines the register layout; the crashed thread must come first.
    streams.sort_by_key(|stream| match stream.0 {
        SYSTEM => 0,
        EXCEPTION => 1,
        THREAD_NAMES => 3,
        _ => 2,
    });
    for (kind, offset, length) in streams {
        reader.stream(kind, offset, length);
    }
    let mut parts = reader.parts;
    if parts.lost_bytes > 0 {
        let dumped =
            parts.pieces.iter().fold(0_u64, |sum, piece| sum.saturating_add(super::length(piece.range)));
        parts.findings.push(Finding::Cut {
            missing_bytes: parts.lost_bytes,
            stated_bytes: dumped.saturating_add(parts.lost_bytes),
            segments: 1,
        });
    }
    if parts.mappings.is_empty() {
        parts.mappings = mappings_of(&parts);
    } else {
        parts.mappings.sort_by_key(|mapping| mapping.range.start);
        let mappings = &parts.mappings;
        for piece in &mut parts.pieces {
            let after = mappings.partition_point(|mapping| mapping.range.start <= piece.range.start);
            let around = after.checked_sub(1).and_then(|index| mappings.get(index));
            let around = around.filter(|mapping| mapping.range.contains(piece.range.start));
            piece.is_writable = around.is_none_or(|mapping| !mapping.is_executable);
        }
    }
    parts.files.push(Arc::new(bytes));
    Ok(Image::assemble(parts, options))
}

/// Derives mappings without the system's list: each module is one, executable like the memory
/// around.
fn mappings_of(parts: &Parts) -> Vec<Mapping> {
    let modules = parts.named.iter().enumerate().map(|(index, module)| Mapping {
        range: module.range,
        is_readable: true,
        is_executable: true,
        file_offset: cairn_format::FileOffset::new(0),
        inode: index as u64 + 1,
        name: crate::path_bytes::bytes_of(&module.path),
    });
    let memory = parts.pieces.iter().map(|piece| Mapping {
        range: piece.range,
        is_readable: true,
        is_executable: false,
        file_offset: cairn_format::FileOffset::new(0),
        inode: 0,
        name: Vec::new(),
    });
    modules.chain(memory).collect()
}

impl DumpReader<'_> {
    fn stream(&mut self, kind: u32, offset: u64, length: u64) {
        let Some(stream) = self.file.at(offset) else { return };
        match kind {
            SYSTEM => self.system(stream),
            EXCEPTION => self.exception(stream),
            THREADS => self.threads(stream, offset),
            MODULES => self.modules(stream, offset),
            MEMORY => self.memory(stream, offset),
            MEMORY_64 => self.memory_64(stream, offset),
            MISCELLANEOUS => self.miscellaneous(stream),
            THREAD_NAMES => self.thread_names(stream),
            LINUX_MAPS => {
                self.parts.mappings = parse_mappings(self.file.slice(offset, length).unwrap_or_default());
            }
            LINUX_COMMAND_LINE => {
                let bytes = self.file.slice(offset, length).unwrap_or_default();
                let text = String::from_utf8_lossy(bytes).trim_end_matches('\0').replace('\0', " ");
                self.parts.about.command_line = text;
            }
            _ => {}
        }
    }

    fn system(&mut self, stream: Fields<'_>) {
        self.processor = stream.u16(0).unwrap_or(AMD64);
        let (word_size, name) = match self.processor {
            X86 => (WordSize::Bits32, elf::name(elf::I386)),
            ARM => (WordSize::Bits32, elf::name(elf::ARM)),
            AMD64 => (WordSize::Bits64, elf::name(elf::X86_64)),
            ARM64 | ARM64_OLD => (WordSize::Bits64, elf::name(elf::AARCH64)),
            _ => (WordSize::Bits64, None),
        };
        self.is_windows = stream.u32(20) == Some(WINDOWS);
        self.parts.machine = Machine { word_size, byte_order: ByteOrder::LittleEndian };
        self.parts.about.machine = name;
    }

    fn exception(&mut self, stream: Fields<'_>) {
        self.crashed = stream.u32(0);
        // A Windows exception is not a signal.
        self.parts.about.signal =
            stream.u32(8).filter(|&signal| signal != DUMP_REQUESTED && !self.is_windows);
        self.parts.about.fault_address = match stream.u32(8) {
            Some(DUMP_REQUESTED) => None,
            // The address of the exception is that of the instruction; the second parameter is the
            // address that it could not reach.
            Some(ACCESS_VIOLATION | IN_PAGE_ERROR) if self.is_windows => stream.u64(48),
            _ if self.is_windows => None,
            _ => stream.u64(24).filter(|&address| address != 0),
        };
        let place = (stream.u32(160), stream.u32(164));
        if let (Some(thread), (Some(length), Some(offset))) = (self.crashed, place)
            && let Some(found) = self.registers(thread, offset.into(), length.into())
        {
            self.parts.threads.push(found);
        }
    }

    /// Parses the record of length, valid fields and process id.
    fn miscellaneous(&mut self, stream: Fields<'_>) {
        const HAS_PROCESS: u32 = 1;
        if stream.u32(4).is_some_and(|flags| flags & HAS_PROCESS != 0) {
            self.parts.about.process = stream.u32(8).filter(|&process| process != 0);
        }
    }

    fn thread_names(&mut self, stream: Fields<'_>) {
        for index in 0..self.count("names of threads", stream, THREAD_NAME_BYTES) {
            let Some(entry) = stream.at(4 + index * THREAD_NAME_BYTES) else { return };
            let (Some(id), Some(place)) = (entry.u32(0), entry.u64(4)) else { return };
            let Some(name) = self.text(place) else { continue };
            if let Some(thread) = self.parts.threads.iter_mut().find(|thread| thread.id == id) {
                thread.name = name;
            }
        }
    }

    /// Returns how many of a table's stated entries are present; the entries follow the count.
    fn count(&mut self, table: &'static str, stream: Fields<'_>, entry_bytes: u64) -> u64 {
        let stated = u64::from(stream.u32(0).unwrap_or(0));
        let found = stated.min((stream.bytes.len() as u64).saturating_sub(4) / entry_bytes);
        if found < stated {
            self.parts.findings.push(Finding::ShortTable { table, stated, found });
        }
        found
    }

    fn threads(&mut self, stream: Fields<'_>, _offset: u64) {
        for index in 0..self.count("threads", stream, THREAD_BYTES) {
            let Some(entry) = stream.at(4 + index * THREAD_BYTES) else { return };
            let (Some(id), Some(start)) = (entry.u32(0), entry.u64(24)) else { return };
            let (Some(bytes), Some(at)) = (entry.u32(32), entry.u32(36)) else { return };
            self.piece(start, at.into(), bytes.into());
            let (Some(length), Some(offset)) = (entry.u32(40), entry.u32(44)) else { return };
            if self.crashed != Some(id)
                && let Some(thread) = self.registers(id, offset.into(), length.into())
            {
                self.parts.threads.push(thread);
            }
        }
    }

    fn registers(&self, id: u32, offset: u64, length: u64) -> Option<ImageThread> {
        let context = Fields { bytes: self.file.slice(offset, length)?, ..self.file };
        match self.processor {
            AMD64 => {
                use x86_64::{
                    R8, R9, R10, R11, R12, R13, R14, R15, RAX, RBP, RBX, RCX, RDI, RDX, RIP, RSI, RSP,
                };
                const ORDER: [u16; 17] =
                    [RAX, RCX, RDX, RBX, RSP, RBP, RSI, RDI, R8, R9, R10, R11, R12, R13, R14, R15, RIP];
                let mut registers = Registers::new(0, 0, 0);
                for (index, register) in ORDER.into_iter().enumerate() {
                    registers.set(register, context.u64(120 + index as u64 * 8)?);
                }
                Some(ImageThread::of_walk(id, String::new(), ThreadRegisters::X86_64(registers)))
            }
            ARM64 => {
                // Flags and status, then x0 to x30, sp, pc.
                let words: Option<Vec<u64>> =
                    (0..33).map(|index| context.u64(8 + index * 8)).chain([Some(0)]).collect();
                Some(ImageThread::of_words(id, String::new(), elf::AARCH64, &words?))
            }
            ARM64_OLD => {
                let words: Option<Vec<u64>> =
                    (0..33).map(|index| context.u64(8 + index * 8)).chain([Some(0)]).collect();
                Some(ImageThread::of_words(id, String::new(), elf::AARCH64, &words?))
            }
            X86 => {
                // In the kernel's order, as far as the context has them.
                const PLACES: [u64; 7] = [164, 172, 168, 160, 156, 180, 176];
                let mut words = vec![0; 17];
                for (place, word) in PLACES.into_iter().zip(&mut words) {
                    *word = context.u32(place)?.into();
                }
                *words.get_mut(12)? = context.u32(184)?.into();
                *words.get_mut(15)? = context.u32(196)?.into();
                Some(ImageThread::of_words(id, String::new(), elf::I386, &words))
            }
            ARM => {
                let words: Option<Vec<u64>> =
                    (0..16).map(|index| context.u32(4 + index * 4).map(u64::from)).collect();
                Some(ImageThread::of_words(id, String::new(), elf::ARM, &words?))
            }
            _ => None,
        }
    }

    fn modules(&mut self, stream: Fields<'_>, _offset: u64) {
        for index in 0..self.count("modules", stream, MODULE_BYTES) {
            let Some(module) = stream.at(4 + index * MODULE_BYTES).and_then(|entry| self.module(entry))
            else {
                return;
            };
            self.parts.named.push(module);
        }
    }

    fn module(&self, entry: Fields<'_>) -> Option<ImageModule> {
        let (base, image_bytes) = (entry.u64(0)?, entry.u32(8)?);
        let stamp = PeStamp { time: entry.u32(16)?, image_bytes };
        let name = self.text(entry.u32(20)?.into()).unwrap_or_default();
        let (record_bytes, record) = (entry.u32(76)?, entry.u32(80)?);
        let record = self.file.slice(record.into(), record_bytes.into()).unwrap_or_default();
        // Breakpad's own record has the whole build id. That of Windows has the PDB's GUID and age,
        // which identify a Windows build; older writers store the first 16 bytes of a build id
        // there, which prove nothing.
        let build_id = match record.strip_prefix(b"LEpB") {
            Some(id) => id,
            None if self.is_windows => {
                record.strip_prefix(b"RSDS").and_then(|record| record.get(..20)).unwrap_or_default()
            }
            None => &[],
        };
        let build_id = build_id.to_vec();
        Some(ImageModule {
            path: PathBuf::from(name),
            range: AddressRange::new(
                AbsoluteAddress::new(base),
                AbsoluteAddress::new(base.saturating_add(image_bytes.into())),
            ),
            bias: base,
            is_identified: self.is_windows || !build_id.is_empty(),
            build_id,
            file: FileState::Unknown,
            pe: self.is_windows.then_some(stamp),
        })
    }

    /// Parses a string: a length in bytes, then UTF-16.
    fn text(&self, offset: u64) -> Option<String> {
        let length = u64::from(self.file.u32(offset)?).min(1 << 16);
        let bytes = self.file.slice(offset.checked_add(4)?, length)?;
        let units = bytes.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]]));
        Some(char::decode_utf16(units).map(|unit| unit.unwrap_or(char::REPLACEMENT_CHARACTER)).collect())
    }

    fn memory(&mut self, stream: Fields<'_>, _offset: u64) {
        for index in 0..self.count("stretches of memory", stream, 16) {
            let Some(entry) = stream.at(4 + index * 16) else { return };
            let (Some(start), Some(bytes), Some(at)) = (entry.u64(0), entry.u32(8), entry.u32(12)) else {
                return;
            };
            self.piece(start, at.into(), bytes.into());
        }
    }

    /// Parses a count, the position of the first bytes, and (start, length) of ranges stored in
    /// sequence.
    fn memory_64(&mut self, stream: Fields<'_>, _offset: u64) {
        let (Some(stated), Some(mut at)) = (stream.u64(0), stream.u64(8)) else { return };
        let found = stated.min((stream.bytes.len() as u64).saturating_sub(16) / 16);
        if found < stated {
            self.parts.findings.push(Finding::ShortTable { table: "stretches of memory", stated, found });
        }
        for index in 0..found {
            let Some(entry) = stream.at(16 + index * 16) else { return };
            let (Some(start), Some(bytes)) = (entry.u64(0), entry.u64(8)) else { return };
            self.piece(start, at, bytes);
            at = at.saturating_add(bytes);
        }
    }

    fn piece(&mut self, start: u64, at: u64, bytes: u64) {
        let bytes = bytes.min(u64::MAX - start);
        let there = (self.file.bytes.len() as u64).saturating_sub(at).min(bytes);
        self.parts.lost_bytes = self.parts.lost_bytes.saturating_add(bytes - there);
        let Ok(offset) = usize::try_from(at) else { return };
        let range =
            AddressRange::new(AbsoluteAddress::new(start), AbsoluteAddress::new(start.saturating_add(there)));
        // Stacks appear both in the thread list and in the memory list.
        if self.parts.pieces.iter().rev().take(64).any(|piece| piece.range == range) {
            return;
        }
        self.parts.pieces.push(Piece {
            range,
            is_writable: true,
            is_from_file: false,
            backing: Backing::File { file: 0, offset },
        });
    }
}
