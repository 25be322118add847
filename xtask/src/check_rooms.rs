//! `cargo xtask check-rooms`: compares the crates with the map in ARCHITECTURE.md.
//!
//! [`table`] lists the crates that each crate may use and the attributes that it must declare.
//! [`facts`] reads `cargo metadata` and the sources. [`rules`] compares the two without any input
//! or output, so that its tests can pass crates that do not exist. [`long_files`] limits the length
//! of source files; `--shrink` removes files that became shorter from the list of allowances.

pub(crate) mod facts;
mod long_files;
mod rules;
mod source;
mod table;

use std::fs;

use crate::allowances;
use crate::check_words::text_files;
use crate::process::{Failure, Outcome, at, workspace_root};

/// Prints every violation, then fails if there was one.
pub(crate) fn run(arguments: &[String]) -> Outcome {
    let shrinks = match arguments {
        [] => false,
        [flag] if flag == "--shrink" => true,
        _ => return Err(Failure::usage("usage: cargo xtask check-rooms [--shrink]")),
    };
    check_lengths(shrinks)?;
    let crates = facts::gather()?;
    let mut violations = rules::violations(table::ROOMS, &crates);
    let architecture = workspace_root().join("ARCHITECTURE.md");
    if architecture.exists() {
        let text = fs::read_to_string(&architecture).map_err(at(&architecture))?;
        violations.extend(rules::missing_in_architecture(table::ROOMS, &crates, &text));
    }
    if violations.is_empty() {
        println!("{} crates agree with the table of rooms", crates.len());
        return Ok(());
    }
    for violation in &violations {
        eprintln!("{violation}");
    }
    Err(Failure::new(format!(
        "{} violations of the table of rooms (xtask/src/check_rooms/table.rs)",
        violations.len()
    )))
}

/// Checks the lengths of all source files.
fn check_lengths(shrinks: bool) -> Outcome {
    let mut breaches = Vec::new();
    for path in text_files()? {
        // A file that is listed but not there was removed and is not committed yet.
        let Ok(text) = fs::read_to_string(workspace_root().join(&path)) else { continue };
        breaches.extend(long_files::breach(&path, &text));
    }
    allowances::report("check-rooms", &[long_files::RULE], &breaches, shrinks)
}
