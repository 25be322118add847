//! `cargo xtask check-rooms`: are the walls between the crates still where ARCHITECTURE.md draws them?
//!
//! [`table`] says what each crate may use and what it must declare; [`facts`] reads what the crates are, from
//! `cargo metadata` and their sources; [`rules`] compares the two and does nothing else, so that its tests can give it
//! crates that do not exist.

pub(crate) mod facts;
mod rules;
mod source;
mod table;

use std::fs;

use crate::process::{Failure, Outcome, at, workspace_root};

/// Prints every violation, then fails if there was one.
pub(crate) fn run(arguments: &[String]) -> Outcome {
    if let [first, ..] = arguments {
        return Err(Failure::usage(format!("check-rooms takes no arguments, but got {first:?}")));
    }
    let crates = facts::gather()?;
    let mut violations = rules::violations(table::ROOMS, &crates);
    let architecture = workspace_root().join("ARCHITECTURE.md");
    if architecture.exists() {
        let text = fs::read_to_string(&architecture).map_err(at(&architecture))?;
        violations.extend(rules::missing_in_architecture(table::ROOMS, &crates, &text));
    }
    if violations.is_empty() {
        println!("{} crates keep to their rooms", crates.len());
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
