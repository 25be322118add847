//! ELF core files, from the kernel and from gdb's `gcore`.
//!
//! Parsed by hand instead of by a crate: every number may be wrong, with any word size and byte
//! order, and the part after the damage is needed.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use cairn_format::{AbsoluteAddress, FileOffset, WordSize};
use cairn_unwind::AddressRange;
use cairn_wire::heapblock::ByteOrder;

use super::registers::{ImageThread, Status, elf};
use super::{
    About, Backing, Fields, FileBytes, Finding, Image, ImageError, Machine, OpenOptions, Parts, Piece,
};
use crate::process::Mapping;

const CORE: u16 = 4;
const LOAD: u32 = 1;
const NOTE: u32 = 4;
/// Marks a number of program headers that does not fit; the first section header has it.
const IN_SECTION: u16 = 0xffff;

const PRSTATUS: u32 = 1;
const PRPSINFO: u32 = 3;
const AUXV: u32 = 6;
const SIGINFO: u32 = 0x5349_4749;
const FILE: u32 = 0x4649_4c45;

const WRITABLE: u32 = 2;
const EXECUTABLE: u32 = 1;

struct CoreSegment {
    address: u64,
    memory_bytes: u64,
    flags: u32,
}

/// The facts in the notes.
#[derive(Default)]
struct Notes {
    /// Start, end, file offset in bytes, path.
    files: Vec<(u64, u64, u64, Vec<u8>)>,
    vdso: Option<u64>,
}

pub(super) fn read(
    bytes: FileBytes,
    path: &Path,
    options: &OpenOptions,
    findings: Vec<Finding>,
) -> Result<Image, ImageError> {
    let damaged = |offset, problem: &str| ImageError::Damaged {
        path: path.to_owned(),
        offset,
        problem: problem.to_owned(),
    };
    let is_wide = match bytes.get(4) {
        Some(1) => false,
        Some(2) => true,
        _ => return Err(damaged(4, "an ELF file of neither 32 nor 64 bits")),
    };
    let order = if bytes.get(5) == Some(&2) { ByteOrder::BigEndian } else { ByteOrder::LittleEndian };
    let fields = Fields { bytes: &bytes, order, is_wide };
    let cut = || damaged(bytes.len() as u64, "the file ends inside of its first header");
    let kind = fields.u16(16).ok_or_else(cut)?;
    if kind != CORE {
        let is = match kind {
            1 => "an object file",
            2 => "a program",
            3 => "a program or library",
            _ => "an ELF file of another kind",
        };
        return Err(ImageError::NotAnImage { path: path.to_owned(), is });
    }
    let processor = fields.u16(18).ok_or_else(cut)?;
    let mut parts = Parts::new(
        Machine { word_size: if is_wide { WordSize::Bits64 } else { WordSize::Bits32 }, byte_order: order },
        About { kind: "ELF core", machine: elf::name(processor), ..About::default() },
        findings,
    );
    let mut notes = Notes::default();
    let segments = read_segments(fields, processor, &mut parts, &mut notes).ok_or_else(cut)?;
    (parts.mappings, parts.without_segment) = mappings(&segments, &notes, &parts.threads, is_wide);
    parts.files.push(Arc::new(bytes));
    Ok(Image::assemble(parts, options))
}

fn read_segments(
    fields: Fields<'_>,
    processor: u16,
    parts: &mut Parts,
    notes: &mut Notes,
) -> Option<Vec<CoreSegment>> {
    let is_wide = fields.is_wide;
    let table = fields.word_at(32, 28)?;
    let entry_bytes = u64::from(fields.u16(if is_wide { 54 } else { 42 })?);
    let mut count = u64::from(fields.u16(if is_wide { 56 } else { 44 })?);
    if count == u64::from(IN_SECTION) {
        let section = fields.at(fields.word_at(40, 32)?);
        count = section.and_then(|section| section.u32(if is_wide { 44 } else { 28 })).unwrap_or(0).into();
    }
    let least = if is_wide { 56 } else { 32 };
    let there = (fields.bytes.len() as u64).saturating_sub(table) / entry_bytes.max(least);
    if there < count {
        parts.findings.push(Finding::ShortTable { table: "segments", stated: count, found: there });
        count = there;
    }
    let last_address = if is_wide { u64::MAX } else { u64::from(u32::MAX) + 1 };
    let mut segments = Vec::new();
    let (mut stated_bytes, mut cut_segments) = (0_u64, 0);
    for number in 0..count {
        let Some(entry) = fields.at(table.saturating_add(number.saturating_mul(entry_bytes.max(least))))
        else {
            break;
        };
        let (offset, address) = (entry.word_at(8, 4)?, entry.word_at(16, 8)?);
        let (file_bytes, memory_bytes) = (entry.word_at(32, 16)?, entry.word_at(40, 20)?);
        let flags = entry.u32(if is_wide { 4 } else { 24 })?;
        let there = (fields.bytes.len() as u64).saturating_sub(offset).min(file_bytes);
        match entry.u32(0)? {
            NOTE => {
                if let Some(bytes) = fields.slice(offset, there) {
                    read_notes(Fields { bytes, ..fields }, offset, processor, parts, notes);
                }
                if there < file_bytes {
                    parts.findings.push(Finding::NoteCut { offset: offset.saturating_add(there) });
                }
            }
            LOAD => {
                // gcore and the kernel agree here; a segment without a memory size has that of its
                // bytes.
                let memory_bytes = if memory_bytes == 0 { file_bytes } else { memory_bytes };
                let room = last_address.saturating_sub(address);
                let whole = memory_bytes.min(room);
                if whole < memory_bytes {
                    parts.findings.push(Finding::ImpossibleSegment {
                        number: number as usize,
                        address: AbsoluteAddress::new(address),
                    });
                }
                segments.push(CoreSegment { address, memory_bytes: whole, flags });
                let wanted = file_bytes.min(whole);
                let there = there.min(wanted);
                stated_bytes = stated_bytes.saturating_add(wanted);
                if there < wanted {
                    parts.lost_bytes = parts.lost_bytes.saturating_add(wanted - there);
                    cut_segments += 1;
                }
                let Ok(offset) = usize::try_from(offset) else { continue };
                parts.pieces.push(Piece {
                    range: range(address, address.saturating_add(there)),
                    is_writable: flags & WRITABLE != 0,
                    is_from_file: false,
                    backing: Backing::File { file: 0, offset },
                });
            }
            _ => {}
        }
    }
    if parts.lost_bytes > 0 {
        let (missing_bytes, segments) = (parts.lost_bytes, cut_segments);
        parts.findings.push(Finding::Cut { missing_bytes, stated_bytes, segments });
    }
    Some(segments)
}

fn range(start: u64, end: u64) -> AddressRange {
    AddressRange::new(AbsoluteAddress::new(start), AbsoluteAddress::new(end))
}

/// Parses the complete notes. `offset` is their position in the file.
fn read_notes(all: Fields<'_>, offset: u64, processor: u16, parts: &mut Parts, notes: &mut Notes) {
    let mut rest = all;
    while !rest.bytes.is_empty() {
        let read = read_note(rest);
        let Some((kind, name, value, length)) = read else {
            let at = (all.bytes.len() - rest.bytes.len()) as u64;
            parts.findings.push(Finding::NoteCut { offset: offset.saturating_add(at) });
            return;
        };
        if matches!(name, b"CORE\0" | b"CORE") {
            let value = Fields { bytes: value, ..all };
            understand(kind, value, processor, parts, notes);
        }
        rest = rest.at(length).unwrap_or(Fields { bytes: &[], ..rest });
    }
}

fn read_note<'a>(note: Fields<'a>) -> Option<(u32, &'a [u8], &'a [u8], u64)> {
    let (name_bytes, value_bytes, kind) = (u64::from(note.u32(0)?), u64::from(note.u32(4)?), note.u32(8)?);
    let name = note.slice(12, name_bytes)?;
    let value_at = 12 + name_bytes.next_multiple_of(4);
    let value = note.slice(value_at, value_bytes)?;
    Some((kind, name, value, value_at + value_bytes.next_multiple_of(4)))
}

fn understand(kind: u32, note: Fields<'_>, processor: u16, parts: &mut Parts, notes: &mut Notes) {
    match kind {
        PRSTATUS => {
            if let Some(status) = Status::read(note.bytes, note.order, note.is_wide) {
                let name = parts.about.name.clone();
                let mut thread = ImageThread::of_words(status.thread, name, processor, &status.words);
                thread.signal = Some(status.signal).filter(|&signal| signal != 0);
                if parts.threads.is_empty() {
                    parts.about.signal = thread.signal;
                }
                parts.threads.push(thread);
            }
        }
        PRPSINFO => {
            let (process, name, command_line) = if note.is_wide { (24, 40, 56) } else { (12, 28, 44) };
            parts.about.process = note.u32(process);
            let text = |offset, length| {
                let bytes = note.slice(offset, length).unwrap_or_default();
                let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
                String::from_utf8_lossy(bytes.get(..end).unwrap_or_default()).trim_end().to_owned()
            };
            parts.about.name = text(name, 16);
            parts.about.command_line = text(command_line, 80);
            // The program's name applies to the threads before this note too.
            let name = parts.about.name.clone();
            parts.threads.iter_mut().for_each(|thread| thread.name.clone_from(&name));
        }
        SIGINFO => {
            // Memory faults have an address; the kernel's own signals have a positive code.
            let (signal, code) = (note.u32(0), note.u32(8));
            let has_address = matches!(signal, Some(4 | 5 | 7 | 8 | 11))
                && code.is_some_and(|code| (1..0x80).contains(&code));
            if has_address {
                parts.about.fault_address = note.word_at(16, 12);
            }
            parts.about.signal = parts.about.signal.or(signal);
        }
        AUXV => {
            const SYSINFO_EHDR: u64 = 33;
            let pairs = (0..4096).map_while(|index| Some((note.word(index * 2)?, note.word(index * 2 + 1)?)));
            notes.vdso =
                pairs.take_while(|pair| pair.0 != 0).find(|pair| pair.0 == SYSINFO_EHDR).map(|pair| pair.1);
        }
        FILE => read_files(note, parts, notes),
        _ => {}
    }
}

/// Parses `count, page size, (start, end, offset in pages) ..., names, each with a zero`.
fn read_files(note: Fields<'_>, parts: &mut Parts, notes: &mut Notes) {
    let (Some(count), Some(page_bytes)) = (note.word(0), note.word(1)) else { return };
    let word = if note.is_wide { 8 } else { 4 };
    let room = (note.bytes.len() as u64 / word).saturating_sub(2) / 3;
    let names_at = count.checked_mul(3).and_then(|words| (words + 2).checked_mul(word));
    let mut names =
        names_at.and_then(|at| note.at(at)).map_or(&[][..], |names| names.bytes).split(|&byte| byte == 0);
    let mut found = 0;
    for index in 0..count.min(room) {
        let entry = 2 + index * 3;
        let (Some(start), Some(end), Some(page), Some(name)) =
            (note.word(entry), note.word(entry + 1), note.word(entry + 2), names.next())
        else {
            break;
        };
        found += 1;
        notes.files.push((start, end, page.saturating_mul(page_bytes), name.to_vec()));
    }
    if found < count {
        parts.findings.push(Finding::ShortTable { table: "mapped files", stated: count, found });
    }
}

/// Lists the mappings as in `/proc/PID/maps`: segments, with the names in the notes.
///
/// The second value has the starts of mapped files without a segment, whose access rights the core
/// does not state.
fn mappings(
    segments: &[CoreSegment],
    notes: &Notes,
    threads: &[ImageThread],
    is_wide: bool,
) -> (Vec<Mapping>, BTreeSet<AbsoluteAddress>) {
    let mut by_start: Vec<&CoreSegment> = segments.iter().collect();
    by_start.sort_by_key(|segment| segment.address);
    let segment_at = |address: u64| {
        let after = by_start.partition_point(|segment| segment.address <= address);
        by_start
            .get(after.checked_sub(1)?)
            .filter(|segment| address < segment.address.saturating_add(segment.memory_bytes))
    };
    // Equal files get equal numbers.
    let mut names: Vec<&[u8]> = notes.files.iter().map(|file| &*file.3).collect();
    names.sort_unstable();
    names.dedup();
    let mut mappings: Vec<Mapping> = notes
        .files
        .iter()
        .map(|(start, end, offset, name)| Mapping {
            range: range(*start, *end),
            is_readable: true,
            // The kernel writes a segment for every mapping; gcore omits those that it does not
            // dump, as library code. `modules::complete_rights` takes their rights from the file's
            // own headers.
            is_executable: segment_at(*start).is_some_and(|segment| segment.flags & EXECUTABLE != 0),
            file_offset: FileOffset::new(*offset),
            inode: names.binary_search(&&**name).map_or(0, |index| index as u64 + 1),
            name: name.clone(),
        })
        .collect();
    mappings.sort_by_key(|mapping| mapping.range.start);
    let starts = mappings.iter().map(|mapping| mapping.range.start);
    let without_segment = starts.filter(|start| segment_at(start.value()).is_none()).collect();
    let files = mappings.len();
    for segment in by_start {
        let is_file = {
            let known = mappings.get(..files).unwrap_or_default();
            let after = known.partition_point(|mapping| mapping.range.start.value() <= segment.address);
            let before = after.checked_sub(1).and_then(|index| known.get(index));
            before.is_some_and(|mapping| mapping.range.contains(AbsoluteAddress::new(segment.address)))
        };
        let whole = range(segment.address, segment.address.saturating_add(segment.memory_bytes));
        if is_file || segment.memory_bytes == 0 {
            continue;
        }
        let has = |address: Option<AbsoluteAddress>| address.is_some_and(|address| whole.contains(address));
        let name = if notes.vdso == Some(segment.address) && is_wide {
            "[vdso]"
        } else if threads.first().is_some_and(|thread| has(thread.sp)) {
            "[stack]"
        } else {
            ""
        };
        mappings.push(Mapping {
            range: whole,
            is_readable: true,
            is_executable: segment.flags & EXECUTABLE != 0,
            file_offset: FileOffset::new(0),
            inode: 0,
            name: name.into(),
        });
    }
    (mappings, without_segment)
}
