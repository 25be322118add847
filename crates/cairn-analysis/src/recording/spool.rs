//! Reads a spool: the file that the program wrote, complete by itself.

use std::collections::BTreeMap;

use cairn_format::recording::{
    BLOCK_BYTES, BLOCK_HEADER_BYTES, BadRecord, BlockError, BlockHeader, EndReason, FileHeader, Lane,
    LossKind, Record, Records, control,
};

use super::clock::TimeScale;
use super::deliver::Delivery;
use super::error::{Finding, RecordingError};
use super::merge::{Feed, Merger, NextBlock};
use super::model::{Events, Fact, Wanted};
use super::pairing::Pairing;
use super::progress::Progress;
use super::source::Source;
use super::tables::TableBuilder;

/// What a walk over all blocks found.
pub(super) struct Spool {
    streams: Vec<Stream>,
    start_counter: u64,
}

/// The blocks of one thread's lane.
struct Stream {
    thread: u32,
    lane: Lane,
    blocks: Vec<Block>,
    /// Where it begins, when what is in front of that is in a packed recording.
    start: Option<Progress>,
}

#[derive(Clone, Copy)]
struct Block {
    offset: u64,
    /// How many bytes of it hold whole records.
    sound_bytes: usize,
    sequence: u32,
    counter: u64,
    is_wanted: bool,
}

/// What the first pass over a spool gives.
pub(super) struct Scanned {
    pub(super) spool: Spool,
    pub(super) facts: Vec<Fact>,
    pub(super) tables: TableBuilder,
    pub(super) end: Option<(EndReason, u64)>,
}

/// Which part of the time is wanted, in nanoseconds: from the first on, before the second.
pub(super) type ChooseWindow<'a> = dyn FnOnce(&TimeScale) -> (u64, u64) + 'a;

/// What of a spool is to be read.
pub(super) enum Part<'a> {
    /// All.
    Whole,
    /// A part of the time.
    Window(Option<Box<ChooseWindow<'a>>>),
    /// What is behind these places.
    Rest(&'a [Progress]),
}

impl<'a> Part<'a> {
    pub(super) fn window(choose: &mut Option<Box<ChooseWindow<'a>>>) -> Self {
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
const PREFIX_BYTES: usize = BLOCK_HEADER_BYTES + 32 + 16 + 24 + 40;

/// A block that is there.
struct Found {
    header: BlockHeader,
    block: Block,
    is_read: bool,
}

/// Reads all blocks once: the tables, and where whose records are. With a window, only the blocks that may have something of that
/// time or of the tables, and the beginnings of the others.
pub(super) fn scan(
    source: &Source,
    header: &FileHeader,
    mut part: Part<'_>,
    findings: &mut Vec<Finding>,
) -> Result<(Scanned, Option<(u64, u64)>), RecordingError> {
    let length = source.length()?;
    let mut bytes = Vec::new();
    source.read_at(0, BLOCK_BYTES, &mut bytes)?;
    let facts = facts(&bytes);
    control_findings(&bytes, length, findings);
    let state = control::State::from_word(word(&bytes, control::STATE));
    let is_exit = state == control::State::Ended || word(&bytes, control::EXITING) != 0;

    let mut sums = Sums { tables: TableBuilder::default(), end: None, findings };
    let mut found = Vec::new();
    let chosen = match part.take_window() {
        None => {
            for offset in block_offsets(length) {
                source.read_at(offset, BLOCK_BYTES, &mut bytes)?;
                if let Some(mut block) = read_header(&bytes, offset, sums.findings) {
                    sums.take_block(&bytes, &mut block);
                    found.push(block);
                }
            }
            None
        }
        Some(choose) => Some(scan_window(source, header, length, (&facts, choose), &mut sums, &mut found)?),
    };
    let Sums { tables, mut end, findings } = sums;
    let mut streams: BTreeMap<(u32, bool), Stream> = BTreeMap::new();
    for Found { header, block, is_read } in found {
        let stream = streams.entry(stream_of(&header)).or_insert_with(|| Stream {
            thread: header.thread,
            lane: header.lane,
            blocks: Vec::new(),
            start: None,
        });
        stream.blocks.push(Block { is_wanted: is_read, ..block });
    }
    let mut streams: Vec<Stream> = streams.into_values().collect();
    for stream in &mut streams {
        let is_it = |lane: &&Progress| {
            lane.thread == stream.thread && lane.is_nested == (stream.lane == Lane::Nested)
        };
        stream.start = part.drained().iter().find(is_it).copied();
        order_blocks(stream, findings);
        stream.blocks.retain(|block| block.is_wanted);
    }
    if end.is_none() && is_exit {
        end = Some((EndReason::Exit, u64::MAX));
    }
    let spool = Spool { streams, start_counter: header.start_counter };
    Ok((Scanned { spool, facts, tables, end }, chosen))
}

fn block_offsets(length: u64) -> impl Iterator<Item = u64> {
    (1..length.div_ceil(BLOCK_BYTES as u64)).map(|number| number * BLOCK_BYTES as u64)
}

fn stream_of(header: &BlockHeader) -> (u32, bool) {
    (header.thread, header.lane == Lane::Nested)
}

/// Reads what has to do with a part of the time.
fn scan_window(
    source: &Source,
    header: &FileHeader,
    length: u64,
    (facts, choose): (&[Fact], Box<ChooseWindow<'_>>),
    sums: &mut Sums<'_>,
    found: &mut Vec<Found>,
) -> Result<(u64, u64), RecordingError> {
    // One part in 372 of the file.
    let mut prefixes = Vec::new();
    let mut bytes = Vec::new();
    let mut clocks = Vec::new();
    for offset in block_offsets(length) {
        source.read_at(offset, PREFIX_BYTES, &mut bytes)?;
        let Some(block) = read_header(&bytes, offset, sums.findings) else { continue };
        for record in first_records(&bytes, &block.header) {
            if let Record::Clock(clock) = record {
                clocks.push(clock);
            }
        }
        bytes.resize(PREFIX_BYTES, 0);
        prefixes.extend_from_slice(&bytes);
        found.push(block);
    }
    let scale = TimeScale::new(header, &clocks, super::counter_hz(facts), &mut Vec::new());
    let chosen = choose(&scale);
    want_blocks(found, &scale, chosen);
    for (found, prefix) in found.iter_mut().zip(prefixes.chunks(PREFIX_BYTES)) {
        if found.is_read {
            source.read_at(found.block.offset, BLOCK_BYTES, &mut bytes)?;
            sums.take_block(&bytes, found);
            continue;
        }
        let header = &found.header;
        sums.tables.thread_seen(header.thread, header.kernel_thread, header.counter);
        for record in first_records(prefix, header) {
            sums.take_record(header.thread, &record);
        }
    }
    Ok(chosen)
}

/// Marks the blocks to be read: those with something of the window, those that may hold tables, and those behind which the thread is
/// another one or has come to its end.
fn want_blocks(found: &mut [Found], scale: &TimeScale, (since, until): (u64, u64)) {
    let mut order: Vec<usize> = (0..found.len()).collect();
    let key = |found: &Found| (stream_of(&found.header), found.header.sequence);
    order.sort_by_key(|&index| found.get(index).map(key));
    let mut after = order.iter().skip(1).map(|&index| found.get(index).map(|next| next.header));
    let nexts: Vec<Option<BlockHeader>> = order.iter().map(|_| after.next().flatten()).collect();
    for (&index, next) in order.iter().zip(nexts) {
        let Some(Found { header, is_read, .. }) = found.get_mut(index) else { continue };
        let next = next.filter(|next| stream_of(next) == stream_of(header));
        *is_read = !header.has_no_tables
            || next.is_none_or(|next| {
                // A thread takes a block when it has nothing more for the one before.
                next.kernel_thread != header.kernel_thread
                    || scale.nanos(header.counter) < until && since <= scale.nanos(next.counter)
            });
    }
}

/// The records at the start of a block that are not its events.
fn first_records<'a>(prefix: &'a [u8], header: &BlockHeader) -> impl Iterator<Item = Record<'a>> {
    let committed = prefix.get(..header.committed_bytes as usize).unwrap_or(prefix);
    let records = Records::new(committed.get(BLOCK_HEADER_BYTES..).unwrap_or_default(), BLOCK_HEADER_BYTES);
    records
        .map_while(Result::ok)
        .map(|placed| placed.record)
        .take_while(|record| matches!(record, Record::Clock(_) | Record::Thread { .. } | Record::Loss { .. }))
}

fn read_header(bytes: &[u8], offset: u64, findings: &mut Vec<Finding>) -> Option<Found> {
    match BlockHeader::read(bytes) {
        Ok(header) => {
            let BlockHeader { sequence, counter, .. } = header;
            let block = Block { offset, sound_bytes: 0, sequence, counter, is_wanted: true };
            return Some(Found { header, block, is_read: true });
        }
        Err(BlockError::Unused) => {}
        Err(BlockError::Short) => {
            if bytes.iter().any(|&byte| byte != 0) {
                findings.push(Finding::TornTail { offset, lost_bytes: bytes.len() as u64 });
            }
        }
        Err(error) => findings.push(Finding::DamagedBlock { offset, error }),
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
        let Found { header, block, .. } = found;
        let committed = header.committed_bytes as usize;
        if bytes.len() < committed {
            self.findings.push(Finding::TornTail {
                offset: block.offset + bytes.len() as u64,
                lost_bytes: (committed - bytes.len()) as u64,
            });
        }
        self.tables.thread_seen(header.thread, header.kernel_thread, header.counter);
        let present = bytes.get(..committed).unwrap_or(bytes);
        let records = present.get(BLOCK_HEADER_BYTES..).unwrap_or_default();
        let mut records = Records::new(records, BLOCK_HEADER_BYTES);
        loop {
            records.skip_frequent();
            block.sound_bytes = records.offset();
            match records.next() {
                Some(Ok(placed)) => self.take_record(header.thread, &placed.record),
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

    fn take_record(&mut self, thread: u32, record: &Record<'_>) {
        self.tables.record(thread, record);
        match *record {
            Record::End { reason, counter } => self.end = Some((reason, counter)),
            Record::Loss { kind, count } => note_loss(kind, count, self.findings),
            _ => {}
        }
    }
}

/// Control words that count what is not in the recording.
pub(super) const LOSSES: [(usize, LossKind); 3] = [
    (control::LOST_EVENTS, LossKind::NoStorage),
    (control::LOST_STACKS, LossKind::NoStackMemory),
    (control::PASSING_SLOTS, LossKind::Passing),
];

/// Losses are told once for each kind.
pub(super) fn note_loss(kind: LossKind, count: u64, findings: &mut Vec<Finding>) {
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

/// Blocks are taken from anywhere in the file, so their order is that of their numbers.
fn order_blocks(stream: &mut Stream, findings: &mut Vec<Finding>) {
    let start = stream.start.map_or(0, |start| start.sequence);
    stream.blocks.retain(|block| block.sequence >= start);
    stream.blocks.sort_by_key(|block| block.sequence);
    let pairs = stream.blocks.windows(2);
    let missing = pairs.map(|pair| match pair {
        [a, b] => u64::from(b.sequence.saturating_sub(a.sequence).saturating_sub(1)),
        _ => 0,
    });
    let before = stream.blocks.first().map_or(0, |block| u64::from(block.sequence - start));
    let count = missing.sum::<u64>() + before;
    if count > 0 {
        findings.push(Finding::MissingBlocks { thread: stream.thread, count });
    }
}

pub(super) fn word(bytes: &[u8], at: usize) -> u64 {
    let word = bytes.get(at..).and_then(|rest| rest.first_chunk());
    word.map_or(0, |word| u64::from_le_bytes(*word))
}

fn control_findings(control: &[u8], length: u64, findings: &mut Vec<Finding>) {
    if control.len() < BLOCK_BYTES {
        findings.push(Finding::TornTail { offset: length, lost_bytes: BLOCK_BYTES as u64 - length });
        return;
    }
    let claimed = word(control, control::CLAIMED_BLOCKS).min(1 << 40) * BLOCK_BYTES as u64;
    if claimed > length {
        // The block at the cut tells what it lost of itself.
        let whole = length.next_multiple_of(BLOCK_BYTES as u64);
        if claimed > whole {
            findings.push(Finding::TornTail { offset: whole, lost_bytes: claimed - whole });
        }
    }
    for (at, kind) in LOSSES {
        let count = word(control, at);
        if count > 0 {
            note_loss(kind, count, findings);
        }
    }
    let blocks = word(control, control::FREE_GIVEN);
    if blocks > 0 {
        findings.push(Finding::Drained { blocks });
    }
}

/// The facts: `name=value` pairs, each ended by a NUL.
pub(super) fn facts(control: &[u8]) -> Vec<Fact> {
    let length = word(control, control::FACTS_BYTES).min(control::FACTS_LIMIT_BYTES as u64) as usize;
    let bytes = control.get(control::FACTS..).unwrap_or_default();
    parse_facts(bytes.get(..length).unwrap_or(bytes))
}

pub(super) fn parse_facts(bytes: &[u8]) -> Vec<Fact> {
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
    failure: Option<RecordingError>,
}

impl Feed for FileFeed<'_> {
    fn more(&mut self, stream: u32, bytes: &mut Vec<u8>) -> Option<NextBlock> {
        let next = self.next.get_mut(stream as usize)?;
        let block = self.spool.streams.get(stream as usize)?.blocks.get(*next)?;
        *next += 1;
        let first = match self.spool.streams.get(stream as usize)?.start {
            Some(start) if start.sequence == block.sequence => start.offset as usize,
            _ => BLOCK_HEADER_BYTES,
        };
        let count = block.sound_bytes.saturating_sub(first);
        if let Err(error) = self.source.read_at(block.offset + first as u64, count, bytes) {
            self.failure.get_or_insert(error);
            return None;
        }
        let ticks = block.counter.saturating_sub(self.spool.start_counter);
        Some(NextBlock { ticks, offset: first })
    }

    fn damaged(&mut self, _: u32, _: BadRecord, _: u64) {
        // The first pass told; only records that are sound are read again.
    }
}

impl Spool {
    /// One without blocks.
    pub(super) fn empty() -> Self {
        Self { streams: Vec::new(), start_counter: 0 }
    }

    /// Hands the events on, and tells how many frees had no allocation.
    pub(super) fn read<E: Events>(
        &self,
        source: &Source,
        scale: &TimeScale,
        wanted: &Wanted,
        events: &mut E,
    ) -> Result<u64, RecordingError> {
        self.read_from(source, scale, wanted, events, 0)
    }

    /// As [`read`](Self::read), with no event before a time.
    pub(super) fn read_from<E: Events>(
        &self,
        source: &Source,
        scale: &TimeScale,
        wanted: &Wanted,
        events: &mut E,
        start_nanos: u64,
    ) -> Result<u64, RecordingError> {
        let mut feed = FileFeed { source, spool: self, next: vec![0; self.streams.len()], failure: None };
        let mut merger = Merger::new(self.start_counter);
        let mut delivery = Delivery::resume(scale, *wanted, events, Pairing::new(), start_nanos);
        for stream in &self.streams {
            let (ticks, is_moving) = stream.start.map_or((0, false), |start| (start.ticks, start.is_moving));
            let number = merger.resume_stream(stream.thread, stream.lane, ticks, is_moving);
            merger.wake(number, &mut feed);
        }
        merger.run(u64::MAX, &mut feed, &mut delivery, Delivery::is_enough);
        match feed.failure {
            Some(error) => Err(error),
            None => Ok(delivery.pairing.unmatched_frees()),
        }
    }
}
