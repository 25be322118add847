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
    fn NtQueryInformationProcess(
        process: *mut c_void,
        class: u32,
        information: *mut c_void,
        bytes: u32,
        filled: *mut u32,
    ) -> i32;
    fn NtQueryVirtualMemory(
        process: *mut c_void,
        address: *const c_void,
        class: u32,
        information: *mut c_void,
        bytes: usize,
        filled: *mut usize,
    ) -> i32;
    fn NtReadVirtualMemory(
        process: *mut c_void,
        address: *const c_void,
        into: *mut c_void,
        bytes: usize,
        read: *mut usize,
    ) -> i32;
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
    pub(crate) fn CreateFileMappingW(
        file: *mut c_void,
        security: *const c_void,
        protection: u32,
        bytes_high: u32,
        bytes_low: u32,
        name: *const u16,
    ) -> *mut c_void;
    pub(crate) fn UnmapViewOfFile(address: *const c_void) -> i32;
    pub(crate) fn CloseHandle(handle: *mut c_void) -> i32;
    fn GetLastError() -> u32;
    fn GetModuleFileNameW(module: *mut c_void, name: *mut u16, units: u32) -> u32;
    pub(crate) fn VirtualAllocEx(
        process: *mut c_void,
        address: *mut c_void,
        bytes: usize,
        kind: u32,
        protection: u32,
    ) -> *mut c_void;
    pub(crate) fn VirtualFreeEx(process: *mut c_void, address: *mut c_void, bytes: usize, kind: u32) -> i32;
    pub(crate) fn ReadProcessMemory(
        process: *mut c_void,
        address: *const c_void,
        into: *mut c_void,
        bytes: usize,
        read: *mut usize,
    ) -> i32;
    pub(crate) fn WriteProcessMemory(
        process: *mut c_void,
        address: *mut c_void,
        from: *const c_void,
        bytes: usize,
        written: *mut usize,
    ) -> i32;
    pub(crate) fn CreateRemoteThread(
        process: *mut c_void,
        security: *const c_void,
        stack_bytes: usize,
        start: *const c_void,
        argument: *mut c_void,
        flags: u32,
        id: *mut u32,
    ) -> *mut c_void;
    pub(crate) fn ResumeThread(thread: *mut c_void) -> u32;
    pub(crate) fn WaitForSingleObject(handle: *mut c_void, millis: u32) -> u32;
    fn GetModuleHandleA(name: *const i8) -> *mut c_void;
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

/// Returns the error of the last call of this thread.
pub(crate) fn last_error() -> u32 {
    // SAFETY: the call reads a word of the thread.
    unsafe { GetLastError() }
}

/// Writes the path of the program; returns the part that was written.
pub(crate) fn program_path(into: &mut [u16]) -> &[u16] {
    let room = into.len().try_into().unwrap_or(u32::MAX);
    // SAFETY: the room has that many units.
    let units = unsafe { GetModuleFileNameW(core::ptr::null_mut(), into.as_mut_ptr(), room) };
    into.get(..units as usize).unwrap_or_default()
}

/// `MEMORY_BASIC_INFORMATION`.
#[repr(C)]
#[derive(Default)]
pub(crate) struct MemoryInformation {
    pub(crate) base: u64,
    /// First address of the allocation or view.
    pub(crate) allocation: u64,
    first_protection: u32,
    partition: u32,
    /// Bytes from `base` that have one state.
    pub(crate) bytes: u64,
    state: u32,
    protection: u32,
    /// Private, a view, or the view of an image.
    pub(crate) kind: u32,
    padding: u32,
}

const _: () = assert!(size_of::<MemoryInformation>() == 48);

/// Returns the state of the memory at an address.
pub(crate) fn memory_at(address: u64) -> Option<MemoryInformation> {
    /// `MemoryBasicInformation`.
    const BASIC: u32 = 0;
    let mut information = MemoryInformation::default();
    let place = core::ptr::without_provenance(address as usize);
    // SAFETY: the variable has room for that information; the address may be any.
    let status = unsafe {
        NtQueryVirtualMemory(
            THIS_PROCESS,
            place,
            BASIC,
            (&raw mut information).cast(),
            size_of::<MemoryInformation>(),
            core::ptr::null_mut(),
        )
    };
    (status >= 0).then_some(information)
}

/// Reads a word of this process; `None` if it cannot be read.
pub(crate) fn word_at(address: usize) -> Option<u64> {
    let (mut word, mut count) = (0_u64, 0);
    let place = core::ptr::with_exposed_provenance(address);
    // SAFETY: the variables have room for a word and its size; the address may be any.
    let status = unsafe {
        NtReadVirtualMemory(THIS_PROCESS, place, (&raw mut word).cast(), size_of::<u64>(), &raw mut count)
    };
    (status >= 0 && count == size_of::<u64>()).then_some(word)
}

/// Returns the addresses of a loaded module.
///
/// # Safety
///
/// `module` is loaded.
pub(crate) unsafe fn image_range(module: *mut c_void) -> core::ops::Range<u64> {
    /// Where the header's offset is, and where the header has the size of the image.
    const OFFSET: usize = 0x3c;
    const IMAGE_BYTES: usize = 0x50;
    let base = module.cast_const().cast::<u8>();
    // SAFETY: a loaded module begins with these headers.
    let bytes = unsafe {
        let header = base.add(OFFSET).cast::<u32>().read_unaligned() as usize;
        base.add(header + IMAGE_BYTES).cast::<u32>().read_unaligned()
    };
    let start = base.expose_provenance() as u64;
    start..start + u64::from(bytes)
}

/// Returns true if a handle means this process.
pub(crate) fn is_this_process(handle: usize) -> bool {
    handle == THIS_PROCESS.addr()
        || basic_information(core::ptr::with_exposed_provenance_mut(handle))
            .is_some_and(|words| words[4] == u64::from(cairn_recorder::environment::process_id()))
}

/// Returns the address of another process' environment block.
pub(crate) fn process_block(process: *mut c_void) -> Option<u64> {
    basic_information(process).map(|words| words[1]).filter(|&address| address != 0)
}

/// Reads `PROCESS_BASIC_INFORMATION`.
///
/// Its second word is the address of the environment block, its fifth one the process id.
fn basic_information(process: *mut c_void) -> Option<[u64; 6]> {
    /// `ProcessBasicInformation`.
    const BASIC: u32 = 0;
    let mut words = [0_u64; 6];
    let bytes = size_of_val(&words) as u32;
    // SAFETY: the variable has room for that information.
    let status = unsafe {
        NtQueryInformationProcess(process, BASIC, words.as_mut_ptr().cast(), bytes, core::ptr::null_mut())
    };
    (status >= 0).then_some(words)
}

/// Libraries of the system that are in every process.
#[derive(Clone, Copy)]
pub(crate) enum Library {
    Ntdll,
    Kernel32,
    KernelBase,
}

impl Library {
    /// Returns its name, as the loader and messages have it.
    pub(crate) const fn name(self) -> &'static CStr {
        match self {
            Self::Ntdll => c"ntdll",
            Self::Kernel32 => c"kernel32",
            Self::KernelBase => c"kernelbase",
        }
    }
}

/// Returns the address where a library is loaded; null if it is not.
pub(crate) fn module(library: Library) -> *mut c_void {
    // SAFETY: the name ends with NUL.
    unsafe { GetModuleHandleA(library.name().as_ptr().cast()) }
}

/// Returns a function of a library; null if there is none of that name.
pub(crate) fn function(library: Library, name: &CStr) -> *mut u8 {
    // SAFETY: the name ends with NUL; the module is part of every process.
    unsafe { GetProcAddress(module(library), name.as_ptr().cast()).cast() }
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
