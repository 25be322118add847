//! Accesses words that only assembly can reach: thread-local storage.

/// Reads this thread's word, `cairn_capture_thread_word`.
#[inline(always)]
pub(crate) fn load_thread_word() -> *mut u8 {
    let value;
    // SAFETY: the instructions read the thread's own 8 bytes, which exist as long as the thread.
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
pub(crate) fn store_thread_word(value: *mut u8) {
    // SAFETY: the instructions write the thread's own 8 bytes, which only this module accesses.
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

/// The thread pointer: below it lies the thread control block, and below that the stack.
pub(crate) fn thread_control_block() -> u64 {
    let address: u64;
    // SAFETY: the instruction reads a register.
    unsafe { core::arch::asm!("mrs {}, tpidr_el0", out(reg) address, options(nostack, preserves_flags)) };
    address
}
