//! The kernel, asked without the C library's wrappers.
//!
//! The wrappers of `open`, `close`, `nanosleep` and others are cancellation points, and some are interposed by the very
//! library that this code is part of. So every call here goes through `syscall`, which is neither, and every entry of the
//! recorder that may come here keeps the program's `errno` ([`KeptErrno`]).

use core::ffi::{CStr, c_int, c_long};
use core::ptr;
use core::sync::atomic::{AtomicU32, Ordering};

/// What the kernel answers in place of a result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Errno(pub(crate) c_int);

/// Restores `errno` when it goes out of scope: the program must not see errors that it did not cause.
pub(crate) struct KeptErrno(c_int);

impl KeptErrno {
    pub(crate) fn new() -> Self {
        // SAFETY: the address of this thread's errno is always valid.
        Self(unsafe { *libc::__errno_location() })
    }
}

impl Drop for KeptErrno {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { *libc::__errno_location() = self.0 }
    }
}

/// The result of a call, or the error that it left behind.
fn answer(result: c_long) -> Result<usize, Errno> {
    if result == -1 {
        // SAFETY: the address of this thread's errno is always valid.
        return Err(Errno(unsafe { *libc::__errno_location() }));
    }
    Ok(result as usize)
}

/// True when this process runs with more rights than its caller, as a set-user-ID program does: the caller's environment and working
/// directory must not direct it.
pub(crate) fn has_raised_rights() -> bool {
    // SAFETY: only looks at what the kernel told the process when it began.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// A file descriptor for the length of one function.
pub(crate) struct File(c_int);

impl File {
    pub(crate) fn open(path: &CStr, flags: c_int, mode: u32) -> Result<Self, Errno> {
        let flags = flags | libc::O_CLOEXEC | libc::O_NOCTTY;
        // SAFETY: the path ends with a NUL.
        let number = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags, mode) };
        answer(number).map(|number| Self(number as c_int))
    }

    /// Memory with a descriptor.
    pub(crate) fn in_memory(name: &CStr) -> Result<Self, Errno> {
        // SAFETY: the name ends with a NUL.
        let number = unsafe { libc::syscall(libc::SYS_memfd_create, name.as_ptr(), libc::MFD_CLOEXEC) };
        answer(number).map(|number| Self(number as c_int))
    }

    pub(crate) fn descriptor(&self) -> c_int {
        self.0
    }

    pub(crate) fn read(&self, into: &mut [u8]) -> Result<usize, Errno> {
        loop {
            // SAFETY: writes into the slice alone.
            let count =
                answer(unsafe { libc::syscall(libc::SYS_read, self.0, into.as_mut_ptr(), into.len()) });
            if count != Err(Errno(libc::EINTR)) {
                return count;
            }
        }
    }

    /// Reads until the end or until `into` is full; the bytes read.
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
            // SAFETY: reads the slice alone.
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
        // SAFETY: moves the position of our own descriptor.
        answer(unsafe { libc::syscall(libc::SYS_lseek, self.0, to, libc::SEEK_SET) }).map(drop)
    }

    pub(crate) fn set_length(&self, bytes: u64) -> Result<(), Errno> {
        // SAFETY: changes our own file.
        answer(unsafe { libc::syscall(libc::SYS_ftruncate, self.0, bytes) }).map(drop)
    }

    /// Which file it is: device and inode.
    pub(crate) fn identity(&self) -> Result<(u64, u64), Errno> {
        self.identity_and_length().map(|(identity, _)| identity)
    }

    /// Which file it is, and how long.
    pub(crate) fn identity_and_length(&self) -> Result<((u64, u64), u64), Errno> {
        let mut status = core::mem::MaybeUninit::<libc::stat>::zeroed();
        // SAFETY: writes to the variable.
        answer(unsafe { libc::syscall(libc::SYS_fstat, self.0, status.as_mut_ptr()) })?;
        // SAFETY: filled, and zeros are a value.
        let status = unsafe { status.assume_init() };
        Ok(((status.st_dev, status.st_ino), status.st_size as u64))
    }

    /// How much room its file system has; `u64::MAX` where that is not known.
    pub(crate) fn free_bytes(&self) -> u64 {
        let mut status = core::mem::MaybeUninit::<libc::statfs>::zeroed();
        // SAFETY: writes to the variable.
        let result = answer(unsafe { libc::syscall(libc::SYS_fstatfs, self.0, status.as_mut_ptr()) });
        // SAFETY: filled, or zeros, which are a value.
        let status = unsafe { status.assume_init() };
        // Some file systems know no blocks.
        if result.is_err() || status.f_blocks == 0 {
            return u64::MAX;
        }
        status.f_bavail.saturating_mul(status.f_bsize as u64)
    }

    /// Storage for a range of the file, which grows as far as needed. The bytes that are there stay.
    pub(crate) fn allocate(&self, from: u64, bytes: u64) -> Result<(), Errno> {
        loop {
            // SAFETY: changes our own file.
            let result = answer(unsafe { libc::syscall(libc::SYS_fallocate, self.0, 0, from, bytes) });
            if result != Err(Errno(libc::EINTR)) {
                return result.map(drop);
            }
        }
    }

    /// Writes zeros, where a file system knows no other way to give storage.
    pub(crate) fn write_zeros(&self, from: u64, bytes: u64) -> Result<(), Errno> {
        static ZEROS: [u8; 4096] = [0; 4096];
        let mut done = 0;
        while done < bytes {
            let length = (bytes - done).min(ZEROS.len() as u64) as usize;
            // SAFETY: reads the zeros alone.
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

    /// Maps the first `bytes` of the file, shared, to be read and written, at a multiple of `alignment`, in a zone. The
    /// address.
    pub(crate) fn map(&self, bytes: usize, alignment: usize, zone: &Zone) -> Result<usize, Errno> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let map_at = |at: usize, flags: c_int| {
            let flags = libc::MAP_SHARED | flags;
            // SAFETY: at an address that is free, or that the next lines have reserved.
            answer(unsafe { libc::syscall(libc::SYS_mmap, at, bytes, protection, flags, self.0, 0_usize) })
        };
        place(bytes, zone, |hint| {
            if hint != 0 {
                return map_at(hint, 0);
            }
            let reserved = anonymous(0, bytes + alignment, libc::PROT_NONE, 0)?;
            let at = reserved.next_multiple_of(alignment);
            let mapped = map_at(at, libc::MAP_FIXED);
            // SAFETY: what is left of the reservation of a moment ago, which nobody knows; all of it where nothing was mapped.
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
        // SAFETY: our own descriptor, opened in the same function.
        unsafe { libc::syscall(libc::SYS_close, self.0) };
    }
}

/// As [`zeroed`], in a zone, where it can grow.
pub(crate) fn zeroed_apart(bytes: usize, zone: &Zone) -> Result<usize, Errno> {
    place(bytes, zone, |hint| anonymous(hint, bytes, libc::PROT_READ | libc::PROT_WRITE, 0))
}

/// A part of the address space that new mappings reach late: so far below the place that the kernel chooses by itself.
pub(crate) struct Zone {
    /// The distance.
    pub(crate) from: usize,
    /// How far down from there it goes.
    pub(crate) bytes: usize,
    /// How many mappings were placed in it.
    pub(crate) count: AtomicU32,
}

impl Zone {
    /// Where the next mapping may be, in 2^32nds of the zone: as far from all others as can be, however many there will be.
    fn next(&self) -> u32 {
        self.count.fetch_add(1, Ordering::Relaxed).reverse_bits()
    }
}

/// Maps `bytes` by `map`, which takes an address that the kernel passes over when something is there: in the zone, or in a smaller one of
/// a smaller address space, or at the place that the kernel chooses by itself.
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
            // Where both together are more than a limit allows, the one that is there serves.
            let Ok(got) = map(wanted) else { return Ok(near) };
            let other = if got == wanted { near } else { got };
            // SAFETY: a mapping of a moment ago, which nobody knows.
            unsafe { unmap(other, bytes) };
            if got == wanted {
                return Ok(got);
            }
        }
    }
    Ok(near)
}

/// Places that are chosen here begin at a multiple of this.
const EXTENT_ALIGNMENT: usize = 1 << 21;

/// Makes the mapping that ends at `end` longer where it lies. Fails where another mapping is behind it.
pub(crate) fn lengthen(end: usize, more: usize) -> Result<(), Errno> {
    let from = end - PAGE_BYTES;
    // SAFETY: the last page of the caller's own mapping; without the flag that allows it, nothing is moved, and nothing is replaced.
    answer(unsafe { libc::syscall(libc::SYS_mremap, from, PAGE_BYTES, PAGE_BYTES + more, 0) }).map(drop)
}

/// Zeroed memory that costs nothing until it is touched, at an address of the kernel's choice.
pub(crate) fn zeroed(bytes: usize) -> Result<usize, Errno> {
    anonymous(0, bytes, libc::PROT_READ | libc::PROT_WRITE, 0)
}

/// Puts zeroed private memory in place of what is mapped there.
///
/// # Safety
///
/// Nothing that lies there is needed any more, by any thread.
pub(crate) unsafe fn replace_by_zeros(at: usize, bytes: usize) {
    let _ = anonymous(at, bytes, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_FIXED);
}

fn anonymous(at: usize, bytes: usize, protection: c_int, flags: c_int) -> Result<usize, Errno> {
    let flags = flags | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: without `MAP_FIXED` it touches no existing memory; a fixed address is the caller's.
    answer(unsafe { libc::syscall(libc::SYS_mmap, at, bytes, protection, flags, -1, 0_usize) })
}

/// # Safety
///
/// The range is a mapping of the caller's that nobody uses any more.
pub(crate) unsafe fn unmap(at: usize, bytes: usize) {
    // SAFETY: by contract.
    unsafe { libc::syscall(libc::SYS_munmap, at, bytes) };
}

/// Makes zeros of the whole pages of private memory within a range, and gives the memory back.
///
/// # Safety
///
/// Nobody needs what is there, and zeros are a value of it.
pub(crate) unsafe fn forget(at: usize, bytes: usize) {
    let from = at.next_multiple_of(PAGE_BYTES);
    let to = (at + bytes) & !(PAGE_BYTES - 1);
    if from < to {
        // SAFETY: by contract.
        unsafe { libc::syscall(libc::SYS_madvise, from, to - from, libc::MADV_DONTNEED) };
    }
}

/// Takes the pages of a shared file out of this process's memory; what is in them stays in the file, and comes back when it is touched.
pub(crate) fn leave_to_file(at: usize, bytes: usize) {
    // SAFETY: the range is the caller's own mapping, of memory that is shared: nothing is forgotten.
    unsafe { libc::syscall(libc::SYS_madvise, at, bytes, libc::MADV_DONTNEED) };
}

/// The largest page of any system that this is built for.
pub(crate) const PAGE_BYTES: usize = if cfg!(target_arch = "x86_64") { 4096 } else { 1 << 16 };

/// Has the range read as zeros in every forked child. In pages of the usual size, of which a little is touched here and there.
pub(crate) fn wipe_on_fork(at: usize, bytes: usize) -> Result<(), Errno> {
    // SAFETY: the range is the caller's own mapping.
    unsafe { libc::syscall(libc::SYS_madvise, at, bytes, libc::MADV_NOHUGEPAGE) };
    // SAFETY: the range is the caller's own mapping.
    answer(unsafe { libc::syscall(libc::SYS_madvise, at, bytes, libc::MADV_WIPEONFORK) }).map(drop)
}

/// Whether advice is heard and not followed, as by qemu 7 where it runs single programs. The kernel refuses to wipe memory
/// that others share, as the page at `shared`.
pub(crate) fn ignores_advice(shared: usize) -> bool {
    const PAGE_BYTES: usize = 1 << 16;
    // SAFETY: the caller's own mapping; of memory that others share nothing is ever wiped.
    answer(unsafe { libc::syscall(libc::SYS_madvise, shared, PAGE_BYTES, libc::MADV_WIPEONFORK) }).is_ok()
}

/// Has the kernel prepare the range for writing: one call in place of a fault for each page. An old kernel does not know how.
pub(crate) fn populate(at: usize, bytes: usize) {
    // SAFETY: the range is the caller's own mapping, and has storage.
    unsafe { libc::syscall(libc::SYS_madvise, at, bytes, libc::MADV_POPULATE_WRITE) };
}

/// Has the kernel write the range to its file, and waits for it.
pub(crate) fn synchronise(at: usize, bytes: usize) -> Result<(), Errno> {
    // SAFETY: the range is the caller's own mapping.
    answer(unsafe { libc::syscall(libc::SYS_msync, at, bytes, libc::MS_SYNC) }).map(drop)
}

/// The soft limit of a resource; `u64::MAX` for none.
pub(crate) fn soft_limit(resource: c_int) -> u64 {
    let mut limit = libc::rlimit64 { rlim_cur: u64::MAX, rlim_max: u64::MAX };
    let none = ptr::null::<libc::rlimit64>();
    // SAFETY: writes to the variable.
    let result = answer(unsafe { libc::syscall(libc::SYS_prlimit64, 0, resource, none, &raw mut limit) });
    result.map_or(u64::MAX, |_| limit.rlim_cur)
}

pub(crate) fn process_id() -> u32 {
    // SAFETY: only asks.
    unsafe { libc::syscall(libc::SYS_getpid) as u32 }
}

pub(crate) fn thread_id() -> u32 {
    // SAFETY: only asks.
    unsafe { libc::syscall(libc::SYS_gettid) as u32 }
}

/// True when this process has no thread of that number.
pub(crate) fn has_ended(thread: u32) -> bool {
    has_ended_in(process_id(), thread)
}

/// True when that process has no thread of that number.
pub(crate) fn has_ended_in(process: u32, thread: u32) -> bool {
    // SAFETY: signal 0 only asks whether the thread is there.
    answer(unsafe { libc::syscall(libc::SYS_tgkill, process, thread, 0) }) == Err(Errno(libc::ESRCH))
}

/// Waits, or returns early for a signal.
pub(crate) fn sleep_micros(micros: u32) {
    let time = libc::timespec { tv_sec: 0, tv_nsec: c_long::from(micros) * 1000 };
    // SAFETY: reads the variable.
    unsafe { libc::syscall(libc::SYS_nanosleep, &raw const time, ptr::null_mut::<libc::timespec>()) };
}

/// The name of the calling thread, up to its NUL.
pub(crate) fn thread_name(into: &mut [u8; 16]) -> &[u8] {
    // SAFETY: writes at most 16 bytes.
    unsafe { libc::syscall(libc::SYS_prctl, libc::PR_GET_NAME, into.as_mut_ptr()) };
    into.split(|&byte| byte == 0).next().unwrap_or_default()
}

/// What a symbolic link says.
pub(crate) fn read_link<'a>(path: &CStr, into: &'a mut [u8]) -> &'a [u8] {
    // SAFETY: writes into the slice alone.
    let count = answer(unsafe {
        libc::syscall(libc::SYS_readlinkat, libc::AT_FDCWD, path.as_ptr(), into.as_mut_ptr(), into.len())
    });
    into.get(..count.unwrap_or(0)).unwrap_or_default()
}

/// The working directory, without its NUL; empty where it cannot be told.
pub(crate) fn working_directory(into: &mut [u8]) -> usize {
    // SAFETY: writes into the slice alone.
    let count = answer(unsafe { libc::syscall(libc::SYS_getcwd, into.as_mut_ptr(), into.len()) });
    count.unwrap_or(0).saturating_sub(1)
}

/// Gives a file that has no name yet this name; fails where there is a file of that name.
pub(crate) fn link(file: &File, path: &CStr) -> Result<(), Errno> {
    let mut source = [0_u8; 32];
    let mut text = PathText::new(&mut source);
    text.push(b"/proc/self/fd/");
    text.push_number(file.descriptor() as u32);
    let source = text.as_c_string().ok_or(Errno(libc::ENAMETOOLONG))?;
    // SAFETY: both paths end with a NUL.
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

/// Removes a name.
pub(crate) fn unlink(path: &CStr) {
    // SAFETY: the path ends with a NUL.
    unsafe { libc::syscall(libc::SYS_unlinkat, libc::AT_FDCWD, path.as_ptr(), 0) };
}

/// A C string that is put together in place.
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

    /// Without the NUL.
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// `None` when something did not fit, or a NUL stands within.
    pub(crate) fn as_c_string(&self) -> Option<&CStr> {
        let bytes = self.bytes.get(..self.length + 1)?;
        if self.is_cut { None } else { CStr::from_bytes_with_nul(bytes).ok() }
    }
}
