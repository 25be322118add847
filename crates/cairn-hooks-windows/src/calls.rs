//! The functions of ntdll and kernel32 that the hooks call, declared by hand.

use core::ffi::{CStr, c_void};

/// A handle that means this process.
const THIS_PROCESS: *mut c_void = core::ptr::without_provenance_mut(usize::MAX);

/// Protections of pages.
pub(crate) const READ_WRITE: u32 = 4;
pub(crate) const EXECUTE_READ: u32 = 0x20;
pub(crate) const EXECUTE_READ_WRITE: u32 = 0x40;

#[link(name = "ntdll")]
unsafe extern "system" {
    fn NtAllocateVirtualMemory(
        process: *mut c_void,
        address: *mut *mut c_void,
        zero_bits: usize,
        bytes: *mut usize,
        kind: u32,
        protection: u32,
    ) -> i32;
    fn NtProtectVirtualMemory(
        process: *mut c_void,
        address: *mut *mut c_void,
        bytes: *mut usize,
        protection: u32,
        before: *mut u32,
    ) -> i32;
    #[cfg(all(panic = "abort", target_env = "gnu"))]
    fn NtTerminateProcess(process: *mut c_void, status: i32) -> i32;
    fn NtFlushInstructionCache(process: *mut c_void, address: *const c_void, bytes: usize) -> i32;
}

#[link(name = "kernel32")]
unsafe extern "system" {
    pub(crate) fn OpenFileMappingW(access: u32, inherits: i32, name: *const u16) -> *mut c_void;
    pub(crate) fn MapViewOfFile(
        mapping: *mut c_void,
        access: u32,
        offset_high: u32,
        offset_low: u32,
        bytes: usize,
    ) -> *mut c_void;
    pub(crate) fn UnmapViewOfFile(address: *const c_void) -> i32;
    pub(crate) fn CloseHandle(handle: *mut c_void) -> i32;
    fn GetModuleHandleW(name: *const u16) -> *mut c_void;
    fn GetProcAddress(module: *mut c_void, name: *const i8) -> *mut c_void;
    pub(crate) fn GetProcessHeap() -> *mut c_void;
    pub(crate) fn HeapLock(heap: *mut c_void) -> i32;
    pub(crate) fn HeapUnlock(heap: *mut c_void) -> i32;
    pub(crate) fn HeapWalk(heap: *mut c_void, entry: *mut HeapEntry) -> i32;
}

/// `PROCESS_HEAP_ENTRY`.
#[repr(C)]
#[derive(Default)]
pub(crate) struct HeapEntry {
    pub(crate) address: usize,
    bytes: u32,
    overhead: u8,
    region: u8,
    pub(crate) flags: u16,
    more: [u64; 3],
}

const _: () = assert!(size_of::<HeapEntry>() == 40);
const _: () = assert!(core::mem::offset_of!(HeapEntry, flags) == 14);

/// Returns a function of ntdll; null if there is none of that name.
pub(crate) fn ntdll_function(name: &CStr) -> *mut u8 {
    const NTDLL: [u16; 10] = [0x6e, 0x74, 0x64, 0x6c, 0x6c, 0x2e, 0x64, 0x6c, 0x6c, 0];
    // SAFETY: both names end with NUL; the module is part of every process.
    unsafe { GetProcAddress(GetModuleHandleW(NTDLL.as_ptr()), name.as_ptr().cast()).cast() }
}

/// Returns fresh zeroed memory that can be written; the error is the system's status.
pub(crate) fn pages(bytes: usize) -> Result<*mut u8, i32> {
    const RESERVE_AND_COMMIT: u32 = 0x3000;
    let (mut address, mut bytes) = (core::ptr::null_mut(), bytes);
    // SAFETY: the call fills the two variables, and changes no memory that is in use.
    let status = unsafe {
        NtAllocateVirtualMemory(
            THIS_PROCESS,
            &raw mut address,
            0,
            &raw mut bytes,
            RESERVE_AND_COMMIT,
            READ_WRITE,
        )
    };
    if status < 0 { Err(status) } else { Ok(address.cast()) }
}

/// Changes the protection of the pages of a range; returns that of the first one before.
///
/// # Safety
///
/// No code depends on the protection that is taken away.
pub(crate) unsafe fn protect(at: *mut u8, bytes: usize, protection: u32) -> Result<u32, i32> {
    let (mut address, mut bytes, mut before) = (at.cast(), bytes, 0);
    // SAFETY: the call fills the variables; the caller allows the change.
    let status = unsafe {
        NtProtectVirtualMemory(THIS_PROCESS, &raw mut address, &raw mut bytes, protection, &raw mut before)
    };
    if status < 0 { Err(status) } else { Ok(before) }
}

/// Makes written code visible to the processor's instruction fetch.
pub(crate) fn flush_code(at: *const u8, bytes: usize) {
    // SAFETY: the call changes no memory.
    unsafe { NtFlushInstructionCache(THIS_PROCESS, at.cast(), bytes) };
}

/// Ends the process.
#[cfg(all(panic = "abort", target_env = "gnu"))]
pub(crate) fn abort() -> ! {
    /// `STATUS_FATAL_APP_EXIT`.
    const FATAL: i32 = 0x4000_0015;
    loop {
        // SAFETY: the call ends this process, whatever state it is in.
        unsafe { NtTerminateProcess(THIS_PROCESS, FATAL) };
    }
}
