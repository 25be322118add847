//! `cargo xtask bench`: runs the benchmark program, optimised, from the root of the workspace.

use crate::process::{Outcome, cargo, run};

/// Passes its arguments on; without any, the program lists its commands.
pub(crate) fn run_benches(arguments: &[String]) -> Outcome {
    let arguments = if arguments.is_empty() { &["help".to_owned()] } else { arguments };
    run(cargo().args(["run", "--quiet", "--release", "--package", "cairn-benches", "--"]).args(arguments))
}
