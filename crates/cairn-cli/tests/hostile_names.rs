//! Names from strangers on a terminal: no control or direction character of them gets there,
//! whatever the command and its style.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

#[path = "../../cairn-recording/tests/support/spool.rs"]
mod spool;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use cairn_format::changes_its_surroundings;
use cairn_format::recording::{Lane, LoadedModule, MarkValue, PcKind, ThreadEvent};
use spool::{Program, START};

/// A name of hostile characters.
///
/// It contains a title, a colour that cairn does not use, a beep, a backspace, C1, right to left,
/// an isolate, a tag, and characters without a width.
const EVIL: &str = "evil\u{1b}]0;owned\u{7}\u{1b}[35mx\u{8}\u{9b}2J\u{7f}\u{202e}lmth\u{2066}\u{61c}\u{200b}\u{feff}\u{e0041}end";

struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let path =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("hostile-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, bytes).unwrap();
        path
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A process, ended with this value.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the bytes that `cairn` writes to a terminal.
fn on_terminal(directory: &Path, arguments: &[&str]) -> Vec<u8> {
    let quoted: Vec<String> =
        arguments.iter().map(|word| format!("'{}'", word.replace('\'', "'\\''"))).collect();
    let line = format!("stty rows 50 cols 200; exec '{}' {}", env!("CARGO_BIN_EXE_cairn"), quoted.join(" "));
    let output = Command::new("script")
        .args(["-qfec", &line, "/dev/null"])
        .current_dir(directory)
        .env("TERM", "xterm-256color")
        .env("SHELL", "/bin/sh")
        .env("CLICOLOR_FORCE", "1")
        .env_remove("COLUMNS")
        .env_remove("NO_COLOR")
        .stdin(Stdio::null())
        .output()
        .expect("script is there");
    output.stdout
}

/// Takes away what cairn itself sends: colours, and what a line that is drawn anew needs. Anything
/// else is an answer.
fn own_sequences_gone(bytes: &[u8]) -> String {
    let text = String::from_utf8(bytes.to_vec())
        .unwrap_or_else(|error| panic!("raw bytes reached the terminal: {error}: {}", bytes.escape_ascii()));
    let mut rest = text.replace("\r\n", "\n").replace("\r\u{1b}[", "\u{1b}[").replace(['\n', '\t'], " ");
    for number in ["0", "1", "2", "4", "31", "32", "33", "1;31"] {
        rest = rest.replace(&format!("\u{1b}[{number}m"), "");
    }
    for drawing in ["\u{1b}[K", "\u{1b}[2K", "\u{1b}[1A", "\u{1b}[1B", "\r"] {
        rest = rest.replace(drawing, "");
    }
    rest
}

/// Returns the shown text, which must be harmless.
fn harmless(directory: &Path, arguments: &[&str]) -> String {
    let shown = own_sequences_gone(&on_terminal(directory, arguments));
    if let Some(found) = shown.chars().find(|&character| changes_its_surroundings(character)) {
        panic!(
            "{} reached the terminal: cairn {arguments:?}:\n{}",
            found.escape_unicode(),
            shown.escape_debug()
        );
    }
    shown
}

/// Commands that show the names, and show them escaped.
fn check(directory: &Path, commands: &[&[&str]]) {
    for arguments in commands {
        let shown = harmless(directory, arguments);
        assert!(shown.contains(r"\u{202e}"), "no name is shown: cairn {arguments:?}:\n{shown}");
    }
}

/// A recording in which everything that has a name has this one.
fn recording() -> Vec<u8> {
    let mut program = Program::new(2, 1);
    let spool = &mut program.spool;
    spool.facts(&[("argument", EVIL), ("argument", EVIL), ("executable", EVIL), ("host", EVIL)]);
    let path = format!("/tmp/{EVIL}");
    spool.write(1, Lane::Outer, START, |sink| {
        sink.module_loaded(&LoadedModule {
            number: 1,
            counter: START,
            start: 0x10000,
            end: 0x20000,
            bias: 0,
            build_id: &[],
            path: path.as_bytes(),
        })
    });
    for (number, address) in [(1, 0x10100), (2, 0x10200)] {
        spool.write(1, Lane::Outer, START, |sink| sink.pc(number, PcKind::ReturnAddress, address, 1));
    }
    let stack = spool.segment(1, 1, 0, &[1, 2]);
    for thread in [1, 2] {
        spool.write(thread, Lane::Outer, START, |sink| {
            sink.thread(START, ThreadEvent::Named(EVIL.as_bytes()))
        });
    }
    spool.write(1, Lane::Outer, START, |sink| sink.mark(START, stack, 0, MarkValue::None, EVIL.as_bytes()));
    for size in 1..50 {
        program.counter = START + size * 3_000_000;
        program.alloc(1 + (size % 2) as u32, size, stack);
    }
    program.finish()
}

fn heaptrack() -> String {
    let length = EVIL.len();
    let path = format!("/lib/{EVIL}");
    format!(
        "v 10400 3\nX {EVIL}\nI 1000 100\ns {:x} {path}\ns {length:x} {EVIL}\ns {:x} {path}\ni 1000 1 2 3 7\nt 1 0\na 64 1\n+ 0\n+ 0\nc a\n",
        path.len(),
        path.len(),
    )
}

// Failed with: direction characters in every command, and all bytes of exports.
#[test]
fn recordings_reach_no_terminal_unescaped() {
    let directory = Directory::new("recordings");
    directory.write("app.cairn", &recording());
    directory.write("it.heaptrack", heaptrack().as_bytes());
    directory.write("more.heaptrack", format!("{}+ 0\n+ 0\n", heaptrack()).as_bytes());
    check(
        &directory.0,
        &[
            &["report", "app.cairn"],
            &["report", "app.cairn", "--by", "thread"],
            &["report", "app.cairn", "--by", "module"],
            &["report", "app.cairn", "--by", "callers"],
            &["report", "app.cairn", "--by", "tree"],
            &["report", "app.cairn", "--by", "stack"],
            &["report", "app.cairn", "--json"],
            &["report", "it.heaptrack"],
            &["report", "it.heaptrack", "--json"],
            &["diff", "it.heaptrack", "more.heaptrack"],
            &["diff", "it.heaptrack", "more.heaptrack", "--json"],
            &["flame", "it.heaptrack", "--folded", "-o", "-"],
            &["play", "app.cairn"],
            &["play", "app.cairn", "--heap"],
            &["play", "app.cairn", "--collapse"],
            &["play", "app.cairn", "--modules"],
            &["play", "app.cairn", "--json"],
            &["top", "app.cairn", "--once"],
        ],
    );
    for format in [
        "pprof",
        "firefox",
        "speedscope",
        "heapprofile",
        "folded",
        "heaptrack",
        "dhat",
        "otlp",
        "csv",
        "jsonl",
    ] {
        harmless(&directory.0, &["export", "it.heaptrack", "--to", format, "-o", "-"]);
    }
    harmless(&directory.0, &["pack", "app.cairn", "-o", "-"]);
    check(
        &directory.0,
        &[
            &["export", "it.heaptrack", "--to", "csv", "-o", "-"],
            &["export", "it.heaptrack", "--to", "jsonl", "-o", "-"],
        ],
    );
}

// Failed with: the bytes of the file in all styles but cairn's own.
#[test]
fn symbols_reach_no_terminal_unescaped() {
    let directory = Directory::new("symbols");
    let text = format!("MODULE Linux x86_64 0 {EVIL}\nFILE 0 /src/{EVIL}.c\nFUNC 0 10 0 {EVIL}\n0 10 7 0\n");
    directory.write("it.sym", text.as_bytes());
    for style in ["cairn", "addr2line", "LLVM", "GNU", "JSON", "jsonl"] {
        let shown =
            harmless(&directory.0, &["symbolize", "-e", "it.sym", "--output-style", style, "-f", "0x4"]);
        assert!(shown.contains("202e") || shown.contains("invalid value"), "{style}: {shown}");
    }
    check(&directory.0, &[&["symbolize", "--addr2line", "-e", "it.sym", "-f", "-s", "0x4"]]);
}

// Failed with: the log's own sequences.
#[test]
fn logs_reach_no_terminal_unescaped() {
    let directory = Directory::new("logs");
    let mut log = format!("plain {EVIL}\r\n~m#AAAA {EVIL}\n").into_bytes();
    log.extend(b"raw \x9b2J \xff\n");
    directory.write("device.log", &log);
    let image = workspace().join("fixtures/device/app.elf");
    let map = format!(r#"{{"platform":"{0}","images":[]}}"#, EVIL);
    directory.write("map.json", map.as_bytes());
    check(
        &directory.0,
        &[
            &["decode", "--keep", "device.log"],
            &["decode", "--keep", "-e", image.to_str().unwrap(), "device.log"],
        ],
    );
    for arguments in [
        &["decode", "map.json"][..],
        &["decode", "--json", "device.log"],
        &["decode", "--totals", "device.log"],
    ] {
        harmless(&directory.0, arguments);
    }
    let shown = harmless(&directory.0, &["decode", "--keep", "device.log"]);
    assert!(shown.contains(r"raw \x9b2J \xff"), "{shown}");
}

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

// Failed with: the arguments as they are, in what the parser of arguments complains of, and
// direction characters in all others.
#[test]
fn arguments_reach_no_terminal_unescaped() {
    let directory = Directory::new("arguments");
    let commands = [
        "report",
        "diff",
        "flame",
        "play",
        "pack",
        "export",
        "top",
        "view",
        "core",
        "symbolize",
        "decode",
        "heap",
        "snapshot",
    ];
    for command in commands {
        let missing: &[&str] = match command {
            "diff" => &["diff", EVIL, EVIL],
            "flame" => &["flame", "--format", "folded", EVIL],
            "symbolize" => &["symbolize", "-e", EVIL, "0x1"],
            "heap" => &["heap", "--", EVIL],
            "export" => &["export", EVIL, "--to", "pprof"],
            _ => &[command, EVIL],
        };
        check(&directory.0, &[missing]);
        let option = format!("--{EVIL}");
        check(&directory.0, &[&[command, &option]]);
    }
    check(
        &directory.0,
        &[&[EVIL], &["report", "x.cairn", "--limit", EVIL], &["report", "x.cairn", "--filter", EVIL]],
    );
    harmless(&directory.0, &["completions", "bash"]);
    harmless(&directory.0, &["--help"]);
}

// Failed with: direction characters of the file names, and of the program's.
#[test]
fn file_names_reach_no_terminal_unescaped() {
    let directory = Directory::new("files");
    let name = format!("{EVIL}.cairn");
    directory.write(&name, &recording());
    directory.write(&format!("2{name}"), &recording());
    directory.write("damaged.cairn", &recording()[..9000]);
    check(
        &directory.0,
        &[
            &["report", &name],
            &["play", &name],
            &["pack", &name, "-o", EVIL],
            &["export", &name, "--to", "csv", "-o", &format!("{EVIL}.csv")],
            &["top", "."],
        ],
    );
    let program = format!("{EVIL}-program");
    fs::copy("/bin/true", directory.0.join(&program)).unwrap();
    check(&directory.0, &[&["heap", "-o", &format!("{EVIL}-%p.cairn"), "--", &format!("./{program}")]]);
}

// Failed with: direction characters of the command line and of the thread's name.
#[test]
fn processes_reach_no_terminal_unescaped() {
    let directory = Directory::new("processes");
    let sleeps = format!("{EVIL}-sleep");
    fs::copy("/bin/sleep", directory.0.join(&sleeps)).unwrap();
    let process = Command::new(directory.0.join(&sleeps)).arg("1000").spawn().unwrap();
    let running = Running(process);
    let id = running.0.id().to_string();
    check(&directory.0, &[&["snapshot", &id], &["snapshot", &id, "--json"], &["core", "--pid", &id]]);
    drop(running);
}

// Failed with: nothing; what a program reads stays as the format demands.
#[test]
fn pipes_get_the_names_of_machine_formats_unchanged() {
    let directory = Directory::new("pipes");
    directory.write("it.heaptrack", heaptrack().as_bytes());
    let text = format!("MODULE Linux x86_64 0 x\nFUNC 0 10 0 {EVIL}\n");
    directory.write("it.sym", text.as_bytes());
    for arguments in [
        &["export", "it.heaptrack", "--to", "folded", "-o", "-"][..],
        &["export", "it.heaptrack", "--to", "csv", "-o", "-"],
        &["symbolize", "--addr2line", "-e", "it.sym", "-f", "0x4"],
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_cairn"))
            .args(arguments)
            .current_dir(&directory.0)
            .output()
            .unwrap();
        assert!(String::from_utf8(output.stdout).unwrap().contains('\u{202e}'), "{arguments:?}");
    }
}
