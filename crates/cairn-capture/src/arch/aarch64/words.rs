//! Words that only assembly reaches: thread-local storage and weak symbols.

/// Reads this thread's word, `cairn_capture_thread_word`.
#[inline(always)]
pub(crate) fn load_thread_word() -> *mut u8 {
    let value;
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
pub(crate) fn store_thread_word(value: *mut u8) {
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

/// The thread pointer. The control block lies below it, and the stack below that.
pub(crate) fn thread_control_block() -> u64 {
    let address: u64;
    // SAFETY: reads a register.
    unsafe { core::arch::asm!("mrs {}, tpidr_el0", out(reg) address, options(nostack, preserves_flags)) };
    address
}

/// The address of the loader's `_dl_find_object`, a weak symbol; zero where the C library has none.
#[inline]
pub(crate) fn find_object_address() -> usize {
    let address;
    // SAFETY: reads the entry that the loader filled for the symbol.
    unsafe {
        core::arch::asm!(
            "adrp {address}, :got:_dl_find_object",
            "ldr {address}, [{address}, :got_lo12:_dl_find_object]",
            address = out(reg) address,
            options(nostack, preserves_flags, readonly, pure),
        );
    }
    address
}
