//! Threads that follow each other, in every report and export that has threads.

#![cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]

#[allow(dead_code, reason = "each test needs a part of it")]
mod support;

use std::path::{Path, PathBuf};

use serde_json::Value;
use support::{cairn, compile, recording, run, scratch};

const JOBS: u64 = 8;
const CALLS: u64 = 4500;

/// Records the program with these options, and answers with the recording.
fn record(test: &str, options: &[&str]) -> PathBuf {
    let directory = scratch(test);
    let program = compile(&directory, "threads_in_turn.c", "jobs", &["-fno-builtin"]);
    let mut command = cairn();
    command.args(["heap", "--quiet"]).args(options).arg("--").arg(program);
    let output = run(command.args([JOBS.to_string(), CALLS.to_string()]).current_dir(&directory));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    recording(&directory).path
}

fn shown(arguments: &[&str], path: &Path) -> String {
    let output = run(cairn().args(arguments).arg(path));
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn assert_jobs(path: &Path) {
    let report: Value = serde_json::from_str(&shown(&["report", "--json", "--no-symbols"], path)).unwrap();
    let threads = report["threads"].as_array().unwrap();
    for number in 0..JOBS {
        let of_job: Vec<&Value> =
            threads.iter().filter(|thread| thread["name"] == format!("job-{number}")).collect();
        assert_eq!(of_job.len(), 1, "{threads:?}");
        assert_eq!(of_job[0]["allocations"], CALLS, "{threads:?}");
        assert_eq!(
            of_job[0]["earlier_names"],
            serde_json::json!(["jobs"]),
            "the name of the one that made it"
        );
    }
    let numbers: std::collections::BTreeSet<u64> =
        threads.iter().map(|thread| thread["kernel_thread"].as_u64().unwrap()).collect();
    assert_eq!(numbers.len(), threads.len(), "no two of them are one kernel thread");

    let by_thread = shown(&["report", "--by", "thread"], path);
    assert!((0..JOBS).all(|number| by_thread.contains(&format!("job-{number}"))), "{by_thread}");
    let filtered = ["report", "--json", "--no-symbols", "--filter", "thread=job-3"];
    let filtered: Value = serde_json::from_str(&shown(&filtered, path)).unwrap();
    assert_eq!(filtered["total_allocations"], CALLS);
    let table = shown(&["export", "--to", "csv", "--table", "threads", "-o", "-"], path);
    assert!((0..JOBS).all(|number| table.contains(&format!("job-{number}"))), "{table}");
    let played = shown(&["play", "--thread", "job-5"], path);
    let began: Vec<&str> = played.lines().filter(|line| line.ends_with("began")).collect();
    assert_eq!(began.len(), 1, "{played}");
}

// Failed before: one row `job-7` with 36,000 calls, and `--filter thread=job-3` found nothing.
#[test]
fn threads_in_turn_are_rows_of_their_own() {
    let path = record("threads_in_turn", &[]);
    assert_jobs(&path);
}

// Failed before: as above, and after packing as well.
#[test]
fn threads_in_turn_are_distinguished_in_a_spool() {
    let directory = scratch("threads_in_turn_spool");
    let program = compile(&directory, "threads_in_turn.c", "jobs", &["-fno-builtin"]);
    let path = record("threads_in_turn_library", &[]);
    let library = cairn_library(&path);
    let spool = directory.join("it.cairn");
    let mut command = std::process::Command::new(&program);
    command.env("LD_PRELOAD", library).env("CAIRN_HEAP", format!("output={}", spool.display()));
    run(command.args([JOBS.to_string(), CALLS.to_string()]));
    assert_jobs(&spool);
    let packed = directory.join("packed.cairn");
    let packs = run(cairn().arg("pack").arg(&spool).arg("-o").arg(&packed));
    assert!(packs.status.success(), "{}", String::from_utf8_lossy(&packs.stderr));
    assert_jobs(&packed);
}

/// The library that was in the recorded program.
fn cairn_library(path: &Path) -> PathBuf {
    let recording = cairn_recording::Recording::open(path).unwrap();
    let library = recording.modules().iter().find(|module| module.path_text().contains("libcairn_preload"));
    PathBuf::from(library.unwrap().path_text().into_owned())
}

// Failed before: of ten thousand threads the last one alone was there.
#[test]
fn threads_in_turn_are_counted_when_they_are_many() {
    const MANY: u64 = 2000;
    let directory = scratch("threads_in_turn_many");
    let program = compile(&directory, "threads_in_turn.c", "jobs", &["-fno-builtin"]);
    let mut command = cairn();
    command.args(["heap", "--quiet", "--"]).arg(program);
    run(command.args([MANY.to_string(), "20".to_owned()]).current_dir(&directory));
    let path = recording(&directory).path;
    let by_thread = shown(&["report", "--by", "thread", "--limit", "10"], &path);
    assert!(
        by_thread.contains(&format!("and {} more", MANY + 1 - 10).replace("1991", "1,991")),
        "{by_thread}"
    );
    let missing = run(cairn().args(["report", "--filter", "thread=nobody"]).arg(&path));
    let errors = String::from_utf8_lossy(&missing.stderr);
    assert!(errors.contains("and 1981 more"), "{errors}");
}
