//! Compares the bytes of two words at once, by arithmetic on whole words.

/// A bit for each of the 16 bytes that equals `byte`; the lowest byte of the first word is bit 0.
#[inline(always)]
pub(crate) fn equal_bytes(words: [u64; 2], byte: u8) -> u32 {
    const LOW_BITS: u64 = u64::MAX / 255;
    const REST: u64 = LOW_BITS * 0x7f;
    // Multiplied with it, the lowest bits of eight bytes become the highest byte.
    const GATHER: u64 = 0x0102_0408_1020_4080;
    let [low, high] = words.map(|word| {
        let difference = word ^ (LOW_BITS * u64::from(byte));
        // The highest bit of a byte is set if the byte is zero, without a carry into the next one.
        let is_zero = !(((difference & REST) + REST) | difference | REST);
        (is_zero >> 7).wrapping_mul(GATHER) >> 56
    });
    (low | high << 8) as u32
}
