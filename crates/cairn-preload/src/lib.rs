//! The library that is put into a program, by `cairn heap` or by `LD_PRELOAD`, to see what it does with its memory.
//!
//! Everything here runs inside somebody else's program: in malloc, in signal handlers, before the first constructor and
//! after the last destructor, in a forked child, on stacks of 8 KiB. The rules:
//!
//! - **The program must not notice.** A hook calls what would have been called without it ([`next`]), with the same
//!   arguments, and returns what that returned. `errno` is the real function's. Nothing is printed, unless recording
//!   cannot begin and nobody else can say so.
//! - **Nothing of the program is used**: no malloc, no stdio, no loader (`dlsym`) and no lock of the C library. The kernel
//!   is called directly ([`system`]), because a program may define `open` or `write` itself.
//! - **No state in descriptors, threads, handlers or destructors.** The program may close all descriptors and end all
//!   threads; the recording is memory that is shared with a file.
//!
//! | module | what is in it |
//! |---|---|
//! | [`hooks`] | what the program calls in place of the C library |
//! | [`next`] | finding what it would have called |
//! | [`start`] | the first call of any hook: options, environment, recording |
//! | [`attach`] | for a program that runs already: putting the hooks in, and taking them out |
//! | [`options`] | the text of `CAIRN_HEAP` |
//! | `annotate` | with the feature of that name, in place of all that: blocks that say who allocated them |
//! | `target`, `program_file` | whether what a process becomes by `exec` can have this library |
//! | [`environment`] | taking our variables out of the environment, and back in for `exec` |
//!
//! The library that is shipped is built without unwinding (profile `c-library`): there it is `no_std`, and nothing of
//! Rust's runtime is in it. In all other profiles it uses std, because an unoptimised `no_std` library keeps references
//! to the unwinding runtime that nobody would satisfy.

#![cfg_attr(panic = "abort", no_std)]
#![cfg_attr(
    feature = "annotate",
    allow(
        dead_code,
        unused_imports,
        unused_macros,
        reason = "the shared modules serve the recording library, too"
    )
)]
#![cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]

#[cfg(feature = "annotate")]
pub mod annotate;
// What the hooks of `exec` ask for is the same in both libraries.
#[cfg(feature = "annotate")]
use annotate as start;
mod arch;
#[cfg(not(feature = "annotate"))]
pub mod attach;
mod environment;
#[cfg(feature = "annotate")]
#[path = "hooks/exec.rs"]
pub mod exec;
#[cfg(not(feature = "annotate"))]
pub mod hooks;
mod nesting;
mod next;
#[cfg(not(feature = "annotate"))]
mod options;
mod program_file;
mod real;
#[cfg(not(feature = "annotate"))]
mod recorder;
#[cfg(not(feature = "annotate"))]
mod start;
mod system;
mod target;
mod text;

/// There is no caller to unwind to. No input is known that leads here.
#[cfg(panic = "abort")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    system::abort()
}
