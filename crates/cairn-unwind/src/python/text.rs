//! Copies an interpreter's strings as UTF-8.

use cairn_format::AbsoluteAddress;

use super::layout::{Layout, STRING_LENGTH, STRING_STATE};
use crate::MemoryReader;

/// Bits of a string's state.
const KIND_SHIFT: u32 = 2;
const KIND_MASK: u32 = 7;
const COMPACT: u32 = 0x20;
const ASCII: u32 = 0x40;

/// Copies the string object at `address` as UTF-8, cut to the length of `into`. Returns the number
/// of bytes; `None` if it is no string that can be read.
///
/// Lone surrogates from DC80 to DCFF represent bytes of a path that are no text, and become these
/// bytes again.
pub fn copy_text(
    address: u64,
    layout: &Layout,
    memory: &impl MemoryReader,
    into: &mut [u8],
) -> Option<usize> {
    let at = |offset: u64| AbsoluteAddress::new(address.wrapping_add(offset));
    let length = memory.word64(at(STRING_LENGTH))?;
    let mut state = [0; 4];
    memory.read(at(STRING_STATE), &mut state)?;
    let state = u32::from_le_bytes(state);
    let width = match state >> KIND_SHIFT & KIND_MASK {
        kind @ (1 | 2 | 4) => u64::from(kind),
        _ => return None,
    };
    let data = match (state & COMPACT != 0, state & ASCII != 0) {
        (true, true) => address.wrapping_add(layout.ascii_data),
        (true, false) => address.wrapping_add(layout.compact_data),
        (false, _) => memory.word64(at(layout.compact_data))?,
    };
    // More characters than bytes never fit.
    let count = length.min(into.len() as u64);
    let mut used = 0;
    let mut index = 0;
    while index < count {
        let mut piece = [0_u8; PIECE_BYTES];
        let characters = (count - index).min(PIECE_BYTES as u64 / width);
        let bytes = piece.get_mut(..(characters * width) as usize)?;
        memory.read(AbsoluteAddress::new(data.wrapping_add(index * width)), bytes)?;
        for character in bytes.chunks_exact(width as usize) {
            let mut wide = [0_u8; 4];
            wide.get_mut(..character.len())?.copy_from_slice(character);
            let mut encoded = [0_u8; 4];
            let encoded = encode(u32::from_le_bytes(wide), &mut encoded)?;
            let Some(place) = into.get_mut(used..used + encoded.len()) else { return Some(used) };
            place.copy_from_slice(encoded);
            used += encoded.len();
        }
        index += characters;
    }
    Some(used)
}

/// Bytes that are copied at once; 128, for few calls and little stack.
const PIECE_BYTES: usize = 128;

/// The UTF-8 form of a character, or the byte that a surrogate means.
fn encode(character: u32, room: &mut [u8; 4]) -> Option<&[u8]> {
    if let 0xdc80..=0xdcff = character {
        room[0] = character as u8;
        return room.get(..1);
    }
    let character = char::from_u32(character).unwrap_or(char::REPLACEMENT_CHARACTER);
    let length = character.encode_utf8(room).len();
    room.get(..length)
}

#[cfg(test)]
mod tests {
    use super::encode;

    #[test]
    fn surrogates_of_undecodable_names_become_bytes() {
        let mut room = [0; 4];
        assert_eq!(encode(0xdcff, &mut room), Some(&[0xff][..]));
        assert_eq!(encode(0xe9, &mut room), Some("é".as_bytes()));
        assert_eq!(encode(0x1f40d, &mut room), Some("🐍".as_bytes()));
        assert_eq!(encode(0xd800, &mut room), Some("\u{fffd}".as_bytes()));
    }
}
