//! Walks this thread's stack by frame pointers, over frames written in assembly, because the
//! compiler decides whether Rust code has frame pointers.

// The frames are written in x86-64's assembly.
#![cfg(target_arch = "x86_64")]

use cairn_capture::{CallSite, FrameControl, StopReason, kernel_walk_at, walk_frames, walk_frames_at};
use cairn_format::AbsoluteAddress;
use std::cell::RefCell;

/// Calls `f` from a frame with a frame pointer, and passes that pointer.
#[unsafe(naked)]
extern "C" fn framed(f: extern "C" fn(u64)) {
    core::arch::naked_asm!(
        ".cfi_startproc",
        "push rbp",
        ".cfi_def_cfa_offset 16",
        ".cfi_offset rbp, -16",
        "mov rbp, rsp",
        "mov rax, rdi",
        "mov rdi, rbp",
        "call rax",
        "pop rbp",
        ".cfi_def_cfa_offset 8",
        "ret",
        ".cfi_endproc",
    )
}

/// Calls `f` like `framed`, from the frame of an async function of Swift. Bit 60 is set, and the
/// context lies below.
#[unsafe(naked)]
extern "C" fn framed_async(f: extern "C" fn(u64), context: *const Context) {
    core::arch::naked_asm!(
        ".cfi_startproc",
        "bts rbp, 60",
        "push rbp",
        "push rsi",
        "lea rbp, [rsp + 8]",
        "sub rsp, 8",
        ".cfi_def_cfa_offset 32",
        "mov rax, rdi",
        "mov rdi, rbp",
        "call rax",
        "add rsp, 16",
        "pop rbp",
        ".cfi_def_cfa_offset 8",
        "btr rbp, 60",
        "ret",
        ".cfi_endproc",
    )
}

#[repr(C)]
struct Context {
    parent: *const Context,
    resume: u64,
}

std::thread_local! {
    static FOUND: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

const NOWHERE: AbsoluteAddress = AbsoluteAddress::new(0);

fn values(addresses: &[AbsoluteAddress]) -> Vec<u64> {
    addresses.iter().map(|address| address.value()).collect()
}

fn is_in(function: *const (), address: u64) -> bool {
    address.wrapping_sub(function as u64) < 64
}

extern "C" fn twice(_: u64) {
    framed(look);
}

extern "C" fn look(fp: u64) {
    let mut all = [NOWHERE; 64];
    let mut control = FrameControl::new();
    control.start_frame = Some(AbsoluteAddress::new(fp));
    let info = walk_frames(&control, &mut all);
    assert!(info.count >= 1 && info.is_64_bit && info.async_stack.is_none());
    // The first address is in the caller of the first frame.
    assert!(!is_in(framed as *const (), all[0].value()));

    // One address in each walk.
    let mut first = [NOWHERE; 1];
    let one = walk_frames(&control, &mut first);
    assert_eq!((one.count, first[0]), (1, all[0]));
    if let Some(next) = one.next_frame {
        assert!(one.truncated && one.stop == StopReason::Limit);
        control.start_frame = Some(next);
        let rest = walk_frames(&control, &mut first);
        assert!(rest.count == 0 || first[0] == all[1]);
    }

    // From given registers; the pc comes first, and the offset applies to it.
    control = FrameControl::new();
    control.address_offset = -1;
    let site = CallSite { pc: 0x5000, sp: fp - 64, fp };
    let info = walk_frames_at(&control, site, &mut all[..2]);
    assert_eq!((info.count, all[0].value()), (2, 0x4fff));
    let (walk, memory) = kernel_walk_at(&control, site);
    let mut kernel = [NOWHERE; 64];
    let info = walk.run(&memory, &mut kernel);
    assert!(info.count == 0 || kernel[0] == all[1], "return addresses alone");
    FOUND.with_borrow_mut(|found| found.push(info.count as u64));
}

// Failed with: no such functions.
#[test]
fn walk_frames_starts_where_the_controls_say() {
    framed(twice);
    std::thread::spawn(|| framed(twice)).join().unwrap();
    assert_eq!(FOUND.with_borrow(Vec::len), 1);
}

extern "C" fn look_from_async(fp: u64) {
    let mut addresses = [NOWHERE; 64];
    let mut control = FrameControl::new();
    control.start_frame = Some(AbsoluteAddress::new(fp));
    let info = walk_frames(&control, &mut addresses);
    let start = info.async_stack.expect("bit 60 is set");
    assert_eq!(start.start_index, 0);
    control.start_frame = start.frame;
    control.address_offset = 1;
    let resumed = walk_frames(&control, &mut addresses);
    assert_eq!(resumed.stop, StopReason::EndOfStack);
    FOUND.with_borrow_mut(|found| *found = values(&addresses[..resumed.count]));
}

#[test]
fn walk_frames_finds_and_follows_swift_async_stack() {
    let contexts =
        [0x1000, 0x2000, 0x3000].map(|resume| Box::new(Context { parent: std::ptr::null(), resume }));
    let [mut first, mut second, third] = contexts;
    second.parent = &raw const *third;
    first.parent = &raw const *second;
    framed_async(look_from_async, &raw const *first);
    assert_eq!(FOUND.take(), [0x1001, 0x2001, 0x3001]);
}

#[test]
fn invalid_start_frames_end_a_walk() {
    let mut addresses = [NOWHERE; 8];
    for frame in [8, 0x1000, 0xdead_beef_0000, 0x7fff_ffff_eff8, u64::MAX - 7] {
        let mut control = FrameControl::new();
        control.start_frame = Some(AbsoluteAddress::new(frame));
        let info = walk_frames(&control, &mut addresses);
        assert_eq!((info.count, info.error_number(), info.truncated), (0, 14, true), "{frame:#x}");
    }
}
