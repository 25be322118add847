//! Captures stacks that are not the thread's own: a coroutine's, without a whole walk, and a signal
//! handler's, with the interrupted code.

// Elsewhere the null caller at the start of a coroutine takes the whole walk.
#![cfg(target_arch = "x86_64")]

mod support;

use std::cell::Cell;
use std::hint::black_box;
use std::ptr;
use std::sync::Mutex;

use cairn_capture::{Stack, StopReason, capture, statistics};
use cairn_format::Frame;
use support::{Stub, WITH_FRAME_POINTER, compile};

const ROUNDS: u64 = 1000;

/// Held by each test, because the statistics count the captures of the whole process.
static ALONE: Mutex<()> = Mutex::new(());

thread_local! {
    static CALLER: Cell<*mut libc::ucontext_t> = const { Cell::new(ptr::null_mut()) };
    static CALLEE: Cell<*mut libc::ucontext_t> = const { Cell::new(ptr::null_mut()) };
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
        // SAFETY: both contexts outlive the coroutine, and `CALLER` was saved by the switch to
        // here.
        unsafe { libc::swapcontext(CALLEE.get(), CALLER.get()) };
    }
}

#[test]
fn coroutine_is_captured_by_the_hot_path() {
    const STACK_BYTES: usize = 1 << 18;
    let _alone = ALONE.lock();
    let mut stack = vec![0_u8; STACK_BYTES];
    // SAFETY: zeros are a value of contexts; getcontext and swapcontext fill both before they are
    // used.
    let mut contexts: [libc::ucontext_t; 2] = unsafe { std::mem::zeroed() };
    let [caller, callee] = &mut contexts;
    CALLER.set(caller);
    CALLEE.set(callee);
    // SAFETY: the stack and both contexts outlive the coroutine, which never runs after its last
    // switch.
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
        // SAFETY: both contexts outlive the coroutine, and `callee` was made or saved before.
        assert_eq!(unsafe { libc::swapcontext(CALLER.get(), CALLEE.get()) }, 0);
        let seen = SEEN.take().expect("a stack");
        // Twenty-one frames of the recursion, the coroutine, and the C library's start of it; none
        // of the code that created it.
        assert_eq!(seen.frames().count(), 23);
        assert!(matches!(seen.stop_reason(), StopReason::NoUnwindInfo { .. }));
        assert_eq!(first.get_or_insert(seen).id(), seen.id());
    }
    assert_eq!(statistics().whole_walks, before);
}

extern "C" fn handle(_: i32) {
    SEEN.set(Some(capture()));
}

extern "C" fn interrupted() {
    // SAFETY: the signal has a handler, which is safe at this place.
    unsafe { libc::raise(libc::SIGUSR1) };
}

#[inline(never)]
fn outside(stub: Stub) {
    // SAFETY: the stub keeps the calling convention, and the function that it calls does not
    // unwind.
    unsafe { stub(interrupted, 0) };
    black_box(stub);
}

#[test]
fn handler_on_its_own_stack_captures_past_jit_code() {
    const STACK_BYTES: usize = 1 << 16;
    let _alone = ALONE.lock();
    let mut stack = vec![0_u8; STACK_BYTES];
    // SAFETY: the stack is disabled below before it is freed, and the handler takes one argument.
    unsafe {
        let mut alternate =
            libc::stack_t { ss_sp: stack.as_mut_ptr().cast(), ss_flags: 0, ss_size: STACK_BYTES };
        assert_eq!(libc::sigaltstack(&raw const alternate, ptr::null_mut()), 0);
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handle as extern "C" fn(i32) as usize;
        action.sa_flags = libc::SA_ONSTACK;
        assert_eq!(libc::sigaction(libc::SIGUSR1, &raw const action, ptr::null_mut()), 0);
        outside(compile(WITH_FRAME_POINTER));
        alternate.ss_flags = libc::SS_DISABLE;
        assert_eq!(libc::sigaltstack(&raw const alternate, ptr::null_mut()), 0);
    }
    let seen = SEEN.take().expect("a stack");
    let begins = outside as *const () as u64;
    let mut addresses = seen.frames().filter_map(Frame::address);
    assert!(
        addresses.any(|address| (begins..begins + 200).contains(&address.value())),
        "{:x?}",
        seen.frames()
    );
}
