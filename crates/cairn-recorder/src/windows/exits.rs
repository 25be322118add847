//! Notices the ends of threads and of the process.
//!
//! The loader calls the functions in a section of the program or library: those of C++ destructors
//! and of Rust's thread-local values as well. This one is in a later part of the section, and so
//! runs after them.

use core::ffi::c_void;

use super::calls::RtlDllShutdownInProgress;

const PROCESS_DETACH: u32 = 0;
const THREAD_DETACH: u32 = 3;

/// Called by the loader.
///
/// # Safety
///
/// None is necessary: a type of the loader.
unsafe extern "system" fn on_end(_module: *mut c_void, reason: u32, is_exit: *mut c_void) {
    // Wine passes null at the end of the process as well.
    // SAFETY: the function reads a variable of the loader.
    let is_exit = !is_exit.is_null() || unsafe { RtlDllShutdownInProgress() } != 0;
    match reason {
        PROCESS_DETACH if is_exit => crate::ending::exiting(),
        // The library that contains this is unloaded, and the process continues.
        PROCESS_DETACH => crate::notifications::stop(),
        THREAD_DETACH => crate::lanes::thread_ended(),
        _ => {}
    }
}

/// The entry. No function is registered, because that could fail and would allocate.
#[used]
#[unsafe(link_section = ".CRT$XLY")]
static AT_ENDS: unsafe extern "system" fn(*mut c_void, u32, *mut c_void) = on_end;
