//! `cargo xtask fleet`: all checks of the crates for many machines, and the book's chapter on them.
//!
//! They have 600 dependencies, among them a query engine, and are no default members of the
//! workspace, so that a build of `cairn` waits for none of these. Their profile optimises no
//! dependency: the tests spend less time in them than a compiler would.

use std::process::Command;

use crate::debian::{self, Tool};
use crate::process::{self, Failure, Outcome, cargo, workspace_root};
use crate::python;

/// Other engines, clients and servers that tests run beside the program.
const PACKAGES: &[&str] = &[
    "adbc-driver-flightsql==1.13.0",
    "deltalake==1.6.6",
    "duckdb==2.0.1",
    "moto[server]==5.2.5",
    "pyarrow==26.0.1",
    "pyspark==4.3.0",
];
/// Spark's own needs.
const JAVA: Tool = Tool { program: "java", package: "openjdk-17-jre-headless", also: &[] };

const CRATES: &[&str] = &["cairn-store", "cairn-fleet"];
const PROFILE: &str = "fleet";

/// A command of cargo on both crates.
fn on_crates(chore: &[&str]) -> Command {
    let mut command = cargo();
    command.args(chore).args(["--profile", PROFILE, "--locked"]);
    for package in CRATES {
        command.args(["--package", package]);
    }
    command
}

/// Runs the checks; with `doc`, builds the documentation of both crates alone.
pub(crate) fn run(arguments: &[String]) -> Outcome {
    match arguments {
        [] => {}
        [part] if part == "doc" => {
            return process::run(on_crates(&["doc", "--no-deps"]).env("RUSTDOCFLAGS", "-D warnings"));
        }
        [first, ..] => {
            return Err(Failure::usage(format!("fleet takes `doc` or nothing, but got {first:?}")));
        }
    }
    debian::require(&[JAVA])?;
    let python = python::environment(&workspace_root().join("target/tools/fleet-python"), PACKAGES)?;
    let mut tests = on_crates(&["test"]);
    // Clippy compiles as rustc does, so that one pass over 600 dependencies serves lints and tests.
    // `cargo clippy` starts it in the same way; both would be two passes.
    tests.env("RUSTC_WORKSPACE_WRAPPER", "clippy-driver");
    tests.env("CLIPPY_ARGS", "-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__");
    process::run(tests.env("CAIRN_FLEET_PYTHON", python))?;
    // The chapter runs where the program is found: the tests have built it.
    let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    let program = workspace_root().join(target).join(PROFILE);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(std::iter::once(program).chain(std::env::split_paths(&path)))
        .map_err(|error| Failure::new(format!("PATH: {error}")))?;
    let mut book = cargo();
    // With the features of all default members, so that the tests that come last find it built.
    book.args(["test", "--locked", "--test", "book", "fleet"]).env("PATH", path);
    process::run(&mut book)
}
