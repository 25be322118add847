//! One word of thread-local storage, with no code behind it.
//!
//! `#[thread_local]` is not stable, and `std::thread_local!` in a shared library calls `__tls_get_addr`, which may
//! allocate on a thread's first access: inside malloc that is a loop without end. So the word is laid out in assembly
//! and reached by the initial-exec model: one load of its offset, one access relative to the thread pointer. It takes
//! 8 bytes of the static TLS space that the loader keeps for libraries that come late.

/// Reads this thread's word: null in a new thread.
#[inline(always)]
pub(crate) fn load() -> *mut u8 {
    let value;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: reads 8 bytes that every thread has for its whole life.
    unsafe {
        core::arch::asm!(
            "mov {value}, qword ptr [rip + cairn_capture_thread_word@GOTTPOFF]",
            "mov {value}, qword ptr fs:[{value}]",
            value = out(reg) value,
            options(nostack, preserves_flags, readonly),
        );
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: reads 8 bytes that every thread has for its whole life.
    unsafe {
        core::arch::asm!(
            "mrs {thread}, tpidr_el0",
            "adrp {value}, :gottprel:cairn_capture_thread_word",
            "ldr {value}, [{value}, :gottprel_lo12:cairn_capture_thread_word]",
            "ldr {value}, [{thread}, {value}]",
            value = out(reg) value,
            thread = out(reg) _,
            options(nostack, preserves_flags, readonly),
        );
    }
    value
}

/// Writes this thread's word.
#[inline(always)]
pub(crate) fn store(value: *mut u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: writes 8 bytes that belong to this thread and to this module.
    unsafe {
        core::arch::asm!(
            "mov {offset}, qword ptr [rip + cairn_capture_thread_word@GOTTPOFF]",
            "mov qword ptr fs:[{offset}], {value}",
            offset = out(reg) _,
            value = in(reg) value,
            options(nostack, preserves_flags),
        );
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: writes 8 bytes that belong to this thread and to this module.
    unsafe {
        core::arch::asm!(
            "mrs {thread}, tpidr_el0",
            "adrp {offset}, :gottprel:cairn_capture_thread_word",
            "ldr {offset}, [{offset}, :gottprel_lo12:cairn_capture_thread_word]",
            "str {value}, [{thread}, {offset}]",
            offset = out(reg) _,
            thread = out(reg) _,
            value = in(reg) value,
            options(nostack, preserves_flags),
        );
    }
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
    fn each_thread_has_its_own_word() {
        store(8 as *mut u8);
        std::thread::spawn(|| {
            assert!(load().is_null());
            store(16 as *mut u8);
            assert_eq!(load() as usize, 16);
        })
        .join()
        .unwrap();
        assert_eq!(load() as usize, 8);
        store(core::ptr::null_mut());
    }
}
