//! Environments of Python with packages that chores and tests use.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::debian::{self, Tool};
use crate::process::{Outcome, read, run};

/// Returns the interpreter of an environment in `directory`, with these packages, as
/// `duckdb==2.0.1`. Makes what is missing.
pub(crate) fn environment(directory: &Path, packages: &[&str]) -> Outcome<PathBuf> {
    let python = directory.join("bin/python");
    let pip = ["-m", "pip", "--disable-pip-version-check"];
    if read(Command::new(&python).args(pip).arg("--version")).is_err() {
        debian::require(&[Tool { program: "python3", package: "python3", also: &["python3-venv"] }])?;
        let make = || run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(directory));
        if make().is_err() {
            // Debian's interpreter may be there without this part of its library.
            debian::install(&["python3-venv"])?;
            make()?;
        }
    }
    let present = read(Command::new(&python).args(pip).args(["list", "--format", "freeze"]))?;
    let is_missing = |package: &&&str| {
        // `moto[server]==5.2.5` is listed as `moto==5.2.5`.
        let (name, version) = package.split_once("==").unwrap_or((package, ""));
        let beginning = format!("{}=={version}", name.split('[').next().unwrap_or(name));
        !present
            .lines()
            .any(|line| if version.is_empty() { line.starts_with(&beginning) } else { line == beginning })
    };
    let missing: Vec<&str> = packages.iter().filter(is_missing).copied().collect();
    if !missing.is_empty() {
        run(Command::new(&python).args(pip).args(["install", "--quiet"]).args(missing))?;
    }
    Ok(python)
}
