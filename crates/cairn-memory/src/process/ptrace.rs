//! The system calls that stop a thread of another process and read it.
//!
//! With `mapped_file.rs`, the only unsafe code of this crate. Existing crates of safe
//! wrappers support only the signals 1 to 31, but a real-time signal that arrives while a thread is
//! stopped must be passed on at detach, or the watched program loses it.
//!
//! The tracer is a thread, not a process: every function here but [`read_memory`] works only on the
//! thread that seized.
#![allow(unsafe_code, reason = "raw system calls; see above")]

use std::ffi::{c_int, c_long, c_uint, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::ptr;

/// The register set of the general registers.
pub(super) const GENERAL_REGISTERS: c_int = libc::NT_PRSTATUS;
/// AArch64: the register set with the bits of a pointer that hold a signature, for data and for
/// code.
#[cfg(target_arch = "aarch64")]
pub(super) const SIGNATURE_MASKS: c_int = 0x406;

/// The event of a stop by the tracer or of the whole process, as opposed to a signal's delivery.
const EVENT_STOP: c_int = 128;

/// Starts tracing a thread, which continues to run.
pub(super) fn seize(thread: i32) -> io::Result<()> {
    // SAFETY: `PTRACE_SEIZE` takes its data as flags, not as a pointer; no flag is set.
    unsafe { request(libc::PTRACE_SEIZE, thread, 0, ptr::null_mut()) }
}

/// Requests a traced thread to stop; [`stop_of`] reports when it has.
pub(super) fn interrupt(thread: i32) -> io::Result<()> {
    // SAFETY: `PTRACE_INTERRUPT` ignores its data.
    unsafe { request(libc::PTRACE_INTERRUPT, thread, 0, ptr::null_mut()) }
}

/// Resumes a stopped thread and delivers the signal that was pending; 0 is none.
pub(super) fn detach(thread: i32, signal: c_int) -> io::Result<()> {
    let signal = ptr::without_provenance_mut(signal as usize);
    // SAFETY: `PTRACE_DETACH` takes its data as a signal number, not as a pointer.
    unsafe { request(libc::PTRACE_DETACH, thread, 0, signal) }
}

/// Reads a register set of a stopped thread; returns its size in bytes.
pub(super) fn register_set(thread: i32, set: c_int, into: &mut [u8]) -> io::Result<usize> {
    let mut vector = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    // SAFETY: the data of `PTRACE_GETREGSET` is an `iovec`, which `vector` is. It describes `into`,
    // which this function borrows mutably: the kernel writes at most its length, and stores how
    // much it wrote.
    unsafe { request(libc::PTRACE_GETREGSET, thread, set as usize, (&raw mut vector).cast()) }?;
    Ok(vector.iov_len)
}

/// Blocking system calls that fail with `EINTR` when their thread was stopped, even without a
/// signal. They had no effect by then, so calling them again continues the wait.
#[cfg(target_arch = "x86_64")]
const WAITS: [c_long; 18] = [
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_io_getevents,
    libc::SYS_io_uring_enter,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_recvmmsg,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_write,
];

/// Restarts a blocking system call that only the stop interrupted.
///
/// The thread must be stopped and without a pending signal.
///
/// Sets the code with which the kernel restarts its other blocking calls: call again, or return
/// `EINTR` if a signal handler runs first. The timeout of such a call starts again.
///
/// `registers` are the thread's, as filled by [`register_set`].
#[cfg(target_arch = "x86_64")]
pub(super) fn restart_wait(thread: i32, registers: &mut [u8]) -> io::Result<()> {
    /// A kernel-internal error number, which programs never see.
    const ERESTARTNOHAND: c_long = 514;
    /// Word indices of `rax` and `orig_rax`.
    const RESULT: usize = 10;
    const CALL: usize = 15;

    let (words, _) = registers.as_chunks_mut::<8>();
    let word = |words: &[[u8; 8]], index: usize| words.get(index).copied().map(c_long::from_le_bytes);
    let waited = word(words, CALL).is_some_and(|call| WAITS.contains(&call));
    if !waited || word(words, RESULT) != Some(-c_long::from(libc::EINTR)) {
        return Ok(());
    }
    if let Some(result) = words.get_mut(RESULT) {
        *result = (-ERESTARTNOHAND).to_le_bytes();
    }
    let mut vector = libc::iovec { iov_base: registers.as_mut_ptr().cast(), iov_len: registers.len() };
    // SAFETY: the data of `PTRACE_SETREGSET` is an `iovec`, which `vector` is. It describes
    // `registers`, which this function borrows: the kernel reads at most their length.
    unsafe { request(libc::PTRACE_SETREGSET, thread, GENERAL_REGISTERS as usize, (&raw mut vector).cast()) }
}

/// Does nothing: the kernel reads the first argument again, which a tracer cannot see.
#[cfg(not(target_arch = "x86_64"))]
pub(super) fn restart_wait(_thread: i32, _registers: &mut [u8]) -> io::Result<()> {
    Ok(())
}

/// Calls `ptrace`.
///
/// # Safety
///
/// - `data` is what request `what` expects: a number, or a pointer that is valid for the duration
///   of the call to everything that the kernel reads or writes through it.
/// - `what` does not change the memory of this process in any other way (no `PTRACE_TRACEME`).
unsafe fn request(what: c_uint, thread: i32, address: usize, data: *mut c_void) -> io::Result<()> {
    let address: *mut c_void = ptr::without_provenance_mut(address);
    // SAFETY: the caller guarantees that `data` fits `what`; the kernel checks `thread` and
    // `address`.
    let status = unsafe { libc::ptrace(what, thread, address, data) };
    if status == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A stop of a thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Stop {
    /// The signal that was about to be delivered, to be passed on; 0 for other stops.
    pub(super) signal: c_int,
}

/// Checks without blocking whether a traced thread has stopped.
///
/// Does not wait for the end of a thread: that could take the notice away from the program's
/// parent.
pub(super) fn stop_of(thread: i32) -> io::Result<Option<Stop>> {
    let mut information = MaybeUninit::<libc::siginfo_t>::zeroed();
    let options = libc::WSTOPPED | libc::WNOHANG | libc::__WALL;
    // SAFETY: the pointer is to a local `siginfo_t`, the only memory that `waitid` writes.
    let status =
        unsafe { libc::waitid(libc::P_PID, thread as libc::id_t, information.as_mut_ptr(), options) };
    if status != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `siginfo_t` consists of integers and unions of them, for which the zeros from
    // `zeroed` are valid; `waitid` has overwritten them or left them.
    let information = unsafe { information.assume_init() };
    // SAFETY: every byte is initialized, as above, so each union field is readable; `waitid` fills
    // those of a child, or leaves zeros.
    let (child, status) = unsafe { (information.si_pid(), information.si_status()) };
    if child == 0 {
        return Ok(None);
    }
    let signal = if status >> 8 == EVENT_STOP { 0 } else { status & 0xff };
    Ok(Some(Stop { signal }))
}

/// Reads ranges of `piece_bytes` each at `starts` in another process, concatenated into `into`.
///
/// Returns the number of bytes; the first unreadable range ends the read.
///
/// # Errors
///
/// If the first range is unreadable.
pub(super) fn read_memory(
    process: i32,
    starts: &[u64],
    piece_bytes: usize,
    into: &mut [u8],
) -> io::Result<usize> {
    let remote: Vec<libc::iovec> = starts
        .iter()
        .map(|&start| libc::iovec {
            iov_base: ptr::without_provenance_mut(start as usize),
            iov_len: piece_bytes,
        })
        .collect();
    let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    // SAFETY: `local` describes `into`, which this function borrows mutably, so the kernel writes
    // only there. `remote` is a live vector of `remote.len()` entries; the kernel checks the
    // addresses in them, which belong to the other process.
    let read = unsafe {
        libc::process_vm_readv(process, &raw const local, 1, remote.as_ptr(), remote.len() as _, 0)
    };
    usize::try_from(read).map_err(|_| io::Error::last_os_error())
}

const _: () = assert!(size_of::<c_long>() == 8, "this file supports 64-bit Linux only");
