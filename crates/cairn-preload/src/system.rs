//! System calls without the C library: a program may define `open` or `write` itself, and the C
//! library's functions are cancellation points.

use core::ffi::{CStr, c_int};
use core::mem::MaybeUninit;

use crate::arch;
#[cfg_attr(not(panic = "abort"), allow(unused_imports, reason = "std has a panic handler of its own"))]
pub(crate) use crate::arch::abort;

/// Error number of a failed call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Error(pub(crate) c_int);

impl Error {
    /// Returns the text of errors that can occur when a recording begins.
    pub(crate) const fn meaning(self) -> &'static str {
        match self.0 {
            libc::EACCES | libc::EPERM => "permission denied",
            libc::ENOENT => "no such directory",
            libc::ENOSPC | libc::EDQUOT => "no space left on the device",
            libc::EROFS => "read-only file system",
            libc::EEXIST => "the file exists",
            libc::ENOMEM => "not enough memory or address space",
            libc::EFBIG => "larger than the limit of a file's size (ulimit -f)",
            libc::EMFILE | libc::ENFILE => "too many open files (ulimit -n)",
            libc::ENAMETOOLONG => "the name is too long",
            libc::ENOTDIR => "a part of the path is no directory",
            _ => "system error",
        }
    }
}

/// Makes a system call.
///
/// # Safety
///
/// The arguments are valid for the call of that number.
unsafe fn call(number: libc::c_long, arguments: [usize; 6]) -> Result<usize, Error> {
    // SAFETY: the caller promises arguments that are valid for the call of that number.
    let answer = unsafe { arch::system_call(number, arguments) };
    if (-4095..0).contains(&answer) { Err(Error(-answer as c_int)) } else { Ok(answer as usize) }
}

pub(crate) fn process_id() -> u32 {
    // SAFETY: the call takes no argument and cannot fail.
    unsafe { call(libc::SYS_getpid, [0; 6]) }.unwrap_or(0) as u32
}

/// Returns process and thread in the two halves of a word.
pub(crate) fn process_and_thread() -> u64 {
    // SAFETY: the call takes no argument and cannot fail.
    let thread = unsafe { call(libc::SYS_gettid, [0; 6]) }.unwrap_or(0);
    u64::from(process_id()) << 32 | thread as u64
}

/// Returns true when this process has no thread of that number.
pub(crate) fn has_ended(thread: u32) -> bool {
    let arguments = [process_id() as usize, thread as usize, 0, 0, 0, 0];
    // SAFETY: signal 0 only checks that the thread exists, and is not sent.
    let asked = unsafe { call(libc::SYS_tgkill, arguments) };
    asked == Err(Error(libc::ESRCH))
}

/// Waits for `seconds` seconds, or until the thread is stopped. Other waits would overwrite the
/// kernel's state of an interrupted wait of the program; this one, for a signal of an empty set,
/// does not.
pub(crate) fn wait_to_be_stopped(seconds: i64) {
    let none = 0_u64;
    let time = libc::timespec { tv_sec: seconds, tv_nsec: 0 };
    let arguments = [(&raw const none) as usize, 0, (&raw const time) as usize, size_of::<u64>(), 0, 0];
    // SAFETY: reads a set of signals and a time.
    let _ = unsafe { call(libc::SYS_rt_sigtimedwait, arguments) };
}

/// Returns whether the 4 bytes at `place` are writable, without changing them. The kernel writes
/// their own value in one atomic step, and returns an error where a store would end the program.
pub(crate) fn is_writable(place: u64) -> Result<bool, Error> {
    /// `FUTEX_OP(FUTEX_OP_OR, 0, FUTEX_OP_CMP_EQ, 0)`: or with nothing.
    const OR_NOTHING: usize = 2 << 28;
    let none = 0_u32;
    let operation = (libc::FUTEX_WAKE_OP | libc::FUTEX_PRIVATE_FLAG) as usize;
    let arguments = [(&raw const none) as usize, operation, 0, 0, place as usize, OR_NOTHING];
    // SAFETY: the operation writes the present value, and wakes no thread.
    match unsafe { call(libc::SYS_futex, arguments) } {
        Ok(_) => Ok(true),
        Err(Error(libc::EFAULT)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Appends `bytes` to the file at `path`, which must exist, in one write.
pub(crate) fn append(path: &CStr, bytes: &[u8]) -> Result<(), Error> {
    let flags = libc::O_WRONLY | libc::O_APPEND | libc::O_CLOEXEC | libc::O_NOFOLLOW;
    // SAFETY: a path with a NUL.
    let file = unsafe {
        call(libc::SYS_openat, [libc::AT_FDCWD as usize, path.as_ptr() as usize, flags as usize, 0, 0, 0])
    }?;
    let written = write(file, bytes);
    // SAFETY: the descriptor from above; nobody else has it.
    let _ = unsafe { call(libc::SYS_close, [file, 0, 0, 0, 0, 0]) };
    written
}

/// A file that is open for one function.
pub(crate) struct ReadOnly {
    descriptor: usize,
    is_own: bool,
}

impl ReadOnly {
    /// Opens the file at `path`, seen from an open directory or `AT_FDCWD`.
    pub(crate) fn open(directory: c_int, path: &CStr) -> Option<Self> {
        let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY;
        let arguments = [directory as usize, path.as_ptr() as usize, flags as usize, 0, 0, 0];
        // SAFETY: a path with a NUL.
        let descriptor = unsafe { call(libc::SYS_openat, arguments) }.ok()?;
        Some(Self { descriptor, is_own: true })
    }

    /// Returns a file that the program has opened.
    pub(crate) const fn of_program(descriptor: c_int) -> Self {
        Self { descriptor: descriptor as usize, is_own: false }
    }

    /// Returns true for a program with more rights than its caller. Such a program is set-user-ID,
    /// set-group-ID, or has capabilities.
    pub(crate) fn raises_rights(&self) -> bool {
        let name = c"security.capability";
        let arguments = [self.descriptor, name.as_ptr() as usize, 0, 0, 0, 0];
        // SAFETY: a name with a NUL; nothing is written, as there is no room.
        let has_capabilities = unsafe { call(libc::SYS_fgetxattr, arguments) }.is_ok();
        has_capabilities || raises_rights_at(self.descriptor as c_int, c"", libc::AT_EMPTY_PATH)
    }

    /// Reads from an offset in the file; returns the number of bytes.
    pub(crate) fn read_at(&self, into: &mut [u8], offset: u64) -> usize {
        let arguments = [self.descriptor, into.as_mut_ptr() as usize, into.len(), offset as usize, 0, 0];
        // SAFETY: the kernel writes at most the length of the slice.
        unsafe { call(libc::SYS_pread64, arguments) }.unwrap_or(0).min(into.len())
    }
}

impl Drop for ReadOnly {
    fn drop(&mut self) {
        if self.is_own {
            // SAFETY: opened by `open`; nobody else has it.
            let _ = unsafe { call(libc::SYS_close, [self.descriptor, 0, 0, 0, 0, 0]) };
        }
    }
}

/// Returns true for a file with the set-user-ID or the set-group-ID bit, which need not be
/// readable.
pub(crate) fn raises_rights_at(directory: c_int, path: &CStr, flags: c_int) -> bool {
    let mut facts = MaybeUninit::<libc::stat>::zeroed();
    let arguments =
        [directory as usize, path.as_ptr() as usize, facts.as_mut_ptr() as usize, flags as usize, 0, 0];
    // SAFETY: a path with a NUL, and room for the file's status.
    let is_known = unsafe { call(libc::SYS_newfstatat, arguments) }.is_ok();
    // SAFETY: zeros are a value of the type, and the kernel has written the others.
    let mode = unsafe { facts.assume_init() }.st_mode;
    is_known && mode & libc::S_IFMT == libc::S_IFREG && mode & (libc::S_ISUID | libc::S_ISGID) != 0
}

/// Returns true when this process has more rights than its caller. The caller's environment must
/// not direct it then.
pub(crate) fn has_raised_rights() -> bool {
    // SAFETY: `getauxval` only reads the auxiliary vector, which exists in every process.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// Returns whether this process may execute the file.
pub(crate) fn may_execute(path: &CStr) -> bool {
    let arguments = [libc::AT_FDCWD as usize, path.as_ptr() as usize, libc::X_OK as usize, 0, 0, 0];
    // SAFETY: a path with a NUL.
    unsafe { call(libc::SYS_faccessat, arguments) }.is_ok()
}

/// Returns false when the file does not exist or is not readable for the real user. Capabilities do
/// not count, because they usually end with `exec`.
pub(crate) fn is_reachable(path: &CStr) -> bool {
    let arguments = [libc::AT_FDCWD as usize, path.as_ptr() as usize, libc::R_OK as usize, 0, 0, 0];
    // SAFETY: a path with a NUL.
    let asked = unsafe { call(libc::SYS_faccessat, arguments) };
    !matches!(asked, Err(Error(libc::ENOENT | libc::ENOTDIR | libc::EACCES | libc::EPERM)))
}

/// Returns whether a file of that name exists.
pub(crate) fn exists(path: &CStr) -> bool {
    let flags = libc::AT_SYMLINK_NOFOLLOW;
    let mut facts = [0_u64; 32];
    const _: () = assert!(size_of::<libc::stat>() <= 32 * 8);
    let arguments =
        [libc::AT_FDCWD as usize, path.as_ptr() as usize, facts.as_mut_ptr() as usize, flags as usize, 0, 0];
    // SAFETY: a path with a NUL, and room for the file's status.
    unsafe { call(libc::SYS_newfstatat, arguments) }.is_ok()
}

/// Writes a message to standard error, which no other process can report.
pub(crate) fn complain(bytes: &[u8]) {
    let _ = write(2, bytes);
}

fn write(file: usize, bytes: &[u8]) -> Result<(), Error> {
    if !may_write(file, bytes.len()) {
        return Err(Error(libc::EFBIG));
    }
    // SAFETY: the kernel reads at most the length of the slice.
    unsafe { call(libc::SYS_write, [file, bytes.as_ptr() as usize, bytes.len(), 0, 0, 0]) }.map(|_| ())
}

/// Returns false under a limit of the file size at which the write may raise SIGXFSZ. That signal
/// ends a program.
fn may_write(file: usize, bytes: usize) -> bool {
    /// Bytes that other processes may write to the file meanwhile.
    const SLACK_BYTES: u64 = 4096;
    let limit = soft_limit(libc::RLIMIT_FSIZE);
    if limit == u64::MAX {
        return true;
    }
    let mut facts = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: writes to the variable.
    let asked = unsafe { call(libc::SYS_fstat, [file, facts.as_mut_ptr() as usize, 0, 0, 0, 0]) };
    // SAFETY: filled, or zeros, which are a value.
    let facts = unsafe { facts.assume_init() };
    if asked.is_err() {
        return false;
    }
    // Terminals and pipes have no size.
    if facts.st_mode & libc::S_IFMT != libc::S_IFREG {
        return true;
    }
    // SAFETY: only asks where the descriptor is.
    let at =
        unsafe { call(libc::SYS_lseek, [file, 0, libc::SEEK_CUR as usize, 0, 0, 0]) }.unwrap_or(usize::MAX);
    let end = (facts.st_size as u64).max(at as u64).saturating_add(bytes as u64);
    end.saturating_add(SLACK_BYTES) <= limit
}

/// Makes a symbolic link with the target `text`.
pub(crate) fn link_text(text: &CStr, path: &CStr) -> Result<(), Error> {
    let arguments = [text.as_ptr() as usize, libc::AT_FDCWD as usize, path.as_ptr() as usize, 0, 0, 0];
    // SAFETY: two texts with a NUL.
    unsafe { call(libc::SYS_symlinkat, arguments) }.map(|_| ())
}

/// Returns the soft limit of a resource; `u64::MAX` if it is unknown.
pub(crate) fn soft_limit(resource: libc::__rlimit_resource_t) -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    let place = (&raw mut limit) as usize;
    // SAFETY: of this process, and a place for the answer.
    let asked = unsafe { call(libc::SYS_prlimit64, [0, resource as usize, 0, place, 0, 0]) };
    if asked.is_ok() { limit.rlim_cur } else { u64::MAX }
}

/// Returns the path of the working directory, without its NUL.
pub(crate) fn working_directory(buffer: &mut [u8]) -> Result<&[u8], Error> {
    // SAFETY: memory of that length that may be written.
    let length = unsafe { call(libc::SYS_getcwd, [buffer.as_mut_ptr() as usize, buffer.len(), 0, 0, 0, 0]) }?;
    match buffer.get(..length.saturating_sub(1)) {
        // The path of a directory outside of the root begins with no slash.
        Some(path) if path.starts_with(b"/") => Ok(path),
        _ => Err(Error(libc::ENOENT)),
    }
}

/// Calls `mmap` as the C library does: -1 and `errno` for an error.
pub(crate) fn raw_mmap(arguments: [usize; 6]) -> usize {
    // SAFETY: the program requests the same by its own call.
    with_errno(unsafe { call(libc::SYS_mmap, arguments) })
}

/// Calls `munmap` as the C library does.
pub(crate) fn raw_munmap(address: usize, bytes: usize) -> usize {
    // SAFETY: the program requests the same by its own call.
    with_errno(unsafe { call(libc::SYS_munmap, [address, bytes, 0, 0, 0, 0]) })
}

fn with_errno(answer: Result<usize, Error>) -> usize {
    answer.unwrap_or_else(|Error(number)| {
        set_errno(number);
        usize::MAX
    })
}

/// Maps zeroed memory.
pub(crate) fn map(bytes: usize) -> Option<*mut u8> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: an anonymous mapping where the kernel likes it touches no existing memory.
    let address =
        unsafe { call(libc::SYS_mmap, [0, bytes, protection as usize, flags as usize, usize::MAX, 0]) };
    address.ok().map(|address| address as *mut u8)
}

/// Unmaps memory.
///
/// # Safety
///
/// `bytes` at `address` came from [`map`], and nobody uses them.
pub(crate) unsafe fn unmap(address: *mut u8, bytes: usize) {
    // SAFETY: the caller promises that `bytes` at `address` came from [`map`], and nobody uses
    // them.
    let _ = unsafe { call(libc::SYS_munmap, [address as usize, bytes, 0, 0, 0, 0]) };
}

/// Returns the page size, a power of two: a constant on x86-64, elsewhere the kernel's choice.
#[inline]
pub(crate) fn page_bytes() -> usize {
    #[cfg(target_arch = "x86_64")]
    {
        4096
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        // SAFETY: `getauxval` only reads the auxiliary vector, which exists in every process.
        unsafe { libc::getauxval(libc::AT_PAGESZ) as usize }
    }
}

pub(crate) fn errno() -> c_int {
    // SAFETY: the address of this thread's errno is always valid.
    unsafe { *libc::__errno_location() }
}

pub(crate) fn set_errno(value: c_int) {
    // SAFETY: the address of this thread's errno is always valid.
    unsafe { *libc::__errno_location() = value }
}

/// Changes the protection of whole pages; returns false when the kernel refuses.
///
/// # Safety
///
/// No thread needs the rights that are removed.
pub(crate) unsafe fn protect(address: u64, bytes: usize, protection: c_int) -> bool {
    // SAFETY: the caller promises that no thread needs the rights that are removed.
    unsafe { call(libc::SYS_mprotect, [address as usize, bytes, protection as usize, 0, 0, 0]) }.is_ok()
}
