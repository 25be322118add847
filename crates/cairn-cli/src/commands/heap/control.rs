//! `cairn heap ctl`: tells a process that records what to do.
//!
//! The process is not asked and no signal is sent: it has its recording mapped, so the kernel says where that is, and the
//! word that it looks at is written there, through the descriptor of the file that was found to be the mapped one. A mark is written into a block of the recording that no thread of the process
//! uses.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStrExt;

use cairn_format::recording::control::Command;
use cairn_recording::{command_in, mark_in};
use clap::{Args, Subcommand};

use crate::commands::target::open_recording_of;
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
        let (spool, path) = open_recording_of(self.process)?;
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        match self.what {
            What::Start => command_in(&spool, Command::Record).map_err(named)?,
            What::Stop => command_in(&spool, Command::Pause).map_err(named)?,
            What::Mark { text } => mark_in(spool, &path, text.as_bytes()).map_err(io::Error::other)?,
        }
        Ok(Outcome::Done)
    }
}
