//! Captures stacks with code that no table covers, as JIT compilers emit it: the hot path goes on
//! through it, and ends there, where the whole walk does.
// On other processors the whole walk captures such stacks.
#![cfg(target_arch = "x86_64")]

mod support;

use std::hint::black_box;
use std::ptr;
use std::sync::Barrier;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;

use cairn_capture::{Stack, StopReason, capture, statistics, while_unloading};
use support::{Stub, WITH_FRAME_POINTER, compile};

/// Calls rdi with the value of rsi in rbp, without a frame pointer of its own.
const WITHOUT_FRAME_POINTER: &[u8] = &[
    0x55, // push rbp
    0x48, 0x89, 0xf5, // mov rbp, rsi
    0xff, 0xd7, // call rdi
    0x5d, // pop rbp
    0xc3, // ret
];

/// Calls rdi from two nested frames with frame pointers, both of this code.
const TWO_FRAMES: &[u8] = &[
    0x55, // push rbp
    0x48, 0x89, 0xe5, // mov rbp, rsp
    0xe8, 0x02, 0x00, 0x00, 0x00, // call inner
    0x5d, // pop rbp
    0xc3, // ret
    0x55, // inner: push rbp
    0x48, 0x89, 0xe5, // mov rbp, rsp
    0xff, 0xd7, // call rdi
    0x5d, // pop rbp
    0xc3, // ret
];

/// Calls rdi as CPython's trampolines do, and leaves rbp to its caller.
const TRAMPOLINE: &[u8] = &[
    0x48, 0x89, 0xf9, // mov rcx, rdi
    0x48, 0x83, 0xec, 0x08, // sub rsp, 8
    0xff, 0xd1, // call rcx
    0x48, 0x83, 0xc4, 0x08, // add rsp, 8
    0xc3, // ret
];

/// Calls rdi with a frame pointer, from a function to which it has jumped.
///
/// It has pushed the return address, as Java's interpreter does: no call is in front of that.
const WITHOUT_CALL: &[u8] = &[
    0x55, // push rbp
    0x48, 0x89, 0xe5, // mov rbp, rsp
    0x48, 0x8d, 0x05, 0x06, 0x00, 0x00, 0x00, // lea rax, [rip + 6]
    0x50, // push rax
    0xeb, 0x0a, // jmp inner
    0x0f, 0x1f, 0x00, // nop
    0x90, // the pushed address: nop
    0x48, 0x89, 0xec, // mov rsp, rbp
    0x5d, // pop rbp
    0xc3, // ret
    0x90, // nop
    0x55, // inner: push rbp
    0x48, 0x89, 0xe5, // mov rbp, rsp
    0xff, 0xd7, // call rdi
    0x5d, // pop rbp
    0xc3, // ret
];

/// A page of code that a JIT compiler writes again and again.
struct RewrittenPage {
    page: *mut u8,
    /// The programs, and the place of the last return address in each.
    ///
    /// All are placed so that they return to the same address.
    programs: &'static [(&'static [u8], usize)],
}

impl RewrittenPage {
    fn new(programs: &'static [(&'static [u8], usize)]) -> Self {
        Self { page: compile(&[]) as *mut u8, programs }
    }

    const RETURN_AT: usize = 64;

    fn write(&self, number: usize) -> Stub {
        let (program, return_at) = self.programs[number];
        // SAFETY: the page is writable, has room for the program, and does not run now; the
        // program has the type of stubs.
        unsafe {
            ptr::write_bytes(self.page, 0x90, 256);
            let start = self.page.add(Self::RETURN_AT - return_at);
            ptr::copy_nonoverlapping(program.as_ptr(), start, program.len());
            std::mem::transmute::<*mut u8, Stub>(start)
        }
    }
}

std::thread_local! {
    static TAKEN: std::cell::RefCell<Vec<Stack>> = const { std::cell::RefCell::new(Vec::new()) };
}

/// Captures a few calls inside of the stub, so that the stub is not always near the innermost
/// frame.
#[inline(never)]
fn take(depth: u32) {
    if depth == 0 {
        let stack = capture();
        TAKEN.with_borrow_mut(|taken| taken.push(stack));
    } else {
        take(depth - 1);
    }
    black_box(depth);
}

extern "C" fn take_nearby() {
    take(0);
}

extern "C" fn take_far_inside() {
    take(20);
}

/// Captures in the stub repeatedly from one place. The frame record contains one return address
/// after the other.
///
/// Some of the captures are whole walks, because another thread unloads a module meanwhile. All
/// others must equal these.
#[inline(never)]
fn check(
    name: &str,
    stub: Stub,
    calls: extern "C" fn(),
    frame_pointer: u64,
    record: &FakeRecord,
) -> StopReason {
    let set = |turn: usize| {
        let [first, second, ..] = &record.words;
        second.store(record.return_addresses[turn], Relaxed);
        first.store(0, Relaxed);
        stub
    };
    check_turns(name, calls, frame_pointer, record.return_addresses.len(), &set, WalkCount::Known)
}

/// The number of whole walks in a check.
#[derive(Clone, Copy, PartialEq)]
enum WalkCount {
    /// As many as there must be: those during an unload.
    Known,
    /// At least these: code that had a known shape and has none now takes more.
    AtLeast,
}

impl WalkCount {
    fn check(self, expected: &mut u64, name: &str) {
        let found = statistics().whole_walks;
        match self {
            Self::Known => assert_eq!(found, *expected, "{name}"),
            Self::AtLeast => assert!(found >= *expected, "{name}"),
        }
        *expected = found;
    }
}

/// Captures as [`check`] does; `set` prepares one turn after the other, each for two captures.
#[inline(never)]
fn check_turns(
    name: &str,
    calls: extern "C" fn(),
    frame_pointer: u64,
    turns: usize,
    set: &dyn Fn(usize) -> Stub,
    walk_count: WalkCount,
) -> StopReason {
    const BEFORE: usize = 12;
    const WHOLE: usize = 6;
    const ALL: usize = 60;
    let (begun, done) = (Barrier::new(2), Barrier::new(2));
    thread::scope(|scope| {
        let unload = || {
            while_unloading(|| {
                begun.wait();
                done.wait();
            });
        };
        let mut unloading = None;
        let mut walks = statistics().whole_walks;
        for round in 0..black_box(ALL) {
            if round == BEFORE {
                walk_count.check(&mut walks, name);
                unloading = Some(scope.spawn(unload));
                begun.wait();
            }
            if round == BEFORE + WHOLE {
                walks += WHOLE as u64;
                walk_count.check(&mut walks, name);
                done.wait();
                unloading.take().unwrap().join().unwrap();
            }
            let stub = set(round / 2 % turns);
            // SAFETY: the stub keeps the calling convention, and the function that it calls does
            // not unwind.
            unsafe { stub(calls, frame_pointer) };
        }
        walk_count.check(&mut walks, name);
    });
    let taken = TAKEN.take();
    assert_eq!(taken.len(), ALL);
    let turn = 2 * turns;
    for (round, stack) in taken.iter().enumerate() {
        let truth = taken[BEFORE + round % turn];
        let (found, expected) = (stack.frames(), truth.frames());
        assert!(found.clone().eq(expected.clone()), "{name} {round}: {found:x?}, not {expected:x?}");
        assert_eq!(stack.stop_reason(), truth.stop_reason(), "{name} {round}");
        assert_eq!(stack.id(), truth.id(), "{name} {round}");
    }
    taken[BEFORE].stop_reason()
}

/// A fake frame record on the stack, above all frames that may use it.
struct FakeRecord {
    words: [AtomicU64; 2],
    /// The return addresses that it contains in turn, for two captures each.
    return_addresses: Vec<u64>,
}

impl FakeRecord {
    fn of(return_addresses: &[u64]) -> Self {
        // The rounds before the unload and during it are multiples of this count.
        assert!([1, 3].contains(&return_addresses.len()));
        Self { words: [AtomicU64::new(0), AtomicU64::new(0)], return_addresses: return_addresses.to_vec() }
    }

    fn address(&self) -> u64 {
        self.words.as_ptr() as u64
    }
}

#[inline(never)]
fn on_a_stack_of_this_depth(depth: u32, run: &dyn Fn()) {
    if depth == 0 {
        run()
    } else {
        on_a_stack_of_this_depth(depth - 1, run)
    }
    black_box(depth);
}

/// The only test here, because the statistics count all captures of the process.
#[test]
fn hot_path_ends_where_the_whole_walk_ends() {
    let without = compile(WITHOUT_FRAME_POINTER);
    let with = compile(WITH_FRAME_POINTER);
    let two = compile(TWO_FRAMES);
    let trampoline = compile(TRAMPOLINE);
    let without_call = compile(WITHOUT_CALL);
    // In each, another program is the first one at its addresses.
    let rewritten = [
        RewrittenPage::new(&[(WITH_FRAME_POINTER, 6), (WITHOUT_FRAME_POINTER, 6), (TRAMPOLINE, 9)]),
        RewrittenPage::new(&[(TRAMPOLINE, 9), (TWO_FRAMES, 17), (WITH_FRAME_POINTER, 6)]),
        RewrittenPage::new(&[(WITHOUT_FRAME_POINTER, 6), (TRAMPOLINE, 9), (WITHOUT_CALL, 30)]),
    ];
    let code = take_nearby as *const () as u64 + 1;
    let null = FakeRecord::of(&[0]);
    let records = [FakeRecord::of(&[8]), FakeRecord::of(&[code]), FakeRecord::of(&[0, 8, code])];
    let pointers = [
        ("zero", 0),
        ("wild and low", 0x1234_5678),
        ("odd", null.address() + 1),
        ("highest", u64::MAX),
        ("highest word", u64::MAX - 7),
        ("null record", null.address()),
    ];
    for depth in [0, 3, 40] {
        on_a_stack_of_this_depth(depth, &|| {
            for calls in [take_nearby as extern "C" fn(), take_far_inside] {
                for (name, fp) in pointers {
                    let reason = check(name, without, calls, fp, &null);
                    assert!(matches!(reason, StopReason::NoUnwindInfo { .. }), "{name}: {reason}");
                }
                for record in &records {
                    check("record", without, calls, record.address(), record);
                }
                for (name, stub) in [
                    ("frame pointer", with),
                    ("two frames", two),
                    ("trampoline", trampoline),
                    ("without call", without_call),
                ] {
                    let reason = check(name, stub, calls, 0x1234_5678, &null);
                    assert_eq!(reason, StopReason::EndOfStack, "{name}");
                }
                for rewritten in &rewritten {
                    let set = |turn| rewritten.write(turn);
                    let turns = rewritten.programs.len();
                    check_turns("rewritten", calls, null.address(), turns, &set, WalkCount::AtLeast);
                }
            }
        });
    }
}
