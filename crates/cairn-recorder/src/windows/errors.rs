//! Error numbers of system calls.

use cairn_capture::environment::last_error;

use super::calls::RtlNtStatusToDosError;

/// Error number of a failed system call, as `GetLastError` returns it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Errno(pub(crate) i32);

impl Errno {
    pub(crate) const FILE_MISSING: Self = Self(2);
    pub(crate) const DISK_FULL: Self = Self(112);
    pub(crate) const INVALID_NAME: Self = Self(123);
    pub(crate) const EXISTS: Self = Self(183);
    pub(crate) const NAME_TOO_LONG: Self = Self(206);
    pub(crate) const FILE_TOO_LARGE: Self = Self(223);

    /// Returns true when there is no such file at a path.
    pub(crate) fn is_file_missing(self) -> bool {
        const PATH_MISSING: i32 = 3;
        matches!(self, Self::FILE_MISSING | Self(PATH_MISSING))
    }

    /// Returns true when the disk, or the user's share of it, is full.
    pub(crate) fn is_disk_full(self) -> bool {
        const HANDLE_DISK_FULL: i32 = 39;
        const QUOTA_EXCEEDED: i32 = 1295;
        matches!(self, Self::DISK_FULL | Self(HANDLE_DISK_FULL | QUOTA_EXCEEDED))
    }

    /// Returns true when the file system cannot allocate storage: none is known.
    pub(crate) fn is_allocation_unknown(self) -> bool {
        false
    }

    /// Returns the last error of this thread.
    pub(crate) fn last() -> Self {
        Self(last_error().cast_signed())
    }
}

/// Returns the result of a system call, whose status is negative on failure.
pub(crate) fn answer(status: i32) -> Result<(), Errno> {
    if status >= 0 {
        return Ok(());
    }
    // SAFETY: the function searches a table for the number.
    Err(Errno(unsafe { RtlNtStatusToDosError(status) } as i32))
}
