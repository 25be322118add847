//! The functions of ntdll and kernel32 that the recorder calls, declared by hand.
//!
//! Those of ntdll are chosen because they allocate nothing and take no lock of the process.

use core::ffi::c_void;

/// A handle that means this process, and one that means this thread.
pub(crate) const THIS_PROCESS: *mut c_void = core::ptr::without_provenance_mut(usize::MAX);
pub(crate) const THIS_THREAD: *mut c_void = core::ptr::without_provenance_mut(usize::MAX - 1);

#[link(name = "ntdll")]
unsafe extern "system" {
    pub(crate) fn NtCreateFile(
        file: *mut *mut c_void,
        access: u32,
        attributes: *const ObjectAttributes,
        status: *mut IoStatus,
        allocation: *const i64,
        file_attributes: u32,
        share: u32,
        disposition: u32,
        options: u32,
        extended: *const c_void,
        extended_bytes: u32,
    ) -> i32;
    pub(crate) fn NtReadFile(
        file: *mut c_void,
        event: *mut c_void,
        routine: *const c_void,
        context: *const c_void,
        status: *mut IoStatus,
        into: *mut c_void,
        bytes: u32,
        offset: *const i64,
        key: *const u32,
    ) -> i32;
    pub(crate) fn NtWriteFile(
        file: *mut c_void,
        event: *mut c_void,
        routine: *const c_void,
        context: *const c_void,
        status: *mut IoStatus,
        from: *const c_void,
        bytes: u32,
        offset: *const i64,
        key: *const u32,
    ) -> i32;
    pub(crate) fn NtFlushBuffersFile(file: *mut c_void, status: *mut IoStatus) -> i32;
    pub(crate) fn NtSetInformationFile(
        file: *mut c_void,
        status: *mut IoStatus,
        information: *const c_void,
        bytes: u32,
        class: u32,
    ) -> i32;
    pub(crate) fn NtClose(handle: *mut c_void) -> i32;
    pub(crate) fn NtCreateSection(
        section: *mut *mut c_void,
        access: u32,
        attributes: *const ObjectAttributes,
        most_bytes: *const i64,
        protection: u32,
        kind: u32,
        file: *mut c_void,
    ) -> i32;
    pub(crate) fn NtMapViewOfSection(
        section: *mut c_void,
        process: *mut c_void,
        address: *mut *mut c_void,
        zero_bits: usize,
        commit: usize,
        offset: *mut i64,
        bytes: *mut usize,
        inherits: u32,
        kind: u32,
        protection: u32,
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
    pub(crate) fn NtFlushVirtualMemory(
        process: *mut c_void,
        address: *mut *mut c_void,
        bytes: *mut usize,
        status: *mut IoStatus,
    ) -> i32;
    pub(crate) fn NtQueryVirtualMemory(
        process: *mut c_void,
        address: *const c_void,
        class: u32,
        information: *mut c_void,
        bytes: usize,
        filled: *mut usize,
    ) -> i32;
    pub(crate) fn NtDelayExecution(alertable: u8, interval: *const i64) -> i32;
    pub(crate) fn NtQueryInformationProcess(
        process: *mut c_void,
        class: u32,
        information: *mut c_void,
        bytes: u32,
        filled: *mut u32,
    ) -> i32;
    pub(crate) fn NtQueryInformationThread(
        thread: *mut c_void,
        class: u32,
        information: *mut c_void,
        bytes: u32,
        filled: *mut u32,
    ) -> i32;
    pub(crate) fn RtlNtStatusToDosError(status: i32) -> u32;
    pub(crate) fn LdrEnumerateLoadedModules(
        reserved: u32,
        callback: unsafe extern "system" fn(*const LoaderEntry, *mut c_void, *mut u8),
        context: *mut c_void,
    ) -> i32;
    pub(crate) fn LdrRegisterDllNotification(
        flags: u32,
        callback: unsafe extern "system" fn(u32, *const DllNotification, *mut c_void),
        context: *mut c_void,
        cookie: *mut *mut c_void,
    ) -> i32;
    pub(crate) fn RtlDllShutdownInProgress() -> u8;
    pub(crate) fn LdrUnregisterDllNotification(cookie: *mut c_void) -> i32;
}

#[link(name = "kernel32")]
unsafe extern "system" {
    pub(crate) fn GetFileInformationByHandle(file: *mut c_void, information: *mut FileInformation) -> i32;
    pub(crate) fn QueryPerformanceCounter(counter: *mut i64) -> i32;
    pub(crate) fn QueryPerformanceFrequency(frequency: *mut i64) -> i32;
    pub(crate) fn GetSystemTimePreciseAsFileTime(time: *mut u64);
}

/// `OBJECT_ATTRIBUTES`.
#[repr(C)]
pub(crate) struct ObjectAttributes {
    length: u32,
    root: *mut c_void,
    name: *const UnicodeString,
    attributes: u32,
    security: *const c_void,
    quality: *const c_void,
}

impl ObjectAttributes {
    /// Describes an object of this name, whose case does not matter; null for none.
    pub(crate) const fn named(name: *const UnicodeString) -> Self {
        const CASE_INSENSITIVE: u32 = 0x40;
        Self {
            length: size_of::<Self>() as u32,
            root: core::ptr::null_mut(),
            name,
            attributes: CASE_INSENSITIVE,
            security: core::ptr::null(),
            quality: core::ptr::null(),
        }
    }
}

/// `UNICODE_STRING`: lengths are bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct UnicodeString {
    pub(crate) length: u16,
    pub(crate) room: u16,
    pub(crate) text: *const u16,
}

impl UnicodeString {
    /// Describes a text of at most 32,767 units; a longer one is cut.
    pub(crate) fn of(text: &[u16]) -> Self {
        let bytes = (text.len() * 2).min(u16::MAX as usize - 1) as u16;
        Self { length: bytes, room: bytes, text: text.as_ptr() }
    }
}

/// `IO_STATUS_BLOCK`.
#[repr(C)]
#[derive(Default)]
pub(crate) struct IoStatus {
    status: usize,
    pub(crate) bytes: usize,
}

/// `BY_HANDLE_FILE_INFORMATION`.
#[repr(C)]
#[derive(Default)]
pub(crate) struct FileInformation {
    attributes: u32,
    times: [u32; 6],
    pub(crate) volume: u32,
    pub(crate) bytes_high: u32,
    pub(crate) bytes_low: u32,
    links: u32,
    pub(crate) index_high: u32,
    pub(crate) index_low: u32,
}

/// `LDR_DATA_TABLE_ENTRY`, as far as it is read.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct LoaderEntry {
    /// In the order of loading.
    pub(crate) next: u64,
    lists: [u64; 5],
    pub(crate) base: u64,
    entry_point: u64,
    pub(crate) bytes: u32,
    pub(crate) path: UnicodeString,
}

const _: () = assert!(core::mem::offset_of!(LoaderEntry, base) == 0x30);
const _: () = assert!(core::mem::offset_of!(LoaderEntry, path) == 0x48);

/// `LDR_DLL_NOTIFICATION_DATA`, equal for loads and unloads.
#[repr(C)]
pub(crate) struct DllNotification {
    flags: u32,
    path: *const UnicodeString,
    name: *const UnicodeString,
    pub(crate) base: u64,
    pub(crate) bytes: u32,
}
