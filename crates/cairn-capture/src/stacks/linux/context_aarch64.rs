//! Reads registers from the context of a signal.

use cairn_unwind::aarch64::Aarch64;
use cairn_unwind::{Machine, Registers};

use crate::CallSite;

/// Reads the general registers of an interrupted context.
pub(crate) fn take_interrupted_registers(context: &libc::ucontext_t, registers: &mut Registers<Aarch64>) {
    let machine = &context.uc_mcontext;
    for (register, value) in [(Aarch64::PROGRAM_COUNTER, machine.pc), (Aarch64::STACK_POINTER, machine.sp)] {
        registers.set(register, value);
    }
    for (register, &value) in (0..).zip(&machine.regs) {
        registers.set(register, value);
    }
}

/// The stack pointer of an interrupted context.
pub(crate) fn interrupted_sp(context: &libc::ucontext_t) -> u64 {
    context.uc_mcontext.sp
}

/// The pc, sp and fp of an interrupted context.
pub(crate) fn interrupted_call_site(context: &libc::ucontext_t) -> CallSite {
    let machine = &context.uc_mcontext;
    CallSite { pc: machine.pc, sp: machine.sp, fp: machine.regs[29] }
}
