//! Reads the events of a spool whose segments were [scanned](super::scan).

use cairn_format::recording::SEGMENT_HEADER_BYTES;

use super::follower::{Follower, WhileMerging};
use super::lane::{LaneQueue, Piece, PieceThreads};
use super::lives::LaneKey;
use crate::clock::TimeScale;
use crate::error::RecordingError;
use crate::model::{Events, Wanted};
use crate::packed::progress::Progress;
use crate::source::Source;

/// Result of a walk over all segments.
pub(crate) struct Spool {
    lanes: Vec<ScannedLane>,
    start_counter: u64,
    /// Nothing behind it is handed on.
    horizon: u64,
}

/// The segments of one thread's lane.
pub(super) struct ScannedLane {
    pub(super) key: LaneKey,
    pub(super) segments: Vec<ScannedSegment>,
    /// Where it begins, when what is in front of that is in a packed recording.
    pub(super) start: Option<Progress>,
    /// Where later threads begin in these segments.
    pub(super) begins: Vec<ThreadBegin>,
}

/// A record of kind *began*.
#[derive(Clone, Copy)]
pub(super) struct ThreadBegin {
    pub(super) sequence: u32,
    /// Where in its segment it is.
    pub(super) offset: usize,
    /// The number of the thread.
    pub(super) thread: u32,
}

#[derive(Clone, Copy)]
pub(super) struct ScannedSegment {
    pub(super) offset: u64,
    /// How many bytes of it hold whole records.
    pub(super) sound_bytes: usize,
    pub(super) sequence: u32,
    pub(super) counter: u64,
    /// The number of the thread whose records the first ones are.
    pub(super) thread: u32,
}

impl ScannedLane {
    /// Reads what the lane has of a segment.
    fn read(
        &self,
        segment: &ScannedSegment,
        start_counter: u64,
        source: &Source,
        mut bytes: Vec<u8>,
    ) -> Result<Piece, RecordingError> {
        let offset = match self.start {
            Some(start) if start.sequence == segment.sequence => start.offset as usize,
            _ => SEGMENT_HEADER_BYTES,
        };
        source.read_at(
            segment.offset + offset as u64,
            segment.sound_bytes.saturating_sub(offset),
            &mut bytes,
        )?;
        Ok(Piece {
            sequence: segment.sequence,
            offset,
            ticks: segment.counter.saturating_sub(start_counter),
            bytes,
            begins: None,
            segment: 0,
            is_last: true,
            has_no_tables: false,
            threads: Some(self.threads(segment, offset)),
        })
    }

    /// Returns the threads whose records are behind an offset of a segment.
    fn threads(&self, segment: &ScannedSegment, offset: usize) -> PieceThreads {
        let first = self.begins.partition_point(|begin| begin.sequence < segment.sequence);
        let begins = self.begins.get(first..).unwrap_or_default();
        let begins = begins.iter().take_while(|begin| begin.sequence == segment.sequence);
        let (before, behind): (Vec<&ThreadBegin>, Vec<&ThreadBegin>) =
            begins.partition(|begin| begin.offset < offset);
        PieceThreads {
            first: before.last().map_or(segment.thread, |begin| begin.thread),
            begins: behind.iter().map(|begin| begin.thread).collect(),
        }
    }
}

/// Reads the segments of each lane when the merger needs them.
struct ReadOnDemand<'a> {
    source: &'a Source,
    spool: &'a Spool,
    /// By lane: how many of its segments were read.
    read: Vec<usize>,
    failure: Option<RecordingError>,
}

impl WhileMerging for ReadOnDemand<'_> {
    fn refill(&mut self, lane: usize, queue: &mut LaneQueue, spare: &mut Vec<Vec<u8>>) {
        let (Some(scanned), Some(read)) = (self.spool.lanes.get(lane), self.read.get_mut(lane)) else {
            return;
        };
        let Some(segment) = scanned.segments.get(*read) else { return };
        *read += 1;
        let bytes = spare.pop().unwrap_or_default();
        match scanned.read(segment, self.spool.start_counter, self.source, bytes) {
            Ok(piece) => queue.push(piece),
            Err(error) => _ = self.failure.get_or_insert(error),
        }
    }
}

impl Spool {
    pub(super) fn new(lanes: Vec<ScannedLane>, start_counter: u64) -> Self {
        Self { lanes, start_counter, horizon: u64::MAX }
    }

    /// One without segments.
    pub(crate) fn empty() -> Self {
        Self::new(Vec::new(), 0)
    }

    /// Says that the program still writes it, and that what is behind these ticks is not all there.
    pub(crate) fn grows_since(&mut self, ticks: u64) {
        self.horizon = ticks;
    }

    /// Gives threads the numbers that `number` says.
    pub(crate) fn renumber_threads(&mut self, number: impl Fn(u32) -> u32) {
        for lane in &mut self.lanes {
            lane.segments.iter_mut().for_each(|segment| segment.thread = number(segment.thread));
            lane.begins.iter_mut().for_each(|begin| begin.thread = number(begin.thread));
        }
    }

    /// Hands the events on, none of them before `start_nanos`. Returns how many frees had no
    /// allocation.
    pub(crate) fn read<E: Events>(
        &self,
        source: &Source,
        scale: &TimeScale,
        wanted: &Wanted,
        events: &mut E,
        start_nanos: u64,
    ) -> Result<u64, RecordingError> {
        let mut follower = Follower::resume(self.start_counter, start_nanos);
        for lane in &self.lanes {
            follower.add_lane(lane.key, lane.start.as_ref());
        }
        let mut read = ReadOnDemand { source, spool: self, read: vec![0; self.lanes.len()], failure: None };
        follower.merge(self.horizon, scale, wanted, events, &mut read);
        match read.failure {
            Some(error) => Err(error),
            None => Ok(follower.unmatched_frees()),
        }
    }
}
