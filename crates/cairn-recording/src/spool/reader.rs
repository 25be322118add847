//! Reads a spool: the file that the program wrote, complete by itself.

use std::collections::BTreeMap;

use cairn_format::recording::control::EarlyEnd;
use cairn_format::recording::{
    BadRecord, Clock, EndReason, FileHeader, Lane, LossKind, Record, Records, SEGMENT_BYTES,
    SEGMENT_HEADER_BYTES, SegmentError, SegmentHeader, ThreadEvent, control,
};

use super::deliver::Delivery;
use super::lives::{LaneKey, Lives};
use super::merge::{Feed, Merger, NextBlock};
use super::pairing::Pairing;
use crate::clock::TimeScale;
use crate::error::{EndedEarly, Finding, RecordingError};
use crate::model::{Events, Fact, Wanted};
use crate::packed::progress::Progress;
use crate::source::Source;
use crate::tables::TableBuilder;

/// What a walk over all blocks found.
pub(crate) struct Spool {
    streams: Vec<Stream>,
    start_counter: u64,
    /// Nothing behind it is handed on.
    horizon: u64,
}

/// The blocks of one thread's lane.
struct Stream {
    blocks: Vec<Block>,
    /// Where it begins, when what is in front of that is in a packed recording.
    start: Option<Progress>,
    /// Where later threads begin in these blocks.
    begins: Vec<Begin>,
}

/// A record of kind *began*.
#[derive(Clone, Copy)]
struct Begin {
    sequence: u32,
    /// Where in its block it is.
    offset: usize,
    /// The number of the thread.
    thread: u32,
}

#[derive(Clone, Copy)]
struct Block {
    offset: u64,
    /// How many bytes of it hold whole records.
    sound_bytes: usize,
    sequence: u32,
    counter: u64,
    /// The number of the thread whose records the first ones are.
    thread: u32,
}

/// What the first pass over a spool gives.
pub(crate) struct Scanned {
    pub(crate) spool: Spool,
    pub(crate) facts: Vec<Fact>,
    pub(crate) tables: TableBuilder,
    pub(crate) end: Option<(EndReason, u64)>,
    pub(crate) early: Option<RawEarlyEnd>,
}

/// Why a recording ended before its program did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RawEarlyEnd {
    pub(crate) cause: EarlyEnd,
    /// The counter then; 0 where that is not known.
    pub(crate) counter: u64,
    pub(crate) missed: u64,
}

impl RawEarlyEnd {
    /// What the control words say.
    pub(crate) fn of_words(word: impl Fn(usize) -> u64) -> Option<Self> {
        let state = control::State::from_word(word(control::STATE));
        // What was asked to end can be asked to go on.
        let goes_on = state == control::State::Recording
            && control::Command::from_word(word(control::COMMAND)) == control::Command::Record;
        let noted = EarlyEnd::from_word(word(control::EARLY_END));
        let noted = noted.filter(|cause| !(goes_on && cause.is_intended()));
        let cause = noted.or(match state {
            // By a recorder that gave no reason.
            control::State::Full => Some(EarlyEnd::NoRoom),
            // The program has ended, and nobody has let it go on.
            control::State::Paused if word(control::EXITING) != 0 => Some(EarlyEnd::Paused),
            _ => None,
        })?;
        let counter = word(control::EARLY_END_COUNTER);
        Some(Self { cause, counter, missed: word(control::LOST_EVENTS) })
    }

    /// As the end of the recording.
    pub(crate) fn end(self) -> (EndReason, u64) {
        (EndReason::Stopped, if self.counter == 0 { u64::MAX } else { self.counter })
    }

    pub(crate) fn ended(self, scale: &TimeScale) -> EndedEarly {
        let nanos = if self.counter == 0 { 0 } else { scale.nanos(self.counter).max(1) };
        EndedEarly { cause: self.cause, nanos, missed: self.missed }
    }
}

/// Which part of the time is wanted, in nanoseconds: from the first on, before the second.
pub(crate) type ChooseWindow<'a> = dyn FnOnce(&TimeScale) -> (u64, u64) + 'a;

/// What of a spool is to be read.
pub(crate) enum Part<'a> {
    /// All.
    Whole,
    /// A part of the time.
    Window(Option<Box<ChooseWindow<'a>>>),
    /// What is behind these places.
    Rest(&'a [Progress]),
}

impl<'a> Part<'a> {
    pub(crate) fn window(choose: &mut Option<Box<ChooseWindow<'a>>>) -> Self {
        choose.take().map_or(Self::Whole, |choose| Self::Window(Some(choose)))
    }

    fn take_window(&mut self) -> Option<Box<ChooseWindow<'a>>> {
        match self {
            Self::Window(choose) => choose.take(),
            _ => None,
        }
    }

    fn drained(&self) -> &[Progress] {
        match self {
            Self::Rest(lanes) => lanes,
            _ => &[],
        }
    }
}

/// So much of a block is read to know when it was taken, what the clocks said then, and what the thread was called: the
/// header, a reading of the clocks, what a ring lost, the thread's number and name.
const PREFIX_BYTES: usize = SEGMENT_HEADER_BYTES + 32 + 16 + 24 + 40;

/// A block that is there.
struct Found {
    header: SegmentHeader,
    block: Block,
    is_read: bool,
    /// What it says of threads.
    threads: Vec<ThreadNote>,
}

/// A record of a thread, as far as it was read.
struct ThreadNote {
    /// Where in its block it is.
    offset: usize,
    counter: u64,
    what: Noted,
}

enum Noted {
    Began { kernel_thread: u32 },
    Named(Vec<u8>),
    Ended,
}

impl ThreadNote {
    fn of(record: &Record<'_>, offset: usize) -> Option<Self> {
        let Record::Thread { counter, event } = *record else { return None };
        let what = match event {
            ThreadEvent::Began { kernel_thread } => Noted::Began { kernel_thread },
            ThreadEvent::Named(name) => Noted::Named(name.to_vec()),
            ThreadEvent::Ended => Noted::Ended,
            _ => return None,
        };
        Some(Self { offset, counter, what })
    }

    fn event(&self) -> ThreadEvent<'_> {
        match &self.what {
            &Noted::Began { kernel_thread } => ThreadEvent::Began { kernel_thread },
            Noted::Named(name) => ThreadEvent::Named(name),
            Noted::Ended => ThreadEvent::Ended,
        }
    }
}

/// Reads all blocks once: the tables, and where whose records are. With a window, only the blocks that may have something of that
/// time or of the tables, and the beginnings of the others.
pub(crate) fn scan(
    source: &Source,
    header: &FileHeader,
    mut part: Part<'_>,
    findings: &mut Vec<Finding>,
) -> Result<(Scanned, Option<(u64, u64)>), RecordingError> {
    let length = source.length()?;
    let mut bytes = Vec::new();
    source.read_at(0, SEGMENT_BYTES, &mut bytes)?;
    let facts = facts(&bytes);
    let early = RawEarlyEnd::of_words(|at| word(&bytes, at));
    control_findings(&bytes, length, early.is_some(), findings);
    let state = control::State::from_word(word(&bytes, control::STATE));
    let is_exiting = word(&bytes, control::EXITING) != 0;
    let exit_clock = exit_clock(&bytes);

    let mut sums = Sums { tables: TableBuilder::default(), end: None, findings };
    let mut found = Vec::new();
    let chosen = match part.take_window() {
        None => {
            for offset in block_offsets(length) {
                source.read_at(offset, SEGMENT_BYTES, &mut bytes)?;
                if let Some(mut block) = read_header(&bytes, offset, sums.findings) {
                    sums.take_block(&bytes, &mut block);
                    found.push(block);
                }
            }
            None
        }
        Some(choose) => {
            Some(scan_window(source, (header, exit_clock), length, (&facts, choose), &mut sums, &mut found)?)
        }
    };
    let Sums { mut tables, mut end, findings } = sums;
    tables.clocks.extend(exit_clock);
    let mut lanes: BTreeMap<LaneKey, Vec<Found>> = BTreeMap::new();
    for block in found {
        lanes.entry(lane_of(&block.header)).or_default().push(block);
    }
    for (&(thread, is_nested), blocks) in &mut lanes {
        let is_it = |lane: &&Progress| lane.thread == thread && lane.is_nested == is_nested;
        let start = part.drained().iter().find(is_it);
        order_blocks(thread, start.map_or(0, |start| start.sequence), blocks, findings);
    }
    let begins = number_threads(&mut lanes, &mut tables.threads);
    let streams = lanes.into_iter().zip(begins).map(|((lane, blocks), begins)| {
        let (thread, is_nested) = lane;
        let is_it = |lane: &&Progress| lane.thread == thread && lane.is_nested == is_nested;
        let wanted = blocks.into_iter().filter(|found| found.is_read);
        let blocks = wanted.map(|found| found.block).collect();
        Stream { blocks, start: part.drained().iter().find(is_it).copied(), begins }
    });
    let streams = streams.collect();
    if end.is_none() {
        end = unsaid_end(state, is_exiting).map(|reason| (reason, u64::MAX));
    }
    if let Some(early) = early {
        end = Some(early.end());
    }
    let spool = Spool { streams, start_counter: header.start_counter, horizon: u64::MAX };
    Ok((Scanned { spool, facts, tables, end, early }, chosen))
}

/// The clocks when the program ended through `exit`, from the control words.
pub(crate) fn exit_clock(bytes: &[u8]) -> Option<Clock> {
    let counter = word(bytes, control::EXIT_COUNTER);
    let monotonic_nanos = word(bytes, control::EXIT_MONOTONIC_NANOS);
    let wall_nanos = word(bytes, control::EXIT_WALL_NANOS);
    (counter != 0).then_some(Clock { counter, monotonic_nanos, wall_nanos })
}

/// How a recording ended that has no record of it. A program that exits says so by a word; what was
/// stopped or had no room then ended before the program did.
pub(crate) fn unsaid_end(state: control::State, is_exiting: bool) -> Option<EndReason> {
    match state {
        control::State::Ended => Some(if is_exiting { EndReason::Exit } else { EndReason::Stopped }),
        control::State::Paused | control::State::Full => is_exiting.then_some(EndReason::Stopped),
        _ => is_exiting.then_some(EndReason::Exit),
    }
}

fn block_offsets(length: u64) -> impl Iterator<Item = u64> {
    (1..length.div_ceil(SEGMENT_BYTES as u64)).map(|number| number * SEGMENT_BYTES as u64)
}

fn lane_of(header: &SegmentHeader) -> LaneKey {
    (header.thread, header.lane == Lane::Nested)
}

/// Gives each thread that had a lane a number of its own, in the order in which they began; the
/// answer is, by lane, where threads begin.
fn number_threads(lanes: &mut BTreeMap<LaneKey, Vec<Found>>, lives: &mut Lives) -> Vec<Vec<Begin>> {
    lives.reserve(lanes.iter().filter(|(_, blocks)| !blocks.is_empty()).map(|(&(thread, _), _)| thread));
    // Each lane in its own order, and all of them as far as possible in the order of time: with a
    // note, or a block where there is none.
    let mut steps: Vec<(u64, usize, usize, Option<usize>)> = Vec::new();
    for (lane, blocks) in lanes.values().enumerate() {
        let mut now = 0;
        for (index, found) in blocks.iter().enumerate() {
            // A block is taken for a record that says what time it was a moment before.
            let first = found.threads.first().map_or(u64::MAX, |note| note.counter);
            now = found.block.counter.min(first).max(now);
            steps.push((now, lane, index, None));
            for (note, at) in found.threads.iter().zip(0..) {
                now = note.counter.max(now);
                steps.push((now, lane, index, Some(at)));
            }
        }
    }
    steps.sort_by_key(|&(now, ..)| now);
    let mut begins: Vec<Vec<Begin>> = lanes.iter().map(|_| Vec::new()).collect();
    let mut lanes: Vec<(&LaneKey, &mut Vec<Found>)> = lanes.iter_mut().collect();
    for (_, lane, index, note) in steps {
        let Some((key, blocks)) = lanes.get_mut(lane) else { continue };
        let key = **key;
        let Some(found) = blocks.get_mut(index) else { continue };
        let Some(note) = note.and_then(|at| found.threads.get(at)) else {
            let SegmentHeader { kernel_thread, counter, .. } = found.header;
            found.block.thread = lives.block(key, kernel_thread, counter);
            continue;
        };
        let thread = lives.record(key, note.counter, note.event());
        if let (Noted::Began { .. }, Some(thread), Some(begins)) = (&note.what, thread, begins.get_mut(lane))
        {
            begins.push(Begin { sequence: found.block.sequence, offset: note.offset, thread });
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
    sums: &mut Sums<'_>,
    found: &mut Vec<Found>,
) -> Result<(u64, u64), RecordingError> {
    // One part in 372 of the file.
    let mut prefixes = Vec::new();
    let mut bytes = Vec::new();
    let mut clocks = Vec::from_iter(exit_clock);
    for offset in block_offsets(length) {
        source.read_at(offset, PREFIX_BYTES, &mut bytes)?;
        let Some(block) = read_header(&bytes, offset, sums.findings) else { continue };
        for (record, _) in first_records(&bytes, &block.header) {
            if let Record::Clock(clock) = record {
                clocks.push(clock);
            }
        }
        bytes.resize(PREFIX_BYTES, 0);
        prefixes.extend_from_slice(&bytes);
        found.push(block);
    }
    let scale = TimeScale::new(header, &clocks, crate::counter_hz(facts), &mut Vec::new());
    let chosen = choose(&scale);
    want_blocks(found, &scale, chosen);
    for (found, prefix) in found.iter_mut().zip(prefixes.chunks(PREFIX_BYTES)) {
        if found.is_read {
            source.read_at(found.block.offset, SEGMENT_BYTES, &mut bytes)?;
            sums.take_block(&bytes, found);
            continue;
        }
        for (record, offset) in first_records(prefix, &found.header) {
            sums.take_record(&record, offset, &mut found.threads);
        }
    }
    Ok(chosen)
}

/// Marks the blocks to be read: those with something of the window, those that may hold tables, and those behind which the thread is
/// another one or has come to its end.
fn want_blocks(found: &mut [Found], scale: &TimeScale, (since, until): (u64, u64)) {
    let mut order: Vec<usize> = (0..found.len()).collect();
    let key = |found: &Found| (lane_of(&found.header), found.header.sequence);
    order.sort_by_key(|&index| found.get(index).map(key));
    let mut after = order.iter().skip(1).map(|&index| found.get(index).map(|next| next.header));
    let nexts: Vec<Option<SegmentHeader>> = order.iter().map(|_| after.next().flatten()).collect();
    for (&index, next) in order.iter().zip(nexts) {
        let Some(Found { header, is_read, .. }) = found.get_mut(index) else { continue };
        let next = next.filter(|next| lane_of(next) == lane_of(header));
        *is_read = !header.has_no_tables
            || next.is_none_or(|next| {
                // A thread takes a block when it has nothing more for the one before.
                next.kernel_thread != header.kernel_thread
                    || scale.nanos(header.counter) < until && since <= scale.nanos(next.counter)
            });
    }
}

/// The records at the start of a block that are not its events.
fn first_records<'a>(prefix: &'a [u8], header: &SegmentHeader) -> impl Iterator<Item = (Record<'a>, usize)> {
    let committed = prefix.get(..header.committed_bytes as usize).unwrap_or(prefix);
    let records =
        Records::new(committed.get(SEGMENT_HEADER_BYTES..).unwrap_or_default(), SEGMENT_HEADER_BYTES);
    records.map_while(Result::ok).map(|placed| (placed.record, placed.offset)).take_while(|(record, _)| {
        matches!(record, Record::Clock(_) | Record::Thread { .. } | Record::Loss { .. })
    })
}

fn read_header(bytes: &[u8], offset: u64, findings: &mut Vec<Finding>) -> Option<Found> {
    match SegmentHeader::read(bytes) {
        Ok(header) => {
            let SegmentHeader { sequence, counter, .. } = header;
            let block = Block { offset, sound_bytes: 0, sequence, counter, thread: 0 };
            return Some(Found { header, block, is_read: true, threads: Vec::new() });
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

/// What all blocks tell together.
struct Sums<'a> {
    tables: TableBuilder,
    end: Option<(EndReason, u64)>,
    findings: &'a mut Vec<Finding>,
}

impl Sums<'_> {
    fn take_block(&mut self, bytes: &[u8], found: &mut Found) {
        let Found { header, block, threads, .. } = found;
        let committed = header.committed_bytes as usize;
        if bytes.len() < committed {
            self.findings.push(Finding::TornTail {
                offset: block.offset + bytes.len() as u64,
                lost_bytes: (committed - bytes.len()) as u64,
            });
        }
        let present = bytes.get(..committed).unwrap_or(bytes);
        let records = present.get(SEGMENT_HEADER_BYTES..).unwrap_or_default();
        let mut records = Records::new(records, SEGMENT_HEADER_BYTES);
        loop {
            records.skip_frequent();
            let offset = records.offset();
            block.sound_bytes = offset;
            match records.next() {
                Some(Ok(placed)) => self.take_record(&placed.record, offset, threads),
                None => return,
                // The cut of the file was told already.
                Some(Err(_)) if present.len() < committed => return,
                Some(Err(error)) => {
                    let lost_bytes = (committed - error.offset) as u64;
                    let offset = block.offset;
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

/// Control words that count what is not in the recording.
pub(crate) const LOSSES: [(usize, LossKind); 3] = [
    (control::LOST_EVENTS, LossKind::NoStorage),
    (control::LOST_STACKS, LossKind::NoStackMemory),
    (control::PASSING_SLOTS, LossKind::Passing),
];

/// Losses are told once for each kind.
pub(crate) fn note_loss(kind: LossKind, count: u64, findings: &mut Vec<Finding>) {
    for finding in findings.iter_mut() {
        match finding {
            Finding::Lost { kind: known, count: sum } if *known == kind => {
                *sum = sum.saturating_add(count);
                return;
            }
            _ => {}
        }
    }
    findings.push(Finding::Lost { kind, count });
}

/// A copy of a ring, whose blocks the program overwrites meanwhile: each block is as it was at one
/// moment. Those that were overwritten during each of some tries are left out and counted.
pub(crate) fn copy_of_ring(source: &Source) -> Result<(Vec<u8>, u64), RecordingError> {
    const TRIES: u32 = 4;
    let length = source.length()?;
    let (mut copy, mut lost) = (Vec::new(), 0);
    source.read_at(0, SEGMENT_BYTES, &mut copy)?;
    let (mut block, mut head) = (Vec::new(), Vec::new());
    for offset in block_offsets(length) {
        let mut is_whole = false;
        for _ in 0..TRIES {
            source.read_at(offset, SEGMENT_BYTES, &mut block)?;
            source.read_at(offset, SEGMENT_HEADER_BYTES, &mut head)?;
            // Its length becomes 0 before anything else of it is overwritten, and its claim is
            // another one afterwards.
            let claim = |bytes: &[u8]| SegmentHeader::read(bytes).map(|header| header.claim);
            is_whole = claim(&block) == claim(&head);
            if is_whole {
                break;
            }
        }
        if !is_whole {
            block.fill(0);
            lost += 1;
        }
        copy.extend_from_slice(&block);
    }
    Ok((copy, lost))
}

/// Whether the program keeps its last events only.
pub(crate) fn is_ring(facts: &[Fact]) -> bool {
    facts.iter().any(|fact| fact.name == "mode" && fact.value == b"ring")
}

/// Blocks are taken from anywhere in the file, so their order is that of their numbers.
fn order_blocks(thread: u32, start: u32, blocks: &mut Vec<Found>, findings: &mut Vec<Finding>) {
    blocks.retain(|found| found.block.sequence >= start);
    blocks.sort_by_key(|found| found.block.sequence);
    let pairs = blocks.windows(2);
    let missing = pairs.map(|pair| match pair {
        [a, b] => u64::from(b.block.sequence.saturating_sub(a.block.sequence).saturating_sub(1)),
        _ => 0,
    });
    let before = blocks.first().map_or(0, |found| u64::from(found.block.sequence - start));
    let count = missing.sum::<u64>() + before;
    if count > 0 {
        findings.push(Finding::MissingSegments { thread, count });
    }
}

pub(crate) fn word(bytes: &[u8], at: usize) -> u64 {
    let word = bytes.get(at..).and_then(|rest| rest.first_chunk());
    word.map_or(0, |word| u64::from_le_bytes(*word))
}

fn control_findings(control: &[u8], length: u64, ended_early: bool, findings: &mut Vec<Finding>) {
    if control.len() < SEGMENT_BYTES {
        findings.push(Finding::TornTail { offset: length, lost_bytes: SEGMENT_BYTES as u64 - length });
        return;
    }
    let claimed = word(control, control::CLAIMED_SEGMENTS).min(1 << 40) * SEGMENT_BYTES as u64;
    if claimed > length {
        // The block at the cut tells what it lost of itself.
        let whole = length.next_multiple_of(SEGMENT_BYTES as u64);
        if claimed > whole {
            findings.push(Finding::TornTail { offset: whole, lost_bytes: claimed - whole });
        }
    }
    for (at, kind) in LOSSES {
        let count = word(control, at);
        // Events after an early end are counted with it.
        if count > 0 && !(ended_early && kind == LossKind::NoStorage) {
            note_loss(kind, count, findings);
        }
    }
    let segments = word(control, control::FREE_GIVEN);
    if segments > 0 {
        findings.push(Finding::Drained { segments });
    }
}

/// The facts: `name=value` pairs, each ended by a NUL.
pub(crate) fn facts(control: &[u8]) -> Vec<Fact> {
    let length = word(control, control::FACTS_BYTES).min(control::FACTS_LIMIT_BYTES as u64) as usize;
    let bytes = control.get(control::FACTS..).unwrap_or_default();
    parse_facts(bytes.get(..length).unwrap_or(bytes))
}

pub(crate) fn parse_facts(bytes: &[u8]) -> Vec<Fact> {
    let lines = bytes.split(|&byte| byte == 0).filter(|line| !line.is_empty());
    lines
        .map(|line| {
            let cut = line.iter().position(|&byte| byte == b'=').unwrap_or(line.len());
            let (name, value) = line.split_at(cut);
            Fact {
                name: String::from_utf8_lossy(name).into_owned(),
                value: value.get(1..).unwrap_or_default().to_vec(),
            }
        })
        .collect()
}

/// Reads the blocks of each stream in turn.
struct FileFeed<'a> {
    source: &'a Source,
    spool: &'a Spool,
    next: Vec<usize>,
    /// By stream: the next of its [`begins`](Stream::begins).
    next_begin: Vec<usize>,
    failure: Option<RecordingError>,
}

impl Feed for FileFeed<'_> {
    fn more(&mut self, stream: u32, bytes: &mut Vec<u8>) -> Option<NextBlock> {
        let next = self.next.get_mut(stream as usize)?;
        let of_stream = self.spool.streams.get(stream as usize)?;
        let block = of_stream.blocks.get(*next)?;
        *next += 1;
        let first = match of_stream.start {
            Some(start) if start.sequence == block.sequence => start.offset as usize,
            _ => SEGMENT_HEADER_BYTES,
        };
        let count = block.sound_bytes.saturating_sub(first);
        if let Err(error) = self.source.read_at(block.offset + first as u64, count, bytes) {
            self.failure.get_or_insert(error);
            return None;
        }
        let is_before = |begin: &Begin| (begin.sequence, begin.offset) < (block.sequence, first);
        let passed = of_stream.begins.partition_point(is_before);
        let before = passed.checked_sub(1).and_then(|last| of_stream.begins.get(last));
        let before = before.filter(|begin| begin.sequence == block.sequence);
        if let Some(next_begin) = self.next_begin.get_mut(stream as usize) {
            *next_begin = passed;
        }
        let ticks = block.counter.saturating_sub(self.spool.start_counter);
        Some(NextBlock { ticks, offset: first, thread: before.map_or(block.thread, |begin| begin.thread) })
    }

    fn thread(&mut self, stream: u32, _: u64, event: ThreadEvent<'_>) -> Option<u32> {
        let ThreadEvent::Began { .. } = event else { return None };
        let next = self.next_begin.get_mut(stream as usize)?;
        let begin = self.spool.streams.get(stream as usize)?.begins.get(*next)?;
        *next += 1;
        Some(begin.thread)
    }

    fn damaged(&mut self, _: u32, _: BadRecord, _: u64) {
        // The first pass told; only records that are sound are read again.
    }
}

impl Spool {
    /// One without blocks.
    pub(crate) fn empty() -> Self {
        Self { streams: Vec::new(), start_counter: 0, horizon: u64::MAX }
    }

    /// Says that the program still writes it, and that what is behind these ticks is not all there.
    pub(crate) fn grows_since(&mut self, ticks: u64) {
        self.horizon = ticks;
    }

    /// Gives threads the numbers that `number` says.
    pub(crate) fn renumber_threads(&mut self, number: impl Fn(u32) -> u32) {
        for stream in &mut self.streams {
            stream.blocks.iter_mut().for_each(|block| block.thread = number(block.thread));
            stream.begins.iter_mut().for_each(|begin| begin.thread = number(begin.thread));
        }
    }

    /// Hands the events on, and tells how many frees had no allocation.
    pub(crate) fn read<E: Events>(
        &self,
        source: &Source,
        scale: &TimeScale,
        wanted: &Wanted,
        events: &mut E,
    ) -> Result<u64, RecordingError> {
        self.read_from(source, scale, wanted, events, 0)
    }

    /// As [`read`](Self::read), with no event before a time.
    pub(crate) fn read_from<E: Events>(
        &self,
        source: &Source,
        scale: &TimeScale,
        wanted: &Wanted,
        events: &mut E,
        start_nanos: u64,
    ) -> Result<u64, RecordingError> {
        let none = vec![0; self.streams.len()];
        let mut feed = FileFeed { source, spool: self, next: none.clone(), next_begin: none, failure: None };
        let mut merger = Merger::new(self.start_counter);
        let mut delivery = Delivery::resume(scale, *wanted, events, Pairing::new(), start_nanos);
        for stream in &self.streams {
            let (ticks, is_moving) = stream.start.map_or((0, false), |start| (start.ticks, start.is_moving));
            let number = merger.resume_stream(ticks, is_moving);
            merger.wake(number, &mut feed);
        }
        merger.run(self.horizon, &mut feed, &mut delivery, Delivery::is_enough);
        match feed.failure {
            Some(error) => Err(error),
            None => Ok(delivery.pairing.unmatched_frees()),
        }
    }
}
