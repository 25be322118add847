//! Marks and commands that others than the program put into its recording.
//!
//! A segment is taken from the end of the spool as a thread of the program takes one, and filled
//! before its header can be seen. So every reader meets the mark as one of a further thread, which
//! did nothing else.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use cairn_format::recording::{
    FILE_HEADER_BYTES, FileHeader, Lane, MarkValue, RecordSink, SEGMENT_BYTES, SEGMENT_HEADER_BYTES,
    SegmentHeader, Shape, ThreadEvent, control,
};

use crate::error::RecordingError;
use crate::mapped_file::{SharedFile, read_clocks};

/// First number of a thread outside the program, which is numbered by its segment.
///
/// The program counts its own threads from 1.
const FIRST_OUTSIDE: u32 = 1 << 31;
/// Slots for the longest text and its thread.
const SLOTS: usize = 1024;

/// Puts a mark with this text into the spool of a program that runs. Longer texts than
/// [`MAX_MARK_TEXT_BYTES`](cairn_format::recording::MAX_MARK_TEXT_BYTES) are cut.
///
/// The mark has no stack, and the name of its thread is `cairn`.
///
/// # Errors
///
/// When the file cannot be mapped or is no spool, and when it has no free storage at this moment.
///
/// # Examples
///
/// ```no_run
/// cairn_recording::mark_from_outside("server.4711.cairn".as_ref(), b"load begins")?;
/// # Ok::<(), cairn_recording::RecordingError>(())
/// ```
pub fn mark_from_outside(spool: &Path, text: &[u8]) -> Result<(), RecordingError> {
    let failed = |source: io::Error| RecordingError::Io { action: marking(spool), source };
    mark_in(cairn_files::open_existing(spool).map_err(failed)?, spool, text)
}

fn marking(spool: &Path) -> String {
    format!("marking a moment in {}", spool.display())
}

/// As [`mark_from_outside`], in an open file; `path` is for messages.
///
/// # Errors
///
/// As [`mark_from_outside`].
pub fn mark_in(spool: File, path: &Path, text: &[u8]) -> Result<(), RecordingError> {
    let failed = |source: io::Error| RecordingError::Io { action: marking(path), source };
    if !is_spool(&spool).map_err(failed)? {
        return Err(failed(closed()));
    }
    let file = SharedFile::map(spool).map_err(failed)?;
    let mut start = Vec::new();
    file.copy(0, SEGMENT_BYTES as u64, &mut start);
    let header = FileHeader::read(&start)?;
    let block = take_block(&file).ok_or_else(|| {
        let full = "it has no free storage at this moment; try again, or give it more with --max-size";
        failed(io::Error::new(io::ErrorKind::StorageFull, full))
    })?;
    let claim = file.add(control::CLAIMS as u64, 1) + 1;
    let counter = read_clocks(header.counter).counter;
    let kernel_thread = std::process::id();
    let mut slots = [0; SLOTS];
    let mut sink = RecordSink::new(&mut slots);
    let too_long = |_| failed(io::ErrorKind::InvalidInput.into());
    sink.thread(counter, ThreadEvent::Began { kernel_thread }).map_err(too_long)?;
    sink.thread(counter, ThreadEvent::Named(b"cairn")).map_err(too_long)?;
    sink.mark(counter, 0, 0, MarkValue::None, text).map_err(too_long)?;
    let offset = u64::from(block) * SEGMENT_BYTES as u64;
    let places = (offset + SEGMENT_HEADER_BYTES as u64..).step_by(8);
    let committed_bytes = (SEGMENT_HEADER_BYTES + sink.written().len() * 8) as u64;
    for (place, &slot) in places.zip(sink.written()) {
        file.store(place, slot);
    }
    let head = SegmentHeader {
        thread: FIRST_OUTSIDE | block,
        lane: Lane::Outer,
        sequence: 0,
        committed_bytes,
        counter,
        kernel_thread,
        claim,
        has_no_tables: true,
    };
    // Last what says that there is a header at all.
    for (index, word) in head.to_bytes().as_chunks().0.iter().enumerate() {
        if index * 8 != SegmentHeader::COMMITTED_OFFSET {
            file.store(offset + index as u64 * 8, u64::from_le_bytes(*word));
        }
    }
    file.store(offset + SegmentHeader::COMMITTED_OFFSET as u64, committed_bytes);
    Ok(())
}

/// Tells the program that writes the spool at `path` what to do next.
///
/// # Errors
///
/// When the file cannot be written, and when it is no spool: the recording was closed meanwhile.
pub fn command_from_outside(path: &Path, command: control::Command) -> io::Result<()> {
    let given = cairn_files::open_existing(path).and_then(|file| command_in(&file, command));
    given.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}

/// As [`command_from_outside`], in an open file.
///
/// # Errors
///
/// As [`command_from_outside`].
pub fn command_in(spool: &File, command: control::Command) -> io::Result<()> {
    if !is_spool(spool)? {
        return Err(closed());
    }
    spool.write_all_at(&command.to_word().to_le_bytes(), control::COMMAND as u64)
}

/// Tells the program that writes this open spool that its file will be at `path`. To be called
/// before the file is renamed: the program opens the file by its path to extend it.
///
/// # Errors
///
/// When the path is too long or contains a NUL, and as [`command_in`].
pub fn announce_rename_in(spool: &File, path: &Path) -> io::Result<()> {
    let bytes = path.as_os_str().as_encoded_bytes();
    if bytes.is_empty() || bytes.len() >= control::NEW_PATH_BYTES || bytes.contains(&0) {
        return Err(io::ErrorKind::InvalidFilename.into());
    }
    if !is_spool(spool)? {
        return Err(closed());
    }
    let mut text = bytes.to_vec();
    text.push(0);
    spool.write_all_at(&text, control::NEW_PATH as u64)
}

fn is_spool(file: &File) -> io::Result<bool> {
    let mut header = [0; FILE_HEADER_BYTES];
    file.read_exact_at(&mut header, 0)?;
    Ok(FileHeader::read(&header).is_ok_and(|header| header.shape == Shape::Spool))
}

fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "the recording is closed")
}

/// The next segment that has storage and is not taken.
fn take_block(file: &SharedFile) -> Option<u32> {
    loop {
        let claimed = file.load(control::CLAIMED_SEGMENTS as u64);
        let is_there = claimed < file.load(control::BACKED_SEGMENTS as u64) && claimed > 0;
        let end = claimed.checked_add(1)?.checked_mul(SEGMENT_BYTES as u64)?;
        if !is_there || end > file.known_length() {
            return None;
        }
        let block = u32::try_from(claimed).ok().filter(|&block| block < FIRST_OUTSIDE)?;
        if file.exchange(control::CLAIMED_SEGMENTS as u64, claimed, claimed + 1) {
            return Some(block);
        }
    }
}
