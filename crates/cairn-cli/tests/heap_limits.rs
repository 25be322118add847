//! Limits of the recorded program: it has what it would have without cairn, and a recording that ends before it says so.

#![cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
#![allow(clippy::print_stdout, reason = "a test says what it could not check here")]

#[allow(dead_code, reason = "it serves other tests too")]
mod support;

use std::path::Path;
use std::process::Command;

use support::{Shown, cairn, compile, run, scratch};

/// How much of a limit of its own memory the library and the first tables of the recorder take.
const OWN_MEBIBYTES: i64 = 12;

fn shell(directory: &Path, script: &str) -> Shown {
    let mut command = Command::new("bash");
    let command = command.args(["-c", script, env!("CARGO_BIN_EXE_cairn")]);
    Shown::from(run(command.env("XDG_CACHE_HOME", directory).current_dir(directory)))
}

fn mebibytes(shown: &Shown) -> i64 {
    shown.output.trim().parse().unwrap_or_else(|_| panic!("{shown:?}"))
}

/// Before, a program that allowed itself 96 MiB more than its VmSize could map 63,000 MiB: the recorder's reserved addresses were
/// part of its VmSize, and were given back when it set the limit.
#[test]
fn limits_by_the_own_size_allow_as_much_as_without_cairn() {
    let directory = scratch("limits_own");
    let program = compile(&directory, "limited.c", "limited", &["-fno-builtin"]);
    for how in ["set", "prlimit"] {
        for what in ["own-space", "own-data"] {
            let plain = mebibytes(&Shown::from(run(Command::new(&program).args([how, what]))));
            let mut command = cairn();
            command.args(["heap", "--quiet", "--"]).arg(&program).args([how, what]);
            let recorded = mebibytes(&Shown::from(run(command.current_dir(&directory))));
            assert!((plain - 2..=plain).contains(&recorded), "{how} {what}: {plain} and {recorded}");
        }
    }
}

/// Before, a quarter of the limit went to the window of the recording.
#[test]
fn limits_by_a_number_leave_nearly_as_much_as_without_cairn() {
    let directory = scratch("limits_number");
    let program = compile(&directory, "limited.c", "limited", &["-fno-builtin"]);
    for how in ["set space", "set data", "prlimit space", "outside space", "outside data"] {
        let limit = match how {
            "outside space" => "ulimit -v 300000;",
            "outside data" => "ulimit -d 300000;",
            _ => "",
        };
        let run = program.display();
        let plain = mebibytes(&shell(&directory, &format!("{limit} {run} {how}")));
        let recorded =
            mebibytes(&shell(&directory, &format!("{limit} \"$0\" heap --quiet --or-run -- {run} {how}")));
        assert!((plain - OWN_MEBIBYTES..=plain).contains(&recorded), "{how}: {plain} and {recorded}");
    }
}
