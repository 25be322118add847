//! `cargo xtask ci`: runs the steps of CI, in their order.
//!
//! Cheap checks first, so that a slip shows within seconds. The tests come last and nothing is
//! printed after them, so that the log ends with the test runner's own summary.

use std::time::Instant;

use crate::debian::Tool;
use crate::process::{Failure, Outcome};
use crate::{
    api, book, cargo_chores, check_rooms, check_words, debian, fuzz_smoke, header, portability, supply_chain,
    unsafe_inventory,
};

type Step = (&'static str, fn() -> Outcome);

const BEFORE_THE_TESTS: &[Step] = &[
    ("fmt", || cargo_chores::fmt(&["--check".to_owned()])),
    ("check-rooms", || check_rooms::run(&[])),
    ("check-words", || check_words::run(&[])),
    ("unsafe-inventory", || unsafe_inventory::run(&["--check".to_owned()])),
    ("book", || book::run(&[])),
    ("deny", || supply_chain::deny(&[])),
    ("header", || header::run(&["--check".to_owned()])),
    ("lint", || cargo_chores::lint(&[])),
    ("doc", || cargo_chores::doc(&[])),
    ("api", || api::run(&["--check".to_owned()])),
    ("portability", || portability::run(&[])),
    ("fuzz-smoke", || fuzz_smoke::run(&[])),
];

/// Programs that tests skip by hand when they are missing, and need in CI.
const FOR_TESTS: &[Tool] = &[
    Tool { program: "zsh", package: "zsh", also: &[] },
    Tool { program: "fish", package: "fish", also: &[] },
    Tool { program: "groff", package: "groff-base", also: &[] },
    Tool { program: "gcore", package: "gdb", also: &[] },
    Tool { program: "python3", package: "python3", also: &[] },
    Tool { program: "node", package: "nodejs", also: &[] },
    Tool { program: "javac", package: "openjdk-17-jdk-headless", also: &[] },
    Tool { program: "luajit", package: "luajit", also: &["libluajit-5.1-dev"] },
    Tool { program: "numba", package: "python3-numba", also: &[] },
    Tool { program: "php8.2", package: "php8.2-cli", also: &["php8.2-opcache"] },
];

/// Runs every step; the first that fails ends the run.
pub(crate) fn run(arguments: &[String]) -> Outcome {
    if let [first, ..] = arguments {
        return Err(Failure::usage(format!("ci takes no arguments, but got {first:?}")));
    }
    let mut times = Vec::new();
    for (name, step) in BEFORE_THE_TESTS {
        println!("\n== {name}");
        let start = Instant::now();
        step().map_err(|failure| Failure::new(format!("{name}: {failure}")))?;
        times.push(format!("{name} {:.0} s", start.elapsed().as_secs_f64()));
    }
    println!("\n== done so far: {}\n\n== test", times.join(", "));
    debian::require(FOR_TESTS)?;
    cargo_chores::test_in_ci()
}
