//! The decoder: an iterator over borrowed bytes, strict or lenient, with repeats expanded lazily.
//!
//! Plain addresses go the fast path through [`Cursor`]; all that it declines is decided here.

use core::iter::FusedIterator;

use super::cursor::Cursor;
use super::{CbfError, CbfErrorKind, CbfFindings, MAX_REPEATS, read_info_byte};
use cairn_format::{Frame, WordSize};

/// Rules for the input that a decoder accepts.
///
/// | | relative first address, wide operand, `rep` of 0, data after the end | other errors | no end mark |
/// |---|---|---|---|
/// | [`STRICT`](Self::STRICT) | error | error | accepted |
/// | [`LENIENT`](Self::LENIENT) | accepted, noted in [`CbfFindings`] | `Truncated`, noted | accepted |
/// | [`SWIFT_62`](Self::SWIFT_62), [`SWIFT_NEWER`](Self::SWIFT_NEWER) | as lenient | as lenient | `Truncated` |
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rules {
    tolerant: bool,
    missing_end_truncates: bool,
    /// Swift 6.2 stores counts as signed numbers, and repeats once for a negative one.
    signed_repeats: bool,
    repeat_limit: u64,
}

impl Rules {
    /// Refuses everything that the document does not allow. A missing end is allowed by it; ask
    /// [`CbfDecoder::end`].
    pub const STRICT: Self = Self {
        tolerant: false,
        missing_end_truncates: false,
        signed_repeats: false,
        repeat_limit: MAX_REPEATS,
    };

    /// Yields all frames that can be decoded. An error in the middle becomes a last
    /// [`Frame::Truncated`]; the iterator yields no `Err`. A bad info byte gives no frames at all,
    /// because nothing after it can be understood.
    pub const LENIENT: Self =
        Self { tolerant: true, missing_end_truncates: false, signed_repeats: false, repeat_limit: u64::MAX };

    /// Reads the frames that Swift 6.2 shows. This includes the `Truncated` that it adds when the
    /// end is missing, as it is in all records that Swift 6.2 itself wrote.
    pub const SWIFT_62: Self =
        Self { tolerant: true, missing_end_truncates: true, signed_repeats: true, repeat_limit: u64::MAX };

    /// Reads the frames that newer Swift shows. These are as for [`SWIFT_62`](Self::SWIFT_62), with
    /// `Truncated` in place of a repeat of more than [`MAX_REPEATS`].
    pub const SWIFT_NEWER: Self = Self {
        tolerant: true,
        missing_end_truncates: true,
        signed_repeats: false,
        repeat_limit: MAX_REPEATS,
    };

    /// Returns the same rules with another highest number for one `rep`. Above it: an error, or
    /// `Truncated` when lenient.
    ///
    /// ```
    /// use cairn_wire::cbf::{CbfDecoder, Rules};
    /// let rules = Rules::LENIENT.with_repeat_limit(1000);
    /// assert_eq!(CbfDecoder::new(&[0x02, 0x18, 0x7f, 0x89, 0xff, 0xff, 0x00], rules).count(), 2);
    /// ```
    #[must_use]
    pub const fn with_repeat_limit(mut self, limit: u64) -> Self {
        self.repeat_limit = limit;
        self
    }
}

/// How the record ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// With `end`: the stack is complete.
    End,
    /// With `trunc`: the stack goes on, but was not recorded.
    Truncated,
    /// Without either: the data is over, an error came first, or the decoder is not there yet.
    None,
}

/// State of the decoder once the fast path is closed.
#[derive(Clone, Copy, Debug)]
enum Stage {
    Reading,
    /// Everything before is yielded; this error is pending.
    Failed(CbfError),
    Done,
}

/// Iterates over the frames of one record.
///
/// Repeats are expanded one frame at a time, and a few bytes can claim 2^63 of them: take as many
/// as are wanted, or use [`runs`](Self::runs), which costs no more than the record is long. After
/// an error the iterator ends.
///
/// Adapters that take all frames (`for_each`, `fold`, `extend`, `map` before them) are somewhat
/// faster than a `for` loop.
///
/// ```
/// use cairn_wire::cbf::{CbfDecoder, End, Rules};
/// use cairn_format::{AbsoluteAddress, Frame};
///
/// let mut decoder = CbfDecoder::new(&[0x02, 0x19, 0x10, 0x00, 0x43, 0x00], Rules::STRICT);
/// assert_eq!(decoder.next(), Some(Ok(Frame::ProgramCounter(AbsoluteAddress::new(0x1000)))));
/// assert_eq!(decoder.next(), Some(Ok(Frame::Omitted(4))));
/// assert_eq!(decoder.next(), None);
/// assert_eq!(decoder.end(), End::End);
/// ```
#[derive(Clone, Debug)]
pub struct CbfDecoder<'a> {
    cursor: Cursor<'a>,
    /// Operand of the last frame, if that was an `omit`.
    omitted: u64,
    /// Number of pending repeats of the last frame.
    repeats: u64,
    word_size: Option<WordSize>,
    rules: Rules,
    stage: Stage,
    end: End,
    findings: CbfFindings,
}

impl<'a> CbfDecoder<'a> {
    /// Creates a decoder of the record that is `input`. Reads the info byte; if that is bad, the
    /// first item is the error.
    #[must_use]
    #[inline]
    pub fn new(input: &'a [u8], rules: Rules) -> Self {
        match input.first().map(|&info| read_info_byte(info)) {
            Some(Ok(word_size)) => Self::behind_info_byte(input, Some(word_size), rules),
            Some(Err(kind)) => Self::refused(input, kind, rules),
            None => Self::refused(input, CbfErrorKind::Empty, rules),
        }
    }

    #[inline]
    fn behind_info_byte(input: &'a [u8], word_size: Option<WordSize>, rules: Rules) -> Self {
        Self {
            cursor: Cursor::new(input, word_size.unwrap_or(WordSize::Bits64)),
            omitted: 0,
            repeats: 0,
            word_size,
            rules,
            stage: Stage::Reading,
            end: End::None,
            findings: CbfFindings::default(),
        }
    }

    #[cold]
    fn refused(input: &'a [u8], kind: CbfErrorKind, rules: Rules) -> Self {
        let mut decoder = Self::behind_info_byte(input, None, rules);
        let error = CbfError { offset: 0, kind };
        decoder.stop_reading(if rules.tolerant { Stage::Done } else { Stage::Failed(error) });
        decoder.findings.stopped_by = rules.tolerant.then_some(error);
        decoder
    }

    /// Returns the word size that the info byte states, or `None` when that byte is bad.
    #[must_use]
    pub const fn word_size(&self) -> Option<WordSize> {
        self.word_size
    }

    /// Returns the end mark, known once the iterator has ended.
    #[must_use]
    pub const fn end(&self) -> End {
        self.end
    }

    /// Returns what was tolerated so far. Always empty with [`Rules::STRICT`].
    #[must_use]
    pub const fn findings(&self) -> &CbfFindings {
        &self.findings
    }

    /// Returns the same frames with repeats as numbers.
    #[must_use]
    pub const fn runs(self) -> Runs<'a> {
        Runs { decoder: self }
    }

    /// Returns the frame yielded last, to be repeated.
    #[inline]
    const fn last_frame(&self) -> Frame {
        if self.cursor.last_opcode < 0x40 { self.cursor.last_address() } else { Frame::Omitted(self.omitted) }
    }

    /// Returns the next frame that the fast path cannot handle.
    ///
    /// By value, so that the address of a decoder never leaves the loop over it: then its cursor
    /// can stay in registers.
    #[inline(never)]
    fn next_slowly(mut self) -> (Self, Option<Result<Frame, CbfError>>) {
        if self.repeats > 0 {
            self.repeats -= 1;
            let last = self.last_frame();
            return (self, Some(Ok(last)));
        }
        let item = self.instruction();
        if let Some(Ok((_, count))) = item {
            self.repeats = count - 1;
        }
        if self.repeats > 0 {
            self.cursor.close_fast_path();
        }
        (self, item.map(|item| item.map(|(frame, _)| frame)))
    }

    /// Returns the next instruction, whatever it is: a frame and how many times it comes in a row.
    fn instruction(&mut self) -> Option<Result<(Frame, u64), CbfError>> {
        self.cursor.enter_slow_path();
        let item = match self.stage {
            Stage::Reading => self.read_instruction(),
            Stage::Failed(error) => {
                self.stage = Stage::Done;
                Some(Err(error))
            }
            Stage::Done => None,
        };
        self.cursor.leave_slow_path();
        item
    }

    fn read_instruction(&mut self) -> Option<Result<(Frame, u64), CbfError>> {
        let offset = self.cursor.position();
        let Ok(&[opcode]) = self.cursor.take(1) else {
            self.stop_reading(Stage::Done);
            return self.rules.missing_end_truncates.then_some(Ok((Frame::Truncated, 1)));
        };
        let item = match opcode {
            0x00 | 0x01 => {
                self.finish(opcode, offset);
                return match (opcode, self.stage) {
                    (0x01, _) => Some(Ok((Frame::Truncated, 1))),
                    (_, Stage::Failed(error)) => {
                        self.stage = Stage::Done;
                        Some(Err(error))
                    }
                    _ => None,
                };
            }
            0x10..=0x3f => self.address(opcode, offset).map(|frame| (frame, 1)),
            0x40..=0x7f => self.omit(opcode, offset).map(|frame| (frame, 1)),
            0x80..=0x8f => self.repeat(opcode, offset).map(|count| (self.last_frame(), count)),
            _ => Err(CbfError { offset, kind: CbfErrorKind::ReservedOpcode { opcode } }),
        };
        Some(item.or_else(|error| self.fail(error)))
    }

    /// Returns one of the three kinds of address, by the rules.
    fn address(&mut self, opcode: u8, offset: usize) -> Result<Frame, CbfError> {
        let operand = self.operand((opcode & 0x07) + 1, offset)?;
        if opcode & 0x08 == 0 && self.cursor.is_before_first_address() {
            self.tolerate(offset, CbfErrorKind::FirstAddressRelative)?;
        }
        // The last eight bytes are enough: those before would be cut off by the word.
        let window = operand.iter().fold(0, |value, &byte| value << 8 | u64::from(byte));
        Ok(self.cursor.computed(opcode, window))
    }

    /// Returns a number of omitted frames.
    fn omit(&mut self, opcode: u8, offset: usize) -> Result<Frame, CbfError> {
        let number = (opcode & 0x1f) + 1;
        self.omitted = if opcode & 0x20 == 0 { number.into() } else { self.unsigned(number, offset)? };
        self.cursor.last_opcode = opcode;
        Ok(Frame::Omitted(self.omitted))
    }

    /// Returns how many times a `rep` instruction repeats the last frame.
    fn repeat(&mut self, opcode: u8, offset: usize) -> Result<u64, CbfError> {
        if self.cursor.last_opcode == 0 {
            return Err(CbfError { offset, kind: CbfErrorKind::RepeatFirst });
        }
        let number = (opcode & 0x07) + 1;
        if opcode & 0x08 == 0 {
            return Ok(number.into());
        }
        let count = self.unsigned(number, offset)?;
        if count == 0 {
            self.tolerate(offset, CbfErrorKind::ZeroRepeat)?;
            return Ok(1);
        }
        if count > self.rules.repeat_limit {
            return Err(CbfError { offset, kind: CbfErrorKind::RepeatTooLarge });
        }
        if count > MAX_REPEATS && self.rules.tolerant {
            self.findings.note(CbfError { offset, kind: CbfErrorKind::RepeatTooLarge });
        }
        let is_negative = count > i64::MAX as u64;
        Ok(if self.rules.signed_repeats && is_negative { 1 } else { count })
    }

    /// Returns a number; of more than eight bytes the last eight, as Swift has it.
    fn unsigned(&mut self, operand_bytes: u8, offset: usize) -> Result<u64, CbfError> {
        let operand = self.operand(operand_bytes, offset)?;
        Ok(operand.iter().fold(0, |value, &byte| value << 8 | u64::from(byte)))
    }

    /// Returns the bytes after the instruction at `offset`.
    fn operand(&mut self, operand_bytes: u8, offset: usize) -> Result<&'a [u8], CbfError> {
        let operand = self.cursor.take(operand_bytes.into()).map_err(|found| {
            let kind = CbfErrorKind::TruncatedOperand { expected: operand_bytes, found: found as u8 };
            CbfError { offset, kind }
        })?;
        if usize::from(operand_bytes) > self.word_size.map_or(0, WordSize::bytes) {
            self.tolerate(offset, CbfErrorKind::OperandTooWide)?;
        }
        Ok(operand)
    }

    /// Notes a deviation, or refuses it.
    fn tolerate(&mut self, offset: usize, kind: CbfErrorKind) -> Result<(), CbfError> {
        let error = CbfError { offset, kind };
        if self.rules.tolerant {
            self.findings.note(error);
            Ok(())
        } else {
            Err(error)
        }
    }

    /// An end mark at `offset`. In strict mode surplus data leaves an error pending.
    fn finish(&mut self, opcode: u8, offset: usize) {
        self.end = if opcode == 0x00 { End::End } else { End::Truncated };
        let after = offset + 1;
        let stage = if self.cursor.is_empty() {
            Stage::Done
        } else {
            match self.tolerate(after, CbfErrorKind::TrailingData) {
                Ok(()) => Stage::Done,
                Err(error) => Stage::Failed(error),
            }
        };
        self.stop_reading(stage);
    }

    /// Returns an error after which nothing can be read.
    fn fail(&mut self, error: CbfError) -> Result<(Frame, u64), CbfError> {
        self.stop_reading(Stage::Done);
        if self.rules.tolerant {
            self.findings.stopped_by = Some(error);
            return Ok((Frame::Truncated, 1));
        }
        Err(error)
    }

    /// Closes the fast path too: there is nothing to read at the end of the input.
    #[inline]
    fn stop_reading(&mut self, stage: Stage) {
        self.stage = stage;
        self.cursor.stop();
    }
}

impl Iterator for CbfDecoder<'_> {
    type Item = Result<Frame, CbfError>;

    // Always: as a call, each frame would travel through memory twice, which takes longer than
    // decoding it.
    #[inline(always)]
    fn next(&mut self) -> Option<Self::Item> {
        // While repeats are pending the fast path is closed, so it needs no test for them.
        if let Some(frame) = self.cursor.address() {
            return Some(Ok(frame));
        }
        if self.cursor.is_at_last_end() {
            self.end = End::End;
            self.stop_reading(Stage::Done);
            return None;
        }
        let (decoder, item) = self.clone().next_slowly();
        *self = decoder;
        item
    }

    /// Reads plain addresses in an inner loop; compilers handle that better than one loop for all.
    fn fold<B, F: FnMut(B, Self::Item) -> B>(mut self, init: B, mut f: F) -> B {
        let mut result = init;
        loop {
            let mut cursor = self.cursor;
            while let Some(frame) = cursor.address() {
                result = f(result, Ok(frame));
            }
            if cursor.is_at_last_end() {
                return result;
            }
            self.cursor = cursor;
            let (decoder, item) = self.next_slowly();
            self = decoder;
            match item {
                Some(item) => result = f(result, item),
                None => return result,
            }
        }
    }

    /// Bounds the number of frames; the lower bound counts few repeats. A `Vec` reserves the lower
    /// bound, and a few hostile bytes must not reserve gigabytes.
    fn size_hint(&self) -> (usize, Option<usize>) {
        const MOST_PROMISED: u64 = 1024;
        (self.repeats.min(MOST_PROMISED) as usize, None)
    }

    /// Counts repeats without walking through them.
    fn count(self) -> usize {
        self.runs().fold(0, |total, run| {
            let frames = run.map_or(1, |(_, count)| usize::try_from(count).unwrap_or(usize::MAX));
            total.saturating_add(frames)
        })
    }

    /// Steps over repeats without walking through them.
    fn nth(&mut self, count: usize) -> Option<Self::Item> {
        let mut count = count as u64;
        while count > 0 {
            let skipped = self.repeats.min(count);
            self.repeats -= skipped;
            count -= skipped;
            if count > 0 {
                let _skipped = self.next()?;
                count -= 1;
            }
        }
        self.next()
    }
}

impl FusedIterator for CbfDecoder<'_> {}

/// Iterates over the frames of one record, each with the number of times it comes in a row.
///
/// One item for each instruction: a frame that is repeated gives one item for itself and another
/// for each `rep`. The cost is bounded by the length of the record, whatever the repeats claim.
///
/// ```
/// use cairn_wire::cbf::{CbfDecoder, Rules};
/// use cairn_format::{AbsoluteAddress, Frame};
///
/// let frame = Frame::ReturnAddress(AbsoluteAddress::new(0x7f));
/// let mut runs = CbfDecoder::new(&[0x02, 0x28, 0x7f, 0x8a, 0x10, 0x00, 0x01, 0x00], Rules::STRICT).runs();
/// assert_eq!(runs.next(), Some(Ok((frame, 1))));
/// assert_eq!(runs.next(), Some(Ok((frame, 1_048_577))));
/// assert_eq!(runs.next(), None);
/// ```
#[derive(Clone, Debug)]
pub struct Runs<'a> {
    decoder: CbfDecoder<'a>,
}

impl Runs<'_> {
    /// Returns the end mark, known once the iterator has ended.
    #[must_use]
    pub const fn end(&self) -> End {
        self.decoder.end
    }

    /// Returns what was tolerated so far.
    #[must_use]
    pub const fn findings(&self) -> &CbfFindings {
        &self.decoder.findings
    }
}

impl Iterator for Runs<'_> {
    type Item = Result<(Frame, u64), CbfError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let decoder = &mut self.decoder;
        if decoder.repeats > 0 {
            // The decoder was in the middle of a run when it was turned into this.
            return Some(Ok((decoder.last_frame(), core::mem::take(&mut decoder.repeats))));
        }
        if let Some(frame) = decoder.cursor.address() {
            return Some(Ok((frame, 1)));
        }
        decoder.instruction()
    }
}

impl FusedIterator for Runs<'_> {}
