//! The numbers of threads, and which of them have ended.

use core::ffi::c_void;

use super::calls::{NtClose, NtWaitForSingleObject, open_thread};
use super::environment::{LastErrorGuard, last_error, process_id, thread_id};

/// Thread number in the place of an owner's where there is no owner.
pub(crate) const NO_OWNER: i32 = 0;

/// The numbers of this process and thread.
pub(crate) fn ids() -> (i32, i32) {
    (process_id().cast_signed(), thread_id().cast_signed())
}

/// True when no thread of that number is left in this process.
#[must_use]
pub fn has_ended(process: i32, thread: i32) -> bool {
    /// `STATUS_INVALID_CID`: there is no such thread.
    const INVALID: i32 = 0xc000_000b_u32.cast_signed();
    if thread == NO_OWNER {
        return true;
    }
    let mut handle = core::ptr::null_mut::<c_void>();
    let status = open_thread(process.cast_unsigned(), thread.cast_unsigned(), &mut handle);
    if status < 0 {
        return status == INVALID;
    }
    // SAFETY: the handle was opened above; the timeout lives until the call returns. A thread that
    // has ended is signalled, status 0.
    let status = unsafe { NtWaitForSingleObject(handle, 0, &raw const NO_TIME) };
    // SAFETY: the handle was opened above, and nothing else uses it.
    unsafe { NtClose(handle) };
    status == 0
}

static NO_TIME: i64 = 0;

/// Runs calls, and returns the last error beside their result. The program's own does not change.
pub(crate) fn with_last_error_unchanged<R>(calls: impl FnOnce() -> R) -> (R, u32) {
    let _program = LastErrorGuard::new();
    let result = calls();
    (result, last_error())
}
