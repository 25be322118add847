//! The differences between machines, behind one trait: register numbers, the packed rule, and the
//! calling convention.

use core::fmt;

use cairn_format::AbsoluteAddress;

use crate::cfi::CoreRow;
use crate::frame_pointer::FrameRecord;
use crate::pdata::PeMachine;
use crate::registers::Registers;
use crate::{AddressRange, MemoryReader, StopReason};

/// A processor architecture, implemented by [`X86_64`](crate::x86_64::X86_64) and
/// [`Aarch64`](crate::aarch64::Aarch64).
///
/// Registers have the machine's DWARF numbers. Table entries for other registers (vector registers)
/// are skipped.
pub trait Machine: Copy + fmt::Debug + 'static {
    /// One value for each register that is tracked.
    type Slots<T: Copy + fmt::Debug>: Copy + fmt::Debug + AsRef<[T]> + AsMut<[T]>;

    /// The packed rule of this machine.
    type Rule: Copy + fmt::Debug + PartialEq;

    /// The stack pointer.
    const STACK_POINTER: u16;
    /// The frame pointer.
    const FRAME_POINTER: u16;
    /// The slot that holds the pc. x86-64 numbers it like a register; on AArch64 this crate adds a
    /// slot.
    const PROGRAM_COUNTER: u16;
    /// The register or slot that holds the return address, as the tables number it.
    const RETURN_ADDRESS: u16;
    /// The processor, as Windows images state it.
    const PE_MACHINE: PeMachine;
    /// True where tables may mark return addresses as signed. The marks are not needed: the mask of
    /// [`Registers`] strips a signature, and does not change an unsigned address.
    const SIGNS_RETURN_ADDRESSES: bool;
    /// True when even a leaf's caller has a strictly higher frame, because the call itself pushed a
    /// word.
    const CALL_PUSHES: bool;

    /// The program that nearly all CIEs of the machine share, if it has more than one instruction.
    const USUAL_CIE: Option<UsualCie>;

    /// Decides whether `code`, the bytes in front of an address, ends with a call instruction.
    ///
    /// [`CALL_BYTES`] are enough for every call. Other bytes may end like one by chance.
    fn ends_with_call(code: &[u8]) -> bool;

    /// The rule of code that has no tables and a known shape.
    ///
    /// The shape is that of the [`SHAPE_BYTES`] around a return address.
    fn rule_of_shape(_code: &[u8; SHAPE_BYTES]) -> Option<Self::Rule> {
        None
    }

    /// Slots that all hold `value`.
    fn slots<T: Copy + fmt::Debug>(value: T) -> Self::Slots<T>;

    /// True for the registers that a callee preserves, if the tables do not mention them.
    fn is_callee_saved(register: u16) -> bool;

    /// Packs the row of the core registers, or returns the rule for rows that do not fit.
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

    /// Steps by the frame record to which the frame pointer leads, for code without tables.
    ///
    /// `proves_itself` decides whether the record is one, by its return address.
    ///
    /// # Errors
    ///
    /// The [`StopReason`] why there is no record; [`StopReason::NoUnwindInfo`] when there is one
    /// and it does not prove itself.
    fn step_by_frame_pointer<M: MemoryReader>(
        registers: &Registers<Self>,
        memory: &M,
        stack: AddressRange,
        proves_itself: &mut dyn FnMut(FrameRecord) -> bool,
    ) -> Result<Registers<Self>, StopReason>;

    /// Steps from a pc that is not code, as after a call through a null pointer.
    ///
    /// The function cannot have set up a frame, because its first instruction could not be fetched.
    ///
    /// # Errors
    ///
    /// [`StopReason::NoUnwindInfo`] when the would-be return address is not code either.
    fn step_from_bad_pc<M: MemoryReader>(
        registers: &Registers<Self>,
        memory: &M,
        is_executable: &mut dyn FnMut(AbsoluteAddress) -> bool,
    ) -> Result<Registers<Self>, StopReason>;

    /// Steps from a signal frame without tables: returns the interrupted registers.
    ///
    /// `None` where signal frames have tables, and for any other frame.
    fn step_from_signal_frame<M: MemoryReader>(
        _registers: &Registers<Self>,
        _memory: &M,
    ) -> Option<Registers<Self>> {
        None
    }
}

/// Bytes of code in front of a return address that hold its call; 8, the longest one of x86-64.
pub const CALL_BYTES: usize = 8;
/// Bytes of code around a return address that show a known shape.
///
/// Six in front of it and five from it on; no more, because code may begin and end where its memory
/// does.
pub const SHAPE_BYTES: usize = SHAPE_BYTES_BEFORE + 5;
/// Those of [`SHAPE_BYTES`] in front of the return address.
pub const SHAPE_BYTES_BEFORE: usize = 6;

/// The program of the usual CIE of a machine, and its result.
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
    /// The frame pointer register, which may have another use.
    pub fp: u64,
    /// The link register. AArch64 only; it is meaningful in the innermost frame and just above a
    /// signal frame.
    pub link: u64,
}

/// The reason why a packed rule found no caller.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RuleFailure {
    /// When this frame has no caller, by the tables.
    EndOfStack,
    /// When the rule does not fit the packed form: evaluate the whole row.
    NeedsFullEvaluation,
    /// When the memory that the rule names could not be read.
    UnreadableMemory {
        /// The address of the read.
        address: AbsoluteAddress,
    },
}
