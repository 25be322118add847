//! The fast way through a record: plain addresses with one load each, no loop, no branch on their length.
//!
//! Nearly every instruction of a real stack is a relative return address. [`Cursor`] knows these and says `None` to
//! everything else (another instruction, a relative first address, an operand wider than the word, an error, the end),
//! without having moved; [`Decoder`](super::Decoder) then decides by its rules. A cursor is `Copy`, and a loop over a
//! local copy keeps it in registers.

use crate::{AbsoluteAddress, Frame, WordSize};

#[derive(Clone, Copy, Debug)]
pub(super) struct Cursor<'a> {
    input: &'a [u8],
    /// The end of `input`, from the next instruction.
    rest: &'a [u8],
    /// The last address; relative operands count from it.
    base: u64,
    /// Cuts an address to the word.
    word_mask: u64,
    /// The instruction of the last frame; 0 when there is none yet.
    pub(super) last_opcode: u8,
    /// The bits of [`CLASS`] that keep the next instruction from the fast way.
    declined: u8,
}

/// What can keep an instruction from the fast way, as bits: looked up, one test does for two instructions.
static CLASS: [u8; 256] = {
    let mut class = [NO_ADDRESS; 256];
    let mut opcode = 0x10;
    while opcode < 0x40 {
        let operand_code = opcode as u8 & OPERAND_CODE;
        class[opcode] = if opcode & 0x08 == 0 { RELATIVE | operand_code } else { operand_code };
        opcode += 1;
    }
    class
};

const NO_ADDRESS: u8 = 0x80;
const RELATIVE: u8 = 0x08;
/// The operand length less one. Compared by bits too: those of words are 1, 3 and 7.
const OPERAND_CODE: u8 = 0x07;

impl<'a> Cursor<'a> {
    /// Behind the info byte of `input`.
    pub(super) fn new(input: &'a [u8], word_size: WordSize) -> Self {
        Self {
            input,
            rest: input.get(1..).unwrap_or_default(),
            base: 0,
            word_mask: word_size.max_address(),
            last_opcode: 0,
            declined: NO_ADDRESS | RELATIVE | OPERAND_CODE & !(word_size.bytes() as u8 - 1),
        }
    }

    /// Offset of the next instruction.
    pub(super) const fn position(&self) -> usize {
        self.input.len() - self.rest.len()
    }

    /// No address was read so far, so a relative one has nothing to relate to.
    pub(super) const fn is_before_first_address(&self) -> bool {
        self.declined & RELATIVE != 0
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Takes the next `count` bytes, or says how many there are.
    pub(super) fn take(&mut self, count: usize) -> Result<&'a [u8], usize> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or(self.rest.len())?;
        self.rest = rest;
        Ok(taken)
    }

    /// Nothing more is to be read.
    pub(super) fn stop(&mut self) {
        self.rest = &[];
    }

    /// The next two instructions, if both are plain addresses and 18 bytes are left:
    ///
    /// ```text
    /// | opcode | operand, 1..=6 bytes | opcode | operand, 1..=8 bytes | ...
    /// | both opcodes lie in these 8 bytes          |
    /// ```
    ///
    /// An instruction says where the next begins, so a loop over single ones waits for a load in each round, 7 cycles in
    /// all. Two opcodes in one load need 11. Three would win less than their code costs.
    #[inline(always)]
    pub(super) fn pair(&mut self) -> Option<(Frame, Frame)> {
        let window: &[u8; 18] = self.rest.first_chunk()?;
        let opcodes = u64::from_le_bytes(*window.first_chunk()?);
        let first_opcode = opcodes as u8;
        let first_code = usize::from(first_opcode & OPERAND_CODE);
        // Behind a longer first operand this is 0, which is no address.
        let second_opcode = (opcodes >> 16 >> (8 * first_code)) as u8;
        let second_code = usize::from(second_opcode & OPERAND_CODE);
        let first_class = CLASS[usize::from(first_opcode)];
        let second_class = CLASS[usize::from(second_opcode)];
        if first_class & self.declined | second_class & (self.declined & !RELATIVE) != 0 {
            return None;
        }
        // No length has to be checked here: 18 bytes are enough for any two instructions.
        let first_operand = window.get(1..9)?.try_into().ok()?;
        let second_operand = window.get(first_code + 3..first_code + 11)?.try_into().ok()?;
        let first = self.leading(first_opcode, first_operand);
        let second = self.leading(second_opcode, second_operand);
        self.rest = self.rest.get(first_code + second_code + 4..)?;
        Some((first, second))
    }

    /// The next instruction, if it is a plain address.
    #[inline(always)]
    pub(super) fn single(&mut self) -> Option<Frame> {
        let opcode = *self.rest.first()?;
        if CLASS[usize::from(opcode)] & self.declined != 0 {
            return None;
        }
        // The eight bytes that END with the operand: unlike the eight that begin with it, they are there for all but
        // the first few bytes of a record, however short the record is.
        let length = 2 + usize::from(opcode & 0x07);
        let after = self.rest.get(length..)?;
        let window: &[u8; 8] = self.input.get(..self.input.len() - after.len())?.last_chunk()?;
        self.rest = after;
        Some(self.computed(opcode, u64::from_be_bytes(*window)))
    }

    /// The frame of an address instruction whose operand is the first bytes of `window`.
    #[inline(always)]
    fn leading(&mut self, opcode: u8, window: &[u8; 8]) -> Frame {
        let operand = i64::from_be_bytes(*window) >> (56 - 8 * u32::from(opcode & 0x07));
        self.moved(opcode, operand)
    }

    /// The frame of an address instruction whose operand is the low bytes of `window`.
    #[inline(always)]
    pub(super) fn computed(&mut self, opcode: u8, window: u64) -> Frame {
        let unused_bits = 56 - 8 * u32::from(opcode & 0x07);
        self.moved(opcode, (window << unused_bits) as i64 >> unused_bits)
    }

    /// The frame of an address instruction with this operand.
    #[inline(always)]
    fn moved(&mut self, opcode: u8, operand: i64) -> Frame {
        let base = if opcode & 0x08 == 0 { self.base } else { 0 };
        self.base = base.wrapping_add_signed(operand) & self.word_mask;
        self.last_opcode = opcode;
        self.declined &= !RELATIVE;
        self.last_address()
    }

    /// The frame that the last address instruction made.
    #[inline(always)]
    pub(super) const fn last_address(&self) -> Frame {
        let address = AbsoluteAddress::new(self.base);
        match self.last_opcode >> 4 {
            1 => Frame::ProgramCounter(address),
            2 => Frame::ReturnAddress(address),
            _ => Frame::AsyncResumePoint(address),
        }
    }
}
