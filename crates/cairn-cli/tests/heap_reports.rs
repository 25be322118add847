//! `cairn report`, `diff` and `flame` as a user runs them, on spools of a program that never ran.

#[path = "../../cairn-recording/tests/support/spool.rs"]
mod spool;

use std::path::{Path, PathBuf};

use cairn_format::recording::{Lane, LoadedModule, MarkValue, PcKind};
use serde_json::Value;
use snapbox::cmd::{Command, cargo_bin};
use snapbox::file;
use spool::{Program, START};

fn cairn() -> Command {
    let repository = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    Command::new(cargo_bin!("cairn")).current_dir(repository).env("COLUMNS", "100").env("NO_COLOR", "1")
}

/// A directory that is gone afterwards.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("cairn-heap-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("temporary files can be made");
        Self(path)
    }

    fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, bytes).expect("temporary files can be written");
        path
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Records the stacks of the device in `fixtures/device`.
///
/// They have the program counters of its log: session, header (inlined into packet) from two lines,
/// and one in no module.
fn device(program: &mut Program) -> [u32; 4] {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/device/app.elf");
    let path = path.canonicalize().expect("the fixture is there");
    let spool = &mut program.spool;
    spool.facts(&[("argument", "app.elf"), ("argument", "--serve"), ("cairn.version", "0.1.0")]);
    spool.write(1, Lane::Outer, START, |sink| {
        sink.module_loaded(&LoadedModule {
            number: 1,
            counter: START,
            start: 0x10000,
            end: 0x20000,
            bias: 0,
            // That of the program: a path without one is not opened.
            build_id: b"\xda\x63\x19\x84\x04\xa6\x11\x4c\x8e\xa2\x7c\x5f\x69\x93\x34\x18\xec\xf5\xc0\xdd",
            path: path.as_os_str().as_encoded_bytes(),
        })
    });
    let pcs = [0x10538, 0x104a8, 0x103f0, 0x103f8, 0x10400, 0x102f4, 0x10338, 0x7777_0000];
    for (index, &address) in pcs.iter().enumerate() {
        let module = u32::from(address < 0x20000);
        spool.write(1, Lane::Outer, START, |sink| {
            sink.pc(index as u32 + 1, PcKind::ReturnAddress, address, module)
        });
    }
    [
        spool.segment(1, 1, 0, &[1, 2, 3, 6]),
        spool.segment(1, 6, 0, &[1, 2, 4, 7]),
        spool.segment(1, 11, 0, &[1, 2, 5, 7]),
        spool.segment(1, 16, 0, &[1, 2, 8]),
    ]
}

/// Millisecond `ms` of the run; the counter runs at 3 GHz.
fn at_ms(program: &mut Program, ms: u64) {
    program.counter = START + ms * 3_000_000;
}

/// Records leaks, frees in another thread, and a temporary buffer.
///
/// 20 sessions of 120 bytes leak; two threads free all but 10 of 50 headers of 600 bytes; a buffer
/// is freed before anything else is allocated. The peak is at 70 ms.
fn recorded(headers: u64) -> Vec<u8> {
    let mut program = Program::new(2, 1);
    let [session, header, other_header, buffer] = device(&mut program);
    for index in 0..20 {
        at_ms(&mut program, 1 + index);
        program.alloc(1, 120, session);
    }
    for index in 0..headers {
        at_ms(&mut program, 21 + index * 49 / (headers - 1));
        program.alloc(2, 600, if index % 5 == 0 { other_header } else { header });
    }
    for index in 0..headers - 10 {
        at_ms(&mut program, 71 + index * 49 / headers);
        program.free(1 + (index % 2) as u32, 20);
    }
    for _ in 0..7 {
        at_ms(&mut program, 121);
        program.alloc(1, 2048, buffer);
        let last = program.live.len() - 1;
        program.free(1, last);
    }
    at_ms(&mut program, 130);
    program.finish()
}

fn json(arguments: &[&str]) -> Value {
    let output = cairn().args(arguments).arg("--json").output().expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("it is JSON")
}

fn text(path: &Path) -> &str {
    path.to_str().expect("temporary paths are text")
}

#[test]
fn the_whole_picture_reads_as_the_snapshot_shows() {
    let directory = Directory::new("picture");
    let path = directory.write("app.cairn", &recorded(50));
    cairn()
        .arg("report")
        .arg(&path)
        .assert()
        .success()
        .stdout_eq(file!["snapshots/heap-report.txt"])
        .stderr_eq("");
    let views = [
        (vec!["--by", "tree"], file!["snapshots/heap-tree.txt"]),
        (vec!["--by", "callers", "--cost", "leaked"], file!["snapshots/heap-callers.txt"]),
        (vec!["--by", "thread"], file!["snapshots/heap-threads.txt"]),
        (vec!["--by", "line", "--full"], file!["snapshots/heap-lines.txt"]),
    ];
    for (arguments, snapshot) in views {
        cairn().arg("report").arg(&path).args(arguments).assert().success().stdout_eq(snapshot);
    }
}

#[test]
fn json_has_exact_numbers_and_the_fields_that_are_promised() {
    let directory = Directory::new("json");
    let path = directory.write("app.cairn", &recorded(50));
    let report = json(&["report", text(&path)]);
    assert_eq!(report["schema"], "cairn.heap.report/1");
    let numbers = [
        ("total_allocations", 77),
        ("total_bytes", 20 * 120 + 50 * 600 + 7 * 2048),
        ("leaked_allocations", 30),
        ("leaked_bytes", 20 * 120 + 10 * 600),
        ("peak_bytes", 20 * 120 + 50 * 600),
        ("peak_allocations", 70),
        // The seven buffers, and the last header, which nothing followed in its thread.
        ("temporary_allocations", 8),
    ];
    for (field, number) in numbers {
        assert_eq!(report[field], number, "{field}");
    }
    assert!((69_900_000..=70_100_000).contains(&report["peak_nanos"].as_u64().expect("a number")));
    let top = &report["top"][0];
    assert_eq!(
        (&top["function"], &top["line"], &top["bytes"], &top["count"]),
        (&"make_header".into(), &81.into(), &30_000.into(), &50.into())
    );
    assert!(top["file"].as_str().expect("a file").ends_with("app.c"));
    assert!(top["module"].as_str().expect("a module").ends_with("app.elf"));
    let frames: Vec<&str> = top["stacks"][0]["frames"]
        .as_array()
        .expect("frames")
        .iter()
        .map(|frame| frame["function"].as_str().expect("a name"))
        .collect();
    assert_eq!(frames, ["make_header", "receive_packet", "serve_client", "run"]);
    let leaks = json(&["report", text(&path), "--cost", "leaked"]);
    let answer: Vec<(&str, u64)> = leaks["top"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|entry| {
            (entry["function"].as_str().expect("a name"), entry["bytes"].as_u64().expect("a number"))
        })
        .collect();
    assert_eq!(answer, [("make_header", 6000), ("open_session", 2400)]);
}

#[test]
fn times_and_filters_count_the_chosen_part() {
    let directory = Directory::new("parts");
    let path = directory.write("app.cairn", &recorded(50));
    let leaked = |arguments: &[&str]| {
        let report = json(&[&["report", text(&path)], arguments].concat());
        report["leaked_allocations"].as_u64().expect("a number")
    };
    assert_eq!(leaked(&["--at", "20.5ms"]), 20);
    assert_eq!(leaked(&["--at", "peak"]), 70);
    assert_eq!(leaked(&["--between", "20.5ms", "70.5ms"]), 50);
    assert_eq!(leaked(&["--between", "0.0205", "1s"]), 10);
    for command in [&["report"][..], &["export", "--to", "folded", "-o", "-"]] {
        let turned =
            cairn().args(command).arg(&path).args(["--between", "2s", "1s"]).output().expect("it runs");
        assert_eq!(turned.status.code(), Some(2), "{command:?}");
    }
    assert_eq!(leaked(&["--filter", "size=..200"]), 20);
    assert_eq!(leaked(&["--filter", "function=^open_"]), 20);
    assert_eq!(leaked(&["--filter", "thread=1002"]), 10);
    assert_eq!(leaked(&["--filter", "thread=1002", "--filter", "function=open"]), 0);
    assert_eq!(leaked(&["--filter", "module=app.elf"]), 30);
    let known = directory.write("known.supp", b"# known\nleak:open_session\n");
    assert_eq!(leaked(&["--suppressions", text(&known)]), 10);
}

#[test]
fn diff_shows_growth_and_can_fail_a_check() {
    let directory = Directory::new("diff");
    let old = directory.write("old.cairn", &recorded(50));
    let new = directory.write("new.cairn", &recorded(80));
    cairn().arg("diff").args([&old, &new]).assert().success().stdout_eq(file!["snapshots/heap-diff.txt"]);
    let diff = json(&["diff", text(&old), text(&new)]);
    assert_eq!((&diff["schema"], &diff["cost"]), (&"cairn.heap.diff/1".into(), &"peak".into()));
    let growth: i64 = diff["changes"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|c| c["growth"].as_i64().expect("a number"))
        .sum();
    assert_eq!(growth, 30 * 600);
    cairn().arg("diff").args([&old, &new]).args(["--fail-above", "17KiB"]).assert().code(4);
    cairn().arg("diff").args([&old, &new]).args(["--fail-above", "18000"]).assert().success();
    let moments = json(&["diff", text(&old), "--from", "20.5ms", "--to", "peak"]);
    assert_eq!(moments["changes"][0]["growth"], 50 * 600);
    cairn().arg("diff").arg(&old).assert().code(2);
}

#[test]
fn a_flame_graph_is_one_well_formed_file() {
    let directory = Directory::new("flame");
    let path = directory.write("app.cairn", &recorded(50));
    let svg = directory.0.join("heap.svg");
    cairn().arg("flame").arg(&path).arg("-o").arg(&svg).assert().success().stdout_eq("");
    let svg = std::fs::read_to_string(svg).expect("it was written");
    assert!(svg.starts_with("<?xml") && svg.trim_end().ends_with("</svg>"));
    for element in ["g", "text", "title", "style", "script"] {
        let opened =
            svg.matches(&format!("<{element}>")).count() + svg.matches(&format!("<{element} ")).count();
        assert_eq!(opened, svg.matches(&format!("</{element}>")).count(), "{element}");
    }
    assert!(svg.contains("make_header"));
    assert!(
        !svg.contains("http") || svg.matches("http").count() == 1,
        "nothing but the name space is elsewhere"
    );
    cairn()
        .arg("flame")
        .arg(&path)
        .args(["--folded", "--cost", "leaked"])
        .assert()
        .success()
        .stdout_eq("run;serve_client;open_session 2400\nrun;serve_client;receive_packet;make_header 6000\n");
}

#[test]
fn page_is_one_file_and_never_replaces_the_recording() {
    let directory = Directory::new("page");
    let path = directory.write("app.cairn", &recorded(50));
    let page = path.with_file_name("app.html");
    cairn().arg("report").arg(&path).arg("--html").arg(&page).assert().success().stdout_eq("");
    let html = std::fs::read_to_string(&page).expect("it is there");
    assert!(html.starts_with("<!doctype html>") && html.trim_end().ends_with("</html>"));
    assert!(html.contains("default-src 'none'") && !html.contains("http://") && !html.contains("https://"));
    let out = cairn().arg("report").arg(&path).args(["--html", "-"]).output().expect("it runs");
    assert!(out.stdout == html.as_bytes(), "standard output has the same page");

    // Nothing is written over unasked, and a page that fails leaves what was there.
    for command in [&["report", "--html"][..], &["flame", "-o"]] {
        std::fs::write(&page, "precious").expect("it is ours");
        let run = |more: &[&str]| {
            let mut run = cairn();
            for word in &command[..1] {
                run = run.arg(word);
            }
            run.arg(&path).args(&command[1..]).arg(&page).args(more).output().expect("it runs")
        };
        let answer = run(&[]);
        let words = String::from_utf8_lossy(&answer.stderr).into_owned();
        assert!(answer.status.code() == Some(1) && words.contains("--force"), "{words}");
        assert_eq!(std::fs::read(&page).expect("it is there"), b"precious");
        assert!(run(&["--force"]).status.success());
        assert!(std::fs::read(&page).expect("it is there").len() > 1000);
        let beside = std::fs::read_dir(&directory.0).expect("it is there").count();
        assert_eq!(beside, 2, "no half-written file is left");
    }

    let answer =
        cairn().arg("report").arg(&path).arg("--html").arg(&path).arg("--force").output().expect("it runs");
    assert!(!answer.status.success());
    let words = String::from_utf8_lossy(&answer.stderr).into_owned();
    assert!(words.contains("app.cairn: this is the file that is read"), "{words}");
    assert_eq!(std::fs::read(&path).expect("it is there"), recorded(50));

    cairn().arg("report").arg(&path).args(["--html", "x.html", "--json"]).assert().code(2);
}

#[test]
fn report_names_a_file_that_is_no_recording() {
    let directory = Directory::new("bad");
    for (name, bytes) in [
        ("empty", &b""[..]),
        ("text", b"not a recording, but longer than a header is, by far: it goes on and on"),
    ] {
        let path = directory.write(name, bytes);
        let output = cairn().arg("report").arg(&path).output().expect("it runs");
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{complaint}");
        assert!(complaint.contains(text(&path)), "{complaint}");
    }
    cairn().args(["report", "/nonexistent"]).assert().code(1);
    let path = directory.write("app.cairn", &recorded(50));
    let bad = directory.write("bad.supp", b"leak:ok\nrace:x\n");
    let output = cairn().arg("report").arg(&path).arg("--suppressions").arg(bad).output().expect("it runs");
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("line 2"));
    for arguments in [["--filter", "colour=red"], ["--at", "noon"], ["--filter", "size=9..1"]] {
        cairn().arg("report").arg(&path).args(arguments).assert().code(2);
    }
    cairn().arg("report").arg(&path).args(["--filter", "thread=nobody"]).assert().code(1);
}

#[test]
fn every_cut_of_a_recording_is_reported_as_far_as_it_goes() {
    let directory = Directory::new("cut");
    let whole = recorded(50);
    for length in [64, 4096, 65_536, 65_700, 66_000, 70_000, whole.len() - 8] {
        let path = directory.write("cut.cairn", &whole[..length.min(whole.len())]);
        for command in [&["report"][..], &["report", "--by", "tree"], &["flame"], &["report", "--json"]] {
            let output = cairn().args(command).arg(&path).output().expect("it runs");
            let code = output.status.code();
            assert!(matches!(code, Some(0 | 1 | 3)), "{length}: {command:?}: {code:?}");
            assert!(!String::from_utf8_lossy(&output.stderr).contains("panicked"), "{length}");
        }
    }
}

#[test]
fn names_cannot_drive_a_terminal() {
    let directory = Directory::new("escapes");
    let mut program = Program::new(1, 1);
    let [session, ..] = device(&mut program);
    program.spool.facts(&[("argument", "evil\u{1b}[2J\nname")]);
    program.spool.write(1, Lane::Outer, START, |sink| {
        sink.thread(START, cairn_format::recording::ThreadEvent::Named(b"\x1b]0;title\x07"))
    });
    program.spool.write(1, Lane::Outer, START, |sink| sink.mark(START, session, 0, MarkValue::None, b"\x1b"));
    at_ms(&mut program, 1);
    program.alloc(1, 1, session);
    let path = directory.write("evil.cairn", &program.finish());
    for view in [&[][..], &["--by", "thread"], &["--filter", "function=\u{1b}"]] {
        let output = cairn().arg("report").arg(&path).args(view).output().expect("it runs");
        assert!(!output.stdout.contains(&0x1b), "{view:?}");
    }
}

/// The output of a command, and its exit status.
fn answer(arguments: &[&str]) -> (Option<i32>, Vec<u8>, Vec<u8>) {
    let output = cairn().args(arguments).output().expect("it runs");
    (output.status.code(), output.stdout, output.stderr)
}

/// An answer does not show whether a summary in the recording or its events are its source.
#[test]
fn answers_are_equal_with_and_without_a_summary() {
    let directory = Directory::new("retained");
    let spool = directory.write("app.spool", &recorded(500));
    let (path, other) = (directory.0.join("app.cairn"), directory.write("other.cairn", &recorded(40)));
    cairn().args(["pack", text(&spool), "--sums", "never"]).assert().success();
    let (path, other) = (text(&path), text(&other));
    let page = directory.0.join("app.html");
    let mut all: Vec<Vec<&str>> = Vec::new();
    let views =
        ["function", "line", "module", "stack", "tree", "callers", "thread", "size", "lifetime", "time"];
    let parts: [&[&str]; 7] = [
        &[],
        &["--filter", "function=make_*"],
        &["--filter", "module=app"],
        &["--filter", "size=..1000"],
        &["--filter", "thread=1002"],
        &["--at", "peak"],
        &["--between", "30ms", "80ms"],
    ];
    for part in parts {
        all.push([&["report", path, "--json", "--full"], part].concat());
        all.push([&["report", path], part].concat());
        for view in views {
            all.push([&["report", path, "--full", "--by", view], part].concat());
        }
    }
    for cost in ["peak", "leaked", "allocated", "count", "temporary"] {
        all.push(vec!["report", path, "--json", "--full", "--by", "stack", "--cost", cost]);
        all.push(vec!["report", path, "--json", "--full", "--by", "tree", "--cost", cost]);
        all.push(vec!["flame", path, "--cost", cost]);
        all.push(vec!["flame", path, "--folded", "--cost", cost, "--filter", "function=make_*"]);
        all.push(vec!["diff", path, other, "--json", "--full", "--cost", cost]);
        all.push(vec!["diff", other, path, "--json", "--filter", "function=make_*", "--cost", cost]);
    }
    for target in ["pprof", "speedscope", "csv"] {
        all.push(vec!["export", path, "--to", target, "-o", "-"]);
    }
    all.push(vec!["report", path, "--html", "-"]);
    let from_events: Vec<_> = all.iter().map(|arguments| answer(arguments)).collect();
    let failed: Vec<_> = all.iter().zip(&from_events).filter(|(_, answer)| answer.0 != Some(0)).collect();
    assert!(failed.is_empty(), "{failed:?}");
    let before = std::fs::metadata(path).expect("it is there").len();
    cairn()
        .args(["pack", "--in-place", path])
        .assert()
        .success()
        .stderr_eq("[..]app.cairn: [..] bytes of sums added\n");
    assert!(std::fs::metadata(path).expect("it is there").len() > before);
    for (arguments, expected) in all.iter().zip(&from_events) {
        assert!(answer(arguments) == *expected, "{arguments:?}");
    }
    cairn().args(["report", path, "--html", text(&page)]).assert().success();
    cairn()
        .args(["pack", "--in-place", path])
        .assert()
        .success()
        .stderr_eq("[..]app.cairn: the sums are there already\n");
    cairn().args(["pack", "--in-place", text(&spool)]).assert().code(1);

    // A damaged summary is reported, and the events answer.
    let mut bytes = std::fs::read(path).expect("it is there");
    let sums = bytes.windows(4).position(|window| window == b"SUMS").expect("the file contains them");
    bytes[sums + 40] ^= 1;
    std::fs::write(path, bytes).expect("it can be written");
    let (code, output, complaints) = answer(&["report", path, "--json", "--full"]);
    assert!(code == Some(0) && output == from_events[0].1);
    let complaints = String::from_utf8(complaints).expect("text");
    assert!(complaints.contains("the events were read instead"), "{complaints}");
}

/// Events that cannot be read are missing in every sum, so the answer says so.
#[test]
fn damaged_events_make_the_answer_incomplete() {
    let directory = Directory::new("spoiled");
    let spool = directory.write("app.spool", &recorded(500));
    cairn().args(["pack", text(&spool)]).assert().success();
    let path = directory.0.join("app.cairn");
    let mut bytes = std::fs::read(&path).expect("it is there");
    let events = bytes.windows(4).position(|window| window == b"HEP2").expect("it has events");
    bytes[events + 100] ^= 1;
    std::fs::write(&path, bytes).expect("it can be written");
    for command in [vec!["report"], vec!["flame"], vec!["diff", text(&path)], vec!["report", "--html", "-"]] {
        let (code, _, complaints) = answer(&[&command[..], &[text(&path)]].concat());
        let complaints = String::from_utf8(complaints).expect("text");
        assert!(code == Some(3) && complaints.contains("chunk HEP2"), "{command:?}: {code:?} {complaints}");
    }
}

/// Sums are an addition: where there is no room for them, the recording is as it was.
#[cfg(unix)]
#[test]
fn sums_that_do_not_fit_leave_the_recording_as_it_was() {
    let directory = Directory::new("room");
    let path = directory.0.join("app.cairn");
    let spool = directory.write("app.spool", &recorded(500));
    cairn().args(["pack", text(&spool), "--sums", "never"]).assert().success();
    let before = std::fs::read(&path).expect("it is there");
    // The limit counts blocks of 1,024 bytes: if a file ends inside of one, a part of the sums can
    // be written, else nothing.
    let limit = before.len() / 1024 + usize::from(before.len() % 1024 > 200);
    let script = format!("trap '' XFSZ; ulimit -f {limit}; exec \"$0\" pack --in-place \"$1\"");
    let cairn = cargo_bin!("cairn");
    let output = std::process::Command::new("bash")
        .args(["-c", &script])
        .arg(cairn)
        .arg(&path)
        .output()
        .expect("it runs");
    let complaints = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(1) && complaints.contains("adding sums to"), "{complaints}");
    assert!(std::fs::read(&path).expect("it is there") == before);
    assert_eq!(answer(&["report", text(&path)]).0, Some(0));
}
