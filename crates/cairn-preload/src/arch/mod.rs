//! Code that differs between processors: entries of hooks, system calls, the thread's word.
//!
//! The thread's word here, and those of cairn-recorder and cairn-capture, are three symbols with
//! the same few instructions; `thread_word` in cairn-recorder explains why they have no common
//! home.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
pub(crate) use aarch64::*;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::*;

/// Exports `$name`, a function of 1 to 3 arguments, as a jump to the Rust function `$hook`. `$hook`
/// takes three more: the caller's return address, its stack pointer after the return, and its frame
/// pointer.
macro_rules! entry {
    ($arguments:tt $name:ident => $hook:path) => {
        /// Replaces the function of this name.
        ///
        /// # Safety
        ///
        /// The contract is that of the replaced function.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            cairn_recorder::jump_with_call_site!($arguments, $hook)
        }
    };
}
pub(crate) use entry;
