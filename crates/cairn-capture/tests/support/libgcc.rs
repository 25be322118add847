//! The stack as libgcc finds it.

use std::ffi::{c_int, c_void};

unsafe extern "C" {
    fn _Unwind_Backtrace(visit: extern "C" fn(*mut c_void, *mut c_void) -> c_int, data: *mut c_void)
    -> c_int;
    fn _Unwind_GetIP(context: *mut c_void) -> usize;
}

extern "C" fn visit(context: *mut c_void, data: *mut c_void) -> c_int {
    // SAFETY: libgcc passes a valid context and `data`, the pointer to the caller's vector.
    unsafe { (*data.cast::<Vec<u64>>()).push(_Unwind_GetIP(context) as u64) };
    0
}

/// Returns the return addresses that libgcc finds, innermost first. The null behind the outermost
/// frame is removed.
#[inline(never)]
pub(crate) fn by_libgcc() -> Vec<u64> {
    let mut addresses: Vec<u64> = Vec::with_capacity(256);
    // SAFETY: `visit` has the type that libgcc calls, and the vector outlives the call.
    unsafe { _Unwind_Backtrace(visit, (&raw mut addresses).cast()) };
    addresses.retain(|&address| address != 0);
    addresses
}
