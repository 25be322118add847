//! One file per subcommand: arguments, help text, and `run`.

mod completions;
mod decode;
mod pack;
mod play;
#[cfg(target_os = "linux")]
mod snapshot;
mod symbol_options;

use std::io;

use crate::output::Outcome;

/// The subcommands.
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    Decode(decode::Decode),
    Pack(pack::Pack),
    Play(play::Play),
    #[cfg(target_os = "linux")]
    Snapshot(snapshot::Snapshot),
    Completions(completions::Completions),
}

impl Command {
    pub(crate) fn run(self) -> io::Result<Outcome> {
        match self {
            Self::Decode(decode) => decode.run(),
            Self::Play(play) => play.run(),
            #[cfg(target_os = "linux")]
            Self::Snapshot(snapshot) => snapshot.run(),
            Self::Pack(pack) => pack.run(),
            Self::Completions(completions) => completions.run(),
        }
    }
}
