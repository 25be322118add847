//! Compares the bytes of two words at once, by SSE2, which every x86-64 processor has.

use core::arch::x86_64::{_mm_cmpeq_epi8, _mm_movemask_epi8, _mm_set_epi64x, _mm_set1_epi8};

/// A bit for each of the 16 bytes that equals `byte`; the lowest byte of the first word is bit 0.
#[inline(always)]
pub(crate) fn equal_bytes(words: [u64; 2], byte: u8) -> u32 {
    let [low, high] = words.map(u64::cast_signed);
    // SAFETY: every x86-64 processor has SSE2.
    let mask = unsafe {
        let equal = _mm_cmpeq_epi8(_mm_set_epi64x(high, low), _mm_set1_epi8(byte.cast_signed()));
        _mm_movemask_epi8(equal)
    };
    mask.cast_unsigned()
}
