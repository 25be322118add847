//! One word of thread-local storage, with no code behind it: where a thread's log is.
//!
//! Laid out in assembly and reached by the initial-exec model, because a first access must not allocate: it may come from
//! inside malloc. It takes 8 bytes of the static space that the loader keeps for libraries that come late.

core::arch::global_asm!(
    ".pushsection .tbss.cairn_recorder_thread_word,\"awT\",%nobits",
    ".globl cairn_recorder_thread_word",
    ".hidden cairn_recorder_thread_word",
    ".type cairn_recorder_thread_word, %object",
    ".size cairn_recorder_thread_word, 8",
    ".balign 8",
    "cairn_recorder_thread_word:",
    ".zero 8",
    ".popsection",
);

/// Reads this thread's word.
#[inline(always)]
pub(crate) fn load() -> *mut u8 {
    let value;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: reads 8 bytes that every thread has for its whole life.
    unsafe {
        core::arch::asm!(
            "mov {value}, qword ptr [rip + cairn_recorder_thread_word@GOTTPOFF]",
            "mov {value}, qword ptr fs:[{value}]",
            value = out(reg) value,
            options(nostack, preserves_flags, readonly),
        );
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        core::arch::asm!(
            "mrs {thread}, tpidr_el0",
            "adrp {value}, :gottprel:cairn_recorder_thread_word",
            "ldr {value}, [{value}, :gottprel_lo12:cairn_recorder_thread_word]",
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
            "mov {offset}, qword ptr [rip + cairn_recorder_thread_word@GOTTPOFF]",
            "mov qword ptr fs:[{offset}], {value}",
            offset = out(reg) _,
            value = in(reg) value,
            options(nostack, preserves_flags),
        );
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        core::arch::asm!(
            "mrs {thread}, tpidr_el0",
            "adrp {offset}, :gottprel:cairn_recorder_thread_word",
            "ldr {offset}, [{offset}, :gottprel_lo12:cairn_recorder_thread_word]",
            "str {value}, [{thread}, {offset}]",
            offset = out(reg) _,
            thread = out(reg) _,
            value = in(reg) value,
            options(nostack, preserves_flags),
        );
    }
}

/// Where the word of a thread is, as a distance from its thread pointer: the same in all threads.
#[cfg(target_arch = "x86_64")]
#[must_use]
pub fn thread_word_offset() -> u64 {
    let offset;
    // SAFETY: reads an entry of this module's own table, which the loader has filled.
    unsafe {
        core::arch::asm!(
            "mov {offset}, qword ptr [rip + cairn_recorder_thread_word@GOTTPOFF]",
            offset = out(reg) offset,
            options(nostack, preserves_flags, readonly),
        );
    }
    offset
}
