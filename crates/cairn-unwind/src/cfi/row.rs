//! One row of the table: complete ([`Row`]), or the part that a stack walk needs ([`CoreRow`]).

use core::marker::PhantomData;

use cairn_format::{AbsoluteAddress, WordSize};

use super::entry::Cie;
use super::expression::{self, Environment, LinearResult};
use super::interpreter::State;
use super::table::Section;
use crate::{AddressRange, Machine, MemoryReader, Registers, StopReason};

/// The rule for the canonical frame address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CfaRule {
    /// When no instruction has set it.
    Undefined,
    /// A register plus an offset.
    Register {
        /// The register's DWARF number.
        register: u16,
        /// Bytes to add.
        offset: i32,
    },
    /// The value of an expression.
    Expression(ExpressionRef),
}

/// The rule for the caller's value of a register.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RegisterRule {
    /// When no instruction has set it: the calling convention applies.
    Unspecified,
    /// When it cannot be recovered. For the return address: there is no caller.
    Undefined,
    /// In the register itself.
    SameValue,
    /// In memory, at this number of bytes above the CFA.
    Offset(i32),
    /// The CFA plus this number of bytes.
    ValueOffset(i32),
    /// In another register.
    Register(u16),
    /// In memory, at the value of the expression.
    Expression(ExpressionRef),
    /// The value of the expression.
    ValueExpression(ExpressionRef),
}

/// An expression by its place in the section; [`Row::expression`] returns the bytes. It has half
/// the size of a slice, and so halves the size of a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ExpressionRef {
    /// The offset in the section, low half first, and the length. They are halves, so that the
    /// rules around them pack into 8 bytes.
    halves: [u16; 3],
}

// A row of x86-64 is 17 of these and lives on the stack of signal handlers.
const _: () = assert!(size_of::<RegisterRule>() == 8 && size_of::<CfaRule>() == 8);

impl ExpressionRef {
    /// The expression of `length` bytes at `start`, unless these are too large.
    pub(super) fn new(start: usize, length: u64) -> Option<Self> {
        let start = u32::try_from(start).ok()?;
        Some(Self { halves: [start as u16, (start >> 16) as u16, u16::try_from(length).ok()?] })
    }

    fn bytes(self, section: &[u8]) -> &[u8] {
        let [low, high, length] = self.halves.map(usize::from);
        let start = high << 16 | low;
        section.get(start..start + length).unwrap_or_default()
    }
}

/// The state behind a [`Row`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowState<M: Machine> {
    cfa: CfaRule,
    rules: M::Slots<RegisterRule>,
    /// Bit `n` is set when register `n` was restored to its rule in the CIE's program. No supported
    /// machine tracks more than 64.
    restored: u64,
    /// True in the second run of the CIE's program, which changes only the registers in `restored`.
    is_restoring: bool,
}

impl<M: Machine> RowState<M> {
    pub(crate) fn new() -> Self {
        Self {
            cfa: CfaRule::Undefined,
            rules: M::slots(RegisterRule::Unspecified),
            restored: 0,
            is_restoring: false,
        }
    }

    /// Sets the rule of a register in an empty row.
    pub(crate) fn define(&mut self, register: u16, rule: RegisterRule) {
        if let Some(slot) = self.rules.as_mut().get_mut(usize::from(register)) {
            *slot = rule;
        }
    }

    /// Sets the CFA of an empty row.
    pub(crate) fn define_cfa(&mut self, rule: CfaRule) {
        self.cfa = rule;
    }

    /// Resets all rules.
    pub(crate) fn clear(&mut self) {
        self.cfa = CfaRule::Undefined;
        self.rules.as_mut().fill(RegisterRule::Unspecified);
        (self.restored, self.is_restoring) = (0, false);
    }
}

impl<M: Machine> State for RowState<M> {
    fn cfa(&self) -> CfaRule {
        if self.is_restoring { ANY_CFA } else { self.cfa }
    }

    fn set_cfa(&mut self, rule: CfaRule) {
        if !self.is_restoring {
            self.cfa = rule;
        }
    }

    fn set(&mut self, register: u64, rule: RegisterRule) {
        let index = usize::try_from(register).unwrap_or(usize::MAX);
        let Some(slot) = self.rules.as_mut().get_mut(index) else { return };
        if self.is_restoring {
            if self.restored >> register & 1 != 0 {
                *slot = rule;
            }
        } else {
            *slot = rule;
            self.restored &= !(1 << register);
        }
    }

    fn restore(&mut self, register: u64) {
        if self.is_restoring {
            self.set(register, RegisterRule::Unspecified);
        } else if register < self.rules.as_ref().len() as u64 {
            self.restored |= 1 << register;
        }
    }

    fn has_restored(&self) -> bool {
        self.restored != 0 && !self.is_restoring
    }

    fn begin_restoring(&mut self) {
        self.is_restoring = true;
        for register in 0..self.rules.as_ref().len() as u64 {
            self.set(register, RegisterRule::Unspecified);
        }
    }

    fn end_restoring(&mut self) {
        (self.restored, self.is_restoring) = (0, false);
    }

    fn set_usual(&mut self, program: &[u8], data_alignment: i64) -> bool {
        set_usual::<M>(self, program, data_alignment)
    }

    #[inline]
    fn signs_return_addresses() -> bool {
        M::SIGNS_RETURN_ADDRESSES
    }
}

/// A CFA for the second run of the CIE's program, where only its form matters. Its form is a
/// register and an offset that can change.
const ANY_CFA: CfaRule = CfaRule::Register { register: 0, offset: 0 };

/// See [`State::set_usual`]. Interpreting the usual program takes 15 of 150 nanoseconds, comparing
/// it takes one.
#[inline]
fn set_usual<M: Machine>(state: &mut impl State, program: &[u8], data_alignment: i64) -> bool {
    let Some(usual) = M::USUAL_CIE else { return false };
    let is_usual = program == usual.program && data_alignment == usual.data_alignment;
    if is_usual {
        state.set_cfa(CfaRule::Register { register: M::STACK_POINTER, offset: usual.cfa_offset });
        state.set(u64::from(M::PROGRAM_COUNTER), RegisterRule::Offset(usual.return_address_offset));
    }
    is_usual
}

/// The rules of all registers, for one range of code.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a, M: Machine> {
    head: RowHead<'a>,
    state: RowState<M>,
}

/// The parts of a row besides its rules.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowHead<'a> {
    section: Section<'a>,
    word_size: WordSize,
    return_address_register: u16,
    is_signal_frame: bool,
    range: AddressRange,
}

impl<'a> RowHead<'a> {
    /// The parts of an empty row.
    pub(crate) fn empty<M: Machine>() -> Self {
        let nowhere = AbsoluteAddress::new(0);
        Self {
            section: Section::new(&[], nowhere),
            word_size: WordSize::Bits64,
            return_address_register: M::PROGRAM_COUNTER,
            is_signal_frame: false,
            range: AddressRange::new(nowhere, nowhere),
        }
    }

    /// Sets the parts that all rows of an entry share, and the range of this one.
    pub(super) fn complete(
        &mut self,
        section: Section<'a>,
        word_size: WordSize,
        cie: &Cie<'_>,
        range: AddressRange,
    ) {
        self.section = section;
        self.word_size = word_size;
        self.return_address_register = cie.return_address_register;
        self.is_signal_frame = cie.is_signal_frame;
        self.range = range;
    }

    /// Sets the parts of a row that has no expressions.
    pub(crate) fn complete_by_offsets(&mut self, return_address_register: u16, is_signal_frame: bool) {
        self.return_address_register = return_address_register;
        self.is_signal_frame = is_signal_frame;
    }

    /// True for a signal frame.
    pub(crate) fn is_signal_frame(&self) -> bool {
        self.is_signal_frame
    }
}

impl<'a, M: Machine> Row<'a, M> {
    /// An empty row.
    pub(super) fn empty() -> Self {
        Self { head: RowHead::empty::<M>(), state: RowState::new() }
    }

    /// The parts of the row, for filling.
    pub(super) fn parts_mut(&mut self) -> (&mut RowHead<'a>, &mut RowState<M>) {
        (&mut self.head, &mut self.state)
    }

    fn view(&self) -> RowView<'_, 'a, M> {
        RowView { head: &self.head, state: &self.state }
    }

    /// The addresses for which the row is valid.
    #[must_use]
    pub fn range(&self) -> AddressRange {
        self.head.range
    }

    /// The rule for the canonical frame address.
    #[must_use]
    pub fn cfa(&self) -> CfaRule {
        self.state.cfa
    }

    /// The rule for the caller's value of a register.
    #[must_use]
    pub fn register(&self, register: u16) -> RegisterRule {
        self.view().register(register)
    }

    /// The register whose rule gives the return address.
    #[must_use]
    pub fn return_address_register(&self) -> u16 {
        self.head.return_address_register
    }

    /// True for a signal frame. Its caller was interrupted, so that pc is looked up unchanged.
    #[must_use]
    pub fn is_signal_frame(&self) -> bool {
        self.head.is_signal_frame
    }

    /// The bytes of an expression of this row.
    #[must_use]
    pub fn expression(&self, expression: ExpressionRef) -> &'a [u8] {
        expression.bytes(self.head.section.bytes)
    }

    /// The registers of the caller. A register that cannot be recovered is unknown in the result.
    ///
    /// # Errors
    ///
    /// The [`StopReason`] when the CFA or the return address cannot be computed, or when there is
    /// no caller.
    pub fn step<Mem: MemoryReader>(
        &self,
        registers: &Registers<M>,
        memory: &Mem,
    ) -> Result<Registers<M>, StopReason> {
        let mut caller = *registers;
        self.view().step_into(registers, memory, &mut caller)?;
        Ok(caller)
    }
}

/// A row whose parts are stored separately.
pub(crate) struct RowView<'r, 'a, M: Machine> {
    pub(crate) head: &'r RowHead<'a>,
    pub(crate) state: &'r RowState<M>,
}

impl<'a, M: Machine> RowView<'_, 'a, M> {
    fn register(&self, register: u16) -> RegisterRule {
        self.state.rules.as_ref().get(usize::from(register)).copied().unwrap_or(RegisterRule::Unspecified)
    }

    fn expression(&self, expression: ExpressionRef) -> &'a [u8] {
        expression.bytes(self.head.section.bytes)
    }

    /// Turns `caller`, a copy of `registers`, into the caller's registers.
    pub(crate) fn step_into<Mem: MemoryReader>(
        &self,
        registers: &Registers<M>,
        memory: &Mem,
        caller: &mut Registers<M>,
    ) -> Result<(), StopReason> {
        if self.register(self.head.return_address_register) == RegisterRule::Undefined {
            return Err(StopReason::EndOfStack);
        }
        let environment = Environment { registers, memory, word_size: self.head.word_size };
        let cfa = self.cfa_value(&environment)?;
        let return_address = self.return_address(cfa, &environment)?;
        for number in 0..self.state.rules.as_ref().len() as u16 {
            match self.caller_value(number, cfa, &environment) {
                Ok(value) => caller.set(number, value),
                Err(_) => caller.forget(number),
            }
        }
        caller.set(M::PROGRAM_COUNTER, return_address & registers.address_mask());
        Ok(())
    }

    /// The canonical frame address, given the registers of the frame.
    fn cfa_value<Mem: MemoryReader>(&self, environment: &Environment<'_, M, Mem>) -> Result<u64, StopReason> {
        match self.state.cfa {
            CfaRule::Register { register, offset } => {
                let base = environment.registers.value(register);
                let base = base.ok_or(StopReason::UnknownRegister { register })?;
                Ok(self.head.word_size.truncate(base.wrapping_add_signed(i64::from(offset))))
            }
            CfaRule::Expression(rule) => expression::evaluate(self.expression(rule), None, environment),
            CfaRule::Undefined => Err(StopReason::BadUnwindInfo { pc: environment.registers.pc() }),
        }
    }

    fn return_address<Mem: MemoryReader>(
        &self,
        cfa: u64,
        environment: &Environment<'_, M, Mem>,
    ) -> Result<u64, StopReason> {
        let register = self.head.return_address_register;
        match self.register(register) {
            // The return address is in the link register, if there is one. Otherwise the tables
            // must have its place.
            RegisterRule::Unspecified | RegisterRule::SameValue => {
                if register == M::PROGRAM_COUNTER {
                    return Err(StopReason::BadUnwindInfo { pc: environment.registers.pc() });
                }
                environment.registers.value(register).ok_or(StopReason::UnknownRegister { register })
            }
            _ => self.caller_value(register, cfa, environment),
        }
    }

    /// The caller's value of one register.
    fn caller_value<Mem: MemoryReader>(
        &self,
        number: u16,
        cfa: u64,
        environment: &Environment<'_, M, Mem>,
    ) -> Result<u64, StopReason> {
        let unknown = StopReason::UnknownRegister { register: number };
        let load = |address: u64| {
            let address = AbsoluteAddress::new(self.head.word_size.truncate(address));
            environment
                .memory
                .word(address, self.head.word_size)
                .ok_or(StopReason::UnreadableMemory { address })
        };
        match self.register(number) {
            RegisterRule::Unspecified if number == M::STACK_POINTER => Ok(cfa),
            RegisterRule::Unspecified if M::is_callee_saved(number) || self.head.is_signal_frame => {
                environment.registers.value(number).ok_or(unknown)
            }
            RegisterRule::Unspecified | RegisterRule::Undefined => Err(unknown),
            RegisterRule::SameValue => environment.registers.value(number).ok_or(unknown),
            RegisterRule::Offset(offset) => load(cfa.wrapping_add_signed(i64::from(offset))),
            RegisterRule::ValueOffset(offset) => {
                Ok(self.head.word_size.truncate(cfa.wrapping_add_signed(i64::from(offset))))
            }
            RegisterRule::Register(other) => environment.registers.value(other).ok_or(unknown),
            RegisterRule::Expression(rule) => {
                load(expression::evaluate(self.expression(rule), Some(cfa), environment)?)
            }
            RegisterRule::ValueExpression(rule) => {
                expression::evaluate(self.expression(rule), Some(cfa), environment)
            }
        }
    }
}

/// The state behind a [`CoreRow`]. It has 40 bytes, so that looking up a pc never leaves the
/// registers and one cache line.
#[derive(Clone, Copy, Debug)]
pub(super) struct CoreState<M> {
    cfa: CfaRule,
    frame_pointer: RegisterRule,
    return_address: RegisterRule,
    stack_pointer: RegisterRule,
    return_address_register: u16,
    /// A bit for each of the three registers that was restored to its rule in the CIE's program.
    /// They are in the order above.
    restored: u8,
    /// True in the second run of the CIE's program, which changes only the registers in `restored`.
    is_restoring: bool,
    machine: PhantomData<M>,
}

const FRAME_POINTER: u8 = 1;
const RETURN_ADDRESS: u8 = 2;
const STACK_POINTER: u8 = 4;

impl<M: Machine> CoreState<M> {
    #[inline]
    pub(super) fn new(return_address_register: u16) -> Self {
        Self {
            cfa: CfaRule::Undefined,
            frame_pointer: RegisterRule::Unspecified,
            return_address: RegisterRule::Unspecified,
            stack_pointer: RegisterRule::Unspecified,
            return_address_register,
            restored: 0,
            is_restoring: false,
            machine: PhantomData,
        }
    }

    /// The register's bit in `restored`; 0 for one that is not tracked.
    #[inline]
    fn bit(&self, register: u64) -> u8 {
        if register == u64::from(M::FRAME_POINTER) {
            FRAME_POINTER
        } else if register == u64::from(self.return_address_register) {
            RETURN_ADDRESS
        } else if register == u64::from(M::STACK_POINTER) {
            STACK_POINTER
        } else {
            0
        }
    }
}

impl<M: Machine> State for CoreState<M> {
    #[inline]
    fn cfa(&self) -> CfaRule {
        if self.is_restoring { ANY_CFA } else { self.cfa }
    }

    #[inline]
    fn set_cfa(&mut self, rule: CfaRule) {
        if !self.is_restoring {
            self.cfa = rule;
        }
    }

    #[inline]
    fn set(&mut self, register: u64, rule: RegisterRule) {
        let bit = self.bit(register);
        if self.is_restoring && self.restored & bit == 0 {
            return;
        }
        match bit {
            FRAME_POINTER => self.frame_pointer = rule,
            RETURN_ADDRESS => self.return_address = rule,
            STACK_POINTER => self.stack_pointer = rule,
            _ => return,
        }
        if !self.is_restoring {
            self.restored &= !bit;
        }
    }

    #[inline]
    fn restore(&mut self, register: u64) {
        if self.is_restoring {
            self.set(register, RegisterRule::Unspecified);
        } else {
            self.restored |= self.bit(register);
        }
    }

    #[inline]
    fn has_restored(&self) -> bool {
        self.restored != 0 && !self.is_restoring
    }

    fn begin_restoring(&mut self) {
        self.is_restoring = true;
        for register in [M::FRAME_POINTER, self.return_address_register, M::STACK_POINTER] {
            self.set(register.into(), RegisterRule::Unspecified);
        }
    }

    fn end_restoring(&mut self) {
        (self.restored, self.is_restoring) = (0, false);
    }

    #[inline]
    fn set_usual(&mut self, program: &[u8], data_alignment: i64) -> bool {
        set_usual::<M>(self, program, data_alignment)
    }

    #[inline]
    fn signs_return_addresses() -> bool {
        M::SIGNS_RETURN_ADDRESSES
    }
}

/// A CFA or the place of a register, in the forms that a packed rule can contain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LinearCfa {
    /// A register plus an offset.
    Register { register: u16, offset: i64 },
    /// The word in memory at a register plus an offset.
    Loaded { register: u16, offset: i64 },
    /// Anything else.
    Other,
}

/// The row that a machine packs into a rule: the CFA, the frame pointer and the return address.
#[derive(Clone, Copy, Debug)]
pub struct CoreRow<'a> {
    pub(crate) cfa: LinearCfa,
    pub(crate) frame_pointer: RegisterRule,
    pub(crate) return_address: RegisterRule,
    pub(crate) stack_pointer: RegisterRule,
    pub(crate) return_address_register: u16,
    pub(crate) is_signal_frame: bool,
    pub(super) depends_on_pc: bool,
    section: &'a [u8],
    pc: AbsoluteAddress,
}

impl<'a> CoreRow<'a> {
    #[inline]
    pub(super) fn new<M: Machine>(
        state: &CoreState<M>,
        section: &'a [u8],
        is_signal_frame: bool,
        pc: AbsoluteAddress,
    ) -> Self {
        let mut row = Self {
            cfa: LinearCfa::Other,
            frame_pointer: state.frame_pointer,
            return_address: state.return_address,
            stack_pointer: state.stack_pointer,
            return_address_register: state.return_address_register,
            is_signal_frame,
            depends_on_pc: false,
            section,
            pc,
        };
        match state.cfa {
            CfaRule::Register { register, offset } => {
                row.cfa = LinearCfa::Register { register, offset: i64::from(offset) };
            }
            CfaRule::Expression(rule) => row.set_cfa_expression::<M>(rule),
            CfaRule::Undefined => {}
        }
        row
    }

    /// A row that has no expressions.
    pub(crate) fn of_offsets(
        cfa: LinearCfa,
        frame_pointer: RegisterRule,
        return_address: RegisterRule,
        stack_pointer: RegisterRule,
        return_address_register: u16,
        is_signal_frame: bool,
    ) -> Self {
        Self {
            cfa,
            frame_pointer,
            return_address,
            stack_pointer,
            return_address_register,
            is_signal_frame,
            depends_on_pc: false,
            section: &[],
            pc: AbsoluteAddress::new(0),
        }
    }

    /// Marks the row as one that does not fit a rule.
    #[cold]
    pub(super) fn give_up(&mut self) {
        self.cfa = LinearCfa::Other;
    }

    #[cold]
    fn set_cfa_expression<M: Machine>(&mut self, rule: ExpressionRef) {
        let Some(result) = self.linear::<M>(rule) else { return };
        let Some(register) = result.value.register else { return };
        self.depends_on_pc = result.depends_on_pc;
        let offset = result.value.offset;
        self.cfa = match result.is_loaded {
            true => LinearCfa::Loaded { register, offset },
            false => LinearCfa::Register { register, offset },
        };
    }

    fn linear<M: Machine>(&self, rule: ExpressionRef) -> Option<LinearResult> {
        expression::linear::<M>(rule.bytes(self.section), self.pc.value())
    }

    /// The place in memory that an expression rule names: a register and an offset.
    pub(crate) fn place<M: Machine>(&self, rule: RegisterRule) -> Option<(u16, i64)> {
        let RegisterRule::Expression(rule) = rule else { return None };
        let result = self.linear::<M>(rule).filter(|result| !result.is_loaded && !result.depends_on_pc)?;
        Some((result.value.register?, result.value.offset))
    }
}
