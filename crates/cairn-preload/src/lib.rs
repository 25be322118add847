//! Records the heap events of a program that preloads this library, by `cairn heap` or
//! `LD_PRELOAD`.
//!
//! ```sh
//! CAIRN_HEAP=output=/tmp/%n.%p.cairn LD_PRELOAD=libcairn_preload.so ls
//! cairn report /tmp/ls.*.cairn
//! ```
//!
//! All code here runs inside a foreign program: in malloc, in signal handlers, before the
//! first constructor and after the last destructor, in a forked child, on stacks of 8 KiB. The
//! rules:
//!
//! - **The program must not notice.** A hook calls the function that the program would have called
//!   without it ([`next`]), with the same arguments, and returns its result. `errno` is the real
//!   function's. Nothing is printed, unless recording cannot begin and no command can report it.
//! - **Nothing of the program is used**: no malloc, no stdio, no loader (`dlsym`) and no lock of
//!   the C library. The kernel is called directly ([`system`]), because a program may define `open`
//!   or `write` itself.
//! - **No state in descriptors, threads, handlers or destructors.** The program may close all
//!   descriptors and end all threads; the recording is memory that is shared with a file.
//!
//! | module | what is in it |
//! |---|---|
//! | [`hooks`] | the functions that the program calls in place of the C library's |
//! | [`next`] | finds the functions that it would have called |
//! | [`start`] | starts everything at the first call of a hook: options, environment, recording |
//! | [`runtimes`] | finds LuaJIT and PHP, through whose compiled code captures then step |
//! | [`python`] | finds interpreters in the program, whose frames captures then read |
//! | [`attach`] | puts the hooks into a running program, and takes them out |
//! | [`options`] | parses `CAIRN_HEAP` |
//! | `annotate` | with the feature of that name, in place of all that: writes the allocating stack in front of each block |
//! | `target`, `program_file` | decides whether the program of an `exec` can load this library |
//! | [`environment`] | removes our variables from the environment, and adds them for `exec` |
//!
//! The library that is shipped is built without unwinding (profile `c-library`): there it is
//! `no_std`, and nothing of Rust's runtime is in it. In all other profiles it uses std, because an
//! unoptimised `no_std` library keeps references to the unwinding runtime that nobody would
//! satisfy.

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
// The hooks of `exec` use the same functions of both libraries.
#[cfg(feature = "annotate")]
use annotate as start;
mod arch;
mod at_fork;
#[cfg(not(feature = "annotate"))]
pub mod attach;
mod environment;
#[cfg(feature = "annotate")]
#[path = "hooks/exec.rs"]
pub mod exec;
#[cfg(not(feature = "annotate"))]
pub mod hooks;
mod loaded;
mod nesting;
mod next;
#[cfg(not(feature = "annotate"))]
mod options;
mod program_file;
#[cfg(not(feature = "annotate"))]
mod python;
mod real;
#[cfg(not(feature = "annotate"))]
mod recorder;
#[cfg(all(not(feature = "annotate"), target_arch = "x86_64"))]
pub mod runtimes;
#[cfg(not(feature = "annotate"))]
mod start;
mod system;
mod target;
mod text;

/// Ends the process: there is no caller to unwind to. No known input leads here.
#[cfg(panic = "abort")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    system::abort()
}
