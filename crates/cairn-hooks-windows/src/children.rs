//! Puts this library into the children of the program, on request.
//!
//! `CreateProcess` and its relatives end in `CreateProcessInternalW` of kernelbase. The hook
//! creates the child suspended, loads this library as `cairn` does, and resumes the child, unless
//! the program itself requested a suspended one. A child that cannot be recorded runs as it would,
//! and is counted with the reason.

use core::ffi::c_void;
use core::sync::atomic::{AtomicPtr, Ordering};

use cairn_recorder::environment::LastErrorGuard;

use crate::calls::{
    self, CloseHandle, CreateRemoteThread, Library, ReadProcessMemory, ResumeThread, VirtualAllocEx,
    VirtualFreeEx, WaitForSingleObject, WriteProcessMemory, last_error,
};
use crate::exchange::Exchange;
use crate::hooks::real;
use crate::nesting::{is_inside, outermost};
use crate::patch::Hook;
use crate::run::{self, Unrecorded};

/// `PROCESS_INFORMATION`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Information {
    process: *mut c_void,
    thread: *mut c_void,
    process_id: u32,
    thread_id: u32,
}

const _: () = assert!(size_of::<Information>() == 24);

type Create = unsafe extern "system" fn(
    *mut c_void,
    *const u16,
    *mut u16,
    *const c_void,
    *const c_void,
    i32,
    u32,
    *const c_void,
    *const u16,
    *const c_void,
    *mut Information,
    *mut *mut c_void,
) -> i32;

static CREATE: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());
/// `LoadLibraryW`, which has one address in all processes of one processor.
static LOAD: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());

/// The hook of process creation.
pub(crate) fn all() -> [Hook; 1] {
    [Hook {
        library: Library::KernelBase,
        name: c"CreateProcessInternalW",
        target: create as *const u8,
        real: &CREATE,
    }]
}

/// Finds the function and the memory that the hook needs, before it is installed.
pub(crate) fn prepare(cairn: u32) {
    LOAD.store(calls::function(Library::Kernel32, c"LoadLibraryW"), Ordering::Release);
    run::open(cairn);
}

/// In place of `CreateProcessInternalW`.
///
/// The real call is not marked as inside a hook: its requests to the heap are events.
///
/// # Safety
///
/// As of the real function.
unsafe extern "system" fn create(
    token: *mut c_void,
    program: *const u16,
    command_line: *mut u16,
    process_attributes: *const c_void,
    thread_attributes: *const c_void,
    inherits: i32,
    flags: u32,
    environment: *const c_void,
    directory: *const u16,
    startup: *const c_void,
    information: *mut Information,
    new_token: *mut *mut c_void,
) -> i32 {
    /// `DEBUG_PROCESS` and `DEBUG_ONLY_THIS_PROCESS`.
    const DEBUGGED: u32 = 3;
    const SUSPENDED: u32 = 4;
    // SAFETY: this function runs by the jump, which is written after the trampoline; the arguments
    // but the flags are the caller's.
    let call = |flags| unsafe {
        real::<Create>(&CREATE)(
            token,
            program,
            command_line,
            process_attributes,
            thread_attributes,
            inherits,
            flags,
            environment,
            directory,
            startup,
            information,
            new_token,
        )
    };
    let Some(own) = Exchange::retained().filter(|_| !is_inside() && !information.is_null()) else {
        return call(flags);
    };
    // Events of the child wait until its parent's thread, which is here, receives them.
    if flags & DEBUGGED != 0 {
        let is_created = call(flags);
        if is_created != 0 {
            run::count(Unrecorded::Debugged);
        }
        return is_created;
    }
    let is_created = call(flags | SUSPENDED);
    if is_created == 0 {
        return is_created;
    }
    let _last_error = LastErrorGuard::new();
    // SAFETY: the real call has filled the information.
    let child = unsafe { *information };
    outermost(|| {
        // SAFETY: the handles are those of a child that has executed nothing.
        if let Err(reason) = unsafe { record(child, &own) } {
            run::count(reason);
        }
        if flags & SUSPENDED == 0 {
            // SAFETY: the handle is the child's.
            unsafe { ResumeThread(child.thread) };
        }
    });
    is_created
}

/// Loads this library into a child.
///
/// # Safety
///
/// The handles are those of a suspended process that has executed nothing.
unsafe fn record(child: Information, own: &Exchange) -> Result<(), Unrecorded<'static>> {
    // SAFETY: the caller provides the handle of a process.
    match unsafe { machine(child.process) } {
        Some(X86_64) => {}
        Some(_) => return Err(Unrecorded::Machine),
        None => return Err(Unrecorded::NotLoaded(last_error())),
    }
    let exchange = own.for_child(child.process_id).map_err(Unrecorded::NotLoaded)?;
    // SAFETY: the handle as above; the section's path ends with NUL.
    unsafe { load(child.process, own.library()) }.map_err(Unrecorded::NotLoaded)?;
    match exchange.refusal() {
        Some(Ok(())) => Ok(()),
        Some(Err(reason)) => {
            run::count(Unrecorded::Refused(reason));
            Ok(())
        }
        None => Err(Unrecorded::NotLoaded(0)),
    }
}

const X86_64: u16 = 0x8664;

/// Returns the processor of the program in a process.
///
/// # Safety
///
/// `process` is a handle of a process.
unsafe fn machine(process: *mut c_void) -> Option<u16> {
    /// Where the process' environment block has the address of the program.
    const PROGRAM: u64 = 0x10;
    let read = |address: u64, into: &mut [u8]| {
        let mut count = 0;
        // SAFETY: the variable has that many bytes.
        let is_read = unsafe {
            ReadProcessMemory(
                process,
                core::ptr::with_exposed_provenance(address as usize),
                into.as_mut_ptr().cast(),
                into.len(),
                &raw mut count,
            )
        };
        (is_read != 0 && count == into.len()).then_some(())
    };
    let mut address = [0; 8];
    read(calls::process_block(process)?.checked_add(PROGRAM)?, &mut address)?;
    let program = u64::from_le_bytes(address);
    let mut head = [0; 64];
    read(program, &mut head)?;
    let (_, offset) = head.split_last_chunk::<4>()?;
    let mut signature = [0; 6];
    read(program.checked_add(u32::from_le_bytes(*offset).into())?, &mut signature)?;
    match signature {
        [b'P', b'E', 0, 0, low, high] => Some(u16::from_le_bytes([low, high])),
        _ => None,
    }
}

/// Loads the library at a path into a process, by a thread there; the error is the system's.
///
/// # Safety
///
/// `process` is a handle of a process, and `path` ends with NUL.
unsafe fn load(process: *mut c_void, path: &[u8]) -> Result<(), u32> {
    /// Longest wait for the loader; a virus scanner may read the library first.
    const PATIENCE_MILLIS: u32 = 60_000;
    const TIMED_OUT: u32 = 258;
    const RESERVE_AND_COMMIT: u32 = 0x3000;
    const READ_WRITE: u32 = 4;
    const RELEASE: u32 = 0x8000;
    // SAFETY: the calls make new memory in the other process, and write into that.
    let place =
        unsafe { VirtualAllocEx(process, core::ptr::null_mut(), path.len(), RESERVE_AND_COMMIT, READ_WRITE) };
    if place.is_null() {
        return Err(last_error());
    }
    // SAFETY: as above; the thread calls a function that takes one argument, the path.
    let thread = unsafe {
        let is_written =
            WriteProcessMemory(process, place, path.as_ptr().cast(), path.len(), core::ptr::null_mut());
        if is_written == 0 {
            return Err(last_error());
        }
        let start = LOAD.load(Ordering::Acquire).cast_const().cast();
        CreateRemoteThread(process, core::ptr::null(), 0, start, place, 0, core::ptr::null_mut())
    };
    if thread.is_null() {
        return Err(last_error());
    }
    // SAFETY: the handle was opened above, and is closed last. A thread that is still loading reads
    // the path.
    unsafe {
        let waited = WaitForSingleObject(thread, PATIENCE_MILLIS);
        CloseHandle(thread);
        if waited != 0 {
            return Err(TIMED_OUT);
        }
        VirtualFreeEx(process, place, 0, RELEASE);
    }
    Ok(())
}
