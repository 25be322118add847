//! Reads over a path once: checks it, and notes the prefixes that it defines. Its text is not
//! built.

use core::cell::Cell;

use super::MAX_PATH_BYTES;
use super::error::{CifError, CifErrorKind};
use super::opcode::{Cut, Opcode, next_opcode};
use super::paths::{DecoderSlot, FrameworkText, MAX_NESTING, Prefix, PrefixContent, prefix};
use super::prefixes::{FIRST_ASSIGNED_CODE, is_separator};
use super::utf8::{Utf8Part, Utf8Stream};
use cairn_format::bytes::ByteReader;

pub(super) struct PathResult<'a> {
    /// Content after the path.
    pub(super) rest: ByteReader<'a>,
    /// How many prefixes are defined by now.
    pub(super) assigned: usize,
    /// Bytes of text; 0 means that there is no path.
    pub(super) text_length: u32,
    /// The first thing wrong with it, but one that makes the text unreadable before one that does
    /// not.
    pub(super) problem: Option<CifError>,
}

/// The state of reading one path.
///
/// A broken path does not stop the reading: the opcodes still show where it ends and which prefixes
/// the writer counted in it. (Swift 6.2 goes on right after the broken opcode instead, and takes
/// the rest of the path for the next image.)
pub(super) struct PathReader<'a> {
    input: &'a [u8],
    reader: ByteReader<'a>,
    slots: &'a [Cell<DecoderSlot>],
    assigned: usize,
    /// Lengths saturate. That is far above the limit for paths, so whatever holds such a text is
    /// too long as well.
    text_length: u32,
    /// From the first `str` opcode on.
    string_data: Option<StringData>,
    utf8: Utf8Stream,
    problem: Option<CifError>,
    not_utf8: Option<CifError>,
}

/// The part of the text that prefixes are cut from. It begins at the first `str` and includes
/// expansions.
#[derive(Clone, Copy)]
struct StringData {
    opcode_offset: usize,
    text_length: u32,
    nesting: u8,
    /// Input offset from which on it is not UTF-8, or not known at all.
    not_utf8_from: usize,
    unknown_from: usize,
}

impl<'a> PathReader<'a> {
    pub(super) fn new(
        input: &'a [u8],
        reader: ByteReader<'a>,
        slots: &'a [Cell<DecoderSlot>],
        assigned: usize,
    ) -> Self {
        Self {
            input,
            reader,
            slots,
            assigned,
            text_length: 0,
            string_data: None,
            utf8: Utf8Stream::default(),
            problem: None,
            not_utf8: None,
        }
    }

    pub(super) fn read(mut self) -> PathResult<'a> {
        loop {
            let offset = self.reader.position();
            match next_opcode(&mut self.reader) {
                Ok(Opcode::End) => {
                    self.end_of_characters(offset);
                    break;
                }
                Ok(Opcode::Str(text)) => self.str(offset, text),
                Ok(Opcode::Framework { version, name }) => {
                    self.framework(offset, version, name);
                    break;
                }
                Ok(Opcode::Expand(code)) => self.expand(offset, code),
                Err(Cut) => {
                    // Nothing can follow: the rest of the input belongs to the opcode that is cut.
                    self.reader.take(self.reader.rest().len());
                    self.report(self.input.len(), CifErrorKind::Truncated);
                    break;
                }
            }
        }
        if u64::from(self.text_length) > MAX_PATH_BYTES {
            self.report(self.reader.position().saturating_sub(1), CifErrorKind::PathTooLong);
        }
        PathResult {
            rest: self.reader,
            assigned: self.assigned,
            text_length: self.text_length,
            problem: self.problem.or(self.not_utf8),
        }
    }

    fn str(&mut self, offset: usize, text: &[u8]) {
        let mut data = *self.string_data.get_or_insert(StringData {
            opcode_offset: offset,
            text_length: 0,
            nesting: 0,
            not_utf8_from: usize::MAX,
            unknown_from: usize::MAX,
        });
        let text_offset = offset + 1;
        let mut bad_at = None;
        // The closure keeps the first bad byte and goes on, so it has no error to return.
        let _ = self.utf8.feed(text, |part| {
            if let Utf8Part::Invalid(at) = part {
                bad_at.get_or_insert(text_offset + at);
            }
            Ok::<(), core::convert::Infallible>(())
        });
        if let Some(bad_at) = bad_at {
            data.not_utf8_from = data.not_utf8_from.min(bad_at);
            self.report_not_utf8(bad_at);
        }
        self.string_data = Some(data);
        for (at, &byte) in text.iter().enumerate() {
            let is_first = data.text_length == 0 && at == 0;
            if is_separator(byte) && !is_first {
                self.define(data.prefix(text_offset + at, at));
            }
        }
        self.grow(length(text));
    }

    fn define(&mut self, slot: DecoderSlot) {
        if let Some(place) = self.slots.get(self.assigned) {
            place.set(slot);
        }
        self.assigned += 1;
    }

    fn framework(&mut self, offset: usize, version: &[u8], name: &[u8]) {
        self.end_of_characters(offset);
        for part in FrameworkText::new(version, name) {
            self.grow(length(part));
            if core::str::from_utf8(part).is_err() {
                self.report_not_utf8(offset);
            }
        }
    }

    fn expand(&mut self, offset: usize, code: u64) {
        self.end_of_characters(offset);
        match self.resolve(code) {
            Ok(Prefix::Fixed(text)) => self.grow(length(text)),
            Ok(Prefix::Assigned(slot)) => self.expand_assigned(offset, slot),
            Err(kind) => self.unknown_from(offset, kind),
        }
    }

    fn expand_assigned(&mut self, offset: usize, slot: DecoderSlot) {
        self.grow(slot.text_length);
        let nesting = slot.nesting.saturating_add(1);
        match slot.content {
            PrefixContent::Utf8 => {}
            PrefixContent::Bytes => {
                self.report_not_utf8(offset);
                if let Some(data) = &mut self.string_data {
                    data.not_utf8_from = data.not_utf8_from.min(offset);
                }
            }
            PrefixContent::Unknown => return self.unknown_from(offset, CifErrorKind::UnknownPrefixCode),
        }
        if usize::from(nesting) > MAX_NESTING {
            return self.unknown_from(offset, CifErrorKind::PrefixesNestTooDeep);
        }
        if let Some(data) = &mut self.string_data {
            data.nesting = data.nesting.max(nesting);
        }
    }

    fn resolve(&self, code: u64) -> Result<Prefix, CifErrorKind> {
        let index = code.checked_sub(FIRST_ASSIGNED_CODE);
        if index.is_some_and(|index| index >= self.assigned as u64) {
            return Err(CifErrorKind::UnknownPrefixCode);
        }
        prefix(self.slots, code).ok_or(match index {
            Some(_) => CifErrorKind::NoSlotForPrefix,
            None => CifErrorKind::UnknownPrefixCode,
        })
    }

    fn grow(&mut self, length: u32) {
        self.text_length = self.text_length.saturating_add(length);
        if let Some(data) = &mut self.string_data {
            data.text_length = data.text_length.saturating_add(length);
        }
    }

    /// From here on the text of this path is unknown.
    fn unknown_from(&mut self, offset: usize, kind: CifErrorKind) {
        self.report(offset, kind);
        if let Some(data) = &mut self.string_data {
            data.unknown_from = data.unknown_from.min(offset);
        }
    }

    /// A character must be complete where string data is followed by something else.
    fn end_of_characters(&mut self, offset: usize) {
        if self.utf8.finish() {
            return;
        }
        self.report_not_utf8(offset);
        if let Some(data) = &mut self.string_data {
            data.not_utf8_from = data.not_utf8_from.min(offset);
        }
    }

    fn report(&mut self, offset: usize, kind: CifErrorKind) {
        self.problem.get_or_insert(CifError { offset, kind });
    }

    fn report_not_utf8(&mut self, offset: usize) {
        self.not_utf8.get_or_insert(CifError { offset, kind: CifErrorKind::PathNotUtf8 });
    }
}

impl StringData {
    /// Returns the prefix from the start of the string data to a separator `bytes` from here.
    fn prefix(&self, separator_offset: usize, more: usize) -> DecoderSlot {
        let content = if self.unknown_from < separator_offset {
            PrefixContent::Unknown
        } else if self.not_utf8_from <= separator_offset {
            PrefixContent::Bytes
        } else {
            PrefixContent::Utf8
        };
        DecoderSlot {
            start: self.opcode_offset,
            end: separator_offset,
            text_length: self.text_length.saturating_add(u32::try_from(more).unwrap_or(u32::MAX)),
            nesting: self.nesting,
            content,
        }
    }
}

fn length(text: &[u8]) -> u32 {
    u32::try_from(text.len()).unwrap_or(u32::MAX)
}
