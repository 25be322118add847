//! The machine: its register numbers, and the steps that need no tables.

use core::fmt;

use cairn_format::{AbsoluteAddress, WordSize};

use super::code;
use super::registers::{PC, REGISTER_COUNT, SP, X19, X29, X30};
use super::rule::{self, Aarch64Rule};
use crate::cfi::CoreRow;
use crate::frame_pointer::FrameRecord;
use crate::pdata::PeMachine;
use crate::{
    AddressRange, CoreRegisters, Machine, MemoryReader, Registers, RuleFailure, StopReason, UsualCie,
};

/// AArch64, the Arm procedure call standard, little-endian.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Aarch64;

impl Machine for Aarch64 {
    type Slots<T: Copy + fmt::Debug> = [T; REGISTER_COUNT];
    type Rule = Aarch64Rule;

    const STACK_POINTER: u16 = SP;
    const FRAME_POINTER: u16 = X29;
    const PROGRAM_COUNTER: u16 = PC;
    const RETURN_ADDRESS: u16 = X30;
    const PE_MACHINE: PeMachine = PeMachine::Arm64;
    const SIGNS_RETURN_ADDRESSES: bool = true;
    const CALL_PUSHES: bool = false;
    // The usual program is one instruction, so comparing it would save nothing.
    const USUAL_CIE: Option<UsualCie> = None;

    #[inline]
    fn slots<T: Copy + fmt::Debug>(value: T) -> [T; REGISTER_COUNT] {
        [value; REGISTER_COUNT]
    }

    #[inline]
    fn is_callee_saved(register: u16) -> bool {
        matches!(register, X19..=X29)
    }

    fn ends_with_call(code: &[u8]) -> bool {
        code::ends_with_call(code)
    }

    #[inline]
    fn pack(row: &CoreRow<'_>) -> Aarch64Rule {
        rule::pack(row)
    }

    #[inline]
    fn apply<M: MemoryReader>(
        rule: Aarch64Rule,
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
        let live = AddressRange::new(stack.start.max(AbsoluteAddress::new(registers.sp())), stack.end);
        let fp = registers.value(X29).ok_or(StopReason::UnknownRegister { register: X29 })?;
        let mut record = FrameRecord::read(memory, fp, live, WordSize::Bits64)?;
        let return_address = record.return_address.value() & registers.address_mask();
        if return_address == 0 {
            return Err(StopReason::EndOfStack);
        }
        record.return_address = AbsoluteAddress::new(return_address);
        if !proves_itself(record) {
            return Err(StopReason::NoUnwindInfo { pc: registers.pc() });
        }
        // The record may lie anywhere in its frame, so the caller's stack pointer is a lower bound.
        let caller = Registers::new(return_address, fp.wrapping_add(16), record.saved_frame_pointer);
        Ok(caller.with_address_mask(registers.address_mask()))
    }

    /// The branch has put the return address in the link register, and nothing else has happened
    /// since.
    fn step_from_bad_pc<M: MemoryReader>(
        registers: &Registers<Self>,
        _memory: &M,
        is_executable: &mut dyn FnMut(AbsoluteAddress) -> bool,
    ) -> Result<Registers<Self>, StopReason> {
        let link = registers.value(X30).ok_or(StopReason::UnknownRegister { register: X30 })?;
        let link = link & registers.address_mask();
        if !is_executable(AbsoluteAddress::new(link)) {
            return Err(StopReason::NoUnwindInfo { pc: registers.pc() });
        }
        let mut caller = *registers;
        caller.set(PC, link);
        caller.forget(X30);
        Ok(caller)
    }

    /// Recognises Linux's signal frames, which have this form. The trampoline to which a handler
    /// returns is two instructions without tables. Other unwinders compare these, but code may be
    /// unreadable. The frame suffices: x29 leads to a record with the interrupted x29 and x30,
    /// which the context contains as well.
    ///
    /// ```text
    ///   sp       | information about the signal: 128 | 176 of the context | fault address |
    ///   sp + 312 | x0 | x1 | ... | x30 | sp | pc | ...
    ///   x29 -->  | x29 | x30 |                               above all of it
    /// ```
    fn step_from_signal_frame<M: MemoryReader>(
        registers: &Registers<Self>,
        memory: &M,
    ) -> Option<Registers<Self>> {
        const FIRST_REGISTER: u64 = 128 + 176 + 8;
        let (sp, fp) = (registers.sp(), registers.value(X29)?);
        let word = |base: u64, offset: u64| memory.word64(AbsoluteAddress::new(base.checked_add(offset)?));
        let saved = |register: u16| word(sp, FIRST_REGISTER + 8 * u64::from(register));
        let is_above = fp.checked_sub(sp)? >= FIRST_REGISTER + 8 * REGISTER_COUNT as u64;
        if !is_above || word(fp, 0)? != saved(X29)? || word(fp, 8)? != saved(X30)? {
            return None;
        }
        let mut interrupted = *registers;
        for register in 0..=PC {
            interrupted.set(register, saved(register)?);
        }
        // Excludes memory that is all zeros; interrupted code has a stack.
        (interrupted.sp() != 0).then_some(interrupted)
    }
}
