//! `cairn heap ctl`: tells a process that records what to do.
//!
//! The process is not asked and no signal is sent: it has its recording mapped, so the kernel says where that is, and the
//! word that it looks at is written there. A mark is written into a block of the recording that no thread of the process
//! uses.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirEntryExt, FileExt};
use std::path::{Path, PathBuf};

use cairn_analysis::format::recording::control::{COMMAND, Command};
use cairn_analysis::format::recording::{FILE_HEADER_BYTES, FileHeader, Shape};
use cairn_analysis::recording::mark_from_outside;
use clap::{Args, Subcommand};

use crate::output::Outcome;

/// Start or stop the recording of a process, or put a mark into it
#[derive(Args)]
pub(super) struct Ctl {
    /// The process that records
    #[arg(value_name = "PID")]
    process: u32,

    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Record from now on
    Start,
    /// Record nothing until `start`
    Stop,
    /// Put a mark with a text into the recording, at this moment
    Mark {
        /// What happens at this moment
        text: OsString,
    },
}

impl Ctl {
    pub(super) fn run(self) -> io::Result<Outcome> {
        let path = recording_of(self.process)?;
        match self.what {
            What::Start => give(&path, Command::Record)?,
            What::Stop => give(&path, Command::Pause)?,
            What::Mark { text } => mark_from_outside(&path, text.as_bytes()).map_err(io::Error::other)?,
        }
        Ok(Outcome::Done)
    }
}

/// Writes `command` into the spool at `path`.
pub(super) fn give(path: &Path, command: Command) -> io::Result<()> {
    OpenOptions::new()
        .write(true)
        .open(path)
        .and_then(|file| file.write_all_at(&command.to_word().to_le_bytes(), COMMAND as u64))
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}

/// The spool that `process` has mapped.
pub(in crate::commands) fn recording_of(process: u32) -> io::Result<PathBuf> {
    let maps = PathBuf::from(format!("/proc/{process}/maps"));
    let text = fs::read(&maps).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => io::Error::new(error.kind(), format!("there is no process {process}")),
        io::ErrorKind::PermissionDenied => io::Error::new(
            error.kind(),
            format!("{}: {error}; only its own user, or root, may control its recording", maps.display()),
        ),
        kind => io::Error::new(kind, format!("{}: {error}", maps.display())),
    })?;
    let shared = text.split(|byte| *byte == b'\n').filter_map(SharedMapping::parse);
    let found =
        shared.flat_map(|mapping| mapping.places(process)).find(|path| is_recording_of(path, process));
    found.ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::NotFound,
            format!("process {process} does not record; start it with `cairn heap`"),
        )
    })
}

/// A line of the kernel's list of mappings that can be a recording: shared and writable.
struct SharedMapping<'a> {
    range: &'a [u8],
    inode: u64,
    /// As the file was called when it was opened.
    path: &'a Path,
}

impl<'a> SharedMapping<'a> {
    /// Reads `range permissions offset device inode path`.
    fn parse(line: &'a [u8]) -> Option<Self> {
        let path = Path::new(OsStr::from_bytes(line.get(line.iter().position(|byte| *byte == b'/')?..)?));
        let mut words = line.split(|byte| *byte == b' ').filter(|word| !word.is_empty());
        let (range, permissions) = (words.next()?, words.next()?);
        let inode = std::str::from_utf8(words.nth(2)?).ok()?.parse().ok()?;
        (permissions == b"rw-s").then_some(Self { range, inode, path })
    }

    /// Where the file can be found, the surest place first.
    fn places(&self, process: u32) -> Vec<PathBuf> {
        let linked = PathBuf::from(format!("/proc/{process}/map_files")).join(OsStr::from_bytes(self.range));
        let mut places = vec![self.path.to_owned(), linked];
        // A recording is made without a name and gets one later, which this list never learns. The kernel's own link
        // leads to it, but for root only; all others find the file in its directory. That of a process in another name
        // space is seen through its root.
        let directory = self.path.parent().unwrap_or(Path::new("/"));
        let through_root = Path::new(&format!("/proc/{process}/root"))
            .join(directory.strip_prefix("/").unwrap_or(directory));
        for directory in [directory, &through_root] {
            let entries = fs::read_dir(directory).into_iter().flatten().filter_map(Result::ok);
            places.extend(entries.filter(|entry| entry.ino() == self.inode).map(|entry| entry.path()));
        }
        places
    }
}

fn is_recording_of(path: &Path, process: u32) -> bool {
    let mut bytes = [0; FILE_HEADER_BYTES];
    let is_read = File::open(path).and_then(|file| file.read_exact_at(&mut bytes, 0)).is_ok();
    is_read
        && FileHeader::read(&bytes)
            .is_ok_and(|header| header.shape == Shape::Spool && header.process == process)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_shared_mappings_of_files_can_be_recordings() {
        let line = b"7f00-7f40 rw-s 00000000 fd:00 4711                   /var/tmp/my dir/#4711 (deleted)";
        let mapping = SharedMapping::parse(line).unwrap();
        assert_eq!((mapping.range, mapping.inode), (&b"7f00-7f40"[..], 4711));
        assert_eq!(mapping.path, Path::new("/var/tmp/my dir/#4711 (deleted)"));
        for other in [
            &b"7f00-7f40 rw-p 00000000 fd:00 4711 /var/tmp/a"[..],
            b"7f00-7f40 r--s 00000000 fd:00 4711 /var/tmp/a",
            b"7f00-7f40 rw-s 00000000 00:00 0",
            b"7f00-7f40 rw-s / x / y /",
            b"",
        ] {
            assert!(SharedMapping::parse(other).is_none(), "{}", String::from_utf8_lossy(other));
        }
    }

    #[test]
    fn a_file_that_got_its_name_later_is_found_in_its_directory() {
        let directory = std::env::temp_dir().join(format!("cairn-control-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let file = directory.join("named later");
        fs::write(&file, "").unwrap();
        let inode = std::os::unix::fs::MetadataExt::ino(&fs::metadata(&file).unwrap());
        let nameless = directory.join(format!("#{inode} (deleted)"));
        let places = SharedMapping { range: b"1000-2000", inode, path: &nameless }.places(std::process::id());
        fs::remove_dir_all(&directory).unwrap();
        assert!(places.contains(&file), "{places:?}");
    }
}
