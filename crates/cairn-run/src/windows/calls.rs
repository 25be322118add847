//! The functions of Windows that this crate calls, declared by hand.

use std::ffi::c_void;

#[link(name = "ntdll")]
unsafe extern "system" {
    pub(super) fn NtResumeProcess(process: *mut c_void) -> i32;
}

#[link(name = "kernel32")]
unsafe extern "system" {
    pub(super) fn IsWow64Process(process: *mut c_void, is_32_bit: *mut i32) -> i32;
    pub(super) fn OpenProcess(access: u32, inherits: i32, process: u32) -> *mut c_void;
    pub(super) fn VirtualAllocEx(
        process: *mut c_void,
        address: *mut c_void,
        bytes: usize,
        kind: u32,
        protection: u32,
    ) -> *mut c_void;
    pub(super) fn VirtualFreeEx(process: *mut c_void, address: *mut c_void, bytes: usize, kind: u32) -> i32;
    pub(super) fn WriteProcessMemory(
        process: *mut c_void,
        address: *mut c_void,
        from: *const c_void,
        bytes: usize,
        written: *mut usize,
    ) -> i32;
    pub(super) fn CreateRemoteThread(
        process: *mut c_void,
        security: *const c_void,
        stack_bytes: usize,
        start: *const c_void,
        argument: *mut c_void,
        flags: u32,
        id: *mut u32,
    ) -> *mut c_void;
    pub(super) fn WaitForSingleObject(handle: *mut c_void, millis: u32) -> u32;
    pub(super) fn GetExitCodeThread(thread: *mut c_void, code: *mut u32) -> i32;
    pub(super) fn CloseHandle(handle: *mut c_void) -> i32;
    pub(super) fn GetModuleHandleW(name: *const u16) -> *mut c_void;
    pub(super) fn GetProcAddress(module: *mut c_void, name: *const i8) -> *const c_void;
    pub(super) fn CreateFileMappingW(
        file: *mut c_void,
        security: *const c_void,
        protection: u32,
        bytes_high: u32,
        bytes_low: u32,
        name: *const u16,
    ) -> *mut c_void;
    pub(super) fn MapViewOfFile(
        mapping: *mut c_void,
        access: u32,
        offset_high: u32,
        offset_low: u32,
        bytes: usize,
    ) -> *mut c_void;
    pub(super) fn UnmapViewOfFile(address: *const c_void) -> i32;
    pub(super) fn SetConsoleCtrlHandler(
        handler: Option<unsafe extern "system" fn(u32) -> i32>,
        adds: i32,
    ) -> i32;
}

/// Returns a text as UTF-16 with a NUL at its end.
pub(super) fn wide(text: &std::ffi::OsStr) -> Vec<u16> {
    use std::os::windows::ffi::OsStrExt;
    text.encode_wide().chain([0]).collect()
}
