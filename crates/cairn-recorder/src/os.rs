//! System calls without the C library's wrappers.
//!
//! The wrappers of `open`, `close`, `nanosleep` and others are cancellation points, and some are
//! interposed by the very library that this code is part of. So every call here goes through
//! `syscall`, which is neither. Every entry of the recorder that can make a system call preserves
//! the program's `errno` ([`ErrnoGuard`]).

use core::ffi::{CStr, c_char, c_int, c_long};
use core::ptr;
use core::sync::atomic::{AtomicU32, Ordering};

/// Error number of a failed system call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Errno(pub(crate) c_int);

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
    pub(crate) unsafe fn open_shared(path: *const c_char, flags: c_int) -> Result<Self, Errno> {
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

impl Drop for File {
    fn drop(&mut self) {
        // SAFETY: the descriptor was opened by this type, which closes it once.
        unsafe { libc::syscall(libc::SYS_close, self.0) };
    }
}

/// Maps zeroed memory in a zone, where it can grow.
pub(crate) fn zeroed_apart(bytes: usize, zone: &Zone) -> Result<usize, Errno> {
    place(bytes, zone, |hint| anonymous(hint, bytes, libc::PROT_READ | libc::PROT_WRITE, 0))
}

/// A part of the address space far below the place that the kernel chooses for new mappings. They
/// therefore reach it late.
pub(crate) struct Zone {
    /// Distance below the place that the kernel chooses.
    pub(crate) from: usize,
    /// Size of the zone, downwards from there.
    pub(crate) bytes: usize,
    /// Number of mappings that were placed in it.
    pub(crate) count: AtomicU32,
}

impl Zone {
    /// Returns the place of the next mapping, in 2^32nds of the zone. The reversed bits of a
    /// counter put each mapping into the middle of a largest gap between the earlier ones.
    fn next(&self) -> u32 {
        self.count.fetch_add(1, Ordering::Relaxed).reverse_bits()
    }
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
pub(crate) fn synchronise(at: usize, bytes: usize) -> Result<(), Errno> {
    // SAFETY: the range is the caller's own mapping, which the kernel only reads.
    answer(unsafe { libc::syscall(libc::SYS_msync, at, bytes, libc::MS_SYNC) }).map(drop)
}

/// Returns the soft limit of a resource; `u64::MAX` for none.
pub(crate) fn soft_limit(resource: c_int) -> u64 {
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

/// Returns the target of a symbolic link, cut to the buffer.
pub(crate) fn read_link<'a>(path: &CStr, into: &'a mut [u8]) -> &'a [u8] {
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

/// Builds a C string in a buffer.
pub(crate) struct PathText<'a> {
    bytes: &'a mut [u8],
    length: usize,
    is_cut: bool,
}

impl<'a> PathText<'a> {
    pub(crate) fn new(bytes: &'a mut [u8]) -> Self {
        Self { bytes, length: 0, is_cut: false }
    }

    pub(crate) fn push(&mut self, part: &[u8]) {
        // One byte stays for the NUL.
        let end = self.length + part.len();
        match self.bytes.get_mut(self.length..end + 1) {
            Some(place) => {
                place[..part.len()].copy_from_slice(part);
                place[part.len()] = 0;
                self.length = end;
            }
            None => self.is_cut = true,
        }
    }

    pub(crate) fn push_number(&mut self, number: u32) {
        let mut digits = [0_u8; 10];
        let (mut rest, mut first) = (number, digits.len());
        loop {
            first -= 1;
            digits[first] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        self.push(&digits[first..]);
    }

    /// Returns the length without the NUL.
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// Returns the string; `None` if it did not fit, or contains a NUL.
    pub(crate) fn as_c_string(&self) -> Option<&CStr> {
        let bytes = self.bytes.get(..self.length + 1)?;
        if self.is_cut { None } else { CStr::from_bytes_with_nul(bytes).ok() }
    }
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
