//! Captures on AArch64: return addresses in the link register of a leaf function, and signed return
//! addresses.

#![cfg(target_arch = "aarch64")]

#[path = "support/libgcc.rs"]
mod libgcc;

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Mutex;

use cairn_capture::{Stack, StopReason, capture, capture_interrupted};
use cairn_format::Frame;
use libgcc::by_libgcc;

core::arch::global_asm!(
    // A leaf function with unwind tables and no frame. It writes to its argument.
    ".globl cairn_test_leaf",
    ".type cairn_test_leaf, %function",
    "cairn_test_leaf:",
    ".cfi_startproc",
    "add x9, x0, #1",
    ".globl cairn_test_leaf_faults_here",
    "cairn_test_leaf_faults_here:",
    "str xzr, [x0]",
    "mov x0, x9",
    "ret",
    ".cfi_endproc",
    ".size cairn_test_leaf, . - cairn_test_leaf",
    // Signs its return address, calls x0 with the address of the signed word, and checks the
    // signature.
    ".globl cairn_test_signed",
    ".type cairn_test_signed, %function",
    "cairn_test_signed:",
    ".cfi_startproc",
    "hint #25", // paciasp
    ".cfi_negate_ra_state",
    "stp x29, x30, [sp, #-32]!",
    ".cfi_def_cfa_offset 32",
    ".cfi_offset 29, -32",
    ".cfi_offset 30, -24",
    "mov x29, sp",
    "mov x9, x0",
    "add x0, sp, #8",
    "blr x9",
    "ldp x29, x30, [sp], #32",
    ".cfi_restore 30",
    ".cfi_restore 29",
    ".cfi_def_cfa_offset 0",
    "hint #29", // autiasp
    ".cfi_negate_ra_state",
    "ret",
    ".cfi_endproc",
    ".size cairn_test_signed, . - cairn_test_signed",
);

unsafe extern "C" {
    fn cairn_test_leaf(address: *mut u64) -> usize;
    fn cairn_test_signed(callee: extern "C" fn(*const u64) -> usize) -> usize;
    static cairn_test_leaf_faults_here: u8;
}

fn addresses(stack: Stack) -> Vec<u64> {
    stack.frames().filter_map(|frame| Some(frame.address()?.value())).collect()
}

/// The captures in the handler. These are the interrupted stack, the handler's own stack, and
/// libgcc's answer for the latter.
static SEEN: Mutex<Option<(Stack, Stack, Vec<u64>)>> = Mutex::new(None);

extern "C" fn on_fault(_signal: c_int, _information: *mut libc::siginfo_t, context: *mut c_void) {
    let context: *mut libc::ucontext_t = context.cast();
    // SAFETY: the kernel has passed this thread's context, which is not resumed before the handler
    // returns.
    let interrupted = unsafe { capture_interrupted(context) };
    *SEEN.lock().unwrap() = Some((interrupted, capture(), by_libgcc()));
    // SAFETY: the context is valid until the handler returns. The new pc is the next instruction,
    // four bytes further.
    unsafe { (*context).uc_mcontext.pc += 4 };
}

#[test]
fn leaf_caller_is_read_from_the_link_register() {
    // SAFETY: zeros are an action, and the handler has the type that SA_SIGINFO requires.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_fault as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        assert_eq!(libc::sigaction(libc::SIGSEGV, &raw const action, ptr::null_mut()), 0);
    }
    // SAFETY: the handler skips the write to the null pointer.
    assert_eq!(unsafe { cairn_test_leaf(ptr::null_mut()) }, 1);
    let (stack, in_handler, in_handler_truth) = SEEN.lock().unwrap().take().expect("the handler ran");
    let found = addresses(stack);
    let truth = by_libgcc();
    assert_eq!(
        stack.frames().next(),
        Some(Frame::ProgramCounter(((&raw const cairn_test_leaf_faults_here) as u64).into()))
    );
    // The leaf, then this function (with a different return address for each capture), then the
    // same callers.
    assert_eq!(found[2..], truth[2..], "found {found:x?}, truth {truth:x?}");
    assert!(found[1].abs_diff(truth[1]) < 4096, "found {found:x?}, truth {truth:x?}");
    assert_eq!(stack.stop_reason(), StopReason::EndOfStack);

    // Inside the handler: its own frame, the trampoline that it returns to, and the same stack.
    let from_handler = addresses(in_handler);
    assert_eq!(from_handler[2..], found, "found {from_handler:x?}, interrupted {found:x?}");
    assert_eq!(from_handler[1..], in_handler_truth[2..], "libgcc sees {in_handler_truth:x?}");
    assert!(in_handler.frames().nth(2).is_some_and(|frame| matches!(frame, Frame::ProgramCounter(_))));
}

extern "C" fn in_signed(signed_word: *const u64) -> usize {
    let found = addresses(capture());
    let truth = by_libgcc();
    // The innermost frame differs between the two calls; libgcc's list has one more below it.
    assert_eq!(found[1..], truth[2..], "found {found:x?}, truth {truth:x?}");
    // SAFETY: the assembly passes the address of its saved return address.
    let word = unsafe { *signed_word };
    assert!(found.contains(&(word & 0x7f_ffff_ffff)) || found.contains(&(word & 0xffff_ffff_ffff)));
    // SAFETY: the call reads the auxiliary vector and has no other effect.
    let signs = unsafe { libc::getauxval(libc::AT_HWCAP) } & (1 << 30) != 0;
    assert_eq!(found.contains(&word), !signs, "{word:x} must be signed if the processor can sign");
    usize::from(signs)
}

#[test]
fn signed_return_addresses_are_stripped() {
    // SAFETY: the assembly calls its argument as a function of this type.
    let signs = unsafe { cairn_test_signed(in_signed) };
    // The emulator's default processor signs. On a processor that does not, the test still compares
    // with libgcc.
    assert!(signs <= 1);
}
