//! Writes the stack of a crash and goes on to die of it. The handler has a stack of its own: after
//! a stack overflow there is none other left.
//!
//! `cargo run -p cairn-examples --bin crash_handler -- overflow`

use std::ffi::{c_int, c_void};
use std::hint::black_box;
use std::{mem, ptr};

use cairn_capture::capture_interrupted;

extern "C" fn on_crash(signal: c_int, _info: *mut libc::siginfo_t, context: *mut c_void) {
    let what = b"crashed:\n";
    // SAFETY: writing and raising are allowed in handlers, and the context is the one of this
    // handler.
    unsafe {
        libc::write(2, what.as_ptr().cast(), what.len());
        // A closed standard error is no reason to crash differently.
        let _ = capture_interrupted(context.cast()).write_text(2);
        // SA_RESETHAND has put the default back, which ends the process with this signal.
        libc::raise(signal);
    }
}

fn install() {
    const OWN_STACK_BYTES: usize = 64 * 1024;
    let own_stack = Box::leak(vec![0_u8; OWN_STACK_BYTES].into_boxed_slice());
    // SAFETY: the stack lasts as long as the process, zeros are a value of an action, and the
    // handler only does what a handler may do.
    unsafe {
        let stack =
            libc::stack_t { ss_sp: own_stack.as_mut_ptr().cast(), ss_flags: 0, ss_size: OWN_STACK_BYTES };
        libc::sigaltstack(&stack, ptr::null_mut());
        let mut action: libc::sigaction = mem::zeroed();
        action.sa_sigaction = on_crash as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESETHAND;
        for signal in [libc::SIGSEGV, libc::SIGBUS] {
            libc::sigaction(signal, &action, ptr::null_mut());
        }
    }
}

#[inline(never)]
fn write_to_nowhere() {
    // SAFETY: it is not; that is what this program is for.
    unsafe { black_box(ptr::without_provenance_mut::<u64>(16)).write_volatile(1) };
}

#[inline(never)]
fn recurse(depth: u64) -> u64 {
    let frame = black_box([depth; 32]);
    if black_box(true) { recurse(depth + 1) + frame[3] } else { 0 }
}

fn main() {
    install();
    match std::env::args().nth(1).as_deref() {
        Some("overflow") => {
            black_box(recurse(0));
        }
        _ => write_to_nowhere(),
    }
}
