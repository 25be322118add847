//! Walks stacks of RISC-V programs that are compiled with frame pointers, with 32 and 64 bits.
//!
//! ```text
//!   | ... | saved s0 | saved ra | <-- s0 = the caller's sp           a function that calls others
//!         | ... ... .| saved s0 | <-- s0                             a leaf of GCC: ra is still in its register
//! ```
//!
//! An interrupted function may be of the second kind. Its word below `s0` is then a frame pointer,
//! further out in the same stack, and not code, which distinguishes the two kinds (as in Linux).
//! Any other function of a stack has made a call, so it is of the first kind.
//!
//! # Limits
//!
//! Before a function has set `s0`, and after it has restored it, `s0` is its caller's, and the walk
//! omits the caller. Only unwind tables or the code could show that.

use cairn_format::{AbsoluteAddress, Frame, WordSize};

use crate::{AddressRange, FrameLayout, FramePointerWalk, FrameRecord, MemoryReader, StopReason};

/// The registers that a walk starts from: those of an interrupted or stopped thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RiscvRegisters {
    /// The program counter.
    pub pc: u64,
    /// `ra`, the return address.
    pub ra: u64,
    /// `sp`, the stack pointer.
    pub sp: u64,
    /// `s0`, the frame pointer.
    pub fp: u64,
}

/// Iterates over the frames of a stack, innermost first.
///
/// ```
/// use cairn_format::{AbsoluteAddress, Frame, WordSize};
/// use cairn_unwind::riscv::{RiscvRegisters, RiscvWalk};
/// use cairn_unwind::{AddressRange, SliceMemory, StopReason};
///
/// // A leaf, interrupted: it has saved s0, and its return address is in ra.
/// let at = AbsoluteAddress::new;
/// let words: [u32; 8] = [0, 0, 0, 0x8000_8020, 7, 7, 0, 0x2040_0010];
/// let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
/// let memory = SliceMemory::new(at(0x8000_8000), &bytes);
/// let stack = AddressRange::new(at(0x8000_8000), at(0x8000_8020));
///
/// let registers = RiscvRegisters { pc: 0x2040_0200, ra: 0x2040_0124, sp: 0x8000_8000, fp: 0x8000_8010 };
/// let mut walk = RiscvWalk::new(memory, registers, stack, WordSize::Bits32);
/// let frames: Vec<Frame> = walk.by_ref().collect();
/// let returns = [0x2040_0124, 0x2040_0010].map(|address| Frame::ReturnAddress(at(address)));
/// assert_eq!(frames, [Frame::ProgramCounter(at(0x2040_0200)), returns[0], returns[1]]);
/// assert_eq!(walk.stop_reason(), Some(StopReason::EndOfStack));
/// ```
#[derive(Clone, Debug)]
pub struct RiscvWalk<M> {
    start: Option<AbsoluteAddress>,
    leaf_return: Option<AbsoluteAddress>,
    records: FramePointerWalk<M>,
}

impl<M: MemoryReader> RiscvWalk<M> {
    /// Starts a walk from `registers`, within `stack` and from the stack pointer upwards.
    pub fn new(memory: M, registers: RiscvRegisters, stack: AddressRange, word_size: WordSize) -> Self {
        let start = stack.start.value().max(registers.sp);
        let stack = AddressRange::new(AbsoluteAddress::new(start), stack.end);
        let saved = saved_by_leaf(&memory, registers.fp, stack, word_size).filter(|_| registers.ra != 0);
        let frame_pointer = saved.unwrap_or(registers.fp);
        Self {
            start: Some(AbsoluteAddress::new(registers.pc)),
            leaf_return: saved.map(|_| AbsoluteAddress::new(registers.ra)),
            records: FramePointerWalk::new(memory, frame_pointer, stack, word_size)
                .layout(FrameLayout::RISC_V),
        }
    }

    /// The reason why the walk ended; `None` before its end.
    #[must_use]
    pub fn stop_reason(&self) -> Option<StopReason> {
        self.records.stop_reason()
    }
}

/// The frame pointer that a leaf has saved where other functions save the return address.
fn saved_by_leaf<M: MemoryReader>(
    memory: &M,
    frame_pointer: u64,
    stack: AddressRange,
    word_size: WordSize,
) -> Option<u64> {
    let word_bytes = word_size.bytes() as u64;
    let place = AbsoluteAddress::new(frame_pointer.checked_sub(word_bytes)?);
    if !frame_pointer.is_multiple_of(word_bytes) || !stack.contains_bytes(place, word_bytes) {
        return None;
    }
    let word = memory.word(place, word_size)?;
    // A caller's frame record ends at its frame pointer, above everything of the leaf.
    let above = AddressRange::new(AbsoluteAddress::new(frame_pointer), stack.end);
    let record = FrameRecord::read_as(FrameLayout::RISC_V, memory, word, above, word_size);
    record.is_ok().then_some(word)
}

impl<M: MemoryReader> Iterator for RiscvWalk<M> {
    type Item = Frame;

    fn next(&mut self) -> Option<Frame> {
        if let Some(pc) = self.start.take() {
            return Some(Frame::ProgramCounter(pc));
        }
        if let Some(address) = self.leaf_return.take() {
            return Some(Frame::ReturnAddress(address));
        }
        self.records.next().map(|record| Frame::ReturnAddress(record.return_address))
    }
}
