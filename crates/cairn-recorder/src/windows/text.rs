//! Converts between UTF-16, which Windows has, and WTF-8, which recordings have.
//!
//! WTF-8 is UTF-8 that also has halves of surrogate pairs, so that every file name of Windows has
//! one spelling, and names of valid text are UTF-8.

/// Writes units as WTF-8, cut between two characters; returns the written bytes.
pub(crate) fn to_bytes(units: impl IntoIterator<Item = u16>, into: &mut [u8]) -> &[u8] {
    let mut used = 0;
    for decoded in char::decode_utf16(units) {
        let mut place = [0; 4];
        let bytes: &[u8] = match decoded {
            Ok(character) => character.encode_utf8(&mut place).as_bytes(),
            Err(half) => {
                let unit = half.unpaired_surrogate();
                place[0] = 0xe0 | (unit >> 12) as u8;
                place[1] = 0x80 | (unit >> 6 & 0x3f) as u8;
                place[2] = 0x80 | (unit & 0x3f) as u8;
                place.get(..3).unwrap_or_default()
            }
        };
        let Some(room) = into.get_mut(used..used + bytes.len()) else { break };
        room.copy_from_slice(bytes);
        used += bytes.len();
    }
    into.get(..used).unwrap_or_default()
}

/// Yields the characters of WTF-8 bytes; `None` at bytes that are none.
pub(crate) fn characters(bytes: &[u8]) -> impl Iterator<Item = Option<u32>> {
    let mut rest = bytes;
    core::iter::from_fn(move || {
        let (&first, behind) = rest.split_first()?;
        let (value, more, least) = match first {
            0..0x80 => (u32::from(first), 0, 0),
            0xc2..0xe0 => (u32::from(first & 0x1f), 1, 0x80),
            0xe0..0xf0 => (u32::from(first & 0xf), 2, 0x800),
            0xf0..0xf5 => (u32::from(first & 7), 3, 0x1_0000),
            _ => (u32::MAX, 0, 0),
        };
        let tail = behind.get(..more).unwrap_or_default();
        let is_whole = tail.len() == more && tail.iter().all(|byte| byte & 0xc0 == 0x80);
        let value = tail.iter().fold(value, |value, byte| value << 6 | u32::from(byte & 0x3f));
        rest = if is_whole { behind.get(more..).unwrap_or_default() } else { &[] };
        Some((is_whole && (least..=0x10_ffff).contains(&value)).then_some(value))
    })
}

/// Writes WTF-8 bytes as UTF-16; `None` for other bytes, and where there is no room.
pub(crate) fn to_units<'a>(bytes: &[u8], into: &'a mut [u16]) -> Option<&'a [u16]> {
    let mut used = 0;
    for character in characters(bytes) {
        let character = character?;
        if let Some(above) = character.checked_sub(0x1_0000) {
            let pair = into.get_mut(used..used + 2)?;
            pair.copy_from_slice(&[0xd800 | (above >> 10) as u16, 0xdc00 | (above & 0x3ff) as u16]);
            used += 2;
        } else {
            *into.get_mut(used)? = character as u16;
            used += 1;
        }
    }
    into.get(..used)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_all_kinds_come_back() {
        let names: [&[u16]; 4] = [
            &[0x43, 0x3a, 0x5c, 0x6d4b, 0x8bd5],
            &[0xd83d, 0xde00, 0x61],
            &[0xd800, 0x61, 0xdc00],
            &[0xffff, 0x7ff, 0x800, 0x80, 0x7f],
        ];
        for name in names {
            let mut bytes = [0; 64];
            let bytes = to_bytes(name.iter().copied(), &mut bytes);
            assert_eq!(to_units(bytes, &mut [0; 64]), Some(name));
        }
        assert_eq!(to_bytes("测试".encode_utf16(), &mut [0; 64]), "测试".as_bytes());
        assert_eq!(to_bytes("测试".encode_utf16(), &mut [0; 5]), "测".as_bytes());
    }

    #[test]
    fn names_that_are_no_text_are_refused() {
        for bytes in [&b"a\xff"[..], b"\xe6\xb5", b"\xc0\x80", b"\xf4\x90\x80\x80", b"\x80"] {
            assert_eq!(to_units(bytes, &mut [0; 64]), None, "{bytes:?}");
        }
        assert_eq!(to_units(b"abc", &mut [0; 2]), None);
    }
}
