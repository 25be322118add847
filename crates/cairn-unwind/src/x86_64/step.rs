//! The machine: its register numbers, and the steps that need no tables.

use core::fmt;

use cairn_format::{AbsoluteAddress, WordSize};

use super::code;
use super::registers::{R12, R15, RBP, RBX, REGISTER_COUNT, RIP, RSP};
use super::rule::{self, X86_64Rule};
use crate::cfi::CoreRow;
use crate::frame_pointer::FrameRecord;
use crate::pdata::PeMachine;
use crate::{
    AddressRange, CoreRegisters, Machine, MemoryReader, Registers, RuleFailure, SHAPE_BYTES, StopReason,
    UsualCie,
};

/// x86-64, System V calling convention.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct X86_64;

impl Machine for X86_64 {
    type Slots<T: Copy + fmt::Debug> = [T; REGISTER_COUNT];
    type Rule = X86_64Rule;

    const STACK_POINTER: u16 = RSP;
    const FRAME_POINTER: u16 = RBP;
    const PROGRAM_COUNTER: u16 = RIP;
    const RETURN_ADDRESS: u16 = RIP;
    const PE_MACHINE: PeMachine = PeMachine::X64;
    const SIGNS_RETURN_ADDRESSES: bool = false;
    const CALL_PUSHES: bool = true;
    // def_cfa rsp + 8; offset rip 1; nop; nop. GCC and LLVM emit this, and their linkers for
    // linkage tables.
    const USUAL_CIE: Option<UsualCie> = Some(UsualCie {
        program: &[0x0c, 0x07, 0x08, 0x90, 0x01, 0, 0],
        data_alignment: -8,
        cfa_offset: 8,
        return_address_offset: -8,
    });

    #[inline]
    fn slots<T: Copy + fmt::Debug>(value: T) -> [T; REGISTER_COUNT] {
        [value; REGISTER_COUNT]
    }

    #[inline]
    fn is_callee_saved(register: u16) -> bool {
        matches!(register, RBX | RBP | R12..=R15)
    }

    fn ends_with_call(code: &[u8]) -> bool {
        code::ends_with_call(code)
    }

    fn rule_of_shape(code: &[u8; SHAPE_BYTES]) -> Option<X86_64Rule> {
        code::rule_of_shape(code)
    }

    #[inline]
    fn pack(row: &CoreRow<'_>) -> X86_64Rule {
        rule::pack(row)
    }

    #[inline]
    fn apply<M: MemoryReader>(
        rule: X86_64Rule,
        registers: CoreRegisters,
        memory: &M,
    ) -> Result<CoreRegisters, RuleFailure> {
        rule.apply(registers, memory)
    }

    fn step_by_frame_pointer<M: MemoryReader>(
        registers: &Registers<Self>,
        memory: &M,
        stack: AddressRange,
        proves_itself: &mut dyn FnMut(FrameRecord) -> bool,
    ) -> Result<Registers<Self>, StopReason> {
        // A frame record of a live frame lies at or above the stack pointer.
        let live = AddressRange::new(stack.start.max(AbsoluteAddress::new(registers.sp())), stack.end);
        let fp = registers.value(RBP).ok_or(StopReason::UnknownRegister { register: RBP })?;
        let record = FrameRecord::read(memory, fp, live, WordSize::Bits64)?;
        if record.return_address.value() == 0 {
            return Err(StopReason::EndOfStack);
        }
        if !proves_itself(record) {
            return Err(StopReason::NoUnwindInfo { pc: registers.pc() });
        }
        let sp = fp.wrapping_add(16);
        Ok(Registers::new(record.return_address.value(), sp, record.saved_frame_pointer))
    }

    /// The call has pushed the return address, and nothing else has happened since.
    fn step_from_bad_pc<M: MemoryReader>(
        registers: &Registers<Self>,
        memory: &M,
        is_executable: &mut dyn FnMut(AbsoluteAddress) -> bool,
    ) -> Result<Registers<Self>, StopReason> {
        let address = AbsoluteAddress::new(registers.sp());
        let pushed = memory.word64(address).ok_or(StopReason::UnreadableMemory { address })?;
        if !is_executable(AbsoluteAddress::new(pushed)) {
            return Err(StopReason::NoUnwindInfo { pc: registers.pc() });
        }
        let mut caller = *registers;
        caller.set(RIP, pushed);
        caller.set(RSP, registers.sp().wrapping_add(8));
        Ok(caller)
    }
}
