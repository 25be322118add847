//! The memory of this process, for walks by frame pointers.

use cairn_format::AbsoluteAddress;
use cairn_unwind::{AddressRange, MemoryReader};

use crate::stack_bounds;
use crate::thread::{self, Access};
use crate::walk::OwnMemory;

/// This process's memory as a walk of this thread reads it: what cannot be read is an answer. For any walk of `cairn_unwind`.
#[derive(Clone, Copy)]
pub struct ThreadMemory(OwnMemory);

impl ThreadMemory {
    /// Around the stack that `sp` lies on. That of another thread is read as well, through the kernel, and may change meanwhile.
    #[must_use]
    pub fn around(sp: u64) -> Self {
        Self(match thread::acquire(sp) {
            Access::Whole(state) => {
                // SAFETY: acquired, so nothing else refers to it until the release.
                let thread = unsafe { &mut *state };
                if !(thread.low <= sp && sp < thread.high) {
                    // A stack that cannot be entered is read through the kernel.
                    let _ = stack_bounds::enter(thread, sp);
                }
                let memory = OwnMemory::around(thread, sp);
                // SAFETY: acquired above.
                unsafe { thread::release(state) };
                memory
            }
            Access::Nested(state) => {
                // SAFETY: two numbers, which the interrupted capture keeps readable at any moment.
                let memory = unsafe { OwnMemory { low: (*state).low, high: (*state).high } };
                // SAFETY: acquired above.
                unsafe { thread::release_nested(state) };
                memory
            }
            Access::None => OwnMemory { low: 0, high: 0 },
        })
    }

    /// Where frame records can lie: this thread's own stack, as far as it is in use, or anywhere on other stacks.
    #[must_use]
    pub fn stack(&self) -> AddressRange {
        if self.0.is_own() {
            return AddressRange::new(AbsoluteAddress::new(self.0.low), AbsoluteAddress::new(self.0.high));
        }
        AddressRange::ALL
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
