//! A program that never ran: what its threads do is given, and the spool is what a recorder would
//! have written.
//!
//! Nothing here uses the reader's code; the bytes come from `cairn_format`'s writers, segment by
//! segment.

#![allow(dead_code, reason = "each user of this file needs a part of it")]

use std::collections::HashMap;

use cairn_format::recording::{
    Clock, CounterKind, EPOCHS, EndReason, FileHeader, Lane, LoadedModule, MarkValue, PcKind, RecordSink,
    SEGMENT_BYTES, SEGMENT_HEADER_BYTES, STAMP_SHIFT, SegmentHeader, Shape, SinkTooSmall, ThreadEvent,
    control, epoch_of,
};

/// The counter at the start.
pub(crate) const START: u64 = 1_000_000;

/// Thread whose segments hold the tables after [`Spool::keep_tables_apart`].
const TABLE_THREAD: u32 = 900;

/// Segments, written in the order in which they are taken.
#[derive(Clone)]
pub(crate) struct Spool {
    pub(crate) header: FileHeader,
    pub(crate) control: Vec<u8>,
    segments: Vec<Vec<u64>>,
    heads: Vec<SegmentHeader>,
    /// By thread and lane: the segment that is written to.
    open: Vec<((u32, Lane), usize)>,
    slots: Vec<u64>,
    /// Where modules, addresses and words go.
    table_thread: u32,
    /// Bytes at which a segment is full.
    pub(crate) segment_bytes: usize,
    /// Kernel's number of the thread by the recorder's number, where it is not 1000 more.
    ///
    /// It is that of the thread that has the number now.
    kernel_threads: HashMap<u32, u32>,
    /// The order of all writes: segment and slots.
    pub(crate) journal: Option<Vec<(usize, usize)>>,
}

impl Spool {
    pub(crate) fn new(counter: CounterKind) -> Self {
        let header = FileHeader {
            shape: Shape::Spool,
            address_bits: 64,
            machine: 62,
            counter,
            process: 4711,
            start_wall_nanos: 1_800_000_000_000_000_000,
            start_monotonic_nanos: 5_000_000_000,
            start_counter: START,
            stamp_interval: 8,
        };
        let mut spool = Self {
            header,
            control: vec![0; SEGMENT_BYTES],
            segments: Vec::new(),
            heads: Vec::new(),
            open: Vec::new(),
            slots: Vec::new(),
            table_thread: 1,
            segment_bytes: SEGMENT_BYTES,
            kernel_threads: HashMap::new(),
            journal: None,
        };
        spool.facts(&[("command", "program --flag"), ("host", "somewhere"), ("cairn", "0.1.0")]);
        spool
    }

    pub(crate) fn facts(&mut self, facts: &[(&str, &str)]) {
        let text: Vec<u8> =
            facts.iter().flat_map(|(name, value)| format!("{name}={value}\0").into_bytes()).collect();
        self.set(control::FACTS_BYTES, text.len() as u64);
        self.control[control::FACTS..][..text.len()].copy_from_slice(&text);
    }

    pub(crate) fn set(&mut self, word: usize, value: u64) {
        self.control[word..word + 8].copy_from_slice(&value.to_le_bytes());
    }

    /// Writes one record (or several that belong together) for a thread.
    ///
    /// It goes into a new segment when the present one is full.
    pub(crate) fn write(
        &mut self,
        thread: u32,
        lane: Lane,
        counter: u64,
        record: impl Fn(&mut RecordSink<'_>) -> Result<(), SinkTooSmall>,
    ) {
        let place = self.open.iter().position(|(key, _)| *key == (thread, lane));
        let current = place.map(|place| self.open[place].1);
        let mut slots = std::mem::take(&mut self.slots);
        slots.resize(2048, 0);
        let mut sink = RecordSink::new(&mut slots);
        record(&mut sink).expect("a record fits 16 KiB");
        let written = sink.written();
        let is_full = current.is_none_or(|segment| {
            (self.segments[segment].len() + written.len()) * 8 + SEGMENT_HEADER_BYTES > self.segment_bytes
        });
        let segment = if is_full {
            let sequence = current.map_or(0, |segment| self.heads[segment].sequence + 1);
            self.heads.push(SegmentHeader {
                has_no_tables: self.table_thread == TABLE_THREAD && thread != TABLE_THREAD,
                thread,
                lane,
                sequence,
                committed_bytes: 0,
                counter,
                kernel_thread: self.kernel_thread(thread),
                claim: self.heads.len() as u64,
            });
            self.segments.push(Vec::new());
            let segment = self.segments.len() - 1;
            if self.table_thread == TABLE_THREAD {
                let clock = self.clock_at(counter);
                let mut slots = [0; 4];
                let mut sink = RecordSink::new(&mut slots);
                sink.clock(&clock).expect("four slots are enough");
                self.segments[segment].extend_from_slice(sink.written());
                if let Some(journal) = &mut self.journal {
                    journal.push((segment, 4));
                }
            }
            match place {
                Some(place) => self.open[place].1 = segment,
                None => self.open.push(((thread, lane), segment)),
            }
            segment
        } else {
            current.expect("is not full")
        };
        self.segments[segment].extend_from_slice(written);
        let count = written.len();
        self.slots = slots;
        if let Some(journal) = &mut self.journal {
            journal.push((segment, count));
        }
    }

    /// Writes tables apart from now on, as the recorder does.
    ///
    /// Tables go into segments of their own, and a reading of the clocks precedes every segment.
    pub(crate) fn keep_tables_apart(&mut self) {
        self.table_thread = TABLE_THREAD;
    }

    pub(crate) fn module(&mut self, number: u32, start: u64, end: u64, path: &str) {
        self.write(self.table_thread, Lane::Outer, START, |sink| {
            sink.module_loaded(&LoadedModule {
                number,
                counter: START,
                start,
                end,
                bias: start,
                build_id: &[number as u8; 20],
                path: path.as_bytes(),
            })
        });
    }

    /// Adds a stack of these frames below the root, outermost first, as a segment at `first_word`.
    ///
    /// Returns its number.
    pub(crate) fn segment(&mut self, thread: u32, first_word: u32, parent: u32, pcs: &[u32]) -> u32 {
        let words: Vec<u32> = std::iter::once(1 << 31 | parent).chain(pcs.iter().copied()).collect();
        self.write(thread, Lane::Outer, START, |sink| sink.tree_words(first_word, words.iter().copied()));
        first_word + pcs.len() as u32
    }

    /// `count` addresses in one module and a tree over them; answers with the stacks' numbers.
    /// Always the same.
    pub(crate) fn stacks(&mut self, count: u32) -> Vec<u32> {
        self.module(1, 0x5555_0000_0000, 0x5555_0100_0000, "/usr/bin/program");
        self.module(2, 0x7f00_0000_0000, 0x7f00_0020_0000, "/usr/lib/libc.so.6");
        for pc in 1..=256 {
            let (module, base) = if pc % 5 == 0 { (2, 0x7f00_0000_0000) } else { (1, 0x5555_0000_0000) };
            self.write(self.table_thread, Lane::Outer, START, |sink| {
                sink.pc(pc, PcKind::ReturnAddress, base + u64::from(pc) * 0x135, module)
            });
        }
        let mut random = Random(7);
        let mut stacks: Vec<u32> = Vec::new();
        let mut next_word = 1;
        for _ in 0..count {
            let parent =
                if stacks.is_empty() { 0 } else { stacks[random.below(stacks.len() as u64) as usize] };
            let pcs: Vec<u32> = (0..1 + random.below(6)).map(|_| 1 + random.below(256) as u32).collect();
            stacks.push(self.segment(self.table_thread, next_word, parent, &pcs));
            next_word += 1 + pcs.len() as u32;
        }
        stacks
    }

    pub(crate) fn mark(&mut self, thread: u32, counter: u64, stack: u32, text: &str) {
        self.write(thread, Lane::Outer, counter, |sink| {
            sink.mark(counter, stack, 1, MarkValue::Integer(counter as i64), text.as_bytes())
        });
    }

    pub(crate) fn end(&mut self, counter: u64) {
        self.write(1, Lane::Outer, counter, |sink| sink.end(EndReason::Exit, counter));
        self.set(control::STATE, control::State::Ended.to_word());
    }

    fn kernel_thread(&self, thread: u32) -> u32 {
        self.kernel_threads.get(&thread).copied().unwrap_or(1000 + thread)
    }

    pub(crate) fn began(&mut self, thread: u32, counter: u64) {
        let kernel_thread = self.kernel_thread(thread);
        self.write(thread, Lane::Outer, counter, |sink| {
            sink.thread(counter, ThreadEvent::Began { kernel_thread })
        });
    }

    /// Another thread of the kernel goes on with the recorder's number of one that has ended.
    pub(crate) fn goes_on(&mut self, thread: u32, counter: u64, kernel_thread: u32) {
        self.kernel_threads.insert(thread, kernel_thread);
        self.began(thread, counter);
    }

    pub(crate) fn named(&mut self, thread: u32, counter: u64, name: &str) {
        self.write(thread, Lane::Outer, counter, |sink| {
            sink.thread(counter, ThreadEvent::Named(name.as_bytes()))
        });
    }

    /// The clocks, for a counter of 3 GHz.
    pub(crate) fn clock(&mut self, counter: u64) {
        let clock = self.clock_at(counter);
        self.write(1, Lane::Outer, counter, |sink| sink.clock(&clock));
    }

    fn clock_at(&self, counter: u64) -> Clock {
        let nanos = (counter - START) / 3;
        Clock {
            counter,
            monotonic_nanos: self.header.start_monotonic_nanos + nanos,
            wall_nanos: self.header.start_wall_nanos + nanos,
        }
    }

    /// Keeps the order of writes from now on, and what is there already as the first ones.
    pub(crate) fn begin_journal(&mut self) {
        self.journal = Some(self.segments.iter().map(Vec::len).enumerate().collect());
    }

    pub(crate) fn content_of(&self, segment: usize) -> (SegmentHeader, &[u64]) {
        (self.heads[segment], &self.segments[segment])
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = self.control.clone();
        bytes[..64].copy_from_slice(&self.header.to_bytes());
        let segments = 1 + self.segments.len() as u64;
        bytes[control::CLAIMED_SEGMENTS..][..8].copy_from_slice(&segments.to_le_bytes());
        bytes[control::BACKED_SEGMENTS..][..8].copy_from_slice(&segments.to_le_bytes());
        for (head, slots) in self.heads.iter().zip(&self.segments) {
            let committed = SEGMENT_HEADER_BYTES + slots.len() * 8;
            let head = SegmentHeader { committed_bytes: committed as u64, ..*head };
            bytes.extend(head.to_bytes());
            bytes.extend(slots.iter().flat_map(|slot| slot.to_le_bytes()));
            bytes.resize(bytes.len().next_multiple_of(SEGMENT_BYTES), 0);
        }
        bytes
    }
}

/// xorshift: the same numbers in every run.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

/// State of a block of memory in the model of the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Block {
    pub(crate) address: u64,
    pub(crate) size_bytes: u64,
    pub(crate) stack: u32,
    pub(crate) thread: u32,
    epoch: u32,
}

/// Runs threads one event at a time in a known order, with a recorder beside them.
///
/// The recorder follows the rules of stamps and tickets. The caller chooses the time that passes
/// between events, and when the clock is read.
pub(crate) struct Program {
    pub(crate) spool: Spool,
    pub(crate) counter: u64,
    epochs: Vec<u32>,
    since_stamp: Vec<u32>,
    filters: Vec<Vec<(u64, u32)>>,
    pub(crate) live: Vec<Block>,
    free_addresses: Vec<u64>,
    next_address: u64,
    pub(crate) interval: u32,
    pub(crate) allocations: u64,
    pub(crate) allocated_bytes: u64,
    pub(crate) remote_frees: u64,
}

const FILTER: usize = 512;

impl Program {
    pub(crate) fn new(threads: u32, interval: u32) -> Self {
        let mut spool = Spool::new(CounterKind::TimeStampCounter);
        for thread in 1..=threads {
            spool.began(thread, START + u64::from(thread));
        }
        Self {
            spool,
            counter: START + 1000,
            epochs: vec![0; EPOCHS],
            since_stamp: vec![u32::MAX; threads as usize + 1],
            filters: vec![vec![(0, 0); FILTER]; threads as usize + 1],
            live: Vec::new(),
            free_addresses: Vec::new(),
            next_address: 0x5581_0000_1000,
            interval,
            allocations: 0,
            allocated_bytes: 0,
            remote_frees: 0,
        }
    }

    /// A counter that wraps during the run.
    pub(crate) fn begin_epochs_at(&mut self, epoch: u32) {
        self.epochs.fill(epoch);
    }

    /// A thread begins that knows no block, and makes a stamp first.
    pub(crate) fn begin_thread(&mut self, thread: u32) {
        let threads = self.since_stamp.len().max(thread as usize + 1);
        self.since_stamp.resize(threads, u32::MAX);
        self.filters.resize(threads, vec![(0, 0); FILTER]);
        self.since_stamp[thread as usize] = u32::MAX;
    }

    fn stamp(&mut self, thread: u32) {
        let since = &mut self.since_stamp[thread as usize];
        if *since >= self.interval {
            *since = 0;
            let ticks = (self.counter - START) >> STAMP_SHIFT;
            self.spool.write(thread, Lane::Outer, self.counter, |sink| sink.stamp(ticks));
        }
        *since += 1;
    }

    pub(crate) fn alloc(&mut self, thread: u32, size_bytes: u64, stack: u32) -> Block {
        let address = self.free_addresses.pop().unwrap_or_else(|| {
            self.next_address += 48;
            self.next_address
        });
        self.stamp(thread);
        let epoch = self.epochs[epoch_of(address)];
        self.filters[thread as usize][(address >> 4) as usize % FILTER] = (address, epoch);
        self.spool
            .write(thread, Lane::Outer, self.counter, |sink| sink.alloc(address, size_bytes, epoch, stack));
        let block = Block { address, size_bytes, stack, thread, epoch };
        self.live.push(block);
        self.allocations += 1;
        self.allocated_bytes += size_bytes;
        block
    }

    pub(crate) fn free(&mut self, thread: u32, index: usize) {
        let block = self.live.swap_remove(index);
        self.stamp(thread);
        let known = self.filters[thread as usize][(block.address >> 4) as usize % FILTER];
        let counter = &mut self.epochs[epoch_of(block.address)];
        let ticket =
            if known == (block.address, *counter) && block.thread == thread && block.epoch == *counter {
                None
            } else {
                let ticket = *counter;
                *counter = counter.wrapping_add(1);
                self.remote_frees += 1;
                Some(ticket)
            };
        self.filters[thread as usize][(block.address >> 4) as usize % FILTER] = (0, 0);
        self.spool.write(thread, Lane::Outer, self.counter, |sink| sink.free(block.address, ticket));
        self.free_addresses.push(block.address);
    }

    /// Frees what was allocated before recording began.
    pub(crate) fn free_older(&mut self, thread: u32, address: u64) {
        self.stamp(thread);
        let counter = &mut self.epochs[epoch_of(address)];
        let ticket = *counter;
        *counter = counter.wrapping_add(1);
        self.spool.write(thread, Lane::Outer, self.counter, |sink| sink.free(address, Some(ticket)));
        self.free_addresses.push(address);
    }

    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.spool.clock(self.counter + 10_000_000);
        self.spool.end(self.counter + 10_000_001);
        self.spool.to_bytes()
    }
}
