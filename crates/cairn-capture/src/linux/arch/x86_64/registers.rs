//! Reads registers from this processor, or from the context of a signal.

use cairn_unwind::Registers;
use cairn_unwind::x86_64::{
    R8, R9, R10, R11, R12, R13, R14, R15, RAX, RBP, RBX, RCX, RDI, RDX, RIP, RSI, RSP, X86_64,
};

use crate::CallSite;

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
}

/// The general registers of an interrupted context.
const IN_CONTEXT: [(u16, i32); 17] = [
    (RIP, libc::REG_RIP),
    (RSP, libc::REG_RSP),
    (RBP, libc::REG_RBP),
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

/// Reads the general registers of an interrupted context.
pub(crate) fn take_interrupted_registers(context: &libc::ucontext_t, registers: &mut Registers<X86_64>) {
    for (register, place) in IN_CONTEXT {
        registers.set(register, context.uc_mcontext.gregs[place as usize] as u64);
    }
}

/// The pc, sp and fp of an interrupted context.
pub(crate) fn interrupted_call_site(context: &libc::ucontext_t) -> CallSite {
    let register = |place: i32| context.uc_mcontext.gregs[place as usize] as u64;
    CallSite { pc: register(libc::REG_RIP), sp: register(libc::REG_RSP), fp: register(libc::REG_RBP) }
}

/// The bits of a code address that are significant: all, because this processor signs no addresses.
pub(crate) fn address_mask() -> u64 {
    u64::MAX
}

/// The stack pointer of an interrupted context.
pub(crate) fn interrupted_sp(context: &libc::ucontext_t) -> u64 {
    context.uc_mcontext.gregs[libc::REG_RSP as usize] as u64
}
