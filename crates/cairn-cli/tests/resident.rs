//! Resident memory is that of the program, and cairn's own is named beside it.

#![cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
#![allow(clippy::print_stdout, reason = "a test says what it could not check here")]

#[allow(dead_code, reason = "each test needs a part of it")]
mod support;

use std::fs::File;
use std::process::Command;

use serde_json::Value;
use support::{cairn, compile, recording, run, scratch};

const MIB: u64 = 1 << 20;

// Failed before: 21.7 MiB where the plain run of a program had 13.9.
#[test]
fn resident_memory_is_that_of_the_program() {
    if File::open("/proc/self/pagemap").is_err() {
        println!("not run: this kernel has no /proc/PID/pagemap");
        return;
    }
    let directory = scratch("resident");
    let program = compile(&directory, "resident.c", "resident", &["-fno-builtin"]);
    let plain = run(Command::new(&program).arg("tell"));
    let plain: u64 = String::from_utf8(plain.stdout).unwrap().trim().parse::<u64>().unwrap() * 1024;
    run(cairn().args(["heap", "--quiet", "--"]).arg(&program).current_dir(&directory));
    let path = recording(&directory).path;
    let json = |path: &std::path::Path| -> Value {
        serde_json::from_slice(&run(cairn().args(["report", "--json", "--no-symbols"]).arg(path)).stdout)
            .unwrap()
    };
    let answer = json(&path);
    let (most, own) =
        (answer["most_resident_bytes"].as_u64().unwrap(), answer["cairn_resident_bytes"].as_u64());
    let own = own.expect("cairn's own share is known");
    assert!(own > MIB, "{own}");
    assert!(
        most.abs_diff(plain) <= (plain / 20).max(MIB),
        "{most} of the program, {own} of cairn; {plain} without it"
    );
    let samples = answer["usage"].as_array().unwrap();
    assert!(samples.iter().any(|sample| sample["cairn_bytes"].as_u64() == Some(own)), "{samples:?}");

    // It goes into the sums, and out of them.
    run(cairn().args(["pack", "--in-place"]).arg(&path));
    assert_eq!(json(&path), answer);
    let text =
        |arguments: &[&str]| String::from_utf8(run(cairn().args(arguments).arg(&path)).stdout).unwrap();
    let report = text(&["report", "--no-symbols"]);
    assert!(report.contains("all of the process but") && report.contains("of cairn"), "{report}");
    assert!(text(&["play", "--no-symbols"]).contains(&format!("and {own} of cairn")), "play shows it");
}

// Failed before: 2.8 MiB "at most" for a program that had 18.7, between two samples.
#[test]
fn resident_memory_between_samples_is_counted() {
    const HELD: u64 = 64 * MIB;
    let directory = scratch("resident-between");
    let program = compile(&directory, "resident_peak.c", "peak", &["-fno-builtin"]);
    let answer = |end: &str| -> (Value, String) {
        let file = directory.join(format!("{end}.cairn"));
        let mut heap = cairn();
        heap.args(["heap", "-o"]).arg(&file).arg(&program).arg(end).current_dir(&directory);
        let summary = String::from_utf8(run(&mut heap).stderr).unwrap();
        let report = run(cairn().args(["report", "--json", "--no-symbols"]).arg(&file)).stdout;
        (serde_json::from_slice(&report).unwrap(), summary)
    };
    let resident = |summary: &str| -> String {
        summary.lines().find(|line| line.starts_with("  resident")).unwrap_or_default().to_owned()
    };
    let (report, summary) = answer("exit");
    let peak = report["peak_resident_bytes"].as_u64().expect("the kernel counted it");
    assert!((HELD..HELD + 64 * MIB).contains(&peak), "{peak}");
    let sampled = report["most_resident_bytes"].as_u64().unwrap()
        + report["cairn_resident_bytes"].as_u64().unwrap_or(0);
    assert!(sampled <= peak + MIB, "{sampled} in the samples, {peak} by the kernel");
    let line = resident(&summary);
    assert!(line.contains(" at most, "), "{summary}");
    assert_eq!(line.contains(" sample"), (sampled as f64) < peak as f64 * 0.95, "{sampled} {peak}: {line}");

    // Without an exit, the samples are all that is known.
    let (report, summary) = answer("_exit");
    assert_eq!(report["peak_resident_bytes"], Value::Null);
    let line = resident(&summary);
    assert!(line.contains(" sample") && !line.contains("at most"), "{summary}");
}
