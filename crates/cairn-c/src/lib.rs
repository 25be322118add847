//! The C face of `cairn-capture` and `cairn-recorder`: what C and C++ programs link as
//! `libcairn.so` or `libcairn.a`.
//!
//! Everything here runs inside the program of somebody else, in malloc and in signal handlers too:
//! no allocation, no lock, no panic over the border, no Rust layout in it. What [`capture`],
//! [`encode`] and [`recording`] export is what the header declares: `cargo xtask header` writes
//! `include/cairn_capture.h` from their text, doc comments included, which are therefore written
//! for readers of C. [`unloading`] exports `dlclose` beside it, which no header has to declare.
//!
//! The libraries that are shipped are built by `cargo xtask c-library`, in a profile without
//! unwinding: there the crate is `no_std` and nothing of Rust's runtime is in them. In all other
//! profiles it uses std, because an unoptimised `no_std` library keeps references to the unwinding
//! runtime that nobody would satisfy.

#![cfg_attr(panic = "abort", no_std)]

pub mod capture;
pub mod encode;
/// Blocks that say who allocated them; declared in `include/cairn_heap.h`.
pub use cairn_heap::c as heap;
pub mod recording;
pub mod unloading;
mod versioned;
pub mod walk;

/// There is no caller to unwind to. No input is known that leads here.
#[cfg(panic = "abort")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // SAFETY: ends the process, as the C library does when it finds itself damaged.
    unsafe { libc::abort() }
}
