//! `cairn fleet`: starts the program of that name, which is no part of this one.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process::Command;

use clap::Args;

use crate::output::{Outcome, complain};

/// Store recordings of many machines, and ask all of them at once
///
/// It is a program of its own, cairn-fleet, beside this one or in a directory of PATH.
#[derive(Args)]
#[command(disable_help_flag = true)]
pub(crate) struct FleetCommand {
    /// Its arguments; --help lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENT")]
    arguments: Vec<OsString>,
}

/// The program's name.
const PROGRAM: &str = "cairn-fleet";

impl FleetCommand {
    pub(crate) fn run(self) -> io::Result<Outcome> {
        let beside =
            std::env::current_exe()?.with_file_name(format!("{PROGRAM}{}", std::env::consts::EXE_SUFFIX));
        let program = if beside.is_file() { beside } else { PathBuf::from(PROGRAM) };
        let mut command = Command::new(program);
        command.args(self.arguments);
        match replaced(&mut command) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                complain(&format_args!(
                    "{PROGRAM} is not installed: put it beside cairn, or in a directory of PATH; \
                     `cargo build --release -p {PROGRAM}` builds it"
                ));
                Ok(Outcome::Refused)
            }
            result => result,
        }
    }
}

/// Becomes another program; returns only when that fails.
#[cfg(unix)]
fn replaced(command: &mut Command) -> io::Result<Outcome> {
    use std::os::unix::process::CommandExt as _;
    Err(command.exec())
}

#[cfg(not(unix))]
fn replaced(command: &mut Command) -> io::Result<Outcome> {
    let code = command.status()?.code().and_then(|code| u8::try_from(code).ok());
    Ok(Outcome::Status(code.unwrap_or(1)))
}
