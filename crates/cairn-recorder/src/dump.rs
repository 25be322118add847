//! A copy of the recording as it is at one moment, and its way to the disk.

use core::ffi::CStr;
use core::fmt;
use core::sync::atomic::{Ordering, fence};

use cairn_format::recording::{SEGMENT_BYTES, SEGMENT_HEADER_BYTES, SegmentHeader};

use crate::os::{Errno, File, KeptErrno, PathText};
use crate::recorder::{self, Recorder};
use crate::spool::{PATH_BYTES, Spool, Use};
use crate::tables::Tables;

/// Why there is no copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum DumpError {
    /// Nothing was recorded in this process.
    NoRecording,
    /// The path is too long, or holds a NUL.
    Path,
    /// There is a file of that name.
    Exists,
    /// The file cannot be made or written; the number is the kernel's. A part may be there.
    Write(i32),
    /// Too many threads and signal handlers dump at this moment.
    Busy,
}

impl fmt::Display for DumpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRecording => f.write_str("nothing is recorded in this process; start a recording first"),
            Self::Path => f.write_str("the path is too long or holds a NUL"),
            Self::Exists => f.write_str("there is a file of that name; choose another one"),
            Self::Write(error) => write!(f, "the copy cannot be written (errno {error})"),
            Self::Busy => f.write_str("too many copies are being written; try again"),
        }
    }
}

impl core::error::Error for DumpError {}

impl From<Errno> for DumpError {
    fn from(Errno(error): Errno) -> Self {
        if error == libc::EEXIST { Self::Exists } else { Self::Write(error) }
    }
}

/// Writes what is recorded so far into a new file at `path`, as a recording of its own. Events that threads write meanwhile are in it
/// or not, each wholly. May be called in a signal handler.
///
/// With `last_nanos`, what a ring holds from before the last so many nanoseconds is left out, as far as whole blocks go; so is what a
/// ring that is limited by time has not overwritten yet.
///
/// # Errors
///
/// [`DumpError`]; the recording itself goes on.
pub fn dump(path: &[u8], last_nanos: Option<u64>) -> Result<(), DumpError> {
    let recorder = recorder::current().ok_or(DumpError::NoRecording)?;
    let _errno = KeptErrno::new();
    // For a place to put the path together that is not on a small stack.
    let mut tables = Tables::take(recorder).ok_or(DumpError::Busy)?;
    let mut text = PathText::new(tables.scratch().get_mut(..PATH_BYTES).unwrap_or_default());
    text.push(path);
    let path = text.as_c_string().ok_or(DumpError::Path)?;
    copy(recorder, path, last_nanos)
}

fn copy(recorder: &Recorder, path: &CStr, last_nanos: Option<u64>) -> Result<(), DumpError> {
    let spool = &recorder.spool;
    let file = File::open(path, libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL, 0o600)?;
    let last_nanos = last_nanos.unwrap_or(u64::MAX).min(spool.ring_nanos());
    let oldest = if last_nanos == u64::MAX { 0 } else { spool.counter_before(last_nanos) };
    // Blocks that are claimed from here on are not copied, but for those of tables: what an event needs of them was written before the
    // event, and is copied after it.
    for block in 1..spool.claimed_blocks() {
        if !spool.was_left_before(block, oldest) {
            copy_block(spool, &file, block, Use::Events)?;
        }
    }
    let blocks = spool.claimed_blocks();
    for block in 1..blocks {
        copy_block(spool, &file, block, Use::Tables)?;
    }
    file.set_length(blocks * SEGMENT_BYTES as u64)?;
    // The header comes last: without it the file is none.
    file.seek(0)?;
    Ok(file.write_all(spool.first_block())?)
}

/// Copies what is committed of a block, if it is of that use, with a header that says just that.
fn copy_block(spool: &Spool, file: &File, block: u64, use_of_it: Use) -> Result<(), Errno> {
    // In this order: a block that is taken for something else after the first look has another header at the last one, or says that less
    // is committed.
    let Some(mut header) = spool.header(block) else { return Ok(()) };
    fence(Ordering::Acquire);
    let Some(records) = spool.committed(block) else { return Ok(()) };
    let is_wanted = |read: &SegmentHeader| read.has_no_tables == (use_of_it == Use::Events);
    if !SegmentHeader::read(&header).is_ok_and(|read| is_wanted(&read)) {
        return Ok(());
    }
    let length = (SEGMENT_HEADER_BYTES + records.len()) as u64;
    if let Some(place) = header.get_mut(SegmentHeader::COMMITTED_OFFSET..SegmentHeader::COMMITTED_OFFSET + 8)
    {
        place.copy_from_slice(&length.to_le_bytes());
    }
    file.seek(block * SEGMENT_BYTES as u64)?;
    file.write_all(&header)?;
    file.write_all(records)?;
    fence(Ordering::SeqCst);
    let is_less = spool.committed(block).is_none_or(|now| now.len() < records.len());
    if is_less || spool.header(block).is_none_or(|now| now != header_without_length(&now, &header)) {
        // A ring has taken the block for other events meanwhile: what was copied is of neither.
        file.seek(block * SEGMENT_BYTES as u64)?;
        file.write_all(&[0; SEGMENT_HEADER_BYTES])?;
    }
    Ok(())
}

/// `copied`, with the committed length of `now`, which may have grown.
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

/// Waits until everything recorded so far is on the disk, to survive a power cut. The death of the process needs no flush.
///
/// # Errors
///
/// [`DumpError::NoRecording`], or [`DumpError::Write`] with what the kernel says.
pub fn flush() -> Result<(), DumpError> {
    let recorder = recorder::current().ok_or(DumpError::NoRecording)?;
    let _errno = KeptErrno::new();
    Ok(recorder.spool.synchronise()?)
}
