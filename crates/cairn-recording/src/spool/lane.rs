//! One lane of a spool while it is read: its open segments, and the pieces of them that wait to be
//! merged.
//!
//! ```text
//!   segments:  | read to its end | read | committed since | not written yet |   open: these two, by sequence
//!                                       \___ one piece __/
//!   pieces:    | merged | handed to the merger | waiting | waiting |
//! ```

use std::collections::{BTreeMap, VecDeque};

use cairn_format::recording::{Lane, SEGMENT_BYTES, SEGMENT_HEADER_BYTES, SegmentHeader};

use super::lives::LaneKey;
use crate::error::RecordingError;
use crate::packed::progress::Progress;

/// Reads the bytes of a spool that a program may be writing to.
pub(crate) trait SpoolBytes {
    /// Loads the aligned word at `offset`, and everything that was written before it; 0 past the
    /// end.
    fn word(&self, offset: u64) -> Result<u64, RecordingError>;

    /// Replaces `into` by the bytes from `offset` to `end`; fewer where the file ends.
    fn read(&self, offset: u64, end: u64, into: &mut Vec<u8>) -> Result<(), RecordingError>;
}

/// Where the segment of this number begins in the file.
pub(crate) fn segment_offset(number: u32) -> u64 {
    u64::from(number) * SEGMENT_BYTES as u64
}

/// Returns the lane that a segment belongs to.
pub(crate) fn lane_of(header: &SegmentHeader) -> LaneKey {
    (header.thread, header.lane == Lane::Nested)
}

/// A segment that is not read to its end.
struct OpenSegment {
    number: u32,
    kernel_thread: u32,
    counter: u64,
    ticks: u64,
    read_bytes: u64,
    has_no_tables: bool,
}

/// Bytes of a segment that were committed between two reads.
pub(crate) struct Piece {
    /// The segment's place in its lane.
    pub(crate) sequence: u32,
    /// Where in the segment the bytes begin.
    pub(crate) offset: usize,
    /// When the segment was taken.
    pub(crate) ticks: u64,
    pub(crate) bytes: Vec<u8>,
    /// The kernel's number of the thread and the counter, when the segment begins here.
    pub(crate) begins: Option<(u32, u64)>,
    /// The segment.
    pub(crate) segment: u32,
    /// Nothing follows in it.
    pub(crate) is_last: bool,
    /// The segment's promise that it holds events alone.
    pub(crate) has_no_tables: bool,
    /// The threads whose records these are, when that is known before the piece is merged.
    pub(crate) threads: Option<PieceThreads>,
}

/// The numbers of the threads whose records are in a piece.
#[derive(Default)]
pub(crate) struct PieceThreads {
    /// Thread number of the first records.
    pub(crate) first: u32,
    /// Thread numbers of the records behind each record of kind *began*.
    pub(crate) begins: VecDeque<u32>,
}

/// The piece that the merger has.
#[derive(Default)]
pub(super) struct Handed {
    /// The number of the thread whose records follow what was merged last.
    pub(super) thread: u32,
    /// The threads that begin in the rest of it, when that was known before.
    pub(super) begins: Option<VecDeque<u32>>,
    sequence: u32,
    offset: usize,
    length: usize,
    is_last: bool,
    /// The segment, until it is said that all of it is merged.
    unreported: Option<u32>,
    pub(super) has_no_tables: bool,
}

/// See the module documentation.
pub(crate) struct LaneQueue {
    pub(super) key: LaneKey,
    /// By sequence.
    open: BTreeMap<u32, OpenSegment>,
    /// The one behind the last segment that was read to its end.
    next_sequence: Option<u32>,
    /// How many segments never came.
    missing: u64,
    pieces: VecDeque<Piece>,
    waiting_bytes: usize,
    pub(super) handed: Handed,
}

/// One read from a lane.
pub(super) enum Front {
    /// The lane has no open segment, or the first one has nothing new.
    Nothing,
    /// The segment may get more.
    Part(Piece),
    /// The segment is read to its end.
    Last(Piece),
}

impl LaneQueue {
    pub(super) fn new(key: LaneKey) -> Self {
        let handed = Handed { offset: SEGMENT_HEADER_BYTES, has_no_tables: false, ..Handed::default() };
        Self {
            key,
            open: BTreeMap::new(),
            next_sequence: None,
            missing: 0,
            pieces: VecDeque::new(),
            waiting_bytes: 0,
            handed,
        }
    }

    pub(super) fn open(&mut self, number: u32, ticks: u64, header: &SegmentHeader) {
        let &SegmentHeader { kernel_thread, counter, has_no_tables, .. } = header;
        let read_bytes = SEGMENT_HEADER_BYTES as u64;
        let segment = OpenSegment { number, kernel_thread, counter, ticks, read_bytes, has_no_tables };
        self.open.insert(header.sequence, segment);
    }

    /// Bytes that were read and are not merged.
    pub(super) fn waiting_bytes(&self) -> usize {
        self.waiting_bytes
    }

    /// Segments that never came, between others that did.
    pub(super) fn missing(&self) -> u64 {
        self.missing
    }

    /// Returns when the next segment was taken, if too much data waits to read it now.
    ///
    /// A segment that was begun is read on: an event of it may wait that is older than its
    /// remaining ones.
    pub(super) fn held_back(&self, most_waiting_bytes: usize) -> Option<u64> {
        let (_, segment) = self.open.first_key_value()?;
        let is_begun = segment.read_bytes > SEGMENT_HEADER_BYTES as u64;
        (!is_begun && self.waiting_bytes >= most_waiting_bytes).then_some(segment.ticks)
    }

    /// Reads what is new in the first open segment. With `is_last`, nothing will be written any
    /// more.
    pub(super) fn read_front(
        &mut self,
        spool: &impl SpoolBytes,
        is_last: bool,
        spare: &mut Vec<Vec<u8>>,
    ) -> Result<Front, RecordingError> {
        let Some((&sequence, _)) = self.open.first_key_value() else { return Ok(Front::Nothing) };
        // A thread takes its next segment when it has committed all of this one: so that is asked
        // before the length. Behind a segment that never got a header, others are read only when it
        // cannot come any more.
        let is_followed = sequence.checked_add(1).is_some_and(|next| self.open.contains_key(&next));
        let is_final = is_followed || is_last;
        let Some(mut entry) = self.open.first_entry() else { return Ok(Front::Nothing) };
        let segment = entry.get_mut();
        let offset = segment_offset(segment.number);
        let committed = spool.word(offset + SegmentHeader::COMMITTED_OFFSET as u64)?;
        let committed = (committed & !7).min(SEGMENT_BYTES as u64).max(segment.read_bytes);
        if committed == segment.read_bytes && !is_final {
            return Ok(Front::Nothing);
        }
        let mut bytes = spare.pop().unwrap_or_default();
        spool.read(offset + segment.read_bytes, offset + committed, &mut bytes)?;
        let piece = Piece {
            sequence,
            offset: segment.read_bytes as usize,
            ticks: segment.ticks,
            begins: (segment.read_bytes == SEGMENT_HEADER_BYTES as u64)
                .then_some((segment.kernel_thread, segment.counter)),
            segment: segment.number,
            is_last: is_final,
            has_no_tables: segment.has_no_tables,
            threads: None,
            bytes,
        };
        if !is_final {
            segment.read_bytes += piece.bytes.len() as u64;
            return Ok(Front::Part(piece));
        }
        entry.remove();
        let missing = sequence.saturating_sub(self.next_sequence.unwrap_or(sequence));
        self.missing += u64::from(missing);
        self.next_sequence = sequence.checked_add(1);
        Ok(Front::Last(piece))
    }

    pub(crate) fn push(&mut self, piece: Piece) {
        self.waiting_bytes += piece.bytes.len();
        self.pieces.push_back(piece);
    }

    pub(super) fn has_pieces(&self) -> bool {
        !self.pieces.is_empty()
    }

    /// Returns the segment whose last piece the merger had and has no more, once.
    pub(super) fn take_merged(&mut self) -> Option<u32> {
        self.handed.unreported.take()
    }

    /// Hands the next piece to the merger. The number of its first thread is for the caller to set
    /// where it is not known.
    pub(super) fn hand_over(&mut self) -> Option<Piece> {
        let mut piece = self.pieces.pop_front()?;
        self.waiting_bytes = self.waiting_bytes.saturating_sub(piece.bytes.len());
        let threads = piece.threads.take();
        let handed = &mut self.handed;
        handed.thread = threads.as_ref().map_or(handed.thread, |threads| threads.first);
        handed.begins = threads.map(|threads| threads.begins);
        (handed.sequence, handed.offset) = (piece.sequence, piece.offset);
        (handed.length, handed.is_last) = (piece.bytes.len(), piece.is_last);
        handed.unreported = piece.is_last.then_some(piece.segment);
        handed.has_no_tables = piece.has_no_tables;
        Some(piece)
    }

    /// Returns where the lane goes on: `position` bytes of the piece that the merger has are
    /// merged.
    #[cfg(target_os = "linux")]
    pub(super) fn progress(&self, (position, ticks, is_moving): (usize, u64, bool)) -> Progress {
        let &Handed { sequence, offset, length, is_last, .. } = &self.handed;
        let (sequence, offset) = if position >= length && is_last {
            (sequence.saturating_add(1), SEGMENT_HEADER_BYTES)
        } else {
            (sequence, offset + position.min(length))
        };
        let (thread, is_nested) = self.key;
        Progress { thread, is_nested, sequence, offset: offset as u32, ticks, is_moving }
    }
}
