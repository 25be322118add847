//! Captures in a forked child: its only thread has the number of a main thread, and the stack of the thread that forked.
#![cfg(target_arch = "x86_64")]

use std::hint::black_box;
use std::thread;

use cairn_capture::{StopReason, capture, statistics};

/// Captures until the stack is known; 0 if the hot path did it all and came to the end.
#[inline(never)]
fn failure() -> i32 {
    let mut wrong = 0;
    for _ in 0..black_box(3) {
        let stack = capture();
        wrong |= i32::from(stack.stop_reason() != StopReason::EndOfStack);
        wrong |= i32::from(stack.frames().count() < 4) << 1;
    }
    wrong | i32::from(statistics().whole_walks != 0) << 2
}

#[inline(never)]
fn failure_in_child() -> i32 {
    // SAFETY: the child only captures, which is as safe as in a signal handler, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let failure = failure();
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(failure) };
    }
    let mut status = 0;
    // SAFETY: waits for our own child.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status), "status {status:#x}");
    libc::WEXITSTATUS(status)
}

#[test]
fn a_child_of_a_thread_captures_on_the_hot_path() {
    let before = thread::spawn(failure_in_child).join().unwrap();
    assert_eq!(before, 0, "the first capture of all was the child's");
    let after = thread::spawn(|| (failure(), failure_in_child())).join().unwrap();
    assert_eq!(after, (0, 0), "the thread had captured before");
}
