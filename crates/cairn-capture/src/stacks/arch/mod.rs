//! Code that differs between processors, in twin folders with equal file names:
//!
//! | file | contents |
//! |---|---|
//! | `entry.rs` | the naked function that passes the caller's registers on |
//! | `registers.rs` | reads the registers of this place |
//! | `bytes.rs` | compares the bytes of two words at once |
//! | `code.rs` | the rule of code without tables |
//! | `frames.rs` | where a step finds the return address, and which bits of it are significant |
//! | `special_steps.rs` | steps of the hot path that are not plain |
//!
//! On AArch64 the hot path leaves code without tables to the whole walk, by its frame pointer or by
//! its shape. Registered tables and interpreters' frames are read on x86-64 only.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
pub use aarch64::cairn_capture_here;
#[cfg(target_arch = "aarch64")]
pub(crate) use aarch64::*;
#[cfg(target_arch = "x86_64")]
pub use x86_64::cairn_capture_here;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::*;

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!(
    "cairn-capture supports x86-64 and AArch64; add a folder in src/stacks/arch for another processor"
);
