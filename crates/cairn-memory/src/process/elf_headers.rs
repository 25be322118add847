//! Reads from an ELF file the facts for a walk: addresses, build id, and unwind table. Works on a
//! process's memory, which has only loaded segments, and on the file.

use cairn_format::AbsoluteAddress;
use cairn_unwind::{AddressRange, MemoryReader};

const HEADER_BYTES: usize = 64;
const PROGRAM_HEADER_BYTES: usize = 56;
/// Maximum program headers; 1024, because real files have a dozen.
const MAX_PROGRAM_HEADERS: usize = 1024;
/// Maximum bytes of notes; 64 KiB, because real ones have some hundred.
const MAX_NOTE_BYTES: u64 = 1 << 16;

const LOAD: u32 = 1;
const DYNAMIC: u32 = 2;
const NOTE: u32 = 4;
const EH_FRAME_HEADER: u32 = 0x6474_e550;

#[cfg(target_os = "linux")]
const CLASS_32: u8 = 1;
const CLASS_64: u8 = 2;
const LITTLE_ENDIAN: u8 = 1;

/// The mapping from an ELF file's addresses to its bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Placement {
    /// Segments are where the loader put them.
    Memory,
    /// Bytes are those of the file, from address 0 on.
    File,
}

/// A loaded segment.
#[derive(Clone, Copy, Debug)]
struct LoadedSegment {
    /// The part that comes from the file.
    range: AddressRange,
    /// Its address as stated in the file.
    stated_address: u64,
    file_offset: u64,
}

/// The parsed headers; see the module documentation.
#[derive(Clone, Debug)]
pub(super) struct ElfHeaders {
    /// The wrapping difference of addresses in the process and those stated in the file.
    pub(super) bias: u64,
    /// From the first loaded byte to the last.
    pub(super) range: AddressRange,
    pub(super) build_id: Option<Vec<u8>>,
    /// The address of `.eh_frame_hdr`.
    pub(super) frame_header: Option<AbsoluteAddress>,
    /// The address of the dynamic section.
    pub(super) dynamic: Option<AbsoluteAddress>,
    segments: Vec<LoadedSegment>,
}

#[derive(Clone, Copy)]
struct ProgramHeader {
    kind: u32,
    offset: u64,
    address: u64,
    file_bytes: u64,
    memory_bytes: u64,
}

impl ElfHeaders {
    /// Parses the headers of the 64-bit little-endian file at `start`; `None` if there is none.
    pub(super) fn read(memory: &impl MemoryReader, start: AbsoluteAddress, place: Placement) -> Option<Self> {
        let headers = program_headers(memory, start)?;
        let loads = || headers.iter().filter(|header| header.kind == LOAD);
        // The segment with the file's first byte relates addresses to file offsets.
        let first = loads().find(|header| header.offset < 0x1000)?;
        let bias = start.value().wrapping_sub(first.address.wrapping_sub(first.offset));
        let range = |address: u64, bytes: u64| {
            let from = bias.wrapping_add(address);
            AddressRange::new(AbsoluteAddress::new(from), AbsoluteAddress::new(from.saturating_add(bytes)))
        };
        let segments: Vec<LoadedSegment> = loads()
            .map(|load| LoadedSegment {
                range: range(load.address, load.file_bytes),
                stated_address: load.address,
                file_offset: load.offset,
            })
            .collect();
        let whole = loads().map(|load| range(load.address, load.memory_bytes));
        let whole =
            whole.reduce(|all, one| AddressRange::new(all.start.min(one.start), all.end.max(one.end)))?;
        let address_of = |kind: u32| {
            let header = headers.iter().find(|header| header.kind == kind)?;
            Some(AbsoluteAddress::new(bias.wrapping_add(header.address)))
        };
        let build_id = headers.iter().filter(|header| header.kind == NOTE).find_map(|note| {
            let at = match place {
                Placement::Memory => bias.wrapping_add(note.address),
                Placement::File => start.value().checked_add(note.offset)?,
            };
            let mut bytes = vec![0; note.file_bytes.min(MAX_NOTE_BYTES) as usize];
            memory.read(AbsoluteAddress::new(at), &mut bytes)?;
            build_id(&bytes)
        });
        Some(Self {
            bias,
            range: whole,
            build_id,
            frame_header: address_of(EH_FRAME_HEADER),
            dynamic: address_of(DYNAMIC),
            segments,
        })
    }

    /// Returns the file-backed part of the segment around `address`.
    pub(super) fn segment_at(&self, address: AbsoluteAddress) -> Option<AddressRange> {
        self.segments.iter().map(|segment| segment.range).find(|range| range.contains(address))
    }

    /// Returns the file offset of the byte with a stated address.
    pub(super) fn file_offset(&self, stated_address: u64) -> Option<u64> {
        self.segments.iter().find_map(|segment| {
            let offset = stated_address.checked_sub(segment.stated_address)?;
            let length = segment.range.end.value().saturating_sub(segment.range.start.value());
            (offset < length).then(|| segment.file_offset.checked_add(offset))?
        })
    }
}

/// Detects the first bytes of a 32-bit ELF file.
#[cfg(target_os = "linux")]
pub(super) fn is_32_bit(start: &[u8]) -> bool {
    matches!(start, [0x7f, b'E', b'L', b'F', CLASS_32, ..])
}

fn program_headers(memory: &impl MemoryReader, start: AbsoluteAddress) -> Option<Vec<ProgramHeader>> {
    let mut header = [0; HEADER_BYTES];
    memory.read(start, &mut header)?;
    let [0x7f, b'E', b'L', b'F', CLASS_64, LITTLE_ENDIAN, ..] = header else { return None };
    let table = start.checked_add(u64_at(&header, 32)?)?;
    let entry_bytes = usize::from(u16_at(&header, 54)?);
    let count = usize::from(u16_at(&header, 56)?).min(MAX_PROGRAM_HEADERS);
    if entry_bytes != PROGRAM_HEADER_BYTES {
        return None;
    }
    let mut bytes = vec![0; count * PROGRAM_HEADER_BYTES];
    memory.read(table, &mut bytes)?;
    bytes.chunks_exact(PROGRAM_HEADER_BYTES).map(program_header).collect()
}

fn program_header(bytes: &[u8]) -> Option<ProgramHeader> {
    Some(ProgramHeader {
        kind: u32_at(bytes, 0)?,
        offset: u64_at(bytes, 8)?,
        address: u64_at(bytes, 16)?,
        file_bytes: u64_at(bytes, 32)?,
        memory_bytes: u64_at(bytes, 40)?,
    })
}

/// Finds the linker's build id note: name `GNU`, type 3.
fn build_id(notes: &[u8]) -> Option<Vec<u8>> {
    const BUILD_ID: u32 = 3;
    let mut rest = notes;
    loop {
        let name_bytes = u32_at(rest, 0)? as usize;
        let value_bytes = u32_at(rest, 4)? as usize;
        let kind = u32_at(rest, 8)?;
        let name = rest.get(12..)?.get(..name_bytes)?;
        let behind_name = rest.get(12..)?.get(name_bytes.checked_next_multiple_of(4)?..)?;
        let value = behind_name.get(..value_bytes)?;
        if kind == BUILD_ID && name == b"GNU\0" && !value.is_empty() {
            return Some(value.to_vec());
        }
        rest = behind_name.get(value_bytes.checked_next_multiple_of(4)?..)?;
    }
}

fn u16_at(bytes: &[u8], offset: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*bytes.get(offset..)?.first_chunk()?))
}

fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(offset..)?.first_chunk()?))
}

fn u64_at(bytes: &[u8], offset: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(offset..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_unwind::SliceMemory;
    use proptest::prelude::*;

    fn own_program() -> Vec<u8> {
        std::fs::read(std::env::current_exe().unwrap()).unwrap()
    }

    #[cfg(not(windows))]
    #[test]
    fn elf_headers_of_this_program_are_read() {
        let bytes = own_program();
        let memory = SliceMemory::new(AbsoluteAddress::new(0x5500_0000_0000), &bytes);
        let headers =
            ElfHeaders::read(&memory, AbsoluteAddress::new(0x5500_0000_0000), Placement::File).unwrap();
        let header = headers.frame_header.unwrap();
        assert!(headers.range.contains(header));
        assert!(headers.segment_at(header).unwrap().contains(header));
        assert_eq!(headers.segment_at(AbsoluteAddress::new(1)), None);
    }

    proptest! {
        #[test]
        fn elf_headers_damaged_do_not_panic(changes in prop::collection::vec((0_usize..2000, any::<u8>()), 0..20)) {
            let mut bytes = own_program();
            bytes.truncate(4096);
            for (place, byte) in changes {
                bytes[place] = byte;
            }
            let memory = SliceMemory::new(AbsoluteAddress::new(0x1000), &bytes);
            let _ = ElfHeaders::read(&memory, AbsoluteAddress::new(0x1000), Placement::Memory);
            let _ = ElfHeaders::read(&memory, AbsoluteAddress::new(0x1000), Placement::File);
            let _ = build_id(&bytes);
        }
    }
}
