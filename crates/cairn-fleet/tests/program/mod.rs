//! The program, and what tests need beside it.

#![allow(dead_code, reason = "each test uses a part of this")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

pub(crate) fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").canonicalize().unwrap()
}

pub(crate) fn command(directory: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cairn-fleet"));
    command.args(arguments).current_dir(directory);
    command
}

pub(crate) fn run(directory: &Path, arguments: &[&str]) -> Output {
    command(directory, arguments).output().unwrap()
}

/// Runs a command that must succeed; returns its output.
pub(crate) fn done(directory: &Path, arguments: &[&str]) -> String {
    let output = run(directory, arguments);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The rows of an answer.
pub(crate) fn rows(directory: &Path, arguments: &[&str]) -> Vec<Value> {
    let arguments: Vec<&str> = arguments.iter().copied().chain(["--format", "json"]).collect();
    done(directory, &arguments).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The rows of a query to the store of the name `store`.
pub(crate) fn sql(directory: &Path, query: &str) -> Vec<Value> {
    rows(directory, &["sql", "store", query])
}

/// Runs of a test that kills programs; `CAIRN_KILL_RUNS` makes it longer.
pub(crate) fn kill_runs(usual: u32) -> u32 {
    std::env::var("CAIRN_KILL_RUNS").ok().and_then(|runs| runs.parse().ok()).unwrap_or(usual)
}

/// Copies a directory and all that is below it.
pub(crate) fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// The Python with the packages of these tests. A test without it is skipped, but not in CI.
pub(crate) fn python() -> Option<String> {
    let python = std::env::var("CAIRN_FLEET_PYTHON").ok();
    assert!(
        python.is_some() || std::env::var_os("CAIRN_CI").is_none(),
        "CI must name a python with the packages"
    );
    python
}
