//! Hooks of the loader, which follow where code is loaded over time.
//!
//! `dlopen` uses the search path and the namespace of its caller. So the hook jumps to it, and
//! leaves no frame. A module that it loads is noticed when it is first on a stack, or here, before
//! the next call of the loader: programs usually look new functions up with `dlsym`.

use core::ffi::{c_char, c_int, c_void};
use core::mem;
use core::sync::atomic::{AtomicBool, Ordering};

use crate::arch::pass_on;
use crate::next::{NEXT, Next};
use crate::{attach, python, recorder, start, system};

/// True when there may be modules that the recorder does not know.
static HAS_LOADED: AtomicBool = AtomicBool::new(false);

/// Makes the recorder scan for new modules. It takes the loader's lock, as the caller is about to
/// do.
fn note_loaded() {
    if HAS_LOADED.load(Ordering::Relaxed) && HAS_LOADED.swap(false, Ordering::AcqRel) {
        recorder::note_modules();
        python::find();
        #[cfg(target_arch = "x86_64")]
        crate::runtimes::find();
        attach::after_load();
    }
}

fn real(next: &'static Next) -> *mut c_void {
    if next.address().is_null() {
        start::begin();
    }
    if next.address().is_null() { missing as *mut c_void } else { next.address() }
}

/// Replaces a function that the C library does not have.
extern "C" fn missing() -> *mut c_void {
    system::set_errno(libc::ENOSYS);
    core::ptr::null_mut()
}

pass_on!(dlopen, before_dlopen);
extern "C" fn before_dlopen(_path: *const c_char, mode: c_int) -> *mut c_void {
    note_loaded();
    if mode & libc::RTLD_DEEPBIND != 0 {
        attach::before_deep_open();
    }
    HAS_LOADED.store(true, Ordering::Release);
    real(&NEXT.dlopen)
}

pass_on!(dlmopen, before_dlmopen);
extern "C" fn before_dlmopen() -> *mut c_void {
    note_loaded();
    HAS_LOADED.store(true, Ordering::Release);
    real(&NEXT.dlmopen)
}

pass_on!(dlsym, before_dlsym);
extern "C" fn before_dlsym() -> *mut c_void {
    note_loaded();
    real(&NEXT.dlsym)
}

pass_on!(dlvsym, before_dlvsym);
extern "C" fn before_dlvsym() -> *mut c_void {
    note_loaded();
    real(&NEXT.dlvsym)
}

/// # Safety
///
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlclose(handle: *mut c_void) -> c_int {
    note_loaded();
    // SAFETY: the next definition of the name, which has this type.
    let real: unsafe extern "C" fn(*mut c_void) -> c_int = unsafe { mem::transmute(real(&NEXT.dlclose)) };
    // SAFETY: the caller promises what the C library's function requires.
    recorder::while_unloading(|| unsafe { real(handle) })
}
