//! Reads registers from this processor.

use cairn_unwind::aarch64::Aarch64;
use cairn_unwind::{Machine, Registers};

/// The frame pointer.
const X29: u16 = Aarch64::FRAME_POINTER;
/// The first of the ten registers that a callee preserves and that have no other role.
const FIRST_SAVED: u16 = 19;

/// A set of registers without known values.
pub(crate) fn no_registers() -> Registers<Aarch64> {
    Registers::new(0, 0, 0).with_address_mask(address_mask())
}

/// Reads the registers at a place in the function into which this is inlined.
#[inline(always)]
pub(crate) fn take_own_registers(registers: &mut Registers<Aarch64>) {
    let (pc, sp, fp): (u64, u64, u64);
    let mut saved = [0_u64; 10];
    // SAFETY: the instructions copy registers to declared outputs and to `saved`, which has room
    // for x19 to x28.
    unsafe {
        core::arch::asm!(
            "adr {pc}, .",
            "mov {sp}, sp",
            "mov {fp}, x29",
            "stp x19, x20, [{saved}]",
            "stp x21, x22, [{saved}, 16]",
            "stp x23, x24, [{saved}, 32]",
            "stp x25, x26, [{saved}, 48]",
            "stp x27, x28, [{saved}, 64]",
            pc = out(reg) pc, sp = out(reg) sp, fp = out(reg) fp, saved = in(reg) saved.as_mut_ptr(),
            options(nostack, preserves_flags),
        );
    }
    for (register, value) in [(Aarch64::PROGRAM_COUNTER, pc), (Aarch64::STACK_POINTER, sp), (X29, fp)] {
        registers.set(register, value);
    }
    for (register, value) in (FIRST_SAVED..).zip(saved) {
        registers.set(register, value);
    }
}

/// The bits of a code address in user space that hold no pointer authentication code.
///
/// The kernel chooses their number (39, 48 or 52) and reports it to debuggers only. So this
/// function lets the processor strip a signature from a value of ones, which gives the mask. The
/// instruction is a hint, so a processor without signatures does not change the value.
pub(crate) fn address_mask() -> u64 {
    /// Bit 55 is 0 for user space and 1 for the kernel; the byte above it is not a part of an
    /// address.
    const USER_SPACE: u64 = (1 << 55) - 1;
    let mask;
    // SAFETY: the instructions change only x30 and the output, which are declared.
    unsafe {
        core::arch::asm!(
            "mov x30, {ones}",
            "hint #7", // xpaclri
            "mov {mask}, x30",
            ones = in(reg) USER_SPACE,
            mask = out(reg) mask,
            out("x30") _,
            options(nomem, nostack, preserves_flags, pure),
        );
    }
    mask
}
