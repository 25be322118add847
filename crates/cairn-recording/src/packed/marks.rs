//! Chunks of marks: each is readable without the ones before it, so that a window of time costs
//! what is in it.
//!
//! A mark's stack, text and the like are together one entry of a dictionary of the chunk: few marks
//! are the first of their kind. Columns: times (nanoseconds since the mark before), positions (how
//! many allocations and frees came since the mark before), ordinals (how many rarer events did),
//! runs of threads (thread, marks), entries (0 for a new one, else one more than its number), the
//! dictionary, and values.

use std::collections::HashMap;

use cairn_format::recording::MarkValue;

use super::columns::{Put, Take};
use super::rows::EventPlace;
use crate::model::{At, Mark, StackId, ThreadId};
use crate::packed::heap_events::Filled;

const CHUNK_MARKS: u32 = 1 << 15;
const LONG_COLUMNS: usize = 1 << 20;

const INTEGER: u8 = 1;
const FLOAT: u8 = 2;
const CUT: u8 = 4;

/// Turns marks into chunks.
#[derive(Default)]
pub(crate) struct MarkEncoder {
    marks: u32,
    first_nanos: u64,
    nanos: u64,
    place: EventPlace,
    first_place: EventPlace,
    run_thread: u32,
    run_marks: u64,
    times: Vec<u8>,
    positions: Vec<u8>,
    ordinals: Vec<u8>,
    runs: Vec<u8>,
    entries: Vec<u8>,
    dictionary: Vec<u8>,
    values: Vec<u8>,
    known: HashMap<Vec<u8>, u32>,
    entry: Vec<u8>,
}

impl MarkEncoder {
    pub(crate) fn is_full(&self) -> bool {
        self.marks >= CHUNK_MARKS
            || self.dictionary.len() + self.values.len() + self.times.len() + self.positions.len()
                > LONG_COLUMNS
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.marks == 0
    }

    pub(crate) fn mark(&mut self, mark: &Mark<'_>, place: EventPlace) {
        let nanos = mark.at.nanos;
        if self.marks == 0 {
            (self.first_nanos, self.nanos) = (nanos, nanos);
            (self.first_place, self.place) = (place, place);
            self.run_thread = mark.at.thread.0;
        }
        self.marks += 1;
        self.times.put_number(nanos.saturating_sub(self.nanos));
        self.nanos = self.nanos.max(nanos);
        self.positions.put_number(place.position - self.place.position);
        self.ordinals.put_number(place.ordinal - self.place.ordinal);
        self.place = EventPlace { position: place.position, ordinal: place.ordinal + 1 };
        if self.run_thread != mark.at.thread.0 {
            self.end_run();
            self.run_thread = mark.at.thread.0;
        }
        self.run_marks += 1;
        self.entry.clear();
        let (kind, bits) = match mark.value {
            MarkValue::Integer(value) => (INTEGER, value as u64),
            MarkValue::Float(value) => (FLOAT, value.to_bits()),
            _ => (0, 0),
        };
        self.entry.push(kind | if mark.is_cut { CUT } else { 0 });
        self.entry.put_number(mark.stack.0.into());
        self.entry.put_number(mark.skip.into());
        self.entry.put_bytes(mark.text);
        match self.known.get(&self.entry) {
            Some(&number) => self.entries.put_number(u64::from(number) + 1),
            None => {
                self.entries.put_number(0);
                self.dictionary.extend_from_slice(&self.entry);
                self.known.insert(self.entry.clone(), self.known.len() as u32);
            }
        }
        match kind {
            INTEGER => self.values.put_signed(bits as i64),
            FLOAT => self.values.extend(bits.to_le_bytes()),
            _ => {}
        }
    }

    fn end_run(&mut self) {
        if self.run_marks > 0 {
            self.runs.put_number(self.run_thread.into());
            self.runs.put_number(self.run_marks);
            self.run_marks = 0;
        }
    }

    pub(crate) fn flush(&mut self, into: &mut Vec<u8>) -> Filled {
        self.end_run();
        into.put_number(self.first_nanos);
        into.put_number(self.first_place.position);
        into.put_number(self.first_place.ordinal);
        for column in [
            &mut self.times,
            &mut self.positions,
            &mut self.ordinals,
            &mut self.runs,
            &mut self.entries,
            &mut self.dictionary,
            &mut self.values,
        ] {
            into.put_bytes(column);
            column.clear();
        }
        self.known.clear();
        let filled = Filled { events: self.marks, first_nanos: self.first_nanos };
        self.marks = 0;
        filled
    }
}

/// Maximum marks of a chunk, so that a small file cannot claim many.
const MOST_MARKS: u32 = 1 << 18;

/// The marks of one chunk.
#[derive(Default)]
pub(crate) struct ReadMarks {
    marks: Vec<ReadMark>,
    texts: Vec<u8>,
}

#[derive(Clone, Copy)]
struct ReadMark {
    place: EventPlace,
    at: At,
    value: MarkValue,
    entry: Entry,
}

#[derive(Clone, Copy)]
struct Entry {
    flags: u8,
    stack: u32,
    skip: u16,
    text_start: u32,
    text_length: u32,
}

impl ReadMarks {
    /// Replaces the marks by those of a chunk; the ones in front of what cannot be read stay.
    pub(crate) fn read(&mut self, payload: &[u8], marks: u32) -> Result<(), &'static str> {
        self.marks.clear();
        self.texts.clear();
        if marks > MOST_MARKS {
            return Err("it claims more marks than a chunk may have");
        }
        self.read_columns(payload, marks).ok_or("its columns contradict each other")
    }

    fn read_columns(&mut self, payload: &[u8], marks: u32) -> Option<()> {
        let mut take = Take::new(payload);
        let mut nanos = take.number()?;
        let mut place = EventPlace { position: take.number()?, ordinal: take.number()? };
        let [mut times, mut positions, mut ordinals, mut runs, mut entries, mut dictionary, mut values] = [
            take.column()?,
            take.column()?,
            take.column()?,
            take.column()?,
            take.column()?,
            take.column()?,
            take.column()?,
        ]
        .map(Take::new);
        let mut known: Vec<Entry> = Vec::new();
        let mut run = (0, 0_u64);
        for _ in 0..marks {
            nanos = nanos.checked_add(times.number()?)?;
            place.position = place.position.checked_add(positions.number()?)?;
            place.ordinal = place.ordinal.checked_add(ordinals.number()?)?;
            if run.1 == 0 {
                run = (runs.number32()?, runs.number()?);
            }
            run.1 = run.1.checked_sub(1)?;
            let entry = match entries.number()? {
                0 => {
                    let entry = self.entry(&mut dictionary)?;
                    known.push(entry);
                    entry
                }
                number => *known.get(usize::try_from(number - 1).ok()?)?,
            };
            let value = match entry.flags & !CUT {
                0 => MarkValue::None,
                INTEGER => MarkValue::Integer(values.signed()?),
                FLOAT => {
                    let (bits, rest) = values.bytes.split_first_chunk()?;
                    values = Take::new(rest);
                    MarkValue::Float(f64::from_le_bytes(*bits))
                }
                _ => return None,
            };
            let at = At { nanos, thread: ThreadId(run.0) };
            self.marks.push(ReadMark { place, at, value, entry });
            place.ordinal = place.ordinal.checked_add(1)?;
        }
        Some(())
    }

    fn entry(&mut self, dictionary: &mut Take<'_>) -> Option<Entry> {
        let flags = dictionary.byte()?;
        let stack = dictionary.number32()?;
        let skip = u16::try_from(dictionary.number()?).ok()?;
        let text = dictionary.column()?;
        let text_start = self.texts.len() as u32;
        self.texts.extend_from_slice(text);
        Some(Entry { flags, stack, skip, text_start, text_length: text.len() as u32 })
    }

    /// Where a mark is in the order of events.
    pub(crate) fn place(&self, index: usize) -> Option<EventPlace> {
        self.marks.get(index).map(|mark| mark.place)
    }

    pub(crate) fn mark(&self, index: usize) -> Option<Mark<'_>> {
        let ReadMark { at, value, entry, .. } = *self.marks.get(index)?;
        let text = self.texts.get(entry.text_start as usize..)?.get(..entry.text_length as usize)?;
        let is_cut = entry.flags & CUT != 0;
        Some(Mark { at, stack: StackId(entry.stack), skip: entry.skip, value, text, is_cut })
    }
}
