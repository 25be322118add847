//! Accesses words that only assembly can reach: thread-local storage.

/// Reads this thread's word, `cairn_capture_thread_word`.
#[inline(always)]
pub(crate) fn load_thread_word() -> *mut u8 {
    let value;
    // SAFETY: the instructions read the thread's own 8 bytes, which exist as long as the thread.
    unsafe {
        core::arch::asm!(
            "mov {value}, qword ptr [rip + cairn_capture_thread_word@GOTTPOFF]",
            "mov {value}, qword ptr fs:[{value}]",
            value = out(reg) value,
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
            "mov {offset}, qword ptr [rip + cairn_capture_thread_word@GOTTPOFF]",
            "mov qword ptr fs:[{offset}], {value}",
            offset = out(reg) _,
            value = in(reg) value,
            options(nostack, preserves_flags),
        );
    }
}

/// The thread pointer: the address of the thread control block, below which the stack lies.
pub(crate) fn thread_control_block() -> u64 {
    let address;
    // SAFETY: the instruction reads the first word of the thread control block, which contains its
    // own address, by the ABI.
    unsafe {
        core::arch::asm!("mov {}, qword ptr fs:[0]", out(reg) address, options(nostack, preserves_flags, readonly));
    }
    address
}
