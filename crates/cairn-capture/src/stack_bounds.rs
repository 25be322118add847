//! Which memory around the stack pointer may be read.
//!
//! A thread's own stack is one readable range up to a known top: the main thread's ends where the loader started the
//! program, every other one ends at its thread control block, which the C library puts on top of it. How far down it is
//! readable is asked from the kernel once, and again when the thread goes deeper; that is the only system call of a
//! capture, and a thread in steady state makes none. `pthread_getattr_np` would tell the same, but it reads
//! `/proc/self/maps` and calls malloc.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering, compiler_fence};

use crate::arch;
use crate::thread::ThreadState;

const PAGE_BYTES: u64 = 4096;

/// How far a stack may reach beyond what is known of it, each time it is found to be deeper. A larger distance means that
/// this is another stack.
const MAX_NEW_BYTES: u64 = 1 << 26;

/// So many pages are probed by one system call (its own limit is 1024).
const PROBE_PAGES: usize = 32;

/// Learns the bounds of the stack that `sp` lies on; `None` when that is not this thread's own.
#[cold]
pub(crate) fn enter(thread: &mut ThreadState, sp: u64) -> Option<()> {
    let top = top_of_own_stack(sp)?;
    let low = sp & !(PAGE_BYTES - 1);
    let known_from = if thread.high == top { thread.low } else { top };
    if !is_readable(low, known_from) {
        return None;
    }
    if thread.high != top {
        thread.forget_stack();
        // A signal handler that comes between must find a range that is readable, if an empty one.
        thread.high = 0;
        compiler_fence(Ordering::SeqCst);
        thread.slot_base = top.wrapping_sub(1 << 32);
    }
    thread.low = low;
    compiler_fence(Ordering::SeqCst);
    thread.high = top;
    Some(())
}

/// The top of the stack that `sp` would lie on, if it is the calling thread's own: the first address above it.
fn top_of_own_stack(sp: u64) -> Option<u64> {
    let main = main_stack_top();
    let own = if is_main_thread() && main != 0 { main } else { arch::thread_control_block() };
    (sp < own).then_some(own & !7)
}

/// True when all pages from the one of `low` up to `high` are readable, and not too many. Costs one system call for each
/// 128 KiB.
pub(crate) fn is_readable(low: u64, high: u64) -> bool {
    let mut page = low & !(PAGE_BYTES - 1);
    if high.saturating_sub(page) > MAX_NEW_BYTES {
        return false;
    }
    while page < high {
        let pages = ((high - page).div_ceil(PAGE_BYTES) as usize).min(PROBE_PAGES);
        if !probe(page, pages) {
            return false;
        }
        page += pages as u64 * PAGE_BYTES;
    }
    true
}

/// The end of the readable memory that begins at `address`, as far as one system call tells: at most 128 KiB on.
pub(crate) fn readable_end(address: u64) -> u64 {
    let first_page = address & !(PAGE_BYTES - 1);
    match readable_pages(first_page, PROBE_PAGES) {
        0 => address,
        pages => first_page + pages as u64 * PAGE_BYTES,
    }
}

/// Reads one word anywhere, or answers `None` where the kernel says that it cannot be read.
pub(crate) fn read_word(address: u64) -> Option<u64> {
    let mut word = 0_u64;
    let local = libc::iovec { iov_base: (&raw mut word).cast(), iov_len: 8 };
    let remote = libc::iovec { iov_base: address as *mut _, iov_len: 8 };
    match read_self(&[local], &[remote]) {
        Some(8) => Some(word),
        Some(_) => None,
        None => is_word_readable(address).then(|| {
            // SAFETY: the kernel could read it a moment ago. See `read_self` for the rest of the argument.
            u64::from_ne_bytes(unsafe { (address as *const [u8; 8]).read_volatile() })
        }),
    }
}

/// Copies bytes from anywhere in this process, up to the first page that cannot be read, and returns how many. Takes no lock; one
/// system call a page.
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
            None if is_word_readable(from & !7) => {
                // SAFETY: the page is readable, and the piece lies within it. See `read_self` for the rest.
                unsafe { core::ptr::copy_nonoverlapping(from as *const u8, rest.as_mut_ptr(), length) };
            }
            _ => break,
        }
        count += length;
    }
    count
}

/// True when each of the pages is readable.
fn probe(first_page: u64, pages: usize) -> bool {
    readable_pages(first_page, pages) == pages
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

/// `process_vm_readv` on this process, with the caller's errno left alone: how many bytes were read, or -1.
///
/// `None` where there is no such call: some sandboxes forbid it, and emulators lack it. The callers then ask
/// [`is_word_readable`] and read for themselves, which is as safe but for memory that another thread unmaps between the
/// two; live stacks are not unmapped.
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

/// The main thread's control block, noted while the program is loaded; 0 when another thread loaded this library.
static MAIN_CONTROL_BLOCK: AtomicU64 = AtomicU64::new(0);

/// The loader calls it, on the thread that loads.
#[used]
#[unsafe(link_section = ".init_array")]
static NOTE_MAIN_THREAD: extern "C" fn() = {
    extern "C" fn note() {
        if has_thread_number_of_process() {
            MAIN_CONTROL_BLOCK.store(arch::thread_control_block(), Ordering::Relaxed);
        }
    }
    note
};

/// Thread numbers do not tell it: a thread that forks has the number of the new process there, and still its own stack.
/// Its control block stays where it was.
fn is_main_thread() -> bool {
    match MAIN_CONTROL_BLOCK.load(Ordering::Relaxed) {
        0 => has_thread_number_of_process(),
        main => arch::thread_control_block() == main,
    }
}

fn has_thread_number_of_process() -> bool {
    // SAFETY: both calls only ask.
    unsafe { libc::getpid() == libc::syscall(libc::SYS_gettid) as libc::pid_t }
}

/// Where the loader set the stack pointer when it started the program.
fn main_stack_top() -> u64 {
    static TOP: AtomicU64 = AtomicU64::new(0);
    unsafe extern "C" {
        #[link_name = "__libc_stack_end"]
        safe static LIBC_STACK_END: u64;
    }
    if TOP.load(Ordering::Relaxed) == 0 {
        TOP.store(LIBC_STACK_END, Ordering::Relaxed);
    }
    TOP.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;

    #[test]
    fn this_threads_stack_is_readable_up_to_its_top() {
        let local = 0_u64;
        let sp = (&raw const local) as u64;
        let top = top_of_own_stack(sp).unwrap();
        assert!(top > sp);
        assert!(is_readable(sp, top));
    }

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
}
