//! Where the bytes of a recording come from: memory, or a file that is read in pieces.
//!
//! Files are read, not mapped: a file that shrinks while it is mapped ends its reader with SIGBUS,
//! and pieces of 64 KiB and more cost the same by `pread`.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use super::error::RecordingError;

/// The bytes.
#[derive(Debug)]
pub(crate) enum Source {
    Bytes(Vec<u8>),
    File(File),
}

impl Source {
    /// All that `reader` gives: for pipes, which can be read only once.
    pub(crate) fn from_reader(mut reader: impl Read) -> Result<Self, RecordingError> {
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes).map_err(RecordingError::io("reading the recording"))?;
        Ok(Self::Bytes(bytes))
    }

    /// The same bytes.
    pub(crate) fn again(&self) -> Result<Self, RecordingError> {
        match self {
            Self::Bytes(bytes) => Ok(Self::Bytes(bytes.clone())),
            Self::File(file) => {
                file.try_clone().map(Self::File).map_err(RecordingError::io("opening the recording again"))
            }
        }
    }

    /// Whether a process writes it at present, or drains it. False where the system cannot tell.
    pub(crate) fn is_held(&self) -> bool {
        match self {
            #[cfg(target_os = "linux")]
            Self::File(file) => super::mapped_file::is_held(file),
            _ => false,
        }
    }

    /// Opens the file at `path` for writing as well; nothing when it is another file than this one.
    /// No link of another user's is followed.
    pub(crate) fn open_for_writing(&self, path: &Path) -> io::Result<Option<File>> {
        #[cfg(target_os = "linux")]
        {
            use std::os::unix::fs::MetadataExt;
            let file = cairn_files::open_existing(path)?;
            if let Self::File(own) = self {
                let (own, there) = (own.metadata()?, file.metadata()?);
                return Ok(((own.dev(), own.ino()) == (there.dev(), there.ino())).then_some(file));
            }
            Ok(Some(file))
        }
        #[cfg(not(target_os = "linux"))]
        File::options().read(true).write(true).open(path).map(Some)
    }

    pub(crate) fn length(&self) -> Result<u64, RecordingError> {
        match self {
            Self::Bytes(bytes) => Ok(bytes.len() as u64),
            Self::File(file) => {
                let metadata = file.metadata().map_err(RecordingError::io("asking for the length"))?;
                Ok(metadata.len())
            }
        }
    }

    /// Replaces what is in `into` by up to `count` bytes at `offset`; fewer where the file ends.
    /// `count` is of the reader's choosing, never a number from the file that was not compared with
    /// the file's length.
    pub(crate) fn read_at(
        &self,
        offset: u64,
        count: usize,
        into: &mut Vec<u8>,
    ) -> Result<(), RecordingError> {
        match self {
            Self::Bytes(bytes) => {
                let rest =
                    usize::try_from(offset).ok().and_then(|start| bytes.get(start..)).unwrap_or_default();
                into.clear();
                into.extend_from_slice(rest.get(..count).unwrap_or(rest));
                Ok(())
            }
            Self::File(file) => {
                // A vector that was this large before is not filled with zeros again.
                into.truncate(count);
                into.resize(count, 0);
                let read = read_fully(file, offset, into)
                    .map_err(RecordingError::io(format!("reading {count} bytes at byte {offset}")))?;
                into.truncate(read);
                Ok(())
            }
        }
    }
}

#[cfg(unix)]
fn read_part(file: &File, offset: u64, into: &mut [u8]) -> io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, into, offset)
}

#[cfg(windows)]
fn read_part(file: &File, offset: u64, into: &mut [u8]) -> io::Result<usize> {
    std::os::windows::fs::FileExt::seek_read(file, into, offset)
}

/// Reads until `into` is full or the file ends; returns how many bytes that were.
pub(crate) fn read_fully(file: &File, offset: u64, into: &mut [u8]) -> io::Result<usize> {
    let mut done = 0;
    while let Some(rest) = into.get_mut(done..).filter(|rest| !rest.is_empty()) {
        match read_part(file, offset + done as u64, rest) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}
