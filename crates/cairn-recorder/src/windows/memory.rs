//! Takes memory from the kernel, and gives it back.

use core::ffi::c_void;
use core::ptr;
use core::sync::atomic::{AtomicU64, Ordering};

use super::calls::{NtAllocateVirtualMemory, NtFreeVirtualMemory, THIS_PROCESS};
use super::errors::{Errno, answer};
use crate::zone::Zone;

const COMMIT: u32 = 0x1000;
const RESERVE: u32 = 0x2000;
const RELEASE: u32 = 0x8000;
const READ_WRITE: u32 = 4;

fn allocate(at: usize, bytes: usize, kind: u32) -> Result<usize, Errno> {
    let (mut address, mut bytes) = (ptr::with_exposed_provenance_mut::<c_void>(at), bytes);
    // SAFETY: both places live until the call returns. Memory is reserved where there is none;
    // committing does not change what is committed.
    answer(unsafe {
        NtAllocateVirtualMemory(THIS_PROCESS, &raw mut address, 0, &raw mut bytes, kind, READ_WRITE)
    })?;
    Ok(address as usize)
}

/// Takes zeroed memory that can grow to `most_bytes`. All of these are reserved: reserved addresses
/// cost nothing on Windows.
pub(crate) fn zeroed_apart(bytes: usize, most_bytes: usize, _zone: &Zone) -> Result<usize, Errno> {
    let at = allocate(0, most_bytes.max(bytes), RESERVE)?;
    if let Err(error) = allocate(at, bytes, COMMIT) {
        // SAFETY: reserved above, and the address has not been shared.
        unsafe { unmap(at, bytes) };
        return Err(error);
    }
    Ok(at)
}

/// Address below which zones lie. Windows places the memory of programs far below, and modules and
/// stacks far above: mappings of files can grow there.
const ZONES_END: usize = 1 << 46;
const ZONE_ALIGNMENT: usize = 1 << 21;

/// Maps in the zone, or elsewhere where that is in use. `map` takes an address, 0 for any.
pub(crate) fn place(zone: &Zone, map: impl Fn(usize) -> Result<usize, Errno>) -> Result<usize, Errno> {
    const TRIES: u32 = 8;
    for _ in 0..TRIES {
        let within = (zone.bytes >> 20) * (zone.next() >> 12) as usize;
        if let Ok(at) = map((ZONES_END - zone.from - within) & !(ZONE_ALIGNMENT - 1)) {
            return Ok(at);
        }
    }
    map(0)
}

/// Extends the memory that ends at `end`, up to what is reserved.
pub(crate) fn lengthen(end: usize, more: usize) -> Result<(), Errno> {
    allocate(end, more, COMMIT).map(drop)
}

/// Takes zeroed memory.
pub(crate) fn zeroed(bytes: usize) -> Result<usize, Errno> {
    allocate(0, bytes, RESERVE | COMMIT)
}

/// Releases a reservation, which begins at `at`.
///
/// # Safety
///
/// The memory is the caller's, and nobody uses it any more.
pub(crate) unsafe fn unmap(at: usize, _bytes: usize) {
    let (mut address, mut bytes) = (ptr::with_exposed_provenance_mut::<c_void>(at), 0);
    // SAFETY: both places live until the call returns; nobody uses the memory, by contract.
    unsafe { NtFreeVirtualMemory(THIS_PROCESS, &raw mut address, &raw mut bytes, RELEASE) };
}

/// Sets the words of a range of private memory to zero.
///
/// # Safety
///
/// The range is the caller's memory, and all that reads it concurrently is atomic.
pub(crate) unsafe fn forget(at: usize, bytes: usize) {
    for word in (at.next_multiple_of(8)..at + bytes).step_by(8) {
        // SAFETY: an aligned word of the range, which is accessed atomically, by contract.
        unsafe { &*ptr::with_exposed_provenance::<AtomicU64>(word) }.store(0, Ordering::Relaxed);
    }
}
