//! `cairn snapshot`, `cairn core` and `cairn play` of programs in Python and JavaScript.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(clippy::print_stdout, reason = "a test says what it could not check here")]

#[path = "../../cairn-memory/tests/support/asleep.rs"]
mod asleep;

#[allow(dead_code, reason = "it serves other tests too")]
mod support;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use support::{Shown, cairn, run, scratch};

/// A program that has printed a line and ends with the test.
struct Running(Child);

impl Running {
    fn start(command: &mut Command) -> Option<Self> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().ok()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        asleep::wait_until_asleep(child.id());
        Some(Self(child))
    }

    fn id(&self) -> String {
        self.0.id().to_string()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

const PROGRAM: &str = "\
import sys

def inner():
    sys.stdout.write('ready\\n')
    sys.stdout.flush()
    sys.stdin.readline()

def outer():
    return sorted([1], key=lambda _: inner())

outer()
";

/// A Python whose frames are read, at rest in `inner`; `None` if there is none.
fn python(test: &str) -> Option<(std::path::PathBuf, Running)> {
    let directory = scratch(test);
    std::fs::write(directory.join("program.py"), PROGRAM).unwrap();
    let script = "import sys; print(sys.executable if (3, 8) <= sys.version_info < (3, 15) else '')";
    let output = Command::new("python3").args(["-c", script]).output().ok();
    let path = output.map(|output| String::from_utf8(output.stdout).unwrap()).unwrap_or_default();
    if path.trim().is_empty() {
        println!("not checked: no python3 that is supported is installed");
        return None;
    }
    // The program itself, and not a script that chooses a version.
    let mut command = Command::new(path.trim());
    command.arg("program.py").current_dir(&directory);
    Some((directory, Running::start(&mut command).unwrap()))
}

fn shown(arguments: &[&str]) -> Shown {
    Shown::from(run(cairn().args(arguments).env("NO_COLOR", "1")))
}

fn named<'a>(frames: &'a Value, function: &str) -> &'a Value {
    let is_it = |frame: &&Value| {
        frame["function"].as_str().is_some_and(|name| name.rsplit('.').next() == Some(function))
    };
    frames.as_array().unwrap().iter().find(is_it).unwrap_or_else(|| panic!("{function}: {frames:#}"))
}

/// The lines of `inner`, the lambda, `outer` and the module, as the source has them.
const LINES: [(&str, u64); 4] = [("inner", 6), ("<lambda>", 9), ("outer", 9), ("<module>", 11)];

#[test]
fn snapshot_shows_python_frames_and_records_them() {
    let Some((directory, running)) = python("snapshot-python") else { return };
    let recording = directory.join("now.cairn");
    let recorded = shown(&["snapshot", &running.id(), "--json", "-o", recording.to_str().unwrap()]);
    assert_eq!(recorded.status, Some(0), "{recorded:?}");
    let json: Value = serde_json::from_str(&recorded.output).unwrap();
    let frames = &json["threads"][0]["frames"];
    for (function, line) in LINES {
        let frame = named(frames, function);
        assert_eq!(frame["line"].as_u64(), Some(line));
        assert!(frame["file"].as_str().is_some_and(|file| file.ends_with("program.py")));
        assert_eq!((frame["found_by"].as_str(), frame["address"].as_str()), (Some("python"), None));
    }
    let text = shown(&["snapshot", &running.id()]);
    let place = text.output.find("program.py:6").expect("the innermost function");
    assert!(text.output[place..].contains("program.py:9"), "{text:?}");
    drop(running);
    let played = shown(&["play", recording.to_str().unwrap()]);
    assert!(played.output.contains("program.py(6): inner\n"), "{played:?}");
    let played = shown(&["play", recording.to_str().unwrap(), "--json", "--match", "^inner$"]);
    let mark = played.output.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let mark = mark.into_iter().find(|event| event["event"] == "mark").expect("a mark that matches");
    assert_eq!(named(&mark["frames"], "inner")["kind"], "python");
}

#[test]
fn core_shows_python_frames() {
    let Some((directory, running)) = python("core-python") else { return };
    let prefix = directory.join("core");
    let Ok(made) = Command::new("gcore").arg("-o").arg(&prefix).arg(running.id()).output() else {
        println!("not checked: gcore (package gdb) is not installed");
        return;
    };
    let core = directory.join(format!("core.{}", running.id()));
    assert!(core.is_file(), "{made:?}");
    let text = shown(&["core", core.to_str().unwrap(), "--stacks"]);
    assert!(text.output.contains("Python              inner"), "{text:?}");
    let json = shown(&["core", core.to_str().unwrap(), "--stacks", "--json"]);
    let json: Value = serde_json::from_str(&json.output).unwrap();
    for (function, line) in LINES {
        assert_eq!(named(&json["threads"][0]["frames"], function)["line"].as_u64(), Some(line));
    }
}

const SCRIPT: &str = "\
function waitHere(cell) {
    Atomics.wait(cell, 0, 0);
}
console.log('ready');
waitHere(new Int32Array(new SharedArrayBuffer(4)));
";

/// True if a frame has this function of the script.
fn is_named(frames: &Value, function: &str) -> bool {
    frames.as_array().unwrap().iter().any(|frame| {
        frame["function"].as_str() == Some(function)
            && frame["file"].as_str().is_some_and(|file| file.ends_with("program.js"))
    })
}

#[test]
fn snapshot_core_and_play_name_generated_code() {
    let directory = scratch("snapshot-node");
    std::fs::write(directory.join("program.js"), SCRIPT).unwrap();
    let mut command = Command::new("node");
    command.args(["--perf-basic-prof", "--interpreted-frames-native-stack", "program.js"]);
    let Some(running) = Running::start(command.current_dir(&directory)) else {
        println!("not checked: node is not installed");
        return;
    };
    let map = Path::new("/tmp").join(format!("perf-{}.map", running.id()));
    let recording = directory.join("now.cairn");
    let recorded = shown(&["snapshot", &running.id(), "--json", "-o", recording.to_str().unwrap()]);
    let json: Value = serde_json::from_str(&recorded.output).unwrap();
    let main = |json: &Value| json["threads"][0]["frames"].clone();
    assert!(is_named(&main(&json), "waitHere"), "{:#}", main(&json));
    let prefix = directory.join("core");
    let made = Command::new("gcore").arg("-o").arg(&prefix).arg(running.id()).output();
    let id = running.id();
    drop(running);
    // The recording has the names itself.
    let names = directory.join("names.map");
    std::fs::rename(&map, &names).unwrap();
    let played = shown(&["play", recording.to_str().unwrap()]);
    assert!(played.output.contains(": waitHere\n"), "{played:?}");
    if made.is_err() {
        println!("not checked: gcore (package gdb) is not installed");
        return;
    }
    let core = directory.join(format!("core.{id}"));
    let core = core.to_str().unwrap();
    let frames_of = |options: &[&str]| {
        let arguments: Vec<&str> =
            ["core", core, "--stacks", "--json"].iter().chain(options).copied().collect();
        let json = shown(&arguments);
        main(&serde_json::from_str::<Value>(&json.output).unwrap())
    };
    assert!(!is_named(&frames_of(&[]), "waitHere"), "there is no map");
    assert!(is_named(&frames_of(&["--perf-map", names.to_str().unwrap()]), "waitHere"));
    std::fs::rename(&names, directory.join(format!("perf-{id}.map"))).unwrap();
    assert!(is_named(&frames_of(&[]), "waitHere"), "the map lies beside the core");
}
