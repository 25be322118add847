//! Reads this process's memory where it may be unreadable: the kernel copies it, and reports where
//! it cannot.
//!
//! `process_vm_readv` is one system call and takes no descriptor. Some sandboxes forbid it, and
//! emulators lack it; then `/proc/self/mem` is read.

use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicU8, Ordering};

pub(crate) const PAGE_BYTES: u64 = 4096;

/// Most bytes by which a stack grows between two captures; a larger distance means another stack.
const MAX_NEW_BYTES: u64 = 1 << 26;

/// Pages probed by one system call; 32, because each takes 16 bytes of stack. The call's own limit
/// is 1024.
pub(crate) const PROBE_PAGES: usize = 32;

/// Returns true when all pages from `low` to `high` are readable, and no more than
/// [`MAX_NEW_BYTES`]. Costs one system call for each 128 KiB.
pub(crate) fn is_readable(low: u64, high: u64) -> bool {
    first_unreadable(low, high).is_none()
}

/// Returns the first unreadable page from the one of `low` up to `high`. Returns `low` itself if
/// these are more than [`MAX_NEW_BYTES`].
pub(crate) fn first_unreadable(low: u64, high: u64) -> Option<u64> {
    let mut page = low & !(PAGE_BYTES - 1);
    if high.saturating_sub(page) > MAX_NEW_BYTES {
        return Some(low);
    }
    while page < high {
        let pages = ((high - page).div_ceil(PAGE_BYTES) as usize).min(PROBE_PAGES);
        let readable = readable_pages(page, pages);
        page += readable as u64 * PAGE_BYTES;
        if readable != pages {
            return Some(page);
        }
    }
    None
}

/// Returns the end of the readable memory that begins at `address`. It lies at most `pages` pages
/// and at most [`PROBE_PAGES`] further up.
pub(crate) fn readable_end(address: u64, pages: usize) -> u64 {
    let first_page = address & !(PAGE_BYTES - 1);
    match readable_pages(first_page, pages.min(PROBE_PAGES)) {
        0 => address,
        pages => first_page + pages as u64 * PAGE_BYTES,
    }
}

/// Counts the readable pages up to the first unreadable one, by reading a byte of each.
fn readable_pages(first_page: u64, pages: usize) -> usize {
    let mut bytes = [0_u8; PROBE_PAGES];
    let local = [libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: pages }];
    let mut remote = [libc::iovec { iov_base: core::ptr::null_mut(), iov_len: 1 }; PROBE_PAGES];
    for (index, place) in remote.iter_mut().enumerate() {
        place.iov_base = (first_page + index as u64 * PAGE_BYTES) as *mut _;
    }
    match read_self(&local, remote.get(..pages).unwrap_or_default()) {
        Some(count) => usize::try_from(count).unwrap_or(0),
        None => {
            let is_readable = |index: &usize| is_word_readable(first_page + *index as u64 * PAGE_BYTES);
            (0..pages).take_while(is_readable).count()
        }
    }
}

/// Reads one word of a stack; `None` where it is unreadable.
pub(crate) fn read_word(address: u64) -> Option<u64> {
    let mut word = 0_u64;
    let local = libc::iovec { iov_base: (&raw mut word).cast(), iov_len: 8 };
    let remote = libc::iovec { iov_base: address as *mut _, iov_len: 8 };
    match read_self(&[local], &[remote]) {
        Some(8) => Some(word),
        Some(_) => None,
        None => is_word_readable(address).then(|| {
            // SAFETY: the kernel could read these 8 bytes a moment ago, and stacks of running
            // threads are not unmapped. An array of bytes needs no alignment.
            u64::from_ne_bytes(unsafe { (address as *const [u8; 8]).read_volatile() })
        }),
    }
}

/// Copies bytes from any address of this process, up to the first unreadable page. Returns their
/// count.
///
/// Takes no lock, and makes one system call for each page. Another thread may unmap the memory
/// meanwhile. But where `process_vm_readv` is forbidden and there is no `/proc` either, each page
/// is probed and then read directly: that is safe only for memory that stays mapped.
pub fn read_bytes(address: u64, into: &mut [u8]) -> usize {
    let mut count = 0;
    while let Some(rest) = into.get_mut(count..).filter(|rest| !rest.is_empty()) {
        let from = address.wrapping_add(count as u64);
        // One page at a time, because the kernel reads either all or nothing of it.
        let length = rest.len().min((PAGE_BYTES - from % PAGE_BYTES) as usize);
        let local = libc::iovec { iov_base: rest.as_mut_ptr().cast(), iov_len: length };
        let remote = libc::iovec { iov_base: from as *mut _, iov_len: length };
        match read_self(&[local], &[remote]) {
            Some(read) if read == length as isize => {}
            Some(_) => break,
            None => match read_file_of_self(from, rest) {
                Some(read) => return count + read,
                None if is_word_readable(from & !7) => {
                    // SAFETY: the page was readable a moment ago, and the bytes lie within it and
                    // within `rest`, which does not overlap them. The function's documentation
                    // limits this case to memory that stays mapped.
                    unsafe { core::ptr::copy_nonoverlapping(from as *const u8, rest.as_mut_ptr(), length) };
                }
                None => break,
            },
        }
        count += length;
    }
    count
}

/// Calls `process_vm_readv` on this process. Returns the count of bytes read, or -1; `None` where
/// the call is not available. The caller's errno does not change.
fn read_self(local: &[libc::iovec], remote: &[libc::iovec]) -> Option<isize> {
    static IS_ABSENT: AtomicBool = AtomicBool::new(false);
    if IS_ABSENT.load(Ordering::Relaxed) {
        return None;
    }
    let (count, error) = with_errno_unchanged(|| {
        // SAFETY: all callers point the local vectors at buffers that they own; the kernel checks
        // the remote ones.
        unsafe {
            libc::syscall(
                libc::SYS_process_vm_readv,
                libc::getpid(),
                local.as_ptr(),
                local.len(),
                remote.as_ptr(),
                remote.len(),
                // As wide as a register: the upper half of a narrower argument would be arbitrary.
                0_usize,
            )
        }
    });
    if count == -1 && matches!(error, libc::ENOSYS | libc::EPERM) {
        IS_ABSENT.store(true, Ordering::Relaxed);
        return None;
    }
    Some(count as isize)
}

/// Copies bytes as [`read_bytes`] does, from `/proc/self/mem`. `None` where there is no such file,
/// or where it has other contents, as in an emulator that translates addresses.
///
/// Opens the file each time: programs close and reuse descriptors that they did not open.
fn read_file_of_self(address: u64, into: &mut [u8]) -> Option<usize> {
    const UNKNOWN: u8 = 0;
    const RIGHT: u8 = 1;
    const ABSENT: u8 = 2;
    static STATE: AtomicU8 = AtomicU8::new(UNKNOWN);
    match STATE.load(Ordering::Relaxed) {
        RIGHT => {}
        UNKNOWN => {
            let mut bytes = [0_u8; 32];
            let known = b"a text to compare with /proc/self/mem";
            let count = copy_from_file_of_self(known.as_ptr() as u64, &mut bytes);
            if count == Err(libc::EMFILE) || count == Err(libc::ENFILE) {
                return Some(0);
            }
            let is_right = count == Ok(bytes.len()) && known.starts_with(&bytes);
            STATE.store(if is_right { RIGHT } else { ABSENT }, Ordering::Relaxed);
            is_right.then_some(())?;
        }
        _ => return None,
    }
    // Without a free descriptor the memory counts as unreadable.
    Some(copy_from_file_of_self(address, into).unwrap_or(0))
}

fn copy_from_file_of_self(address: u64, into: &mut [u8]) -> Result<usize, c_int> {
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    let (file, error) = with_errno_unchanged(|| {
        // SAFETY: the path is a C string, and the call writes no memory.
        unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, c"/proc/self/mem".as_ptr(), flags, 0) }
    });
    if file < 0 {
        return Err(error);
    }
    let (count, error) = with_errno_unchanged(|| {
        // SAFETY: the call writes at most `into.len()` bytes to `into`; the kernel checks the
        // source.
        unsafe { libc::syscall(libc::SYS_pread64, file, into.as_mut_ptr(), into.len(), address) }
    });
    // SAFETY: the descriptor was opened above, and nothing else uses it.
    with_errno_unchanged(|| unsafe { libc::syscall(libc::SYS_close, file) });
    usize::try_from(count).map_err(|_| error)
}

/// True when the kernel could read 8 bytes at `address` just now.
///
/// `rt_sigprocmask` is called with an invalid way to change the set of blocked signals. It reads
/// the new set before it checks the way, so the error shows whether the set was readable; nothing
/// changes.
fn is_word_readable(address: u64) -> bool {
    /// Neither block, nor unblock, nor set.
    const INVALID_WAY: libc::c_long = -1;
    let (status, error) = with_errno_unchanged(|| {
        // SAFETY: the kernel checks the address. The way is invalid, so it writes and changes
        // nothing.
        unsafe { libc::syscall(libc::SYS_rt_sigprocmask, INVALID_WAY, address, 0_usize, 8_usize) }
    });
    status == -1 && error == libc::EINVAL
}

/// Runs a system call and returns its result and errno. The program's own errno does not change.
pub(crate) fn with_errno_unchanged(call: impl FnOnce() -> libc::c_long) -> (libc::c_long, i32) {
    // SAFETY: the call only returns the address of this thread's errno.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: errno is valid while the thread runs.
    let saved = unsafe { *errno };
    let result = call();
    // SAFETY: errno is valid while the thread runs, and no reference to it exists.
    let error = unsafe { core::mem::replace(&mut *errno, saved) };
    (result, error)
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;

    /// Fills the memory of the next call's frame with ones.
    #[inline(never)]
    fn fill_the_stack() {
        std::hint::black_box([u64::MAX; 256]);
    }

    #[test]
    fn read_word_ignores_what_the_stack_contained_before() {
        let word = 0x1234_u64;
        for _ in 0..10 {
            fill_the_stack();
            assert_eq!(read_word((&raw const word) as u64), Some(0x1234));
        }
    }

    #[test]
    fn unmapped_memory_is_not_readable() {
        assert!(!is_readable(0x1000, 0x2000));
        assert_eq!(read_word(8), None);
        let word = 0x1234_u64;
        assert_eq!(read_word((&raw const word) as u64), Some(0x1234));
    }

    #[test]
    fn read_bytes_stops_at_an_unreadable_page() {
        let text: std::vec::Vec<u8> = (0..10_000).map(|number| number as u8).collect();
        let mut copy = std::vec![0; text.len()];
        assert_eq!(read_bytes(text.as_ptr() as u64, &mut copy), text.len());
        assert_eq!(copy, text);
        assert_eq!(read_bytes(16, &mut copy), 0);
    }

    #[test]
    fn is_word_readable_agrees_with_mapped_memory() {
        assert!(!is_word_readable(0x1000));
        assert!(!is_word_readable(u64::MAX - 3));
        let words = [1_u64, 2];
        let address = (&raw const words) as u64;
        assert!(is_word_readable(address) && is_word_readable(address + 3));
    }

    #[test]
    fn proc_self_mem_agrees_with_memory() {
        // SAFETY: a new mapping, to which nothing else refers; the second page is unmapped before
        // any use.
        let pages = unsafe {
            let anywhere = core::ptr::null_mut();
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let pages = libc::mmap(
                anywhere,
                2 * PAGE_BYTES as usize,
                libc::PROT_READ | libc::PROT_WRITE,
                flags,
                -1,
                0,
            );
            assert_eq!(libc::munmap(pages.byte_add(PAGE_BYTES as usize), PAGE_BYTES as usize), 0);
            pages.cast::<[u8; 16]>().write([7; 16]);
            pages as u64
        };
        let mut copy = [1; 16];
        assert_eq!(read_file_of_self(pages, &mut copy), Some(16));
        assert_eq!(copy, [7; 16]);
        assert_eq!(read_file_of_self(pages + PAGE_BYTES - 4, &mut copy), Some(4));
        assert_eq!(copy.get(..6), Some(&[0, 0, 0, 0, 7, 7][..]));
        assert_eq!(read_file_of_self(pages + PAGE_BYTES, &mut copy), Some(0));
        assert_eq!(read_file_of_self(u64::MAX - 4, &mut copy), Some(0));
    }
}
