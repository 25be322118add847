//! Refuses `cairn snapshot`, which needs Linux.

use std::ffi::OsString;
use std::io;

use clap::Args;

use crate::output::{Outcome, refusal};

/// Print the stacks of a running process: on Linux
#[derive(Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Snapshot {
    /// Its arguments on Linux
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENT")]
    arguments: Vec<OsString>,
}

impl Snapshot {
    pub(crate) fn run(self) -> io::Result<Outcome> {
        drop(self.arguments);
        Err(refusal(
            "processes are read on Linux only; here, `cairn core FILE` prints the stacks in a minidump",
        ))
    }
}
