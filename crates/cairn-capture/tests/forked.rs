//! Captures in a forked child. Its only thread has the number of a main thread, and the stack of
//! the thread that forked.

use std::hint::black_box;
use std::sync::{Mutex, mpsc};
use std::thread;

use cairn_capture::{StopReason, after_fork_in_child, capture, statistics, while_unloading};

/// Held by each test, because an unload turns the captures of all threads into whole walks.
static ALONE: Mutex<()> = Mutex::new(());

/// Captures repeatedly. Returns 0 if the hot path captured all stacks completely, otherwise a bit
/// for each error.
#[inline(never)]
fn failure() -> i32 {
    let (mut wrong, walks) = (0, statistics().whole_walks);
    for _ in 0..black_box(3) {
        let stack = capture();
        wrong |= i32::from(stack.stop_reason() != StopReason::EndOfStack);
        wrong |= i32::from(stack.frames().count() < 4) << 1;
    }
    wrong | i32::from(statistics().whole_walks != walks) << 2
}

#[inline(never)]
fn failure_in_child() -> i32 {
    failure_in_child_after(|| ())
}

#[inline(never)]
fn failure_in_child_after(prepare: impl Fn()) -> i32 {
    // SAFETY: the child only captures, which is as safe as in a signal handler, and exits.
    let child = unsafe { libc::fork() };
    if child == 0 {
        prepare();
        let failure = failure();
        // SAFETY: the call does not return and runs no handlers.
        unsafe { libc::_exit(failure) };
    }
    let mut status = 0;
    // SAFETY: `status` is a valid place for the answer.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status), "status {status:#x}");
    libc::WEXITSTATUS(status)
}

#[test]
fn child_of_a_thread_captures_on_the_hot_path() {
    let _alone = ALONE.lock();
    let before = thread::spawn(failure_in_child).join().unwrap();
    assert_eq!(before, 0, "the first capture of the thread was the child's");
    let after = thread::spawn(|| (failure(), failure_in_child())).join().unwrap();
    assert_eq!(after, (0, 0), "the thread had captured before");
}

#[test]
fn unload_interrupted_by_fork_ends_in_the_child() {
    let _alone = ALONE.lock();
    let (entered, is_entered) = mpsc::channel();
    let (end, wait) = mpsc::channel::<()>();
    let unloading = thread::spawn(move || {
        while_unloading(|| {
            entered.send(()).unwrap();
            let _ = wait.recv();
        });
    });
    is_entered.recv().unwrap();
    assert_eq!(
        thread::spawn(failure_in_child).join().unwrap(),
        4,
        "without the call, the unload continues in the child"
    );
    // SAFETY: the child has one thread, and its memory is its own.
    let take_over = || unsafe { after_fork_in_child() };
    assert_eq!(thread::spawn(move || failure_in_child_after(take_over)).join().unwrap(), 0);
    drop(end);
    unloading.join().unwrap();
    assert_eq!(thread::spawn(failure).join().unwrap(), 0);
}
