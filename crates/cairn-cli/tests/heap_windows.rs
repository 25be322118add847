//! `cairn heap` on Windows: counts of a program whose blocks are known, its unchanged behaviour,
//! and refusals. `fixtures/windows-heap` has the program.

#![cfg(windows)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Exit code of the program, which has more than eight bits.
const EXIT_CODE: i32 = 0x123_4567;

fn program() -> PathBuf {
    fixture("blocks.exe")
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/windows-heap").join(name)
}

/// A directory for one test, with a name of two languages and a percent sign.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("cairn 100%n 测试 {name} {}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn command(&self, program: impl AsRef<std::ffi::OsStr>, words: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(words).current_dir(&self.0).stdin(Stdio::null());
        command.env("COLUMNS", "100").env("LOCALAPPDATA", self.0.join("local"));
        // The program prints variables of cairn's, which the chore that runs this has.
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("CAIRN_") {
                command.env_remove(name);
            }
        }
        command
    }

    /// Records the program with these words; returns what it and cairn have printed.
    fn record(&self, output: &str, words: &[&str]) -> Output {
        let mut command = self.command(env!("CARGO_BIN_EXE_cairn"), &["heap", "-o", output]);
        command.arg(program()).args(words).output().unwrap()
    }

    /// Runs the program with children both ways; compares, and returns what cairn has printed.
    fn record_family(&self, options: &[&str], words: &[&str]) -> String {
        let alone = self.command(fixture("family.exe"), words).output().unwrap();
        let mut command = self.command(env!("CARGO_BIN_EXE_cairn"), &["heap"]);
        let recorded = command.args(options).arg(fixture("family.exe")).args(words).output().unwrap();
        assert_eq!((recorded.status, &recorded.stdout), (alone.status, &alone.stdout), "{recorded:?}");
        assert!(alone.stdout.windows(7).any(|text| text == b"started" || text == b"ended w"), "{alone:?}");
        String::from_utf8(recorded.stderr).unwrap()
    }

    /// Returns the names of the recordings in a directory of a run, which has an index.
    fn family(&self, run: &str) -> Vec<String> {
        let directory = self.0.join(run);
        let mut names = names(&directory);
        assert!(names.contains(&"index.json".to_owned()), "{names:?}");
        names.retain(|name| name != "index.json");
        names.into_iter().map(|name| format!("{run}/{name}")).collect()
    }

    fn refused(&self, words: &[&str], code: i32) -> String {
        let output = self.command(env!("CARGO_BIN_EXE_cairn"), words).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{words:?}: {output:?}");
        assert!(output.stdout.is_empty(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    /// Sums mappings by their kinds and by the functions of the program that called for them.
    fn mappings(&self, name: &str) -> Vec<(String, u64, u64)> {
        let output = self.command(env!("CARGO_BIN_EXE_cairn"), &["play", "--json", name]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let mut sums = std::collections::BTreeMap::<String, (u64, u64)>::new();
        for line in String::from_utf8(output.stdout).unwrap().lines() {
            let event: serde_json::Value = serde_json::from_str(line).unwrap();
            let Some(kind) = event["kind"].as_str() else { continue };
            let frames = event["frames"].as_array().unwrap().iter();
            let caller = frames
                .filter_map(|frame| frame["function"].as_str())
                .find(|name| ["reserve", "commit", "view", "extended"].contains(name));
            let sum = sums.entry(format!("{kind} {}", caller.unwrap_or("elsewhere"))).or_default();
            sum.0 += 1;
            sum.1 += event["size_bytes"].as_u64().unwrap();
        }
        sums.into_iter().map(|(what, (count, bytes))| (what, count, bytes)).collect()
    }

    fn report(&self, name: &str) -> serde_json::Value {
        let words = ["report", "--json", "--by", "function", "--cost", "allocated", name];
        let output = self.command(env!("CARGO_BIN_EXE_cairn"), &words).output().unwrap();
        assert!(matches!(output.status.code(), Some(0 | 3)), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Returns the names in a directory, sorted.
fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Sums the rows of a function of the program: allocations, bytes, leaked blocks, leaked bytes.
fn sums(report: &serde_json::Value, function: &str) -> [u64; 4] {
    let rows = report["top"].as_array().unwrap().iter().filter(|row| row["function"] == function);
    let fields = ["allocations", "allocated_bytes", "leaked_allocations", "leaked_bytes"];
    rows.fold([0; 4], |mut sums, row| {
        sums.iter_mut().zip(fields).for_each(|(sum, field)| *sum += row[field].as_u64().unwrap());
        sums
    })
}

/// Checks the blocks of both threads.
fn check_blocks(report: &serde_json::Value) {
    assert_eq!(sums(report, "with_heap"), [4000, 2000 * 4016, 0, 0], "{report:#}");
    assert_eq!(sums(report, "with_private_heap"), [101, 100 * 300 + (2 << 20), 0, 0], "{report:#}");
    // `with_malloc` calls `malloc` and little else, so that rows have the name of its caller.
    assert_eq!(sums(report, "thread"), [1000, 500_500, 7, 28], "{report:#}");
}

#[test]
fn heap_counts_every_block_of_two_threads() {
    let scratch = Scratch::new("counts");
    let alone = scratch.command(program(), &["counts", "a \"b\" c\\"]).output().unwrap();
    assert_eq!(alone.status.code(), Some(EXIT_CODE), "{alone:?}");
    let recorded = scratch.record("%n.cairn", &["counts", "a \"b\" c\\"]);
    assert_eq!((recorded.status, &recorded.stdout), (alone.status, &alone.stdout), "{recorded:?}");
    let summary = String::from_utf8(recorded.stderr).unwrap();
    assert!(summary.contains("is recorded in") && summary.contains("leaked"), "{summary}");
    let report = scratch.report("blocks.cairn");
    check_blocks(&report);
    assert_eq!(report["unfreed"], "leaked");
    assert_eq!(report["findings"], serde_json::json!([]));
}

#[test]
fn heap_goes_on_after_an_exception_of_the_allocator() {
    let scratch = Scratch::new("exception");
    let recorded = scratch.record("x.cairn", &["exception", "one"]);
    assert_eq!(recorded.stdout, b"done 3 one 1\r\n", "{recorded:?}");
    let report = scratch.report("x.cairn");
    check_blocks(&report);
    assert_eq!(sums(&report, "after_exception"), [50, 50 * 77, 0, 0], "{report:#}");
}

#[test]
fn heap_loses_nothing_when_the_program_is_ended() {
    let scratch = Scratch::new("kill");
    let recorded = scratch.record("x.cairn", &["kill"]);
    assert_eq!(recorded.status.code(), Some(77), "{recorded:?}");
    let report = scratch.report("x.cairn");
    check_blocks(&report);
    assert_eq!(report["unfreed"], "alive");
}

#[test]
fn heap_never_replaces_a_recording_unasked() {
    let scratch = Scratch::new("names");
    for _ in 0..2 {
        assert_eq!(scratch.record("x.cairn", &[]).status.code(), Some(EXIT_CODE));
    }
    check_blocks(&scratch.report("x.2.cairn"));
    let mut command =
        scratch.command(env!("CARGO_BIN_EXE_cairn"), &["heap", "-q", "--force", "-o", "x.cairn"]);
    let forced = command.arg(program()).output().unwrap();
    assert_eq!((forced.status.code(), forced.stderr), (Some(EXIT_CODE), Vec::new()));
    assert_eq!(scratch.record("in/", &[]).status.code(), Some(EXIT_CODE));
    assert_eq!(names(&scratch.0), ["in", "local", "x.2.cairn", "x.cairn"]);
    assert!(names(&scratch.0.join("in"))[0].starts_with("blocks."));
}

#[test]
fn heap_refuses_in_words_before_anything_runs() {
    let scratch = Scratch::new("refusals");
    let mut bytes = fs::read(program()).unwrap();
    let header = u32::from_le_bytes(bytes[60..64].try_into().unwrap()) as usize;
    bytes[header + 4..header + 6].copy_from_slice(&[0x4c, 1]);
    fs::write(scratch.0.join("old.exe"), bytes).unwrap();
    fs::write(scratch.0.join("script.cmd"), "echo").unwrap();
    let own = program();
    let own = own.to_str().unwrap();
    let cases: [(&[&str], i32, &str); 9] = [
        (&["heap", "missing.exe"], 127, "missing.exe: there is no such program"),
        (&["heap", "old.exe"], 2, "it is a 32-bit program"),
        (&["heap", "script.cmd"], 2, "it is no program for Windows"),
        (&["heap", "-o", "none/x.cairn", own], 1, "nothing can be recorded there"),
        (&["heap", "-o", "-", own], 2, "give its name"),
        (&["heap", "--sample", "1MiB", own], 2, "--sample works on Linux only"),
        (&["heap", "--annotate", own], 2, "--annotate works on Linux only"),
        (&["heap", "--attach", "7"], 2, "--attach works on Linux only"),
        (&["heap", "ctl", "7", "stop"], 2, "works on Linux only"),
    ];
    for (words, code, text) in cases {
        let message = scratch.refused(words, code);
        assert!(message.starts_with("cairn: ") && message.contains(text), "{words:?}: {message}");
    }
}

#[test]
fn heap_records_children_and_theirs_on_request() {
    let scratch = Scratch::new("children");
    let shown = scratch.record_family(&["--children", "-o", "run"], &["generation", "2"]);
    assert!(shown.contains("7 recordings of 7 processes are in"), "{shown}");
    assert!(!shown.contains("not recorded"), "{shown}");
    let recordings = scratch.family("run");
    assert_eq!(recordings.len(), 7, "{recordings:?}");
    let mut allocations: Vec<u64> = recordings
        .iter()
        .map(|name| {
            assert!(name.starts_with("run/family.") && name.ends_with(".cairn"), "{name}");
            let report = scratch.report(name);
            assert_eq!(report["unfreed"], "leaked", "{name}");
            let [allocations, bytes, leaked, _] = sums(&report, "own_blocks");
            assert_eq!((bytes, leaked), (24 * allocations, 0), "{name}");
            allocations
        })
        .collect();
    allocations.sort_unstable();
    assert_eq!(allocations, [100, 100, 100, 100, 200, 200, 300]);
    let index = fs::read_to_string(scratch.0.join("run/index.json")).unwrap();
    let index: serde_json::Value = serde_json::from_str(&index).unwrap();
    assert_eq!(index["recordings"].as_array().map(Vec::len), Some(7), "{index:#}");
    // The same name again is another directory, or replaces the first one.
    scratch.record_family(&["-q", "--children", "-o", "run"], &["missing"]);
    assert_eq!(scratch.family("run.2").len(), 1);
    scratch.record_family(&["-q", "--force", "--children", "-o", "run"], &["missing"]);
    assert_eq!(scratch.family("run").len(), 1);
}

#[test]
fn heap_leaves_children_alone_unless_asked() {
    let scratch = Scratch::new("alone");
    scratch.record_family(&["-o", "x.cairn"], &["generation", "1"]);
    assert_eq!(sums(&scratch.report("x.cairn"), "own_blocks"), [200, 24 * 200, 0, 0]);
    assert_eq!(names(&scratch.0), ["local", "x.cairn"]);
}

#[test]
fn heap_leaves_a_suspended_child_suspended() {
    let scratch = Scratch::new("suspended");
    let shown = scratch.record_family(&["--children", "-o", "run"], &["suspended"]);
    assert!(shown.contains("2 recordings of 2 processes"), "{shown}");
    let all = scratch.family("run");
    for name in &all {
        assert_eq!(sums(&scratch.report(name), "own_blocks"), [100, 2400, 0, 0], "{name}");
    }
    assert_eq!(all.len(), 2);
}

#[test]
fn heap_counts_children_that_are_not_recorded() {
    let scratch = Scratch::new("unrecorded");
    let shown = scratch.record_family(&["--children", "-o", "run"], &["debugged"]);
    assert!(
        shown.contains("1 child was not recorded: debugged by the program that started them\n"),
        "{shown}"
    );
    assert!(shown.contains("1 recording of 1 process is in"), "{shown}");
    assert_eq!(scratch.family("run").len(), 1);
    // The file system below wine refuses a name of more than 255 bytes.
    let shown = scratch.record_family(&["--children", "-o", "long"], &["long"]);
    assert!(shown.contains("1 child was not recorded: the recording library refuses: "), "{shown}");
    assert_eq!(scratch.family("long").len(), 1);
}

#[test]
fn heap_leaves_running_children_to_themselves() {
    let scratch = Scratch::new("outlived");
    let shown = scratch.record_family(&["--children", "-o", "run"], &["outlived"]);
    assert!(shown.contains("still running and recorded: 1 child process\n"), "{shown}");
    let all = scratch.family("run");
    assert_eq!(all.len(), 2);
    for name in &all {
        assert_eq!(sums(&scratch.report(name), "own_blocks"), [100, 2400, 0, 0], "{name}");
    }
}

#[test]
fn heap_records_mappings_on_request() {
    let scratch = Scratch::new("mappings");
    let program = fixture("mappings.exe");
    let alone = scratch.command(&program, &[]).output().unwrap();
    assert_eq!((alone.status.code(), &alone.stdout[..]), (Some(5), &b"done\r\n"[..]), "{alone:?}");
    for (options, name) in [(&[][..], "without.cairn"), (&["--mmap"][..], "with.cairn")] {
        let mut command = scratch.command(env!("CARGO_BIN_EXE_cairn"), &["heap", "-q", "-o", name]);
        let recorded = command.args(options).arg(&program).output().unwrap();
        assert_eq!((recorded.status, &recorded.stdout), (alone.status, &alone.stdout), "{recorded:?}");
        assert!(recorded.stderr.is_empty(), "{recorded:?}");
    }
    assert_eq!(scratch.mappings("without.cairn"), []);
    // Reservations with their whole size; no commitments, heaps or stacks of threads.
    let expected = [
        ("map commit", 10, 10 * 8192),
        ("map extended", 7, 4 * 204_800 + 3 * 65536),
        ("map reserve", 30, 10 * (102_400 + 98_304 + 94_208)),
        ("map view", 7, 7 * 65536),
        ("unmap commit", 10, 10 * 8192),
        ("unmap extended", 4, 2 * 204_800 + 2 * 65536),
        ("unmap reserve", 25, 9 * 102_400 + 8 * (98_304 + 94_208)),
        ("unmap view", 4, 4 * 65536),
    ];
    let expected = expected.map(|(what, count, bytes)| (what.to_owned(), count, bytes));
    assert_eq!(scratch.mappings("with.cairn"), expected);
    // The same in a child of the system's shell.
    let program = fs::canonicalize(program).unwrap();
    let program = program.to_str().unwrap().trim_start_matches(r"\\?\");
    let options = ["heap", "-q", "--children", "--mmap", "-o", "run", "cmd.exe", "/c", program];
    let recorded = scratch.command(env!("CARGO_BIN_EXE_cairn"), &options).output().unwrap();
    assert_eq!((recorded.status, &recorded.stdout), (alone.status, &alone.stdout), "{recorded:?}");
    assert!(recorded.stderr.is_empty(), "{recorded:?}");
    let [shell, child] = &scratch.family("run")[..] else { panic!("other recordings") };
    assert!(shell.starts_with("run/cmd.") && child.starts_with("run/mappings."), "{shell} {child}");
    assert_eq!(scratch.mappings(child), expected);
}
