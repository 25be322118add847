//! Structs of the caller, whose first field is their size in bytes: a program may have been
//! compiled with an older header than this library, or with a newer one.

use core::{ptr, slice};

/// Maximum valid size; 4096, far more than any struct has. A larger value is uninitialised memory.
pub(crate) const MAX_TYPE_SIZE: usize = 4096;

/// Replaces the fields of `defaults` that the caller knows. `None` for an invalid size, and for
/// fields of a newer header that are not zero.
///
/// # Safety
///
/// - The first field of `T` is its size, a `usize`, and `given` points to as many bytes as it says.
/// - Any bytes that the caller may have there are values of the fields of `T`.
pub(crate) unsafe fn take<T: Copy>(given: *const T, defaults: T) -> Option<T> {
    // SAFETY: the caller promises that the first field of `T` is its size, a `usize`, and `given`
    // points to as many bytes as it says; any bytes that the caller may have there are values of
    // the fields of `T`.
    let type_size = unsafe { *given.cast::<usize>() };
    if !(size_of::<usize>()..=MAX_TYPE_SIZE).contains(&type_size) {
        return None;
    }
    // SAFETY: the caller promises that the first field of `T` is its size, a `usize`, and `given`
    // points to as many bytes as it says; any bytes that the caller may have there are values of
    // the fields of `T`.
    let bytes = unsafe { slice::from_raw_parts(given.cast::<u8>(), type_size) };
    let (ours, newer) = bytes.split_at_checked(size_of::<T>()).unwrap_or((bytes, &[]));
    let mut known = defaults;
    // SAFETY: `ours` is no longer than the struct, and the caller promises that its bytes are
    // values of the fields.
    unsafe { ptr::copy_nonoverlapping(ours.as_ptr(), (&raw mut known).cast(), ours.len()) };
    newer.iter().all(|&byte| byte == 0).then_some(known)
}

/// Copies `found` into the caller's struct of `type_size` bytes, as far as it fits. Fields of a
/// newer header become zero.
///
/// # Safety
///
/// `into` points to `type_size` bytes.
pub(crate) unsafe fn give<T>(found: &T, into: *mut T, type_size: usize) {
    let known = size_of::<T>().min(type_size);
    // SAFETY: the caller's struct has `type_size` bytes, and ours at least as many as are copied.
    unsafe {
        ptr::copy_nonoverlapping(ptr::from_ref(found).cast::<u8>(), into.cast::<u8>(), known);
        ptr::write_bytes(into.cast::<u8>().add(known), 0, type_size - known);
    }
}
