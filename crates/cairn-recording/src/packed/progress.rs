//! How far a spool was drained: what joins a packed recording that was not closed with what the
//! spool still has.
//!
//! ```text
//!   packed:  | ... events | PROG | ... events | PROG | events that are in the spool, too, torn tail
//!                                                 \\__ for each lane: segment and byte of its first record that is not in front
//!   spool:   | drained, maybe given back ... |  what follows from there ...
//! ```
//!
//! Segments are given back to the program only when such a chunk is in the file. So whenever the
//! draining process is killed, what is not in front of the last one is in the spool still, and what
//! is behind it in the packed file is there twice, and left out.

use cairn_format::recording::{SEGMENT_BYTES, SEGMENT_HEADER_BYTES};

use super::columns::{Put, Take};

/// Where a lane goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Progress {
    pub(crate) thread: u32,
    pub(crate) is_nested: bool,
    /// The segment of its first record that was not written.
    pub(crate) sequence: u32,
    /// Where in that segment it is.
    pub(crate) offset: u32,
    /// No later than it.
    pub(crate) ticks: u64,
    /// It is the second half of a move whose first half was written.
    pub(crate) is_moving: bool,
}

const NESTED: u64 = 1;
const MOVING: u64 = 2;

impl Progress {
    #[cfg(target_os = "linux")]
    pub(crate) fn put(&self, row: &mut Vec<u8>) {
        row.put_number(self.thread.into());
        row.put_number(if self.is_nested { NESTED } else { 0 } | if self.is_moving { MOVING } else { 0 });
        row.put_number(self.sequence.into());
        row.put_number(self.offset.into());
        row.put_number(self.ticks);
    }

    fn take(take: &mut Take<'_>) -> Option<Self> {
        let (thread, flags) = (take.number32()?, take.number()?);
        let (sequence, offset, ticks) = (take.number32()?, take.number32()?, take.number()?);
        let is_in_block =
            (SEGMENT_HEADER_BYTES as u32..=SEGMENT_BYTES as u32).contains(&offset) && offset % 8 == 0;
        is_in_block.then_some(Self {
            thread,
            is_nested: flags & NESTED != 0,
            sequence,
            offset,
            ticks,
            is_moving: flags & MOVING != 0,
        })
    }
}

/// The rows of a chunk.
pub(crate) fn take_progress(payload: &[u8]) -> Result<Vec<Progress>, &'static str> {
    let mut take = Take::new(payload);
    let mut rows = Vec::new();
    while !take.is_empty() {
        rows.push(Progress::take(&mut take).ok_or("its rows cannot be read")?);
    }
    Ok(rows)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    const ROW: Progress =
        Progress { thread: 3, is_nested: true, sequence: 7, offset: 4096, ticks: 1 << 40, is_moving: true };

    #[test]
    fn rows_are_read_as_they_were_written_and_never_in_part() {
        let other = Progress {
            thread: u32::MAX,
            is_nested: false,
            sequence: 0,
            offset: 64,
            ticks: 0,
            is_moving: false,
        };
        let mut payload = Vec::new();
        ROW.put(&mut payload);
        let first = payload.len();
        other.put(&mut payload);
        assert_eq!(take_progress(&payload), Ok(vec![ROW, other]));
        assert_eq!(take_progress(&[]), Ok(vec![]));
        for cut in 1..payload.len() {
            assert_eq!(take_progress(&payload[..cut]).is_ok(), cut == first, "cut at {cut}");
        }
    }

    #[test]
    fn places_outside_of_a_block_or_inside_of_a_slot_are_refused() {
        for offset in [0, 56, 65, 100, 65_544, u32::MAX] {
            let mut payload = Vec::new();
            Progress { offset, ..ROW }.put(&mut payload);
            assert!(take_progress(&payload).is_err(), "{offset}");
        }
    }
}
