//! Unloads modules: captures have to forget an unloaded module, and a recording has to state the
//! unload.

use core::ffi::c_void;

/// Calls unload(argument), which may unload modules by other ways than dlclose. Captures then
/// forget these modules, so that no stack is mistaken for another when a new module takes their
/// addresses. Captures in other threads continue meanwhile.
///
/// dlclose itself needs no such care: the library wraps it.
///
/// # Safety
///
/// `unload` may be called with `argument`, and returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairn_unloading(
    unload: Option<unsafe extern "C" fn(*mut c_void)>,
    argument: *mut c_void,
) {
    let Some(unload) = unload else { return };
    // SAFETY: the caller promises that `unload` may be called with `argument`, and returns.
    cairn_recorder::modules::while_unloading(|| unsafe { unload(argument) });
}

/// `dlclose`, wrapped. Windows tells a program itself of unloads.
#[cfg(not(windows))]
mod wrapped {
    use core::ffi::{c_char, c_int, c_void};
    use core::sync::atomic::{AtomicPtr, Ordering};
    use core::{mem, ptr};

    type Close = unsafe extern "C" fn(*mut c_void) -> c_int;

    /// The C library's `dlclose`, found at the first call.
    static REAL_DLCLOSE: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

    /// Replaces the C library's `dlclose` if this library comes before it. A preloaded library
    /// does, and so does a linked one.
    ///
    /// # Safety
    ///
    /// `handle` is valid for the C library's `dlclose`.
    #[unsafe(no_mangle)]
    pub(super) unsafe extern "C" fn dlclose(handle: *mut c_void) -> c_int {
        let mut address = REAL_DLCLOSE.load(Ordering::Relaxed);
        if address.is_null() {
            // Takes the loader's lock, as `dlclose` itself does; neither is for signal handlers.
            // SAFETY: the name ends with a NUL.
            address = unsafe { libc::dlsym(libc::RTLD_NEXT, c"dlclose".as_ptr().cast::<c_char>()) };
            REAL_DLCLOSE.store(address, Ordering::Relaxed);
        }
        // SAFETY: null, or the C library's function of this name and type.
        let Some(close) = (unsafe { mem::transmute::<*mut c_void, Option<Close>>(address) }) else {
            return -1;
        };
        // SAFETY: the caller promises a handle that is valid for the C library's function.
        cairn_recorder::modules::while_unloading(|| unsafe { close(handle) })
    }
}
