//! Walks stacks of Xtensa programs with register windows: ESP32, ESP32-S2 and -S3, and others with
//! the windowed ABI.
//!
//! A call rotates the window over the register file by 4, 8 or 12 registers, so a caller's `a0`
//! (its return address) and `a1` (its stack pointer) stay in the file until its registers are
//! needed again. Then they are spilled to the 16 bytes below the stack pointer of the function that
//! it called:
//!
//! ```text
//!   callee's a1 - 16:  | caller's a0 | caller's a1 | caller's a2 | caller's a3 |
//!   callee's a1:       ...
//! ```
//!
//! The upper two bits of a return address are the rotation in units of 4 registers; the address has
//! those of the code that returns. An `a0` of 0 marks the outermost function.
//!
//! A memory image alone suffices where all windows were spilled, as an exception handler or a
//! context switch does. For a processor that a debug probe has stopped, the register file is needed
//! as well: [`Windows`].

use cairn_format::{AbsoluteAddress, Frame, WordSize};

use crate::{AddressRange, MemoryReader, StopReason};

/// Bits of a return address that are not the call's rotation.
const ADDRESS_BITS: u32 = 0x3fff_ffff;
/// Distance of the save area below the stack pointer.
const SAVE_AREA_BYTES: u32 = 16;
/// The alignment of the stack pointer in the windowed ABI.
const STACK_ALIGNMENT: u32 = 16;

/// The physical register file of a stopped processor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Windows<'a> {
    /// AR0, AR1, ...: 32 or 64 of them.
    pub file: &'a [u32],
    /// WINDOWBASE: the number of the four registers with which the current window begins.
    pub base: u32,
    /// WINDOWSTART: a bit for each four registers with which a function's window begins.
    pub start: u32,
}

impl Windows<'_> {
    /// Returns `a0` and `a1` of the caller, if they are in the file, and the file. The file has the
    /// caller's window as the current one.
    fn caller(self, rotation: u32) -> Option<(Self, u32, u32)> {
        let groups = u32::try_from(self.file.len() / 4).ok().filter(|groups| matches!(groups, 8 | 16))?;
        let base = (self.base % groups).wrapping_sub(rotation) % groups;
        // Clears the callee's bit, so that a damaged file causes no endless loop.
        let start = self.start & !(1 << (self.base % groups));
        if start >> base & 1 == 0 {
            return None;
        }
        let first = base as usize * 4;
        let (a0, a1) = (*self.file.get(first)?, *self.file.get(first + 1)?);
        Some((Self { file: self.file, base, start }, a0, a1))
    }
}

/// The registers that a walk starts from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct XtensaRegisters<'a> {
    /// The program counter.
    pub pc: u32,
    /// `a0`, the return address with the rotation of the call.
    pub a0: u32,
    /// `a1`, the stack pointer.
    pub a1: u32,
    /// The register file, unless all windows were spilled.
    pub windows: Option<Windows<'a>>,
}

/// Iterates over the frames of a stack, innermost first.
///
/// ```
/// use cairn_format::{AbsoluteAddress, Frame};
/// use cairn_unwind::xtensa::{XtensaRegisters, XtensaWalk};
/// use cairn_unwind::{AddressRange, SliceMemory, StopReason};
///
/// // A stack of an ESP32 from 0x3ffb_0000 on; app_main called accept, which called malloc by call8.
/// let at = AbsoluteAddress::new;
/// let mut words = [0_u32; 24];
/// (words[0], words[1]) = (0x800d_0040, 0x3ffb_0030); // of accept, below malloc's stack pointer
/// (words[8], words[9]) = (0, 0x3ffb_0060); // of app_main, below accept's
/// let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
/// let memory = SliceMemory::new(at(0x3ffb_0000), &bytes);
///
/// let registers = XtensaRegisters { pc: 0x400d_2000, a0: 0x800d_1234, a1: 0x3ffb_0010, windows: None };
/// let mut walk = XtensaWalk::new(memory, registers, AddressRange::new(at(0x3ffb_0000), at(0x3ffb_0060)));
/// let frames: Vec<Frame> = walk.by_ref().collect();
/// let returns = [0x400d_1234, 0x400d_0040].map(|address| Frame::ReturnAddress(at(address)));
/// assert_eq!(frames, [Frame::ProgramCounter(at(0x400d_2000)), returns[0], returns[1]]);
/// assert_eq!(walk.stop_reason(), Some(StopReason::EndOfStack));
/// ```
#[derive(Clone, Debug)]
pub struct XtensaWalk<'a, M> {
    memory: M,
    stack: AddressRange,
    /// The registers of the frame whose return address comes next.
    registers: XtensaRegisters<'a>,
    has_started: bool,
    /// The reason why the caller's frame was not found; its return address is returned first.
    pending: Option<StopReason>,
    stop: Option<StopReason>,
}

impl<'a, M: MemoryReader> XtensaWalk<'a, M> {
    /// Starts a walk from `registers`. Stack pointers must lie within `stack`, or at its end, which
    /// is the outermost function's.
    pub fn new(memory: M, registers: XtensaRegisters<'a>, stack: AddressRange) -> Self {
        Self { memory, stack, registers, has_started: false, pending: None, stop: None }
    }

    /// The reason why the walk ended; `None` before its end.
    #[must_use]
    pub fn stop_reason(&self) -> Option<StopReason> {
        self.stop
    }

    /// The return address of this frame, after which the registers are the caller's.
    fn advance(&mut self) -> Result<AbsoluteAddress, StopReason> {
        if let Some(stop) = self.pending {
            return Err(stop);
        }
        let XtensaRegisters { pc, a0, a1, windows } = self.registers;
        if a0 == 0 {
            return Err(StopReason::EndOfStack);
        }
        let rotation = a0 >> 30;
        if rotation == 0 {
            // The function was not called through a window.
            return Err(StopReason::NoUnwindInfo { pc: AbsoluteAddress::new(pc.into()) });
        }
        let return_address = pc & !ADDRESS_BITS | a0 & ADDRESS_BITS;
        let found = AbsoluteAddress::new(return_address.into());
        let caller = match windows.and_then(|windows| windows.caller(rotation)) {
            Some((windows, a0, a1)) => Ok((Some(windows), a0, a1)),
            // Frames older than a spilled one were spilled before it.
            None => self.spilled(a1).map(|(a0, a1)| (None, a0, a1)),
        };
        match caller.and_then(|(windows, caller_a0, caller_a1)| {
            self.check_stack_pointer(found, a1, caller_a1)?;
            Ok(XtensaRegisters { pc: return_address, a0: caller_a0, a1: caller_a1, windows })
        }) {
            Ok(registers) => self.registers = registers,
            Err(stop) => self.pending = Some(stop),
        }
        Ok(found)
    }

    /// The caller's `a0` and `a1` in the save area below the callee's stack pointer.
    fn spilled(&self, stack_pointer: u32) -> Result<(u32, u32), StopReason> {
        let outside = AbsoluteAddress::new(stack_pointer.into());
        let place = stack_pointer
            .checked_sub(SAVE_AREA_BYTES)
            .filter(|_| stack_pointer.is_multiple_of(STACK_ALIGNMENT))
            .ok_or(StopReason::OutsideStack { address: outside })?;
        let word = |address: u32| {
            let address = AbsoluteAddress::new(address.into());
            let word = self.memory.word(address, WordSize::Bits32);
            word.map(|word| word as u32).ok_or(StopReason::UnreadableMemory { address })
        };
        // The address is aligned, so this stays in range.
        Ok((word(place)?, word(place + 4)?))
    }

    fn check_stack_pointer(&self, pc: AbsoluteAddress, callee: u32, caller: u32) -> Result<(), StopReason> {
        let address = AbsoluteAddress::new(caller.into());
        if !caller.is_multiple_of(STACK_ALIGNMENT)
            || address.value() < self.stack.start.value()
            || address.value() > self.stack.end.value()
        {
            return Err(StopReason::OutsideStack { address });
        }
        if caller <= callee { Err(StopReason::NoProgress { pc }) } else { Ok(()) }
    }
}

impl<M: MemoryReader> Iterator for XtensaWalk<'_, M> {
    type Item = Frame;

    fn next(&mut self) -> Option<Frame> {
        if self.stop.is_some() {
            return None;
        }
        if !self.has_started {
            self.has_started = true;
            return Some(Frame::ProgramCounter(AbsoluteAddress::new(self.registers.pc.into())));
        }
        match self.advance() {
            Ok(address) => Some(Frame::ReturnAddress(address)),
            Err(stop) => {
                self.stop = Some(stop);
                None
            }
        }
    }
}
