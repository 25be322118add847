//! Reads a recording while it grows: each look reads what is new, and nothing twice.
//!
//! ```text
//!   spool:   block  | read before | new ...      one piece for each lane and look; handed on when the next look has been
//!   packed:  chunks | read before | new ... PROG | behind the last PROG: not complete yet, so they wait
//! ```
//!
//! What one thread had written when a look at a spool began is complete in the other threads' blocks as well when the next look has
//! been: a thread takes the time of an event a moment before it commits it. So events are handed on up to the latest time that
//! the look before has seen.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::path::{Path, PathBuf};

use cairn_format::recording::{
    BadRecord, ChunkKind, EndReason, Lane, Record, Records, SEGMENT_BYTES, SEGMENT_HEADER_BYTES,
    SegmentHeader, ThreadEvent, control,
};

use super::deliver::Delivery;
use super::lives::LaneKey;
use super::merge::{Feed, Merger, NextBlock, ticks_of};
use super::pairing::Pairing;
use crate::clock::TimeScale;
use crate::error::{Finding, RecordingError};
use crate::model::{Events, Wanted};
use crate::packed::chunk::{ChunkReader, Place, Scan};
use crate::packed::heap_events::HeapDecoder;
use crate::packed::reader::{self, Reading};
use crate::packed::rows::Starts;
use crate::source::Source;
use crate::spool::reader::{RawEarlyEnd, note_loss, unsaid_end, word};
use crate::tables::TableBuilder;
use crate::{Layout, Recording, counter_hz, open_source};

/// See the module documentation. Goes with one [`Recording`], whose tables it keeps up to date.
pub struct Live {
    path: PathBuf,
    tables: TableBuilder,
    shape: Shape,
}

enum Shape {
    Spool(Box<LiveSpool>),
    Packed(Box<LivePacked>),
}

impl Live {
    /// Begins with nothing but the header and the facts.
    pub fn open(path: &Path) -> Result<(Recording, Self), RecordingError> {
        let source = open_source(path)?;
        let recording = Recording::empty(source)?;
        let shape = match &recording.layout {
            Layout::Spool(_) => Shape::Spool(Box::new(LiveSpool::new(recording.header.start_counter))),
            Layout::Packed(_) => Shape::Packed(Box::new(LivePacked::new()?)),
        };
        Ok((recording, Self { path: path.to_owned(), tables: TableBuilder::default(), shape }))
    }

    /// Reads of each thread at most so many bytes ahead of what can be handed on, so that a large spool that is there already does
    /// not take as much memory; [`has_more`](Self::has_more) tells when there is more to read at once.
    pub fn set_lane_limit(&mut self, bytes: usize) {
        if let Shape::Spool(spool) = &mut self.shape {
            spool.lane_limit = bytes;
        }
    }

    /// Hands on about so many events of a packed recording at once; [`has_more`](Self::has_more) tells when there are more.
    pub fn set_event_limit(&mut self, events: u64) {
        if let Shape::Packed(packed) = &mut self.shape {
            packed.event_limit = events;
        }
    }

    /// Whether something was left unread because of a limit.
    pub fn has_more(&self) -> bool {
        match &self.shape {
            Shape::Spool(spool) => spool.cut_ticks.is_some(),
            Shape::Packed(packed) => !packed.ready.is_empty(),
        }
    }

    /// Until when all that happened was handed on, in nanoseconds from the start; `None` where the
    /// file does not say it.
    pub fn read_until_nanos(&self, recording: &Recording) -> Option<u64> {
        match &self.shape {
            Shape::Spool(spool) => spool.cut_ticks.map(|ticks| recording.scale.nanos_of_ticks(ticks)),
            Shape::Packed(packed) => Some(packed.read_until).filter(|&nanos| nanos > 0),
        }
    }

    /// Until when at least there is something to read.
    pub fn known_until_nanos(&self, recording: &Recording) -> u64 {
        match &self.shape {
            Shape::Spool(spool) => recording.scale.nanos_of_ticks(spool.latest_block),
            Shape::Packed(packed) => packed.known_until,
        }
    }

    /// Whether the last look found anything new.
    pub fn had_news(&self) -> bool {
        match &self.shape {
            Shape::Spool(spool) => spool.had_news,
            Shape::Packed(packed) => packed.idle_looks == 0,
        }
    }

    /// Frees so far that found no block.
    pub fn unmatched_frees(&self, recording: &Recording) -> u64 {
        match &self.shape {
            Shape::Spool(spool) => spool.pairing.as_ref().map_or(0, Pairing::unmatched_frees),
            Shape::Packed(_) => recording.summary().map_or(0, |summary| summary.unmatched_frees),
        }
    }

    /// Equal for as long as no modules, addresses and stacks come to the tables.
    pub fn tables_version(&self) -> (usize, usize, usize) {
        self.tables.version()
    }

    /// True for a spool whose blocks are drained and written to again.
    pub fn is_drained(&self) -> bool {
        matches!(&self.shape, Shape::Spool(spool) if spool.is_drained)
    }

    /// Reads what is new. With `is_last` nothing will follow.
    pub fn look(&mut self, recording: &mut Recording, is_last: bool) -> Result<(), RecordingError> {
        // Under the same name there may be a newer state of it; and when it has another name now, what is open goes on.
        if let Ok(source) = open_source(&self.path)
            && is_same(&source, recording)
        {
            recording.source = source;
        }
        self.tables.give_stacks(&mut recording.tables);
        let look = match &mut self.shape {
            Shape::Spool(spool) => spool.look(recording, &mut self.tables, is_last),
            Shape::Packed(packed) => packed.look(recording, &mut self.tables, is_last),
        };
        let hz = counter_hz(&recording.facts);
        recording.scale = TimeScale::new(&recording.header, &self.tables.clocks, hz, &mut Vec::new());
        recording.tables = self.tables.take_tables(&recording.scale);
        look
    }

    /// Hands on what is in order by now.
    pub fn read_new<E: Events>(
        &mut self,
        recording: &Recording,
        wanted: &Wanted,
        events: &mut E,
    ) -> Result<(), RecordingError> {
        match &mut self.shape {
            Shape::Spool(spool) => spool.read_new(recording, wanted, events),
            Shape::Packed(packed) => packed.read_new(recording, wanted, events)?,
        }
        Ok(())
    }

    /// Whether what a program that is gone has left behind is all there: whoever drains it needs a moment more.
    pub fn is_settled(&self, recording: &Recording) -> bool {
        match &self.shape {
            Shape::Spool(_) => true,
            Shape::Packed(packed) => packed.idle_looks >= SETTLED_LOOKS && !recording.source.is_held(),
        }
    }

    /// What was noticed of the file so far.
    pub fn findings(&self) -> &[Finding] {
        match &self.shape {
            Shape::Spool(spool) => &spool.queues.findings,
            Shape::Packed(packed) => &packed.findings,
        }
    }
}

/// So many looks without anything new mean that nobody writes any more, where the kernel does not say who holds the file.
const SETTLED_LOOKS: u32 = 10;

/// Whether the recorded process is there. Where that cannot be known it is taken to be.
pub fn is_running(process: u32) -> bool {
    let all = Path::new("/proc");
    if !all.join("self").exists() {
        return true;
    }
    // The name in parentheses may hold anything; what follows is the state, the third word.
    let stat = std::fs::read(all.join(process.to_string()).join("stat"));
    stat.is_ok_and(|stat| {
        let stat = String::from_utf8_lossy(&stat);
        let Some((_, words)) = stat.rsplit_once(") ") else { return false };
        let words: Vec<&str> = words.split_ascii_whitespace().collect();
        let threads = words.get(THREADS - STATE).and_then(|word| word.parse::<u32>().ok()).unwrap_or(1);
        // One that has ended and was not waited for has a line of its own still; and its first thread may end before the others.
        words.first().is_some_and(|state| !matches!(*state, "Z" | "X") || threads > 1)
    })
}

/// Which of the words of `/proc/PID/stat` these are.
const STATE: usize = 3;
const THREADS: usize = 20;

fn is_same(source: &Source, recording: &Recording) -> bool {
    let mut start = Vec::new();
    let read = source.read_at(0, cairn_format::recording::FILE_HEADER_BYTES, &mut start);
    read.is_ok() && start == recording.header.to_bytes()
}

/// A spool that a program writes to.
struct LiveSpool {
    start_counter: u64,
    merger: Merger,
    pairing: Option<Pairing>,
    nanos: u64,
    lanes: HashMap<LaneKey, u32>,
    /// By lane: its key, and the number of the thread whose records follow what was read last.
    keys: Vec<LaneKey>,
    threads: Vec<u32>,
    /// By lane: the blocks that are not read to their end, by sequence.
    open: Vec<BTreeMap<u32, OpenBlock>>,
    /// By lane: the sequence of the block that is read next.
    next_sequence: Vec<u32>,
    queues: Queues,
    /// Claimed blocks without a header.
    waiting: Vec<u64>,
    next_block: u64,
    /// The latest time in what was read.
    latest: u64,
    /// Events up to there are handed on.
    horizon: u64,
    is_drained: bool,
    lane_limit: usize,
    /// Up to there everything was read, when the last look left something unread.
    cut_ticks: Option<u64>,
    had_news: bool,
    /// When the youngest block was taken.
    latest_block: u64,
}

struct OpenBlock {
    offset: u64,
    kernel_thread: u32,
    counter: u64,
    ticks: u64,
    read_bytes: usize,
    committed: usize,
}

/// By lane: what was read and not handed on.
#[derive(Default)]
struct Queues {
    pieces: Vec<VecDeque<Piece>>,
    /// By lane: the threads that are to begin in the piece that was handed on last.
    begins: Vec<VecDeque<u32>>,
    findings: Vec<Finding>,
}

struct Piece {
    block: u64,
    offset: usize,
    ticks: u64,
    /// The latest time in it.
    latest: u64,
    /// The number of the thread whose records the first ones are, and of those that begin in it.
    thread: u32,
    begins: VecDeque<u32>,
    bytes: Vec<u8>,
}

impl Feed for Queues {
    fn more(&mut self, lane: u32, bytes: &mut Vec<u8>) -> Option<NextBlock> {
        let piece = self.pieces.get_mut(lane as usize)?.pop_front()?;
        *bytes = piece.bytes;
        *self.begins.get_mut(lane as usize)? = piece.begins;
        Some(NextBlock { ticks: piece.ticks, offset: piece.offset, thread: piece.thread })
    }

    fn thread(&mut self, lane: u32, _: u64, event: ThreadEvent<'_>) -> Option<u32> {
        let ThreadEvent::Began { .. } = event else { return None };
        self.begins.get_mut(lane as usize)?.pop_front()
    }

    fn damaged(&mut self, _: u32, _: BadRecord, _: u64) {
        // Told when the piece was read.
    }
}

impl LiveSpool {
    fn new(start_counter: u64) -> Self {
        Self {
            start_counter,
            merger: Merger::new(start_counter),
            pairing: Some(Pairing::new()),
            nanos: 0,
            lanes: HashMap::new(),
            keys: Vec::new(),
            threads: Vec::new(),
            open: Vec::new(),
            next_sequence: Vec::new(),
            queues: Queues::default(),
            waiting: Vec::new(),
            next_block: 1,
            latest: 0,
            horizon: 0,
            is_drained: false,
            lane_limit: usize::MAX,
            cut_ticks: None,
            had_news: false,
            latest_block: 0,
        }
    }

    fn look(
        &mut self,
        recording: &mut Recording,
        tables: &mut TableBuilder,
        is_last: bool,
    ) -> Result<(), RecordingError> {
        self.horizon = if is_last { u64::MAX } else { self.latest };
        let source = &recording.source;
        let mut bytes = Vec::new();
        source.read_at(0, control::FREE_GIVEN + 8, &mut bytes)?;
        self.is_drained = word(&bytes, control::FREE_GIVEN) > 0;
        recording.early = RawEarlyEnd::of_words(|at| word(&bytes, at));
        let state = control::State::from_word(word(&bytes, control::STATE));
        if state == control::State::Ended {
            let unsaid = unsaid_end(state, word(&bytes, control::EXITING) != 0);
            let early = recording.early.map(RawEarlyEnd::end);
            if let Some(end) = early.or(unsaid.map(|reason| (reason, u64::MAX))) {
                recording.end.get_or_insert(end);
            }
        }
        // Blocks before lengths: a thread that has taken its next block has committed all of the one before.
        let claimed =
            word(&bytes, control::CLAIMED_SEGMENTS).min(source.length()?.div_ceil(SEGMENT_BYTES as u64));
        self.waiting.extend(self.next_block..claimed.max(self.next_block));
        self.next_block = self.next_block.max(claimed);
        for block in std::mem::take(&mut self.waiting) {
            self.open_block(source, block, &mut bytes)?;
        }
        (self.cut_ticks, self.had_news) = (None, false);
        for lane in 0..self.open.len() {
            self.read_lane(source, lane, tables, &mut recording.end, is_last)?;
        }
        self.horizon = self.cut_ticks.unwrap_or(u64::MAX).min(self.horizon);
        Ok(())
    }

    fn open_block(&mut self, source: &Source, block: u64, bytes: &mut Vec<u8>) -> Result<(), RecordingError> {
        let offset = block * SEGMENT_BYTES as u64;
        source.read_at(offset, SEGMENT_HEADER_BYTES, bytes)?;
        // Just being taken, or damaged: the last look tells.
        let Ok(header) = SegmentHeader::read(bytes) else {
            self.waiting.push(block);
            return Ok(());
        };
        let key = (header.thread, header.lane == Lane::Nested);
        let lane = *self.lanes.entry(key).or_insert_with(|| {
            self.open.push(BTreeMap::new());
            self.next_sequence.push(0);
            self.queues.pieces.push(VecDeque::new());
            self.queues.begins.push(VecDeque::new());
            self.keys.push(key);
            self.threads.push(0);
            self.merger.resume_stream(0, false)
        });
        let ticks = header.counter.saturating_sub(self.start_counter);
        self.latest_block = self.latest_block.max(ticks);
        let read_bytes = SEGMENT_HEADER_BYTES;
        let (kernel_thread, counter) = (header.kernel_thread, header.counter);
        let open = OpenBlock { offset, kernel_thread, counter, ticks, read_bytes, committed: read_bytes };
        if let Some(blocks) = self.open.get_mut(lane as usize) {
            blocks.insert(header.sequence, open);
        }
        Ok(())
    }

    /// Reads on in the blocks of a lane, in their order, up to the first one that is not there yet.
    fn read_lane(
        &mut self,
        source: &Source,
        lane: usize,
        tables: &mut TableBuilder,
        end: &mut Option<(EndReason, u64)>,
        is_last: bool,
    ) -> Result<(), RecordingError> {
        let (Some(blocks), Some(next)) = (self.open.get_mut(lane), self.next_sequence.get_mut(lane)) else {
            return Ok(());
        };
        let (Some(&key), Some(thread)) = (self.keys.get(lane), self.threads.get_mut(lane)) else {
            return Ok(());
        };
        let Some(queue) = self.queues.pieces.get_mut(lane) else { return Ok(()) };
        let mut queued: usize = queue.iter().map(|piece| piece.bytes.len()).sum();
        while let Some((&sequence, _)) = blocks.first_key_value() {
            if sequence > *next && !is_last {
                break;
            }
            let is_final = sequence.checked_add(1).is_some_and(|after| blocks.contains_key(&after));
            let Some(mut entry) = blocks.first_entry() else { break };
            let block = entry.get_mut();
            if queued >= self.lane_limit && !is_last {
                let read = queue.back().map_or(0, |piece| piece.latest);
                self.cut_ticks = Some(self.cut_ticks.unwrap_or(u64::MAX).min(read));
                break;
            }
            if block.read_bytes == SEGMENT_HEADER_BYTES {
                *thread = tables.threads.block(key, block.kernel_thread, block.counter);
            }
            let mut piece = block.read_on(source)?;
            if !piece.bytes.is_empty() {
                let findings = &mut self.queues.findings;
                piece.thread = *thread;
                take_tables(&mut piece, key, self.start_counter, tables, end, findings);
                *thread = piece.begins.back().copied().unwrap_or(*thread);
                self.latest = self.latest.max(piece.latest);
                self.had_news = true;
                queued += piece.bytes.len();
                queue.push_back(piece);
            }
            if !is_final && !is_last {
                break;
            }
            entry.remove();
            *next = sequence.saturating_add(1);
        }
        Ok(())
    }

    fn read_new<E: Events>(&mut self, recording: &Recording, wanted: &Wanted, events: &mut E) {
        let Some(pairing) = self.pairing.take() else { return };
        let mut delivery = Delivery::resume(&recording.scale, *wanted, events, pairing, self.nanos);
        for lane in 0..self.open.len() as u32 {
            self.merger.wake(lane, &mut self.queues);
        }
        self.merger.run(self.horizon, &mut self.queues, &mut delivery, Delivery::is_enough);
        let (pairing, nanos) = delivery.into_parts();
        (self.pairing, self.nanos) = (Some(pairing), nanos);
    }
}

impl OpenBlock {
    /// What was committed since the last time.
    fn read_on(&mut self, source: &Source) -> Result<Piece, RecordingError> {
        let mut bytes = Vec::new();
        source.read_at(self.offset + SegmentHeader::COMMITTED_OFFSET as u64, 8, &mut bytes)?;
        let committed = word(&bytes, 0).min(SEGMENT_BYTES as u64) as usize & !7;
        self.committed = committed.max(self.committed);
        source.read_at(self.offset + self.read_bytes as u64, self.committed - self.read_bytes, &mut bytes)?;
        let piece = Piece {
            block: self.offset,
            offset: self.read_bytes,
            ticks: self.ticks,
            latest: self.ticks,
            thread: 0,
            begins: VecDeque::new(),
            bytes,
        };
        self.read_bytes += piece.bytes.len();
        Ok(piece)
    }
}

/// Takes what is for the tables, and notes in the piece its latest time and which threads begin in
/// it.
fn take_tables(
    piece: &mut Piece,
    lane: LaneKey,
    start_counter: u64,
    tables: &mut TableBuilder,
    end: &mut Option<(EndReason, u64)>,
    findings: &mut Vec<Finding>,
) {
    let mut records = Records::new(&piece.bytes, piece.offset);
    loop {
        records.skip_frequent();
        let record = match records.next() {
            None => return,
            Some(Ok(placed)) => placed.record,
            Some(Err(error)) => {
                let lost_bytes = (piece.offset + piece.bytes.len()).saturating_sub(error.offset) as u64;
                findings.push(Finding::DamagedRecords { offset: piece.block, error, lost_bytes });
                return;
            }
        };
        piece.latest = piece.latest.max(ticks_of(&record, start_counter).unwrap_or(0));
        tables.record(&record);
        match record {
            Record::Thread { counter, event } => {
                let thread = tables.threads.record(lane, counter, event);
                if let (ThreadEvent::Began { .. }, Some(thread)) = (event, thread) {
                    piece.begins.push_back(thread);
                }
            }
            Record::End { reason, counter } => *end = Some((reason, counter)),
            Record::Loss { kind, count } => note_loss(kind, count, findings),
            _ => {}
        }
    }
}

/// A packed recording that `cairn` writes to.
struct LivePacked {
    scan: Scan,
    reader: ChunkReader,
    starts: Starts,
    taken: usize,
    /// Chunks of events that wait for the word that nothing in front of it is missing.
    waiting: Vec<Place>,
    /// Those for which it came, up to each such word, and until when that is everything.
    ready: VecDeque<(Vec<Place>, u64)>,
    /// The time of the last such word behind which everything was handed on; 0 where it names none.
    read_until: u64,
    /// The latest time that a chunk names.
    known_until: u64,
    event_limit: u64,
    decoder: HeapDecoder,
    nanos: u64,
    is_heap_lost: bool,
    idle_looks: u32,
    findings: Vec<Finding>,
}

impl LivePacked {
    fn new() -> Result<Self, RecordingError> {
        Ok(Self {
            scan: Scan::new(),
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
            idle_looks: 0,
            findings: Vec::new(),
        })
    }

    fn look(
        &mut self,
        recording: &mut Recording,
        tables: &mut TableBuilder,
        is_last: bool,
    ) -> Result<(), RecordingError> {
        self.scan.go_on(&recording.source, &mut self.findings, is_last)?;
        let new = self.scan.places.get(self.taken..).unwrap_or_default();
        self.taken = self.scan.places.len();
        self.idle_looks = if new.is_empty() { self.idle_looks.saturating_add(1) } else { 0 };
        for place in new {
            if place.kind == ChunkKind::PROGRESS || reader::EVENTS.contains(&place.kind) {
                self.known_until = self.known_until.max(place.first_nanos);
            }
            if place.kind == ChunkKind::PROGRESS {
                self.ready.push_back((std::mem::take(&mut self.waiting), place.first_nanos));
            } else if reader::EVENTS.contains(&place.kind) {
                self.waiting.push(*place);
            } else {
                let read = self.reader.read(&recording.source, place)?;
                let header = &recording.header;
                let facts = &mut recording.facts;
                let summary = read.and_then(|payload| {
                    reader::take_table(place.kind, payload, header, facts, tables, &mut self.starts)
                });
                match summary {
                    Ok(None) => {}
                    Ok(Some(summary)) => {
                        recording.end = reader::end_of(&summary, header);
                        recording.early = reader::early_end_of(&summary, header);
                        if let Layout::Packed(packed) = &mut recording.layout {
                            packed.summary = Some(summary);
                        }
                    }
                    Err(problem) => self.findings.push(reader::damaged(place, problem)),
                }
            }
        }
        let is_closed = matches!(&recording.layout, Layout::Packed(packed) if packed.summary.is_some());
        if is_last || is_closed {
            self.ready.push_back((std::mem::take(&mut self.waiting), 0));
        }
        // What has no events has been read when all in front of it has.
        while let Some((_, until)) = self.ready.pop_front_if(|(places, _)| places.is_empty()) {
            self.read_until = self.read_until.max(until);
        }
        Ok(())
    }

    fn read_new<E: Events>(
        &mut self,
        recording: &Recording,
        wanted: &Wanted,
        events: &mut E,
    ) -> Result<(), RecordingError> {
        let wanted = Wanted { heap: wanted.heap && !self.is_heap_lost, ..*wanted };
        let mut reading = Reading {
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
            reading.read(&recording.source, &places, &wanted, events, &mut self.findings)?;
            read = places.iter().fold(read, |sum, place| sum.saturating_add(place.events.into()));
        }
        (self.nanos, self.is_heap_lost) = (reading.nanos, reading.is_heap_lost);
        Ok(())
    }
}
