//! Words that only assembly reaches: thread-local storage and weak symbols.

/// Reads this thread's word, `cairn_capture_thread_word`.
#[inline(always)]
pub(crate) fn load_thread_word() -> *mut u8 {
    let value;
    // SAFETY: reads 8 bytes that every thread has for its whole life.
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
}

/// The thread pointer: the thread control block begins there, and the stack lies below.
pub(crate) fn thread_control_block() -> u64 {
    let address;
    // SAFETY: the first word of the thread control block is its own address, by the ABI.
    unsafe {
        core::arch::asm!("mov {}, qword ptr fs:[0]", out(reg) address, options(nostack, preserves_flags, readonly));
    }
    address
}

/// The address of the loader's `_dl_find_object`, a weak symbol; zero where the C library has none.
#[inline]
pub(crate) fn find_object_address() -> usize {
    let address;
    // SAFETY: reads the entry that the loader filled for the symbol.
    unsafe {
        core::arch::asm!(
            "mov {address}, qword ptr [rip + _dl_find_object@GOTPCREL]",
            address = out(reg) address,
            options(nostack, preserves_flags, readonly, pure),
        );
    }
    address
}
