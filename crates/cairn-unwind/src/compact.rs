//! Compact unwind info: Darwin's tables, four bytes for each function.
//!
//! A Mach-O file's `__unwind_info` maps ranges of code to an *encoding*. Most state that the
//! function has a frame pointer, or how large its frame is; the rest refer to DWARF, which is not
//! read here.
//!
//! ```text
//!   header | common encodings: u32 … | personalities | first level: function offset, page offset, … (sorted) | pages
//!   regular page     kind 2 | offset: u16 | count: u16 | (function offset: u32, encoding: u32) …
//!   compressed page  kind 3 | offset: u16 | count: u16 | encodings: u16 | count: u16 | (index: 8, function offset: 24) …
//! ```
//!
//! The rows are valid between the prologue and the epilogue of a function. At an interrupted
//! instruction they may be wrong, as for every unwinder that does not decode code; the next frame
//! is then checked against the stack like all others.

use cairn_format::AbsoluteAddress;

use crate::{AddressRange, MemoryReader, StopReason};

/// The rows of one module. Its bytes are read where they lie, and no lookup takes more than two
/// binary searches.
#[derive(Clone, Copy, Debug)]
pub struct CompactTable<'a> {
    bytes: &'a [u8],
}

/// The way in which a function's caller is found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum CompactRule {
    /// The frame pointer leads to a frame record.
    FramePointer,
    /// The frame has a constant size and no frame pointer. On x86-64 it contains the return
    /// address; on arm64 the link register does.
    Frameless {
        /// From the stack pointer to that of the caller.
        frame_bytes: u32,
        /// Distance of the saved frame pointer below the caller's stack pointer, if it was saved.
        saved_frame_pointer: Option<u32>,
    },
    /// The function's FDE in `__eh_frame` describes it.
    Dwarf {
        /// Offset of the FDE in the section, as far as 24 bits go.
        fde_offset: u32,
    },
    /// The table has no information about the function.
    None,
    /// Only the function's code has the information. A frame size that is an operand of an
    /// instruction is an example.
    Unsupported,
}

/// The processor that the rows are for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CompactMachine {
    /// x86-64.
    X86_64,
    /// arm64.
    Arm64,
}

/// The registers that a step needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CompactRegisters {
    /// The interrupted instruction, or a return address.
    pub pc: u64,
    /// The stack pointer.
    pub sp: u64,
    /// The frame pointer.
    pub fp: u64,
    /// The link register while it contains the return address: in the innermost frame of arm64.
    pub link: Option<u64>,
}

const MODE: u32 = 0x0f00_0000;
const REGULAR_PAGE: u32 = 2;
const COMPRESSED_PAGE: u32 = 3;
/// Bytes of an entry of the first level.
const INDEX_BYTES: usize = 12;
/// Bytes of an entry of a regular page.
const REGULAR_BYTES: usize = 8;

impl<'a> CompactTable<'a> {
    /// The table in a section `__unwind_info`; `None` for a version other than 1.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Option<Self> {
        let table = Self { bytes };
        (table.u32(0)? == 1).then_some(table)
    }

    /// The encoding of the function that covers `offset`, which counts from the module's start.
    ///
    /// It is 0 where the table has no information, and `None` outside of the table and where that
    /// is damaged.
    #[must_use]
    pub fn encoding(&self, offset: u32) -> Option<u32> {
        let (index, count) = (self.place(20)?, self.place(24)?);
        let first_of = |entry: usize| self.u32(index.checked_add(entry.checked_mul(INDEX_BYTES)?)?);
        let entry = last_not_above(count, offset, first_of)?;
        // The last entry marks the end of the code.
        if entry + 1 >= count {
            return None;
        }
        let at = index + entry * INDEX_BYTES;
        let (base, page) = (self.u32(at)?, self.place(at + 4)?);
        match self.u32(page)? {
            REGULAR_PAGE => {
                let (entries, count) = self.page_entries(page)?;
                let first_of = |entry: usize| self.u32(entries + entry * REGULAR_BYTES);
                let entry = last_not_above(count, offset, first_of)?;
                self.u32(entries + entry * REGULAR_BYTES + 4)
            }
            COMPRESSED_PAGE => {
                let (entries, count) = self.page_entries(page)?;
                let first_of =
                    |entry: usize| Some(base.wrapping_add(self.u32(entries + entry * 4)? & 0xff_ffff));
                let entry = last_not_above(count, offset, first_of)?;
                let number = (self.u32(entries + entry * 4)? >> 24) as usize;
                self.numbered_encoding(page, number)
            }
            _ => None,
        }
    }

    /// The start of a page's entries, and their number.
    fn page_entries(&self, page: usize) -> Option<(usize, usize)> {
        let offset = usize::from(self.u16(page + 4)?);
        Some((page + offset, usize::from(self.u16(page + 6)?)))
    }

    /// The encoding with this number: those that all pages share come first, then those of the
    /// page.
    fn numbered_encoding(&self, page: usize, number: usize) -> Option<u32> {
        let (common, common_count) = (self.place(4)?, self.place(8)?);
        match number.checked_sub(common_count) {
            None => self.u32(common + number * 4),
            Some(number) => {
                let (own, count) = (usize::from(self.u16(page + 8)?), usize::from(self.u16(page + 10)?));
                (number < count).then(|| self.u32(page + own + number * 4))?
            }
        }
    }

    fn place(&self, at: usize) -> Option<usize> {
        // Every place is within the section, so that the sum of two cannot overflow.
        usize::try_from(self.u32(at)?).ok().filter(|&place| place <= self.bytes.len())
    }

    fn u32(&self, at: usize) -> Option<u32> {
        Some(u32::from_le_bytes(*self.bytes.get(at..)?.first_chunk()?))
    }

    fn u16(&self, at: usize) -> Option<u16> {
        Some(u16::from_le_bytes(*self.bytes.get(at..)?.first_chunk()?))
    }
}

/// Finds the last of `count` sorted entries that does not begin behind `wanted`. Returns `None` if
/// all do, or if one cannot be read.
fn last_not_above(count: usize, wanted: u32, first_of: impl Fn(usize) -> Option<u32>) -> Option<usize> {
    let (mut low, mut high) = (0, count);
    while low < high {
        let middle = low + (high - low) / 2;
        if first_of(middle)? <= wanted { low = middle + 1 } else { high = middle }
    }
    low.checked_sub(1)
}

impl CompactRule {
    /// Decodes an encoding.
    ///
    /// ```
    /// use cairn_unwind::compact::{CompactMachine, CompactRule};
    ///
    /// let rule = CompactRule::of(0x0200_4000, CompactMachine::Arm64);
    /// assert_eq!(rule, CompactRule::Frameless { frame_bytes: 64, saved_frame_pointer: None });
    /// assert_eq!(CompactRule::of(0x0100_0000, CompactMachine::X86_64), CompactRule::FramePointer);
    /// ```
    #[must_use]
    pub fn of(encoding: u32, machine: CompactMachine) -> Self {
        let dwarf = Self::Dwarf { fde_offset: encoding & 0xff_ffff };
        match (machine, (encoding & MODE) >> 24) {
            (_, 0) => Self::None,
            (CompactMachine::Arm64, 2) => {
                let frame_bytes = (encoding >> 12 & 0xfff) * 16;
                Self::Frameless { frame_bytes, saved_frame_pointer: None }
            }
            (CompactMachine::Arm64, 3) | (CompactMachine::X86_64, 4) => dwarf,
            (CompactMachine::Arm64, 4) | (CompactMachine::X86_64, 1) => Self::FramePointer,
            (CompactMachine::X86_64, 2) => {
                let frame_bytes = (encoding >> 16 & 0xff) * 8;
                match saved_frame_pointer(encoding >> 10 & 7, encoding & 0x3ff) {
                    Ok(saved_frame_pointer) => Self::Frameless { frame_bytes, saved_frame_pointer },
                    Err(()) => Self::Unsupported,
                }
            }
            _ => Self::Unsupported,
        }
    }

    /// Moves to the caller.
    ///
    /// # Errors
    ///
    /// [`StopReason::EndOfStack`] at a zero frame pointer, [`StopReason::NoUnwindInfo`] where the
    /// rule describes no step, and the others for memory that is unreadable or not above on the
    /// stack.
    pub fn step<M: MemoryReader>(
        self,
        machine: CompactMachine,
        registers: &mut CompactRegisters,
        memory: &M,
        stack: AddressRange,
    ) -> Result<(), StopReason> {
        let pc = AbsoluteAddress::new(registers.pc);
        let word = |address: u64| {
            let address = AbsoluteAddress::new(address);
            if !stack.contains_bytes(address, 8) {
                return Err(StopReason::OutsideStack { address });
            }
            memory.word64(address).ok_or(StopReason::UnreadableMemory { address })
        };
        let wrapped = || StopReason::BadUnwindInfo { pc };
        let caller = match self {
            Self::FramePointer if registers.fp == 0 => return Err(StopReason::EndOfStack),
            Self::FramePointer => {
                let above = registers.fp.checked_add(16).ok_or(StopReason::NoProgress { pc })?;
                let (fp, pc) = (word(registers.fp)?, word(above - 8)?);
                CompactRegisters { pc, sp: above, fp, link: None }
            }
            Self::Frameless { frame_bytes, saved_frame_pointer } => {
                let sp = registers.sp.checked_add(frame_bytes.into()).ok_or_else(wrapped)?;
                let fp = match saved_frame_pointer {
                    Some(below) => word(sp.checked_sub(below.into()).ok_or_else(wrapped)?)?,
                    None => registers.fp,
                };
                let return_address = match machine {
                    CompactMachine::Arm64 => registers.link.ok_or(StopReason::NoUnwindInfo { pc })?,
                    CompactMachine::X86_64 => word(sp.checked_sub(8).ok_or_else(wrapped)?)?,
                };
                CompactRegisters { pc: return_address, sp, fp, link: None }
            }
            Self::Dwarf { .. } | Self::None | Self::Unsupported => {
                return Err(StopReason::NoUnwindInfo { pc });
            }
        };
        // A leaf function of arm64 may have no frame; its step uses up the link register.
        let is_above = caller.sp > registers.sp || caller.sp == registers.sp && registers.link.is_some();
        if !is_above {
            return Err(StopReason::NoProgress { pc });
        }
        *registers = caller;
        Ok(())
    }
}

/// Returns the distance below the caller's stack pointer where a frameless function has saved rbp.
/// Only x86-64 has this. `count` registers lie below the return address, in an order that
/// `permutation` numbers.
fn saved_frame_pointer(count: u32, permutation: u32) -> Result<Option<u32>, ()> {
    const RBP: usize = 6;
    /// Number of ways to choose the registers that follow each place, by the number of registers.
    const RADIX: [&[u32]; 7] =
        [&[], &[1], &[5, 1], &[20, 4, 1], &[60, 12, 3, 1], &[120, 24, 6, 2, 1], &[120, 24, 6, 2, 1, 1]];
    let radix = RADIX.get(count as usize).ok_or(())?;
    let (mut rest, mut is_used, mut found) = (permutation, [false; 7], None);
    for (place, &radix) in radix.iter().enumerate() {
        // The last of six registers is the remaining one.
        let number = if count == 6 && place == 5 { 0 } else { rest / radix };
        rest %= radix;
        let free = is_used.iter().enumerate().skip(1).filter(|&(_, &is_used)| !is_used);
        let register = free.map(|(register, _)| register).nth(number as usize).ok_or(())?;
        if let Some(is_used) = is_used.get_mut(register) {
            *is_used = true;
        }
        if register == RBP {
            // The register at the lowest address comes first; the return address is the highest
            // word.
            found = Some(8 + 8 * (count - place as u32));
        }
    }
    Ok(found)
}
