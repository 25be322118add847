//! `cairn heap python3`: Python frames in the stacks, and every object.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(clippy::print_stdout, reason = "a test says what it could not check here")]

#[allow(dead_code, reason = "it serves other tests too")]
mod support;

use std::path::PathBuf;
use std::process::Command;

use cairn_recording::{Finding, InterpreterState, LossKind, PcKind, Recording, StackId};
use support::{cairn, run, scratch};

const PROGRAM: &str = "\
def load(count):
    return [bytes(100) for number in range(count)]

def main():
    return sorted((load(2000) for _ in range(3)), key=lambda rows: len(b'x' * (1000 + len(rows))))

orders = main()
import os
os._exit(0)
";

/// Records the program with these options; `None` without a Python whose frames are read.
fn recorded(test: &str, options: &[&str], environment: &[(&str, &str)]) -> Option<(PathBuf, Recording)> {
    recorded_program(PROGRAM, test, options, environment)
}

fn recorded_program(
    program: &str,
    test: &str,
    options: &[&str],
    environment: &[(&str, &str)],
) -> Option<(PathBuf, Recording)> {
    let directory = scratch(test);
    std::fs::write(directory.join("program.py"), program).unwrap();
    let path = directory.join("python.cairn");
    let python = Command::new("python3").args(["-c", "import sys; print(sys.executable)"]).output();
    let Some(python) = python.ok().filter(|output| output.status.success()) else {
        println!("not checked: python3 is not installed");
        return None;
    };
    // The program behind a script that chooses a version.
    let python = String::from_utf8(python.stdout).unwrap();
    let mut command = cairn();
    command.args(["heap", "--quiet"]).args(options).arg("-o").arg(&path);
    command.args([python.trim(), "program.py"]).current_dir(&directory).envs(environment.iter().copied());
    assert!(run(&mut command).status.success());
    let recording = Recording::open(&path).unwrap();
    if recording.interpreters().iter().any(|found| found.state() != InterpreterState::Read) {
        println!("not checked: {:?}", recording.interpreters());
        return None;
    }
    Some((path, recording))
}

/// The Python frames of a stack, innermost first, by name.
fn names(recording: &Recording, stack: StackId) -> Vec<String> {
    let stacks = recording.stacks();
    let frames = stacks.pc_ids(stack).filter_map(|pc| recording.frame(pc));
    let interpreted = frames.filter(|frame| frame.kind == PcKind::Interpreted);
    let code = interpreted.filter_map(|frame| stacks.code((frame.address.value() >> 32) as u32));
    code.map(|code| String::from_utf8_lossy(&code.name).into_owned()).collect()
}

/// Blocks of the size of `bytes(100)` that `load` made.
#[derive(Default)]
struct Made {
    stacks: std::collections::HashMap<StackId, u64>,
}

impl cairn_recording::Events for Made {
    fn alloc(&mut self, event: &cairn_recording::Alloc) {
        // Header, data, and the zero behind them: 33 bytes in 3.8 to 3.14, 49 without a global
        // lock.
        if matches!(event.size_bytes, 133 | 149) {
            *self.stacks.entry(event.stack).or_default() += 1;
        }
    }
}

fn made_by_load(recording: &Recording) -> u64 {
    let mut made = Made::default();
    recording.read(&cairn_recording::Wanted::HEAP, &mut made).unwrap();
    let is_of_load = |stack: StackId| {
        let names = names(recording, stack);
        let short = |name: &String| name.rsplit('.').next().unwrap_or(name).to_owned();
        let names: Vec<String> = names.iter().map(short).filter(|name| name != "<listcomp>").collect();
        names.ends_with(&["load".into(), "<genexpr>".into(), "main".into(), "<module>".into()])
    };
    made.stacks.iter().filter(|(stack, _)| is_of_load(**stack)).map(|(_, count)| count).sum()
}

#[test]
fn every_small_object_has_its_python_stack() {
    let Some((path, recording)) = recorded("python_full", &[], &[]) else { return };
    assert_eq!(made_by_load(&recording), 6000);
    let report = run(cairn().args(["report", "--by", "stack", "--full"]).arg(&path));
    let text = String::from_utf8(report.stdout).unwrap();
    for frame in ["load  program.py:2", "main  program.py:5", "<module>  program.py:7"] {
        assert!(text.contains(frame), "{frame} in\n{text}");
    }
}

#[test]
fn python_native_records_what_malloc_sees() {
    let Some((_, recording)) = recorded("python_native", &["--python=native"], &[]) else { return };
    assert_eq!(made_by_load(&recording), 0);
    assert_eq!(recording.stacks().codes().count(), 0);
}

#[test]
fn settings_of_pythons_allocator_hide_no_object() {
    for setting in ["malloc", "debug", "pymalloc"] {
        let environment = [("PYTHONMALLOC", setting)];
        let Some((_, recording)) = recorded("python_setting", &[], &environment) else { return };
        assert_eq!(made_by_load(&recording), 6000, "PYTHONMALLOC={setting}");
    }
}

/// Interpreters whose frames are not read: those of pyenv, and those that `CAIRN_PYTHONS` names.
#[test]
fn objects_are_counted_where_frames_are_not_read() {
    let versions = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".pyenv/versions"));
    let entries = versions.and_then(|versions| std::fs::read_dir(versions).ok());
    let of_pyenv =
        entries.into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path().join("bin/python")));
    let given = std::env::var_os("CAIRN_PYTHONS").unwrap_or_default();
    let given: Vec<PathBuf> = std::env::split_paths(&given).collect();
    let directory = scratch("python_refused");
    std::fs::write(directory.join("program.py"), PROGRAM).unwrap();
    let mut checked = 0;
    for python in of_pyenv.chain(given).filter(|python| python.is_file()) {
        let path = directory.join(format!("{checked}.cairn"));
        let _ = std::fs::remove_file(&path);
        let mut command = cairn();
        command.args(["heap", "--quiet", "-o"]).arg(&path).arg(&python).arg("program.py");
        assert!(run(command.current_dir(&directory)).status.success(), "{}", python.display());
        let recording = Recording::open(&path).unwrap();
        let [interpreter] = recording.interpreters() else { panic!("{}", python.display()) };
        if interpreter.state() == InterpreterState::Read {
            continue;
        }
        let mut made = Made::default();
        recording.read(&cairn_recording::Wanted::HEAP, &mut made).unwrap();
        let count: u64 = made.stacks.values().sum();
        let notes: Vec<String> = recording.findings().iter().map(ToString::to_string).collect();
        let says_so = notes.iter().any(|note| note.contains("objects of up to 512 bytes are not counted"));
        assert_eq!(count >= 6000, !says_so, "{}: {count} objects; {notes:?}", python.display());
        println!("{}: {count} objects; {notes:?}", python.display());
        checked += 1;
    }
    if checked == 0 {
        println!("not checked: all interpreters here have frames that are read");
    }
}

/// A function of a subinterpreter allocates, called by a function of the main one.
const WITH_SUBINTERPRETER: &str = "\
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
import os

INNER = 'def inner(): return [bytes(777) for _ in range(500)]\\ndef middle(): return inner()\\nmade = middle()'

def outer():
    interpreters.run_string(interpreters.create(), INNER)

outer()
os._exit(0)
";

#[test]
fn frames_of_a_subinterpreter_are_its_own_or_counted() {
    /// Header, data, and the zero behind them.
    const SIZE: u64 = 33 + 777;
    #[derive(Default)]
    struct Sized(Vec<StackId>);
    impl cairn_recording::Events for Sized {
        fn alloc(&mut self, event: &cairn_recording::Alloc) {
            if event.size_bytes == SIZE {
                self.0.push(event.stack);
            }
        }
    }
    let Some((_, recording)) = recorded_program(WITH_SUBINTERPRETER, "python_sub", &[], &[]) else { return };
    let mut made = Sized::default();
    recording.read(&cairn_recording::Wanted::HEAP, &mut made).unwrap();
    let with_frames = made.0.iter().filter(|stack| {
        let names = names(&recording, **stack);
        assert!(names.is_empty() || names.ends_with(&["inner".into(), "middle".into(), "<module>".into()]));
        !names.is_empty()
    });
    let with_frames = with_frames.count();
    let version = recording.interpreters()[0].version_text().unwrap();
    let minor: u32 = version.split('.').nth(1).unwrap().parse().unwrap();
    if minor >= 12 {
        assert!(with_frames >= 500, "{with_frames} of {}", made.0.len());
    } else {
        assert_eq!(with_frames, 0);
        let unread = recording.findings().iter().find_map(|finding| match finding {
            Finding::Lost { kind: LossKind::UnreadFrames, count } => Some(*count),
            _ => None,
        });
        assert!(unread >= Some(500), "{unread:?}");
    }
}

#[test]
fn python_frames_are_in_every_form_of_export() {
    let Some((path, _)) = recorded("python_export", &[], &[]) else { return };
    for format in ["speedscope", "folded", "jsonl"] {
        let output = run(cairn().args(["export", "--format", format, "-o", "-"]).arg(&path));
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        // The other two have the names of functions alone.
        let has_file = format != "speedscope" || text.contains("program.py");
        assert!(text.contains("load") && has_file, "{format}: {text:.200}");
    }
}
