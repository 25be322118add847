//! What differs between processors, in twin folders with equal file names:
//!
//! | file | what |
//! |---|---|
//! | `entry.rs` | the naked function that hands over the caller's registers |
//! | `registers.rs` | the registers of this place, and of a signal's context |
//! | `words.rs` | the thread's word, the thread pointer, the weak symbol of the loader |
//! | `engine.rs` | the hot path. x86-64's is [`crate::engine`] itself |
//!
//! On AArch64 every capture takes the whole walk: its answers are the same, at the whole walk's price. The hot path
//! depends on the return address lying just below the caller's stack pointer, which only x86-64's calls promise.

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
compile_error!("cairn-capture knows x86-64 and AArch64; add a folder in src/arch for another processor");
