//! `cairn heap ctl`: tells a process that records what to do.
//!
//! The process is not asked and no signal is sent: it has its recording mapped, so the kernel says where that is, and the
//! word that it looks at is written there. A mark is written into a block of the recording that no thread of the process
//! uses.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStrExt;

use cairn_analysis::format::recording::control::Command;
use cairn_analysis::recording::mark_from_outside;
use clap::{Args, Subcommand};

use crate::commands::target::{give, recording_of};
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
