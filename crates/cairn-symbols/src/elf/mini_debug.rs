//! Unpacks `.gnu_debugdata`: a small ELF file, compressed with xz, with which some distributions
//! ship symbols in stripped programs.

use std::io::{Cursor, Read};
use std::num::NonZeroUsize;

use cairn_format::unpack::{UnpackBound, UnpackLimit};
use object::{Object, ObjectSection};
use xz4rust::{DICT_SIZE_MIN, DICT_SIZE_PROFILE_9, XzDecoder, XzReader};

/// Unpacks the small file.
///
/// `None` if there is none, if it is broken, or if it unpacks to more than the default limit, or
/// than `chosen_limit_bytes` instead.
pub(crate) fn unpack(object: &object::File<'_>, chosen_limit_bytes: Option<u64>) -> Option<Vec<u8>> {
    let packed = section(object)?;
    let limit = UnpackBound::MINI_DEBUG.limit(packed.len() as u64, chosen_limit_bytes);
    // The dictionary grows to the size that the stream states, up to that of xz's strongest preset.
    let decoder = XzDecoder::in_heap_with_alloc_dict_size(DICT_SIZE_MIN, DICT_SIZE_PROFILE_9);
    let packed = Cursor::new(packed.to_vec());
    let reader = XzReader::new_with_buffer_size_and_decoder(packed, READ_BYTES, decoder);
    let mut unpacked = Vec::new();
    reader.take(limit.limit_bytes.saturating_add(1)).read_to_end(&mut unpacked).ok()?;
    (unpacked.len() as u64 <= limit.limit_bytes).then_some(unpacked)
}

/// Returns the limit that the small file exceeds by its own statement; [`unpack`] does not rely on
/// it.
pub(crate) fn refused(object: &object::File<'_>, chosen_limit_bytes: Option<u64>) -> Option<UnpackLimit> {
    let packed = section(object)?;
    let limit = UnpackBound::MINI_DEBUG.limit(packed.len() as u64, chosen_limit_bytes);
    claimed_bytes(packed).filter(|&claimed| claimed > limit.limit_bytes).map(|_| limit)
}

fn section<'data>(object: &object::File<'data>) -> Option<&'data [u8]> {
    object.section_by_name(".gnu_debugdata")?.data().ok()
}

/// Reads the unpacked size from the index of an xz stream.
///
/// `packed` ends with that index and a footer with the index's length.
fn claimed_bytes(packed: &[u8]) -> Option<u64> {
    const FOOTER_BYTES: usize = 12;
    // Padding in multiples of four bytes may follow.
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

/// Reads a LEB128 number: seven bits per byte, lowest first.
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
