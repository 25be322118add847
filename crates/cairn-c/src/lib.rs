//! The C interface of `cairn-capture`, `cairn-recorder` and `cairn-heap`: the library that C and
//! C++ programs link as `libcairn.so` or `libcairn.a`.
//!
//! ```c
//! #include <cairn_capture.h>
//!
//! int main(void) {
//!     cairn_recording_start(NULL);
//!     cairn_mark("before the slow part", 0);
//!     cairn_stack_id stack = cairn_capture();
//!     return cairn_stack_print(stack, 2);
//! }
//! ```
//!
//! All code here runs inside a foreign program, also in malloc and in signal handlers: no
//! allocation, no lock, no panic and no Rust layout across the boundary. The header declares the
//! exports of [`capture`], [`encode`], [`recording`] and [`walk`]: `cargo xtask header` writes
//! `include/cairn_capture.h` from their sources, including doc comments, which are therefore
//! written for readers of C. [`unloading`] also exports `dlclose`, which no header has to declare.
//!
//! The libraries that are shipped are built by `cargo xtask c-library`, in a profile without
//! unwinding: there the crate is `no_std` and nothing of Rust's runtime is in them. In all other
//! profiles it uses std, because an unoptimised `no_std` library keeps references to the unwinding
//! runtime that nobody would satisfy.

#![cfg_attr(panic = "abort", no_std)]

pub mod capture;
pub mod encode;
/// Annotated blocks; declared in `include/cairn_heap.h`.
pub use cairn_heap::c as heap;
pub mod recording;
pub mod unloading;
mod versioned;
pub mod walk;

/// Ends the process: there is no caller to unwind to. No known input leads here.
#[cfg(panic = "abort")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // SAFETY: ends the process, as the C library does when it finds itself damaged.
    unsafe { libc::abort() }
}
