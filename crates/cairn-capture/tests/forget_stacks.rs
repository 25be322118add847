//! Unmaps the table of stacks; later captures are right. The only test of its process, because no
//! other thread may capture meanwhile.

#![cfg(target_os = "linux")]

use std::hint::black_box;
use std::sync::{Arc, Barrier};

use cairn_capture::{Stack, StackCursor, capture, forget_stacks, own_memory};
use cairn_format::Frame;

/// A stack for each path.
#[inline(never)]
fn descend(path: u32, depth: u32) -> Stack {
    let stack = match (depth, path % 3) {
        (0, _) => capture(),
        (_, 0) => descend(path / 3, depth - 1),
        (_, 1) => black_box(descend as fn(u32, u32) -> Stack)(path / 3, depth - 1),
        _ => black_box(descend(path / 3, black_box(depth - 1))),
    };
    black_box(stack)
}

/// The frames of `descend`, without the caller's.
fn frames(path: u32) -> Vec<Frame> {
    black_box(descend(path, 9)).frames().take(10).collect()
}

fn own_bytes() -> usize {
    let mut sum = 0;
    assert!(own_memory(|_, bytes| sum += bytes), "the list of mappings is incomplete");
    sum
}

/// Failed with: 4 mappings more for each visit, until the list of mappings was full.
#[test]
fn stacks_are_right_after_forget_stacks() {
    const PATHS: u32 = 3_u32.pow(9);
    const VISITS: u32 = 600;
    // This thread captures before and after each call, and waits during it.
    let (begin, end) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
    let other = std::thread::spawn({
        let (begin, end) = (Arc::clone(&begin), Arc::clone(&end));
        move || {
            let first = frames(4711);
            for visit in 0..VISITS {
                begin.wait();
                assert_eq!(frames(4711), first);
                black_box(frames(visit));
                end.wait();
            }
        }
    });
    let expected: Vec<Vec<Frame>> = (0..30).map(|path| frames(path * 651 % PATHS)).collect();
    let mut after_first = None;
    for visit in 0..VISITS {
        begin.wait();
        for (path, expected) in (0..30).zip(&expected) {
            assert_eq!(frames(path * 651 % PATHS), *expected, "visit {visit}");
        }
        if visit % 100 == 0 {
            for path in 0..PATHS {
                black_box(descend(path, 9));
            }
        }
        end.wait();
        // SAFETY: the other thread waits at the barrier, and no stack from before is used.
        unsafe { forget_stacks() };
        let mut cursor = StackCursor::START;
        assert_eq!(cursor.next_row(), None);
        let bytes = own_bytes();
        assert!(bytes <= *after_first.get_or_insert(bytes), "{bytes} after visit {visit}");
    }
    other.join().unwrap();
    assert_eq!(frames(7).len(), 10);
}
