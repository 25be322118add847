//! The functions of ntdll and kernel32 that captures call, declared by hand.

use core::ffi::c_void;
use core::mem::MaybeUninit;

/// A handle that means this process.
pub(crate) const THIS_PROCESS: *mut c_void = core::ptr::without_provenance_mut(usize::MAX);

#[link(name = "ntdll")]
unsafe extern "system" {
    pub(crate) fn NtReadVirtualMemory(
        process: *mut c_void,
        address: *const c_void,
        into: *mut c_void,
        bytes: usize,
        read: *mut usize,
    ) -> i32;
    pub(crate) fn NtAllocateVirtualMemory(
        process: *mut c_void,
        address: *mut *mut c_void,
        zero_bits: usize,
        bytes: *mut usize,
        kind: u32,
        protection: u32,
    ) -> i32;
    pub(crate) fn NtFreeVirtualMemory(
        process: *mut c_void,
        address: *mut *mut c_void,
        bytes: *mut usize,
        kind: u32,
    ) -> i32;
    fn NtQueryVirtualMemory(
        process: *mut c_void,
        address: *const c_void,
        class: u32,
        information: *mut c_void,
        bytes: usize,
        filled: *mut usize,
    ) -> i32;
    fn NtOpenThread(
        thread: *mut *mut c_void,
        access: u32,
        attributes: *const ObjectAttributes,
        id: *const ClientId,
    ) -> i32;
    pub(crate) fn NtWaitForSingleObject(handle: *mut c_void, alertable: u8, timeout: *const i64) -> i32;
    pub(crate) fn NtClose(handle: *mut c_void) -> i32;
}

#[link(name = "kernel32")]
unsafe extern "system" {
    pub(crate) fn GetStdHandle(number: u32) -> *mut c_void;
    pub(crate) fn WriteFile(
        file: *mut c_void,
        bytes: *const u8,
        length: u32,
        written: *mut u32,
        overlapped: *mut c_void,
    ) -> i32;
    pub(crate) fn TlsAlloc() -> u32;
    pub(crate) fn TlsFree(index: u32) -> i32;
}

#[repr(C)]
struct ObjectAttributes {
    length: u32,
    root: *mut c_void,
    name: *mut c_void,
    attributes: u32,
    security: *mut c_void,
    quality: *mut c_void,
}

#[repr(C)]
struct ClientId {
    process: usize,
    thread: usize,
}

/// Opens a thread of this process to wait for it. The status is negative on failure.
pub(crate) fn open_thread(process: u32, thread: u32, handle: &mut *mut c_void) -> i32 {
    const SYNCHRONIZE: u32 = 0x10_0000;
    let none = core::ptr::null_mut();
    let attributes = ObjectAttributes {
        length: size_of::<ObjectAttributes>() as u32,
        root: none,
        name: none,
        attributes: 0,
        security: none,
        quality: none,
    };
    let id = ClientId { process: process as usize, thread: thread as usize };
    // SAFETY: all pointers lead to structures that live until the call returns.
    unsafe { NtOpenThread(handle, SYNCHRONIZE, &raw const attributes, &raw const id) }
}

/// `MEMORY_BASIC_INFORMATION`: a range of pages of equal state.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct PageRange {
    pub(crate) start: u64,
    /// Where the mapping begins that the range is a part of: a module's headers.
    pub(crate) allocation: u64,
    allocation_protection: u32,
    partition: u16,
    pub(crate) bytes: u64,
    state: u32,
    protection: u32,
    kind: u32,
}

const _: () = assert!(size_of::<PageRange>() == 48);

impl PageRange {
    /// The range that contains `address`. `None` for addresses that programs cannot have.
    pub(crate) fn around(address: u64) -> Option<Self> {
        const BASIC: u32 = 0;
        let mut found = MaybeUninit::<Self>::zeroed();
        // SAFETY: the call accepts any address, and fills at most the structure.
        let status = unsafe {
            NtQueryVirtualMemory(
                THIS_PROCESS,
                address as *const c_void,
                BASIC,
                found.as_mut_ptr().cast(),
                size_of::<Self>(),
                core::ptr::null_mut(),
            )
        };
        // SAFETY: zeros are a value of the structure, as is what the call has written.
        (status >= 0).then(|| unsafe { found.assume_init() })
    }

    fn is_committed(&self) -> bool {
        const COMMITTED: u32 = 0x1000;
        self.state == COMMITTED
    }

    /// True for the memory of a loaded module.
    pub(crate) fn is_image(&self) -> bool {
        const IMAGE: u32 = 0x100_0000;
        self.is_committed() && self.kind == IMAGE
    }

    /// True for memory that may be read, and is no guard page.
    pub(crate) fn is_readable(&self) -> bool {
        const NO_ACCESS: u32 = 0x01;
        const EXECUTE_ONLY: u32 = 0x10;
        const GUARD: u32 = 0x100;
        let is_refused = matches!(self.protection & 0xff, 0 | NO_ACCESS | EXECUTE_ONLY);
        self.is_committed() && !is_refused && self.protection & GUARD == 0
    }

    /// True for memory that holds code.
    pub(crate) fn is_executable(&self) -> bool {
        const ANY_EXECUTE: u32 = 0xf0;
        self.is_committed() && self.protection & ANY_EXECUTE != 0
    }

    pub(crate) fn end(&self) -> u64 {
        self.start.wrapping_add(self.bytes)
    }
}
