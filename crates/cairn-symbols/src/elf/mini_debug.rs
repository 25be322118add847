//! The symbols that some distributions leave in stripped programs: a whole small ELF file, compressed with xz, in the
//! section `.gnu_debugdata`.

use std::io::{Cursor, Read};
use std::num::NonZeroUsize;

use cairn_format::unpack::{UnpackBound, UnpackLimit};
use object::{Object, ObjectSection};
use xz4rust::{DICT_SIZE_MIN, DICT_SIZE_PROFILE_9, XzDecoder, XzReader};

/// Unpacks the small file. `None` when there is none, when it is broken, or when it unpacks to more
/// than its limit, or than `chosen_limit_bytes` in its place.
pub(crate) fn unpack(object: &object::File<'_>, chosen_limit_bytes: Option<u64>) -> Option<Vec<u8>> {
    let packed = section(object)?;
    let limit = UnpackBound::MINI_DEBUG.limit(packed.len() as u64, chosen_limit_bytes);
    // The dictionary grows as the stream says, up to what the strongest preset of xz uses.
    let decoder = XzDecoder::in_heap_with_alloc_dict_size(DICT_SIZE_MIN, DICT_SIZE_PROFILE_9);
    let packed = Cursor::new(packed.to_vec());
    let reader = XzReader::new_with_buffer_size_and_decoder(packed, READ_BYTES, decoder);
    let mut unpacked = Vec::new();
    reader.take(limit.limit_bytes.saturating_add(1)).read_to_end(&mut unpacked).ok()?;
    (unpacked.len() as u64 <= limit.limit_bytes).then_some(unpacked)
}

/// The limit that the small file goes beyond, as the stream itself says; [`unpack`] does not depend
/// on its being right.
pub(crate) fn refused(object: &object::File<'_>, chosen_limit_bytes: Option<u64>) -> Option<UnpackLimit> {
    let packed = section(object)?;
    let limit = UnpackBound::MINI_DEBUG.limit(packed.len() as u64, chosen_limit_bytes);
    claimed_bytes(packed).filter(|&claimed| claimed > limit.limit_bytes).map(|_| limit)
}

fn section<'data>(object: &object::File<'data>) -> Option<&'data [u8]> {
    object.section_by_name(".gnu_debugdata")?.data().ok()
}

/// What the index at the end of a stream of xz says: `packed` ends with the index and a footer,
/// which holds the length of the index.
fn claimed_bytes(packed: &[u8]) -> Option<u64> {
    const FOOTER_BYTES: usize = 12;
    // Padding of four bytes each may follow.
    let end = packed.iter().rposition(|&byte| byte != 0)? + 1;
    let (rest, footer) = packed.get(..end)?.split_at_checked(end.checked_sub(FOOTER_BYTES)?)?;
    if !footer.ends_with(b"YZ") {
        return None;
    }
    let length = u32::from_le_bytes(*footer.get(4..)?.first_chunk()?);
    let index_bytes = usize::try_from((u64::from(length) + 1) * 4).ok()?;
    let (&0, mut index) = rest.get(rest.len().checked_sub(index_bytes)?..)?.split_first()? else {
        return None;
    };
    let records = number(&mut index)?;
    let mut claimed = 0_u64;
    for _ in 0..records {
        let _block_bytes = number(&mut index)?;
        claimed = claimed.saturating_add(number(&mut index)?);
    }
    Some(claimed)
}

/// Seven bits a byte, the lowest first.
fn number(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..63).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

const READ_BYTES: NonZeroUsize = NonZeroUsize::new(64 << 10).unwrap();
