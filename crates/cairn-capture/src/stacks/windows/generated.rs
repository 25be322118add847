//! Code that belongs to no module: that of JIT compilers.

use super::calls::PageRange;

/// The reason to believe that code is at an address.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Evidence {
    /// When a call instruction is in front of it.
    Call,
    /// When it is a word of a stack.
    Word,
}

/// True when `address` lies in executable memory. The kernel is asked each time, because one call
/// costs less than a list of mappings.
pub(crate) fn is_executable(address: u64, _evidence: Evidence, _learned: impl FnOnce()) -> bool {
    PageRange::around(address).is_some_and(|range| range.is_executable())
}
