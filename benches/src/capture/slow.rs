//! Where nothing is known: code that no stack had before, and stacks that lie elsewhere each time.

use std::env;
use std::process::Command;

use cairn_bench_unwinders::{Unwinder, by_name};

use crate::capture::{fixed, programs};

/// The stack lies at another place in each; more than `run_moving_stack` has places would repeat.
const MOVES: u32 = 4000;

/// Fresh processes; the best one counts, because the first read of a table may wait for the disk.
const PROCESSES: usize = 5;

pub(crate) fn run() -> Result<(), String> {
    let program = programs::load_fixed_stack(&["-fomit-frame-pointer"])?;
    println!(
        "C++ -O2. Moved stack: the same 104 or 34 frames, each time at a new place, slope between the two."
    );
    println!("New code: first capture from each of 500 functions, less a later one.\n");
    println!("| by | ns per frame of a moved stack | ns per new return address |");
    println!("|---|---:|---:|");
    for unwinder in fixed::available() {
        let median = |depth| {
            let timings = fixed::run_rounds(program.moving, depth, &[unwinder], &[1], MOVES)?;
            Ok::<f64, String>(timings[0].median_nanos)
        };
        let per_frame = (median(104)? - median(34)?) / 70.0;
        println!("| {} | {per_frame:.1} | {:.0} |", unwinder.name, new_sites(&unwinder)?);
    }
    Ok(())
}

fn new_sites(unwinder: &Unwinder) -> Result<f64, String> {
    let this = env::current_exe().map_err(|error| format!("this program: {error}"))?;
    let mut best = f64::INFINITY;
    for _ in 0..PROCESSES {
        let output = Command::new(&this).args(["capture-new-sites", unwinder.name]).output();
        let output = output.map_err(|error| format!("{}: {error}", this.display()))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let nanos: f64 = text.trim().parse().map_err(|_| format!("{}: {text:?}", unwinder.name))?;
        best = best.min(nanos);
    }
    Ok(best)
}

/// Prints the extra time of the first capture at a place, in a process that has captured little.
pub(crate) fn print_new_sites(unwinder: &str) -> Result<(), String> {
    let unwinder = by_name(unwinder).ok_or_else(|| format!("{unwinder}: no such unwinder"))?;
    let program = programs::load_fixed_stack(&["-fomit-frame-pointer"])?;
    let timings = fixed::run_rounds(program.new_sites, 0, &[unwinder], &[1], 9)?;
    println!("{}", timings[0].first_nanos - timings[0].median_nanos);
    Ok(())
}
