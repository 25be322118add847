//! Finds in a loaded module's memory what identifies its build.
//!
//! The *build id* of a PE file is what its debug directory names its PDB by: a GUID and the age,
//! 20 bytes in the order of the file. Without that it is the time stamp of its headers, the size of
//! the image and its checksum, 12 bytes; with neither stamp nor checksum the module has none.

use cairn_capture::{LoadedModule, read_own_memory};

/// Limit of a build id's length, in bytes.
pub(crate) const BUILD_ID_BYTES: usize = 64;

/// Returns the build id of a module.
pub(crate) fn of_module<'a>(module: &LoadedModule, _is_program: bool, into: &'a mut [u8]) -> &'a [u8] {
    at(module.start.value(), into)
}

/// Returns the build id of the module at this address; empty if it has none.
pub(crate) fn at(base: u64, into: &mut [u8]) -> &[u8] {
    let length = find(base, into).or_else(|| of_headers(base, into)).unwrap_or(0);
    into.get(..length).unwrap_or_default()
}

/// `IMAGE_DEBUG_TYPE_CODEVIEW`.
const CODEVIEW: u32 = 2;
/// Bytes of an entry of the debug directory, and maximum number of entries.
const ENTRY_BYTES: u64 = 28;
const MOST_ENTRIES: u64 = 64;

fn find(base: u64, into: &mut [u8]) -> Option<usize> {
    let headers = Headers::at(base)?;
    // The seventh directory.
    let (directory, bytes) = (headers.word(136 + 6 * 8)?, headers.word(136 + 6 * 8 + 4)?);
    if directory == 0 {
        return None;
    }
    for index in 0..(u64::from(bytes) / ENTRY_BYTES).min(MOST_ENTRIES) {
        let entry = base + u64::from(directory) + index * ENTRY_BYTES;
        if word(entry + 12)? != CODEVIEW {
            continue;
        }
        let record = base + u64::from(word(entry + 20)?);
        let mut bytes = [0; 24];
        if read_own_memory(record, &mut bytes) == bytes.len() && bytes.starts_with(b"RSDS") {
            let (place, id) = (into.get_mut(..20)?, bytes.get(4..)?);
            place.copy_from_slice(id);
            return Some(place.len());
        }
    }
    None
}

fn of_headers(base: u64, into: &mut [u8]) -> Option<usize> {
    let headers = Headers::at(base)?;
    let (stamp, size) = headers.stamp_and_size()?;
    let checksum = headers.word(88)?;
    if stamp == 0 && checksum == 0 {
        return None;
    }
    let place = into.get_mut(..12)?;
    for (place, word) in place.chunks_exact_mut(4).zip([stamp, size, checksum]) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    Some(place.len())
}

/// Place of the stated base in the headers.
pub(crate) const BASE: u64 = 48;

/// The headers of a PE file in memory.
#[derive(Clone, Copy)]
pub(crate) struct Headers(u64);

impl Headers {
    /// The headers of the module that begins at this address.
    pub(crate) fn at(base: u64) -> Option<Self> {
        const SIGNATURE: u32 = 0x4550;
        let headers = Self(base.checked_add(word(base + 0x3c)?.into())?);
        (headers.word(0)? == SIGNATURE).then_some(headers)
    }

    fn word(self, place: u64) -> Option<u32> {
        word(self.0 + place)
    }

    /// Returns the address at which the image says that it lies.
    pub(crate) fn base(self) -> Option<u64> {
        let (low, high) = (self.word(BASE)?, self.word(BASE + 4)?);
        Some(u64::from(high) << 32 | u64::from(low))
    }

    /// Returns the time stamp that the linker wrote, and the size of the image.
    pub(crate) fn stamp_and_size(self) -> Option<(u32, u32)> {
        Some((self.word(8)?, self.word(80)?))
    }
}

fn word(address: u64) -> Option<u32> {
    let mut bytes = [0; 4];
    (read_own_memory(address, &mut bytes) == bytes.len()).then(|| u32::from_le_bytes(bytes))
}
