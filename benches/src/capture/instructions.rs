//! The fixed stacks, counted: a child process with one number of calls and one with more; the
//! difference is the calls.

use std::env;
use std::process::Command;

use crate::capture::fixed;

const CALLS: [u32; 2] = [100, 300];

pub(crate) fn run() -> Result<(), String> {
    println!("callgrind, instructions per stack.\n");
    println!("| program | by | {} |", fixed::DEPTHS.map(|depth| format!("{depth} frames")).join(" | "));
    println!("|---|---|---:|---:|---:|");
    for unwinder in fixed::available() {
        let mut cells = Vec::new();
        for depth in fixed::DEPTHS {
            let [few, many] = [
                count("cpp", depth, unwinder.name, CALLS[0])?,
                count("cpp", depth, unwinder.name, CALLS[1])?,
            ];
            cells.push(format!("{:.0}", (many - few) as f64 / f64::from(CALLS[1] - CALLS[0])));
        }
        println!("| C++ -O2 | {} | {} |", unwinder.name, cells.join(" | "));
    }
    Ok(())
}

fn count(program: &str, depth: u32, unwinder: &str, calls: u32) -> Result<i64, String> {
    let this = env::current_exe().map_err(|error| format!("this program: {error}"))?;
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(this)
        .args(["capture-loop", program, &depth.to_string(), unwinder, &calls.to_string()])
        .output()
        .map_err(|error| format!("valgrind: {error}"))?;
    let log = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(format!("valgrind: {unwinder}: {}", log.lines().last().unwrap_or_default()));
    }
    let count = log.lines().find_map(|line| line.split_once("Collected : ")?.1.trim().parse().ok());
    count.ok_or_else(|| format!("valgrind: {unwinder}: no instruction count in its log"))
}
