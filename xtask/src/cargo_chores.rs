//! The chores that are one cargo command each, with the flags CI uses.

use std::process::Command;

use crate::process::{Failure, Outcome, cargo, run};

/// Formats the workspace and the fuzz targets, which are a workspace of their own.
pub(crate) fn fmt(arguments: &[String]) -> Outcome {
    let check = match arguments {
        [] => false,
        [flag] if flag == "--check" => true,
        _ => return Err(Failure::usage("usage: cargo xtask fmt [--check]")),
    };
    for scope in [["--all"].as_slice(), &["--manifest-path", "fuzz/Cargo.toml"]] {
        let mut command = cargo();
        command.arg("fmt").args(scope);
        if check {
            command.arg("--check");
        }
        run(&mut command)?;
    }
    Ok(())
}

/// Clippy on libraries, programs, tests, benches and examples of the default members. `cargo xtask
/// fleet` has those of the others.
///
/// `--locked` here makes a `Cargo.lock` that does not fit the manifests an error, in CI and before
/// a commit alike.
pub(crate) fn lint(arguments: &[String]) -> Outcome {
    without_arguments("lint", arguments)?;
    run(cargo().args(["clippy", "--all-targets", "--locked", "--", "-D", "warnings"]))?;
    let with = ["--features", "debuginfod"];
    for package in ["cairn-symbols", "cairn-cli"] {
        let mut command = cargo();
        command.args(["clippy", "--package", package, "--all-targets", "--locked"]).args(with);
        run(command.args(["--", "-D", "warnings"]))?;
    }
    Ok(())
}

/// Builds the documentation of all default members, without that of their dependencies.
pub(crate) fn doc(arguments: &[String]) -> Outcome {
    without_arguments("doc", arguments)?;
    run(cargo().env("RUSTDOCFLAGS", "-D warnings").args(["doc", "--no-deps", "--locked"]))
}

/// Runs all tests by the README's command. Before it come the tests of features that the usual
/// build excludes.
pub(crate) fn test(arguments: &[String]) -> Outcome {
    without_arguments("test", arguments)?;
    run_tests(cargo)
}

/// As [`test`](fn@test), where a program that a test needs must not be missing.
pub(crate) fn test_in_ci() -> Outcome {
    run_tests(|| {
        let mut command = cargo();
        // Many tests wait for a program or a moment, so that two processors have room for three.
        command.env("CAIRN_CI", "1").env("RUST_TEST_THREADS", "3");
        command
    })
}

fn run_tests(cargo: fn() -> Command) -> Outcome {
    let features = ["--package", "cairn-symbols", "--features", "debuginfod", "--test", "debuginfod"];
    run(cargo().arg("test").args(features))?;
    run(cargo().arg("test"))
}

fn without_arguments(chore: &str, arguments: &[String]) -> Outcome {
    match arguments {
        [] => Ok(()),
        [first, ..] => Err(Failure::usage(format!("{chore} takes no arguments, but got {first:?}"))),
    }
}
