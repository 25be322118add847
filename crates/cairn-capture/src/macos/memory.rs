//! Reads this process's memory where it may be unreadable, and finds the bounds of this thread's
//! stack.
//!
//! `mach_vm_read_overwrite` on the own task is a trap into the kernel without lock or allocation,
//! and copies nothing from an unreadable page.

use cairn_format::AbsoluteAddress;
use cairn_unwind::{AddressRange, MemoryReader};

unsafe extern "C" {
    static mach_task_self_: libc::mach_port_t;

    /// From `<mach/mach_vm.h>`; all addresses and sizes have 64 bits.
    fn mach_vm_read_overwrite(
        task: libc::mach_port_t,
        address: u64,
        size: u64,
        data: u64,
        out_size: *mut u64,
    ) -> libc::c_int;
}

/// The smallest page size. One read stays within such a page, so that it covers either readable or
/// unreadable memory.
const PAGE_BYTES: u64 = 4096;

/// Copies bytes from any address of this process, up to the first unreadable page. Returns their
/// count.
pub fn read_own_memory(address: u64, into: &mut [u8]) -> usize {
    let mut count = 0;
    while let Some(rest) = into.get_mut(count..).filter(|rest| !rest.is_empty()) {
        let from = address.wrapping_add(count as u64);
        let length = (rest.len() as u64).min(PAGE_BYTES - from % PAGE_BYTES);
        let mut read = 0;
        // SAFETY: the kernel checks the source, and `rest` has at least `length` bytes.
        let status = unsafe {
            mach_vm_read_overwrite(mach_task_self_, from, length, rest.as_mut_ptr() as u64, &raw mut read)
        };
        if status != 0 || read != length {
            break;
        }
        count += length as usize;
    }
    count
}

/// Reads this process's memory for a walk of this thread. It reads directly on its own stack, and
/// through the kernel elsewhere.
#[derive(Clone, Copy)]
pub struct ThreadMemory {
    /// The stack from here to `high` is in use, and so readable.
    low: u64,
    high: u64,
}

impl ThreadMemory {
    /// Memory around the stack that contains `sp`. If it is not this thread's own, everything is
    /// read through the kernel.
    #[must_use]
    pub fn around(sp: u64) -> Self {
        // SAFETY: both calls only read the calling thread's own descriptor.
        let (top, size) = unsafe {
            let thread = libc::pthread_self();
            (libc::pthread_get_stackaddr_np(thread) as u64, libc::pthread_get_stacksize_np(thread) as u64)
        };
        if sp < top && top - sp <= size { Self { low: sp, high: top } } else { Self { low: 0, high: 0 } }
    }

    /// Returns the range where frame records can lie. It is the used part of this thread's own
    /// stack, or all addresses on other stacks.
    #[must_use]
    pub fn stack(&self) -> AddressRange {
        if self.high == 0 {
            return AddressRange::ALL;
        }
        AddressRange::new(AbsoluteAddress::new(self.low), AbsoluteAddress::new(self.high))
    }
}

impl MemoryReader for ThreadMemory {
    fn read(&self, address: AbsoluteAddress, into: &mut [u8]) -> Option<()> {
        let end = address.checked_add(into.len() as u64)?;
        if self.low <= address.value() && end.value() <= self.high {
            // SAFETY: `low` is the stack pointer of a frame that waits for this walk and `high` the
            // end of this thread's stack, so all bytes in between are readable; `into` has that
            // length and does not overlap them, as it lies below `low` or elsewhere.
            unsafe {
                core::ptr::copy_nonoverlapping(address.value() as *const u8, into.as_mut_ptr(), into.len());
            }
            return Some(());
        }
        (read_own_memory(address.value(), into) == into.len()).then_some(())
    }
}
