//! Files of other tools in `cairn report`, `diff`, `flame` and `export`.

use std::fs;
use std::path::PathBuf;
use std::process::Output;

use serde_json::Value;
use snapbox::cmd::{Command, cargo_bin};

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/exchange").join(name)
}

fn cairn(arguments: &[&str]) -> Output {
    Command::new(cargo_bin!("cairn"))
        .env("COLUMNS", "100")
        .env("NO_COLOR", "1")
        .args(arguments)
        .output()
        .expect("cairn runs")
}

fn path(name: &str) -> String {
    fixture(name).display().to_string()
}

fn json(arguments: &[&str]) -> Value {
    let output = cairn(arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("the output is JSON")
}

#[test]
fn a_heaptrack_file_is_reported_as_heaptrack_reports_it() {
    let report = json(&["report", "--json", "--full", &path("heaptrack-small.zst")]);
    assert_eq!(report["recording"]["command"], serde_json::json!(["./small"]));
    assert_eq!(report["total_allocations"], 116);
    assert_eq!((&report["leaked_bytes"], &report["peak_bytes"]), (&4253.into(), &138_820.into()));
    let top = report["top"].as_array().unwrap();
    let load = top.iter().find(|entry| entry["function"] == "load").unwrap();
    assert_eq!(load["file"].as_str().map(|file| file.ends_with("small.c")), Some(true), "{load}");

    let scoped = ["report", "--json", "--filter", "function=temporary", &path("heaptrack-small.zst")];
    assert_eq!(json(&scoped)["total_allocations"], 50);
    let text = cairn(&["report", &path("heaptrack-small.zst")]);
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.starts_with("./small\n") && text.contains("load"), "{text}");
}

#[test]
fn a_pprof_profile_has_sums_and_no_times() {
    let report = json(&["report", "--json", &path("go-heap.pb.gz")]);
    assert_eq!((&report["total_allocations"], &report["leaked_bytes"]), (&113.into(), &54_144.into()));
    let folded = cairn(&["flame", "--folded", "--cost", "allocated", &path("go-heap.pb.gz")]);
    let folded = String::from_utf8(folded.stdout).unwrap();
    assert!(folded.lines().any(|line| line.contains("main.load")), "{folded}");

    let refused = cairn(&["report", "--between", "1s", "2s", &path("go-heap.pb.gz")]);
    assert_eq!(refused.status.code(), Some(1));
    let words = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(words.contains("go-heap.pb.gz") && words.contains("times"), "{words}");
}

#[test]
fn files_of_other_tools_are_compared_and_written_on() {
    let (track, go) = (path("heaptrack-small.zst"), path("go-heap.pb.gz"));
    let same = json(&["diff", "--json", &track, &track]);
    assert_eq!(same["changes"], serde_json::json!([]), "{same}");
    assert!(cairn(&["diff", &track, &go]).status.success());
    let written = cairn(&["export", "--to", "folded", "--cost", "count", "-o", "-", &track]);
    let words = String::from_utf8_lossy(&written.stderr).into_owned();
    let count = |line: &str| line.rsplit(' ').next().and_then(|count| count.parse::<u64>().ok());
    let sum: u64 = String::from_utf8(written.stdout).unwrap().lines().filter_map(count).sum();
    assert_eq!(sum, 116, "{words}");
    let refused = cairn(&["export", "--to", "heaptrack", "-o", "-", &go]);
    assert!(!refused.status.success() && !refused.stderr.is_empty());
}

#[test]
fn a_damaged_file_says_where() {
    let directory = std::env::temp_dir().join(format!("cairn-import-{}", std::process::id()));
    fs::create_dir_all(&directory).unwrap();
    let bad = directory.join("bad.txt");
    fs::write(&bad, "v 10400 3\nX ./small\ni zz 1\n").unwrap();
    let output = cairn(&["report", &bad.display().to_string()]);
    assert_eq!(output.status.code(), Some(1));
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(words.contains("bad.txt") && words.contains("line 3"), "{words}");
    fs::remove_dir_all(&directory).unwrap();
}
