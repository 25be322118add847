//! Maps memory from the kernel: the only source of memory in this crate.
//!
//! `mmap` is a plain system call without locks or an allocator behind it, so it may be used inside
//! malloc and in signal handlers. Memory that other threads may use is never unmapped: ids and
//! caches refer to it until the process ends.

use core::ptr::{self, NonNull};

use crate::stacks::own_pieces::{note, note_growth, note_release};

/// Mappings of at least this size are excluded from core dumps. Most of them is never touched, and
/// a debugger's dump of the process would contain a gigabyte of zeros. The mappings of threads are
/// smaller, and cost no further system call.
const LARGE_BYTES: usize = 16 << 20;

/// Maps `bytes` of zeroed memory, which take physical memory only once they are touched. `None`
/// when the kernel refuses, as under a limit of the address space.
pub(crate) fn reserve(bytes: usize) -> Option<NonNull<u8>> {
    let saved_errno = errno();
    let Some(address) = map_at(0, bytes) else {
        // The watched program must not see an error that it did not cause.
        set_errno(saved_errno);
        return None;
    };
    if bytes >= LARGE_BYTES {
        exclude_from_dumps(address, bytes);
    }
    set_errno(saved_errno);
    note(address.as_ptr() as usize, bytes);
    Some(address)
}

/// Maps `bytes` of zeroed memory, at `hint` if that is free and not 0. Changes errno when it fails.
fn map_at(hint: usize, bytes: usize) -> Option<NonNull<u8>> {
    // Miri accepts no other flags. To it, all memory costs nothing until it is touched.
    const RESERVE: libc::c_int = if cfg!(miri) { 0 } else { libc::MAP_NORESERVE };
    // SAFETY: an anonymous mapping without MAP_FIXED replaces no existing memory; where the hint is
    // not free, the kernel ignores it.
    let address = unsafe {
        libc::mmap(
            ptr::without_provenance_mut(hint),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | RESERVE,
            -1,
            0,
        )
    };
    if address == libc::MAP_FAILED { None } else { NonNull::new(address.cast()) }
}

/// Excludes a mapping from core dumps, with all memory that is added to it later. May change errno.
fn exclude_from_dumps(address: NonNull<u8>, bytes: usize) {
    // Miri does not support the call.
    if !cfg!(miri) {
        // SAFETY: the advice changes only whether core dumps contain the memory. A kernel that does
        // not support it returns an error.
        unsafe { libc::madvise(address.as_ptr().cast(), bytes, libc::MADV_DONTDUMP) };
    }
}

/// Maps memory as [`reserve`] does, at an address where it can grow ([`extend`]).
///
/// The address lies `distance` below the one that the kernel chooses, or half, a quarter and so on
/// of that, down to `min_distance`. Where none of these is free, it is the kernel's choice.
pub(crate) fn reserve_apart(bytes: usize, distance: usize, min_distance: usize) -> Option<NonNull<u8>> {
    let saved_errno = errno();
    let found = map_at(0, bytes).map(|near| {
        let mut distance = distance;
        while distance >= min_distance.max(1) && !cfg!(miri) {
            let wanted = (near.as_ptr() as usize).checked_sub(distance).filter(|&at| at >= distance);
            if let Some(wanted) = wanted.map(|at| at & !(ALIGNMENT - 1)) {
                // Where a limit of the address space forbids a second mapping, the first one is
                // used.
                let Some(got) = map_at(wanted, bytes) else { break };
                let is_there = got.as_ptr() as usize == wanted;
                let other = if is_there { near } else { got };
                // SAFETY: one of the two mappings made above, of `bytes` bytes, to which nothing
                // else refers.
                unsafe { libc::munmap(other.as_ptr().cast(), bytes) };
                if is_there {
                    return got;
                }
            }
            distance /= 2;
        }
        near
    });
    if let Some(address) = found {
        exclude_from_dumps(address, bytes);
        note(address.as_ptr() as usize, bytes);
    }
    // The watched program must not see an error that it did not cause.
    set_errno(saved_errno);
    found
}

/// Alignment of the addresses chosen by [`reserve_apart`]: a huge page.
const ALIGNMENT: usize = 1 << 21;

/// Extends the mapping that ends at `end` in place, by whole pages. Returns false where another
/// mapping follows, or another thread has extended it meanwhile.
pub(crate) fn extend(end: usize, more: usize) -> bool {
    if cfg!(miri) {
        // Miri moves what it extends. To it, the memory is all that was mapped at first.
        return false;
    }
    let saved_errno = errno();
    let from = end - PAGE_BYTES;
    // SAFETY: without flags, mremap neither moves a mapping nor replaces another one; it only
    // extends the page before `end`, the last one of a mapping of this crate.
    let result = unsafe { libc::syscall(libc::SYS_mremap, from, PAGE_BYTES, PAGE_BYTES + more, 0) };
    set_errno(saved_errno);
    let is_extended = result != -1;
    if is_extended {
        note_growth(end, more);
    }
    is_extended
}

/// Bytes of a page; 64 KiB, the largest page of all supported systems.
pub(crate) const PAGE_BYTES: usize = 1 << 16;

/// Unmaps a mapping, or the end of one.
///
/// # Safety
///
/// - `address` begins a page, and all pages of the `bytes` bytes from there belong to one mapping
///   of this module.
/// - No pointer into them is used afterwards.
pub(crate) unsafe fn release(address: NonNull<u8>, bytes: usize) {
    let saved_errno = errno();
    note_release(address.as_ptr() as usize);
    // SAFETY: the caller promises that the range is a mapping of this module to which nothing
    // refers.
    unsafe { libc::munmap(address.as_ptr().cast(), bytes) };
    set_errno(saved_errno);
}

/// Returns the memory of a mapping to the kernel; it stays mapped, and reads as zeros.
///
/// # Safety
///
/// - `address` begins a page, and the `bytes` bytes from there belong to one mapping of this
///   module.
/// - Everything that reads them may find zeros at any time from now on.
pub(crate) unsafe fn discard(address: NonNull<u8>, bytes: usize) {
    // Miri does not support the call.
    if cfg!(miri) {
        return;
    }
    let saved_errno = errno();
    // SAFETY: private anonymous memory of this module becomes zeros, as the caller allows. A
    // kernel that refuses, as for locked memory, changes nothing.
    unsafe { libc::madvise(address.as_ptr().cast(), bytes, libc::MADV_DONTNEED) };
    set_errno(saved_errno);
}

fn errno() -> libc::c_int {
    // SAFETY: the pointer to this thread's errno is valid while the thread runs.
    unsafe { *libc::__errno_location() }
}

fn set_errno(value: libc::c_int) {
    // SAFETY: the pointer to this thread's errno is valid while the thread runs.
    unsafe { *libc::__errno_location() = value }
}
