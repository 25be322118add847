//! Compares two builds of `cairn`: the same programs under both, in turn, in one run.
//!
//! Answers whether a change costs the watched program anything. Each round runs a program plain,
//! under the older build and under this one; figures are minima of the rounds, as noise only adds.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::heap::{self, RunCost, Tool, Work};
use crate::machine;

/// Runs each work `rounds` times under the `older` command and under this build, and prints a
/// table.
pub(crate) fn run(older: &str, rounds: usize, only: &[&str]) -> Result<(), String> {
    let older = std::fs::canonicalize(older).map_err(|error| format!("{older}: {error}"))?;
    let directory = std::env::temp_dir().join(format!("cairn-bench-against-{}", std::process::id()));
    std::fs::create_dir_all(&directory).map_err(|error| error.to_string())?;
    let result = run_in(&directory, &older, rounds.max(1), only);
    let _ = std::fs::remove_dir_all(&directory);
    result
}

fn run_in(directory: &Path, older: &Path, rounds: usize, only: &[&str]) -> Result<(), String> {
    let newer = heap::build_cairn()?;
    let probe = heap::build_probe(directory)?;
    print!("{}", machine::description());
    println!("- {rounds} rounds; minima; older build / this build; times are multiples of the plain run's\n");
    println!(
        "| work | plain | in the program | in all | wall | recording, bytes | peak resident, MiB | `report --json`, ms |"
    );
    println!("|---|---:|---:|---:|---:|---:|---:|---:|");
    for work in heap::works(directory)? {
        if only.is_empty() || only.iter().any(|name| work.name.contains(name)) {
            println!("{}", row(&work, directory, [older, &newer], &probe, rounds)?);
        }
    }
    Ok(())
}

fn row(
    work: &Work,
    directory: &Path,
    builds: [&Path; 2],
    probe: &str,
    rounds: usize,
) -> Result<String, String> {
    let plain = Tool::plain(probe);
    let tools = builds.map(|cairn| Tool::cairn_heap(cairn, probe));
    let mut base: Option<RunCost> = None;
    let mut costs: [Option<RunCost>; 2] = [None; 2];
    let mut answers = [f64::INFINITY; 2];
    for _ in 0..rounds {
        base = Some(least(base, heap::once(work, &plain, directory)?));
        for (index, tool) in tools.iter().enumerate() {
            costs[index] = Some(least(costs[index], heap::once(work, tool, directory)?));
            answers[index] = answers[index].min(answer_seconds(builds[index], directory)?);
        }
    }
    let base = base.unwrap_or_default();
    let [old, new] = costs.map(Option::unwrap_or_default);
    let pair = |figure: &dyn Fn(&RunCost) -> f64| format!("{:.2}x / {:.2}x", figure(&old), figure(&new));
    Ok(format!(
        "| {} | {:.2} s | {} | {} | {} | {} / {} | {:.1} / {:.1} | {:.0} / {:.0} |",
        work.name,
        base.processor_seconds,
        pair(&|cost| cost.program_seconds / base.program_seconds),
        pair(&|cost| cost.processor_seconds / base.processor_seconds),
        pair(&|cost| cost.wall_seconds / base.wall_seconds),
        old.recorded_bytes,
        new.recorded_bytes,
        old.resident_kib / 1024.0,
        new.resident_kib / 1024.0,
        answers[0] * 1e3,
        answers[1] * 1e3,
    ))
}

/// Each figure's own minimum.
pub(crate) fn least(before: Option<RunCost>, now: RunCost) -> RunCost {
    let Some(before) = before else { return now };
    RunCost {
        wall_seconds: before.wall_seconds.min(now.wall_seconds),
        processor_seconds: before.processor_seconds.min(now.processor_seconds),
        program_seconds: before.program_seconds.min(now.program_seconds),
        recorded_bytes: before.recorded_bytes.min(now.recorded_bytes),
        resident_kib: before.resident_kib.min(now.resident_kib),
        anonymous_kib: before.anonymous_kib.min(now.anonymous_kib),
        allocations: now.allocations,
    }
}

/// Seconds for the whole report of the recordings that the last run left.
fn answer_seconds(cairn: &Path, directory: &Path) -> Result<f64, String> {
    let mut seconds = 0.0;
    for path in heap::recordings(directory) {
        let began = Instant::now();
        let status = Command::new(cairn)
            .args(["report", "--json"])
            .arg(&path)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .map_err(|error| error.to_string())?;
        if !status.success() {
            return Err(format!("{} report --json {}: {status}", cairn.display(), path.display()));
        }
        seconds += began.elapsed().as_secs_f64();
    }
    Ok(seconds)
}
