//! One file per subcommand: arguments, help text, and `run`.

mod completions;
mod decode;
mod heap;
mod pack;

use std::io;

use crate::output::Outcome;

/// The subcommands.
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    Heap(heap::Heap),
    Decode(decode::Decode),
    Pack(pack::Pack),
    Completions(completions::Completions),
}

impl Command {
    pub(crate) fn run(self) -> io::Result<Outcome> {
        match self {
            Self::Heap(heap) => heap.run(),
            Self::Decode(decode) => decode.run(),
            Self::Pack(pack) => pack.run(),
            Self::Completions(completions) => completions.run(),
        }
    }
}
