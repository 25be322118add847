//! libgcc's unwinder, the reference for all comparisons: C++ exceptions depend on it.

use std::ffi::{c_int, c_void};

unsafe extern "C" {
    fn _Unwind_Backtrace(visit: extern "C" fn(*mut c_void, *mut c_void) -> c_int, data: *mut c_void)
    -> c_int;
    fn _Unwind_GetIP(context: *mut c_void) -> usize;
    fn _Unwind_Find_FDE(pc: *const c_void, bases: *mut [*const c_void; 3]) -> *const c_void;
}

/// Calls `each` with every pc of the calling stack, innermost first, until it returns false.
///
/// The first pc is this function's own. Null is skipped.
#[inline(never)]
pub(crate) fn walk(mut each: &mut dyn FnMut(u64) -> bool) {
    extern "C" fn visit(context: *mut c_void, data: *mut c_void) -> c_int {
        /// `_URC_NORMAL_STOP`
        const STOP: c_int = 4;
        // SAFETY: libgcc passes a valid context and `data`, the pointer to the reference in `walk`,
        // which outlives the call.
        let (each, pc) =
            unsafe { (&mut *data.cast::<&mut dyn FnMut(u64) -> bool>(), _Unwind_GetIP(context)) };
        if pc == 0 || each(pc as u64) { 0 } else { STOP }
    }
    // SAFETY: `visit` has the type that libgcc calls, and the reference outlives the call.
    unsafe { _Unwind_Backtrace(visit, (&raw mut each).cast()) };
}

/// True when an unwind table covers the address.
pub(crate) fn is_covered(pc: u64) -> bool {
    let mut bases = [std::ptr::null(); 3];
    // SAFETY: the function accepts any address, and `bases` has room for its answer.
    !unsafe { _Unwind_Find_FDE(pc as *const c_void, &raw mut bases) }.is_null()
}
