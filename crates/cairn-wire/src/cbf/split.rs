//! Where a record ends: for records one after the other in a file, on a wire, or in a log.
//!
//! Swift calls this the accumulator. It looks at nothing but the lengths of instructions, and it
//! works only on records that have an end mark; those of Swift 6.2 have none, and the next record's
//! bytes are taken for more of the first.

use super::{DecodeErrorKind, read_info_byte};

/// Where in a record the accumulator is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Info,
    Instruction,
    /// So many operand bytes (1..=32) are still to come.
    Operand(u8),
    Ended(Ending),
}

/// How a record in a stream ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    /// With `end` or `trunc`.
    Complete,
    /// The data is over, at the end of an instruction or within one.
    Unfinished,
    /// A byte came that cannot be part of a record; it is not in the record. Nothing tells where
    /// the next one begins.
    Refused(DecodeErrorKind),
}

/// What an [`Accumulator`] did with the bytes it was given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Accumulated {
    /// So many bytes at the front belong to the record. After them comes the next one, if this one
    /// is complete.
    pub taken: usize,
    /// How the record ended; [`Ending::Unfinished`] while it wants more bytes.
    pub ending: Ending,
}

/// Finds the end of a record in bytes that arrive in pieces.
///
/// ```
/// use cairn_wire::cbf::{Accumulated, Accumulator, Ending};
///
/// let mut accumulator = Accumulator::new();
/// let first = accumulator.extend(&[0x02, 0x19, 0x10]);
/// assert_eq!(first, Accumulated { taken: 3, ending: Ending::Unfinished });
/// // The operand's last byte and the end; then the next record.
/// let second = accumulator.extend(&[0x00, 0x00, 0x02]);
/// assert_eq!(second, Accumulated { taken: 2, ending: Ending::Complete });
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Accumulator {
    state: State,
}

impl Default for Accumulator {
    fn default() -> Self {
        Self::new()
    }
}

impl Accumulator {
    /// Before the first byte of a record.
    #[must_use]
    pub const fn new() -> Self {
        Self { state: State::Info }
    }

    /// Takes bytes up to the end of the record. Once that has ended, nothing is taken any more.
    pub fn extend(&mut self, bytes: &[u8]) -> Accumulated {
        let mut taken = 0;
        while let Some(&byte) = bytes.get(taken) {
            self.state = match self.state {
                State::Info => match read_info_byte(byte) {
                    Ok(_) => State::Instruction,
                    Err(kind) => State::Ended(Ending::Refused(kind)),
                },
                State::Instruction => after_instruction(byte),
                State::Operand(left) => {
                    let here = bytes.len().saturating_sub(taken).min(left.into());
                    taken += here;
                    self.state = match left - here as u8 {
                        0 => State::Instruction,
                        left => State::Operand(left),
                    };
                    continue;
                }
                State::Ended(_) => break,
            };
            if !matches!(self.state, State::Ended(Ending::Refused(_))) {
                taken += 1;
            }
        }
        Accumulated { taken, ending: self.ending() }
    }

    /// How the record ended; [`Ending::Unfinished`] while it wants more bytes.
    #[must_use]
    pub const fn ending(&self) -> Ending {
        match self.state {
            State::Ended(ending) => ending,
            _ => Ending::Unfinished,
        }
    }
}

/// What follows the instruction `opcode`.
const fn after_instruction(opcode: u8) -> State {
    match opcode {
        0x00 | 0x01 => State::Ended(Ending::Complete),
        0x10..=0x3f | 0x88..=0x8f => State::Operand((opcode & 0x07) + 1),
        0x40..=0x5f | 0x80..=0x87 => State::Instruction,
        0x60..=0x7f => State::Operand((opcode & 0x1f) + 1),
        _ => State::Ended(Ending::Refused(DecodeErrorKind::ReservedOpcode { opcode })),
    }
}

/// One record of several in a slice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record<'a> {
    /// Its bytes, for a [`Decoder`](super::Decoder).
    pub bytes: &'a [u8],
    /// Offset of its first byte in the slice.
    pub offset: usize,
    /// How it ended.
    pub ending: Ending,
}

/// Iterates over the records that lie one after the other in a slice.
///
/// A byte that cannot be part of a record ends the iteration: the last record has
/// [`Ending::Refused`] and the bytes before that byte, perhaps none. The offending byte is at
/// `record.offset + record.bytes.len()`.
///
/// ```
/// use cairn_wire::cbf::{Ending, Records};
///
/// let two = [0x02, 0x18, 0x7f, 0x00, 0x02, 0x01];
/// let records: Vec<_> = Records::new(&two).collect();
/// assert_eq!(records[0].bytes, [0x02, 0x18, 0x7f, 0x00]);
/// assert_eq!((records[1].bytes, records[1].offset), (&two[4..], 4));
/// assert_eq!(records[1].ending, Ending::Complete);
/// ```
#[derive(Clone, Debug)]
pub struct Records<'a> {
    input: &'a [u8],
    position: usize,
}

impl<'a> Records<'a> {
    /// From the first byte of `input`.
    #[must_use]
    pub const fn new(input: &'a [u8]) -> Self {
        Self { input, position: 0 }
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Record<'a>;

    fn next(&mut self) -> Option<Record<'a>> {
        let offset = self.position;
        let rest = self.input.get(offset..).filter(|rest| !rest.is_empty())?;
        let Accumulated { taken, ending } = Accumulator::new().extend(rest);
        self.position = if ending == Ending::Complete { offset + taken } else { self.input.len() };
        Some(Record { bytes: rest.get(..taken).unwrap_or_default(), offset, ending })
    }
}

impl core::iter::FusedIterator for Records<'_> {}
