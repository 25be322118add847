//! Finds the end of a record, for records one after the other in a file, on a wire, or in a log.
//!
//! Swift calls this the accumulator. It reads nothing but the lengths of instructions, and it
//! works only on records that have an end mark; those of Swift 6.2 have none, and the next record's
//! bytes are taken for more of the first.

use super::{CbfErrorKind, read_info_byte};

/// Where in a record the accumulator is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum AccumulatorState {
    Info,
    Instruction,
    /// Number of missing operand bytes (1..=32).
    Operand(u8),
    Ended(RecordEnding),
}

/// How a record in a stream ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RecordEnding {
    /// With `end` or `trunc`.
    Complete,
    /// The data is over, at the end of an instruction or within one.
    Unfinished,
    /// A byte came that cannot be part of a record; it is not in the record. The start of the next
    /// one is unknown.
    Refused(CbfErrorKind),
}

/// Result of passing bytes to an [`Accumulator`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Accumulated {
    /// Number of bytes at the front that belong to the record. After them comes the next one, if
    /// this one is complete.
    pub taken: usize,
    /// How the record ended; [`RecordEnding::Unfinished`] while it wants more bytes.
    pub ending: RecordEnding,
}

/// Finds the end of a record in bytes that arrive in pieces.
///
/// ```
/// use cairn_wire::cbf::{Accumulated, Accumulator, RecordEnding};
///
/// let mut accumulator = Accumulator::new();
/// let first = accumulator.extend(&[0x02, 0x19, 0x10]);
/// assert_eq!(first, Accumulated { taken: 3, ending: RecordEnding::Unfinished });
/// // The operand's last byte and the end; then the next record.
/// let second = accumulator.extend(&[0x00, 0x00, 0x02]);
/// assert_eq!(second, Accumulated { taken: 2, ending: RecordEnding::Complete });
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Accumulator {
    state: AccumulatorState,
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
        Self { state: AccumulatorState::Info }
    }

    /// Takes bytes up to the end of the record. Once that has ended, nothing is taken any more.
    pub fn extend(&mut self, bytes: &[u8]) -> Accumulated {
        let mut taken = 0;
        while let Some(&byte) = bytes.get(taken) {
            self.state = match self.state {
                AccumulatorState::Info => match read_info_byte(byte) {
                    Ok(_) => AccumulatorState::Instruction,
                    Err(kind) => AccumulatorState::Ended(RecordEnding::Refused(kind)),
                },
                AccumulatorState::Instruction => after_instruction(byte),
                AccumulatorState::Operand(left) => {
                    let here = bytes.len().saturating_sub(taken).min(left.into());
                    taken += here;
                    self.state = match left - here as u8 {
                        0 => AccumulatorState::Instruction,
                        left => AccumulatorState::Operand(left),
                    };
                    continue;
                }
                AccumulatorState::Ended(_) => break,
            };
            if !matches!(self.state, AccumulatorState::Ended(RecordEnding::Refused(_))) {
                taken += 1;
            }
        }
        Accumulated { taken, ending: self.ending() }
    }

    /// Returns how the record ended; [`RecordEnding::Unfinished`] while it wants more bytes.
    #[must_use]
    pub const fn ending(&self) -> RecordEnding {
        match self.state {
            AccumulatorState::Ended(ending) => ending,
            _ => RecordEnding::Unfinished,
        }
    }
}

/// Returns what follows the instruction `opcode`.
const fn after_instruction(opcode: u8) -> AccumulatorState {
    match opcode {
        0x00 | 0x01 => AccumulatorState::Ended(RecordEnding::Complete),
        0x10..=0x3f | 0x88..=0x8f => AccumulatorState::Operand((opcode & 0x07) + 1),
        0x40..=0x5f | 0x80..=0x87 => AccumulatorState::Instruction,
        0x60..=0x7f => AccumulatorState::Operand((opcode & 0x1f) + 1),
        _ => AccumulatorState::Ended(RecordEnding::Refused(CbfErrorKind::ReservedOpcode { opcode })),
    }
}

/// One record of several in a slice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CbfRecord<'a> {
    /// Its bytes, for a [`CbfDecoder`](super::CbfDecoder).
    pub bytes: &'a [u8],
    /// Offset of its first byte in the slice.
    pub offset: usize,
    /// How it ended.
    pub ending: RecordEnding,
}

/// Iterates over the records that lie one after the other in a slice.
///
/// A byte that cannot be part of a record ends the iteration: the last record has
/// [`RecordEnding::Refused`] and the bytes before that byte, perhaps none. The offending byte is at
/// `record.offset + record.bytes.len()`.
///
/// ```
/// use cairn_wire::cbf::{RecordEnding, Records};
///
/// let two = [0x02, 0x18, 0x7f, 0x00, 0x02, 0x01];
/// let records: Vec<_> = Records::new(&two).collect();
/// assert_eq!(records[0].bytes, [0x02, 0x18, 0x7f, 0x00]);
/// assert_eq!((records[1].bytes, records[1].offset), (&two[4..], 4));
/// assert_eq!(records[1].ending, RecordEnding::Complete);
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
    type Item = CbfRecord<'a>;

    fn next(&mut self) -> Option<CbfRecord<'a>> {
        let offset = self.position;
        let rest = self.input.get(offset..).filter(|rest| !rest.is_empty())?;
        let Accumulated { taken, ending } = Accumulator::new().extend(rest);
        self.position = if ending == RecordEnding::Complete { offset + taken } else { self.input.len() };
        Some(CbfRecord { bytes: rest.get(..taken).unwrap_or_default(), offset, ending })
    }
}

impl core::iter::FusedIterator for Records<'_> {}
