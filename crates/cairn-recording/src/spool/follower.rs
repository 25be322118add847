//! Follows the lanes of a spool, and merges what was read of them into one order: the one reader of
//! segments.
//!
//! ```text
//!   segment numbers ──> open segments ──> pieces, by lane ──> merged ──> paired ──> a visitor
//!     `announce`         `open_announced`   `read_new`         `merge`
//! ```
//!
//! | user | bytes from | pieces are read | threads get their numbers |
//! |---|---|---|---|
//! | `write::drain` | memory that the program shares | as soon as they are committed | while they are merged |
//! | `spool::live` | the file | as soon as they are committed | when they are read: tables name them before events do |
//! | `spool::reader` | the file, at rest | when the merger needs them | in a pass over the whole file before |

use std::collections::HashMap;

use cairn_format::recording::{BadRecord, SEGMENT_HEADER_BYTES, SegmentHeader, ThreadEvent};

use super::deliver::Delivery;
use super::lane::{Front, LaneQueue, Piece, SpoolBytes, lane_of, segment_offset};
use super::lives::LaneKey;
use super::merge::{Feed, Merger, NextPiece};
use super::pairing::Pairing;
use crate::clock::TimeScale;
use crate::error::RecordingError;
use crate::model::{Events, Wanted};
use crate::packed::progress::Progress;

/// Buffers that wait to be used again; those of a burst are given back when it is over.
const MOST_SPARE: usize = 64;

/// Receives records from a [`Follower`] while it merges.
pub(crate) trait WhileMerging {
    /// Reads the lane's next piece, when none waits.
    fn refill(&mut self, lane: usize, queue: &mut LaneQueue, spare: &mut Vec<Vec<u8>>) {
        let _ = (lane, queue, spare);
    }

    /// Numbers the thread whose segment begins, in a piece whose threads are not known.
    fn segment_begins(&mut self, lane: LaneKey, kernel_thread: u32, counter: u64) -> u32 {
        let _ = (lane, kernel_thread, counter);
        0
    }

    /// Receives a record of a thread from such a piece.
    ///
    /// Returns the number of the thread whose records follow.
    fn thread(&mut self, lane: LaneKey, counter: u64, event: ThreadEvent<'_>) -> Option<u32> {
        let _ = (lane, counter, event);
        None
    }

    /// Receives a rare record from a segment that promised to have no tables.
    ///
    /// Such a record was not read before.
    fn rare_record(&mut self, record: &[u8]) {
        let _ = record;
    }

    /// Receives what is wrong with a record; the rest of its piece is left out.
    fn damaged(&mut self, error: BadRecord, lost_bytes: u64) {
        let _ = (error, lost_bytes);
    }

    /// Receives the number of a segment that is merged to its end.
    fn merged(&mut self, segment: u32) {
        let _ = segment;
    }
}

/// For pieces that were read, checked and numbered before.
impl WhileMerging for () {}

/// See the module documentation.
pub(crate) struct Follower {
    start_counter: u64,
    numbers: HashMap<LaneKey, u32>,
    lanes: Vec<LaneQueue>,
    spare: Vec<Vec<u8>>,
    /// Segments that were taken and have no header yet.
    announced: Vec<u32>,
    merger: Merger,
    /// `None` while events are merged.
    pairing: Option<Pairing>,
    /// Time of the last event that was merged.
    nanos: u64,
    /// When the youngest segment was taken.
    latest_ticks: u64,
    /// When the first segment was taken that is there and was left for later; `u64::MAX` for none.
    /// Nothing behind it can be put into order.
    unread_from: u64,
    /// Merging up to there took nothing from what waits.
    is_stuck: bool,
}

impl Follower {
    pub(crate) fn new(start_counter: u64) -> Self {
        Self::resume(start_counter, 0)
    }

    /// Goes on behind another part of the recording, which ended at that time.
    pub(crate) fn resume(start_counter: u64, nanos: u64) -> Self {
        Self {
            start_counter,
            numbers: HashMap::new(),
            lanes: Vec::new(),
            spare: Vec::new(),
            announced: Vec::new(),
            merger: Merger::new(start_counter),
            pairing: Some(Pairing::new()),
            nanos,
            latest_ticks: 0,
            unread_from: u64::MAX,
            is_stuck: false,
        }
    }

    /// Adds a lane; `start` is where it goes on when what is in front of that was merged elsewhere.
    pub(crate) fn add_lane(&mut self, key: LaneKey, start: Option<&Progress>) -> u32 {
        self.lanes.push(LaneQueue::new(key));
        let (ticks, is_moving) = start.map_or((0, false), |start| (start.ticks, start.is_moving));
        let number = self.merger.resume_lane(ticks, is_moving);
        self.numbers.insert(key, number);
        number
    }

    /// Takes in the numbers of segments that were taken, which may have no header yet.
    pub(crate) fn announce(&mut self, segments: impl Iterator<Item = u32>) {
        self.announced.extend(segments);
    }

    /// Opens those of the announced segments that have a header by now.
    pub(crate) fn open_announced(&mut self, spool: &impl SpoolBytes) -> Result<(), RecordingError> {
        let mut bytes = Vec::with_capacity(SEGMENT_HEADER_BYTES);
        for number in std::mem::take(&mut self.announced) {
            let offset = segment_offset(number);
            let is_committed = spool.word(offset + SegmentHeader::COMMITTED_OFFSET as u64)? > 0;
            if is_committed {
                spool.read(offset, offset + SEGMENT_HEADER_BYTES as u64, &mut bytes)?;
            }
            match SegmentHeader::read(&bytes) {
                Ok(header) if is_committed => self.open_segment(number, &header),
                // Just being taken, or damaged.
                _ => self.announced.push(number),
            }
        }
        Ok(())
    }

    fn open_segment(&mut self, number: u32, header: &SegmentHeader) {
        let key = lane_of(header);
        let lane = match self.numbers.get(&key) {
            Some(&lane) => lane,
            None => self.add_lane(key, None),
        };
        let ticks = header.counter.saturating_sub(self.start_counter);
        self.latest_ticks = self.latest_ticks.max(ticks);
        if let Some(queue) = self.lanes.get_mut(lane as usize) {
            queue.open(number, ticks, header);
        }
    }

    /// Reads newly committed bytes and shows each piece to `take`; returns the bytes read.
    ///
    /// It reads no more of a lane than may wait.
    pub(crate) fn read_new(
        &mut self,
        spool: &impl SpoolBytes,
        most_waiting_bytes: usize,
        is_last: bool,
        mut take: impl FnMut(LaneKey, &mut Piece),
    ) -> Result<u64, RecordingError> {
        self.unread_from = u64::MAX;
        let mut read_bytes = 0;
        for queue in &mut self.lanes {
            loop {
                if let Some(ticks) = queue.held_back(most_waiting_bytes) {
                    self.unread_from = self.unread_from.min(ticks);
                    break;
                }
                let (mut piece, is_final) = match queue.read_front(spool, is_last, &mut self.spare)? {
                    Front::Nothing => break,
                    Front::Part(piece) => (piece, false),
                    Front::Last(piece) => (piece, true),
                };
                read_bytes += piece.bytes.len() as u64;
                take(queue.key, &mut piece);
                queue.push(piece);
                if !is_final {
                    break;
                }
            }
        }
        Ok(read_bytes)
    }

    /// Returns the time up to which everything is read, when the last read left something for
    /// later.
    pub(crate) fn unread_from(&self) -> Option<u64> {
        Some(self.unread_from).filter(|&ticks| ticks != u64::MAX)
    }

    /// Returns how far events may be merged: not behind what is still to be read.
    ///
    /// Segments with times that cannot be would keep what waits from being merged for ever; memory
    /// counts more than their order then.
    pub(crate) fn begin_merge(&mut self, horizon: u64) -> MergeLimit {
        let unread_from = if std::mem::take(&mut self.is_stuck) { u64::MAX } else { self.unread_from };
        MergeLimit {
            ticks: horizon.min(unread_from),
            is_limited: unread_from != u64::MAX && unread_from <= horizon,
            waiting_bytes: self.waiting_bytes(),
        }
    }

    /// Notes whether merging up to the limit took anything from what waits.
    pub(crate) fn end_merge(&mut self, limit: &MergeLimit) {
        self.is_stuck = limit.is_limited && limit.waiting_bytes <= self.waiting_bytes();
    }

    fn waiting_bytes(&self) -> usize {
        self.lanes.iter().map(LaneQueue::waiting_bytes).sum()
    }

    /// Hands on all events up to `horizon`, in order.
    pub(crate) fn merge<E: Events>(
        &mut self,
        horizon: u64,
        scale: &TimeScale,
        wanted: &Wanted,
        events: &mut E,
        user: &mut impl WhileMerging,
    ) {
        let Some(pairing) = self.pairing.take() else { return };
        let mut delivery = Delivery::resume(scale, *wanted, events, pairing, self.nanos);
        let count = self.lanes.len() as u32;
        let mut feed = LaneFeed { lanes: &mut self.lanes, spare: &mut self.spare, user };
        for lane in 0..count {
            self.merger.wake(lane, &mut feed);
        }
        self.merger.run(horizon, &mut feed, &mut delivery, Delivery::is_enough);
        let (pairing, nanos) = delivery.into_parts();
        (self.pairing, self.nanos) = (Some(pairing), nanos);
        self.spare.truncate(MOST_SPARE);
    }

    /// Time of the last event that was merged.
    pub(crate) fn nanos(&self) -> u64 {
        self.nanos
    }

    /// When the youngest segment was taken.
    pub(crate) fn latest_ticks(&self) -> u64 {
        self.latest_ticks
    }

    /// Counts the frees so far that found no block.
    pub(crate) fn unmatched_frees(&self) -> u64 {
        self.pairing.as_ref().map_or(0, Pairing::unmatched_frees)
    }

    /// The threads with missing segments, and how many these are.
    #[cfg(target_os = "linux")]
    pub(crate) fn missing_segments(&self) -> impl Iterator<Item = (u32, u64)> {
        self.lanes.iter().map(|queue| (queue.key.0, queue.missing())).filter(|&(_, count)| count > 0)
    }

    /// Where each lane goes on.
    #[cfg(target_os = "linux")]
    pub(crate) fn progress(&self) -> impl Iterator<Item = Progress> {
        let lanes = self.lanes.iter().zip(0..);
        lanes.filter_map(|(queue, lane)| Some(queue.progress(self.merger.place(lane)?)))
    }
}

/// How far one merge goes.
pub(crate) struct MergeLimit {
    pub(crate) ticks: u64,
    is_limited: bool,
    waiting_bytes: usize,
}

/// Gives the merger the pieces of each lane.
struct LaneFeed<'a, U> {
    lanes: &'a mut [LaneQueue],
    spare: &'a mut Vec<Vec<u8>>,
    user: &'a mut U,
}

impl<U: WhileMerging> Feed for LaneFeed<'_, U> {
    fn more(&mut self, lane: u32, bytes: &mut Vec<u8>) -> Option<NextPiece> {
        let queue = self.lanes.get_mut(lane as usize)?;
        if let Some(segment) = queue.take_merged() {
            self.user.merged(segment);
        }
        if !queue.has_pieces() {
            self.user.refill(lane as usize, queue, self.spare);
        }
        let piece = queue.hand_over()?;
        let handed = &mut queue.handed;
        if let (Some((kernel_thread, counter)), None) = (piece.begins, &handed.begins) {
            handed.thread = self.user.segment_begins(queue.key, kernel_thread, counter);
        }
        self.spare.push(std::mem::replace(bytes, piece.bytes));
        Some(NextPiece { ticks: piece.ticks, offset: piece.offset, thread: handed.thread })
    }

    fn thread(&mut self, lane: u32, counter: u64, event: ThreadEvent<'_>) -> Option<u32> {
        let queue = self.lanes.get_mut(lane as usize)?;
        let thread = match (&mut queue.handed.begins, event) {
            (Some(begins), ThreadEvent::Began { .. }) => begins.pop_front(),
            (Some(_), _) => None,
            (None, event) => self.user.thread(queue.key, counter, event),
        }?;
        queue.handed.thread = thread;
        Some(thread)
    }

    fn met(&mut self, lane: u32, record: &[u8]) {
        if self.lanes.get(lane as usize).is_some_and(|queue| queue.handed.has_no_tables) {
            self.user.rare_record(record);
        }
    }

    fn damaged(&mut self, _: u32, error: BadRecord, lost_bytes: u64) {
        self.user.damaged(error, lost_bytes);
    }
}
