//! Tells a program to record or not to, and puts marks into its recording: what `cairn heap ctl`
//! does.
//!
//! The program reads a word of its spool; so a file is written to, and only one whose header says
//! that it is a spool.

use std::io;
use std::path::Path;

use cairn_format::recording::control::Command;
use cairn_recording::{command_from_outside, mark_from_outside};

/// Longer texts are refused.
pub(crate) const MOST_MARK_BYTES: usize = 1000;

/// A request to a program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Wish {
    Start,
    Stop,
    Mark(Vec<u8>),
}

/// Tells it to the program that writes this spool.
pub(crate) fn send(spool: &Path, wish: &Wish) -> io::Result<()> {
    let command = match wish {
        Wish::Start => Command::Record,
        Wish::Stop => Command::Pause,
        Wish::Mark(text) => return mark_from_outside(spool, text).map_err(io::Error::other),
    };
    command_from_outside(spool, command)
}
