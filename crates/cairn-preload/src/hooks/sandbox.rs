//! Hooks for sandboxes and limits: a program that forbids itself system calls may be killed for one
//! of ours.
//!
//! In steady state there are none, but a new thread, a deeper stack or a full segment needs some.
//! So recording ends right before the program enters the sandbox, and the file states the reason.
//!
//! The recorder's memory counts against the program's limits, and `mlockall` fills it with pages.
//! So the recorder reduces it before either.

use core::ffi::{c_int, c_long, c_void};

use crate::arch::pass_on;
use crate::next::{NEXT, Next};
use crate::{recorder, start, system};

const PR_SET_SECCOMP: c_int = 22;
const SECCOMP_MODE_STRICT: usize = 1;
/// The two operations of `seccomp` that enter a sandbox; others query it.
const SECCOMP_SET_MODE_STRICT: usize = 0;
const SECCOMP_SET_MODE_FILTER: usize = 1;

fn real(next: &'static Next) -> *mut c_void {
    if next.address().is_null() {
        start::begin();
    }
    if next.address().is_null() { missing as *mut c_void } else { next.address() }
}

extern "C" fn missing() -> c_long {
    system::set_errno(libc::ENOSYS);
    -1
}

/// Ends recording when `prctl` with these arguments enters a sandbox.
fn note_prctl(option: c_int, mode: usize, filter: usize) {
    // Without a filter, the call only checks that the kernel supports filters.
    if option == PR_SET_SECCOMP && (mode == SECCOMP_MODE_STRICT || filter != 0) {
        recorder::end_before_sandbox();
    }
}

pass_on!(prctl, before_prctl);
extern "C" fn before_prctl(option: c_int, mode: usize, filter: usize) -> *mut c_void {
    note_prctl(option, mode, filter);
    real(&NEXT.prctl)
}

pass_on!(syscall, before_syscall);
extern "C" fn before_syscall(number: c_long, first: usize, second: usize, third: usize) -> *mut c_void {
    match number {
        libc::SYS_prctl => note_prctl(first as c_int, second, third),
        libc::SYS_seccomp if first == SECCOMP_SET_MODE_STRICT => recorder::end_before_sandbox(),
        libc::SYS_seccomp if first == SECCOMP_SET_MODE_FILTER && third != 0 => recorder::end_before_sandbox(),
        _ => {}
    }
    real(&NEXT.syscall)
}

/// Reduces the recorder's memory before the address space or data is limited. `place` holds the
/// limit.
fn note_limit(resource: c_int, place: *const c_void) {
    let is_of_room = matches!(resource as u32, libc::RLIMIT_AS | libc::RLIMIT_DATA);
    if !is_of_room || place.is_null() || recorder::forbids_system_calls() {
        return;
    }
    let errno = system::errno();
    let mut limit = [0; size_of::<libc::rlimit>()];
    // Read through the kernel: an invalid address is an error of the real function, and no crash.
    let count = cairn_capture::read_own_memory(place as u64, &mut limit);
    system::set_errno(errno);
    if count == limit.len()
        && let Some((soft, _)) = limit.split_first_chunk()
        && *soft != u64::MAX.to_ne_bytes()
    {
        recorder::limit_room(u64::from_ne_bytes(*soft));
    }
}

pass_on!(setrlimit, before_setrlimit);
extern "C" fn before_setrlimit(resource: c_int, limit: *const c_void) -> *mut c_void {
    note_limit(resource, limit);
    real(&NEXT.setrlimit)
}

pass_on!(setrlimit64, before_setrlimit64);
extern "C" fn before_setrlimit64(resource: c_int, limit: *const c_void) -> *mut c_void {
    note_limit(resource, limit);
    real(&NEXT.setrlimit64)
}

fn note_prlimit(process: c_int, resource: c_int, limit: *const c_void) {
    if process == 0 || process as u32 == system::process_id() {
        note_limit(resource, limit);
    }
}

pass_on!(prlimit, before_prlimit);
extern "C" fn before_prlimit(process: c_int, resource: c_int, limit: *const c_void) -> *mut c_void {
    note_prlimit(process, resource, limit);
    real(&NEXT.prlimit)
}

pass_on!(prlimit64, before_prlimit64);
extern "C" fn before_prlimit64(process: c_int, resource: c_int, limit: *const c_void) -> *mut c_void {
    note_prlimit(process, resource, limit);
    real(&NEXT.prlimit64)
}

pass_on!(mlockall, before_mlockall);
extern "C" fn before_mlockall(_flags: c_int) -> *mut c_void {
    /// Limit of the recorder's locked memory; 512 MiB, because about ten megabytes of it are used.
    const ROOM_BYTES: u64 = 512 << 20;
    recorder::limit_room(ROOM_BYTES.min(system::soft_limit(libc::RLIMIT_MEMLOCK)));
    real(&NEXT.mlockall)
}
