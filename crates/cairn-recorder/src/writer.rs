//! Appends records to a sequence of segments. One thread at a time uses a writer.

use core::sync::atomic::Ordering;

use cairn_format::recording::{
    Lane, LossKind, RecordSink, SEGMENT_BYTES, SEGMENT_HEADER_BYTES, SinkTooSmall,
};

use crate::clock;
use crate::spool::{NoSegment, SegmentUse, Spool, begin_segment, committed_word};

/// Position of the next record. All-zero bytes are a writer without a segment.
#[repr(C)]
pub(crate) struct Writer {
    /// Address of the next slot; 0 without a segment. Segments are aligned to their size, so that
    /// the cursor identifies the segment as well.
    pub(crate) cursor: usize,
    /// Number in the headers of its segments.
    pub(crate) thread: u32,
    pub(crate) kernel_thread: u32,
    sequence: u32,
    /// Index of the segment in the ring.
    ring_index: u32,
}

const OFFSET_MASK: usize = SEGMENT_BYTES - 1;

/// Slots of the longest record: a module with its build id and path.
pub(crate) const LONGEST_SLOTS: usize = 6 + (64 + 4096) / 8 + 2048;

impl Writer {
    /// Returns the bytes that are left in the segment.
    #[inline(always)]
    pub(crate) fn room_bytes(&self) -> usize {
        if self.cursor == 0 { 0 } else { SEGMENT_BYTES - offset(self.cursor) }
    }

    /// Returns true when so many slots fit. The last slot of a segment stays empty, so that the
    /// cursor never leaves it.
    #[inline(always)]
    pub(crate) fn has_room(&self, slots: usize) -> bool {
        self.room_bytes() >= (slots + 1) * 8
    }

    /// Appends and commits the record of at most `slots` slots that `write` emits, if there is
    /// room.
    #[inline(always)]
    pub(crate) fn write(
        &mut self,
        slots: usize,
        write: impl FnOnce(&mut RecordSink<'_>) -> Result<(), SinkTooSmall>,
    ) {
        if self.has_room(slots) {
            // SAFETY: there is room, by the line above.
            unsafe { self.put(slots, write) };
            commit(self.cursor);
        }
    }

    /// Appends a record without a commit: the commit of the next record makes both visible.
    ///
    /// # Safety
    ///
    /// The segment has room for `slots` slots: [`has_room`](Self::has_room) returned true for at
    /// least as many, counted from the present cursor.
    #[inline(always)]
    pub(crate) unsafe fn put(
        &mut self,
        slots: usize,
        write: impl FnOnce(&mut RecordSink<'_>) -> Result<(), SinkTooSmall>,
    ) {
        // SAFETY: the cursor is in a segment that `next_segment` claimed for this writer alone and
        // that has storage; by contract so many slots are left in it.
        let place = unsafe { core::slice::from_raw_parts_mut(self.cursor as *mut u64, slots) };
        let mut sink = RecordSink::new(place);
        // A record that needs more slots than the caller has counted is left out as a whole.
        if write(&mut sink).is_ok() {
            self.cursor += sink.written().len() * 8;
        }
    }

    /// Continues in a fresh segment, which begins with a reading of the clocks.
    #[cold]
    #[inline(never)]
    pub(crate) fn next_segment(
        &mut self,
        spool: &Spool,
        segment_use: SegmentUse,
        lane: Lane,
    ) -> Result<(), NoSegment> {
        let claimed = spool.claim(segment_use)?;
        if self.cursor != 0 {
            spool.leave(self.ring_index);
            spool.leave_full(self.cursor & !OFFSET_MASK);
        }
        begin_segment(&claimed, segment_use, self.thread, lane, self.sequence, self.kernel_thread);
        self.sequence += 1;
        self.ring_index = claimed.ring_index;
        self.cursor = claimed.address + SEGMENT_HEADER_BYTES;
        self.write(4, |sink| sink.clock(&clock::reading()));
        if claimed.overwritten > 0 {
            self.write(2, |sink| sink.loss(LossKind::Overwritten, claimed.overwritten));
        }
        Ok(())
    }
}

/// Makes all records below the cursor part of the recording.
#[inline(always)]
pub(crate) fn commit(cursor: usize) {
    committed_word(cursor & !OFFSET_MASK).store(offset(cursor) as u64, Ordering::Release);
}

/// Returns the distance from the start of the segment; 0 without a segment.
#[inline(always)]
fn offset(cursor: usize) -> usize {
    cursor & OFFSET_MASK
}
