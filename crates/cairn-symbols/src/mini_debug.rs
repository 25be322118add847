//! The symbols that some distributions leave in stripped programs: a whole small ELF file, compressed with xz, in the
//! section `.gnu_debugdata`.

use std::io::{Cursor, Read};
use std::num::NonZeroUsize;

use object::{Object, ObjectSection};
use xz4rust::{DICT_SIZE_MIN, DICT_SIZE_PROFILE_9, XzDecoder, XzReader};

/// Unpacks the small file. `None` when there is none, or when it is broken or suspiciously large.
pub(crate) fn unpack(object: &object::File<'_>) -> Option<Vec<u8>> {
    let section = object.section_by_name(".gnu_debugdata")?;
    let packed = section.data().ok()?;
    let limit = HARMLESS_BYTES.max((packed.len() as u64).saturating_mul(MAX_INFLATION));
    // The dictionary grows as the stream says, up to what the strongest preset of xz uses.
    let decoder = XzDecoder::in_heap_with_alloc_dict_size(DICT_SIZE_MIN, DICT_SIZE_PROFILE_9);
    let packed = Cursor::new(packed.to_vec());
    let reader = XzReader::new_with_buffer_size_and_decoder(packed, READ_BYTES, decoder);
    let mut unpacked = Vec::new();
    reader.take(limit + 1).read_to_end(&mut unpacked).ok()?;
    (unpacked.len() as u64 <= limit).then_some(unpacked)
}

/// Symbol tables shrink to a fifth.
const MAX_INFLATION: u64 = 64;

/// Below this size nobody counts.
const HARMLESS_BYTES: u64 = 1 << 20;

const READ_BYTES: NonZeroUsize = NonZeroUsize::new(64 << 10).unwrap();
