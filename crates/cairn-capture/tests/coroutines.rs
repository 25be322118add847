//! Stacks that are not the thread's own are found without a whole walk.

#![cfg(target_arch = "x86_64")]

use std::cell::Cell;
use std::hint::black_box;

use cairn_capture::{Stack, StopReason, capture, statistics};

const ROUNDS: u64 = 1000;

thread_local! {
    static CALLER: Cell<*mut libc::ucontext_t> = const { Cell::new(std::ptr::null_mut()) };
    static CALLEE: Cell<*mut libc::ucontext_t> = const { Cell::new(std::ptr::null_mut()) };
    static SEEN: Cell<Option<Stack>> = const { Cell::new(None) };
}

#[inline(never)]
fn recurse(depth: u32) -> u32 {
    if depth == 0 {
        SEEN.set(Some(capture()));
        return 0;
    }
    black_box(recurse(black_box(depth) - 1) + 1)
}

extern "C" fn coroutine() {
    for _ in 0..ROUNDS {
        recurse(20);
        // SAFETY: both contexts outlive the coroutine.
        unsafe { libc::swapcontext(CALLEE.get(), CALLER.get()) };
    }
}

#[test]
fn a_coroutine_is_stepped_through() {
    const STACK_BYTES: usize = 1 << 18;
    let mut stack = vec![0_u8; STACK_BYTES];
    // SAFETY: zeros are contexts, of which nothing is used before it is made.
    let mut contexts: [libc::ucontext_t; 2] = unsafe { std::mem::zeroed() };
    let [caller, callee] = &mut contexts;
    CALLER.set(caller);
    CALLEE.set(callee);
    // SAFETY: the stack and both contexts outlive the coroutine, which is left for good at its last switch.
    unsafe {
        assert_eq!(libc::getcontext(callee), 0);
        callee.uc_stack.ss_sp = stack.as_mut_ptr().cast();
        callee.uc_stack.ss_size = STACK_BYTES;
        callee.uc_link = caller;
        libc::makecontext(callee, coroutine, 0);
    }
    let mut first = None;
    let before = statistics().whole_walks;
    for _ in 0..ROUNDS {
        // SAFETY: as above.
        assert_eq!(unsafe { libc::swapcontext(CALLER.get(), CALLEE.get()) }, 0);
        let seen = SEEN.take().expect("a stack");
        // Twenty-one of the recursion, the coroutine, and where the C library begins it: nothing of who made it.
        assert_eq!(seen.frames().count(), 23);
        assert!(matches!(seen.stop_reason(), StopReason::NoUnwindInfo { .. }));
        assert_eq!(first.get_or_insert(seen).id(), seen.id());
    }
    assert_eq!(statistics().whole_walks, before);
}
