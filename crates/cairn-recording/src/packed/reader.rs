//! Reads packed recordings.

use cairn_format::recording::{ChunkKind, EndReason, FileHeader};

use super::chunk::{self, ChunkPlace, ChunkReader};
use super::marks::ReadMarks;
use super::progress::{Progress, take_progress};
use super::rows::{self, ChangeCursor, Rare};
use crate::error::{EndedEarly, Finding, RecordingError};
use crate::generated::CodePiece;
use crate::model::{At, Events, Fact, Mark, Wanted};
use crate::packed::heap_events::HeapDecoder;
use crate::source::Source;
use crate::spool::control_words::{RawEarlyEnd, note_loss, parse_facts};
use crate::spool::deliver::Slots;
use crate::tables::TableBuilder;
use crate::write::pack::Totals;

/// Where the chunks are.
pub(crate) struct Packed {
    pub(crate) places: Vec<ChunkPlace>,
    pub(crate) totals: Option<Totals>,
    /// Where the spool goes on when this recording was not closed.
    pub(crate) progress: Option<LastProgress>,
    /// Frees without a block, while it has no totals that tells how many there are.
    pub(crate) unmatched_frees: u64,
}

/// State that the events of a packed recording leave behind them.
pub(crate) struct End {
    /// Time of the last one.
    pub(crate) nanos: u64,
    decoder: HeapDecoder,
}

impl End {
    /// Returns the numbers of blocks that are free: a list as long as most blocks that lived.
    pub(crate) fn into_slots(self) -> Slots {
        self.decoder.into_slots()
    }
}

/// The last word on how far the spool was read.
pub(crate) struct LastProgress {
    lanes: Vec<Progress>,
    /// Chunks before this offset are before these places of the spool, and chunks behind it behind
    /// them.
    offset: u64,
    /// Until when everything is in front of it; older writers do not say.
    pub(crate) nanos: Option<u64>,
}

/// Result of opening a packed file.
pub(crate) struct OpenedPacked {
    pub(crate) packed: Packed,
    pub(crate) facts: Vec<Fact>,
    pub(crate) tables: TableBuilder,
    pub(crate) end: Option<(EndReason, u64)>,
    pub(crate) early: Option<RawEarlyEnd>,
}

/// Chunks of tables, in the order in which they are read: an address needs the module that it lies
/// in.
const TABLES: [ChunkKind; 9] = [
    ChunkKind::FACTS,
    ChunkKind::MODULES,
    ChunkKind::THREADS,
    ChunkKind::CLOCKS,
    ChunkKind::CODE,
    ChunkKind::ADDRESSES,
    ChunkKind::STACKS,
    ChunkKind::GENERATED,
    ChunkKind::SUMMARY,
];
const OTHERS: [ChunkKind; 4] = [ChunkKind::INDEX, ChunkKind::PROGRESS, ChunkKind::SUMS, ChunkKind::SLICES];
pub(crate) const EVENTS: [ChunkKind; 4] =
    [ChunkKind::HEAP, ChunkKind::HEAP_STREAM, ChunkKind::MARKS, ChunkKind::CHANGES];
/// Those of allocations and frees.
const HEAP: [ChunkKind; 2] = [ChunkKind::HEAP, ChunkKind::HEAP_STREAM];

/// How much of a packed recording that was not closed is to be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Extent {
    /// Everything that is intact.
    Whole,
    /// Everything in front of the last `PROG` chunk: what follows is in the spool as well.
    UpToProgress,
}

/// Reads the tables.
pub(crate) fn open(
    source: &Source,
    header: &FileHeader,
    extent: Extent,
    findings: &mut Vec<Finding>,
) -> Result<OpenedPacked, RecordingError> {
    let mut reader = ChunkReader::new()?;
    let mut of_places = Vec::new();
    let places = chunk::find_chunks(source, &mut reader, &mut of_places)?;
    let (all_findings, findings) = (findings, &mut Vec::new());
    let mut facts = Vec::new();
    let mut tables = TableBuilder::default();
    let mut starts = rows::Starts::new();
    let mut totals = None;
    for kind in TABLES {
        for place in places.iter().filter(|place| place.kind == kind) {
            let read = reader.read(source, place)?;
            let taken = read
                .and_then(|payload| take_table(place, payload, header, &mut facts, &mut tables, &mut starts));
            let result = taken.map(|found| totals = found.or(totals.take()));
            if let Err(problem) = result {
                findings.push(damaged(place, problem));
            }
        }
    }
    for place in &places {
        let is_known =
            TABLES.contains(&place.kind) || EVENTS.contains(&place.kind) || OTHERS.contains(&place.kind);
        if !is_known {
            findings.push(Finding::UnknownChunk { offset: place.offset, kind: place.kind });
        }
    }
    let lost = totals.iter().flat_map(Totals::losses);
    lost.for_each(|(kind, count)| note_loss(kind, count, findings));
    let end = totals.as_ref().and_then(|totals| end_of(totals, header));
    let early = totals.as_ref().and_then(|totals| early_end_of(totals, header));
    let progress = match totals {
        Some(_) => None,
        None => last_progress(source, &mut reader, &places)?,
    };
    let mut packed = Packed { places, totals, progress, unmatched_frees: 0 };
    if extent == Extent::UpToProgress && packed.totals.is_none() {
        let end = packed.end_at_progress();
        of_places.retain(|finding| is_in_front_of(finding, end));
    }
    all_findings.append(&mut of_places);
    all_findings.append(findings);
    Ok(OpenedPacked { packed, facts, tables, end, early })
}

/// Returns whether a finding is of chunks in front of that place.
///
/// Nothing is read behind it, nor of the missing index.
fn is_in_front_of(finding: &Finding, end: u64) -> bool {
    match finding {
        Finding::NoIndex => false,
        Finding::TornTail { offset, .. } | Finding::SkippedBytes { offset, .. } => *offset < end,
        _ => true,
    }
}

/// Takes what a chunk of tables holds; answers with the totals where that is what it holds.
pub(crate) fn take_table(
    place: &ChunkPlace,
    payload: &[u8],
    header: &FileHeader,
    facts: &mut Vec<Fact>,
    tables: &mut TableBuilder,
    starts: &mut rows::Starts,
) -> Result<Option<Totals>, &'static str> {
    tables.place = place.offset;
    match place.kind {
        ChunkKind::FACTS => facts.extend(parse_facts(payload)),
        ChunkKind::MODULES => rows::take_modules(payload, header.start_counter, tables, starts)?,
        ChunkKind::THREADS => rows::take_threads(payload, header.start_counter, tables)?,
        ChunkKind::CLOCKS => rows::take_clocks(payload, header.start_counter, &mut tables.clocks)?,
        ChunkKind::CODE => rows::take_codes(payload, tables)?,
        ChunkKind::ADDRESSES => rows::take_pcs(payload, tables, starts)?,
        ChunkKind::STACKS => rows::take_words(payload, tables)?,
        ChunkKind::GENERATED => {
            let piece =
                CodePiece::take(payload, place.first_nanos).ok_or("it is no piece of a known file")?;
            tables.generated.add(place.offset, piece);
        }
        ChunkKind::SUMMARY => return Totals::take(payload).map(Some).ok_or("it is too short"),
        _ => {}
    }
    Ok(None)
}

pub(crate) fn end_of(totals: &Totals, header: &FileHeader) -> Option<(EndReason, u64)> {
    Some((totals.end_reason?, header.start_counter.saturating_add(totals.end_nanos)))
}

pub(crate) fn early_end_of(totals: &Totals, header: &FileHeader) -> Option<RawEarlyEnd> {
    let EndedEarly { cause, nanos, missed } = totals.ended_early?;
    let counter = if nanos == 0 { 0 } else { header.start_counter.saturating_add(nanos) };
    Some(RawEarlyEnd { cause, counter, missed })
}

/// Reads the last readable chunk of progress.
///
/// A damaged one is passed over: those before it are as good, as long as the spool has the
/// segments.
fn last_progress(
    source: &Source,
    reader: &mut ChunkReader,
    places: &[ChunkPlace],
) -> Result<Option<LastProgress>, RecordingError> {
    for place in places.iter().rev().filter(|place| place.kind == ChunkKind::PROGRESS) {
        if let Ok(lanes) = reader.read(source, place)?.and_then(take_progress) {
            let nanos = Some(place.first_nanos).filter(|&nanos| nanos > 0);
            return Ok(Some(LastProgress { lanes, offset: place.offset, nanos }));
        }
    }
    Ok(None)
}

impl Packed {
    /// One without chunks.
    pub(crate) fn empty() -> Self {
        Self { places: Vec::new(), totals: None, progress: None, unmatched_frees: 0 }
    }

    /// Leaves out what the spool has as well; returns where that begins.
    fn end_at_progress(&mut self) -> u64 {
        let end = self.progress.as_ref().map_or(0, |progress| progress.offset);
        self.places.retain(|place| place.offset < end);
        end
    }

    /// Where the spool goes on behind that; its beginning where nothing is said.
    pub(crate) fn lanes(&self) -> &[Progress] {
        self.progress.as_ref().map_or(&[], |progress| &progress.lanes)
    }

    /// Hands the events on; what is damaged is left out and noted in `findings`.
    pub(crate) fn read<E: Events>(
        &self,
        source: &Source,
        wanted: &Wanted,
        events: &mut E,
        findings: &mut Vec<Finding>,
    ) -> Result<End, RecordingError> {
        let mut decoder = HeapDecoder::new();
        let mut reader = ChunkReader::new()?;
        let mut reading =
            PackedReading { decoder: &mut decoder, reader: &mut reader, nanos: 0, is_heap_lost: false };
        reading.read(source, &self.places, wanted, events, findings)?;
        let nanos = reading.nanos;
        Ok(End { nanos, decoder })
    }
}

/// State that one stretch of chunks passes on to the next.
pub(crate) struct PackedReading<'a> {
    pub(crate) decoder: &'a mut HeapDecoder,
    /// The one that read all chunks of allocations before.
    pub(crate) reader: &'a mut ChunkReader,
    /// Time of the last event.
    pub(crate) nanos: u64,
    /// After a damaged chunk of allocations later ones cannot be read.
    pub(crate) is_heap_lost: bool,
}

impl PackedReading<'_> {
    /// Hands on the events of these chunks. None in front of the last is missing.
    pub(crate) fn read<E: Events>(
        &mut self,
        source: &Source,
        places: &[ChunkPlace],
        wanted: &Wanted,
        events: &mut E,
        findings: &mut Vec<Finding>,
    ) -> Result<(), RecordingError> {
        let mut others = Others::new(source, places, wanted)?;
        others.load(findings)?;
        let mut clock = self.nanos;
        let heap = places.iter().filter(|place| wanted.heap && HEAP.contains(&place.kind));
        for place in heap {
            others.deliver_at(self.decoder.position(), &mut clock, events, findings)?;
            let read = self.reader.read(source, place)?;
            let begun = read.and_then(|payload| self.decoder.begin(place.kind, payload, place.events));
            let mut cursor = match begun {
                Ok(cursor) => cursor,
                Err(problem) => {
                    findings.push(damaged(place, problem));
                    self.is_heap_lost = true;
                    // The chunks that follow build on the contents of this one.
                    break;
                }
            };
            let mut result = Ok(());
            while !cursor.is_done() && result.is_ok() && !events.is_enough() {
                let until = others.next_place().map_or(u64::MAX, |place| place.position);
                result = self.decoder.run(&mut cursor, until, clock, wanted, events);
                clock = clock.max(cursor.nanos());
                if clock >= wanted.until_nanos {
                    break;
                }
                // An event that is not behind any of this chunk's is delivered with what precedes
                // it: before the next one's time begins, as when that is not there yet.
                others.deliver_at(self.decoder.position(), &mut clock, events, findings)?;
            }
            if let Err(problem) = result {
                findings.push(damaged(place, problem));
                self.is_heap_lost = true;
                break;
            }
            if clock >= wanted.until_nanos || events.is_enough() {
                break;
            }
        }
        others.deliver_at(u64::MAX, &mut clock, events, findings)?;
        self.nanos = clock;
        Ok(())
    }
}

pub(crate) fn damaged(place: &ChunkPlace, problem: &'static str) -> Finding {
    Finding::DamagedChunk { offset: place.offset, kind: place.kind, problem }
}

/// Marks and rare events, in the order of their positions and times.
struct Others<'a> {
    source: &'a Source,
    reader: ChunkReader,
    wanted: &'a Wanted,
    mark_places: Vec<&'a ChunkPlace>,
    next_mark_place: usize,
    marks: ReadMarks,
    next_mark: usize,
    change_places: Vec<&'a ChunkPlace>,
    next_change_place: usize,
    changes: Vec<(rows::EventPlace, Rare)>,
    next_change: usize,
}

impl<'a> Others<'a> {
    fn new(source: &'a Source, places: &'a [ChunkPlace], wanted: &'a Wanted) -> Result<Self, RecordingError> {
        let of_kind = |kind| {
            let places: Vec<&ChunkPlace> =
                places.iter().filter(|place| wanted.others && place.kind == kind).collect();
            // The last chunk that begins before the window may reach into it.
            let before = places.partition_point(|place| place.first_nanos < wanted.since_nanos);
            let first = before.saturating_sub(1);
            let end = places.partition_point(|place| place.first_nanos < wanted.until_nanos);
            places.get(first..end).unwrap_or_default().to_vec()
        };
        Ok(Self {
            source,
            reader: ChunkReader::new()?,
            wanted,
            mark_places: of_kind(ChunkKind::MARKS),
            next_mark_place: 0,
            marks: ReadMarks::default(),
            next_mark: 0,
            change_places: of_kind(ChunkKind::CHANGES),
            next_change_place: 0,
            changes: Vec::new(),
            next_change: 0,
        })
    }

    /// Makes sure that the next mark and the next rare event are at hand, where there are any.
    fn load(&mut self, findings: &mut Vec<Finding>) -> Result<(), RecordingError> {
        while self.marks.place(self.next_mark).is_none() {
            let Some(place) = self.mark_places.get(self.next_mark_place) else { break };
            self.next_mark_place += 1;
            self.next_mark = 0;
            let read = self.reader.read(self.source, place)?;
            if let Err(problem) = read.and_then(|payload| self.marks.read(payload, place.events)) {
                findings.push(damaged(place, problem));
            }
        }
        while self.next_change >= self.changes.len() {
            let Some(place) = self.change_places.get(self.next_change_place) else { break };
            self.next_change_place += 1;
            self.next_change = 0;
            self.changes.clear();
            let read = self.reader.read(self.source, place)?;
            if let Err(problem) = read.and_then(|payload| read_changes(payload, &mut self.changes)) {
                findings.push(damaged(place, problem));
            }
        }
        Ok(())
    }

    fn next_place(&self) -> Option<rows::EventPlace> {
        let change = self.changes.get(self.next_change).map(|(place, _)| *place);
        match (self.marks.place(self.next_mark), change) {
            (Some(mark), Some(change)) => Some(mark.min(change)),
            (mark, change) => mark.or(change),
        }
    }

    /// Everything up to a position.
    fn deliver_at(
        &mut self,
        position: u64,
        clock: &mut u64,
        events: &mut impl Events,
        findings: &mut Vec<Finding>,
    ) -> Result<(), RecordingError> {
        let mut delivered = 0_u32;
        while let Some(next) = self.next_place().filter(|next| next.position <= position) {
            delivered = delivered.wrapping_add(1);
            if delivered.is_multiple_of(64) && events.is_enough() {
                return Ok(());
            }
            if self.marks.place(self.next_mark) == Some(next) {
                if let Some(mark) = self.marks.mark(self.next_mark) {
                    *clock = mark.at.nanos.max(*clock);
                    if self.wanted.has(mark.at.nanos) {
                        let at = At { nanos: *clock, ..mark.at };
                        events.mark(&Mark { at, ..mark });
                    }
                }
                self.next_mark += 1;
            } else {
                if let Some((_, rare)) = self.changes.get(self.next_change) {
                    *clock = rare.nanos().max(*clock);
                    if self.wanted.has(rare.nanos()) {
                        rare.not_before(*clock).deliver(events);
                    }
                }
                self.next_change += 1;
            }
            self.load(findings)?;
        }
        Ok(())
    }
}

fn read_changes(payload: &[u8], changes: &mut Vec<(rows::EventPlace, Rare)>) -> Result<(), &'static str> {
    let mut cursor = ChangeCursor::new(payload);
    while let Some(change) = cursor.next()? {
        changes.push(change);
    }
    Ok(())
}
