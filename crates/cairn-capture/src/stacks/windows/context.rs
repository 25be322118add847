//! The registers of interrupted code: `CONTEXT`.

use cairn_unwind::Registers;
use cairn_unwind::x86_64::{
    R8, R9, R10, R11, R12, R13, R14, R15, RAX, RBP, RBX, RCX, RDI, RDX, RIP, RSI, RSP, X86_64,
};

use crate::CallSite;

/// The registers of a thread: `CONTEXT` of `winnt.h`. Captures read the general ones.
///
/// An exception handler gets it in `EXCEPTION_POINTERS`, `GetThreadContext` fills it for a
/// suspended thread, and `RtlCaptureContext` for this place.
#[repr(C, align(16))]
#[derive(Clone, Copy)]
pub struct Context {
    homes: [u64; 6],
    /// The parts that `GetThreadContext` fills.
    ///
    /// Captures read those of `CONTEXT_CONTROL | CONTEXT_INTEGER`, 0x10_0003.
    pub flags: u32,
    vector_state: u32,
    segments: [u16; 6],
    processor_flags: u32,
    debug: [u64; 6],
    /// In the processor's order: rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8 to r15.
    pub registers: [u64; 16],
    /// The next instruction.
    pub rip: u64,
    vectors: [u64; 122],
}

const _: () = assert!(size_of::<Context>() == 1232);
const _: () = assert!(core::mem::offset_of!(Context, flags) == 0x30);
const _: () = assert!(core::mem::offset_of!(Context, registers) == 0x78);
const _: () = assert!(core::mem::offset_of!(Context, rip) == 0xf8);

impl Context {
    /// A context without values, with these [`flags`](Self::flags).
    #[must_use]
    pub const fn empty(flags: u32) -> Self {
        Self {
            homes: [0; 6],
            flags,
            vector_state: 0,
            segments: [0; 6],
            processor_flags: 0,
            debug: [0; 6],
            registers: [0; 16],
            rip: 0,
            vectors: [0; 122],
        }
    }
}

impl core::fmt::Debug for Context {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Context")
            .field("rip", &self.rip)
            .field("registers", &self.registers)
            .finish_non_exhaustive()
    }
}

/// DWARF numbers in the order of the context.
const ORDER: [u16; 16] = [RAX, RCX, RDX, RBX, RSP, RBP, RSI, RDI, R8, R9, R10, R11, R12, R13, R14, R15];
/// Places in the context.
const STACK_POINTER: usize = 4;
const FRAME_POINTER: usize = 5;

/// Reads the general registers of an interrupted context.
pub(crate) fn take_interrupted_registers(context: &Context, registers: &mut Registers<X86_64>) {
    registers.set(RIP, context.rip);
    for (register, value) in ORDER.into_iter().zip(context.registers) {
        registers.set(register, value);
    }
}

/// The pc, sp and fp of an interrupted context.
pub(crate) fn interrupted_call_site(context: &Context) -> CallSite {
    CallSite { pc: context.rip, sp: interrupted_sp(context), fp: context.registers[FRAME_POINTER] }
}

/// The stack pointer of an interrupted context.
pub(crate) fn interrupted_sp(context: &Context) -> u64 {
    context.registers[STACK_POINTER]
}
