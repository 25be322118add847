//! Unloading modules: what captures know of a module must be forgotten when it goes, and a
//! recording must say that it went.

use core::ffi::{c_char, c_int, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};
use core::{mem, ptr};

/// Calls unload(argument), which may unload modules by other ways than dlclose, and forgets what
/// captures learned of them, so that no stack is mistaken for another when a new module takes their
/// addresses. Captures in other threads go on meanwhile.
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

type Close = unsafe extern "C" fn(*mut c_void) -> c_int;

/// Found at the first call.
static REAL_DLCLOSE: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// Stands in for the C library's `dlclose`, wherever this library comes before it, as a preloaded
/// or a linked one does.
///
/// # Safety
///
/// As for the real one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlclose(handle: *mut c_void) -> c_int {
    let mut address = REAL_DLCLOSE.load(Ordering::Relaxed);
    if address.is_null() {
        // Takes the loader's lock, as `dlclose` itself does; neither is for signal handlers.
        // SAFETY: asks the loader for the next definition of a name.
        address = unsafe { libc::dlsym(libc::RTLD_NEXT, c"dlclose".as_ptr().cast::<c_char>()) };
        REAL_DLCLOSE.store(address, Ordering::Relaxed);
    }
    // SAFETY: null, or the C library's function of this name and type.
    let Some(close) = (unsafe { mem::transmute::<*mut c_void, Option<Close>>(address) }) else {
        return -1;
    };
    // SAFETY: the caller promises what the C library's function requires.
    cairn_recorder::modules::while_unloading(|| unsafe { close(handle) })
}
