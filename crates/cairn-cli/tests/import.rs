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
fn import_error_names_the_place_of_damage() {
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

/// A directory for one test, gone with it.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("cairn-import-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_profile_of_firefox_is_a_heap_with_lines_and_modules() {
    let directory = Directory::new("firefox");
    // heaptrack's file becomes one, which tells the same.
    let track = path("heaptrack-small.zst");
    let file = directory.file("small.firefox.json");
    let written = cairn(&["export", "--to", "firefox", "-o", &file, &track]);
    assert!(written.status.success(), "{}", String::from_utf8_lossy(&written.stderr));
    let (before, after) =
        (json(&["report", "--json", "--full", &track]), json(&["report", "--json", "--full", &file]));
    for key in [
        "total_allocations",
        "total_bytes",
        "leaked_bytes",
        "leaked_allocations",
        "peak_bytes",
        "temporary_allocations",
    ] {
        assert_eq!(after[key], before[key], "{key}");
    }
    let load = after["top"].as_array().unwrap().iter().find(|entry| entry["function"] == "load").unwrap();
    let cell = |key: &str| load[key].as_str().unwrap_or_default().to_owned();
    assert!(cell("file").ends_with("small.c") && load["line"].as_u64() > Some(0), "{load}");
    let same = json(&["diff", "--json", &file, &file]);
    assert_eq!(same["changes"], serde_json::json!([]), "{same}");
    let folded = cairn(&["flame", "--folded", "--cost", "count", &file]);
    assert!(
        String::from_utf8(folded.stdout)
            .unwrap()
            .lines()
            .any(|line| line.contains("main;") && line.contains(";load"))
    );

    let broken = fs::read_to_string(&file).unwrap().replacen("\"prefix\":[", "\"prefix\":[9999,", 1);
    fs::write(directory.file("broken.json"), broken).unwrap();
    let output = cairn(&["report", &directory.file("broken.json")]);
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1));
    assert!(words.contains("broken.json") && words.contains("stackTable.prefix[0]"), "{words}");
}

#[test]
fn a_recording_of_call_stack_tracker_counts_its_stacks() {
    let directory = Directory::new("tracker");
    let vectors =
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/vectors/module_recording.json");
    let vectors: Value = serde_json::from_slice(&fs::read(vectors).unwrap()).unwrap();
    let case = &vectors["cases"][0];
    let digits = case["recording_hex"].as_str().unwrap();
    let mut bytes: Vec<u8> =
        (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap()).collect();
    let file = directory.file("app.recording");
    fs::write(&file, &bytes).unwrap();
    let stacks = case["stacks"].as_array().unwrap().len();
    let report = json(&["report", "--json", "--no-symbols", &file]);
    assert_eq!((&report["total_allocations"], &report["total_bytes"]), (&stacks.into(), &0.into()));
    assert_eq!(
        report["top"]
            .as_array()
            .unwrap()
            .iter()
            .map(|entry| entry["allocations"].as_u64().unwrap())
            .sum::<u64>(),
        stacks as u64
    );

    let text = cairn(&["report", "--no-symbols", &file]);
    let (out, words) =
        (String::from_utf8(text.stdout).unwrap(), String::from_utf8_lossy(&text.stderr).into_owned());
    assert!(out.contains("not known: frees are not recorded") && !out.contains("leaked"), "{out}");
    assert!(words.contains("neither sizes nor frees"), "{words}");
    let folded = cairn(&["flame", "--folded", "--no-symbols", &file]);
    let sum: usize = String::from_utf8(folded.stdout)
        .unwrap()
        .lines()
        .map(|line| line.rsplit(' ').next().unwrap().parse::<usize>().unwrap())
        .sum();
    assert_eq!(sum, stacks);
    let same = json(&["diff", "--json", "--no-symbols", &file, &file]);
    assert_eq!(same["changes"], serde_json::json!([]), "{same}");

    // Cut in its last event: the events before it count.
    bytes.truncate(bytes.len() - 3);
    fs::write(&file, &bytes).unwrap();
    let cut = cairn(&["report", "--json", "--no-symbols", &file]);
    assert_eq!(cut.status.code(), Some(3), "{}", String::from_utf8_lossy(&cut.stderr));
    let report: Value = serde_json::from_slice(&cut.stdout).unwrap();
    assert_eq!(report["total_allocations"], stacks - 1);

    // A module alone is no heap.
    let module =
        [&[0][..], &1_700_000_000_000_000_000_u64.to_le_bytes(), &[1, 0, b'C', 0], &[0; 12]].concat();
    fs::write(&file, module).unwrap();
    let refused = cairn(&["report", &file]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("no stacks"));
}

#[test]
fn every_file_of_another_tool_has_its_page() {
    let directory = Directory::new("pages");
    let firefox = directory.file("app.firefox.json");
    assert!(
        cairn(&["export", "--to", "firefox", "-o", &firefox, &path("heaptrack-small.zst")]).status.success()
    );
    for file in [path("heaptrack-small.zst"), path("go-heap.pb.gz"), firefox] {
        let page = directory.file("page.html");
        let output = cairn(&["report", "--html", &page, "--force", &file]);
        assert!(output.status.success(), "{file}: {}", String::from_utf8_lossy(&output.stderr));
        let html = fs::read_to_string(&page).unwrap();
        assert!(html.starts_with("<!doctype html>") && html.trim_end().ends_with("</html>"), "{file}");
    }
}
