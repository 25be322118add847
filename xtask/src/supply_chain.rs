//! `cargo xtask deny` and `cargo xtask sbom`: dependencies of the workspace.
//!
//! Both run a cargo plugin that is maintained for the purpose: cargo-deny checks `deny.toml`, and
//! cargo-cyclonedx writes the lists. A plugin that is missing, or has another version, is built
//! once below `target/tools`.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::check_rooms::facts;
use crate::process::{Failure, Outcome, at, read, run, workspace_root};
use crate::tool::Tool;

// A cargo plugin expects to be called by cargo, with its own name in front.
const DENY: Tool =
    Tool { name: "cargo-deny", version: "0.20.2", asks_version: &["deny", "--version"], build: &[] };
const CYCLONEDX: Tool =
    Tool { name: "cargo-cyclonedx", version: "0.5.9", asks_version: &["cyclonedx", "--version"], build: &[] };

/// Checks the dependencies by `deny.toml`.
pub(crate) fn deny(arguments: &[String]) -> Outcome {
    if let [first, ..] = arguments {
        return Err(Failure::usage(format!("deny takes no arguments, but got {first:?}")));
    }
    let program = DENY.program()?;
    let deny = || {
        let mut command = Command::new(&program);
        command.current_dir(workspace_root()).args(["deny", "--workspace", "--all-features", "--locked"]);
        command
    };
    run(deny().args(["check", "bans", "licenses", "sources"]))?;
    let fetched = read(deny().args(["fetch", "db"]));
    if let Err(failure) = &fetched {
        println!("the advisory database could not be fetched: {failure}");
        if !has_advisories() {
            println!("advisories: NOT CHECKED, because this machine has no copy of the database either");
            return Ok(());
        }
        println!("advisories: checked against the copy in {}", DATABASES);
    }
    run(deny().args(["--offline", "check", "advisories"]))
}

/// Where `deny.toml` has cargo-deny put databases of advisories.
const DATABASES: &str = "target/advisory-dbs";

fn has_advisories() -> bool {
    let databases = fs::read_dir(workspace_root().join(DATABASES));
    databases.is_ok_and(|mut entries| entries.any(|entry| entry.is_ok_and(|entry| entry.path().is_dir())))
}

/// Shipped crates: the command with all that it carries, the library in programs, the C library.
const SHIPPED: &[&str] = &["cairn-cli", "cairn-preload", "cairn-c"];

/// Lists the dependencies of each shipped crate, one CycloneDX file each.
pub(crate) fn sbom(arguments: &[String]) -> Outcome {
    let directory = match arguments {
        [] => workspace_root().join("target/sbom"),
        [directory] if !directory.starts_with('-') => PathBuf::from(directory),
        _ => return Err(Failure::usage("usage: cargo xtask sbom [DIRECTORY]")),
    };
    let program = CYCLONEDX.program()?;
    fs::create_dir_all(&directory).map_err(at(&directory))?;
    // The plugin writes one list beside the manifest of every crate of the workspace.
    let mut command = Command::new(&program);
    command.current_dir(workspace_root()).args(["cyclonedx", "--format", "json", "--all-features"]);
    let outcome = run(command.args(["--no-build-deps", "--override-filename", "cairn-sbom"]));
    for found in facts::gather()? {
        let list = workspace_root().join(&found.manifest).with_file_name("cairn-sbom.json");
        if !list.exists() {
            continue;
        }
        if SHIPPED.contains(&found.name.as_str()) && outcome.is_ok() {
            let copy = directory.join(format!("{}.cdx.json", found.name));
            fs::copy(&list, &copy).map_err(at(&copy))?;
            println!("{}", copy.display());
        }
        fs::remove_file(&list).map_err(at(&list))?;
    }
    outcome
}
