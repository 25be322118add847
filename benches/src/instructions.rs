//! Instructions per frame, counted by callgrind: a figure that does not depend on the machine's
//! mood.
//!
//! Each case runs in a child process of this same program, once with one pass and once with three;
//! half the difference is one pass, without loading the corpus or setting up.

use std::env;
use std::process::Command;

/// Instructions of one pass of the case with this id, or why they cannot be counted.
pub(crate) fn per_pass(id: &str) -> Result<f64, String> {
    let (one, three) = (total(id, 1)?, total(id, 3)?);
    Ok((three - one) as f64 / 2.0)
}

fn total(id: &str, passes: u32) -> Result<i64, String> {
    let program = env::current_exe().map_err(|error| format!("this program: {error}"))?;
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(program)
        .args(["loop", id, &passes.to_string()])
        .output()
        .map_err(|error| format!("valgrind: {error}"))?;
    let log = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(format!("valgrind: {id}: {}", log.lines().last().unwrap_or_default()));
    }
    // The line reads `==PID== Collected : 123456`.
    let count = log.lines().find_map(|line| line.split_once("Collected : ")?.1.trim().parse().ok());
    count.ok_or_else(|| format!("valgrind: {id}: no instruction count in its log"))
}
