//! The encoder, for the capturing side: no buffer of its own, one write per instruction, small
//! code.

use core::fmt;

use super::{MAX_REPEATS, info_byte};
use cairn_format::{Frame, Sink, SinkFull, WordSize};

/// Which writer's bytes to make. All three hold the same frames and are read by every version of
/// Swift.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub enum CbfDialect {
    /// As the document says: the first address is absolute, and an end is always written.
    #[default]
    Strict,
    /// The bytes of Swift 6.2: the first address is relative to 0, and `end` is never written. Only
    /// with this dialect the record cannot be found in a stream of records.
    Swift62,
    /// The bytes of newer Swift: the first address is relative to 0, and an end is always written.
    SwiftNewer,
}

/// Why a frame was not written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum CbfEncodeError {
    /// A frame that omits no frames. No instruction says that in its short form, and Swift's
    /// encoder stops the program.
    OmittedNothing,
    /// A number of omitted frames that does not fit in the word. [`CbfDialect::Strict`] only: the
    /// Swift dialects write it, as Swift does, though the document does not allow it.
    OmittedTooWide,
    /// An address that does not fit in the word.
    AddressTooWide,
    /// A frame after [`Frame::Truncated`]. [`CbfDialect::Strict`] only: the Swift dialects drop it,
    /// as Swift does.
    AfterTruncated,
    /// The sink took no more bytes.
    SinkFull,
}

impl fmt::Display for CbfEncodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OmittedNothing => "a frame that omits 0 frames cannot be written; leave it out",
            Self::OmittedTooWide => {
                "the number of omitted frames does not fit in the word size of the record"
            }
            Self::AddressTooWide => "the address does not fit in the word size of the record",
            Self::AfterTruncated => "no frame can follow the truncation mark",
            Self::SinkFull => "the output buffer is full",
        })
    }
}

impl core::error::Error for CbfEncodeError {}

impl From<SinkFull> for CbfEncodeError {
    fn from(SinkFull: SinkFull) -> Self {
        Self::SinkFull
    }
}

/// Writes a whole stack as one record.
///
/// # Errors
///
/// See [`CbfEncodeError`]. With [`CbfEncodeError::AfterTruncated`] the sink holds a complete record
/// of the frames up to and with the truncation mark; with the others it holds an unfinished one.
///
/// ```
/// use cairn_wire::cbf::{CbfDialect, CbfEncodeError, encode};
/// use cairn_format::{AbsoluteAddress, Frame, SliceSink, WordSize};
///
/// let mut buffer = [0; 16];
/// let mut sink = SliceSink::new(&mut buffer);
/// let stack = [Frame::ProgramCounter(AbsoluteAddress::new(0x80))];
/// encode(stack, WordSize::Bits16, CbfDialect::Swift62, &mut sink)?;
/// assert_eq!(sink.written(), [0x00, 0x11, 0x00, 0x80]);
/// # Ok::<(), CbfEncodeError>(())
/// ```
pub fn encode(
    frames: impl IntoIterator<Item = Frame>,
    word_size: WordSize,
    dialect: CbfDialect,
    sink: &mut (impl Sink + ?Sized),
) -> Result<(), CbfEncodeError> {
    let mut encoder = CbfEncoder::new(sink, word_size, dialect)?;
    for frame in frames {
        match encoder.push(frame) {
            Ok(()) => {}
            Err(CbfEncodeError::AfterTruncated) => {
                encoder.finish()?;
                return Err(CbfEncodeError::AfterTruncated);
            }
            Err(error) => return Err(error),
        }
    }
    encoder.finish()?;
    Ok(())
}

/// Writes a stack frame by frame, as an unwinder finds it.
///
/// Equal frames in a row are counted and written as one `rep` when another frame or the end comes.
/// An encoder is a handful of words and never waits, allocates or panics: made for interrupt
/// handlers and microcontrollers.
///
/// A frame that [`push`](Self::push) refuses leaves no trace: the caller may skip it and go on.
///
/// ```
/// use cairn_wire::cbf::{CbfDialect, CbfEncodeError, CbfEncoder};
/// use cairn_format::{AbsoluteAddress, Frame, SliceSink, WordSize};
///
/// let mut buffer = [0; 32];
/// let mut encoder = CbfEncoder::new(SliceSink::new(&mut buffer), WordSize::Bits32, CbfDialect::Strict)?;
/// encoder.push(Frame::ProgramCounter(AbsoluteAddress::new(0x8000_0000)))?;
/// encoder.push(Frame::ReturnAddress(AbsoluteAddress::new(0x8000_0010)))?;
/// encoder.push_run(Frame::ReturnAddress(AbsoluteAddress::new(0x7000)), 300)?;
/// let sink = encoder.finish()?;
/// assert_eq!(
///     sink.written(),
///     [0x01, 0x1b, 0x80, 0, 0, 0, 0x20, 0x10, 0x29, 0x70, 0x00, 0x89, 0x01, 0x2b, 0x00],
/// );
/// # Ok::<(), CbfEncodeError>(())
/// ```
#[derive(Clone, Debug)]
pub struct CbfEncoder<S> {
    sink: S,
    word_size: WordSize,
    dialect: CbfDialect,
    /// Whether a relative address is allowed: in [`CbfDialect::Strict`] not for the first.
    relative_allowed: bool,
    /// The last address written; relative operands count from it.
    base: u64,
    /// Opcode and number of the last frame written; see `parts`.
    previous: (u8, u64),
    /// How many times the last frame came again since.
    repeats: u64,
}

// The opcodes of the frames, each with the bits for the form and the operand length at zero.
const NONE: u8 = 0x00;
const TRUNCATED: u8 = 0x01;
const PROGRAM_COUNTER: u8 = 0x10;
const RETURN_ADDRESS: u8 = 0x20;
const ASYNC_RESUME_POINT: u8 = 0x30;
const ANY_ADDRESS: u8 = 0x30;
const OMITTED: u8 = 0x40;

/// Returns a frame as opcode and number, so that one piece of code serves all three kinds of
/// address.
#[inline]
const fn parts(frame: Frame) -> (u8, u64) {
    match frame {
        Frame::ProgramCounter(address) => (PROGRAM_COUNTER, address.value()),
        Frame::ReturnAddress(address) => (RETURN_ADDRESS, address.value()),
        Frame::AsyncResumePoint(address) => (ASYNC_RESUME_POINT, address.value()),
        Frame::Omitted(count) => (OMITTED, count),
        Frame::Truncated => (TRUNCATED, 0),
    }
}

impl<S: Sink> CbfEncoder<S> {
    /// Starts a record: writes its info byte.
    ///
    /// # Errors
    ///
    /// [`CbfEncodeError::SinkFull`].
    pub fn new(mut sink: S, word_size: WordSize, dialect: CbfDialect) -> Result<Self, CbfEncodeError> {
        sink.put(&[info_byte(word_size)])?;
        Ok(Self {
            sink,
            word_size,
            dialect,
            relative_allowed: dialect != CbfDialect::Strict,
            base: 0,
            previous: (NONE, 0),
            repeats: 0,
        })
    }

    /// Adds the next frame outward.
    ///
    /// # Errors
    ///
    /// See [`CbfEncodeError`]; the frame is then not in the record, and nothing else has changed.
    #[inline]
    pub fn push(&mut self, frame: Frame) -> Result<(), CbfEncodeError> {
        let parts = parts(frame);
        if parts == self.previous && frame != Frame::Truncated {
            self.repeats = self.repeats.saturating_add(1);
            return Ok(());
        }
        let (opcode, number) = parts;
        let instruction = if opcode & ANY_ADDRESS != 0 && self.previous.0 != TRUNCATED {
            self.address(opcode, number)?
        } else {
            match self.other(opcode, number)? {
                Some(instruction) => instruction,
                None => return Ok(()),
            }
        };
        if self.repeats > 0 {
            self.write_repeats()?;
        }
        self.sink.put_front(instruction.bytes, instruction.length)?;
        self.previous = parts;
        if opcode & ANY_ADDRESS != 0 {
            self.base = number;
            self.relative_allowed = true;
        }
        Ok(())
    }

    /// Adds the same frame `count` times, at the cost of one. With 0 nothing happens.
    ///
    /// # Errors
    ///
    /// As [`push`](Self::push).
    pub fn push_run(&mut self, frame: Frame, count: u64) -> Result<(), CbfEncodeError> {
        let Some(more) = count.checked_sub(1) else { return Ok(()) };
        self.push(frame)?;
        if more > 0 && frame == Frame::Truncated {
            return self.push(frame);
        }
        self.repeats = self.repeats.saturating_add(more);
        Ok(())
    }

    /// Ends the record and returns the sink.
    ///
    /// # Errors
    ///
    /// [`CbfEncodeError::SinkFull`].
    pub fn finish(mut self) -> Result<S, CbfEncodeError> {
        self.write_repeats()?;
        if self.previous.0 != TRUNCATED && self.dialect != CbfDialect::Swift62 {
            self.sink.put(&[0x00])?;
        }
        Ok(self.sink)
    }

    /// Returns the shorter of the absolute and the relative form; on a tie the relative one, as
    /// Swift.
    #[inline]
    fn address(&self, opcode: u8, address: u64) -> Result<Instruction, CbfEncodeError> {
        if address > self.word_size.max_address() {
            return Err(CbfEncodeError::AddressTooWide);
        }
        let absolute = self.word_size.sign_extend(address);
        let relative = self.word_size.sign_extend(address.wrapping_sub(self.base));
        let (absolute_bytes, relative_bytes) = (signed_bytes(absolute), signed_bytes(relative));
        let (opcode, operand, bytes) = if absolute_bytes < relative_bytes || !self.relative_allowed {
            (opcode | 0x08, absolute, absolute_bytes)
        } else {
            (opcode, relative, relative_bytes)
        };
        Ok(Instruction::with_operand(opcode, operand as u64, bytes))
    }

    /// Returns everything that is rare: what is no address, and what comes after the truncation
    /// mark.
    #[cold]
    fn other(&self, opcode: u8, number: u64) -> Result<Option<Instruction>, CbfEncodeError> {
        match (self.previous.0, opcode) {
            (TRUNCATED, _) if self.dialect == CbfDialect::Strict => Err(CbfEncodeError::AfterTruncated),
            (TRUNCATED, _) => Ok(None),
            (_, OMITTED) => self.omit(number).map(Some),
            _ => Ok(Some(Instruction::bare(TRUNCATED))),
        }
    }

    /// Writes counts up to 31 inside the instruction. 32 would fit too, but Swift writes it
    /// outside, and the bytes must be the same.
    fn omit(&self, count: u64) -> Result<Instruction, CbfEncodeError> {
        match count {
            0 => Err(CbfEncodeError::OmittedNothing),
            1..=31 => Ok(Instruction::bare(OMITTED | (count as u8 - 1))),
            _ if self.dialect == CbfDialect::Strict && count > self.word_size.max_address() => {
                Err(CbfEncodeError::OmittedTooWide)
            }
            _ => Ok(Instruction::with_operand(OMITTED | 0x20, count, unsigned_bytes(count))),
        }
    }

    /// Writes the waiting repeats, in portions that the readers of this dialect accept.
    #[cold]
    fn write_repeats(&mut self) -> Result<(), CbfEncodeError> {
        while self.repeats > 0 {
            let portion = self.repeats.min(self.longest_repeat());
            let instruction = match portion {
                1..=8 => Instruction::bare(0x80 | (portion as u8 - 1)),
                _ => Instruction::with_operand(0x88, portion, unsigned_bytes(portion)),
            };
            self.sink.put_front(instruction.bytes, instruction.length)?;
            self.repeats -= portion;
        }
        Ok(())
    }

    /// Swift 6.2 writes any number in one `rep`. Newer Swift stays one below what it accepts, and
    /// the document lets no operand be wider than the word.
    fn longest_repeat(&self) -> u64 {
        match self.dialect {
            CbfDialect::Strict => (MAX_REPEATS - 1).min(self.word_size.max_address()),
            CbfDialect::Swift62 => u64::MAX,
            CbfDialect::SwiftNewer => MAX_REPEATS - 1,
        }
    }
}

/// One instruction with its operand, so that the sink is called once for each.
struct Instruction {
    /// The opcode is the top byte, the operand follows.
    bytes: u128,
    length: usize,
}

impl Instruction {
    const fn bare(opcode: u8) -> Self {
        Self { bytes: (opcode as u128) << 120, length: 1 }
    }

    /// Writes the `operand_bytes` (1..=8) low bytes of `operand`, most significant first. The
    /// opcode carries their number less one.
    #[inline]
    const fn with_operand(opcode: u8, operand: u64, operand_bytes: u32) -> Self {
        let opcode = opcode | (operand_bytes - 1) as u8;
        // Moved to the top, so that the operand comes right after the opcode, whatever its length.
        let operand = operand << (64 - 8 * operand_bytes);
        let bytes = (opcode as u128) << 120 | (operand as u128) << 56;
        Self { bytes, length: 1 + operand_bytes as usize }
    }
}

/// Returns bytes of the shortest two's complement form: 1 for 0 and -1, 2 for 0x80.
const fn signed_bytes(value: i64) -> u32 {
    let magnitude = value ^ (value >> 63);
    8 - (magnitude.leading_zeros() - 1) / 8
}

/// Returns bytes without leading zeros; 1 for 0.
const fn unsigned_bytes(value: u64) -> u32 {
    8 - (value | 1).leading_zeros() / 8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cbf_operand_length_grows_when_byte_is_full() {
        for (value, length) in [
            (0, 1),
            (0x7f, 1),
            (0x80, 2),
            (-1, 1),
            (-0x80, 1),
            (-0x81, 2),
            (0x7fff, 2),
            (0x8000, 3),
            (i64::MAX, 8),
            (i64::MIN, 8),
        ] {
            assert_eq!(signed_bytes(value), length, "signed {value:#x}");
        }
        for (value, length) in [(0, 1), (1, 1), (0xff, 1), (0x100, 2), (0x1_0000, 3), (u64::MAX, 8)] {
            assert_eq!(unsigned_bytes(value), length, "unsigned {value:#x}");
        }
    }
}
