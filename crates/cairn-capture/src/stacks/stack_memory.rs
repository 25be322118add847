//! Reads this process's memory during a walk: directly on the stack, through the kernel elsewhere.

use cairn_format::AbsoluteAddress;
use cairn_unwind::{AddressRange, MemoryReader};

use crate::stacks::own_memory::{self, PROBE_PAGES};
use crate::stacks::stack_bounds;

/// This process's memory, with the range from `low` to `high` that is known to be readable. Both
/// are multiples of 8.
#[derive(Clone, Copy)]
pub(crate) struct StackMemory {
    pub(crate) low: u64,
    pub(crate) high: u64,
}

impl StackMemory {
    /// Nothing is known to be readable.
    pub(crate) const UNKNOWN: Self = Self { low: 0, high: 0 };

    /// Extends the range down to `here`, the address of a local variable. It does so only if `here`
    /// lies a little below on the same stack. All memory in between is in use.
    pub(crate) fn down_to(self, here: u64) -> Self {
        /// More than the frames of a capture take, and less than the distance of two stacks.
        const NEAR_BYTES: u64 = 1 << 14;
        let is_near = here < self.low && self.low - here < NEAR_BYTES && self.low < self.high;
        Self { low: if is_near { here } else { self.low }, ..self }
    }

    /// Returns the memory from `sp` up, on a stack that is not the thread's own. It extends as far
    /// as one system call finds it readable.
    pub(crate) fn elsewhere(sp: u64) -> Self {
        Self::elsewhere_in(sp, PROBE_PAGES)
    }

    /// The memory from `sp` up, as far as it is readable in at most `pages` pages.
    pub(crate) fn elsewhere_in(sp: u64, pages: usize) -> Self {
        Self { low: sp, high: own_memory::readable_end(sp, pages) }
    }

    /// True when `sp` lies in the readable range.
    pub(crate) fn contains(self, sp: u64) -> bool {
        self.low <= sp && sp < self.high
    }

    /// True for the thread's own stack. Computed at each call: a walk has little room to store it.
    pub(crate) fn is_own(self) -> bool {
        stack_bounds::is_top_of_own_stack(self.high)
    }

    /// The addresses where frame records can lie. A coroutine starts with the frame pointer of the
    /// code that created it, which leads to another stack.
    pub(crate) fn frame_range(self) -> AddressRange {
        if self.is_own() { AddressRange::ALL } else { self.range() }
    }

    /// The readable range.
    pub(crate) fn range(self) -> AddressRange {
        AddressRange::new(AbsoluteAddress::new(self.low), AbsoluteAddress::new(self.high))
    }
}

impl MemoryReader for StackMemory {
    fn read(&self, address: AbsoluteAddress, into: &mut [u8]) -> Option<()> {
        let end = address.checked_add(into.len() as u64)?;
        if !(self.low <= address.value() && end.value() <= self.high) {
            // One call for all bytes: each word would be a system call of its own.
            return (own_memory::read_bytes(address.value(), into) == into.len()).then_some(());
        }
        for (index, byte) in into.iter_mut().enumerate() {
            let address = address.value().checked_add(index as u64)?;
            let word = self.word64(AbsoluteAddress::new(address & !7))?;
            *byte = word.to_le_bytes()[(address % 8) as usize];
        }
        Some(())
    }

    #[inline]
    fn word64(&self, address: AbsoluteAddress) -> Option<u64> {
        let address = address.value();
        if address.is_multiple_of(8) && self.contains(address) {
            // SAFETY: aligned, and low <= address < high, which is a multiple of 8, so the whole
            // word lies in the readable range.
            return Some(unsafe { (address as *const u64).read_volatile() });
        }
        own_memory::read_word(address)
    }
}
