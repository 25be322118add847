//! Reads a packed recording while `cairn` writes to it.
//!
//! ```text
//!   chunks | read before | new ... PROG | behind the last PROG: not complete yet, so they wait
//! ```

use std::collections::VecDeque;

use cairn_format::recording::{ChunkKind, EndReason, FileHeader};

use super::chunk::{ChunkPlace, ChunkReader, ChunkScan};
use super::heap_events::HeapDecoder;
use super::reader::{self, PackedReading};
use super::rows::Starts;
use crate::error::{Finding, RecordingError};
use crate::model::{Events, Fact, Wanted};
use crate::source::Source;
use crate::spool::control_words::RawEarlyEnd;
use crate::tables::TableBuilder;
use crate::write::pack::Totals;

/// See the module documentation.
pub(crate) struct LivePacked {
    scan: ChunkScan,
    reader: ChunkReader,
    starts: Starts,
    /// How many of the scan's places were taken in.
    taken: usize,
    /// Chunks of events that wait for the word that nothing in front of it is missing.
    waiting: Vec<ChunkPlace>,
    /// Those for which it came, up to each such word, and until when that is everything.
    ready: VecDeque<(Vec<ChunkPlace>, u64)>,
    /// The time of the last such word behind which everything was handed on; 0 where it names none.
    read_until: u64,
    /// The latest time that a chunk names.
    known_until: u64,
    event_limit: u64,
    decoder: HeapDecoder,
    nanos: u64,
    is_heap_lost: bool,
    idle_reads: u32,
    findings: Vec<Finding>,
}

/// Result of one read of a packed recording, beside its events.
pub(crate) struct PackedLook<'a> {
    pub(crate) header: &'a FileHeader,
    pub(crate) facts: &'a mut Vec<Fact>,
    pub(crate) tables: &'a mut TableBuilder,
    pub(crate) end: &'a mut Option<(EndReason, u64)>,
    pub(crate) early: &'a mut Option<RawEarlyEnd>,
    /// `None` until the recording is closed.
    pub(crate) totals: &'a mut Option<Totals>,
}

impl LivePacked {
    pub(crate) fn new() -> Result<Self, RecordingError> {
        Ok(Self {
            scan: ChunkScan::new(),
            reader: ChunkReader::new()?,
            starts: Starts::new(),
            taken: 0,
            waiting: Vec::new(),
            ready: VecDeque::new(),
            read_until: 0,
            known_until: 0,
            event_limit: u64::MAX,
            decoder: HeapDecoder::new(),
            nanos: 0,
            is_heap_lost: false,
            idle_reads: 0,
            findings: Vec::new(),
        })
    }

    /// Limits the events that are handed on at once.
    pub(crate) fn set_event_limit(&mut self, events: u64) {
        self.event_limit = events;
    }

    /// Reads the tables among what is new. With `is_last` nothing will follow.
    pub(crate) fn look(
        &mut self,
        source: &Source,
        look: &mut PackedLook<'_>,
        is_last: bool,
    ) -> Result<(), RecordingError> {
        self.scan.go_on(source, &mut self.findings, is_last)?;
        let new = self.scan.places.get(self.taken..).unwrap_or_default();
        self.taken = self.scan.places.len();
        self.idle_reads = if new.is_empty() { self.idle_reads.saturating_add(1) } else { 0 };
        for place in new {
            if place.kind == ChunkKind::PROGRESS || reader::EVENTS.contains(&place.kind) {
                self.known_until = self.known_until.max(place.first_nanos);
            }
            if place.kind == ChunkKind::PROGRESS {
                self.ready.push_back((std::mem::take(&mut self.waiting), place.first_nanos));
            } else if reader::EVENTS.contains(&place.kind) {
                self.waiting.push(*place);
            } else {
                let read = self.reader.read(source, place)?;
                let header = look.header;
                let (facts, tables) = (&mut *look.facts, &mut *look.tables);
                let totals = read.and_then(|payload| {
                    reader::take_table(place, payload, header, facts, tables, &mut self.starts)
                });
                match totals {
                    Ok(None) => {}
                    Ok(Some(totals)) => {
                        *look.end = reader::end_of(&totals, header);
                        *look.early = reader::early_end_of(&totals, header);
                        *look.totals = Some(totals);
                    }
                    Err(problem) => self.findings.push(reader::damaged(place, problem)),
                }
            }
        }
        if is_last || look.totals.is_some() {
            self.ready.push_back((std::mem::take(&mut self.waiting), 0));
        }
        // Places without events are done when everything in front of them has been read.
        while let Some((_, until)) = self.ready.pop_front_if(|(places, _)| places.is_empty()) {
            self.read_until = self.read_until.max(until);
        }
        Ok(())
    }

    /// Hands on what is complete by now, up to the limit.
    pub(crate) fn read_new<E: Events>(
        &mut self,
        source: &Source,
        wanted: &Wanted,
        events: &mut E,
    ) -> Result<(), RecordingError> {
        let wanted = Wanted { heap: wanted.heap && !self.is_heap_lost, ..*wanted };
        let mut reading = PackedReading {
            decoder: &mut self.decoder,
            reader: &mut self.reader,
            nanos: self.nanos,
            is_heap_lost: self.is_heap_lost,
        };
        let mut read = 0_u64;
        while read < self.event_limit
            && let Some((places, until)) = self.ready.pop_front()
        {
            self.read_until = self.read_until.max(until);
            reading.read(source, &places, &wanted, events, &mut self.findings)?;
            read = places.iter().fold(read, |sum, place| sum.saturating_add(place.events.into()));
        }
        (self.nanos, self.is_heap_lost) = (reading.nanos, reading.is_heap_lost);
        Ok(())
    }

    /// True when the limit left complete events for later.
    pub(crate) fn has_more(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Until when all that happened was handed on; 0 where the file does not say it.
    pub(crate) fn read_until_nanos(&self) -> u64 {
        self.read_until
    }

    /// The latest time that a chunk names.
    pub(crate) fn known_until_nanos(&self) -> u64 {
        self.known_until
    }

    /// How many reads in a row found nothing new.
    pub(crate) fn idle_reads(&self) -> u32 {
        self.idle_reads
    }

    pub(crate) fn findings(&self) -> &[Finding] {
        &self.findings
    }
}
