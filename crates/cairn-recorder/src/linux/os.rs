//! System calls without the C library's wrappers.
//!
//! The wrappers of `open`, `close`, `nanosleep` and others are cancellation points, and some are
//! interposed by the very library that this code is part of. So every call here goes through
//! `syscall`, which is neither. Every entry of the recorder that can make a system call preserves
//! the program's `errno` ([`ErrnoGuard`]).

use core::ffi::{CStr, c_char, c_int, c_long};
use core::ptr;

use crate::path_text::PathText;
use crate::zone::Zone;

/// Error number of a failed system call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Errno(pub(crate) c_int);

impl Errno {
    pub(crate) const EXISTS: Self = Self(libc::EEXIST);
    pub(crate) const NAME_TOO_LONG: Self = Self(libc::ENAMETOOLONG);
    pub(crate) const FILE_TOO_LARGE: Self = Self(libc::EFBIG);

    /// Returns true when there is no such file at a path.
    pub(crate) fn is_file_missing(self) -> bool {
        matches!(self.0, libc::ENOENT | libc::ENOTDIR | libc::ELOOP | libc::EISDIR)
    }

    /// Returns true when the disk, or the user's share of it, is full.
    pub(crate) fn is_disk_full(self) -> bool {
        matches!(self.0, libc::ENOSPC | libc::EDQUOT)
    }

    /// Returns true when the file system cannot allocate storage.
    pub(crate) fn is_allocation_unknown(self) -> bool {
        matches!(self.0, libc::EOPNOTSUPP | libc::ENOSYS | libc::EPERM)
    }
}

/// Restores `errno` when it goes out of scope: the program must not see errors that it did not
/// cause.
pub(crate) struct ErrnoGuard(c_int);

impl ErrnoGuard {
    pub(crate) fn new() -> Self {
        // SAFETY: the address of this thread's errno is always valid.
        Self(unsafe { *libc::__errno_location() })
    }
}

impl Drop for ErrnoGuard {
    fn drop(&mut self) {
        // SAFETY: the address of this thread's errno is always valid.
        unsafe { *libc::__errno_location() = self.0 }
    }
}

/// Returns the result of a system call, or its error number.
fn answer(result: c_long) -> Result<usize, Errno> {
    if result == -1 {
        // SAFETY: the address of this thread's errno is always valid.
        return Err(Errno(unsafe { *libc::__errno_location() }));
    }
    Ok(result as usize)
}

/// Returns true when this process has more rights than its caller, as a set-user-ID program does.
/// The caller's environment and working directory must not direct it.
pub(crate) fn has_raised_rights() -> bool {
    // SAFETY: `getauxval` only reads the auxiliary vector, which exists in every process.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// A file descriptor for the length of one function.
pub(crate) struct File(c_int);

impl File {
    /// Makes an empty file for a spool; returns it, and whether it has its name already.
    pub(crate) fn create_spool(path: &CStr) -> Result<(Self, bool), Errno> {
        let mut buffer = [0_u8; 512];
        let nameless = directory_of(path, &mut buffer)
            .and_then(|directory| Self::open(directory, libc::O_TMPFILE | libc::O_RDWR, 0o600).ok());
        if let Some(file) = nameless {
            return Ok((file, false));
        }
        // A file system without nameless files: the file is visible while it is still empty.
        let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW;
        Self::open(path, flags, 0o600).map(|file| (file, true))
    }

    /// Opens a spool to extend it.
    pub(crate) fn open_spool(path: &CStr) -> Result<Self, Errno> {
        Self::open(path, SPOOL_FLAGS, 0)
    }

    /// Opens a spool as [`open_spool`](Self::open_spool) does, by a path in shared memory.
    ///
    /// # Safety
    ///
    /// From `path` on, 4,096 bytes can be read.
    pub(crate) unsafe fn open_shared_spool(path: *const c_char) -> Result<Self, Errno> {
        // SAFETY: the bytes can be read, by contract.
        unsafe { Self::open_shared(path, SPOOL_FLAGS) }
    }

    /// Makes a file to write to; fails if one of that name exists.
    pub(crate) fn create(path: &CStr) -> Result<Self, Errno> {
        Self::open(path, libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL, 0o600)
    }

    pub(crate) fn open(path: &CStr, flags: c_int, mode: u32) -> Result<Self, Errno> {
        let flags = flags | libc::O_CLOEXEC | libc::O_NOCTTY;
        // SAFETY: a `CStr` ends with a NUL, and the kernel only reads it.
        let number = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags, mode) };
        answer(number).map(|number| Self(number as c_int))
    }

    /// Opens the file whose path is in shared memory: it can change until the kernel has copied it.
    ///
    /// # Safety
    ///
    /// From `path` on, 4,096 bytes can be read.
    unsafe fn open_shared(path: *const c_char, flags: c_int) -> Result<Self, Errno> {
        let flags = flags | libc::O_CLOEXEC | libc::O_NOCTTY;
        // SAFETY: the kernel reads up to a NUL and no more than 4,096 bytes, which the caller
        // promises.
        let number = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path, flags, 0) };
        answer(number).map(|number| Self(number as c_int))
    }

    /// Makes memory with a descriptor.
    pub(crate) fn in_memory(name: &CStr) -> Result<Self, Errno> {
        // SAFETY: a `CStr` ends with a NUL, and the kernel only reads it.
        let number = unsafe { libc::syscall(libc::SYS_memfd_create, name.as_ptr(), libc::MFD_CLOEXEC) };
        answer(number).map(|number| Self(number as c_int))
    }

    pub(crate) fn descriptor(&self) -> c_int {
        self.0
    }

    pub(crate) fn read(&self, into: &mut [u8]) -> Result<usize, Errno> {
        loop {
            // SAFETY: the kernel writes at most the length of the slice.
            let count =
                answer(unsafe { libc::syscall(libc::SYS_read, self.0, into.as_mut_ptr(), into.len()) });
            if count != Err(Errno(libc::EINTR)) {
                return count;
            }
        }
    }

    /// Reads until the end or until `into` is full; returns the bytes read.
    pub(crate) fn read_all<'a>(&self, into: &'a mut [u8]) -> &'a mut [u8] {
        let mut count = 0;
        while let Some(rest) = into.get_mut(count..).filter(|rest| !rest.is_empty()) {
            match self.read(rest) {
                Ok(0) | Err(_) => break,
                Ok(more) => count += more,
            }
        }
        into.get_mut(..count).unwrap_or_default()
    }

    pub(crate) fn write_all(&self, bytes: &[u8]) -> Result<(), Errno> {
        let mut rest = bytes;
        while !rest.is_empty() {
            // SAFETY: the kernel reads at most the length of the slice.
            match answer(unsafe { libc::syscall(libc::SYS_write, self.0, rest.as_ptr(), rest.len()) }) {
                Ok(0) => return Err(Errno(libc::EIO)),
                Ok(count) => rest = rest.get(count..).unwrap_or_default(),
                Err(Errno(libc::EINTR)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    pub(crate) fn seek(&self, to: u64) -> Result<(), Errno> {
        // SAFETY: the call touches no memory; the descriptor is open as long as `self`.
        answer(unsafe { libc::syscall(libc::SYS_lseek, self.0, to, libc::SEEK_SET) }).map(drop)
    }

    pub(crate) fn set_length(&self, bytes: u64) -> Result<(), Errno> {
        // SAFETY: the call changes no memory, except mappings of pages that it cuts off: the
        // callers cut files that are not mapped yet.
        answer(unsafe { libc::syscall(libc::SYS_ftruncate, self.0, bytes) }).map(drop)
    }

    /// Returns the identity of the file: device and inode.
    pub(crate) fn identity(&self) -> Result<(u64, u64), Errno> {
        self.identity_and_length().map(|(identity, _)| identity)
    }

    /// Returns the identity of the file, and its length.
    pub(crate) fn identity_and_length(&self) -> Result<((u64, u64), u64), Errno> {
        let status = self.status()?;
        Ok(((status.st_dev, status.st_ino), status.st_size as u64))
    }

    fn status(&self) -> Result<libc::stat, Errno> {
        let mut status = core::mem::MaybeUninit::<libc::stat>::zeroed();
        // SAFETY: the kernel writes one structure of this type to the variable.
        answer(unsafe { libc::syscall(libc::SYS_fstat, self.0, status.as_mut_ptr()) })?;
        // SAFETY: initialised with zeros, which are a value of the type, before the kernel filled
        // it.
        Ok(unsafe { status.assume_init() })
    }

    /// Returns the free bytes of the file system; `u64::MAX` if they are unknown.
    pub(crate) fn free_bytes(&self) -> u64 {
        let mut status = core::mem::MaybeUninit::<libc::statfs>::zeroed();
        // SAFETY: the kernel writes one structure of this type to the variable.
        let result = answer(unsafe { libc::syscall(libc::SYS_fstatfs, self.0, status.as_mut_ptr()) });
        // SAFETY: initialised with zeros, which are a value of the type.
        let status = unsafe { status.assume_init() };
        // Some file systems report no blocks at all.
        if result.is_err() || status.f_blocks == 0 {
            return u64::MAX;
        }
        status.f_bavail.saturating_mul(status.f_bsize as u64)
    }

    /// Allocates storage for a range of the file, which grows as needed. Existing bytes stay.
    pub(crate) fn allocate(&self, from: u64, bytes: u64) -> Result<(), Errno> {
        loop {
            // SAFETY: the call touches no memory; the descriptor is open as long as `self`.
            let result = answer(unsafe { libc::syscall(libc::SYS_fallocate, self.0, 0, from, bytes) });
            if result != Err(Errno(libc::EINTR)) {
                return result.map(drop);
            }
        }
    }

    /// Writes zeros, on a file system that cannot allocate storage otherwise.
    pub(crate) fn write_zeros(&self, from: u64, bytes: u64) -> Result<(), Errno> {
        static ZEROS: [u8; 4096] = [0; 4096];
        let mut done = 0;
        while done < bytes {
            let length = (bytes - done).min(ZEROS.len() as u64) as usize;
            // SAFETY: the kernel reads `length` bytes, at most the length of `ZEROS`.
            let result = answer(unsafe {
                libc::syscall(libc::SYS_pwrite64, self.0, ZEROS.as_ptr(), length, from + done)
            });
            match result {
                Ok(0) => return Err(Errno(libc::ENOSPC)),
                Ok(count) => done += count as u64,
                Err(Errno(libc::EINTR)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Maps the first `bytes` of the file, shared, readable and writable. The mapping lies at a
    /// multiple of `alignment` in a zone. Returns the address.
    pub(crate) fn map(&self, bytes: usize, alignment: usize, zone: &Zone) -> Result<usize, Errno> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let map_at = |at: usize, flags: c_int| {
            let flags = libc::MAP_SHARED | flags;
            // SAFETY: without `MAP_FIXED` the kernel replaces no mapping; with it, `at` is in the
            // range that this function has reserved below.
            answer(unsafe { libc::syscall(libc::SYS_mmap, at, bytes, protection, flags, self.0, 0_usize) })
        };
        place(bytes, zone, |hint| {
            if hint != 0 {
                return map_at(hint, 0);
            }
            let reserved = anonymous(0, bytes + alignment, libc::PROT_NONE, 0)?;
            let at = reserved.next_multiple_of(alignment);
            let mapped = map_at(at, libc::MAP_FIXED);
            // SAFETY: the ranges are the parts of the reservation above that the mapping does not
            // cover, or all of it after a failure; its address has not been shared.
            unsafe {
                if mapped.is_ok() {
                    for (from, to) in [(reserved, at), (at + bytes, reserved + bytes + alignment)] {
                        if from < to {
                            unmap(from, to - from);
                        }
                    }
                } else {
                    unmap(reserved, bytes + alignment);
                }
            }
            mapped
        })
    }
}

const SPOOL_FLAGS: c_int = libc::O_RDWR | libc::O_NOFOLLOW;

/// Returns the directory of a path; `None` when it is too long for the buffer.
fn directory_of<'a>(path: &CStr, buffer: &'a mut [u8]) -> Option<&'a CStr> {
    let bytes = path.to_bytes();
    let directory = match bytes.iter().rposition(|&byte| byte == b'/') {
        None => b".".as_slice(),
        Some(0) => b"/",
        Some(end) => bytes.get(..end)?,
    };
    let place = buffer.get_mut(..directory.len() + 1)?;
    place[..directory.len()].copy_from_slice(directory);
    place[directory.len()] = 0;
    CStr::from_bytes_with_nul(place).ok()
}

impl Drop for File {
    fn drop(&mut self) {
        // SAFETY: the descriptor was opened by this type, which closes it once.
        unsafe { libc::syscall(libc::SYS_close, self.0) };
    }
}

/// Maps zeroed memory in a zone, where it can grow. Its largest size has no effect here.
pub(crate) fn zeroed_apart(bytes: usize, _most_bytes: usize, zone: &Zone) -> Result<usize, Errno> {
    place(bytes, zone, |hint| anonymous(hint, bytes, libc::PROT_READ | libc::PROT_WRITE, 0))
}

/// Maps `bytes` in the zone, or elsewhere. Elsewhere is a smaller zone of a smaller address space,
/// or the place that the kernel chooses. `map` takes an address as a hint, which the kernel ignores
/// if it is in use.
fn place(bytes: usize, zone: &Zone, map: impl Fn(usize) -> Result<usize, Errno>) -> Result<usize, Errno> {
    const TRIES: u32 = 8;
    let near = map(0)?;
    for shift in [0, 3, 6, 9] {
        let (from, all) = (zone.from >> shift, zone.bytes >> shift);
        if near / 2 < from + all {
            continue;
        }
        for _ in 0..TRIES {
            let within = (all >> 20) * (zone.next() >> 12) as usize;
            let wanted = (near - from - within) & !(EXTENT_ALIGNMENT - 1);
            // A limit of the address space may allow one of the two mappings only.
            let Ok(got) = map(wanted) else { return Ok(near) };
            let other = if got == wanted { near } else { got };
            // SAFETY: one of the two mappings that were made above, whose address has not been
            // shared.
            unsafe { unmap(other, bytes) };
            if got == wanted {
                return Ok(got);
            }
        }
    }
    Ok(near)
}

/// Alignment of chosen places; 2 MiB, the size of a huge page.
const EXTENT_ALIGNMENT: usize = 1 << 21;

/// Extends the mapping of a file as [`lengthen`] does. The kernel needs no descriptor for that.
pub(crate) fn lengthen_file<E>(
    end: usize,
    more: usize,
    _offset: u64,
    _file: impl FnOnce() -> Result<File, E>,
) -> Result<(), Errno> {
    lengthen(end, more)
}

/// Extends the mapping that ends at `end` in place. Fails if another mapping is behind it.
pub(crate) fn lengthen(end: usize, more: usize) -> Result<(), Errno> {
    let from = end - PAGE_BYTES;
    // SAFETY: the range is the last page of the caller's own mapping. Without `MREMAP_MAYMOVE` the
    // kernel moves nothing, and it never replaces a mapping behind it.
    answer(unsafe { libc::syscall(libc::SYS_mremap, from, PAGE_BYTES, PAGE_BYTES + more, 0) }).map(drop)
}

/// Maps zeroed memory, which has no pages until it is touched, at an address of the kernel's
/// choice.
pub(crate) fn zeroed(bytes: usize) -> Result<usize, Errno> {
    anonymous(0, bytes, libc::PROT_READ | libc::PROT_WRITE, 0)
}

/// Replaces a mapping by zeroed private memory.
///
/// # Safety
///
/// The range is a mapping of the recorder. No thread needs its contents any more: zeros are valid
/// for all that may still read it, and what is written to it may be lost.
pub(crate) unsafe fn replace_by_zeros(at: usize, bytes: usize) {
    let _ = anonymous(at, bytes, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_FIXED);
}

fn anonymous(at: usize, bytes: usize, protection: c_int, flags: c_int) -> Result<usize, Errno> {
    let flags = flags | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: without `MAP_FIXED` the kernel replaces no mapping. `replace_by_zeros` alone passes
    // that flag, for a range whose contents nobody needs.
    answer(unsafe { libc::syscall(libc::SYS_mmap, at, bytes, protection, flags, -1, 0_usize) })
}

/// Unmaps a range.
///
/// # Safety
///
/// The range is a mapping of the caller's that nobody uses any more.
pub(crate) unsafe fn unmap(at: usize, bytes: usize) {
    // SAFETY: nobody uses the range, by contract.
    unsafe { libc::syscall(libc::SYS_munmap, at, bytes) };
}

/// Gives the whole pages within a range of private memory back, which then read as zeros.
///
/// # Safety
///
/// The range is the caller's memory, and its contents may become zeros at any moment: all that
/// reads it concurrently is atomic, and zeros are a value of it.
pub(crate) unsafe fn forget(at: usize, bytes: usize) {
    let from = at.next_multiple_of(PAGE_BYTES);
    let to = (at + bytes) & !(PAGE_BYTES - 1);
    if from < to {
        // SAFETY: zeros are valid in the whole range, by contract, and `from..to` is within it.
        unsafe { libc::syscall(libc::SYS_madvise, from, to - from, libc::MADV_DONTNEED) };
    }
}

/// Takes the pages of a mapped file out of this process's memory. Their contents stay in the file,
/// and return when they are touched.
pub(crate) fn leave_to_file(at: usize, bytes: usize) {
    // SAFETY: the range is the caller's own shared mapping, whose contents `MADV_DONTNEED`
    // preserves.
    unsafe { libc::syscall(libc::SYS_madvise, at, bytes, libc::MADV_DONTNEED) };
}

/// Largest page size of the systems that this is built for, in bytes.
pub(crate) const PAGE_BYTES: usize = if cfg!(target_arch = "x86_64") { 4096 } else { 1 << 16 };

/// Makes the range read as zeros in every forked child. Without huge pages, because a little is
/// touched here and there.
pub(crate) fn wipe_on_fork(at: usize, bytes: usize) -> Result<(), Errno> {
    // SAFETY: this advice changes the size of pages and no contents.
    unsafe { libc::syscall(libc::SYS_madvise, at, bytes, libc::MADV_NOHUGEPAGE) };
    // SAFETY: this advice changes the contents in children only, which treat zeros as valid.
    answer(unsafe { libc::syscall(libc::SYS_madvise, at, bytes, libc::MADV_WIPEONFORK) }).map(drop)
}

/// Returns true when `madvise` succeeds without effect, as under qemu 7 in user mode. The real
/// kernel refuses to wipe shared memory, as the page at `shared` is.
pub(crate) fn ignores_advice(shared: usize) -> bool {
    const PAGE_BYTES: usize = 1 << 16;
    // SAFETY: the page is in the caller's own shared mapping, for which the kernel refuses this
    // advice.
    answer(unsafe { libc::syscall(libc::SYS_madvise, shared, PAGE_BYTES, libc::MADV_WIPEONFORK) }).is_ok()
}

/// Makes all pages of the range writable: one call in place of a page fault for each. No effect
/// before Linux 5.14.
pub(crate) fn populate(at: usize, bytes: usize) {
    // SAFETY: the range is the caller's own mapping and has storage; its contents do not change.
    unsafe { libc::syscall(libc::SYS_madvise, at, bytes, libc::MADV_POPULATE_WRITE) };
}

/// Writes the range to its file, and waits until the disk has it.
pub(crate) fn synchronise<E>(
    at: usize,
    bytes: usize,
    _file: impl FnOnce() -> Result<File, E>,
) -> Result<(), Errno> {
    // SAFETY: the range is the caller's own mapping, which the kernel only reads.
    answer(unsafe { libc::syscall(libc::SYS_msync, at, bytes, libc::MS_SYNC) }).map(drop)
}

/// Returns the limit of a file's length that the process has; `u64::MAX` for none.
pub(crate) fn file_size_limit() -> u64 {
    soft_limit(libc::RLIMIT_FSIZE as i32)
}

/// Returns the limit of the address space that the process has; `u64::MAX` for none.
pub(crate) fn address_space_limit() -> u64 {
    soft_limit(libc::RLIMIT_AS as i32)
}

fn soft_limit(resource: c_int) -> u64 {
    let mut limit = libc::rlimit64 { rlim_cur: u64::MAX, rlim_max: u64::MAX };
    let none = ptr::null::<libc::rlimit64>();
    // SAFETY: the kernel writes one structure of this type to the variable.
    let result = answer(unsafe { libc::syscall(libc::SYS_prlimit64, 0, resource, none, &raw mut limit) });
    result.map_or(u64::MAX, |_| limit.rlim_cur)
}

pub(crate) fn process_id() -> u32 {
    // SAFETY: the call takes no argument and cannot fail.
    unsafe { libc::syscall(libc::SYS_getpid) as u32 }
}

/// Returns `CLOCK_MONOTONIC` in nanoseconds.
pub(crate) fn monotonic_nanos() -> u64 {
    nanos(libc::CLOCK_MONOTONIC)
}

/// Returns the nanoseconds since 1970.
pub(crate) fn wall_nanos() -> u64 {
    nanos(libc::CLOCK_REALTIME)
}

fn nanos(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes to the variable. The function is async-signal-safe and no cancellation point.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

pub(crate) fn parent_id() -> u32 {
    // SAFETY: the call takes no argument and cannot fail.
    unsafe { libc::syscall(libc::SYS_getppid) as u32 }
}

pub(crate) fn thread_id() -> u32 {
    // SAFETY: the call takes no argument and cannot fail.
    unsafe { libc::syscall(libc::SYS_gettid) as u32 }
}

/// Returns true when this process has no thread of that number.
pub(crate) fn has_ended(thread: u32) -> bool {
    has_ended_in(process_id(), thread)
}

/// Returns true when that process has no thread of that number.
pub(crate) fn has_ended_in(process: u32, thread: u32) -> bool {
    // SAFETY: signal 0 only checks that the thread exists, and is not sent.
    answer(unsafe { libc::syscall(libc::SYS_tgkill, process, thread, 0) }) == Err(Errno(libc::ESRCH))
}

/// Returns true when the calling thread is the only one. False where the kernel does not say it.
pub(crate) fn has_one_thread() -> bool {
    let tasks = File::open(c"/proc/self/task", libc::O_RDONLY | libc::O_DIRECTORY, 0);
    // A directory has two links for itself, and one for each directory in it.
    tasks.and_then(|tasks| tasks.status()).is_ok_and(|status| status.st_nlink == 2 + 1)
}

/// Sleeps; returns early for a signal.
pub(crate) fn sleep_micros(micros: u32) {
    let time = libc::timespec { tv_sec: 0, tv_nsec: c_long::from(micros) * 1000 };
    // SAFETY: the kernel reads the variable, and writes nothing for a null pointer.
    unsafe { libc::syscall(libc::SYS_nanosleep, &raw const time, ptr::null_mut::<libc::timespec>()) };
}

/// Returns the most resident memory of this process since its `exec`, by the kernel's count.
///
/// 0 when it is not known. Not by `getrusage`, whose maximum includes the programs that the process
/// was before, and the memory of the one that forked it.
pub(crate) fn peak_resident_bytes() -> u64 {
    /// The line is among the first 20 of about 55, which are some 1,400 bytes.
    const MOST_STATUS_BYTES: usize = 2048;
    let mut status = [0; MOST_STATUS_BYTES];
    match File::open(c"/proc/self/status", libc::O_RDONLY, 0) {
        Ok(file) => peak_of_status(file.read_all(&mut status)),
        Err(_) => 0,
    }
}

/// The value of the line `VmHWM:     1234 kB`.
fn peak_of_status(status: &[u8]) -> u64 {
    let line = status.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"VmHWM:"));
    let digits = line.unwrap_or_default().iter().filter(|byte| byte.is_ascii_digit());
    let kib = digits.fold(0_u64, |sum, digit| sum.saturating_mul(10).saturating_add(u64::from(digit - b'0')));
    kib.saturating_mul(1024)
}

/// Returns the name of the calling thread, up to its NUL.
pub(crate) fn thread_name(into: &mut [u8; 16]) -> &[u8] {
    // SAFETY: the kernel writes at most 16 bytes, the length of the array.
    unsafe { libc::syscall(libc::SYS_prctl, libc::PR_GET_NAME, into.as_mut_ptr()) };
    into.split(|&byte| byte == 0).next().unwrap_or_default()
}

/// Character between the names of a path.
pub(crate) const SEPARATOR: u8 = b'/';

/// Writes in front of a relative path what makes it absolute.
pub(crate) fn push_directory(path: &[u8], text: &mut PathText<'_>, scratch: &mut [u8]) {
    if !path.starts_with(b"/") {
        let length = working_directory(scratch);
        text.push(scratch.get(..length).unwrap_or_default());
        text.push(b"/");
    }
}

/// Returns the path of the program, cut to the buffer.
pub(crate) fn executable(into: &mut [u8]) -> &[u8] {
    let path = c"/proc/self/exe";
    // SAFETY: the kernel writes at most the length of the slice.
    let count = answer(unsafe {
        libc::syscall(libc::SYS_readlinkat, libc::AT_FDCWD, path.as_ptr(), into.as_mut_ptr(), into.len())
    });
    into.get(..count.unwrap_or(0)).unwrap_or_default()
}

/// Writes the working directory; returns its length without the NUL, 0 if it is unknown.
pub(crate) fn working_directory(into: &mut [u8]) -> usize {
    // SAFETY: the kernel writes at most the length of the slice.
    let count = answer(unsafe { libc::syscall(libc::SYS_getcwd, into.as_mut_ptr(), into.len()) });
    count.unwrap_or(0).saturating_sub(1)
}

/// Returns a variable of the environment, cut to the buffer; `None` where it is not set.
///
/// The C library's `getenv` is not async-signal-safe.
pub(crate) fn environment_variable<'b>(name: &[u8], into: &'b mut [u8]) -> Option<&'b [u8]> {
    unsafe extern "C" {
        static environ: *const *const c_char;
    }
    // SAFETY: the C library's pointer, null or to a list that ends with null. A program that
    // changes it in another thread at this moment races with every `getenv` as well.
    let mut entry = unsafe { environ };
    while !entry.is_null() {
        // SAFETY: an entry of that list, not behind the null at its end.
        let text = unsafe { *entry };
        if text.is_null() {
            break;
        }
        // SAFETY: the entries of the list are C strings.
        let text = unsafe { CStr::from_ptr(text) }.to_bytes();
        if let Some(value) = text.strip_prefix(name).and_then(|rest| rest.strip_prefix(b"=")) {
            let count = value.len().min(into.len());
            let (place, value) = (into.get_mut(..count)?, value.get(..count)?);
            place.copy_from_slice(value);
            return Some(place);
        }
        // SAFETY: this entry is not the null at the end of the list.
        entry = unsafe { entry.add(1) };
    }
    None
}

/// Gives a nameless file a name; fails if a file of that name exists.
pub(crate) fn link(file: &File, path: &CStr) -> Result<(), Errno> {
    let mut source = [0_u8; 32];
    let mut text = PathText::new(&mut source);
    text.push(b"/proc/self/fd/");
    text.push_number(file.descriptor() as u32);
    let source = text.as_c_string().ok_or(Errno(libc::ENAMETOOLONG))?;
    // SAFETY: both `CStr`s end with a NUL, and the kernel only reads them.
    answer(unsafe {
        libc::syscall(
            libc::SYS_linkat,
            libc::AT_FDCWD,
            source.as_ptr(),
            libc::AT_FDCWD,
            path.as_ptr(),
            libc::AT_SYMLINK_FOLLOW,
        )
    })
    .map(drop)
}

/// Removes the name of a file.
pub(crate) fn unlink(path: &CStr) {
    // SAFETY: a `CStr` ends with a NUL, and the kernel only reads it.
    unsafe { libc::syscall(libc::SYS_unlinkat, libc::AT_FDCWD, path.as_ptr(), 0) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peak_is_found_among_the_lines_of_a_status() {
        let status = b"Name:\tVmHWM: 7\nVmPeak:\t    9000 kB\nVmHWM:\t    1234 kB\nVmRSS:\t    1000 kB\n";
        assert_eq!(peak_of_status(status), 1234 * 1024);
        assert_eq!(peak_of_status(b"Name:\tkthread\nThreads:\t1\n"), 0);
        assert_eq!(peak_of_status(b"VmHWM:\t99999999999999999999 kB"), u64::MAX);
        assert!(peak_resident_bytes() > 0, "this kernel has /proc/self/status");
    }
}
