//! A disk that is full at any moment of a write: an error, nothing lost, nothing twice.
//!
//! The limit of a process on the size of its files takes the place of a disk: a write beyond it
//! fails in the middle of a file. `CAIRN_KILL_RUNS=200` makes the test long.

#![cfg(unix)]

mod program;

use std::path::Path;
use std::process::{Command, Output};

use program::{copy, done, fixtures, kill_runs, run};

/// Runs the command in a shell with this limit, in units of 512 bytes.
fn limited(directory: &Path, limit: u32, arguments: &str) -> Output {
    let program = env!("CARGO_BIN_EXE_cairn-fleet");
    // Without the trap, the signal would end the process at once, as `kill` does.
    let script = format!("trap '' XFSZ; ulimit -f {limit}; exec {program} {arguments}");
    Command::new("sh").args(["-c", &script]).current_dir(directory).output().unwrap()
}

fn sums(directory: &Path) -> String {
    let query = "select count(*), sum(live_bytes), sum(alloc_bytes), count(distinct stack_id) from sample";
    done(directory, &["sql", "store", query, "--format", "csv"])
}

#[test]
fn writes_that_fail_leave_the_store_as_it_was() {
    let runs = kill_runs(5);
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let (first, second) =
        (fixtures().join("exchange/go-heap.pb.gz"), fixtures().join("exchange/heaptrack-small.zst"));
    assert!(run(directory, &["init", "store"]).status.success());
    assert!(run(directory, &["add", "store", &first.display().to_string()]).status.success());
    copy(&directory.join("store"), &directory.join("before"));
    let before = sums(directory);
    let add = format!("add store {}", second.display());
    assert!(run(directory, &["add", "store", &second.display().to_string()]).status.success());
    let after = sums(directory);
    assert_ne!(before, after);

    // The largest file that the command writes.
    let (mut failed, mut done) = (0, 0);
    for round in 0..runs {
        std::fs::remove_dir_all(directory.join("store")).unwrap();
        copy(&directory.join("before"), &directory.join("store"));
        let limit = 1 + round * 64 / runs;
        let output = limited(directory, limit, &add);
        let errors = String::from_utf8_lossy(&output.stderr);
        if output.status.success() {
            done += 1;
            assert_eq!(sums(directory), after, "limit {limit}");
        } else {
            failed += 1;
            assert_eq!(output.status.code(), Some(1), "limit {limit}: {errors}");
            assert!(errors.contains("File too large"), "limit {limit}: {errors}");
            assert_eq!(sums(directory), before, "limit {limit}");
        }
        // Compaction fails alike, or is done.
        let compacted = limited(directory, limit, "compact store");
        assert!(matches!(compacted.status.code(), Some(0 | 1)), "limit {limit}: {compacted:?}");
        let again = run(directory, &["add", "store", &second.display().to_string()]);
        assert!(again.status.success(), "limit {limit}: {again:?}");
        assert_eq!(sums(directory), after, "limit {limit}");
        assert!(run(directory, &["check", "store"]).status.success(), "limit {limit}");
    }
    assert!(failed > 0 && done > 0, "{failed} failed, {done} done");
}
