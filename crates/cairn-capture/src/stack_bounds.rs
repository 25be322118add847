//! Which memory around the stack pointer may be read.
//!
//! A thread's own stack is one readable range up to a known top: the main thread's ends where the loader started the
//! program, every other one ends at its thread control block, which the C library puts on top of it. How far down it is
//! readable is asked from the kernel once, and again when the thread goes deeper; that is the only system call of a
//! capture, and a thread in steady state makes none. `pthread_getattr_np` would tell the same, but it reads
//! `/proc/self/maps` and calls malloc.

use core::sync::atomic::{AtomicU64, Ordering, compiler_fence};

use crate::arch;
use crate::own_memory::{PAGE_BYTES, first_unreadable};
use crate::thread::ThreadState;

/// Learns the bounds of the stack that `sp` lies on; `None` when that is not this thread's own.
#[cold]
pub(crate) fn enter(thread: &mut ThreadState, sp: u64) -> Option<()> {
    let top = top_of_own_stack(sp)?;
    if thread.hole.is_above(sp, top) {
        return None;
    }
    let low = sp & !(PAGE_BYTES - 1);
    let known_from = if thread.high == top { thread.low } else { top };
    if let Some(page) = first_unreadable(low, known_from) {
        thread.hole = Hole { page, top, asked: 0 };
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

/// A page below the thread's own stack that could not be read, so that what lies below it is another stack. Coroutines' stacks may be many
/// readable megabytes away from it.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Hole {
    page: u64,
    /// Of the thread's own stack.
    top: u64,
    asked: u32,
}

impl Hole {
    pub(crate) const NONE: Self = Self { page: 0, top: 0, asked: 0 };

    fn is_above(&mut self, sp: u64, top: u64) -> bool {
        /// The kernel is asked anew now and then: the main thread's stack may have grown over it.
        const ASK_EACH: u32 = 1024;
        if sp >= self.page || top != self.top {
            return false;
        }
        self.asked = self.asked.wrapping_add(1);
        !self.asked.is_multiple_of(ASK_EACH)
    }
}

/// The top of the stack that `sp` would lie on, if it is the calling thread's own: the first address above it.
fn top_of_own_stack(sp: u64) -> Option<u64> {
    let own = own_top();
    (sp < own).then_some(own & !7)
}

/// Whether the thread's own stack ends there.
pub(crate) fn is_top_of_own_stack(address: u64) -> bool {
    address == own_top() & !7
}

fn own_top() -> u64 {
    let main = main_stack_top();
    if is_main_thread() && main != 0 { main } else { arch::thread_control_block() }
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
    use super::*;

    #[test]
    fn this_threads_stack_is_readable_up_to_its_top() {
        let local = 0_u64;
        let sp = (&raw const local) as u64;
        let top = top_of_own_stack(sp).unwrap();
        assert!(top > sp);
        assert_eq!(first_unreadable(sp, top), None);
    }
}
