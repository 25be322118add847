//! Machine code in front of a return address.

/// Decides whether `code` ends with a branch that links: `bl`, `blr`, and `blr` with a signature.
pub(super) fn ends_with_call(code: &[u8]) -> bool {
    let Some((_, last)) = code.split_last_chunk::<4>() else { return false };
    let instruction = u32::from_le_bytes(*last);
    let is_bl = instruction & 0xfc00_0000 == 0x9400_0000;
    let is_blr = instruction & 0xffff_fc1f == 0xd63f_0000;
    let is_signed_blr = instruction & 0xfeff_f800 == 0xd63f_0800;
    is_bl || is_blr || is_signed_blr
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn branches_with_link_are_calls() {
        // bl, blr x3, blraaz x3, blraa x3, x4; then b, br x3, ret, nop.
        for call in [0x9400_0010_u32, 0xd63f_0060, 0xd63f_087f, 0xd73f_0864] {
            assert!(ends_with_call(&call.to_le_bytes()), "{call:x}");
        }
        for other in [0x1400_0010_u32, 0xd61f_0060, 0xd65f_03c0, 0xd503_201f] {
            assert!(!ends_with_call(&other.to_le_bytes()), "{other:x}");
        }
        assert!(!ends_with_call(&[0, 0, 0x94]));
    }
}
