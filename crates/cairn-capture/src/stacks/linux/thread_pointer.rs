//! Accesses one word of thread-local storage without calling a function.
//!
//! `#[thread_local]` is not stable, and `std::thread_local!` in a shared library calls
//! `__tls_get_addr`, which may allocate on a thread's first access: inside malloc, that is an
//! endless loop. So the word is defined in assembly and accessed by the initial-exec model: one
//! load of its offset, and one access relative to the thread pointer. It takes 8 bytes of the
//! static TLS space that the loader reserves for libraries that are loaded later.

pub(crate) use crate::stacks::linux::words::load_thread_word as load;
use crate::stacks::linux::words::store_thread_word;

/// Writes this thread's word; false when there is none.
#[must_use]
pub(crate) fn store(value: *mut u8) -> bool {
    store_thread_word(value);
    true
}

core::arch::global_asm!(
    ".pushsection .tbss.cairn_capture_thread_word,\"awT\",%nobits",
    ".globl cairn_capture_thread_word",
    ".hidden cairn_capture_thread_word",
    ".type cairn_capture_thread_word, %object",
    ".size cairn_capture_thread_word, 8",
    ".balign 8",
    "cairn_capture_thread_word:",
    ".zero 8",
    ".popsection",
);

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;

    #[test]
    fn word_differs_between_threads() {
        assert!(store(8 as *mut u8));
        std::thread::spawn(|| {
            assert!(load().is_null());
            assert!(store(16 as *mut u8));
            assert_eq!(load() as usize, 16);
        })
        .join()
        .unwrap();
        assert_eq!(load() as usize, 8);
        assert!(store(core::ptr::null_mut()));
    }
}
