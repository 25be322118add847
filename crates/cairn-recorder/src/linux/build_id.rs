//! Finds the GNU build id of a loaded module in its memory.

use cairn_capture::{LoadedModule, read_own_memory};

/// Limit of a build id's length, in bytes; the GNU linker's longest is 20.
pub(crate) const BUILD_ID_BYTES: usize = 64;

/// Returns the build id of a module.
///
/// The loader treats a module with holes between its segments as several ones. Only the first has
/// the ELF header. For the others, the header lies where the file's address 0 is mapped, or, in a
/// program at fixed addresses, at the start of the page of the program headers.
pub(crate) fn of_module<'a>(module: &LoadedModule, is_program: bool, into: &'a mut [u8]) -> &'a [u8] {
    let first = if is_program && module.bias == 0 {
        // SAFETY: `getauxval` only reads the auxiliary vector, which exists in every process.
        unsafe { libc::getauxval(libc::AT_PHDR) & !0xfff }
    } else {
        module.bias
    };
    let starts = [module.start.value(), first];
    let length = starts.into_iter().find_map(|start| find(start, module.bias, into)).unwrap_or_default();
    into.get(..length).unwrap_or_default()
}

const PT_NOTE: u32 = 4;
const NT_GNU_BUILD_ID: u32 = 3;

/// Returns the build id of the module whose ELF header lies at `start`; empty if it has none.
pub(crate) fn at(start: u64, bias: u64, into: &mut [u8]) -> &[u8] {
    let length = find(start, bias, into).unwrap_or(0);
    into.get(..length).unwrap_or_default()
}

fn find(start: u64, bias: u64, into: &mut [u8]) -> Option<usize> {
    let magic: [u8; 8] = read(start)?;
    if magic.get(..6)? != [0x7f, b'E', b'L', b'F', 2, 1] {
        return None;
    }
    // e_phoff, e_phentsize, e_phnum of a 64-bit ELF header.
    let headers = start.checked_add(u64::from_le_bytes(read(start + 32)?))?;
    let entry_bytes = u64::from(u16::from_le_bytes(read(start + 54)?));
    let count = u64::from(u16::from_le_bytes(read(start + 56)?)).min(64);
    for index in 0..count {
        let header = headers.checked_add(index * entry_bytes)?;
        if u32::from_le_bytes(read(header)?) != PT_NOTE {
            continue;
        }
        let notes = bias.wrapping_add(u64::from_le_bytes(read(header + 16)?));
        let bytes = u64::from_le_bytes(read(header + 40)?).min(1 << 16);
        if let Some(length) = among(notes, notes.checked_add(bytes)?, into) {
            return Some(length);
        }
    }
    None
}

/// Searches the notes between two addresses.
fn among(notes: u64, end: u64, into: &mut [u8]) -> Option<usize> {
    let mut note = notes;
    while note.checked_add(12)? <= end {
        let word = |at: u64| Some(u64::from(u32::from_le_bytes(read(note + at)?)));
        let (name_bytes, value_bytes, kind) = (word(0)?, word(4)?, word(8)? as u32);
        let name = note + 12;
        let value = name.checked_add(name_bytes.next_multiple_of(4))?;
        if kind == NT_GNU_BUILD_ID && name_bytes == 4 && read(name)? == *b"GNU\0" {
            let place = into.get_mut(..value_bytes as usize)?;
            return (read_own_memory(value, place) == place.len()).then_some(place.len());
        }
        note = value.checked_add(value_bytes.next_multiple_of(4))?;
    }
    None
}

fn read<const N: usize>(address: u64) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    (read_own_memory(address, &mut bytes) == N).then_some(bytes)
}
