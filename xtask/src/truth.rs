//! `cargo xtask truth` and `cargo xtask torture`: the long runs of the crate cairn-truth, in a release build.

use crate::process::{Failure, Outcome, cargo, run};

/// Every stack of many real programs against libgcc's: some minutes, some million stacks.
pub(crate) fn truth(arguments: &[String]) -> Outcome {
    match arguments {
        [] => start(&["programs"]),
        _ => Err(Failure::usage("usage: cargo xtask truth")),
    }
}

/// A hundred cold starts under timer signals, then long runs.
pub(crate) fn torture(arguments: &[String]) -> Outcome {
    let usage = || Failure::usage("usage: cargo xtask torture [--seconds N]");
    let seconds = match arguments {
        [] => "60",
        [flag, seconds] if flag == "--seconds" => seconds,
        _ => return Err(usage()),
    };
    seconds.parse::<u32>().map_err(|_| usage())?;
    start(&["torture", seconds])
}

fn start(arguments: &[&str]) -> Outcome {
    // First the library that the programs load: `run` alone builds it too, but only for as long as it is linked here.
    run(cargo().args(["build", "--release", "--quiet", "-p", "cairn-truth"]))?;
    run(cargo().args(["run", "--release", "--quiet", "-p", "cairn-truth", "--"]).args(arguments))
}
