//! Where a step finds the return address, and which bits of it are significant.
//!
//! The functions are constants here; AArch64's are not.

use super::Rule;

/// Lowest bits that are zero in every code address.
pub(crate) const PC_ZERO_BITS: u32 = 0;

/// Bytes from the CFA down to the return address that a plain step reads. A call pushes it there.
#[inline(always)]
pub(crate) fn return_address_below(_rule: Rule) -> u64 {
    8
}

/// True when a plain step reads its return address within the frame, which has this many bytes. A
/// frame has at least the return address.
#[inline(always)]
pub(crate) fn reads_within(_rule: Rule, _frame_bytes: u64) -> bool {
    true
}

/// A return address without its signature: this processor signs none.
#[inline(always)]
pub(crate) fn strip(address: u64) -> u64 {
    address
}

/// False for addresses that the cache of code addresses cannot hold.
///
/// On Windows also for null, which ends the stacks of fibers: the whole walk says why.
#[inline(always)]
pub(crate) fn is_code_address(pc: u64) -> bool {
    !cfg!(windows) || pc != 0
}
