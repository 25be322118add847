//! Captures stacks with code whose unwind tables the program has registered, as LLVM's JIT does:
//! each capture takes the tables of that moment, also when code and tables change under it.
// The program's tables are read on x86-64 only.
#![cfg(target_arch = "x86_64")]

mod support;

use std::hint::black_box;
use std::ptr;
use std::sync::Barrier;
use std::thread;

use cairn_capture::{
    Stack, StopReason, add_frame_table, capture, remove_frame_table, statistics, while_unloading,
};
use support::{Stub, WITH_FRAME_POINTER, compile};

/// Code that calls rdi from a frame of this size below its return address, without a frame pointer.
///
/// It returns to the same address for each size.
fn code(size: u8) -> Vec<u8> {
    let mut code = vec![0x55]; // push rbp
    code.extend([0x48, 0x89, 0xf5]); // mov rbp, rsi
    code.extend([0x48, 0x83, 0xec, size]); // sub rsp, size
    code.extend([0xff, 0xd7]); // call rdi
    code.extend([0x48, 0x83, 0xc4, size]); // add rsp, size
    code.extend([0x5d, 0xc3]); // pop rbp; ret
    code
}

/// An `.eh_frame` with a function at `start`, as a compiler writes it for [`code`].
fn table(start: u64, size: u8) -> Vec<u8> {
    let mut table = Vec::new();
    let mut entry = |id: &dyn Fn(u32) -> u32, body: &[u8]| {
        let padded = body.len().next_multiple_of(4);
        let place = table.len() as u32 + 4;
        table.extend((padded as u32 + 4).to_le_bytes());
        table.extend(id(place).to_le_bytes());
        table.extend(body);
        table.resize(place as usize + 4 + padded, 0);
    };
    // Version 1, no augmentation, factors 1 and -8, the return address in register 16; then CFA =
    // rsp + 8 and the return address at CFA - 8.
    entry(&|_| 0, &[1, 0, 1, 0x78, 16, 0x0c, 7, 8, 0x90, 1]);
    let mut function = Vec::new();
    function.extend(start.to_le_bytes());
    function.extend(16_u64.to_le_bytes());
    // From byte 1 on: CFA = rsp + 16, rbp at CFA - 16; from byte 8 on: CFA = rsp + 16 + size.
    function.extend([0x41, 0x0e, 16, 0x86, 2, 0x47, 0x0e, 16 + size]);
    entry(&|place| place, &function);
    table.extend([0; 4]);
    table
}

std::thread_local! {
    static TAKEN: std::cell::RefCell<Vec<Stack>> = const { std::cell::RefCell::new(Vec::new()) };
}

#[inline(never)]
extern "C" fn take() {
    let stack = capture();
    TAKEN.with_borrow_mut(|taken| taken.push(stack));
    black_box(());
}

#[inline(never)]
fn call(stub: Stub) -> Stack {
    // SAFETY: the stub keeps the calling convention, and `take` does not unwind.
    unsafe { stub(take, 0x1234_5678) };
    TAKEN.take().pop().unwrap()
}

/// Captures in the stub from one place, by the hot path and by a whole walk; both are the same.
#[inline(never)]
fn captured(stub: Stub) -> (Vec<u64>, StopReason) {
    let (begun, done) = (Barrier::new(2), Barrier::new(2));
    thread::scope(|scope| {
        let mut unloading = None;
        let mut taken = Vec::new();
        for turn in 0..black_box(9) {
            if turn == 6 {
                let unload = || {
                    while_unloading(|| {
                        begun.wait();
                        done.wait();
                    });
                };
                unloading = Some(scope.spawn(unload));
                begun.wait();
            }
            let walks = statistics().whole_walks;
            taken.push(call(stub));
            assert!(turn < 6 || statistics().whole_walks > walks);
        }
        done.wait();
        unloading.take().unwrap().join().unwrap();
        let frames = |stack: &Stack| -> Vec<u64> {
            stack.frames().map(|frame| frame.address().unwrap().value()).collect()
        };
        let first = (frames(&taken[0]), taken[0].stop_reason());
        for (turn, stack) in taken.iter().enumerate() {
            assert_eq!((frames(stack), stack.stop_reason()), first, "{turn}");
        }
        first
    })
}

/// The frames from `main` up to the caller of the stub.
#[inline(never)]
fn check(page: *mut u8, size: u8, is_registered: bool) {
    // SAFETY: the page is writable, has room for the code, and does not run now.
    let stub = unsafe {
        let code = code(size);
        ptr::copy_nonoverlapping(code.as_ptr(), page, code.len());
        std::mem::transmute::<*mut u8, Stub>(page)
    };
    let table = table(page as u64, size);
    if is_registered {
        // SAFETY: a whole section, which does not change.
        unsafe { add_frame_table(table.as_ptr() as u64) };
    }
    let (frames, stop) = captured(stub);
    if is_registered {
        assert_eq!(stop, StopReason::EndOfStack, "{size} {frames:x?}");
        // The frames outside are those that a stub with a frame pointer has, whose step is certain.
        let (expected, _) = captured(compile(WITH_FRAME_POINTER));
        let place = frames.iter().position(|frame| *frame == page as u64 + 10).unwrap();
        let outside = frames.iter().zip(&expected).skip(place + 1);
        // The two calls of `captured` return to different places of this function.
        assert_eq!(outside.filter(|(frame, expected)| frame != expected).count(), 1, "{size}");
        assert_eq!(frames.len(), expected.len(), "{size}");
        remove_frame_table(table.as_ptr() as u64);
    } else {
        assert!(matches!(stop, StopReason::NoUnwindInfo { .. }), "{size} {stop}");
        assert_eq!(*frames.last().unwrap(), page as u64 + 10);
    }
}

/// The only test here, because the statistics count all captures of the process.
#[test]
fn registered_tables_are_those_of_the_moment() {
    // A table elsewhere: from now on the code here may have one.
    let elsewhere = table(0x1000, 16);
    // SAFETY: a whole section, which does not change.
    unsafe { add_frame_table(elsewhere.as_ptr() as u64) };
    let page = compile(&[]) as *mut u8;
    for size in [32, 16, 32, 96, 48, 16, 80] {
        check(page, size, true);
        check(page, size, false);
    }
    // Memory that is no section is refused.
    for start in [8, u64::MAX - 2] {
        // SAFETY: unreadable memory is not read.
        unsafe { add_frame_table(start) };
    }
    let endless = [1_u32 << 24, 0, 0];
    // SAFETY: the sizes lead out of the memory, which is not read then.
    unsafe { add_frame_table(endless.as_ptr() as u64) };
    // Many more than are live at once: their room is used again.
    for _ in 0..17_000 {
        // SAFETY: a whole section, which does not change.
        unsafe { add_frame_table(elsewhere.as_ptr() as u64) };
        remove_frame_table(elsewhere.as_ptr() as u64);
    }
    check(page, 32, true);
    check(page, 32, false);
}
