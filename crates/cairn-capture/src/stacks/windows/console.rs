//! Writes to the standard handles, for the text of stacks.

use core::ffi::c_void;

use super::calls::{GetStdHandle, WriteFile};
use super::threads::with_last_error_unchanged;

/// Writes a part of `bytes`, and returns its length.
///
/// `descriptor` is 1 for the standard output and 2 for the standard error, as in C; any other
/// number is that of a handle.
///
/// # Errors
///
/// The last error; 0 when nothing was written without an error.
pub(crate) fn write(descriptor: i32, bytes: &[u8]) -> Result<usize, i32> {
    const OUTPUT: u32 = -11_i32 as u32;
    const ERROR: u32 = -12_i32 as u32;
    let (count, error) = with_last_error_unchanged(|| {
        // SAFETY: the call takes a number only.
        let standard = |number| unsafe { GetStdHandle(number) };
        let handle = match descriptor {
            1 => standard(OUTPUT),
            2 => standard(ERROR),
            number => core::ptr::without_provenance_mut::<c_void>(number as usize),
        };
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let mut written = 0;
        // SAFETY: the call reads `length` bytes of `bytes`, and writes `written`.
        let is_written = unsafe {
            WriteFile(handle, bytes.as_ptr(), length, &raw mut written, core::ptr::null_mut()) != 0
        };
        if is_written { written } else { 0 }
    });
    if count == 0 { Err(error.cast_signed()) } else { Ok(count as usize) }
}

/// The program's path is not asked for: its module has a name of its own, or none.
pub(crate) fn program_path(_bytes: &mut [u8]) -> usize {
    0
}
