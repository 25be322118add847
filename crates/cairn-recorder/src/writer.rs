//! A sequence of blocks that one thread at a time appends records to.

use cairn_format::recording::{
    Lane, LossKind, RecordSink, SEGMENT_BYTES, SEGMENT_HEADER_BYTES, SinkTooSmall,
};

use crate::clock;
use crate::recorder::Recorder;
use crate::spool::{NoBlock, Use, begin_block, committed_word};

/// Where the next record goes. All-zero bytes are a writer without a block.
#[repr(C)]
pub(crate) struct Writer {
    /// Address of the next slot. Blocks lie at multiples of their size, so this tells the block as well; 0 for none.
    pub(crate) cursor: usize,
    /// The number in the headers of its blocks.
    pub(crate) thread: u32,
    pub(crate) kernel_thread: u32,
    sequence: u32,
    /// Where the ring has the block.
    place: u32,
}

const OFFSET_MASK: usize = SEGMENT_BYTES - 1;

/// Slots of the longest record: a module with its build id and path.
pub(crate) const LONGEST_SLOTS: usize = 6 + (64 + 4096) / 8 + 2048;

impl Writer {
    /// Bytes that are left in the block.
    #[inline(always)]
    pub(crate) fn room_bytes(&self) -> usize {
        if self.cursor == 0 { 0 } else { SEGMENT_BYTES - offset(self.cursor) }
    }

    /// True when so many slots fit. The last slot of a block stays empty, so that the cursor never leaves it.
    #[inline(always)]
    pub(crate) fn has_room(&self, slots: usize) -> bool {
        self.room_bytes() >= (slots + 1) * 8
    }

    /// Appends what `write` writes, at most `slots` slots, wholly or not at all.
    pub(crate) fn append(
        &mut self,
        recorder: &Recorder,
        use_of_it: Use,
        lane: Lane,
        slots: usize,
        write: impl FnOnce(&mut RecordSink<'_>) -> Result<(), SinkTooSmall>,
    ) -> Result<(), NoBlock> {
        if !self.has_room(slots) {
            self.next_block(recorder, use_of_it, lane)?;
        }
        self.write(slots, write);
        Ok(())
    }

    /// As [`append`](Self::append), where there is room.
    #[inline(always)]
    pub(crate) fn write(
        &mut self,
        slots: usize,
        write: impl FnOnce(&mut RecordSink<'_>) -> Result<(), SinkTooSmall>,
    ) {
        // SAFETY: the cursor lies in a block that is this writer's alone, with room for so many slots.
        let place = unsafe { core::slice::from_raw_parts_mut(self.cursor as *mut u64, slots) };
        let mut sink = RecordSink::new(place);
        // What does not fit by the caller's count is left out whole.
        if write(&mut sink).is_ok() {
            self.cursor += sink.written().len() * 8;
            commit(self.cursor);
        }
    }

    /// Goes on in a fresh block, which begins with a reading of the clocks.
    #[cold]
    #[inline(never)]
    pub(crate) fn next_block(
        &mut self,
        recorder: &Recorder,
        use_of_it: Use,
        lane: Lane,
    ) -> Result<(), NoBlock> {
        let claimed = recorder.spool.claim(use_of_it)?;
        if self.cursor != 0 {
            recorder.spool.leave(self.place);
            recorder.spool.leave_full(self.cursor & !OFFSET_MASK);
        }
        begin_block(&claimed, use_of_it, self.thread, lane, self.sequence, self.kernel_thread);
        self.sequence += 1;
        self.place = claimed.place;
        self.cursor = claimed.address + SEGMENT_HEADER_BYTES;
        self.write(4, |sink| sink.clock(&clock::reading()));
        if claimed.overwritten > 0 {
            self.write(2, |sink| sink.loss(LossKind::Overwritten, claimed.overwritten));
        }
        recorder.tell_own_memory();
        Ok(())
    }
}

/// Makes everything below the cursor part of the recording.
#[inline(always)]
pub(crate) fn commit(cursor: usize) {
    committed_word(cursor & !OFFSET_MASK).store(offset(cursor) as u64, core::sync::atomic::Ordering::Release);
}

/// Bytes from the start of the block; 0 for no block.
#[inline(always)]
fn offset(cursor: usize) -> usize {
    cursor & OFFSET_MASK
}
