//! `cairn.exe` as a user of Windows runs it: paths, names, colours, line ends, caches, pipes, and
//! what it says of commands that need Linux.

#![cfg(windows)]
#![allow(clippy::print_stdout, reason = "says what was skipped")]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures")
}

fn packed() -> PathBuf {
    fixtures().join("recordings/v1/packed.cairn")
}

/// A directory for one test, with a name of two languages.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("cairn 测试 {name} {}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn cairn(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cairn"));
        command.current_dir(&self.0).stdin(Stdio::null());
        command.env("COLUMNS", "100").env("LOCALAPPDATA", self.0.join("local"));
        command
    }

    /// Runs `cairn` with these words; returns its output. The recording has losses and modules of
    /// another machine, so that 3 is success as well.
    fn out(&self, words: &[&str]) -> String {
        let output = self.cairn().args(words).output().unwrap();
        assert!(matches!(output.status.code(), Some(0 | 3)), "{words:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn recordings_have_names_of_any_language_and_paths_of_windows() {
    let scratch = Scratch::new("names");
    fs::create_dir(scratch.at("目录")).unwrap();
    fs::copy(packed(), scratch.at("目录\\测试.cairn")).unwrap();
    let absolute = scratch.at("目录\\测试.cairn");
    let forward = absolute.to_string_lossy().replace('\\', "/");
    let answers: Vec<String> =
        ["目录\\测试.cairn", "目录/测试.cairn", ".\\目录\\..\\目录\\测试.cairn", &forward]
            .iter()
            .map(|path| scratch.out(&["report", path]))
            .collect();
    assert!(answers[0].contains("peak         263.2 KiB in 4 blocks, after 510.0 µs"), "{}", answers[0]);
    assert!(answers.iter().all(|answer| *answer == answers[0]));
    // The extended form, which the system takes as it is.
    let extended = fs::canonicalize(&absolute).unwrap();
    assert_eq!(scratch.out(&["report", extended.to_str().unwrap()]), answers[0]);
}

#[test]
fn every_reading_command_writes_files_beside_the_recording() {
    let scratch = Scratch::new("commands");
    fs::copy(packed(), scratch.at("测试.cairn")).unwrap();
    let spool = fixtures().join("recordings/v1/spool.cairn");
    fs::copy(spool, scratch.at("spool.cairn")).unwrap();
    scratch.out(&["flame", "-o", "图.svg", "测试.cairn"]);
    assert!(fs::read_to_string(scratch.at("图.svg")).unwrap().contains("<svg"));
    scratch.out(&["report", "--format", "html", "-o", "页.html", "测试.cairn"]);
    assert!(fs::read_to_string(scratch.at("页.html")).unwrap().starts_with("<!doctype html>"));
    scratch.out(&["export", "--format", "pprof", "-o", "out.pb.gz", "测试.cairn"]);
    assert!(scratch.out(&["report", "out.pb.gz"]).contains("KiB"));
    scratch.out(&["pack", "--sums", "always", "-o", "新.cairn", "spool.cairn"]);
    assert!(scratch.out(&["report", "新.cairn"]).contains("263.2 KiB"));
    assert!(scratch.out(&["diff", "测试.cairn", "新.cairn"]).contains("peak"));
    assert!(scratch.out(&["play", "测试.cairn"]).contains("program"));
    assert!(scratch.out(&["top", "--once", "测试.cairn"]).contains("program"));
    // A file is replaced by demand only.
    let refused = scratch.cairn().args(["flame", "-o", "图.svg", "测试.cairn"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    assert!(errors(&refused).contains("--force"), "{refused:?}");
    scratch.out(&["flame", "--force", "-o", "图.svg", "测试.cairn"]);
    let refused =
        scratch.cairn().args(["pack", "--force", "-o", ".\\新.cairn", "missing.cairn"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    let mut names: Vec<String> = fs::read_dir(&scratch.0)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name != "local")
        .collect();
    names.sort();
    assert_eq!(names, ["out.pb.gz", "spool.cairn", "图.svg", "新.cairn", "测试.cairn", "页.html"]);
}

#[test]
fn recording_is_read_while_another_program_has_it_open() {
    let scratch = Scratch::new("open");
    fs::copy(packed(), scratch.at("open.cairn")).unwrap();
    let held = fs::File::options().read(true).write(true).open(scratch.at("open.cairn")).unwrap();
    assert!(scratch.out(&["report", "open.cairn"]).contains("263.2 KiB"));
    assert!(scratch.out(&["play", "open.cairn"]).contains("program"));
    drop(held);
}

#[test]
fn output_goes_to_long_paths_and_to_the_null_device() {
    let scratch = Scratch::new("long");
    fs::copy(packed(), scratch.at("a.cairn")).unwrap();
    let mut deep = scratch.0.clone();
    while deep.as_os_str().len() < 400 {
        deep.push("a directory with a long name, one of several");
    }
    fs::create_dir_all(&deep).unwrap();
    let path = deep.join("flame.svg");
    scratch.out(&["flame", "-o", path.to_str().unwrap(), "a.cairn"]);
    assert!(fs::read_to_string(&path).unwrap().contains("<svg"));
    let copy = deep.join("copy.cairn");
    fs::copy(packed(), &copy).unwrap();
    assert!(scratch.out(&["report", copy.to_str().unwrap()]).contains("263.2 KiB"));
    scratch.out(&["flame", "--folded", "-o", "NUL", "a.cairn"]);
    assert!(!fs::read_dir(&scratch.0).unwrap().any(|entry| entry.unwrap().file_name() == "NUL"));
}

#[test]
fn pipes_carry_recordings_byte_by_byte() {
    let scratch = Scratch::new("pipes");
    let bytes = fs::read(packed()).unwrap();
    let with_stdin = |words: &[&str]| {
        let mut command = scratch.cairn();
        command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(&bytes).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(matches!(output.status.code(), Some(0 | 3)), "{words:?}: {output:?}");
        output.stdout
    };
    let report = String::from_utf8(with_stdin(&["report", "-"])).unwrap();
    assert!(report.contains("263.2 KiB"), "{report}");
    // Neither a newline nor a ctrl-Z in the bytes is changed.
    let packed_again = with_stdin(&["pack", "-", "-o", "-"]);
    fs::write(scratch.at("again.cairn"), packed_again).unwrap();
    assert!(scratch.out(&["report", "again.cairn"]).contains("263.2 KiB"));
}

#[test]
fn text_has_no_carriage_returns_and_input_may_have_them() {
    let scratch = Scratch::new("lines");
    let log = fs::read_to_string(fixtures().join("device/device.log")).unwrap();
    let elf = fixtures().join("device/app.elf");
    let elf = elf.to_str().unwrap();
    fs::write(scratch.at("unix.log"), &log).unwrap();
    fs::write(scratch.at("windows.log"), log.replace('\n', "\r\n")).unwrap();
    let of_unix = scratch.out(&["decode", "-e", elf, "unix.log"]);
    let of_windows = scratch.out(&["decode", "-e", elf, "windows.log"]);
    assert!(of_unix.contains("serve_client at ./app.c:109") && !of_unix.contains('\r'), "{of_unix}");
    assert_eq!(of_unix, of_windows.replace("\r\n", "\n"));
    // Users write this one by hand.
    fs::copy(packed(), scratch.at("a.cairn")).unwrap();
    fs::write(scratch.at(".cairn.toml"), "mine = [\"crate=shop\"]\r\nsuppressions = [\"leak:nothing\"]\r\n")
        .unwrap();
    assert!(scratch.out(&["report", "a.cairn"]).contains("263.2 KiB"));
}

#[test]
fn colours_are_for_consoles_and_for_those_who_ask() {
    let scratch = Scratch::new("colours");
    fs::copy(packed(), scratch.at("a.cairn")).unwrap();
    assert!(!scratch.out(&["report", "a.cairn"]).contains('\x1b'));
    assert!(scratch.out(&["report", "--color", "always", "a.cairn"]).contains("\x1b["));
    let refused = scratch.cairn().args(["report", "missing.cairn"]).output().unwrap();
    assert!(!errors(&refused).contains('\x1b'), "{refused:?}");
}

#[test]
fn programs_are_named_from_pdb_and_dwarf() {
    let scratch = Scratch::new("symbols");
    let pdb = fixtures().join("symbol-kinds\\pdb\\program.exe");
    let answer = scratch.out(&["symbolize", "-e", pdb.to_str().unwrap(), "0x140001030"]);
    assert!(answer.contains("shapes::area(double) at /build/program.cpp:19"), "{answer}");
    // Named by the drive that wine has for the whole file system, as others name C:.
    let mingw = fs::canonicalize(fixtures().join("symbol-kinds/mingw/mingw.exe")).unwrap();
    let truth = fs::read_to_string(fixtures().join("symbol-kinds/mingw/mingw.exe.truth")).unwrap();
    let (range, names) = truth
        .lines()
        .filter_map(|line| line.split_once(' '))
        .find(|(_, names)| names.contains("area"))
        .expect("the fixture has an area");
    let address = range.split_once('-').unwrap().0;
    let function = names.split('@').next().unwrap();
    let answer = scratch.out(&["symbolize", "-e", mingw.to_str().unwrap(), &format!("0x{address}")]);
    assert!(answer.contains(function), "{function}: {answer}");
}

/// The program is `windows.c` of `cairn-c`, linked with either form of the library.
///
/// `cargo xtask windows` compiles both.
#[test]
fn recordings_of_c_programs_are_exact() {
    let Some(directory) = std::env::var_os("CAIRN_WINDOWS_LIBRARIES").map(PathBuf::from) else {
        println!("skipped: CAIRN_WINDOWS_LIBRARIES is not set");
        return;
    };
    let scratch = Scratch::new("c");
    for name in ["c_shared.exe", "c_static.exe"] {
        let recording = scratch.at(&format!("{name}.cairn"));
        let output = Command::new(directory.join(name)).arg(&recording).output().unwrap();
        assert!(output.status.success(), "{name}: {output:?}");
        assert_eq!(String::from_utf8(output.stdout).unwrap().trim(), "11600");
        let recording = recording.to_str().unwrap();
        let report: serde_json::Value =
            serde_json::from_str(&scratch.out(&["report", "--json", recording])).unwrap();
        for (count, expected) in [
            ("total_allocations", 200),
            ("total_bytes", 11_600),
            ("total_frees", 100),
            ("leaked_bytes", 10_000),
            ("peak_bytes", 10_016),
            ("unmatched_frees", 0),
        ] {
            assert_eq!(report[count], expected, "{name}: {count}");
        }
        assert_eq!(report["top"][0]["function"], "make_body", "{name}: {}", report["top"]);
        let played = scratch.out(&["play", "--stacks", recording]);
        for mark in ["\"begin\"", "\"times\" = 100", "\"half\" = 50"] {
            let at = played.find(mark).unwrap_or_else(|| panic!("{name}: no {mark} in {played}"));
            let frames: Vec<&str> = played[at..].lines().skip(1).take(2).collect();
            assert!(frames[0].ends_with(": work") && frames[1].ends_with(": wmain"), "{name}: {frames:?}");
        }
    }
}

#[test]
fn indexes_of_symbols_lie_in_the_local_application_data() {
    let scratch = Scratch::new("cache");
    let program = fixtures().join("symbols/bin/dwarf5");
    // It is too small for an index; the lock of the builder shows the directory.
    scratch.out(&["symbolize", "--index-only", program.to_str().unwrap()]);
    assert!(scratch.at("local\\cairn\\symbols\\.builder.lock").is_file());
    let answer = scratch.out(&["symbolize", "-e", program.to_str().unwrap(), "0x401150"]);
    assert!(answer.starts_with("0x401150"), "{answer}");
    let without = scratch
        .cairn()
        .env_remove("LOCALAPPDATA")
        .args(["symbolize", "--index-only"])
        .arg(&program)
        .output()
        .unwrap();
    assert!(errors(&without).contains("set LOCALAPPDATA"), "{without:?}");
}

#[test]
fn images_of_memory_are_opened() {
    let scratch = Scratch::new("images");
    let dump = fixtures().join("minidumps\\crashpad.dmp");
    let answer = scratch.cairn().args(["core", "--stacks"]).arg(&dump).output().unwrap();
    let text = String::from_utf8_lossy(&answer.stdout).into_owned();
    assert!(
        text.starts_with("minidump, process 29345, x86-64: 5.3 KiB of memory, 1 thread, 4 modules"),
        "{answer:?}"
    );
    assert!(text.contains("#0  0x00005601b8596330"), "{text}");
}

#[test]
fn commands_that_need_linux_say_so() {
    let scratch = Scratch::new("linux");
    let cases: [&[&str]; 4] =
        [&["snapshot", "4711"], &["core", "--pid", "4711"], &["top", "4711"], &["view", "4711"]];
    for words in cases {
        let output = scratch.cairn().args(words).output().unwrap();
        assert!(matches!(output.status.code(), Some(1 | 2)), "{words:?}: {output:?}");
        assert!(errors(&output).contains("on Linux only"), "{words:?}: {output:?}");
        assert!(output.stdout.is_empty(), "{words:?}: {output:?}");
    }
}

#[test]
fn view_serves_the_page_to_the_printed_address() {
    let scratch = Scratch::new("view");
    fs::copy(packed(), scratch.at("测试.cairn")).unwrap();
    let mut command = scratch.cairn();
    command.args(["view", "--no-open", "测试.cairn"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut server = command.spawn().unwrap();
    let mut lines = BufReader::new(server.stdout.take().unwrap()).lines();
    let url = lines
        .find_map(|line| {
            line.unwrap().split_whitespace().find(|word| word.starts_with("http://")).map(str::to_owned)
        })
        .expect("it prints the address");
    let (host, path) = url.strip_prefix("http://").unwrap().split_once('/').unwrap();
    let mut connection = TcpStream::connect(host).unwrap();
    write!(connection, "GET /{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).unwrap();
    server.kill().unwrap();
    server.wait().unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(answer.contains("<!doctype html>"), "{answer}");
}
