//! One file per subcommand: arguments, help text, and `run`.

mod completions;
mod decode;
mod diff;
mod flame;
mod heap_input;
mod heap_text;
mod pack;
mod report;
#[cfg(target_os = "linux")]
mod snapshot;
mod symbol_options;

use std::io;

use crate::output::Outcome;

/// The subcommands.
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    Decode(decode::Decode),
    #[cfg(target_os = "linux")]
    Snapshot(snapshot::Snapshot),
    Report(report::ReportCommand),
    Diff(diff::DiffCommand),
    Flame(flame::FlameCommand),
    Pack(pack::Pack),
    Completions(completions::Completions),
}

impl Command {
    pub(crate) fn run(self) -> io::Result<Outcome> {
        match self {
            Self::Decode(decode) => decode.run(),
            #[cfg(target_os = "linux")]
            Self::Snapshot(snapshot) => snapshot.run(),
            Self::Report(report) => report.run(),
            Self::Diff(diff) => diff.run(),
            Self::Flame(flame) => flame.run(),
            Self::Pack(pack) => pack.run(),
            Self::Completions(completions) => completions.run(),
        }
    }
}
