//! `cargo xtask symbols-agreement [FILE...]`: every function of real libraries, named by cairn, by
//! binutils and by llvm-symbolizer; and a sample of them by gdb.

use std::path::Path;

use crate::debian::{Tool, require};
use crate::process::{Failure, Outcome, cargo, run};

const TOOLS: &[Tool] = &[
    Tool { program: "addr2line", package: "binutils", also: &[] },
    Tool { program: "llvm-symbolizer", package: "llvm", also: &[] },
    Tool { program: "gdb", package: "gdb", also: &[] },
];

/// Files to compare when none is named, as far as they exist here.
const FILES: &[&str] = &[
    "/usr/lib/x86_64-linux-gnu/libc.so.6",
    "/usr/lib/aarch64-linux-gnu/libc.so.6",
    "/usr/lib/x86_64-linux-gnu/libstdc++.so.6",
    "/usr/lib/aarch64-linux-gnu/libstdc++.so.6",
    "/usr/bin/python3",
];

/// Prints how many addresses differ in which way; fails when a difference is of no known class.
pub(crate) fn run_all(arguments: &[String]) -> Outcome {
    require(TOOLS)?;
    let files: Vec<&str> = match arguments {
        [] => FILES.iter().copied().filter(|file| Path::new(file).exists()).collect(),
        files => files.iter().map(String::as_str).collect(),
    };
    if files.is_empty() {
        return Err(Failure::new(format!("none of {FILES:?} is here; name files")));
    }
    let test = "functions_of_libraries_agree_with_other_symbolizers";
    let mut command = cargo();
    command.args(["test", "-p", "cairn-symbols", "--test", "agreement", "--", "--nocapture", test]);
    command.env("CAIRN_AGREEMENT_FILES", files.join(":"));
    run(command.env("CAIRN_AGREEMENT_PEERS", "addr2line:llvm-symbolizer:gdb"))
}
