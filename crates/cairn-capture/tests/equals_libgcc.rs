//! Compares captures with libgcc's stacks at the same call, after various earlier captures.

#[path = "support/libgcc.rs"]
mod libgcc;

use std::hint::black_box;

use cairn_capture::capture;
use cairn_format::Frame;
use libgcc::by_libgcc;

/// Compares both at one place. The frames of this function and below differ, those of its callers
/// must be equal.
#[inline(never)]
fn check() -> usize {
    let found: Vec<u64> = capture()
        .frames()
        .map(|frame| match frame {
            Frame::ReturnAddress(address) => address.value(),
            other => panic!("unexpected {other:?}"),
        })
        .collect();
    let truth = by_libgcc();
    // Inside of the callers libgcc finds by_libgcc and check, and the capture finds check.
    assert_eq!(found[1..], truth[2..], "found {found:x?}, truth {truth:x?}");
    found.len()
}

/// Recurses in different ways and with different frame sizes, selected by the bits of `path`.
#[inline(never)]
fn descend(path: u64, depth: u32) -> usize {
    if depth == 0 {
        return check();
    }
    let result = match path % 4 {
        0 => descend(path / 4, depth - 1) + 1,
        1 => with_large_frame(path / 4, depth - 1),
        2 => black_box(descend as fn(u64, u32) -> usize)(path / 4, depth - 1) + 2,
        _ => with_closure(&|| descend(path / 4, depth - 1)),
    };
    black_box(result)
}

#[inline(never)]
fn with_large_frame(path: u64, depth: u32) -> usize {
    let mut buffer = [0_u8; 3000];
    black_box(&mut buffer);
    descend(path, depth) + usize::from(buffer[black_box(7)])
}

#[inline(never)]
fn with_closure(call: &dyn Fn() -> usize) -> usize {
    black_box(call()) + 3
}

#[test]
fn captures_of_random_call_trees_equal_libgcc() {
    let mut random = 0x1234_5678_9abc_def0_u64;
    let rounds = 20_000_u32;
    for round in 0..rounds {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        // In most rounds only the innermost calls change, as in real programs.
        let path = if round % 3 == 0 { random } else { random << 40 | 0x5a_1234_5678 };
        descend(path, (random >> 60) as u32 + 12);
    }
}

#[inline(never)]
fn capture_here() -> cairn_capture::StackId {
    black_box(capture().id())
}

#[test]
fn captures_of_deep_stacks_equal_libgcc() {
    for depth in [100, 120, 121, 125, 128, 130, 250, 257, 400, 1000, 3000] {
        // Each path repeatedly and in turn, so that records and shadows are used after they are
        // made.
        for path in [0, 1, 0, 1, 0x5a5a, 0x5a5a] {
            descend(path, depth);
        }
    }
    for round in 0..2000_u64 {
        descend(0, 90 + (round * 7 % 300) as u32);
    }
}

#[test]
fn equal_stacks_have_equal_ids_and_others_differ() {
    let mut ids = Vec::new();
    for _ in 0..black_box(10) {
        ids.push(capture_here());
    }
    let other = capture().id();
    assert!(ids.windows(2).all(|pair| pair[0] == pair[1]));
    assert_ne!(ids[0], other);
}

#[test]
fn captures_in_short_lived_threads_equal_libgcc() {
    for _ in 0..200 {
        std::thread::spawn(|| {
            check();
            check();
        })
        .join()
        .unwrap();
    }
}
