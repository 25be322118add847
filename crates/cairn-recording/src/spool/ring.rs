//! A ring, in which the program writes to its oldest segments again while they are read.

use cairn_format::recording::{SEGMENT_BYTES, SEGMENT_HEADER_BYTES, SegmentHeader};

use super::scan::segment_offsets;
use crate::error::RecordingError;
use crate::source::Source;

/// Copies a ring whose segments the program overwrites meanwhile.
///
/// Each segment is copied as it was at one moment. Segments that were overwritten during each of
/// several attempts are left out and counted.
pub(crate) fn copy_of_ring(source: &Source) -> Result<(Vec<u8>, u64), RecordingError> {
    const TRIES: u32 = 4;
    let length = source.length()?;
    let (mut copy, mut lost) = (Vec::new(), 0);
    source.read_at(0, SEGMENT_BYTES, &mut copy)?;
    let (mut segment, mut head) = (Vec::new(), Vec::new());
    for offset in segment_offsets(length) {
        let mut is_whole = false;
        for _ in 0..TRIES {
            source.read_at(offset, SEGMENT_BYTES, &mut segment)?;
            source.read_at(offset, SEGMENT_HEADER_BYTES, &mut head)?;
            // Its length becomes 0 before anything else of it is overwritten, and its claim is
            // another one afterwards.
            let claim = |bytes: &[u8]| SegmentHeader::read(bytes).map(|header| header.claim);
            is_whole = claim(&segment) == claim(&head);
            if is_whole {
                break;
            }
        }
        if !is_whole {
            segment.fill(0);
            lost += 1;
        }
        copy.extend_from_slice(&segment);
    }
    Ok((copy, lost))
}
