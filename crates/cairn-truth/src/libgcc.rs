//! libgcc's unwinder, which is what the truth is measured by: it is what C++ exceptions depend on.

use std::ffi::{c_int, c_void};

unsafe extern "C" {
    fn _Unwind_Backtrace(visit: extern "C" fn(*mut c_void, *mut c_void) -> c_int, data: *mut c_void)
    -> c_int;
    fn _Unwind_GetIP(context: *mut c_void) -> usize;
    fn _Unwind_Find_FDE(pc: *const c_void, bases: *mut [*const c_void; 3]) -> *const c_void;
}

/// Calls `each` with every pc of the calling stack, innermost first, beginning with this function's own, until it
/// answers false. No null is passed on.
#[inline(never)]
pub(crate) fn walk(mut each: &mut dyn FnMut(u64) -> bool) {
    extern "C" fn visit(context: *mut c_void, data: *mut c_void) -> c_int {
        /// `_URC_NORMAL_STOP`
        const STOP: c_int = 4;
        // SAFETY: libgcc hands back the pointer that `walk` gave it, and a valid context.
        let (each, pc) =
            unsafe { (&mut *data.cast::<&mut dyn FnMut(u64) -> bool>(), _Unwind_GetIP(context)) };
        if pc == 0 || each(pc as u64) { 0 } else { STOP }
    }
    // SAFETY: `visit` gets back the reference, which outlives the call.
    unsafe { _Unwind_Backtrace(visit, (&raw mut each).cast()) };
}

/// True when an unwind table covers the address.
pub(crate) fn is_covered(pc: u64) -> bool {
    let mut bases = [std::ptr::null(); 3];
    // SAFETY: any address may be asked for; `bases` has room for the answer.
    !unsafe { _Unwind_Find_FDE(pc as *const c_void, &raw mut bases) }.is_null()
}
