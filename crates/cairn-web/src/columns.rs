//! Columns of numbers as bytes: seven bits to a byte, the lowest first, the top bit set where more
//! follow.
//!
//! The browser knows integers up to 2^53 exactly; larger ones, which only a made-up recording
//! holds, are written as that.

/// The largest number that a page holds.
pub(crate) const MOST: u64 = 1 << 53;

/// Appends a number.
pub(crate) fn put(bytes: &mut Vec<u8>, value: u64) {
    let mut rest = value.min(MOST);
    while rest >= 0x80 {
        bytes.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    bytes.push(rest as u8);
}

/// Appends a number that may be negative: the sign is the lowest bit.
pub(crate) fn put_signed(bytes: &mut Vec<u8>, value: i64) {
    let magnitude = value.unsigned_abs().min(MOST / 2 - 1);
    put(bytes, magnitude << 1 | u64::from(value < 0));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_take_seven_bits_a_byte_up_to_the_browser_limit() {
        let cases: [(u64, &[u8]); 5] = [
            (0, &[0]),
            (127, &[127]),
            (128, &[0x80, 1]),
            (300, &[0xac, 2]),
            (u64::MAX, &[0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x10]),
        ];
        for (value, expected) in cases {
            let mut bytes = Vec::new();
            put(&mut bytes, value);
            assert_eq!(bytes, expected, "{value}");
        }
        let signed: [(i64, &[u8]); 4] = [(0, &[0]), (-1, &[3]), (1, &[2]), (-64, &[0x81, 1])];
        for (value, expected) in signed {
            let mut bytes = Vec::new();
            put_signed(&mut bytes, value);
            assert_eq!(bytes, expected, "{value}");
        }
        let mut bytes = Vec::new();
        put_signed(&mut bytes, i64::MIN);
        assert!(bytes.len() <= 8, "{bytes:x?}");
    }
}
