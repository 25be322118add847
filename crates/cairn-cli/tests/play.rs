//! `cairn play` with cairn's own recordings, which are made here byte by byte.

#![cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "files grow on Linux alone"))]

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use cairn_format::recording::{LossKind, MarkValue, PcKind};
use cairn_recording::spool_builder::{BuiltFrame, BuiltModule, SpoolBuilder};
use cairn_recording::{Recording, pack};
use serde_json::Value;
use snapbox::cmd::{Command, cargo_bin};
use snapbox::{file, str};

fn cairn() -> Command {
    let repository = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    Command::new(cargo_bin!("cairn")).current_dir(repository).env("COLUMNS", "100").env("NO_COLOR", "1")
}

/// 2018-04-08T20:05:44Z.
const START: u64 = 1_523_217_944_000_000_000;
const MILLI: u64 = 1_000_000;

/// The build id of `fixtures/device/app.elf`, which is loaded where it states to be.
const APP_BUILD: &[u8] = &[
    0xda, 0x63, 0x19, 0x84, 0x04, 0xa6, 0x11, 0x4c, 0x8e, 0xa2, 0x7c, 0x5f, 0x69, 0x93, 0x34, 0x18, 0xec,
    0xf5, 0xc0, 0xdd,
];

fn returns(address: u64, module: BuiltModule) -> BuiltFrame {
    BuiltFrame { kind: PcKind::ReturnAddress, address, module }
}

/// Writes a recording with replaced modules, marks of two threads, a loss, and hostile names.
fn recording(app_build: &[u8]) -> Vec<u8> {
    let mut spool = SpoolBuilder::new(4711, START);
    spool.fact("command", b"app --serve");
    let app = spool.module_loaded(0, 0x10000..0x22000, 0, app_build, b"/firmware/bin/app.elf");
    let main = spool.thread(0, 4711, b"main");
    let worker = spool.thread(MILLI, 4712, "wörker \"1\"\x1b[31m".as_bytes());
    let b = spool.module_loaded(
        2 * MILLI,
        0x7f00_0000..0x7f00_4000,
        0x7f00_0000,
        b"",
        "/opt/模块/libb.so.1".as_bytes(),
    );
    let run = [returns(0x104a8, app), returns(0x10538, app)];

    let with = |inner: &[BuiltFrame]| [inner, &run].concat();
    let in_b = with(&[returns(0x7f00_1234, b), returns(0x103f8, app)]);
    spool.mark(main, 3 * MILLI, &in_b, MarkValue::None, b"in b");
    spool.module_unloaded(4 * MILLI, b);
    let nowhere = with(&[returns(0x7f00_1234, BuiltModule::NONE), returns(0x103f8, app)]);
    spool.mark(worker, 5 * MILLI, &nowhere, MarkValue::Integer(-42), b"in nothing");
    let d =
        spool.module_loaded(6 * MILLI, 0x7f00_1000..0x7f00_9000, 0x7f00_1000, b"\x01\x02", b"/opt/libd.so");
    spool.mark(main, 7 * MILLI, &with(&[returns(0x7f00_1234, d)]), MarkValue::Float(0.5), b"in d");
    let b_again = spool.module_loaded(
        8 * MILLI,
        0x7f10_0000..0x7f10_4000,
        0x7f10_0000,
        b"",
        "/opt/模块/libb.so.1".as_bytes(),
    );
    let again = with(&[returns(0x7f10_1234, b_again), returns(0x103f8, app)]);
    spool.mark(worker, 9 * MILLI, &again, MarkValue::None, b"\x1b]0;evil\x07");
    spool.mark(
        main,
        10 * MILLI,
        &with(&[returns(0x10338, app), returns(0x103f8, app)]),
        MarkValue::None,
        b"inlined",
    );
    let cut = [
        BuiltFrame { kind: PcKind::ProgramCounter, address: 0x102f4, module: app },
        BuiltFrame { kind: PcKind::NoUnwindInfo, address: 0x102f4, module: app },
    ];
    spool.mark(main, 11 * MILLI, &cut, MarkValue::None, b"");
    spool.lost(main, 11 * MILLI, LossKind::NoStorage, 3);
    spool.mark(main, 12 * MILLI, &[], MarkValue::Integer(7), b"no stack");
    spool.finish(13 * MILLI)
}

fn file(name: &str, bytes: &[u8]) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::write(&path, bytes).unwrap();
    path
}

fn output(arguments: &[&str], path: &Path) -> (String, String, i32) {
    let output = cairn().arg("play").args(arguments).arg(path).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (text(output.stdout), text(output.stderr), output.status.code().unwrap())
}

const NAMED: [&str; 2] = ["--symbols", "fixtures/device"];

#[test]
fn events_are_played_in_order_with_the_names_of_their_time() {
    let path = file("order.cairn", &recording(APP_BUILD));
    let play = |arguments: &[&str]| cairn().arg("play").arg(&path).args(NAMED).args(arguments).assert();
    play(&[]).code(0).stdout_eq(file!["snapshots/play.txt"]).stderr_eq(str![[r#"
cairn: [..]order.cairn: 3 events were lost: no storage was left
cairn: libb.so.1: no symbols: /opt/模块/libb.so.1 was not opened, because no build id was recorded for it; --allow-mismatch opens it, --symbols searches a directory
cairn: libd.so: no symbols: no such file: /opt/libd.so

"#]]);
    play(&["--json"]).code(0).stdout_eq(file!["snapshots/play.jsonl"]);
    play(&["--modules"]).code(0).stdout_eq(file!["snapshots/play-modules.txt"]);
    play(&["--modules", "--json", "--module", "libb"])
        .code(0)
        .stdout_eq(file!["snapshots/play-modules.jsonl"]);
    play(&["--collapse", "--time", "relative"]).code(0).stdout_eq(file!["snapshots/play-collapse.txt"]);
}

#[test]
fn a_packed_recording_plays_as_the_spool_it_was() {
    let bytes = recording(APP_BUILD);
    let mut packed = Vec::new();
    pack(&Recording::from_bytes(bytes.clone()).unwrap(), &mut packed).unwrap();
    let (spool, packed) = (file("shape-spool.cairn", &bytes), file("shape-packed.cairn", &packed));
    for arguments in
        [&[][..], &["--json"], &["--modules"], &["--from", "6ms", "--to", "9ms"], &["--collapse"]]
    {
        let arguments = [&NAMED[..], arguments].concat();
        let [spool, packed] = [&spool, &packed].map(|path| output(&arguments, path));
        assert_eq!((spool.0, spool.2), (packed.0, packed.2), "{arguments:?}");
    }
}

#[test]
fn filters_choose_events() {
    let path = file("filters.cairn", &recording(APP_BUILD));
    let texts = |arguments: &[&str]| {
        let (lines, _, code) = output(&[&NAMED[..], &["--json", "--stacks"], arguments].concat(), &path);
        assert_eq!(code, 0);
        let line = |line: &str| serde_json::from_str::<Value>(line).unwrap();
        let text = |line: Value| line["text"].as_str().unwrap_or("-").to_owned();
        lines.lines().map(line).map(text).collect::<Vec<_>>()
    };
    assert_eq!(texts(&["--thread", "4712"]), ["in nothing", "\x1b]0;evil\x07"]);
    assert_eq!(texts(&["--thread", "main", "--to", "8ms"]), ["in b", "in d"]);
    assert_eq!(texts(&["--module", "libb"]), ["in b", "\x1b]0;evil\x07"]);
    assert_eq!(texts(&["--module", "/opt/libd.so", "--module", "nosuch"]), ["in d"]);
    assert_eq!(texts(&["--match", "^make_header$"]), ["inlined"]);
    assert_eq!(texts(&["--match", "^open_session$"]), ["-"]);
    assert_eq!(texts(&["--match", "thing$"]), ["in nothing"]);
    assert_eq!(texts(&["--match", "模块"]), ["in b", "\x1b]0;evil\x07"]);
    assert_eq!(
        texts(&["--from", "2018-04-08T20:05:44.009Z", "--to", "10.5ms"]),
        ["\x1b]0;evil\x07", "inlined"]
    );
    assert_eq!(texts(&["--from", "2018-04-08T22:05:44.009+02:00", "--to", "10ms"]), ["\x1b]0;evil\x07"]);
    assert!(texts(&["--match", "make_header", "--no-symbols"]).is_empty());
}

#[test]
fn play_reports_files_of_another_build_and_skips_them() {
    let path = file("another-build.cairn", &recording(&[0xab; 20]));
    let stack = ["--from", "10ms", "--to", "10.5ms", "--symbols", "fixtures/device"];
    let (text, answer, code) = output(&stack, &path);
    assert!(text.contains("\"app.elf\"! 0x10338: app.elf+0x338\n"), "{text}");
    assert!(!text.contains("make_header"), "{text}");
    let expected = "app.elf: a file was not used: fixtures/device/app.elf is of a different build: its build id is \
                    da63198404a6114c8ea27c5f69933418ecf5c0dd, recorded was abababababababababababababababababababab";
    assert!(answer.replace('\\', "/").contains(expected), "{answer}");
    assert_eq!(code, 0);

    let (text, answer, _) = output(&[&stack[..], &["--allow-mismatch"]].concat(), &path);
    assert!(text.contains("./app.c(81): make_header [inlined]\n"), "{text}");
    assert!(answer.contains("app.elf: names may be wrong: "), "{answer}");
}

#[test]
fn symbols_may_lie_elsewhere() {
    let path = file("elsewhere.cairn", &recording(APP_BUILD));
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join("root");
    fs::create_dir_all(root.join("firmware/bin")).unwrap();
    fs::create_dir_all(root.join("debug/.build-id/da")).unwrap();
    let app = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/device/app.elf");
    fs::copy(app, root.join("firmware/bin/app.elf")).unwrap();
    fs::copy(app, root.join("debug/.build-id/da/63198404a6114c8ea27c5f69933418ecf5c0dd.debug")).unwrap();
    let root = root.to_str().unwrap();
    let map = format!("/firmware={root}/firmware");
    let debug = format!("{root}/debug");
    for place in [["--sysroot", root], ["--map-path", &map], ["--debug-dir", &debug]] {
        let (text, _, _) = output(&[&["--from", "10ms", "--to", "10.5ms"], &place[..]].concat(), &path);
        assert!(text.contains("./app.c(81): make_header [inlined]\n"), "{place:?}: {text}");
    }
    // With a root of its own nothing outside of that is opened.
    let (text, _, _) = output(&["--sysroot", "/nonexistent", "--from", "10ms"], &path);
    assert!(!text.contains("make_header"), "{text}");
}

#[test]
fn cut_anywhere_everything_readable_is_printed() {
    let bytes = recording(APP_BUILD);
    let whole = output(&["--no-symbols", "--stacks"], &file("whole.cairn", &bytes)).0;
    let mut codes = Vec::new();
    // At each block, in each, and inside of the header.
    let cuts = (0..bytes.len()).step_by(4099).chain([1, 8, 63, 64, 65535, 65536, bytes.len() - 1]);
    for length in cuts {
        let (text, answer, code) =
            output(&["--no-symbols", "--stacks"], &file("cut.cairn", &bytes[..length]));
        for line in text.lines().filter(|line| line.contains("thread 471")) {
            assert!(whole.contains(line.split(" \"").next().unwrap()), "{length}: invented: {line}");
        }
        // Events lost during recording are no fault of the file.
        let of_file = answer.lines().filter(|line| !line.contains("3 events were lost"));
        assert_eq!(code == 0, of_file.count() == 0, "{length}: {code} {answer}");
        assert!(matches!(code, 0 | 1 | 3), "{length}: {code} {answer}");
        codes.push(code);
    }
    assert!(codes.contains(&1) && codes.contains(&3), "{codes:?}");
}

#[test]
fn a_recording_comes_through_a_pipe() {
    let bytes = recording(APP_BUILD);
    let path = file("pipe.cairn", &bytes);
    let expected = output(&["--no-symbols"], &path).0;
    let output = cairn().args(["play", "-", "--no-symbols"]).stdin(bytes).output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
}

/// `cairn play --follow` of a file, running.
struct Following {
    child: std::process::Child,
    output: BufReader<std::process::ChildStdout>,
}

impl Following {
    fn start(path: &Path, arguments: &[&str]) -> Self {
        let mut command = std::process::Command::new(cargo_bin!("cairn"));
        command.args(["play", "--follow", "--json", "--stacks", "--no-symbols"]).args(arguments).arg(path);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { child, output }
    }

    /// The text of the next mark.
    fn next(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        text_of(&line)
    }

    /// The texts of all that follows, and the exit code.
    fn rest(mut self) -> (Vec<String>, i32) {
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).unwrap();
        (rest.lines().map(text_of).collect(), self.child.wait().unwrap().code().unwrap())
    }
}

fn text_of(line: &str) -> String {
    serde_json::from_str::<Value>(line).unwrap()["text"].as_str().unwrap().to_owned()
}

/// Puts a newer state of a recording in the place of the older one, at once.
fn replace(path: &Path, bytes: &[u8]) {
    let new = path.with_extension("new");
    fs::write(&new, bytes).unwrap();
    fs::rename(new, path).unwrap();
}

fn wall_now() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    u64::try_from(since.as_nanos()).unwrap()
}

#[cfg(target_os = "linux")]
#[test]
fn a_growing_recording_is_followed_to_its_end() {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("follow.cairn");
    let mut spool = SpoolBuilder::new(std::process::id(), wall_now() - 1_000 * MILLI);
    let threads = [1, 2].map(|thread| spool.thread(0, thread, b""));
    let mark = |spool: &mut SpoolBuilder, thread: usize, millis: u64, text: &str| {
        let frame = returns(millis, BuiltModule::NONE);
        spool.mark(threads[thread], millis * MILLI, &[frame], MarkValue::None, text.as_bytes());
    };
    mark(&mut spool, 0, 10, "first");
    // Later than now: a reader that starts now waits, because the other thread may have written
    // earlier events meanwhile.
    mark(&mut spool, 0, 3_000_000, "late");
    replace(&path, &spool.so_far());
    let mut following = Following::start(&path, &[]);
    assert_eq!(following.next(), "first");
    mark(&mut spool, 1, 20, "second");
    replace(&path, &spool.so_far());
    let next = following.next();
    // At its second look what was late at the first one is there.
    let mut seen = vec![next, following.next()];
    seen.sort();
    assert_eq!(seen, ["late", "second"]);
    mark(&mut spool, 1, 4_000_000, "third");
    replace(&path, &spool.finish(4_000_001 * MILLI));
    assert_eq!(following.rest(), (vec!["third".to_owned()], 0));
}

#[cfg(target_os = "linux")]
#[test]
fn following_ends_with_the_recorded_program() {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("follow-killed.cairn");
    let mut program = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
    let mut spool = SpoolBuilder::new(program.id(), wall_now());
    let thread = spool.thread(0, 1, b"");
    spool.mark(thread, 0, &[returns(1, BuiltModule::NONE)], MarkValue::None, b"alive");
    replace(&path, &spool.so_far());
    let mut following = Following::start(&path, &[]);
    assert_eq!(following.next(), "alive");
    spool.mark(thread, 1, &[returns(2, BuiltModule::NONE)], MarkValue::None, b"last words");
    replace(&path, &spool.so_far());
    program.kill().unwrap();
    program.wait().unwrap();
    assert_eq!(following.rest(), (vec!["last words".to_owned()], 0));
}

#[test]
fn play_refuses_to_follow_finished_files() {
    let mut spool = SpoolBuilder::new(1, START);
    spool.fact("mode", b"ring");
    let ring = file("ring.cairn", &spool.finish(0));
    cairn().args(["play", "--follow"]).arg(&ring).assert().code(1).stderr_eq(str![[r#"
cairn: [..]ring.cairn: cannot be followed: a ring forgets its oldest events while it is read; play it without --follow

"#]]);
    cairn().args(["play", "--follow", "--modules", "x"]).assert().code(2);
}
