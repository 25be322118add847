//! Registers from where they are: this processor, or the context of a signal.

use cairn_unwind::Registers;
use cairn_unwind::x86_64::{R8, R9, R10, R11, R12, R13, R14, R15, RAX, RBX, RCX, RDI, RDX, RSI, X86_64};

/// The registers at a place in the function that this is inlined into.
#[inline(always)]
pub(crate) fn own_registers() -> Registers<X86_64> {
    let (pc, sp, fp, rbx, r12, r13, r14, r15): (u64, u64, u64, u64, u64, u64, u64, u64);
    // SAFETY: copies registers.
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
    let mut registers = Registers::new(pc, sp, fp);
    for (register, value) in [(RBX, rbx), (R12, r12), (R13, r13), (R14, r14), (R15, r15)] {
        registers.set(register, value);
    }
    registers
}

/// The general registers of an interrupted context.
pub(crate) fn interrupted_registers(context: &libc::ucontext_t) -> Registers<X86_64> {
    let value = |register: i32| context.uc_mcontext.gregs[register as usize] as u64;
    let mut registers = Registers::new(value(libc::REG_RIP), value(libc::REG_RSP), value(libc::REG_RBP));
    let others = [
        (RAX, libc::REG_RAX),
        (RDX, libc::REG_RDX),
        (RCX, libc::REG_RCX),
        (RBX, libc::REG_RBX),
        (RSI, libc::REG_RSI),
        (RDI, libc::REG_RDI),
        (R8, libc::REG_R8),
        (R9, libc::REG_R9),
        (R10, libc::REG_R10),
        (R11, libc::REG_R11),
        (R12, libc::REG_R12),
        (R13, libc::REG_R13),
        (R14, libc::REG_R14),
        (R15, libc::REG_R15),
    ];
    for (register, place) in others {
        registers.set(register, value(place));
    }
    registers
}
