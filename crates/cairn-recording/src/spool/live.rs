//! Reads a spool while the program writes to it.
//!
//! Events that one thread had written when a read of the spool began are complete in the other
//! threads' segments as well after the next read: a thread takes the time of an event a moment
//! before it commits it. So events are handed on up to the latest time that the read before has
//! seen.

use std::collections::VecDeque;

use cairn_format::recording::{EndReason, Record, Records, SEGMENT_BYTES, ThreadEvent, control};

use super::control_words::{RawEarlyEnd, note_loss, unsaid_end, word};
use super::follower::Follower;
use super::lane::{Piece, PieceThreads, SpoolBytes, segment_offset};
use super::lives::LaneKey;
use super::merge::ticks_of;
use crate::clock::TimeScale;
use crate::error::{Finding, RecordingError};
use crate::model::{Events, Wanted};
use crate::source::Source;
use crate::tables::TableBuilder;

/// See the module documentation.
pub(crate) struct LiveSpool {
    start_counter: u64,
    follower: Follower,
    next_segment: u64,
    /// The latest time in what was read.
    latest_ticks: u64,
    /// Events up to there are handed on.
    horizon: u64,
    lane_limit: usize,
    is_drained: bool,
    had_news: bool,
    findings: Vec<Finding>,
}

/// Result of one read of a spool, beside its events.
pub(crate) struct SpoolLook<'a> {
    pub(crate) tables: &'a mut TableBuilder,
    pub(crate) end: &'a mut Option<(EndReason, u64)>,
    pub(crate) early: &'a mut Option<RawEarlyEnd>,
}

impl LiveSpool {
    pub(crate) fn new(start_counter: u64) -> Self {
        Self {
            start_counter,
            follower: Follower::new(start_counter),
            next_segment: 1,
            latest_ticks: 0,
            horizon: 0,
            lane_limit: usize::MAX,
            is_drained: false,
            had_news: false,
            findings: Vec::new(),
        }
    }

    /// Limits the bytes that are read of each thread ahead of what can be handed on.
    pub(crate) fn set_lane_limit(&mut self, bytes: usize) {
        self.lane_limit = bytes;
    }

    /// Reads what is new, and the tables in it. With `is_last` nothing will follow.
    pub(crate) fn look(
        &mut self,
        source: &Source,
        look: &mut SpoolLook<'_>,
        is_last: bool,
    ) -> Result<(), RecordingError> {
        self.horizon = if is_last { u64::MAX } else { self.latest_ticks };
        let mut bytes = Vec::new();
        source.read_at(0, control::FREE_GIVEN + 8, &mut bytes)?;
        self.is_drained = word(&bytes, control::FREE_GIVEN) > 0;
        *look.early = RawEarlyEnd::of_words(|at| word(&bytes, at));
        let state = control::State::from_word(word(&bytes, control::STATE));
        if state == control::State::Ended {
            let unsaid = unsaid_end(state, word(&bytes, control::EXITING) != 0);
            let early = look.early.map(RawEarlyEnd::end);
            if let Some(end) = early.or(unsaid.map(|reason| (reason, u64::MAX))) {
                look.end.get_or_insert(end);
            }
        }
        // Segments before lengths: a thread that has taken its next segment has committed all of
        // the one before.
        let present = source.length()?.div_ceil(SEGMENT_BYTES as u64);
        let claimed = word(&bytes, control::CLAIMED_SEGMENTS).min(present).max(self.next_segment);
        self.follower.announce(self.next_segment as u32..claimed as u32);
        self.next_segment = claimed;
        self.follower.open_announced(source)?;
        let most_waiting_bytes = if is_last { usize::MAX } else { self.lane_limit };
        let Self { start_counter, latest_ticks, findings, .. } = self;
        let read_bytes = self.follower.read_new(source, most_waiting_bytes, is_last, |lane, piece| {
            let latest = take_tables(lane, piece, *start_counter, look, findings);
            *latest_ticks = latest.max(*latest_ticks);
        })?;
        self.had_news = read_bytes > 0;
        Ok(())
    }

    /// Hands on what is in order by now.
    pub(crate) fn read_new<E: Events>(&mut self, scale: &TimeScale, wanted: &Wanted, events: &mut E) {
        let limit = self.follower.begin_merge(self.horizon);
        self.follower.merge(limit.ticks, scale, wanted, events, &mut ());
        self.follower.end_merge(&limit);
    }

    /// Up to there everything was read, when the last look left something unread because of the
    /// limit.
    pub(crate) fn unread_from(&self) -> Option<u64> {
        self.follower.unread_from()
    }

    /// When the youngest segment was taken.
    pub(crate) fn latest_ticks(&self) -> u64 {
        self.follower.latest_ticks()
    }

    pub(crate) fn had_news(&self) -> bool {
        self.had_news
    }

    /// True for a spool whose segments are drained and written to again.
    pub(crate) fn is_drained(&self) -> bool {
        self.is_drained
    }

    pub(crate) fn unmatched_frees(&self) -> u64 {
        self.follower.unmatched_frees()
    }

    pub(crate) fn findings(&self) -> &[Finding] {
        &self.findings
    }
}

impl SpoolBytes for Source {
    fn word(&self, offset: u64) -> Result<u64, RecordingError> {
        let mut bytes = Vec::new();
        self.read_at(offset, 8, &mut bytes)?;
        Ok(word(&bytes, 0))
    }

    fn read(&self, offset: u64, end: u64, into: &mut Vec<u8>) -> Result<(), RecordingError> {
        self.read_at(offset, end.saturating_sub(offset) as usize, into)
    }
}

/// Takes what is for the tables, notes in the piece whose records it has, and returns its latest
/// time.
fn take_tables(
    lane: LaneKey,
    piece: &mut Piece,
    start_counter: u64,
    look: &mut SpoolLook<'_>,
    findings: &mut Vec<Finding>,
) -> u64 {
    let lives = &mut look.tables.threads;
    let first = match piece.begins {
        Some((kernel_thread, counter)) => lives.block(lane, kernel_thread, counter),
        None => lives.present(lane),
    };
    let mut begins = VecDeque::new();
    let mut latest = piece.ticks;
    let mut records = Records::new(&piece.bytes, piece.offset);
    loop {
        records.skip_frequent();
        let record = match records.next() {
            None => break,
            Some(Ok(placed)) => placed.record,
            Some(Err(error)) => {
                let lost_bytes = (piece.offset + piece.bytes.len()).saturating_sub(error.offset) as u64;
                let offset = segment_offset(piece.segment);
                findings.push(Finding::DamagedRecords { offset, error, lost_bytes });
                break;
            }
        };
        latest = latest.max(ticks_of(&record, start_counter).unwrap_or(0));
        look.tables.record(&record);
        match record {
            Record::Thread { counter, event } => {
                let thread = look.tables.threads.record(lane, counter, event);
                if let (ThreadEvent::Began { .. }, Some(thread)) = (event, thread) {
                    begins.push_back(thread);
                }
            }
            Record::End { reason, counter } => *look.end = Some((reason, counter)),
            Record::Loss { kind, count } => note_loss(kind, count, findings),
            _ => {}
        }
    }
    piece.threads = Some(PieceThreads { first, begins });
    latest
}
