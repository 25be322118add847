//! Captures of stacks as deep as runaway recursion, and of a thousand threads in little address
//! space.

use std::hint::black_box;
use std::sync::Mutex;
use std::thread;

use cairn_capture::{Stack, StopReason, capture, statistics};

/// Held by each test, because the statistics count the captures of the whole process.
static ALONE: Mutex<()> = Mutex::new(());

#[inline(never)]
fn descend(depth: u32) -> Stack {
    let stack = if depth == 0 { capture() } else { descend(depth - 1) };
    black_box(stack)
}

fn on_a_large_stack<R: Send + 'static>(run: impl FnOnce() -> R + Send + 'static) -> R {
    thread::Builder::new().stack_size(256 << 20).spawn(run).unwrap().join().unwrap()
}

#[test]
fn hundred_thousand_frames_are_complete_at_first_capture() {
    let _alone = ALONE.lock();
    on_a_large_stack(|| {
        let walks = statistics().whole_walks;
        let stacks = [100_000, 100_000, 99_000, 600, 100_001].map(descend);
        for (stack, depth) in stacks.iter().zip([100_000, 100_000, 99_000, 600, 100_001]) {
            assert_eq!(stack.stop_reason(), StopReason::EndOfStack);
            let frames = stack.frames().count();
            assert!((depth + 1..depth + 40).contains(&frames), "{frames} frames at {depth}");
        }
        assert_eq!(stacks[0], stacks[1]);
        assert_eq!(statistics().whole_walks, walks, "the hot path captured all");
    });
}

#[inline(never)]
fn below_a_large_array(depth: u32) -> Stack {
    let mut large = [0_u8; 3 << 20];
    black_box(&mut large);
    let stack = descend(depth);
    black_box(&mut large);
    stack
}

#[test]
fn frame_of_megabytes_takes_the_hot_path() {
    let _alone = ALONE.lock();
    on_a_large_stack(|| {
        let walks = statistics().whole_walks;
        for depth in [3, 3, 5, 20, 3] {
            let stack = below_a_large_array(depth);
            assert_eq!(stack.stop_reason(), StopReason::EndOfStack);
            assert!(stack.frames().count() > depth as usize + 3);
        }
        assert_eq!(statistics().whole_walks, walks, "the hot path captured all");
    });
}

extern "C" fn on_signal(_: i32) {
    assert_eq!(capture().stop_reason(), StopReason::EndOfStack);
    assert!(capture().frames().count() > 20_000);
}

#[inline(never)]
fn raise_below(depth: u32) -> u32 {
    if depth > 0 {
        return black_box(raise_below(depth - 1)) + 1;
    }
    // SAFETY: the handler only captures, which is safe in a handler.
    unsafe {
        libc::signal(libc::SIGUSR2, on_signal as extern "C" fn(i32) as libc::sighandler_t);
        libc::raise(libc::SIGUSR2);
    }
    0
}

#[test]
fn whole_walk_of_many_frames_is_complete() {
    let _alone = ALONE.lock();
    on_a_large_stack(|| raise_below(20_000));
}

/// Address space of this process in bytes.
fn address_space() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').next().unwrap().parse::<usize>().unwrap() * 4096
}

#[test]
#[cfg_attr(not(target_arch = "x86_64"), ignore = "in an emulator, the address space is the emulator's")]
fn thousand_threads_take_little_address_space() {
    let _alone = ALONE.lock();
    const THREADS: usize = 1000;
    let barrier = std::sync::Barrier::new(THREADS + 1);
    let taken = |captures: bool| {
        thread::scope(|scope| {
            for _ in 0..THREADS {
                let wait = || {
                    if captures {
                        black_box(capture());
                    }
                    barrier.wait();
                    barrier.wait();
                };
                thread::Builder::new().stack_size(64 << 10).spawn_scoped(scope, wait).unwrap();
            }
            barrier.wait();
            let bytes = address_space();
            barrier.wait();
            bytes
        })
    };
    // The first capture of the process maps memory for the stacks of all threads. It may be another
    // test's.
    black_box(capture());
    // The second round reuses the stacks and heaps of the first round's threads.
    taken(false);
    let (without, with) = (taken(false), taken(true));
    let each = with.saturating_sub(without) / THREADS;
    assert!(each < 200 << 10, "{each} bytes a thread");
    let again = taken(true);
    assert!(
        again < with + (THREADS / 4 * each).max(1 << 20),
        "new threads must reuse the memory of ended ones"
    );
}
