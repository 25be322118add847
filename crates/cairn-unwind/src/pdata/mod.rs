//! Windows unwind tables: the function table (`.pdata`) and its unwind data (`.xdata`).
//!
//! ```text
//!  .pdata, x64     | begin: u32 | end: u32 | unwind data: u32 |  ...                sorted by begin
//!  .pdata, arm64   | begin: u32 | unwind data: u32, or the whole description packed |  ...
//!
//!  .xdata          a list of codes, one for each instruction of the prologue, last instruction first
//! ```
//!
//! All places are distances from the start of the image (RVAs). A step undoes the codes of the
//! instructions that were executed. Code without an entry belongs to leaf functions, which leave
//! the stack pointer and all preserved registers alone. So the tables describe every instruction,
//! except that epilogues of x64 (version 1) have no codes: they are recognized by their bytes,
//! which are limited to a few instructions for this purpose.
//!
//! The result is a row like those of [`cfi`](crate::cfi): a CFA, and places of registers relative
//! to it. [`FunctionTable::rule`] packs it in 32 bits, and [`Walk`](crate::Walk) steps by it.
//!
//! The functions of arm64 were tested with tables of bytes alone, because the project has no
//! Windows machine with that processor.

mod arm64;
mod image;
mod sketch;
mod x64;

use core::fmt;

use cairn_format::AbsoluteAddress;

use crate::cfi::{RowHead, RowState, RowView};
use crate::{Machine, MemoryReader, Registers, StopReason};

pub use image::{ImagePart, PeImage, PeMachine};
use sketch::FrameSketch;

/// Maximum entries of a chain; 32, because compilers make chains of two or three.
const MAX_CHAIN: u32 = 32;

/// The meaning of an address that is looked up in a function table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CodePlace {
    /// When it is an instruction that was not executed yet: the pc of a thread.
    Instruction(AbsoluteAddress),
    /// When it is a return address. The call in front of it is looked up, which is in no epilogue.
    ReturnAddress(AbsoluteAddress),
}

impl CodePlace {
    /// The address whose function is looked up.
    #[must_use]
    pub fn lookup_address(self) -> AbsoluteAddress {
        match self {
            Self::Instruction(address) => address,
            Self::ReturnAddress(address) => AbsoluteAddress::new(address.value().wrapping_sub(1)),
        }
    }
}

/// The reason why a function table has no row for an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum PdataError {
    /// When the address lies outside of the image, or no entry covers a return address. The table
    /// may still be valid.
    NotCovered,
    /// When the image ends within an entry, or does not contain it.
    UnexpectedEnd,
    /// When the unwind data has an unsupported version.
    UnknownVersion,
    /// When a code is unknown, or of a kind that no compiler emits for this machine.
    UnknownCode,
    /// When more than 32 entries refer to one another.
    TooLong,
    /// When an offset does not fit 32 bits.
    OutOfRange,
}

impl fmt::Display for PdataError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotCovered => "no function covers the address",
            Self::UnexpectedEnd => "the image ends within the unwind data",
            Self::UnknownVersion => "unknown version of unwind data",
            Self::UnknownCode => "unknown unwind code",
            Self::TooLong => "chain of more than 32 functions",
            Self::OutOfRange => "number out of range",
        })
    }
}

impl core::error::Error for PdataError {}

/// The function table of one image, or of code that a JIT compiler has made.
///
/// ```
/// use cairn_format::AbsoluteAddress;
/// use cairn_unwind::pdata::{CodePlace, FunctionTable, PeImage, PeMachine};
/// use cairn_unwind::x86_64::{X86_64, X86_64Rule};
///
/// // One function from 0x10 to 0x20 that begins with `sub rsp, 0x28`.
/// let mut bytes = [0; 0x40];
/// bytes[..12].copy_from_slice(&[0x10, 0, 0, 0, 0x20, 0, 0, 0, 0x30, 0, 0, 0]);
/// bytes[0x30..0x36].copy_from_slice(&[1, 4, 1, 0, 4, 0x42]);
/// let base = AbsoluteAddress::new(0x1_4000_0000);
/// let table = FunctionTable::new(PeImage::loaded(base, &bytes), PeMachine::X64, 0, 1);
///
/// let place = CodePlace::ReturnAddress(AbsoluteAddress::new(0x1_4000_0018));
/// assert_eq!(table.rule::<X86_64>(place), Ok(X86_64Rule::from_sp(0x30, None).unwrap()));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct FunctionTable<'a> {
    image: PeImage<'a>,
    machine: PeMachine,
    /// Place of the first entry.
    entries: u32,
    count: u32,
}

impl<'a> FunctionTable<'a> {
    /// A table of `count` entries at `entries` in the image, sorted by their functions.
    #[must_use]
    pub const fn new(image: PeImage<'a>, machine: PeMachine, entries: u32, count: u32) -> Self {
        Self { image, machine, entries, count }
    }

    /// Reads the place of the table from the image's headers. A table without entries is one, too:
    /// all functions are leaves.
    ///
    /// `None` when the bytes are no PE image, or for another processor.
    #[must_use]
    pub fn of_image(image: PeImage<'a>) -> Option<Self> {
        let headers = image::Headers::read(&image)?;
        let count = headers.exceptions_bytes / headers.machine.entry_bytes();
        Some(Self::new(image, headers.machine, headers.exceptions, count))
    }

    /// The processor of the code.
    #[must_use]
    pub const fn machine(&self) -> PeMachine {
        self.machine
    }

    /// The number of entries.
    #[must_use]
    pub const fn len(&self) -> u32 {
        self.count
    }

    /// True when all functions are leaves.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The first address of the function in entry `index`, and the first one behind it. `None` when
    /// there is no such entry, or when its data is missing.
    #[must_use]
    pub fn function(&self, index: u32) -> Option<(AbsoluteAddress, AbsoluteAddress)> {
        let (begin, end) = match self.machine {
            PeMachine::X64 => {
                x64::Function::entry(self, index).map(|function| (function.begin, function.end))?
            }
            PeMachine::Arm64 => {
                arm64::Arm64Function::entry(self, index).map(|function| (function.begin, function.end))?
            }
        };
        Some((self.image.address(begin)?, self.image.address(end)?))
    }

    /// The first address of the function that covers `address`, and the first one behind it.
    #[must_use]
    pub fn function_at(&self, address: AbsoluteAddress) -> Option<(AbsoluteAddress, AbsoluteAddress)> {
        let place = self.image.place(address)?;
        let function = self.function(self.find(place)?)?;
        (address < function.1).then_some(function)
    }

    /// The packed rule at an address. A row that does not fit is not an error: there is a rule for
    /// it.
    ///
    /// # Errors
    ///
    /// [`PdataError::NotCovered`] for an address outside of the image, and for a return address
    /// without an entry, because a leaf function calls nothing; the others when the table is
    /// malformed or written for another machine.
    pub fn rule<M: Machine>(&self, place: CodePlace) -> Result<M::Rule, PdataError> {
        let sketch = self.sketch::<M>(place)?;
        Ok(M::pack(&sketch.core_row::<M>()))
    }

    /// The registers of the caller, with all registers that a callee preserves.
    ///
    /// # Errors
    ///
    /// [`StopReason::NoUnwindInfo`] and [`StopReason::BadUnwindInfo`] for the errors of
    /// [`rule`](Self::rule); the others when the caller's registers cannot be read.
    pub fn step<M: Machine, Mem: MemoryReader>(
        &self,
        place: CodePlace,
        registers: &Registers<M>,
        memory: &Mem,
    ) -> Result<Registers<M>, StopReason> {
        let (mut head, mut state) = (RowHead::empty::<M>(), RowState::new());
        self.fill_row(place, &mut head, &mut state).map_err(|error| error.stop(registers.pc()))?;
        let mut caller = *registers;
        RowView { head: &head, state: &state }.step_into(registers, memory, &mut caller)?;
        Ok(caller)
    }

    /// Fills the empty parts of a row.
    #[inline(never)]
    pub(crate) fn fill_row<M: Machine>(
        &self,
        place: CodePlace,
        head: &mut RowHead<'_>,
        state: &mut RowState<M>,
    ) -> Result<(), PdataError> {
        self.sketch::<M>(place)?.fill(head, state);
        Ok(())
    }

    #[inline(never)]
    fn sketch<M: Machine>(&self, place: CodePlace) -> Result<FrameSketch, PdataError> {
        if M::PE_MACHINE != self.machine {
            return Err(PdataError::NotCovered);
        }
        let lookup = self.image.place(place.lookup_address()).ok_or(PdataError::NotCovered)?;
        let is_exact = matches!(place, CodePlace::Instruction(_));
        match self.machine {
            PeMachine::X64 => x64::sketch(self, lookup, is_exact),
            PeMachine::Arm64 => arm64::sketch(self, lookup, is_exact),
        }
    }

    /// The last entry whose function does not begin behind `place`.
    fn find(&self, place: u32) -> Option<u32> {
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.image.u32(self.entry_place(middle)?)? <= place { low = middle + 1 } else { high = middle }
        }
        low.checked_sub(1)
    }

    fn entry_place(&self, index: u32) -> Option<u32> {
        let within = index.checked_mul(self.machine.entry_bytes())?;
        self.entries.checked_add(within).filter(|_| index < self.count)
    }
}

impl PdataError {
    pub(crate) fn stop(self, pc: AbsoluteAddress) -> StopReason {
        match self {
            Self::NotCovered => StopReason::NoUnwindInfo { pc },
            _ => StopReason::BadUnwindInfo { pc },
        }
    }
}
