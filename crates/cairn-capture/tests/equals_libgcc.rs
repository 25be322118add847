//! A capture is the stack that libgcc finds, at the same call, whatever was captured before.

use std::ffi::{c_int, c_void};
use std::hint::black_box;

use cairn_capture::capture;
use cairn_format::Frame;

unsafe extern "C" {
    fn _Unwind_Backtrace(visit: extern "C" fn(*mut c_void, *mut c_void) -> c_int, data: *mut c_void)
    -> c_int;
    fn _Unwind_GetIP(context: *mut c_void) -> usize;
}

extern "C" fn visit(context: *mut c_void, data: *mut c_void) -> c_int {
    // SAFETY: libgcc hands back the pointer given to it, and a valid context.
    unsafe { (*data.cast::<Vec<u64>>()).push(_Unwind_GetIP(context) as u64) };
    0
}

/// The truth: return addresses by libgcc, innermost first, ending before the null that follows the outermost frame.
#[inline(never)]
fn by_libgcc() -> Vec<u64> {
    let mut addresses: Vec<u64> = Vec::with_capacity(256);
    // SAFETY: `visit` gets the vector back.
    unsafe { _Unwind_Backtrace(visit, (&raw mut addresses).cast()) };
    addresses.retain(|&address| address != 0);
    addresses
}

/// Both at one place; the frames of this function and below differ, those of its callers must not.
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
    // Below the callers: by_libgcc and check there, check here.
    assert_eq!(found[1..], truth[2..], "found {found:x?}, truth {truth:x?}");
    found.len()
}

/// Calls itself by different ways and with different frame sizes, as the bits of `path` say.
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
fn random_call_trees() {
    let mut random = 0x1234_5678_9abc_def0_u64;
    // Elsewhere every capture is a whole walk, and an emulator runs it.
    let rounds = if cfg!(target_arch = "x86_64") { 20_000_u32 } else { 500 };
    for round in 0..rounds {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        // Often only the innermost calls change, as in a real program.
        let path = if round % 3 == 0 { random } else { random << 40 | 0x5a_1234_5678 };
        descend(path, (random >> 60) as u32 + 12);
    }
}

#[inline(never)]
fn place() -> cairn_capture::StackId {
    black_box(capture().id())
}

#[test]
fn deep_stacks() {
    for depth in [100, 120, 121, 125, 128, 130, 250, 257, 400, 1000, 3000] {
        // Each twice and from both sides, so that records and shadows are used and not only made.
        for path in [0, 1, 0, 1, 0x5a5a, 0x5a5a] {
            descend(path, depth);
        }
    }
    for round in 0..2000_u64 {
        descend(0, 90 + (round * 7 % 300) as u32);
    }
}

#[test]
fn the_same_place_has_the_same_number_and_another_place_another() {
    let mut ids = Vec::new();
    for _ in 0..black_box(10) {
        ids.push(place());
    }
    let other = capture().id();
    assert!(ids.windows(2).all(|pair| pair[0] == pair[1]));
    assert_ne!(ids[0], other);
}

#[test]
fn threads_come_and_go() {
    for _ in 0..200 {
        std::thread::spawn(|| {
            check();
            check();
        })
        .join()
        .unwrap();
    }
}
