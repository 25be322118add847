//! One word of thread-local storage: the address of the thread's log.
//!
//! Laid out in assembly and accessed by the initial-exec model, because a first access may come
//! from inside malloc and must not allocate. It takes 8 bytes of the static space that the loader
//! reserves for libraries that are loaded later.
//!
//! `cairn-capture` and `cairn-preload` have a word of their own, with the same few instructions: a
//! shared home would be a crate of macros over assembly templates, whose symbol name is part of the
//! template, and each crate would still have to define its word.

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

/// Takes the word: the loader has reserved it.
pub(crate) fn take() -> bool {
    true
}

/// Reads this thread's word.
#[inline(always)]
pub(crate) fn load() -> *mut u8 {
    let value;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: reads the 8 bytes that the section above reserves in every thread, for its whole
    // life.
    unsafe {
        core::arch::asm!(
            "mov {value}, qword ptr [rip + cairn_recorder_thread_word@GOTTPOFF]",
            "mov {value}, qword ptr fs:[{value}]",
            value = out(reg) value,
            options(nostack, preserves_flags, readonly),
        );
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: reads the 8 bytes that the section above reserves in every thread, for its whole
    // life.
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
    // SAFETY: writes the 8 bytes of this thread, which no other code accesses.
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
    // SAFETY: writes the 8 bytes of this thread, which no other code accesses.
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

/// Returns the distance of the word from the thread pointer, which is the same in all threads.
#[cfg(target_arch = "x86_64")]
#[must_use]
pub fn thread_word_offset() -> u64 {
    let offset;
    // SAFETY: reads an entry of this module's own table, which the loader fills before any code
    // runs.
    unsafe {
        core::arch::asm!(
            "mov {offset}, qword ptr [rip + cairn_recorder_thread_word@GOTTPOFF]",
            offset = out(reg) offset,
            options(nostack, preserves_flags, readonly),
        );
    }
    offset
}
