//! Finds the readable part of this thread's own stack.
//!
//! A thread's own stack is one readable range up to a known top. The main thread's ends where the
//! loader started the program; every other one ends at its thread control block, which the C
//! library places on top of it. A system call finds how far down the stack is readable, once and
//! again when the thread goes deeper. That is the only system call of a capture, and a thread in
//! steady state makes none. `pthread_getattr_np` gives the same answer, but it reads
//! `/proc/self/maps` and calls malloc.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::stacks::linux::words;
use crate::stacks::own_memory::{PAGE_BYTES, first_unreadable};

/// Returns the readable part of this thread's own stack, from `sp` to its top. Returns `None` when
/// `sp` lies on another stack.
///
/// `known` is the part that was found before. `hole` remembers an unreadable page, to spare system
/// calls.
pub(crate) fn own_stack_at(sp: u64, known: (u64, u64), hole: &mut Hole) -> Option<(u64, u64)> {
    let top = top_of_own_stack(sp)?;
    if hole.separates(sp, top) {
        return None;
    }
    let low = sp & !(PAGE_BYTES - 1);
    let (known_low, known_high) = known;
    let known_from = if known_high == top { known_low } else { top };
    if let Some(page) = first_unreadable(low, known_from) {
        *hole = Hole { page, top, queries: 0 };
        return None;
    }
    Some((low, top))
}

/// An unreadable page below the thread's own stack. Addresses below it lie on another stack; the
/// stacks of coroutines may lie many readable megabytes away from it.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Hole {
    page: u64,
    /// The top of the thread's own stack when the page was found.
    top: u64,
    queries: u32,
}

impl Hole {
    pub(crate) const NONE: Self = Self { page: 0, top: 0, queries: 0 };

    /// True when the page lies between `sp` and the stack that ends at `top`.
    fn separates(&mut self, sp: u64, top: u64) -> bool {
        /// Queries between two system calls; 1024, because the main thread's stack rarely grows
        /// over the page.
        const PROBE_EVERY: u32 = 1024;
        if sp >= self.page || top != self.top {
            return false;
        }
        self.queries = self.queries.wrapping_add(1);
        !self.queries.is_multiple_of(PROBE_EVERY)
    }
}

/// The first address above the calling thread's own stack, if `sp` lies below it.
fn top_of_own_stack(sp: u64) -> Option<u64> {
    let own = own_top();
    (sp < own).then_some(own & !7)
}

/// True when the thread now uses a stack that ends elsewhere than at `top`. A thread of Linux has
/// one stack of its own.
#[inline(always)]
pub(crate) fn has_changed(_top: u64) -> bool {
    false
}

/// True for the first address above the calling thread's own stack.
pub(crate) fn is_top_of_own_stack(address: u64) -> bool {
    address == own_top() & !7
}

fn own_top() -> u64 {
    let main = main_stack_top();
    if is_main_thread() && main != 0 { main } else { words::thread_control_block() }
}

/// The main thread's control block, stored while the program is loaded. It is 0 when another thread
/// loaded this library.
static MAIN_CONTROL_BLOCK: AtomicU64 = AtomicU64::new(0);

/// The loader calls this function on the thread that loads the module.
#[cfg(not(miri))] // Miri runs constructors, but no assembly.
#[used]
#[unsafe(link_section = ".init_array")]
static NOTE_MAIN_THREAD: extern "C" fn() = {
    extern "C" fn note() {
        if has_thread_number_of_process() {
            MAIN_CONTROL_BLOCK.store(words::thread_control_block(), Ordering::Relaxed);
        }
    }
    note
};

/// True on the main thread. Compares control blocks, not thread numbers: in the child of a fork,
/// the thread that forked has the number of the process and still its own stack.
fn is_main_thread() -> bool {
    match MAIN_CONTROL_BLOCK.load(Ordering::Relaxed) {
        0 => has_thread_number_of_process(),
        main => words::thread_control_block() == main,
    }
}

fn has_thread_number_of_process() -> bool {
    // SAFETY: both calls take no argument and write no memory.
    unsafe { libc::getpid() == libc::syscall(libc::SYS_gettid) as libc::pid_t }
}

/// The stack pointer with which the loader started the program.
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
    fn own_stack_is_readable_up_to_its_top() {
        let local = 0_u64;
        let sp = (&raw const local) as u64;
        let top = top_of_own_stack(sp).unwrap();
        assert!(top > sp);
        assert_eq!(first_unreadable(sp, top), None);
    }
}
