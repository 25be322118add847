//! Reads registers from this processor.

use cairn_unwind::Registers;
use cairn_unwind::x86_64::{R12, R13, R14, R15, RBP, RBX, RIP, RSP, X86_64};
#[cfg(windows)]
use cairn_unwind::x86_64::{RDI, RSI};

/// A set of registers without known values.
pub(crate) fn no_registers() -> Registers<X86_64> {
    Registers::new(0, 0, 0)
}

/// Reads the registers at a place in the function into which this is inlined.
#[inline(always)]
pub(crate) fn take_own_registers(registers: &mut Registers<X86_64>) {
    let (pc, sp, fp, rbx, r12, r13, r14, r15): (u64, u64, u64, u64, u64, u64, u64, u64);
    // SAFETY: the instructions copy registers to declared outputs, and access no memory.
    unsafe {
        core::arch::asm!(
            "lea {pc}, [rip]",
            "mov {sp}, rsp",
            "mov {fp}, rbp",
            "mov {rbx}, rbx",
            pc = out(reg) pc, sp = out(reg) sp, fp = out(reg) fp, rbx = out(reg) rbx,
            options(nomem, nostack, preserves_flags),
        );
        core::arch::asm!(
            "mov {r12}, r12",
            "mov {r13}, r13",
            "mov {r14}, r14",
            "mov {r15}, r15",
            r12 = out(reg) r12, r13 = out(reg) r13, r14 = out(reg) r14, r15 = out(reg) r15,
            options(nomem, nostack, preserves_flags),
        );
    }
    let values =
        [(RIP, pc), (RSP, sp), (RBP, fp), (RBX, rbx), (R12, r12), (R13, r13), (R14, r14), (R15, r15)];
    for (register, value) in values {
        registers.set(register, value);
    }
    #[cfg(windows)]
    take_more_registers(registers);
}

/// Reads the registers that callees preserve on Windows and not elsewhere.
#[cfg(windows)]
#[inline(always)]
fn take_more_registers(registers: &mut Registers<X86_64>) {
    let (rsi, rdi): (u64, u64);
    // SAFETY: the instructions copy registers to declared outputs, and access no memory.
    unsafe {
        core::arch::asm!(
            "mov {rsi}, rsi",
            "mov {rdi}, rdi",
            rsi = out(reg) rsi, rdi = out(reg) rdi,
            options(nomem, nostack, preserves_flags),
        );
    }
    registers.set(RSI, rsi);
    registers.set(RDI, rdi);
}

/// The bits of a code address that are significant: all, because this processor signs no addresses.
pub(crate) fn address_mask() -> u64 {
    u64::MAX
}
