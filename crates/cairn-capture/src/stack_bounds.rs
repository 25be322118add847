//! Which memory around the stack pointer may be read.
//!
//! A thread's own stack is one readable range up to a known top: the main thread's ends where the loader started the
//! program, every other one ends at its thread control block, which the C library puts on top of it. How far down it is
//! readable is asked from the kernel once, and again when the thread goes deeper; that is the only system call of a
//! capture, and a thread in steady state makes none. `pthread_getattr_np` would tell the same, but it reads
//! `/proc/self/maps` and calls malloc.

use core::sync::atomic::{AtomicU64, Ordering};

const PAGE_BYTES: u64 = 4096;

/// Stacks that are larger were never seen; beyond it a distance means that this is another stack.
const MAX_STACK_BYTES: u64 = 1 << 32;

/// The top of the stack that `sp` would lie on, if it is the calling thread's own: the first address above it.
pub(crate) fn top_of_own_stack(sp: u64) -> Option<u64> {
    let main = main_stack_top();
    let own = if is_main_thread() && main != 0 { main } else { thread_control_block() };
    (sp < own && own - sp < MAX_STACK_BYTES).then_some(own & !7)
}

/// True when all pages from the one of `low` up to `high` are readable. Costs one system call for each page.
pub(crate) fn is_readable(low: u64, high: u64) -> bool {
    let first = low & !(PAGE_BYTES - 1);
    (first..high).step_by(PAGE_BYTES as usize).all(is_word_readable)
}

/// Reads one word anywhere, or answers `None` where the kernel says that it cannot be read.
pub(crate) fn read_word(address: u64) -> Option<u64> {
    let mut word = [0; 8];
    read_bytes(address, &mut word)?;
    Some(u64::from_ne_bytes(word))
}

/// Fills `into` with the bytes at `address`, or answers `None` where the kernel says that they cannot be read.
pub(crate) fn read_bytes(address: u64, into: &mut [u8]) -> Option<()> {
    let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    let remote = libc::iovec { iov_base: address as *mut _, iov_len: into.len() };
    // SAFETY: the local vector describes memory that the caller owns; the remote one is checked by the kernel. All
    // arguments are whole words: the seventh lies on the stack, where `0_i32` would leave half of it as it was.
    let answer = quietly(|| unsafe {
        libc::syscall(libc::SYS_process_vm_readv, libc::getpid(), &raw const local, 1_u64, &raw const remote, 1_u64, 0_u64)
    });
    match answer {
        Ok(count) => (count == into.len() as i64).then_some(()),
        // A sandbox may forbid to read the memory of processes, one's own included.
        Err(libc::EPERM | libc::ENOSYS) => read_after_asking(address, into),
        Err(_) => None,
    }
}

/// Asks, then reads: another thread could unmap the memory in between, so this is the second choice.
#[cold]
fn read_after_asking(address: u64, into: &mut [u8]) -> Option<()> {
    let words = into.chunks_mut(8).zip((address..).step_by(8));
    for (bytes, place) in words {
        if !is_word_readable(place) {
            return None;
        }
        // SAFETY: the kernel has just read the 8 bytes at `place`.
        let word = unsafe { (place as *const [u8; 8]).read_volatile() };
        bytes.copy_from_slice(word.get(..bytes.len())?);
    }
    Some(())
}

/// True when the 8 bytes at `address` can be read. No sandbox forbids this call, because every program makes it.
fn is_word_readable(address: u64) -> bool {
    /// There is no such change of a signal mask; the kernel finds out after it has read the mask.
    const NO_CHANGE: i64 = -1;
    // SAFETY: the kernel checks the address, and changes nothing.
    let answer = quietly(|| unsafe {
        libc::syscall(libc::SYS_rt_sigprocmask, NO_CHANGE, address, core::ptr::null_mut::<u64>(), 8_u64)
    });
    answer == Err(libc::EINVAL)
}

/// The answer of a system call, or its error, with the caller's errno left alone.
fn quietly(call: impl FnOnce() -> i64) -> Result<i64, i32> {
    // SAFETY: the address of this thread's errno is always valid.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let saved = unsafe { *errno };
    let answer = call();
    // SAFETY: as above.
    let result = if answer == -1 { Err(unsafe { *errno }) } else { Ok(answer) };
    // SAFETY: as above.
    unsafe { *errno = saved };
    result
}

fn is_main_thread() -> bool {
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

/// The thread pointer: the thread control block begins there.
#[cfg(target_arch = "x86_64")]
fn thread_control_block() -> u64 {
    let address;
    // SAFETY: the first word of the thread control block is its own address, by the ABI.
    unsafe {
        core::arch::asm!("mov {}, qword ptr fs:[0]", out(reg) address, options(nostack, preserves_flags, readonly));
    }
    address
}

/// The thread pointer. The control block lies below it, and the stack below that.
#[cfg(target_arch = "aarch64")]
fn thread_control_block() -> u64 {
    let address: u64;
    // SAFETY: reads a register.
    unsafe { core::arch::asm!("mrs {}, tpidr_el0", out(reg) address, options(nostack, preserves_flags)) };
    address
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
    fn where_one_may_not_read_memory_one_asks_first() {
        let words = [0x1234_u64, 0x5678];
        let mut bytes = [0; 12];
        assert_eq!(read_after_asking((&raw const words) as u64, &mut bytes), Some(()));
        assert_eq!(bytes, [0x34, 0x12, 0, 0, 0, 0, 0, 0, 0x78, 0x56, 0, 0]);
        assert_eq!(read_after_asking(8, &mut bytes), None);
    }

    #[test]
    fn unmapped_memory_is_told_from_readable_memory() {
        assert!(!is_readable(0x1000, 0x2000));
        assert_eq!(read_word(8), None);
        let word = 0x1234_u64;
        assert_eq!(read_word((&raw const word) as u64), Some(0x1234));
    }
}
