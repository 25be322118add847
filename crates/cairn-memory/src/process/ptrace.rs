//! The kernel's calls for stopping a thread of another process and reading it: the only unsafe code of this room.
//!
//! Why not a crate of safe wrappers: those that exist know the signals 1 to 31 only. A real-time signal that arrives at
//! the moment when a thread is stopped must be handed on when it is released, or the watched program loses it.
//!
//! A tracer is a thread, not a process: every function here but [`read_memory`] works only in the thread that seized.
#![allow(unsafe_code, reason = "system calls; see above")]

use std::ffi::{c_int, c_long, c_uint, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::ptr;

/// The general registers.
pub(super) const GENERAL_REGISTERS: c_int = libc::NT_PRSTATUS;
/// AArch64: which bits of a pointer hold a signature, for data and for code.
#[cfg(target_arch = "aarch64")]
pub(super) const SIGNATURE_MASKS: c_int = 0x406;

/// The event of a stop that the tracer asked for, or that stops the whole process; not of the delivery of a signal.
const EVENT_STOP: c_int = 128;

/// Begins to trace a thread, which goes on running.
pub(super) fn seize(thread: i32) -> io::Result<()> {
    request(libc::PTRACE_SEIZE, thread, 0, ptr::null_mut())
}

/// Asks a traced thread to stop; [`stop_of`] tells when it has.
pub(super) fn interrupt(thread: i32) -> io::Result<()> {
    request(libc::PTRACE_INTERRUPT, thread, 0, ptr::null_mut())
}

/// Lets a stopped thread go on, with the signal that it was about to get; 0 is none.
pub(super) fn detach(thread: i32, signal: c_int) -> io::Result<()> {
    let signal = ptr::without_provenance_mut(signal as usize);
    request(libc::PTRACE_DETACH, thread, 0, signal)
}

/// Reads a set of registers of a stopped thread; returns how many bytes it has.
pub(super) fn register_set(thread: i32, set: c_int, into: &mut [u8]) -> io::Result<usize> {
    let mut vector = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    // The kernel writes no more than the vector's length, and then says how much it wrote.
    request(libc::PTRACE_GETREGSET, thread, set as usize, (&raw mut vector).cast())?;
    Ok(vector.iov_len)
}

/// System calls that wait and that the kernel ends with `EINTR` when their thread was stopped, though no signal came, and that have done
/// nothing then: called again, they wait again.
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

/// Has a stopped thread, that no signal is on its way to, wait again where only the stop has ended its wait. The kernel is told what it
/// tells itself of other calls that wait: call it again, or, if a handler of a signal runs first, answer with `EINTR`. Time that is left to
/// such a wait begins anew.
///
/// `registers` are the thread's, as [`register_set`] has filled them.
#[cfg(target_arch = "x86_64")]
pub(super) fn keep_waiting(thread: i32, registers: &mut [u8]) -> io::Result<()> {
    /// Of the kernel's own numbers, which programs never see.
    const ERESTARTNOHAND: c_long = 514;
    /// `rax` and `orig_rax`, in words.
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
    request(libc::PTRACE_SETREGSET, thread, GENERAL_REGISTERS as usize, (&raw mut vector).cast())
}

/// The kernel asks for the first argument again, which no tracer can see.
#[cfg(not(target_arch = "x86_64"))]
pub(super) fn keep_waiting(_thread: i32, _registers: &mut [u8]) -> io::Result<()> {
    Ok(())
}

fn request(what: c_uint, thread: i32, address: usize, data: *mut c_void) -> io::Result<()> {
    let address: *mut c_void = ptr::without_provenance_mut(address);
    // SAFETY: the requests of this file write at most into the vector that `data` points to, which lives in the caller
    // and describes memory that the caller owns.
    let status = unsafe { libc::ptrace(what, thread, address, data) };
    if status == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// How a thread stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Stop {
    /// The signal that was about to be delivered, to be handed on; 0 when it stopped for another reason.
    pub(super) signal: c_int,
}

/// Whether a traced thread has stopped, without waiting.
///
/// The end of a thread is not asked for: taking that notice could take it from the program's own parent.
pub(super) fn stop_of(thread: i32) -> io::Result<Option<Stop>> {
    let mut information = MaybeUninit::<libc::siginfo_t>::zeroed();
    let options = libc::WSTOPPED | libc::WNOHANG | libc::__WALL;
    // SAFETY: the call writes one `siginfo_t`, for which zeros are a value too.
    let status =
        unsafe { libc::waitid(libc::P_PID, thread as libc::id_t, information.as_mut_ptr(), options) };
    if status != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: zeroed, and filled by the call if there was anything to tell.
    let information = unsafe { information.assume_init() };
    // SAFETY: after `waitid` the fields for a child are those that count; zeros when nothing has happened.
    let (child, status) = unsafe { (information.si_pid(), information.si_status()) };
    if child == 0 {
        return Ok(None);
    }
    let signal = if status >> 8 == EVENT_STOP { 0 } else { status & 0xff };
    Ok(Some(Stop { signal }))
}

/// Reads pieces of `piece_bytes` each at `starts` in another process, one behind the other into `into`. Returns how many
/// bytes could be read; the first piece that cannot be ends the read.
///
/// # Errors
///
/// When not even the first piece could be read.
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
    // SAFETY: the kernel writes no more than `into` has room for; the remote addresses are its to check.
    let read = unsafe {
        libc::process_vm_readv(process, &raw const local, 1, remote.as_ptr(), remote.len() as _, 0)
    };
    usize::try_from(read).map_err(|_| io::Error::last_os_error())
}

const _: () = assert!(size_of::<c_long>() == 8, "what lies here is written for 64-bit Linux");
