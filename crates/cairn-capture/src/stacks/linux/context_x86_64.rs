//! Reads registers from the context of a signal.

use cairn_unwind::Registers;
use cairn_unwind::x86_64::{
    R8, R9, R10, R11, R12, R13, R14, R15, RAX, RBP, RBX, RCX, RDI, RDX, RIP, RSI, RSP, X86_64,
};

use crate::CallSite;

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

/// The stack pointer of an interrupted context.
pub(crate) fn interrupted_sp(context: &libc::ucontext_t) -> u64 {
    context.uc_mcontext.gregs[libc::REG_RSP as usize] as u64
}
