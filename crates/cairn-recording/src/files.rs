//! The two files of a recording: the program's spool, and the packed one that is made of it.
//!
//! ```text
//!   program.4711.cairn        the spool while the program runs; the packed recording once it is closed
//!   program.4711.cairn.new    the packed recording while the spool is drained
//! ```

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cairn_format::recording::{FILE_HEADER_BYTES, FileHeader, SEGMENT_BYTES, Shape, control};

use crate::error::RecordingError;
use crate::source::Source;
use crate::spool::control_words::word;

/// Opens the bytes of a recording.
pub(crate) fn open_source(path: &Path) -> Result<Source, RecordingError> {
    let file = File::open(path).map_err(RecordingError::io(format!("opening {}", path.display())))?;
    let is_file = file.metadata().is_ok_and(|metadata| metadata.is_file());
    // A pipe or a device has no places to read at.
    if is_file { Ok(Source::File(file)) } else { Source::from_reader(file) }
}

/// Whether two files are of the same start of the same process.
pub(crate) fn is_of_same(one: &FileHeader, other: &FileHeader) -> bool {
    let identity =
        |header: &FileHeader| (header.process, header.start_wall_nanos, header.start_monotonic_nanos);
    identity(one) == identity(other)
}

/// Returns the packed recording that is being made of a spool, where there is one.
#[must_use]
pub fn drained_into(spool: &Path) -> Option<PathBuf> {
    let packed = packed_of(spool);
    let (of_spool, of_packed) = (header_of(spool)?, header_of(&packed)?);
    let fits = of_spool.shape == Shape::Spool && of_packed.shape == Shape::Packed;
    (fits && is_of_same(&of_spool, &of_packed)).then_some(packed)
}

/// Returns the spool that a packed recording is being made of, by its name.
#[must_use]
pub fn drained_from(packed: &Path) -> Option<PathBuf> {
    let spool = spool_of(packed)?;
    (drained_into(&spool)? == packed).then_some(spool)
}

/// Whether a process drains the spool at present.
#[must_use]
pub fn is_drained_at_present(spool: &Path) -> bool {
    let mut first = Vec::new();
    open_source(spool).is_ok_and(|source| {
        source.read_at(0, SEGMENT_BYTES, &mut first).is_ok()
            && is_drained_now(&source, &first).unwrap_or(false)
    })
}

/// Reads the first bytes of a file, if it is a recording.
pub(crate) fn header_of(path: &Path) -> Option<FileHeader> {
    let mut start = Vec::new();
    let file = File::open(path).ok().filter(|file| file.metadata().is_ok_and(|facts| facts.is_file()))?;
    file.take(FILE_HEADER_BYTES as u64).read_to_end(&mut start).ok()?;
    FileHeader::read(&start).ok()
}

/// The end of a packed recording's name while its spool is drained.
const NEW: &str = ".new";

/// Returns the spool that a packed recording is made of, by its name.
pub(crate) fn spool_of(packed: &Path) -> Option<PathBuf> {
    let name = packed.file_name()?.to_str()?.strip_suffix(NEW)?;
    let spool = packed.with_file_name(name);
    spool.is_file().then_some(spool)
}

/// Returns the name of the packed recording that is made of a spool.
pub(crate) fn packed_of(spool: &Path) -> PathBuf {
    let mut name = spool.as_os_str().to_owned();
    name.push(NEW);
    PathBuf::from(name)
}

/// Returns whether a process drains this spool now, and may move its data to the other file.
///
/// The kernel knows whether the file is held, even by a process that gets no processor or is about
/// to close the recording. Where it has no locks, the tick shows it, which changes about once in a
/// millisecond.
pub(crate) fn is_drained_now(source: &Source, first: &[u8]) -> Result<bool, RecordingError> {
    const RETRIES: u32 = 4;
    if source.is_held() {
        return Ok(true);
    }
    let before = word(first, control::TICK);
    let mut bytes = Vec::new();
    for _ in 0..RETRIES {
        std::thread::sleep(Duration::from_millis(5));
        source.read_at(control::TICK as u64, 8, &mut bytes)?;
        if word(&bytes, 0) != before {
            return Ok(true);
        }
    }
    Ok(false)
}
