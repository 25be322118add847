//! `cairn completions`: completion scripts for shells.

use std::io::{self, Write};

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::output::Outcome;

/// Print a completion script for your shell
#[derive(Args)]
#[command(after_help = "\
Examples:
  cairn completions bash > ~/.local/share/bash-completion/completions/cairn
  cairn completions zsh > ~/.zfunc/_cairn
  cairn completions fish > ~/.config/fish/completions/cairn.fish")]
pub(crate) struct Completions {
    /// The shell to complete in
    shell: Shell,
}

impl Completions {
    pub(crate) fn run(self) -> io::Result<Outcome> {
        // Into memory first: the generator panics when its writer fails, and a closed pipe is no reason to.
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut crate::Cairn::command(), "cairn", &mut script);
        let mut output = crate::output::stdout();
        output.write_all(&script)?;
        output.flush()?;
        Ok(Outcome::Done)
    }
}
