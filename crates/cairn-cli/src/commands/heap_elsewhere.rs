//! Refuses `cairn heap`, which needs Linux.

use std::ffi::OsString;
use std::io;

use clap::Args;

use crate::output::{Outcome, refusal};

/// Record where a program's memory goes: on Linux
#[derive(Args)]
#[command(disable_help_flag = true)]
pub(crate) struct HeapCommand {
    /// Its arguments on Linux
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENT")]
    arguments: Vec<OsString>,
}

impl HeapCommand {
    pub(crate) fn run(self) -> io::Result<Outcome> {
        drop(self.arguments);
        Err(refusal(
            "programs are recorded on Linux only; record there, copy the file here, and open it with `cairn report FILE`",
        ))
    }
}
