//! libunwind's `unw_backtrace`, loaded at run time so that a machine without it can still run the
//! rest.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::{FRAMES, MAX_FRAMES};

static UNW_BACKTRACE: AtomicUsize = AtomicUsize::new(0);

pub(crate) fn prepare() -> Result<(), String> {
    if UNW_BACKTRACE.load(Ordering::Relaxed) != 0 {
        return Ok(());
    }
    // SAFETY: loads a system library, whose symbols stay private.
    let library = unsafe { libc::dlopen(c"libunwind.so.8".as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if library.is_null() {
        return Err("libunwind.so.8 is not installed (Debian: libunwind8)".to_owned());
    }
    // SAFETY: a handle from dlopen, and a name.
    let function = unsafe { libc::dlsym(library, c"unw_backtrace".as_ptr()) };
    if function.is_null() {
        return Err("libunwind.so.8 has no unw_backtrace".to_owned());
    }
    UNW_BACKTRACE.store(function as usize, Ordering::Relaxed);
    Ok(())
}

pub(crate) extern "C" fn capture() -> u64 {
    let function = UNW_BACKTRACE.load(Ordering::Relaxed) as *const ();
    // SAFETY: `prepare` found it, and this is its type.
    let unw_backtrace: extern "C" fn(*mut *mut c_void, c_int) -> c_int =
        unsafe { std::mem::transmute(function) };
    unw_backtrace(FRAMES.as_mut_ptr().cast(), MAX_FRAMES as c_int) as u64
}
