//! Sandboxes: a program that forbids itself system calls may be killed for one that we make.
//!
//! In steady state there are none, but a new thread, a deeper stack or a full block need some. So recording ends, with
//! the reason in the recording, right before the program locks itself in.

use core::ffi::{c_int, c_long, c_void};

use crate::arch::pass_on;
use crate::next::{NEXT, Next};
use crate::{recorder, start, system};

const PR_SET_SECCOMP: c_int = 22;
const SECCOMP_MODE_STRICT: usize = 1;
/// The two operations of the system call that lock in; others ask.
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

/// Ends recording when `prctl` with these arguments locks the program in.
fn note_prctl(option: c_int, mode: usize, filter: usize) {
    // Without a filter it is a question whether there is such a thing.
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
