//! The registers of one frame, each known or not.

use core::fmt;

use cairn_format::AbsoluteAddress;

use crate::machine::{CoreRegisters, Machine};

/// The registers of one frame of machine `M`. A register that the callee may have overwritten has
/// no value (`None`).
///
/// ```
/// use cairn_unwind::{Registers, x86_64::{self, X86_64}};
///
/// let mut registers = Registers::<X86_64>::new(0x401000, 0x7ffe_0000, 0x7ffe_0010);
/// registers.set(x86_64::RBX, 7);
/// assert_eq!(registers.value(x86_64::RBX), Some(7));
/// assert_eq!(registers.value(x86_64::RAX), None);
/// assert_eq!(registers.pc().value(), 0x401000);
/// ```
#[derive(Clone, Copy)]
pub struct Registers<M: Machine> {
    values: M::Slots<u64>,
    /// Bit `n` is set when register `n` is known. No machine here tracks more than 64.
    known: u64,
    address_mask: u64,
}

impl<M: Machine> Registers<M> {
    /// The registers that every walk needs.
    #[must_use]
    pub fn new(pc: u64, sp: u64, fp: u64) -> Self {
        let mut registers = Self { values: M::slots(0), known: 0, address_mask: u64::MAX };
        registers.set(M::PROGRAM_COUNTER, pc);
        registers.set(M::STACK_POINTER, sp);
        registers.set(M::FRAME_POINTER, fp);
        registers
    }

    /// Sets the bits of a code address that hold no pointer authentication code. Return addresses
    /// are masked with them. The processor's own instruction is not used, because it may trap on a
    /// value that is not an address.
    #[must_use]
    pub fn with_address_mask(mut self, mask: u64) -> Self {
        self.address_mask = mask;
        self
    }

    /// The bits of a code address that hold no pointer authentication code.
    #[must_use]
    pub fn address_mask(&self) -> u64 {
        self.address_mask
    }

    /// The value of a register, if it is known.
    #[must_use]
    #[inline]
    pub fn value(&self, register: u16) -> Option<u64> {
        let value = *self.values.as_ref().get(usize::from(register))?;
        (self.known >> register & 1 != 0).then_some(value)
    }

    /// Makes a register known. Numbers that the machine does not track are ignored.
    #[inline]
    pub fn set(&mut self, register: u16, value: u64) {
        if let Some(slot) = self.values.as_mut().get_mut(usize::from(register)) {
            *slot = value;
            self.known |= 1 << register;
        }
    }

    /// Makes a register unknown.
    pub fn forget(&mut self, register: u16) {
        if register < 64 {
            self.known &= !(1 << register);
        }
    }

    /// The program counter: the interrupted instruction in the first frame, a return address
    /// further out.
    #[must_use]
    pub fn pc(&self) -> AbsoluteAddress {
        AbsoluteAddress::new(self.value(M::PROGRAM_COUNTER).unwrap_or(0))
    }

    /// The stack pointer.
    #[must_use]
    pub fn sp(&self) -> u64 {
        self.value(M::STACK_POINTER).unwrap_or(0)
    }

    /// The frame pointer register, which may have another use; zero when it is not known.
    #[must_use]
    pub fn fp(&self) -> u64 {
        self.value(M::FRAME_POINTER).unwrap_or(0)
    }

    /// The registers that packed rules work on. Those that are not known read as zero.
    #[must_use]
    pub fn core(&self) -> CoreRegisters {
        CoreRegisters {
            pc: self.pc().value(),
            sp: self.sp(),
            fp: self.fp(),
            link: self.value(30).unwrap_or(0),
        }
    }
}

impl<M: Machine> fmt::Debug for Registers<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = (0..64_u16).filter_map(|register| Some((register, self.value(register)?)));
        f.debug_map().entries(known.map(|(register, value)| (register, hexadecimal(value)))).finish()
    }
}

/// Wraps a number so that it prints in hexadecimal.
fn hexadecimal(value: u64) -> AbsoluteAddress {
    AbsoluteAddress::new(value)
}

impl<M: Machine> PartialEq for Registers<M> {
    fn eq(&self, other: &Self) -> bool {
        (0..64).all(|register| self.value(register) == other.value(register))
    }
}
