//! The fast path through a record: plain addresses, no loop, few branches.
//!
//! Nearly every instruction of a real stack is a relative return address. [`Cursor`] knows these
//! and returns `None` for everything else (another instruction, a relative first address, an
//! operand wider than the word, an error, the end), without having moved;
//! [`CbfDecoder`](super::CbfDecoder) then decides by its rules. A cursor is `Copy`, and a loop over
//! a local copy keeps it in registers.

use cairn_format::{AbsoluteAddress, Frame, WordSize};

#[derive(Clone, Copy, Debug)]
pub(super) struct Cursor<'a> {
    input: &'a [u8],
    /// The end of `input`, from the next instruction. Empty while the fast path is closed: see
    /// `held_back`.
    rest: &'a [u8],
    /// The content of `rest` while the fast path is closed. It is closed as long as no relative
    /// address is allowed, while repeats are pending, and always for a narrow word. The fast path
    /// then needs no test for these.
    held_back: &'a [u8],
    /// The last address; relative operands count from it.
    base: u64,
    /// Mask that truncates an address to the word.
    word_mask: u64,
    /// The instruction of the last frame; 0 before the first frame.
    pub(super) last_opcode: u8,
    /// The bit of an opcode that says more operand bytes than a 32-bit word has; 0 if the word has
    /// 64.
    too_wide: u8,
    /// True for 16-bit words, which close the fast path. It takes operands of three and four bytes
    /// without checking the word.
    word_is_narrow: bool,
    /// True if there is a base for relative addresses, as far as the slow path knows.
    address_seen: bool,
}

/// The bit of an address instruction that says its operand does not count from the last address.
const ABSOLUTE: u8 = 0x08;

/// The bits of an address instruction that hold the operand length less one.
const OPERAND_CODE: u8 = 0x07;

#[inline(always)]
const fn is_address(opcode: u8) -> bool {
    matches!(opcode, 0x10..=0x3f)
}

impl<'a> Cursor<'a> {
    /// After the info byte of `input`.
    #[inline]
    pub(super) fn new(input: &'a [u8], word_size: WordSize) -> Self {
        let mut cursor = Self {
            input,
            rest: input.get(1..).unwrap_or_default(),
            held_back: &[],
            base: 0,
            word_mask: word_size.max_address(),
            last_opcode: 0,
            too_wide: if matches!(word_size, WordSize::Bits64) { 0 } else { 0x04 },
            word_is_narrow: matches!(word_size, WordSize::Bits16),
            address_seen: false,
        };
        cursor.leave_slow_path();
        cursor
    }

    /// Restores the input that was held back from the fast path.
    pub(super) fn enter_slow_path(&mut self) {
        if self.rest.is_empty() {
            self.rest = core::mem::take(&mut self.held_back);
        }
        self.address_seen |= is_address(self.last_opcode);
    }

    /// Opens the fast path again, if no address there can be one that only the slow path may judge.
    #[inline]
    pub(super) fn leave_slow_path(&mut self) {
        let is_absolute = |opcode: u8| is_address(opcode) && opcode & ABSOLUTE != 0;
        let has_base = self.address_seen || self.rest.first().is_some_and(|&opcode| is_absolute(opcode));
        if self.word_is_narrow || !has_base {
            self.close_fast_path();
        }
    }

    /// Closes the fast path until the slow path was entered and left.
    #[inline]
    pub(super) fn close_fast_path(&mut self) {
        if !self.rest.is_empty() {
            self.held_back = core::mem::take(&mut self.rest);
        }
    }

    /// Returns the offset of the next instruction, on the slow path.
    pub(super) const fn position(&self) -> usize {
        self.input.len() - self.rest.len()
    }

    /// Returns true if no address was read so far: a relative one has no base.
    pub(super) const fn is_before_first_address(&self) -> bool {
        !self.address_seen
    }

    /// Returns true if only one `end` is left, as in a well-formed record.
    #[inline]
    pub(super) const fn is_at_last_end(&self) -> bool {
        matches!(self.rest, [0x00])
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

    /// Ends the input.
    #[inline]
    pub(super) fn stop(&mut self) {
        self.rest = &[];
        self.held_back = &[];
    }

    /// Returns the next instruction, if it is a plain address.
    ///
    /// An instruction says where the next begins. Computed, that takes a load and two steps, 7
    /// cycles a frame, and the processor can do nothing else meanwhile. Five of six instructions in
    /// real stacks are a return address relative by three, two or four bytes, in this order of
    /// frequency. For these the length is a branch, which the processor predicts and runs past. It
    /// is wrong now and then, yet that costs less than waiting.
    #[inline(always)]
    pub(super) fn address(&mut self) -> Option<Frame> {
        let (&opcode, operand) = self.rest.split_first()?;
        if opcode == 0x22 {
            // Three bytes are loaded as four: after an operand there is at least the end.
            let window = operand.first_chunk::<4>();
            if let (Some(&window), Some(rest)) = (window, operand.get(3..)) {
                self.rest = rest;
                return Some(self.moved(0x22, i64::from(i32::from_be_bytes(window) >> 8)));
            }
            return self.address_of_any_length(opcode, operand);
        }
        if opcode == 0x21 {
            let (&operand, rest) = operand.split_first_chunk()?;
            self.rest = rest;
            return Some(self.moved(0x21, i64::from(i16::from_be_bytes(operand))));
        }
        if opcode == 0x23 {
            let (&operand, rest) = operand.split_first_chunk()?;
            self.rest = rest;
            return Some(self.moved(0x23, i64::from(i32::from_be_bytes(operand))));
        }
        self.address_of_any_length(opcode, operand)
    }

    /// Returns the address instruction `opcode`, without a branch on its length. `operand` is what
    /// follows it.
    #[inline(always)]
    fn address_of_any_length(&mut self, opcode: u8, operand: &'a [u8]) -> Option<Frame> {
        if !is_address(opcode) || opcode & self.too_wide != 0 {
            return None;
        }
        let after = operand.get(1 + usize::from(opcode & OPERAND_CODE)..)?;
        let unused_bits = 56 - 8 * u32::from(opcode & OPERAND_CODE);
        let operand = match operand.first_chunk::<8>() {
            Some(window) => i64::from_be_bytes(*window) >> unused_bits,
            // Close to the end: the eight bytes that end with the operand.
            None => {
                let window = self.input.get(..self.input.len() - after.len())?.last_chunk()?;
                i64::from_be_bytes(*window) << unused_bits >> unused_bits
            }
        };
        self.rest = after;
        Some(self.moved(opcode, operand))
    }

    /// Returns the frame of an address instruction with the low bytes of `window` as operand (slow
    /// path).
    pub(super) fn computed(&mut self, opcode: u8, window: u64) -> Frame {
        let unused_bits = 56 - 8 * u32::from(opcode & OPERAND_CODE);
        self.address_seen = true;
        self.moved(opcode, (window << unused_bits) as i64 >> unused_bits)
    }

    /// Returns the frame of an address instruction with this operand.
    #[inline(always)]
    fn moved(&mut self, opcode: u8, operand: i64) -> Frame {
        let base = if opcode & ABSOLUTE == 0 { self.base } else { 0 };
        self.base = base.wrapping_add_signed(operand) & self.word_mask;
        self.last_opcode = opcode;
        self.last_address()
    }

    /// Returns the frame that the last address instruction made.
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
