//! Reading this process's memory where nobody promises that it can be read: the kernel copies it, and says where it cannot.
//!
//! `process_vm_readv` is one system call and takes no descriptor. Some sandboxes forbid it, and emulators lack it; then the
//! process's own file of its memory is read.

use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicU8, Ordering};

pub(crate) const PAGE_BYTES: u64 = 4096;

/// How far a stack may reach beyond what is known of it, each time it is found to be deeper. A larger distance means that
/// this is another stack.
const MAX_NEW_BYTES: u64 = 1 << 26;

/// So many pages are probed by one system call (its own limit is 1024).
pub(crate) const PROBE_PAGES: usize = 32;

/// True when all pages from the one of `low` up to `high` are readable, and not too many. Costs one system call for each
/// 128 KiB.
pub(crate) fn is_readable(low: u64, high: u64) -> bool {
    first_unreadable(low, high).is_none()
}

/// The first page from the one of `low` up to `high` that is not readable; `low` itself where these are too many.
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

/// The end of the readable memory that begins at `address`, as far as one system call tells: at most so many pages on, of which it can
/// ask for [`PROBE_PAGES`].
pub(crate) fn readable_end(address: u64, pages: usize) -> u64 {
    let first_page = address & !(PAGE_BYTES - 1);
    match readable_pages(first_page, pages.min(PROBE_PAGES)) {
        0 => address,
        pages => first_page + pages as u64 * PAGE_BYTES,
    }
}

/// How many of the pages are readable, up to the first that is not: reads a byte of each.
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

/// Reads one word of a stack, or answers `None` where the kernel says that it cannot be read.
pub(crate) fn read_word(address: u64) -> Option<u64> {
    let mut word = 0_u64;
    let local = libc::iovec { iov_base: (&raw mut word).cast(), iov_len: 8 };
    let remote = libc::iovec { iov_base: address as *mut _, iov_len: 8 };
    match read_self(&[local], &[remote]) {
        Some(8) => Some(word),
        Some(_) => None,
        None => is_word_readable(address).then(|| {
            // SAFETY: the kernel could read it a moment ago, and the stack of a thread that runs is not unmapped.
            u64::from_ne_bytes(unsafe { (address as *const [u8; 8]).read_volatile() })
        }),
    }
}

/// Copies bytes from anywhere in this process, up to the first page that cannot be read, and returns how many. Takes no lock; one
/// system call a page. Another thread may unmap them meanwhile.
///
/// Where `process_vm_readv` is forbidden and there is no `/proc` either, the kernel is asked whether a page can be read, and then it
/// is read: that is safe for memory that stays.
pub fn read_bytes(address: u64, into: &mut [u8]) -> usize {
    let mut count = 0;
    while let Some(rest) = into.get_mut(count..).filter(|rest| !rest.is_empty()) {
        let from = address.wrapping_add(count as u64);
        // The kernel reads a page wholly or not at all, but stops at a piece's first bad byte: one page at a time.
        let length = rest.len().min((PAGE_BYTES - from % PAGE_BYTES) as usize);
        let local = libc::iovec { iov_base: rest.as_mut_ptr().cast(), iov_len: length };
        let remote = libc::iovec { iov_base: from as *mut _, iov_len: length };
        match read_self(&[local], &[remote]) {
            Some(read) if read == length as isize => {}
            Some(_) => break,
            None => match read_file_of_self(from, rest) {
                Some(read) => return count + read,
                None if is_word_readable(from & !7) => {
                    // SAFETY: the page was readable a moment ago, and the piece lies within it. See above for what unmaps it.
                    unsafe { core::ptr::copy_nonoverlapping(from as *const u8, rest.as_mut_ptr(), length) };
                }
                None => break,
            },
        }
        count += length;
    }
    count
}

/// `process_vm_readv` on this process, with the caller's errno left alone: how many bytes were read, or -1. `None` where there is no
/// such call.
fn read_self(local: &[libc::iovec], remote: &[libc::iovec]) -> Option<isize> {
    static IS_ABSENT: AtomicBool = AtomicBool::new(false);
    if IS_ABSENT.load(Ordering::Relaxed) {
        return None;
    }
    let (count, error) = with_errno_kept(|| {
        // SAFETY: the local vectors describe memory that the caller owns; the remote ones are checked by the kernel.
        unsafe {
            libc::syscall(
                libc::SYS_process_vm_readv,
                libc::getpid(),
                local.as_ptr(),
                local.len(),
                remote.as_ptr(),
                remote.len(),
                // As wide as a register: of a narrower one the upper half would be what the stack happened to hold.
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

/// Copies bytes as [`read_bytes`] does, from the file that the kernel shows of this process's memory; `None` where there is none, or
/// where it shows something else, as to a program in an emulator that has moved its addresses.
///
/// It is opened for each answer: programs close and reuse descriptors that they did not open.
fn read_file_of_self(address: u64, into: &mut [u8]) -> Option<usize> {
    const UNKNOWN: u8 = 0;
    const RIGHT: u8 = 1;
    const ABSENT: u8 = 2;
    static STATE: AtomicU8 = AtomicU8::new(UNKNOWN);
    match STATE.load(Ordering::Relaxed) {
        RIGHT => {}
        UNKNOWN => {
            let mut bytes = [0_u8; 32];
            let known = b"what is read must be what is here";
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
    // Out of descriptors is no answer, and nothing to guess at.
    Some(copy_from_file_of_self(address, into).unwrap_or(0))
}

fn copy_from_file_of_self(address: u64, into: &mut [u8]) -> Result<usize, c_int> {
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    let (file, error) = with_errno_kept(|| {
        // SAFETY: a path with its end.
        unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, c"/proc/self/mem".as_ptr(), flags, 0) }
    });
    if file < 0 {
        return Err(error);
    }
    let (count, error) = with_errno_kept(|| {
        // SAFETY: `into` has room for so many bytes; where they come from is checked by the kernel.
        unsafe { libc::syscall(libc::SYS_pread64, file, into.as_mut_ptr(), into.len(), address) }
    });
    // SAFETY: opened above, and nobody else knows of it.
    with_errno_kept(|| unsafe { libc::syscall(libc::SYS_close, file) });
    usize::try_from(count).map_err(|_| error)
}

/// True when the kernel could read 8 bytes at `address` just now.
///
/// It is asked to change the set of blocked signals in a way that does not exist. It reads the new set before it looks
/// at the way, so the error says which of the two it minds; nothing changes.
fn is_word_readable(address: u64) -> bool {
    /// Neither block, nor unblock, nor set.
    const NO_WAY: libc::c_long = -1;
    let (status, error) = with_errno_kept(|| {
        // SAFETY: the kernel checks the address, writes nothing, and changes nothing.
        unsafe { libc::syscall(libc::SYS_rt_sigprocmask, NO_WAY, address, 0_usize, 8_usize) }
    });
    status == -1 && error == libc::EINVAL
}

/// Runs a system call and returns its result and errno; the program's own errno stays what it was.
fn with_errno_kept(call: impl FnOnce() -> libc::c_long) -> (libc::c_long, i32) {
    // SAFETY: the address of this thread's errno is always valid.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let saved = unsafe { *errno };
    let result = call();
    // SAFETY: as above.
    let error = unsafe { core::mem::replace(&mut *errno, saved) };
    (result, error)
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;

    /// Leaves ones where the next call's frame will lie.
    #[inline(never)]
    fn fill_the_stack() {
        std::hint::black_box([u64::MAX; 256]);
    }

    #[test]
    fn what_the_stack_held_before_does_not_matter() {
        let word = 0x1234_u64;
        for _ in 0..10 {
            fill_the_stack();
            assert_eq!(read_word((&raw const word) as u64), Some(0x1234));
        }
    }

    #[test]
    fn unmapped_memory_is_told_from_readable_memory() {
        assert!(!is_readable(0x1000, 0x2000));
        assert_eq!(read_word(8), None);
        let word = 0x1234_u64;
        assert_eq!(read_word((&raw const word) as u64), Some(0x1234));
    }

    #[test]
    fn bytes_are_copied_as_far_as_they_can_be_read() {
        let text: std::vec::Vec<u8> = (0..10_000).map(|number| number as u8).collect();
        let mut copy = std::vec![0; text.len()];
        assert_eq!(read_bytes(text.as_ptr() as u64, &mut copy), text.len());
        assert_eq!(copy, text);
        assert_eq!(read_bytes(16, &mut copy), 0);
    }

    #[test]
    fn what_the_kernel_can_read_is_told_without_reading() {
        assert!(!is_word_readable(0x1000));
        assert!(!is_word_readable(u64::MAX - 3));
        let words = [1_u64, 2];
        let address = (&raw const words) as u64;
        assert!(is_word_readable(address) && is_word_readable(address + 3));
    }

    #[test]
    fn the_file_of_own_memory_tells_the_same() {
        // SAFETY: new memory, of which nobody else knows; the second page goes away at once.
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
