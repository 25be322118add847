//! `cairn export` as a user runs it.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use snapbox::cmd::{Command, cargo_bin};
use snapbox::{file, str};

const FORMATS: &[(&str, &str)] = &[
    ("pprof", "pb.gz"),
    ("firefox", "firefox.json"),
    ("speedscope", "speedscope.json"),
    ("heapprofile", "heapprofile"),
    ("folded", "folded"),
    ("heaptrack", "heaptrack.zst"),
    ("dhat", "dhat.json"),
    ("otlp", "otlp"),
    ("csv", "csv"),
    ("jsonl", "jsonl"),
];

fn cairn() -> Command {
    Command::new(cargo_bin!("cairn")).env("COLUMNS", "100").env("NO_COLOR", "1")
}

/// A directory that is gone afterwards, with a recording in it.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("cairn-export-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).expect("temporary files can be made");
        let fixture =
            PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/recordings/v1/packed.cairn");
        fs::copy(fixture, path.join("app.4711.cairn")).expect("the fixture is there");
        Self(path)
    }

    fn recording(&self) -> PathBuf {
        self.0.join("app.4711.cairn")
    }

    fn names(&self) -> Vec<String> {
        let names =
            fs::read_dir(&self.0).expect("it is there").map(|entry| entry.expect("it is there").file_name());
        let mut names: Vec<String> = names.map(|name| name.to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The fixture states that events were lost: everything is written, and the exit code reports the
/// loss.
const LOST: i32 = 3;

/// Without names, which depend on what is installed.
fn export(recording: &Path, arguments: &[&str]) -> Command {
    cairn().arg("export").arg(recording).arg("--no-symbols").args(arguments)
}

#[test]
fn help_equals_the_snapshot() {
    cairn().args(["export", "--help"]).assert().success().stdout_eq(file!["snapshots/export-help.txt"]);
}

#[test]
fn export_writes_beside_the_recording_and_replaces_nothing() {
    let directory = Directory::new("beside");
    for (format, ending) in FORMATS {
        let path = directory.0.join(format!("app.4711.{ending}"));
        export(&directory.recording(), &["--to", format]).assert().code(LOST).stdout_eq("");
        let bytes = fs::read(&path).expect("it was written");
        assert!(bytes.len() > 50, "{format}");
        fs::write(&path, "mine").expect("it can be written");
        let refused = export(&directory.recording(), &["--to", format]).assert().code(1);
        refused.stderr_eq(str![[r#"
cairn: [..]: the file exists; name another one, or replace it with --force

"#]]);
        assert_eq!(fs::read(&path).expect("it is there"), b"mine");
        export(&directory.recording(), &["--to", format, "--force"]).assert().code(LOST);
        assert_eq!(fs::read(&path).expect("it is there").len(), bytes.len(), "{format}");
    }
    assert_eq!(directory.names().len(), FORMATS.len() + 1, "{:?}", directory.names());
}

#[test]
fn export_to_stdout_equals_the_file() {
    let directory = Directory::new("stdout");
    for format in ["csv", "folded", "speedscope"] {
        let path = directory.0.join(format!("file.{format}"));
        export(&directory.recording(), &["--to", format, "-o"]).arg(&path).assert().code(LOST);
        let output = export(&directory.recording(), &["--to", format, "-o", "-"]).output().expect("it runs");
        assert_eq!(output.status.code(), Some(LOST));
        assert_eq!(output.stdout, fs::read(&path).expect("it was written"), "{format}");
    }
}

#[test]
fn tables_add_up_to_the_report() {
    let directory = Directory::new("tables");
    let report = cairn().args(["report", "--json", "--no-symbols"]).arg(directory.recording()).output();
    let report: Value = serde_json::from_slice(&report.expect("it runs").stdout).expect("it is JSON");
    let sum = |table: &str, column: &str| -> u64 {
        let output = export(&directory.recording(), &["--to", "jsonl", "--table", table, "-o", "-"]).output();
        let text = String::from_utf8(output.expect("it runs").stdout).expect("it is text");
        let rows = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("a line is JSON"));
        rows.map(|row| row[column].as_u64().expect("a number")).sum()
    };
    for table in ["stacks", "functions", "lines", "modules", "threads", "sizes"] {
        assert_eq!(Some(sum(table, "alloc_space")), report["total_bytes"].as_u64(), "{table}");
        assert_eq!(Some(sum(table, "inuse_objects")), report["leaked_allocations"].as_u64(), "{table}");
        assert_eq!(Some(sum(table, "peak_space")), report["peak_bytes"].as_u64(), "{table}");
    }
}

#[test]
fn marks_are_written_where_a_format_has_sums_or_events() {
    let directory = Directory::new("marks");
    for format in ["speedscope", "firefox"] {
        let output = export(&directory.recording(), &["--marks", "--to", format, "-o", "-"]).output();
        let file: Value = serde_json::from_slice(&output.expect("it runs").stdout).expect("it is JSON");
        assert!(file["profiles"].is_array() || file["threads"].is_array(), "{format}");
    }
    export(&directory.recording(), &["--marks", "--to", "heaptrack"]).assert().code(1).stderr_eq(str![[r#"
...
cairn: [..]app.4711.cairn: a heaptrack file cannot hold this: [..]

"#]]);
    assert_eq!(directory.names(), ["app.4711.cairn"]);
}

#[test]
fn export_refuses_other_files_by_name_and_leaves_nothing() {
    let directory = Directory::new("bad");
    let hello = directory.0.join("hello.cairn");
    fs::write(&hello, "hello").expect("it can be written");
    for path in [hello, directory.0.join("no-such-file")] {
        let output = export(&path, &["--to", "pprof"]).output().expect("it runs");
        assert_eq!(output.status.code(), Some(1));
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(words.contains(path.file_name().unwrap().to_str().unwrap()), "{words}");
    }
    let refused =
        export(&directory.recording(), &["--to", "csv", "-o"]).arg(directory.0.join("none/app.csv"));
    refused.assert().code(1);
    assert_eq!(directory.names(), ["app.4711.cairn", "hello.cairn"]);
    export(&directory.recording(), &["--to", "xml"]).assert().code(2);
}

/// Returns the output of `heaptrack_print` for a file; `None` if it is not installed.
fn heaptrack_print(path: &Path) -> Option<String> {
    let output = std::process::Command::new("heaptrack_print").arg(path).output().ok()?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

// Failed with: zstd in a file without its ending; heaptrack_print reported "calls to allocation
// functions: 0" for it.
#[test]
fn files_are_packed_as_their_names_say() {
    let directory = Directory::new("packed");
    let starts: [(&str, &[u8]); 5] = [
        ("x.heaptrack", b"v 10400 3\n"),
        ("x", b"v 10400 3\n"),
        ("x.heaptrack.gz", &[0x1f, 0x8b]),
        ("x.heaptrack.zst", &[0x28, 0xb5, 0x2f, 0xfd]),
        ("x.csv.gz", &[0x1f, 0x8b]),
    ];
    let mut printed = Vec::new();
    for (name, start) in starts {
        let path = directory.0.join(name);
        let to = if name.contains("csv") { "csv" } else { "heaptrack" };
        let arguments = ["--to", to, "-o", path.to_str().unwrap()];
        export(&directory.recording(), &arguments).assert().code(3);
        let written = fs::read(&path).unwrap();
        assert!(written.starts_with(start), "{name}: {:x?}", &written[..8]);
        if to == "heaptrack" {
            // The command reads back what it wrote, and heaptrack_print what it was named.
            let report = cairn().arg("report").arg(&path).output().unwrap();
            assert!(report.status.success(), "{name}: {}", String::from_utf8_lossy(&report.stderr));
            printed.extend(heaptrack_print(&path));
        }
    }
    assert!(printed.iter().all(|text| !text.contains("calls to allocation functions: 0 ")), "{printed:?}");
    let calls = |text: &String| {
        text.lines().find(|line| line.starts_with("calls to allocation functions: ")).map(str::to_owned)
    };
    assert!(printed.windows(2).all(|pair| calls(&pair[0]) == calls(&pair[1])), "{printed:?}");
    // Standard output has no name: heaptrack's own packing.
    let stdout = export(&directory.recording(), &["--to", "heaptrack", "-o", "-"]).output().unwrap().stdout;
    assert!(stdout.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]));
}

// The report's page, its tooltip and docs/book/reference/report.md describe heaptrack's count. This
// is that description, checked against heaptrack_print itself.
#[test]
fn heaptrack_export_keeps_the_temporary_count() {
    let directory = Directory::new("temporary");
    let head =
        "v 10400 3\nX ./x\nI 1000 100\ns 1 f\ns 1 g\ni 1000 0 1\ni 2000 0 2\nt 1 0\nt 2 0\na 10 1\na 20 2\n";
    for (events, temporary) in [
        ("+ 1\n- 1\n", 1),
        // Another block of the same stack and size is freed.
        ("+ 1\n+ 1\n- 1\n- 1\n", 1),
        // Another allocation, or another free, in between.
        ("+ 1\n+ 0\n- 1\n", 0),
        ("+ 0\n+ 1\n- 0\n- 1\n", 0),
        // Class 0 behind another free.
        ("+ 0\n+ 1\n- 1\n- 0\n", 2),
        ("+ 1\n+ 0\n- 0\n- 1\n", 1),
    ] {
        let path = directory.0.join("events");
        fs::write(&path, format!("{head}{events}c 5\n")).unwrap();
        let Some(text) = heaptrack_print(&path) else { return };
        assert!(text.contains(&format!("temporary memory allocations: {temporary} (")), "{events}: {text}");
    }
}
