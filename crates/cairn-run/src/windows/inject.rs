//! Loads the library into a suspended process, by a thread that calls `LoadLibraryW` there.
//!
//! `kernel32` is at the same address in all processes of one processor, until the next start of the
//! system.

use std::ffi::c_void;
use std::io;
use std::path::Path;
use std::ptr;

use super::calls::{
    CloseHandle, CreateRemoteThread, GetExitCodeThread, GetModuleHandleW, GetProcAddress, VirtualAllocEx,
    VirtualFreeEx, WaitForSingleObject, WriteProcessMemory, wide,
};

/// Longest wait for the loader; a virus scanner may read the library first.
const PATIENCE_MILLIS: u32 = 60_000;

/// Loads the library at `path`. Returns false if the process cannot load it.
pub(super) fn load(process: *mut c_void, path: &Path) -> io::Result<bool> {
    const RESERVE_AND_COMMIT: u32 = 0x3000;
    const READ_WRITE: u32 = 4;
    const RELEASE: u32 = 0x8000;
    let path = wide(path.as_os_str());
    let bytes = size_of_val(&*path);
    // SAFETY: the call makes new memory in the other process.
    let place = unsafe { VirtualAllocEx(process, ptr::null_mut(), bytes, RESERVE_AND_COMMIT, READ_WRITE) };
    if place.is_null() {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the memory was made above for that many bytes, which `path` has.
    let is_written =
        unsafe { WriteProcessMemory(process, place, path.as_ptr().cast(), bytes, ptr::null_mut()) } != 0;
    let loaded =
        if is_written { call(process, load_function()?, place) } else { Err(io::Error::last_os_error()) };
    // A thread that is still loading reads the path.
    if loaded.is_ok() {
        // SAFETY: made above; the thread has ended.
        unsafe { VirtualFreeEx(process, place, 0, RELEASE) };
    }
    loaded.map(|result| result != 0)
}

/// Returns the address of `LoadLibraryW`.
fn load_function() -> io::Result<*const c_void> {
    let name = wide("kernel32.dll".as_ref());
    // SAFETY: both names end with NUL; the module is part of every process.
    let function =
        unsafe { GetProcAddress(GetModuleHandleW(name.as_ptr()), c"LoadLibraryW".as_ptr().cast()) };
    if function.is_null() { Err(io::Error::last_os_error()) } else { Ok(function) }
}

/// Calls a function in the process; returns the lower half of its result.
fn call(process: *mut c_void, function: *const c_void, argument: *mut c_void) -> io::Result<u32> {
    // SAFETY: the function takes one argument, which is memory of the process.
    let thread =
        unsafe { CreateRemoteThread(process, ptr::null(), 0, function, argument, 0, ptr::null_mut()) };
    if thread.is_null() {
        return Err(io::Error::last_os_error());
    }
    let mut result = 0;
    // SAFETY: the handle was opened above, and is closed last.
    let outcome = unsafe {
        let outcome = match WaitForSingleObject(thread, PATIENCE_MILLIS) {
            0 if GetExitCodeThread(thread, &raw mut result) != 0 => Ok(result),
            0 => Err(io::Error::last_os_error()),
            _ => Err(io::ErrorKind::TimedOut.into()),
        };
        CloseHandle(thread);
        outcome
    };
    outcome
}
