//! Records the heap events of a Windows program: `cairn heap` loads this library into it.
//!
//! All code here runs inside a foreign program: in the loader, in the heap, in any thread. The
//! rules are those of `cairn-preload`:
//!
//! - **The program must not notice.** A hook calls the real function with the same arguments and
//!   returns its result. The last error is the real function's. The environment is unchanged.
//! - **Nothing of the program is used**: no allocator and no runtime. Functions of ntdll and
//!   kernel32 are called that allocate nothing.
//! - **All or nothing.** A function whose first instructions cannot be moved is reported, and then
//!   nothing is hooked and nothing is recorded.
//!
//! | module | content |
//! |---|---|
//! | `prologue` | finds how many bytes at the start of a function can be moved |
//! | `patch` | moves them, and writes the jumps |
//! | `nesting` | a word of each thread: whether it is inside a hook |
//! | `hooks` | the functions that the jumps lead to |
//! | `mappings` | on request: hooks of the functions that map addresses |
//! | `children` | on request: puts this library into children of the program |
//! | `run` | memory of the whole run: which children are not recorded |
//! | `exchange` | memory shared with `cairn`: what it requests, and the answer |
//! | `start` | called by the loader: starts the recording |
//! | `calls` | functions of Windows |
//!
//! On other systems this crate is empty, except for the tests of `prologue`.
//!
//! The library that is shipped is built without unwinding (profile `c-library`) and by mingw's
//! linker is `no_std`: with std the loader would put four more libraries into the program. With
//! Microsoft's linker std is linked, which brings the entry point that the linker asks for.

#![cfg_attr(all(windows, panic = "abort", target_env = "gnu"), no_std)]

#[cfg(windows)]
mod calls;
#[cfg(windows)]
mod children;
#[cfg(windows)]
mod exchange;
#[cfg(windows)]
mod hooks;
#[cfg(windows)]
mod mappings;
#[cfg(windows)]
mod nesting;
#[cfg(windows)]
mod patch;
#[cfg(any(windows, test))]
mod prologue;
#[cfg(windows)]
mod run;
#[cfg(windows)]
pub mod start;

#[cfg(all(windows, panic = "abort", target_env = "gnu"))]
mod without_std {
    /// Ends the process: there is no caller to unwind to. No known input leads here.
    #[panic_handler]
    fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
        crate::calls::abort()
    }

    // The unwind data of `core` names this function, and nothing unwinds.
    core::arch::global_asm!(".globl rust_eh_personality", "rust_eh_personality:", "ud2");
}
