//! `cairn heap ctl`: controls a process that records.
//!
//! No signal is sent: the process has its recording mapped, so the kernel says which file that is.
//! The command is written to a word of that file which the process polls, through the descriptor
//! that was checked to be the mapped file. A mark is written into a segment that no thread of the
//! process uses.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStrExt;

use cairn_format::recording::control::Command;
use cairn_recording::{command_in, mark_in};
use clap::{Args, Subcommand};

use crate::commands::processes::parse_pid;
use crate::commands::target::open_recording_of;
use crate::output::Outcome;

/// Start or stop the recording of a process, or write a mark into it
#[derive(Args)]
#[command(after_help = "\
Examples:
  cairn heap --start-paused server & cairn heap ctl $! start
  cairn heap ctl 4711 stop
  cairn heap ctl 4711 mark 'after warm-up'

Exit codes: 0 done; 1 the process is missing or not recorded; 2 the arguments are invalid.")]
pub(super) struct Ctl {
    /// PID of the recorded process
    #[arg(value_name = "PID", value_parser = parse_pid)]
    process: u32,

    #[command(subcommand)]
    action: CtlAction,
}

#[derive(Subcommand)]
enum CtlAction {
    /// Record from now on
    Start,
    /// Pause the recording until `start`
    Stop,
    /// Write a mark with a text into the recording, now
    Mark {
        /// Text of the mark
        text: OsString,
    },
}

impl Ctl {
    pub(super) fn run(self) -> io::Result<Outcome> {
        let (spool, path) = open_recording_of(self.process)?;
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        match self.action {
            CtlAction::Start => command_in(&spool, Command::Record).map_err(named)?,
            CtlAction::Stop => command_in(&spool, Command::Pause).map_err(named)?,
            CtlAction::Mark { text } => mark_in(spool, &path, text.as_bytes()).map_err(io::Error::other)?,
        }
        Ok(Outcome::Done)
    }
}
