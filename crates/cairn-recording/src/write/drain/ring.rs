//! Which segments the program has taken, and which go back to it.

use cairn_format::recording::{SEGMENT_BYTES, SEGMENT_HEADER_BYTES, SegmentHeader, control};

use crate::error::RecordingError;
use crate::mapped_file::SharedFile;
use crate::spool::lane::segment_offset;

/// Storage that is ready for the program to write to.
const RESERVED_SEGMENTS: u64 = 256;

/// The free ring, and the end of the file, as far as they were read.
pub(super) struct SegmentRing {
    /// Segments from the end of the file.
    seen_claimed: u64,
    /// Entries of the free ring that the program has taken.
    seen_taken: u64,
    given: u64,
    /// Segments that are merged, and not given back.
    drained: Vec<u32>,
}

impl SegmentRing {
    pub(super) fn new(shared: &SharedFile) -> Self {
        Self {
            seen_claimed: 1,
            seen_taken: shared.load(control::FREE_TAKEN as u64),
            given: shared.load(control::FREE_GIVEN as u64),
            drained: Vec::new(),
        }
    }

    /// Returns newly claimed segments, from the end of the file or from the free ring.
    pub(super) fn new_segments(&mut self, shared: &mut SharedFile) -> Vec<u32> {
        let claimed = shared.load(control::CLAIMED_SEGMENTS as u64);
        if claimed > shared.known_length() / SEGMENT_BYTES as u64 {
            shared.length();
        }
        let claimed = claimed.min(shared.known_length() / SEGMENT_BYTES as u64).max(self.seen_claimed);
        let mut new: Vec<u32> = (self.seen_claimed as u32..claimed as u32).collect();
        self.seen_claimed = claimed;
        let taken = shared.load(control::FREE_TAKEN as u64).min(self.given);
        while self.seen_taken < taken {
            new.push(entry(shared, self.seen_taken));
            self.seen_taken += 1;
        }
        new
    }

    /// Takes in segments that are merged to their end.
    pub(super) fn take_merged(&mut self, merged: &mut Vec<u32>) {
        self.drained.append(merged);
    }

    /// How many segments can be given back.
    pub(super) fn drained(&self) -> usize {
        self.drained.len()
    }

    /// Gives the drained segments back to the program; the packed file has everything of them.
    pub(super) fn give_back(&mut self, shared: &SharedFile) {
        // Not over entries that the program has taken since the last look: which segments these are
        // has still to be read.
        let unseen = (self.given - self.seen_taken).min(control::FREE_RING_ENTRIES as u64);
        let room = control::FREE_RING_ENTRIES as u64 - unseen;
        let count = self.drained.len().min(room as usize);
        for segment in self.drained.drain(..count) {
            let offset = segment_offset(segment);
            // Without a header the segment is empty until the next thread that takes it writes one;
            // whenever this process is killed, it is either that or whole.
            shared.store(offset + SegmentHeader::COMMITTED_OFFSET as u64, 0);
            for word in 0..SEGMENT_HEADER_BYTES as u64 / 8 {
                shared.store(offset + word * 8, 0);
            }
            let at = entry_offset(self.given);
            let (word, shift) = (at & !7, at % 8 * 8);
            let others = shared.load(word) & !(u64::from(u32::MAX) << shift);
            shared.store(word, others | u64::from(segment) << shift);
            self.given += 1;
        }
        shared.store(control::FREE_GIVEN as u64, self.given);
    }

    /// Extends the file, so that the program finds storage without a system call.
    pub(super) fn reserve(&self, shared: &mut SharedFile) -> Result<(), RecordingError> {
        let claimed = shared.load(control::CLAIMED_SEGMENTS as u64).max(1);
        let backed = shared.load(control::BACKED_SEGMENTS as u64);
        let free = self.given.saturating_sub(shared.load(control::FREE_TAKEN as u64));
        let wanted = claimed + RESERVED_SEGMENTS.saturating_sub(free);
        if wanted <= backed {
            return Ok(());
        }
        // In steps, so that the file system is asked rarely.
        let wanted = wanted.next_multiple_of(64);
        let failed = RecordingError::io("reserving storage for the spool");
        shared.reserve(wanted * SEGMENT_BYTES as u64).map_err(failed)?;
        let present = shared.length() / SEGMENT_BYTES as u64;
        // The program extends the file, too.
        shared.raise(control::BACKED_SEGMENTS as u64, present);
        Ok(())
    }
}

fn entry_offset(number: u64) -> u64 {
    control::FREE_RING as u64 + number % control::FREE_RING_ENTRIES as u64 * 4
}

fn entry(shared: &SharedFile, number: u64) -> u32 {
    let at = entry_offset(number);
    (shared.load(at & !7) >> (at % 8 * 8)) as u32
}
