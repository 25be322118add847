//! `cairn heap ctl`: tells a process that records what to do.
//!
//! The process is not asked and no signal is sent: it has its recording mapped, so the kernel says where that is, and the
//! word that it looks at is written there. A mark is written into a block of the recording that no thread of the process
//! uses.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
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
fn recording_of(process: u32) -> io::Result<PathBuf> {
    let about =
        |error: io::Error, path: &Path| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    let maps = PathBuf::from(format!("/proc/{process}/maps"));
    let text = fs::read(&maps).map_err(|error| about(error, &maps))?;
    let files = PathBuf::from(format!("/proc/{process}/map_files"));
    for line in text.split(|byte| *byte == b'\n') {
        // Shared and writable, as a recording is; the path comes behind five words.
        let mut words = line.splitn(2, |byte| *byte == b' ');
        let (Some(range), Some(rest)) = (words.next(), words.next()) else { continue };
        if !rest.starts_with(b"rw-s") {
            continue;
        }
        let Some(at) = rest.iter().position(|byte| *byte == b'/') else { continue };
        let named = PathBuf::from(std::ffi::OsStr::from_bytes(&rest[at..]));
        // In another name space the path is another file, but the kernel's own link leads there.
        let linked = files.join(std::ffi::OsStr::from_bytes(range));
        if let Some(path) = [named, linked].into_iter().find(|path| is_recording_of(path, process)) {
            return Ok(path);
        }
    }
    Err(io::Error::new(
        io::ErrorKind::NotFound,
        format!("process {process} does not record; start it with `cairn heap`"),
    ))
}

fn is_recording_of(path: &Path, process: u32) -> bool {
    let mut bytes = [0; FILE_HEADER_BYTES];
    let is_read = File::open(path).and_then(|file| file.read_exact_at(&mut bytes, 0)).is_ok();
    is_read
        && FileHeader::read(&bytes)
            .is_ok_and(|header| header.shape == Shape::Spool && header.process == process)
}
