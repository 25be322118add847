//! Copies the recording at one moment into a new file, and flushes it to the disk.

use core::ffi::CStr;
use core::fmt;
use core::sync::atomic::{Ordering, fence};

use cairn_format::recording::{SEGMENT_BYTES, SEGMENT_HEADER_BYTES, SegmentHeader};

use crate::os::{Errno, ErrnoGuard, File};
use crate::path_text::PathText;
use crate::recorder::{self, Recorder};
use crate::spool::{PATH_BYTES, SegmentUse, Spool};
use crate::tables::TableWriter;

/// Reason why there is no copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum DumpError {
    /// Nothing was recorded in this process.
    NoRecording,
    /// The path is too long, or holds a NUL.
    Path,
    /// A file of that name exists.
    Exists,
    /// The file cannot be made or written; the number is the kernel's. A partial file may exist.
    Write(i32),
    /// Too many threads and signal handlers dump at this moment.
    Busy,
}

impl fmt::Display for DumpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRecording => f.write_str("nothing is recorded in this process; start a recording first"),
            Self::Path => f.write_str("the path is too long or holds a NUL"),
            Self::Exists => f.write_str("a file of that name exists; choose another one"),
            Self::Write(error) => write!(f, "the copy cannot be written (errno {error})"),
            Self::Busy => f.write_str("too many copies are being written; try again"),
        }
    }
}

impl core::error::Error for DumpError {}

impl From<Errno> for DumpError {
    fn from(error: Errno) -> Self {
        if error == Errno::EXISTS { Self::Exists } else { Self::Write(error.0) }
    }
}

/// Writes all recorded events into a new file at `path`, as a recording of its own.
///
/// Each event that a thread writes meanwhile is either complete in the copy or missing. May be
/// called in a signal handler.
///
/// With `last_nanos`, the copy of a ring leaves out segments whose events are all older than that;
/// a ring that is limited by time leaves out outdated segments that it has not overwritten yet.
///
/// # Errors
///
/// [`DumpError`]; the recording itself goes on.
pub fn dump(path: &[u8], last_nanos: Option<u64>) -> Result<(), DumpError> {
    let recorder = recorder::current().ok_or(DumpError::NoRecording)?;
    let _errno = ErrnoGuard::new();
    // For its scratch memory: the path would not fit on a small stack.
    let mut tables = TableWriter::take(recorder).ok_or(DumpError::Busy)?;
    let mut text = PathText::new(tables.take_scratch().get_mut(..PATH_BYTES).unwrap_or_default());
    text.push(path);
    let path = text.as_c_string().ok_or(DumpError::Path)?;
    copy(recorder, path, last_nanos)
}

fn copy(recorder: &Recorder, path: &CStr, last_nanos: Option<u64>) -> Result<(), DumpError> {
    let spool = &recorder.spool;
    let file = File::create(path)?;
    let last_nanos = last_nanos.unwrap_or(u64::MAX).min(spool.ring_nanos());
    let oldest = if last_nanos == u64::MAX { 0 } else { spool.counter_before(last_nanos) };
    // Event segments that are claimed from here on are not copied; table segments are. The table
    // records that an event refers to are written before the event, and copied after it.
    for segment in 1..spool.claimed_segments() {
        if !spool.was_left_before(segment, oldest) {
            copy_segment(spool, &file, segment, SegmentUse::Events)?;
        }
    }
    let segments = spool.claimed_segments();
    for segment in 1..segments {
        copy_segment(spool, &file, segment, SegmentUse::Tables)?;
    }
    file.set_length(segments * SEGMENT_BYTES as u64)?;
    // The header comes last: a copy that was interrupted is no recording.
    file.seek(0)?;
    Ok(file.write_all(spool.first_segment())?)
}

/// Copies the committed records of a segment of this use, with a header that states their length.
fn copy_segment(spool: &Spool, file: &File, segment: u64, segment_use: SegmentUse) -> Result<(), Errno> {
    // Header, records, and at the end both again: if a ring reuses the segment meanwhile, its
    // header has changed at the second read, or fewer bytes are committed.
    let Some(mut header) = spool.header(segment) else { return Ok(()) };
    fence(Ordering::Acquire);
    let Some(records) = spool.committed(segment) else { return Ok(()) };
    let is_wanted = |read: &SegmentHeader| read.has_no_tables == (segment_use == SegmentUse::Events);
    if !SegmentHeader::read(&header).is_ok_and(|read| is_wanted(&read)) {
        return Ok(());
    }
    let length = (SEGMENT_HEADER_BYTES + records.len()) as u64;
    if let Some(place) = header.get_mut(SegmentHeader::COMMITTED_OFFSET..SegmentHeader::COMMITTED_OFFSET + 8)
    {
        place.copy_from_slice(&length.to_le_bytes());
    }
    file.seek(segment * SEGMENT_BYTES as u64)?;
    file.write_all(&header)?;
    file.write_all(records)?;
    fence(Ordering::SeqCst);
    let is_less = spool.committed(segment).is_none_or(|now| now.len() < records.len());
    if is_less || spool.header(segment).is_none_or(|now| now != header_without_length(&now, &header)) {
        // A ring has reused the segment meanwhile: the copy is a mixture, and is discarded.
        file.seek(segment * SEGMENT_BYTES as u64)?;
        file.write_all(&[0; SEGMENT_HEADER_BYTES])?;
    }
    Ok(())
}

/// Returns `copied` with the committed length of `now`, which may have grown.
fn header_without_length(
    now: &[u8; SEGMENT_HEADER_BYTES],
    copied: &[u8; SEGMENT_HEADER_BYTES],
) -> [u8; SEGMENT_HEADER_BYTES] {
    let mut same = *copied;
    let length = SegmentHeader::COMMITTED_OFFSET..SegmentHeader::COMMITTED_OFFSET + 8;
    if let (Some(place), Some(length)) = (same.get_mut(length.clone()), now.get(length)) {
        place.copy_from_slice(length);
    }
    same
}

/// Waits until all recorded events are on the disk, so that they survive a power failure. The end
/// of the process, however it comes, needs no flush.
///
/// # Errors
///
/// [`DumpError::NoRecording`], or [`DumpError::Write`] with the kernel's error.
pub fn flush() -> Result<(), DumpError> {
    let recorder = recorder::current().ok_or(DumpError::NoRecording)?;
    let _errno = ErrnoGuard::new();
    Ok(recorder.spool.synchronise()?)
}
