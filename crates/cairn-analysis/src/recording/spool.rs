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
}

#[derive(Clone, Copy)]
struct Block {
    offset: u64,
    /// How many bytes of it hold whole records.
    sound_bytes: usize,
    sequence: u32,
    counter: u64,
}

/// What the first pass over a spool gives.
pub(super) struct Scanned {
    pub(super) spool: Spool,
    pub(super) facts: Vec<Fact>,
    pub(super) tables: TableBuilder,
    pub(super) end: Option<(EndReason, u64)>,
}

/// Reads all blocks once: the tables, and where whose records are.
pub(super) fn scan(
    source: &Source,
    header: &FileHeader,
    findings: &mut Vec<Finding>,
) -> Result<Scanned, RecordingError> {
    let length = source.length()?;
    let mut bytes = Vec::new();
    source.read_at(0, BLOCK_BYTES, &mut bytes)?;
    let facts = facts(&bytes);
    control_findings(&bytes, length, findings);
    let state = control::State::from_word(word(&bytes, control::STATE));

    let mut tables = TableBuilder::default();
    let mut streams: BTreeMap<(u32, bool), Stream> = BTreeMap::new();
    let mut end = None;
    let mut offset = BLOCK_BYTES as u64;
    while offset < length {
        source.read_at(offset, BLOCK_BYTES, &mut bytes)?;
        match BlockHeader::read(&bytes) {
            Ok(block) => {
                let sound = scan_block(&bytes, offset, &block, &mut tables, &mut end, findings);
                let key = (block.thread, block.lane == Lane::Nested);
                let stream = streams.entry(key).or_insert_with(|| Stream {
                    thread: block.thread,
                    lane: block.lane,
                    blocks: Vec::new(),
                });
                stream.blocks.push(Block {
                    offset,
                    sound_bytes: sound,
                    sequence: block.sequence,
                    counter: block.counter,
                });
            }
            Err(BlockError::Unused) => {}
            Err(BlockError::Short) => {
                if bytes.iter().any(|&byte| byte != 0) {
                    findings.push(Finding::TornTail { offset, lost_bytes: bytes.len() as u64 });
                }
            }
            Err(error) => findings.push(Finding::DamagedBlock { offset, error }),
        }
        offset += BLOCK_BYTES as u64;
    }
    let mut streams: Vec<Stream> = streams.into_values().collect();
    for stream in &mut streams {
        order_blocks(stream, findings);
    }
    if end.is_none() && state == control::State::Ended {
        end = Some((EndReason::Exit, u64::MAX));
    }
    Ok(Scanned { spool: Spool { streams, start_counter: header.start_counter }, facts, tables, end })
}

fn scan_block(
    bytes: &[u8],
    offset: u64,
    block: &BlockHeader,
    tables: &mut TableBuilder,
    end: &mut Option<(EndReason, u64)>,
    findings: &mut Vec<Finding>,
) -> usize {
    let committed = block.committed_bytes as usize;
    if bytes.len() < committed {
        findings.push(Finding::TornTail {
            offset: offset + bytes.len() as u64,
            lost_bytes: (committed - bytes.len()) as u64,
        });
    }
    tables.thread_seen(block.thread, block.kernel_thread, block.counter);
    let present = bytes.get(..committed).unwrap_or(bytes);
    let mut records = Records::new(present.get(BLOCK_HEADER_BYTES..).unwrap_or_default(), BLOCK_HEADER_BYTES);
    let mut sound;
    loop {
        records.skip_frequent();
        sound = records.offset();
        let Some(record) = records.next() else { break };
        match record {
            Ok(placed) => {
                tables.record(block.thread, &placed.record);
                if let Record::End { reason, counter } = placed.record {
                    *end = Some((reason, counter));
                }
                if let Record::Loss { kind, count } = placed.record {
                    note_loss(kind, count, findings);
                }
            }
            // The cut of the file was told already.
            Err(_) if present.len() < committed => break,
            Err(error) => {
                let lost_bytes = (committed - error.offset) as u64;
                findings.push(Finding::DamagedRecords { offset, error, lost_bytes });
                break;
            }
        }
    }
    sound
}

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
    stream.blocks.sort_by_key(|block| block.sequence);
    let pairs = stream.blocks.windows(2);
    let missing = pairs.map(|pair| match pair {
        [a, b] => u64::from(b.sequence.saturating_sub(a.sequence).saturating_sub(1)),
        _ => 0,
    });
    let before = stream.blocks.first().map_or(0, |block| u64::from(block.sequence));
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
    for (at, kind) in
        [(control::LOST_EVENTS, LossKind::NoStorage), (control::LOST_STACKS, LossKind::NoStackMemory)]
    {
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
        let start = block.offset + BLOCK_HEADER_BYTES as u64;
        if let Err(error) = self.source.read_at(start, block.sound_bytes - BLOCK_HEADER_BYTES, bytes) {
            self.failure.get_or_insert(error);
            return None;
        }
        let ticks = block.counter.saturating_sub(self.spool.start_counter);
        Some(NextBlock { ticks, offset: BLOCK_HEADER_BYTES })
    }

    fn damaged(&mut self, _: u32, _: BadRecord, _: u64) {
        // The first pass told; only records that are sound are read again.
    }
}

impl Spool {
    /// Hands the events on, and tells how many frees had no allocation.
    pub(super) fn read<E: Events>(
        &self,
        source: &Source,
        scale: &TimeScale,
        wanted: &Wanted,
        events: &mut E,
    ) -> Result<u64, RecordingError> {
        let mut feed = FileFeed { source, spool: self, next: vec![0; self.streams.len()], failure: None };
        let mut merger = Merger::new(self.start_counter);
        let mut delivery = Delivery::new(scale, *wanted, events);
        for stream in &self.streams {
            let number = merger.add_stream(stream.thread, stream.lane);
            merger.wake(number, &mut feed);
        }
        merger.run(u64::MAX, &mut feed, &mut delivery, Delivery::is_enough);
        match feed.failure {
            Some(error) => Err(error),
            None => Ok(delivery.pairing.unmatched_frees()),
        }
    }
}
