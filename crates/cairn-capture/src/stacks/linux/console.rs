//! Writes to descriptors, for the text of stacks.

use crate::stacks::own_memory;

/// Writes a part of `bytes`, and returns its length; 0 when a signal interrupted the call.
///
/// # Errors
///
/// The error number; 0 when nothing was written without an error.
pub(crate) fn write(descriptor: i32, bytes: &[u8]) -> Result<usize, i32> {
    // Not libc's `write`, which is a cancellation point.
    match call(libc::SYS_write, [descriptor as usize, bytes.as_ptr() as usize, bytes.len(), 0]) {
        (count @ 1.., _) => Ok(count as usize),
        (_, libc::EINTR) => Ok(0),
        (_, errno) => Err(errno),
    }
}

/// Writes the path of the program to `bytes` and returns its length. Returns 0 when the kernel does
/// not provide it.
pub(crate) fn program_path(bytes: &mut [u8]) -> usize {
    let link = c"/proc/self/exe".as_ptr() as usize;
    // `readlinkat`, because AArch64 has no `readlink`. The path is absolute, so the directory is
    // ignored.
    let arguments = [libc::AT_FDCWD as usize, link, bytes.as_mut_ptr() as usize, bytes.len()];
    call(libc::SYS_readlinkat, arguments).0.try_into().unwrap_or(0)
}

/// Makes a system call. Returns its result, and the error number if that is negative. The caller's
/// errno does not change.
fn call(number: libc::c_long, [first, second, third, fourth]: [usize; 4]) -> (isize, i32) {
    let (answer, error) = own_memory::with_errno_unchanged(|| {
        // SAFETY: `write` passes a slice to be read, and `program_path` a C string and a
        // buffer to be written, each with its length; the kernel accesses no more than these.
        unsafe { libc::syscall(number, first, second, third, fourth) }
    });
    (answer as isize, if answer < 0 { error } else { 0 })
}
