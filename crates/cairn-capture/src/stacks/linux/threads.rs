//! The numbers of threads, and which of them have ended.

use crate::stacks::own_memory;

/// Thread number in the place of an owner's where there is no owner.
pub(crate) const NO_OWNER: i32 = 0;

/// The numbers of this process and thread.
pub(crate) fn ids() -> (i32, i32) {
    // SAFETY: both calls take no argument and write no memory.
    unsafe { (libc::getpid(), libc::syscall(libc::SYS_gettid) as i32) }
}

/// True when no thread of that number is left in this process.
pub(crate) fn has_ended(process: i32, thread: i32) -> bool {
    if thread == NO_OWNER {
        return true;
    }
    let (answer, error) = own_memory::with_errno_unchanged(|| {
        // SAFETY: signal 0 is never delivered: the call only reports whether the thread exists.
        unsafe { libc::syscall(libc::SYS_tgkill, process, thread, 0) }
    });
    answer != 0 && error == libc::ESRCH
}
