//! What differs between processors: how a hook is entered, how the kernel is called, where a thread's word is.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
pub(crate) use aarch64::*;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::*;

/// Exports `$name`, a function of 1 to 3 arguments, as a jump to the Rust function `$hook`, which takes
/// three more: the caller's return address, its stack pointer after the return, and its frame pointer.
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
