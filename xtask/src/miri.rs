//! `cargo xtask miri`: runs pure logic with unsafe code under Miri, which detects undefined
//! behaviour.
//!
//! Miri interprets Rust and knows few system calls and no assembly. So it runs the tables and the
//! state of captures, which need only memory from the kernel. It cannot run captures themselves:
//! their registers come from assembly, their unwind tables from the loader, and they read the stack
//! of the machine. Crates that forbid unsafe code have nothing to check.

use std::process::Command;

use crate::process::{Failure, Outcome, run as run_command};

/// Packages, and the parts of their unit tests that Miri can run.
const PARTS: &[(&str, &[&str])] = &[(
    "cairn-capture",
    &[
        "stacks::index",
        "stacks::module_state",
        "stacks::region",
        "stacks::thread::record",
        "stacks::thread::shadow",
        "stacks::thread::tests::large_tables",
        "stacks::tree",
    ],
)];

/// Inputs of a property test. Miri takes seconds for each.
const PROPERTY_CASES: &str = "3";

/// Runs the parts on a nightly toolchain, which Miri needs.
pub(crate) fn run(arguments: &[String]) -> Outcome {
    if let [first, ..] = arguments {
        return Err(Failure::usage(format!("miri takes no arguments, but got {first:?}")));
    }
    for (package, parts) in PARTS {
        let mut command = Command::new("rustup");
        command.args(["run", "nightly", "cargo", "miri", "test", "--locked", "--target-dir", "target/miri"]);
        command.args(["--package", package, "--lib", "--"]).args(*parts);
        // Tree borrows, because stacked borrows take time for each element of a slice of atomics.
        // Without isolation, because property tests read the directory that they run in.
        command
            .env("MIRIFLAGS", "-Zmiri-tree-borrows -Zmiri-disable-isolation")
            .env("PROPTEST_CASES", PROPERTY_CASES);
        run_command(&mut command).map_err(|failure| {
            Failure::new(format!(
                "{failure}\nMiri comes with `rustup toolchain install nightly --component miri,rust-src`"
            ))
        })?;
    }
    Ok(())
}
