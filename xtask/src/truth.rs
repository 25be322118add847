//! The long runs, in a release build: `cargo xtask truth` and `cargo xtask torture` of the crate
//! cairn-truth, `cargo xtask kill` of the recorder.

use crate::process::{Failure, Outcome, cargo, run};

/// Every stack of many real programs against libgcc's: some minutes, some million stacks. With
/// `early`, threads follow changing stacks as early and as often as possible.
pub(crate) fn truth(arguments: &[String]) -> Outcome {
    match arguments {
        [] => start(&["programs"]),
        [early] if early == "early" => start(&["programs", "early"]),
        [python, interpreters @ ..] if python == "python" => {
            let words: Vec<&str> = interpreters.iter().map(String::as_str).collect();
            start(&[&["python"], words.as_slice()].concat())
        }
        _ => Err(Failure::usage("usage: cargo xtask truth [early | python [INTERPRETER...]]")),
    }
}

/// Runs a hundred cold starts under timer signals, then long runs. Attaches and detaches a thousand
/// times for each of three programs.
pub(crate) fn torture(arguments: &[String]) -> Outcome {
    let usage = || Failure::usage("usage: cargo xtask torture [--seconds N] [--cycles N]");
    let (mut seconds, mut cycles) = ("60", "1000");
    let (pairs, rest) = arguments.as_chunks::<2>();
    for [flag, value] in pairs {
        match flag.as_str() {
            "--seconds" => seconds = value,
            "--cycles" => cycles = value,
            _ => return Err(usage()),
        }
    }
    if !rest.is_empty() || [seconds, cycles].iter().any(|number| number.parse::<u32>().is_err()) {
        return Err(usage());
    }
    start(&["torture", seconds])?;
    let test = ["test", "--release", "-p", "cairn-cli", "--test", "heap_attach", "--", "attach_leaves"];
    run(cargo().args(test).env("CAIRN_ATTACH_CYCLES", cycles))
}

/// Recording processes killed at random moments.
pub(crate) fn kill(arguments: &[String]) -> Outcome {
    let usage = || Failure::usage("usage: cargo xtask kill [--runs N]");
    let runs = match arguments {
        [] => "1000",
        [flag, runs] if flag == "--runs" => runs,
        _ => return Err(usage()),
    };
    runs.parse::<u32>().map_err(|_| usage())?;
    let test = ["test", "--release", "-p", "cairn-recorder", "--test", "processes", "--", "kill"];
    run(cargo().args(test).env("CAIRN_KILL_RUNS", runs))
}

fn start(arguments: &[&str]) -> Outcome {
    // First the library that the programs load: `run` alone builds it too, but only for as long as
    // it is linked here.
    run(cargo().args(["build", "--release", "--quiet", "-p", "cairn-truth"]))?;
    run(cargo().args(["run", "--release", "--quiet", "-p", "cairn-truth", "--"]).args(arguments))
}
