//! The first pass over a spool: its tables, and whose records are where.

use std::collections::BTreeMap;

use cairn_format::recording::{
    Clock, EndReason, FileHeader, Record, Records, SEGMENT_BYTES, SEGMENT_HEADER_BYTES, SegmentError,
    SegmentHeader, ThreadEvent, control,
};

use super::control_words::{
    RawEarlyEnd, control_findings, counter_hz, exit_clock, facts, note_loss, unsaid_end, word,
};
use super::lane::lane_of;
use super::lives::{LaneKey, Lives};
use super::reader::{ScannedLane, ScannedSegment, Spool, ThreadBegin};
use crate::clock::TimeScale;
use crate::error::{Finding, RecordingError};
use crate::model::Fact;
use crate::packed::progress::Progress;
use crate::source::Source;
use crate::tables::TableBuilder;

/// Result of the first pass over a spool.
pub(crate) struct Scanned {
    pub(crate) spool: Spool,
    pub(crate) facts: Vec<Fact>,
    pub(crate) tables: TableBuilder,
    pub(crate) end: Option<(EndReason, u64)>,
    pub(crate) early: Option<RawEarlyEnd>,
}

/// Which part of the time is wanted, in nanoseconds: from the first on, before the second.
pub(crate) type ChooseWindow<'a> = dyn FnOnce(&TimeScale) -> (u64, u64) + 'a;

/// Selects the part of a spool to read.
pub(crate) enum Part<'a> {
    /// All.
    Whole,
    /// A part of the time.
    Window(Box<ChooseWindow<'a>>),
    /// The data behind these places.
    Rest(&'a [Progress]),
}

/// Bytes of a segment that are read for its claim, its clock reading and the thread's name.
///
/// These are the header, a reading of the clocks, the losses of a ring, the thread's number and
/// name.
const PREFIX_BYTES: usize = SEGMENT_HEADER_BYTES + 32 + 16 + 24 + 40;

/// A segment that is there.
struct FoundSegment {
    header: SegmentHeader,
    segment: ScannedSegment,
    is_read: bool,
    /// Its records about threads.
    threads: Vec<ThreadNote>,
}

/// A record of a thread, as far as it was read.
struct ThreadNote {
    /// Where in its segment it is.
    offset: usize,
    counter: u64,
    kind: ThreadNoteKind,
}

enum ThreadNoteKind {
    Began { kernel_thread: u32 },
    Named(Vec<u8>),
    Ended,
}

impl ThreadNote {
    fn of(record: &Record<'_>, offset: usize) -> Option<Self> {
        let Record::Thread { counter, event } = *record else { return None };
        let kind = match event {
            ThreadEvent::Began { kernel_thread } => ThreadNoteKind::Began { kernel_thread },
            ThreadEvent::Named(name) => ThreadNoteKind::Named(name.to_vec()),
            ThreadEvent::Ended => ThreadNoteKind::Ended,
            _ => return None,
        };
        Some(Self { offset, counter, kind })
    }

    fn event(&self) -> ThreadEvent<'_> {
        match &self.kind {
            &ThreadNoteKind::Began { kernel_thread } => ThreadEvent::Began { kernel_thread },
            ThreadNoteKind::Named(name) => ThreadEvent::Named(name),
            ThreadNoteKind::Ended => ThreadEvent::Ended,
        }
    }
}

/// Reads all segments once: the tables, and where whose records are. With a window, only the
/// segments that may have something of that time or of the tables, and the beginnings of the
/// others.
pub(crate) fn scan(
    source: &Source,
    header: &FileHeader,
    part: Part<'_>,
    findings: &mut Vec<Finding>,
) -> Result<(Scanned, Option<(u64, u64)>), RecordingError> {
    let length = source.length()?;
    let mut bytes = Vec::new();
    source.read_at(0, SEGMENT_BYTES, &mut bytes)?;
    let facts = facts(&bytes);
    let early = RawEarlyEnd::of_words(|at| word(&bytes, at));
    control_findings(&bytes, length, early.is_some(), findings);
    let drained = word(&bytes, control::FREE_GIVEN);
    if drained > 0 && !matches!(part, Part::Rest(_)) {
        findings.push(Finding::Drained { segments: drained });
    }
    let state = control::State::from_word(word(&bytes, control::STATE));
    let is_exiting = word(&bytes, control::EXITING) != 0;
    let exit_clock = exit_clock(&bytes);

    let mut scan = SegmentScan { tables: TableBuilder::default(), end: None, findings };
    let mut found = Vec::new();
    let mut starts: &[Progress] = &[];
    let chosen = match part {
        Part::Whole | Part::Rest(_) => {
            if let Part::Rest(lanes) = part {
                starts = lanes;
            }
            for offset in segment_offsets(length) {
                source.read_at(offset, SEGMENT_BYTES, &mut bytes)?;
                if let Some(mut segment) = read_header(&bytes, offset, scan.findings) {
                    scan.take_segment(&bytes, &mut segment);
                    found.push(segment);
                }
            }
            None
        }
        Part::Window(choose) => {
            Some(scan_window(source, (header, exit_clock), length, (&facts, choose), &mut scan, &mut found)?)
        }
    };
    let SegmentScan { mut tables, mut end, findings } = scan;
    tables.clocks.extend(exit_clock);
    let mut lanes: BTreeMap<LaneKey, Vec<FoundSegment>> = BTreeMap::new();
    for segment in found {
        lanes.entry(lane_of(&segment.header)).or_default().push(segment);
    }
    for (&(thread, is_nested), segments) in &mut lanes {
        let is_it = |lane: &&Progress| lane.thread == thread && lane.is_nested == is_nested;
        let start = starts.iter().find(is_it);
        order_segments(thread, start.map_or(0, |start| start.sequence), segments, findings);
    }
    let begins = number_threads(&mut lanes, &mut tables.threads);
    let lanes = lanes.into_iter().zip(begins).map(|((lane, segments), begins)| {
        let (thread, is_nested) = lane;
        let is_it = |lane: &&Progress| lane.thread == thread && lane.is_nested == is_nested;
        let wanted = segments.into_iter().filter(|found| found.is_read);
        let segments = wanted.map(|found| found.segment).collect();
        ScannedLane { key: lane, segments, start: starts.iter().find(is_it).copied(), begins }
    });
    let lanes = lanes.collect();
    if end.is_none() {
        end = unsaid_end(state, is_exiting).map(|reason| (reason, u64::MAX));
    }
    if let Some(early) = early {
        end = Some(early.end());
    }
    let spool = Spool::new(lanes, header.start_counter);
    Ok((Scanned { spool, facts, tables, end, early }, chosen))
}

pub(super) fn segment_offsets(length: u64) -> impl Iterator<Item = u64> {
    (1..length.div_ceil(SEGMENT_BYTES as u64)).map(|number| number * SEGMENT_BYTES as u64)
}

/// Numbers the threads that had a lane, in the order in which they began.
///
/// Returns, by lane, where threads begin.
fn number_threads(
    lanes: &mut BTreeMap<LaneKey, Vec<FoundSegment>>,
    lives: &mut Lives,
) -> Vec<Vec<ThreadBegin>> {
    lives.reserve(lanes.iter().filter(|(_, segments)| !segments.is_empty()).map(|(&(thread, _), _)| thread));
    // Each lane in its own order, and all of them as far as possible in the order of time: with a
    // note, or a segment where there is none.
    let mut steps: Vec<(u64, usize, usize, Option<usize>)> = Vec::new();
    for (lane, segments) in lanes.values().enumerate() {
        let mut now = 0;
        for (index, found) in segments.iter().enumerate() {
            // A segment is taken for a record that says what time it was a moment before.
            let first = found.threads.first().map_or(u64::MAX, |note| note.counter);
            now = found.segment.counter.min(first).max(now);
            steps.push((now, lane, index, None));
            for (note, at) in found.threads.iter().zip(0..) {
                now = note.counter.max(now);
                steps.push((now, lane, index, Some(at)));
            }
        }
    }
    steps.sort_by_key(|&(now, ..)| now);
    let mut begins: Vec<Vec<ThreadBegin>> = lanes.iter().map(|_| Vec::new()).collect();
    let mut lanes: Vec<(&LaneKey, &mut Vec<FoundSegment>)> = lanes.iter_mut().collect();
    for (_, lane, index, note) in steps {
        let Some((key, segments)) = lanes.get_mut(lane) else { continue };
        let key = **key;
        let Some(found) = segments.get_mut(index) else { continue };
        let Some(note) = note.and_then(|at| found.threads.get(at)) else {
            let SegmentHeader { kernel_thread, counter, .. } = found.header;
            found.segment.thread = lives.block(key, kernel_thread, counter);
            continue;
        };
        let thread = lives.record(key, note.counter, note.event());
        if let (ThreadNoteKind::Began { .. }, Some(thread), Some(begins)) =
            (&note.kind, thread, begins.get_mut(lane))
        {
            begins.push(ThreadBegin { sequence: found.segment.sequence, offset: note.offset, thread });
        }
    }
    begins
}

/// Reads what has to do with a part of the time.
fn scan_window(
    source: &Source,
    (header, exit_clock): (&FileHeader, Option<Clock>),
    length: u64,
    (facts, choose): (&[Fact], Box<ChooseWindow<'_>>),
    scan: &mut SegmentScan<'_>,
    found: &mut Vec<FoundSegment>,
) -> Result<(u64, u64), RecordingError> {
    // One part in 372 of the file.
    let mut prefixes = Vec::new();
    let mut bytes = Vec::new();
    let mut clocks = Vec::from_iter(exit_clock);
    for offset in segment_offsets(length) {
        source.read_at(offset, PREFIX_BYTES, &mut bytes)?;
        let Some(segment) = read_header(&bytes, offset, scan.findings) else { continue };
        for (record, _) in first_records(&bytes, &segment.header) {
            if let Record::Clock(clock) = record {
                clocks.push(clock);
            }
        }
        bytes.resize(PREFIX_BYTES, 0);
        prefixes.extend_from_slice(&bytes);
        found.push(segment);
    }
    let scale = TimeScale::new(header, &clocks, counter_hz(facts), &mut Vec::new());
    let chosen = choose(&scale);
    want_segments(found, &scale, chosen);
    for (found, prefix) in found.iter_mut().zip(prefixes.chunks(PREFIX_BYTES)) {
        if found.is_read {
            source.read_at(found.segment.offset, SEGMENT_BYTES, &mut bytes)?;
            scan.take_segment(&bytes, found);
            continue;
        }
        for (record, offset) in first_records(prefix, &found.header) {
            scan.take_record(&record, offset, &mut found.threads);
        }
    }
    Ok(chosen)
}

/// Marks the segments to be read.
///
/// These are segments with a part of the window, segments that may hold tables, and segments
/// behind which the thread changes or ends.
fn want_segments(found: &mut [FoundSegment], scale: &TimeScale, (since, until): (u64, u64)) {
    let mut order: Vec<usize> = (0..found.len()).collect();
    let key = |found: &FoundSegment| (lane_of(&found.header), found.header.sequence);
    order.sort_by_key(|&index| found.get(index).map(key));
    let mut after = order.iter().skip(1).map(|&index| found.get(index).map(|next| next.header));
    let nexts: Vec<Option<SegmentHeader>> = order.iter().map(|_| after.next().flatten()).collect();
    for (&index, next) in order.iter().zip(nexts) {
        let Some(FoundSegment { header, is_read, .. }) = found.get_mut(index) else { continue };
        let next = next.filter(|next| lane_of(next) == lane_of(header));
        *is_read = !header.has_no_tables
            || next.is_none_or(|next| {
                // A thread takes a segment when it has nothing more for the one before.
                next.kernel_thread != header.kernel_thread
                    || scale.nanos(header.counter) < until && since <= scale.nanos(next.counter)
            });
    }
}

/// The records at the start of a segment that are not its events.
fn first_records<'a>(prefix: &'a [u8], header: &SegmentHeader) -> impl Iterator<Item = (Record<'a>, usize)> {
    let committed = prefix.get(..header.committed_bytes as usize).unwrap_or(prefix);
    let records =
        Records::new(committed.get(SEGMENT_HEADER_BYTES..).unwrap_or_default(), SEGMENT_HEADER_BYTES);
    records.map_while(Result::ok).map(|placed| (placed.record, placed.offset)).take_while(|(record, _)| {
        matches!(record, Record::Clock(_) | Record::Thread { .. } | Record::Loss { .. })
    })
}

fn read_header(bytes: &[u8], offset: u64, findings: &mut Vec<Finding>) -> Option<FoundSegment> {
    match SegmentHeader::read(bytes) {
        Ok(header) => {
            let SegmentHeader { sequence, counter, .. } = header;
            let segment = ScannedSegment { offset, sound_bytes: 0, sequence, counter, thread: 0 };
            return Some(FoundSegment { header, segment, is_read: true, threads: Vec::new() });
        }
        Err(SegmentError::Unused) => {}
        Err(SegmentError::Short) => {
            if bytes.iter().any(|&byte| byte != 0) {
                findings.push(Finding::TornTail { offset, lost_bytes: bytes.len() as u64 });
            }
        }
        Err(error) => findings.push(Finding::DamagedSegment { offset, error }),
    }
    None
}

/// State that all segments share.
struct SegmentScan<'a> {
    tables: TableBuilder,
    end: Option<(EndReason, u64)>,
    findings: &'a mut Vec<Finding>,
}

impl SegmentScan<'_> {
    fn take_segment(&mut self, bytes: &[u8], found: &mut FoundSegment) {
        let FoundSegment { header, segment, threads, .. } = found;
        let committed = header.committed_bytes as usize;
        if bytes.len() < committed {
            self.findings.push(Finding::TornTail {
                offset: segment.offset + bytes.len() as u64,
                lost_bytes: (committed - bytes.len()) as u64,
            });
        }
        let present = bytes.get(..committed).unwrap_or(bytes);
        let records = present.get(SEGMENT_HEADER_BYTES..).unwrap_or_default();
        let mut records = Records::new(records, SEGMENT_HEADER_BYTES);
        loop {
            records.skip_frequent();
            let offset = records.offset();
            segment.sound_bytes = offset;
            match records.next() {
                Some(Ok(placed)) => self.take_record(&placed.record, offset, threads),
                None => return,
                // The cut of the file is among the findings already.
                Some(Err(_)) if present.len() < committed => return,
                Some(Err(error)) => {
                    let lost_bytes = (committed - error.offset) as u64;
                    let offset = segment.offset;
                    self.findings.push(Finding::DamagedRecords { offset, error, lost_bytes });
                    return;
                }
            }
        }
    }

    fn take_record(&mut self, record: &Record<'_>, offset: usize, threads: &mut Vec<ThreadNote>) {
        self.tables.record(record);
        threads.extend(ThreadNote::of(record, offset));
        match *record {
            Record::End { reason, counter } => self.end = Some((reason, counter)),
            Record::Loss { kind, count } => note_loss(kind, count, self.findings),
            _ => {}
        }
    }
}

/// Segments are taken from anywhere in the file, so their order is that of their numbers.
fn order_segments(thread: u32, start: u32, segments: &mut Vec<FoundSegment>, findings: &mut Vec<Finding>) {
    segments.retain(|found| found.segment.sequence >= start);
    segments.sort_by_key(|found| found.segment.sequence);
    let pairs = segments.windows(2);
    let missing = pairs.map(|pair| match pair {
        [a, b] => u64::from(b.segment.sequence.saturating_sub(a.segment.sequence).saturating_sub(1)),
        _ => 0,
    });
    let before = segments.first().map_or(0, |found| u64::from(found.segment.sequence - start));
    let count = missing.sum::<u64>() + before;
    if count > 0 {
        findings.push(Finding::MissingSegments { thread, count });
    }
}
