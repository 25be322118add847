//! Reads the memory of this process for walks by frame pointers.

use cairn_format::AbsoluteAddress;
use cairn_unwind::{AddressRange, MemoryReader};

use crate::stacks::stack_memory::StackMemory;
use crate::stacks::thread::{self, Access};

/// Reads this process's memory for a walk of this thread; unreadable memory gives `None`. For any
/// walk of `cairn_unwind`.
#[derive(Clone, Copy)]
pub struct ThreadMemory(StackMemory);

impl ThreadMemory {
    /// Memory around the stack that contains `sp`. The stack of another thread is read through the
    /// kernel and may change meanwhile.
    #[must_use]
    pub fn around(sp: u64) -> Self {
        Self(match thread::acquire(sp) {
            Access::Whole(block) => {
                // SAFETY: acquired above, not released yet, and the only reference to the state.
                let memory = unsafe { block.state() }.enter_stack(sp);
                block.release();
                memory
            }
            Access::Nested(block) => {
                let memory = block.published_stack();
                block.release_nested();
                memory
            }
            Access::None => StackMemory::UNKNOWN,
        })
    }

    /// Returns the range where frame records can lie. It is the used part of this thread's own
    /// stack, or all addresses on other stacks.
    #[must_use]
    pub fn stack(&self) -> AddressRange {
        if self.0.is_own() { self.0.range() } else { AddressRange::ALL }
    }
}

impl MemoryReader for ThreadMemory {
    fn read(&self, address: AbsoluteAddress, into: &mut [u8]) -> Option<()> {
        self.0.read(address, into)
    }

    #[inline]
    fn word64(&self, address: AbsoluteAddress) -> Option<u64> {
        self.0.word64(address)
    }
}
