//! Takes memory from the kernel: the only source of memory in this crate.
//!
//! `NtAllocateVirtualMemory` is a plain system call without an allocator behind it. Memory that
//! grows is reserved as a whole, and committed step by step: reserved addresses cost nothing.

use core::ffi::c_void;
use core::ptr::NonNull;

use super::calls::{NtAllocateVirtualMemory, NtFreeVirtualMemory, THIS_PROCESS};
use crate::stacks::own_pieces::{note, note_growth, note_release};

/// Bytes of the steps in which memory is reserved; the system's granularity.
pub(crate) const PAGE_BYTES: usize = 1 << 16;

const COMMIT: u32 = 0x1000;
const RESERVE: u32 = 0x2000;
const RELEASE: u32 = 0x8000;
const RESET: u32 = 0x8_0000;
const READ_WRITE: u32 = 4;

/// Largest reservation of memory that grows; 16 GiB, more than all tables of the crate take.
const MAX_RESERVED: usize = 16 << 30;

fn allocate(address: *mut c_void, bytes: usize, kind: u32) -> Option<NonNull<u8>> {
    let (mut address, mut bytes) = (address, bytes);
    // SAFETY: both places live until the call returns. Without an address the call replaces no
    // memory; with one, callers pass reserved memory of this module.
    let status = unsafe {
        NtAllocateVirtualMemory(THIS_PROCESS, &raw mut address, 0, &raw mut bytes, kind, READ_WRITE)
    };
    if status < 0 { None } else { NonNull::new(address.cast()) }
}

/// Takes `bytes` of zeroed memory. `None` when the kernel refuses.
pub(crate) fn reserve(bytes: usize) -> Option<NonNull<u8>> {
    let address = allocate(core::ptr::null_mut(), bytes, RESERVE | COMMIT)?;
    note(address.as_ptr() as usize, bytes);
    Some(address)
}

/// Takes memory as [`reserve`] does, with room to grow ([`extend`]).
///
/// The room is half of `min_distance`, which is twice the most that the caller needs.
pub(crate) fn reserve_apart(bytes: usize, _distance: usize, min_distance: usize) -> Option<NonNull<u8>> {
    let room = (min_distance / 2).clamp(bytes, MAX_RESERVED).next_multiple_of(PAGE_BYTES);
    let address = allocate(core::ptr::null_mut(), room, RESERVE)?;
    if allocate(address.as_ptr().cast(), bytes, COMMIT).is_none() {
        free(address);
        return None;
    }
    note(address.as_ptr() as usize, bytes);
    Some(address)
}

/// Extends the memory that ends at `end` in place, by whole pages. Returns false where its
/// reservation ends.
pub(crate) fn extend(end: usize, more: usize) -> bool {
    let is_extended = allocate(core::ptr::with_exposed_provenance_mut(end), more, COMMIT).is_some();
    if is_extended {
        note_growth(end, more);
    }
    is_extended
}

fn free(address: NonNull<u8>) {
    let (mut address, mut bytes) = (address.as_ptr().cast(), 0);
    // SAFETY: both places live until the call returns; the address begins a reservation of this
    // module, to which nothing refers.
    unsafe { NtFreeVirtualMemory(THIS_PROCESS, &raw mut address, &raw mut bytes, RELEASE) };
}

/// Releases a reservation.
///
/// # Safety
///
/// - `address` begins a reservation of this module.
/// - No pointer into it is used afterwards.
pub(crate) unsafe fn release(address: NonNull<u8>, _bytes: usize) {
    note_release(address.as_ptr() as usize);
    free(address);
}

/// Allows the kernel to drop the contents of memory, which is not used any more.
///
/// # Safety
///
/// - The `bytes` bytes from `address` on belong to one reservation of this module.
/// - Everything that reads them may find zeros at any time from now on.
pub(crate) unsafe fn discard(address: NonNull<u8>, bytes: usize) {
    allocate(address.as_ptr().cast(), bytes, RESET);
}
