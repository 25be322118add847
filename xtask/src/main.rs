//! Chores of the workspace, behind one door: `cargo xtask help` lists them.
//!
//! A chore is a function from its arguments to an [`Outcome`]; to add one, write
//! `xtask/src/<chore>.rs` with a `pub(crate) fn run(arguments: &[String]) -> Outcome` and give it a
//! line in [`CHORES`]. Chores start the tools a contributor would start by hand, and print each
//! command first, so that every step can be repeated without xtask.

#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "chores print to their terminal")]

mod allowances;
mod api;
mod bench;
mod book;
mod c_library;
mod cargo_chores;
mod check_rooms;
mod check_words;
mod ci;
mod debian;
mod design_constants;
mod device;
mod documents;
mod exports;
mod fleet;
mod fuzz_smoke;
mod header;
mod miri;
mod page;
mod pictures;
mod portability;
mod process;
mod python;
#[cfg(test)]
mod sources;
mod supply_chain;
mod symbols_agreement;
mod tool;
mod truth;
mod unsafe_contracts;
mod unsafe_inventory;
mod windows;

use std::process::ExitCode;

use process::{Failure, Outcome};

/// One chore: `cargo xtask <name> [arguments]`.
struct Chore {
    name: &'static str,
    run: fn(&[String]) -> Outcome,
    help: &'static str,
}

/// All chores, in the order in which `help` shows them.
const CHORES: &[Chore] = &[
    Chore {
        name: "ci",
        run: ci::run,
        help: "[--spare-disk]: everything below that CI runs; the tests come last",
    },
    Chore { name: "fmt", run: cargo_chores::fmt, help: "format all code; --check only reports" },
    Chore { name: "lint", run: cargo_chores::lint, help: "clippy on every target, warnings are errors" },
    Chore { name: "doc", run: cargo_chores::doc, help: "build the documentation, warnings are errors" },
    Chore {
        name: "check-rooms",
        run: check_rooms::run,
        help: "compare crates, edges and crate attributes with the table of rooms",
    },
    Chore {
        name: "check-words",
        run: check_words::run,
        help: "[--shrink]: check the words, widths and names of comments, documents, messages and tests",
    },
    Chore {
        name: "api",
        run: api::run,
        help: "[--check] [CRATE...]: list the public items of the libraries into docs/api; --check only compares",
    },
    Chore {
        name: "header",
        run: header::run,
        help: "write the C header from the sources of cairn-c; --check only reports",
    },
    Chore {
        name: "unsafe-inventory",
        run: unsafe_inventory::run,
        help: "check the contracts of unsafe code, and count it into docs/book/reference/unsafe.md; --check only compares",
    },
    Chore {
        name: "book",
        run: book::run,
        help: "[--check]: check the links, paths and constants of all documents, and build the book (mdbook)",
    },
    Chore {
        name: "pictures",
        run: pictures::run,
        help: "make the pictures of the README from a real recording (node, chromium, c++)",
    },
    Chore {
        name: "miri",
        run: miri::run,
        help: "run the pure unsafe logic of captures under Miri (nightly toolchain)",
    },
    Chore {
        name: "deny",
        run: supply_chain::deny,
        help: "check dependencies by deny.toml: licences, sources, duplicate versions, advisories (cargo-deny)",
    },
    Chore {
        name: "sbom",
        run: supply_chain::sbom,
        help: "[DIRECTORY]: list the dependencies of what is shipped, as CycloneDX JSON (cargo-cyclonedx)",
    },
    Chore {
        name: "c-library",
        run: c_library::run,
        help: "[--target TRIPLE] [--prefix DIRECTORY]: build libcairn.so and libcairn.a, and install them there",
    },
    Chore {
        name: "portability",
        run: portability::run,
        help: "[aarch64 armv7 s390x bare-metal]: run the portable crates' tests on other processors (Debian)",
    },
    Chore {
        name: "windows",
        run: windows::run,
        help: "[build|msvc]: run the tests of all that reads, built for Windows, in wine (Debian)",
    },
    Chore {
        name: "device",
        run: device::run,
        help: "[cortex-m4 cortex-m0 riscv32 i686]: run the annotated heap on emulated devices and decode what it says (rustup targets, qemu, gcc)",
    },
    Chore {
        name: "fleet",
        run: fleet::run,
        help: "clippy, documentation, tests and the book's chapter of the crates for many machines, no default members",
    },
    Chore {
        name: "fuzz-smoke",
        run: fuzz_smoke::run,
        help: "[--seconds N] [target...]: run each fuzz target for a few seconds on its corpus",
    },
    Chore {
        name: "bench",
        run: bench::run_benches,
        help: "[--keep] COMMAND...: measure, and append the rows to benchmarks/history.jsonl; see benchmarks/README.md",
    },
    Chore {
        name: "truth",
        run: truth::truth,
        help: "[python [INTERPRETER...]]: compare stacks of real programs with libgcc's, or Python frames with the interpreter's, by the million",
    },
    Chore {
        name: "torture",
        run: truth::torture,
        help: "[--seconds N] [--cycles N]: captures under 5 kHz timer signals, throws, loads and unloads; 1000 attaches and detaches",
    },
    Chore {
        name: "kill",
        run: truth::kill,
        help: "[--runs N]: recording processes killed at random moments, 1000 times",
    },
    Chore {
        name: "symbols-agreement",
        run: symbols_agreement::run_all,
        help: "[file...]: name every function of real libraries as binutils and llvm-symbolizer do",
    },
    Chore {
        name: "exports",
        run: exports::run_all,
        help: "[--require] [file]: open exports in the tools they are for, and compare totals",
    },
    Chore {
        name: "page",
        run: page::run,
        help: "[--times] [--no-screens]: use the page in a real browser (node, chromium), or see how fast it is",
    },
    Chore {
        name: "view",
        run: page::run_view,
        help: "[--no-screens]: use `cairn view` in a real browser, with programs that run (node, chromium, cc)",
    },
    Chore { name: "test", run: cargo_chores::test, help: "cargo test" },
    Chore { name: "help", run: help, help: "this list" },
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match dispatch(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("xtask: {failure}");
            failure.exit_code()
        }
    }
}

fn dispatch(arguments: &[String]) -> Outcome {
    let Some((name, rest)) = arguments.split_first() else { return help(&[]) };
    match CHORES.iter().find(|chore| chore.name == name) {
        Some(chore) => (chore.run)(rest),
        None if matches!(name.as_str(), "-h" | "--help") => help(&[]),
        None => {
            let names: Vec<&str> = CHORES.iter().map(|chore| chore.name).collect();
            Err(Failure::usage(format!("no chore {name:?}; there are: {}", names.join(", "))))
        }
    }
}

fn help(_arguments: &[String]) -> Outcome {
    println!("cargo xtask <chore> [arguments]\n");
    for chore in CHORES {
        println!("  {:<12} {}", chore.name, chore.help);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chores_unknown_is_a_usage_error_with_known_names() {
        let failure = dispatch(&["lnit".to_owned()]).unwrap_err();
        assert_eq!(failure.exit_code(), ExitCode::from(2));
        let message = failure.to_string();
        assert!(message.contains("\"lnit\"") && message.contains("lint"), "{message}");
    }

    #[test]
    fn chores_have_unique_names() {
        for (at, chore) in CHORES.iter().enumerate() {
            assert!(
                CHORES[..at].iter().all(|other| other.name != chore.name),
                "{} is listed twice",
                chore.name
            );
        }
    }
}
