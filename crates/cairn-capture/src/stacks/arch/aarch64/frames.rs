//! Where a step finds the return address, and which bits of it are significant.

use super::{Rule, address_mask};

/// Lowest bits that are zero in every code address.
pub(crate) const PC_ZERO_BITS: u32 = 2;

/// Bytes from the CFA down to the return address that a plain step reads. The callee stores it
/// where it likes.
#[inline(always)]
pub(crate) fn return_address_below(rule: Rule) -> u64 {
    rule.return_address_below_cfa()
}

/// True when all words that a plain step reads lie within the frame, which has this many bytes.
///
/// Others would lie below the frame's stack pointer, where its callees write.
#[inline(always)]
pub(crate) fn reads_within(rule: Rule, frame_bytes: u64) -> bool {
    // The saved frame pointer lies below the return address.
    rule.return_address_below_cfa().max(rule.slot_below_cfa()) <= frame_bytes
}

/// A return address without its signature.
#[inline(always)]
pub(crate) fn strip(address: u64) -> u64 {
    address & address_mask()
}

/// False for addresses that the cache of code addresses cannot hold. A program finds code at higher
/// addresses than 48 bits only if it has asked the kernel for them.
#[inline(always)]
pub(crate) fn is_code_address(pc: u64) -> bool {
    const CODE: u64 = (1 << 48) - 1 - ((1 << PC_ZERO_BITS) - 1);
    pc & !CODE == 0
}
