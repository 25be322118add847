//! What differs between machines, behind one trait: register numbers, the packed rule, and the calling convention.

use core::fmt;

use cairn_format::AbsoluteAddress;

use crate::cfi::CoreRow;
use crate::registers::Registers;
use crate::{AddressRange, MemoryReader, StopReason};

/// One processor architecture, as the unwinder sees it. Implemented by [`X86_64`](crate::x86_64::X86_64) and
/// [`Aarch64`](crate::aarch64::Aarch64).
///
/// Register numbers are those of the machine's DWARF numbering; tables that name others (vector registers) are read and
/// those entries ignored.
pub trait Machine: Copy + fmt::Debug + 'static {
    /// One value for each register that is tracked.
    type Slots<T: Copy + fmt::Debug>: Copy + fmt::Debug + AsRef<[T]> + AsMut<[T]>;

    /// The packed rule of this machine.
    type Rule: Copy + fmt::Debug + PartialEq;

    /// The stack pointer.
    const STACK_POINTER: u16;
    /// The frame pointer.
    const FRAME_POINTER: u16;
    /// The slot that holds the pc. x86-64 numbers it like a register; on AArch64 it is a slot of our own.
    const PROGRAM_COUNTER: u16;
    /// True where the tables may say that return addresses are signed. What they say is not needed: the mask of
    /// [`Registers`] strips a signature, and leaves an unsigned address as it is.
    const SIGNS_RETURN_ADDRESSES: bool;
    /// True when the caller's frame must be strictly higher even for a leaf, because the call itself pushed a word.
    const CALL_PUSHES: bool;

    /// What nearly all CIEs of the machine say, where that is more than one instruction.
    const USUAL_CIE: Option<UsualCie>;

    /// Slots that all hold `value`.
    fn slots<T: Copy + fmt::Debug>(value: T) -> Self::Slots<T>;

    /// True for the registers that keep their value across a call when the tables say nothing of them.
    fn is_callee_saved(register: u16) -> bool;

    /// Packs what the tables say of the core registers, or says that it does not fit.
    fn pack(row: &CoreRow<'_>) -> Self::Rule;

    /// Steps one frame by a packed rule.
    ///
    /// # Errors
    ///
    /// [`RuleFailure`] when the rule is not a step, or its memory cannot be read.
    fn apply<M: MemoryReader>(
        rule: Self::Rule,
        registers: CoreRegisters,
        memory: &M,
    ) -> Result<CoreRegisters, RuleFailure>;

    /// Steps by the frame record that the frame pointer points at, for code without tables. `is_executable` judges the
    /// return address found.
    ///
    /// # Errors
    ///
    /// The [`StopReason`] why there is no plausible record; [`StopReason::NoUnwindInfo`] when there is a record and its
    /// return address is not code.
    fn step_by_frame_pointer<M: MemoryReader>(
        registers: &Registers<Self>,
        memory: &M,
        stack: AddressRange,
        is_executable: &mut dyn FnMut(AbsoluteAddress) -> bool,
    ) -> Result<Registers<Self>, StopReason>;

    /// The caller of a function that cannot have set up a frame, because its very first instruction could not be
    /// fetched: the pc is not code, as after a call through a null pointer.
    ///
    /// # Errors
    ///
    /// [`StopReason::NoUnwindInfo`] when the would-be return address is not code either.
    fn step_from_bad_pc<M: MemoryReader>(
        registers: &Registers<Self>,
        memory: &M,
        is_executable: &mut dyn FnMut(AbsoluteAddress) -> bool,
    ) -> Result<Registers<Self>, StopReason>;

    /// The registers that a signal interrupted, when the frame is the one that the operating system made to deliver it
    /// and no tables say so. `None` where such frames have tables, and for any other frame.
    fn step_from_signal_frame<M: MemoryReader>(
        _registers: &Registers<Self>,
        _memory: &M,
    ) -> Option<Registers<Self>> {
        None
    }
}

/// The program of the usual CIE of a machine, and what it amounts to.
#[derive(Clone, Copy, Debug)]
pub struct UsualCie {
    /// Its bytes, padding included.
    pub program: &'static [u8],
    /// The factor of its offsets.
    pub data_alignment: i64,
    /// Bytes from the stack pointer up to the CFA.
    pub cfa_offset: i32,
    /// Bytes from the CFA up to the return address.
    pub return_address_offset: i32,
}

/// The registers that a packed rule reads and recovers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct CoreRegisters {
    /// The program counter, or the return address of the frame.
    pub pc: u64,
    /// The stack pointer.
    pub sp: u64,
    /// The frame pointer register, whatever it holds.
    pub fp: u64,
    /// The link register. AArch64 only; it is meaningful in the innermost frame and just above a signal frame.
    pub link: u64,
}

/// Why a packed rule did not yield a caller.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RuleFailure {
    /// When the tables say that this frame has no caller.
    EndOfStack,
    /// When the rule does not fit the packed form: evaluate the whole row.
    NeedsFullEvaluation,
    /// When the memory that the rule names could not be read.
    UnreadableMemory {
        /// The address of the read.
        address: AbsoluteAddress,
    },
}
