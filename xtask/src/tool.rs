//! Tools that chores run and cargo can build: each has one version, in which the chores were
//! tested.

use std::path::PathBuf;
use std::process::Command;

use crate::process::{Outcome, cargo, read, run, workspace_root};

/// A program from crates.io, with the version that the chores were written for.
pub(crate) struct Tool {
    pub(crate) name: &'static str,
    pub(crate) version: &'static str,
    /// Arguments that print the version.
    pub(crate) asks_version: &'static [&'static str],
    /// Further arguments of `cargo install`.
    pub(crate) build: &'static [&'static str],
}

impl Tool {
    /// Returns the program, from the path or from `target/tools`; builds it if neither has that
    /// version.
    pub(crate) fn program(&self) -> Outcome<PathBuf> {
        let tools = workspace_root().join("target/tools");
        let own = tools.join("bin").join(self.name);
        for program in [PathBuf::from(self.name), own.clone()] {
            let version = read(Command::new(&program).args(self.asks_version));
            let is_version = |word: &str| word.trim_start_matches('v') == self.version;
            if version.is_ok_and(|text| text.split_whitespace().any(is_version)) {
                return Ok(program);
            }
        }
        // A debug build takes a third of the time of a release build, and these tools run for
        // seconds.
        let mut install = cargo();
        install.env("CARGO_PROFILE_DEV_DEBUG", "0");
        install.args(["install", "--locked", "--debug", "--force", "--version", self.version]);
        run(install.args(self.build).arg("--root").arg(&tools).arg(self.name))?;
        Ok(own)
    }
}
