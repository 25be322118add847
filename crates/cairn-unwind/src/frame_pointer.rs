//! The frame-pointer walk: follows the chain of saved frame pointers, without tables.
//!
//! ```text
//!   fp --> | saved fp | return address |        (both of the machine's word size, x86 and AArch64 alike)
//!              |
//!              +--> | saved fp | return address |  --> ... --> 0
//! ```
//!
//! Processors differ only in the place of the two words relative to the frame pointer, which a
//! [`FrameLayout`] states. On RISC-V the frame pointer is the CFA, and both words lie below it:
//!
//! ```text
//!   | saved fp | return address | <-- fp
//! ```
//!
//! In code compiled without frame pointers the register may have any value. So every load is
//! checked first: it must be inside the stack's bounds, aligned, and above the previous frame. An
//! invalid value ends the walk, which neither faults nor loops.

use cairn_format::{AbsoluteAddress, WordSize};

use crate::{AddressRange, MemoryReader, StopReason};

/// The place of a frame record relative to the frame pointer.
///
/// ```
/// use cairn_format::{AbsoluteAddress, WordSize};
/// use cairn_unwind::{AddressRange, FrameLayout, FramePointerWalk, SliceMemory};
///
/// // A stack of a 32-bit RISC-V device: main called read_packet, which called malloc.
/// let at = AbsoluteAddress::new;
/// let words: [u32; 4] = [0x8000_8010, 0x2040_0124, 0, 0x2040_0010];
/// let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
/// let memory = SliceMemory::new(at(0x8000_8000), &bytes);
/// let stack = AddressRange::new(at(0x8000_8000), at(0x8000_8010));
///
/// let walk = FramePointerWalk::new(memory, 0x8000_8008, stack, WordSize::Bits32).layout(FrameLayout::RISC_V);
/// let returns: Vec<u64> = walk.map(|record| record.return_address.value()).collect();
/// assert_eq!(returns, [0x2040_0124, 0x2040_0010]);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameLayout {
    /// Distance of the record's start below the frame pointer.
    words_below: u8,
}

impl FrameLayout {
    /// The record begins at the frame pointer. This is so on x86, AArch64, and Arm as LLVM compiles
    /// it (`r7` in Thumb code, else `r11`).
    pub const PAIR_AT_FRAME_POINTER: Self = Self { words_below: 0 };

    /// The record ends at the frame pointer, `s0`.
    pub const RISC_V: Self = Self { words_below: 2 };
}

/// A frame record: the two words to which a frame pointer leads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameRecord {
    /// The address of the record: at the frame pointer, or below it, by the [`FrameLayout`].
    pub address: AbsoluteAddress,
    /// The caller's frame pointer; zero in the outermost frame.
    pub saved_frame_pointer: u64,
    /// The address to which the call returns.
    pub return_address: AbsoluteAddress,
}

impl FrameRecord {
    /// Reads the record that `frame_pointer` points to; it must be aligned and lie whole within
    /// `stack`.
    ///
    /// # Errors
    ///
    /// [`StopReason::EndOfStack`] for a zero frame pointer, [`StopReason::OutsideStack`] and
    /// [`StopReason::UnreadableMemory`] for a record that cannot be read.
    #[inline]
    pub fn read<M: MemoryReader>(
        memory: &M,
        frame_pointer: u64,
        stack: AddressRange,
        word_size: WordSize,
    ) -> Result<Self, StopReason> {
        Self::read_as(FrameLayout::PAIR_AT_FRAME_POINTER, memory, frame_pointer, stack, word_size)
    }

    /// Reads a record as [`read`](Self::read) does, on a processor with another layout.
    ///
    /// # Errors
    ///
    /// The errors of [`read`](Self::read).
    #[inline]
    pub fn read_as<M: MemoryReader>(
        layout: FrameLayout,
        memory: &M,
        frame_pointer: u64,
        stack: AddressRange,
        word_size: WordSize,
    ) -> Result<Self, StopReason> {
        let word_bytes = word_size.bytes() as u64;
        if frame_pointer == 0 {
            return Err(StopReason::EndOfStack);
        }
        let below = u64::from(layout.words_below) * word_bytes;
        let Some(lowest) = frame_pointer.checked_sub(below) else {
            return Err(StopReason::OutsideStack { address: AbsoluteAddress::new(frame_pointer) });
        };
        let address = AbsoluteAddress::new(lowest);
        if !frame_pointer.is_multiple_of(word_bytes) || !stack.contains_bytes(address, 2 * word_bytes) {
            return Err(StopReason::OutsideStack { address });
        }
        let unreadable = StopReason::UnreadableMemory { address };
        let saved_frame_pointer = memory.word(address, word_size).ok_or(unreadable)?;
        let above = address.checked_add(word_bytes).ok_or(unreadable)?;
        let return_address = memory.word(above, word_size).ok_or(unreadable)?;
        Ok(Self { address, saved_frame_pointer, return_address: AbsoluteAddress::new(return_address) })
    }
}

/// Iterates over the frame records of a stack, innermost first.
///
/// ```
/// use cairn_format::{AbsoluteAddress, WordSize};
/// use cairn_unwind::{AddressRange, FramePointerWalk, SliceMemory, StopReason};
///
/// let at = AbsoluteAddress::new;
/// let words: [u64; 4] = [0x7010, 0x4001, 0, 0x4002];
/// let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
/// let memory = SliceMemory::new(at(0x7000), &bytes);
///
/// let stack = AddressRange::new(at(0x7000), at(0x7020));
/// let mut walk = FramePointerWalk::new(memory, 0x7000, stack, WordSize::Bits64);
/// let returns: Vec<u64> = walk.by_ref().map(|record| record.return_address.value()).collect();
/// assert_eq!(returns, [0x4001, 0x4002]);
/// assert_eq!(walk.stop_reason(), Some(StopReason::EndOfStack));
/// ```
#[derive(Clone, Debug)]
pub struct FramePointerWalk<M> {
    memory: M,
    /// The part of the stack above the last record. It shrinks with each step, which is the
    /// monotonicity check.
    stack: AddressRange,
    frame_pointer: u64,
    word_size: WordSize,
    layout: FrameLayout,
    last_pc: AbsoluteAddress,
    stop: Option<StopReason>,
}

impl<M: MemoryReader> FramePointerWalk<M> {
    /// Starts a walk from `frame_pointer` within `stack`. If the stack pointer is known, use it as
    /// the start of `stack`: no frame record of a live frame lies below it.
    pub fn new(memory: M, frame_pointer: u64, stack: AddressRange, word_size: WordSize) -> Self {
        Self {
            memory,
            stack,
            frame_pointer,
            word_size,
            layout: FrameLayout::PAIR_AT_FRAME_POINTER,
            last_pc: AbsoluteAddress::new(0),
            stop: None,
        }
    }

    /// Sets the layout of frame records, for another processor.
    #[must_use]
    pub fn layout(mut self, layout: FrameLayout) -> Self {
        self.layout = layout;
        self
    }

    /// The reason why the walk ended; `None` before its end.
    #[must_use]
    pub fn stop_reason(&self) -> Option<StopReason> {
        self.stop
    }

    fn advance(&mut self) -> Result<FrameRecord, StopReason> {
        let below = self.frame_pointer != 0 && self.frame_pointer < self.stack.start.value();
        if below && self.last_pc.value() != 0 {
            return Err(StopReason::NoProgress { pc: self.last_pc });
        }
        let record =
            FrameRecord::read_as(self.layout, &self.memory, self.frame_pointer, self.stack, self.word_size)?;
        if record.return_address.value() == 0 {
            return Err(StopReason::EndOfStack);
        }
        let record_bytes = 2 * self.word_size.bytes() as u64;
        // `read` checked that the record lies within the range, so the sum cannot pass its end.
        self.stack.start = record.address.checked_add(record_bytes).unwrap_or(self.stack.end);
        self.frame_pointer = record.saved_frame_pointer;
        self.last_pc = record.return_address;
        Ok(record)
    }
}

impl<M: MemoryReader> Iterator for FramePointerWalk<M> {
    type Item = FrameRecord;

    #[inline]
    fn next(&mut self) -> Option<FrameRecord> {
        if self.stop.is_some() {
            return None;
        }
        match self.advance() {
            Ok(record) => Some(record),
            Err(reason) => {
                self.stop = Some(reason);
                None
            }
        }
    }
}
