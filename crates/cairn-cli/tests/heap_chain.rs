//! `cairn heap` on programs behind shims. The output is the last program.
//!
//! A shim is a script that becomes another program by `exec`, as those of pyenv, rbenv and asdf.

#![cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use cairn_recording::{EndReason, Recording};
use support::{Count, Executable, Shown, cairn, compile, executable, recordings, run, scratch, wait_for};

/// The events of `ends.c`.
const WORK: Count = Count { made: 5000, left: 1000 };

/// Makes `shims/NAME`, which leads to `versions/NAME` as in pyenv: by `env` and a shell, twice.
fn make_shim(directory: &Path, name: &str) -> PathBuf {
    for part in ["shims", "versions"] {
        let _ = fs::create_dir(directory.join(part));
    }
    let manager = directory.join("manager");
    let place = directory.display();
    let text = format!("#!/usr/bin/env sh\nshift\nname=$1\nshift\nexec \"{place}/versions/$name\" \"$@\"\n");
    executable(&manager, &Executable::Script(&text));
    let shim = directory.join("shims").join(name);
    let text = format!("#!/usr/bin/env sh\nexec \"{}\" exec \"${{0##*/}}\" \"$@\"\n", manager.display());
    executable(&shim, &Executable::Script(&text));
    shim
}

/// Makes a shim for `ends.c`.
fn shim_of_worker(directory: &Path) -> PathBuf {
    let shim = make_shim(directory, "worker");
    compile(&directory.join("versions"), "ends.c", "worker", &["-fno-builtin", "-O0"]);
    shim
}

/// The names of the recordings and of their directories.
fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<String> = entries.map(|name| name.to_string_lossy().into_owned()).collect();
    names.retain(|name| name.contains(".cairn"));
    names.sort();
    names
}

fn count_of_work(path: &Path) -> Count {
    support::Recording::read(path).count(14001)
}

/// The name of the file that `sh` is.
fn shell() -> String {
    let path = fs::canonicalize("/bin/sh").unwrap();
    path.file_name().unwrap().to_string_lossy().into_owned()
}

/// The lines of the command itself.
fn said(shown: &Shown) -> Vec<&str> {
    shown.errors.lines().filter(|line| line.starts_with("cairn: ")).collect()
}

#[test]
fn output_is_the_program_behind_shims_alone() {
    let directory = scratch("chain_output");
    let shim = shim_of_worker(&directory);
    let mut command = cairn();
    command.args(["heap", "-o", "out.cairn"]).arg(&shim).arg("_exit").current_dir(&directory);
    let shown = Shown::from(run(&mut command));
    assert_eq!(shown.status, Some(4), "{shown:?}");
    assert_eq!(names(&directory), ["out.cairn"], "{shown:?}");
    assert_eq!(count_of_work(&directory.join("out.cairn")), WORK);
    let [before, recorded] = said(&shown)[..] else { panic!("{shown:?}") };
    let shell = shell();
    let expected =
        format!("cairn: before, it was 4 short programs, which are dropped: env, {shell}, env and 1 more");
    assert_eq!(before, expected);
    let end = format!("is recorded in {} (", directory.join("out.cairn").display());
    assert!(recorded.starts_with("cairn: process ") && recorded.contains(&end), "{recorded}");
    assert!(shown.errors.contains("Next: cairn report ") && shown.errors.contains("/out.cairn"), "{shown:?}");
    let end = Recording::open(directory.join("out.cairn")).unwrap().end();
    assert_eq!(end.map(|(reason, _)| reason), Some(EndReason::Exit));
}

#[test]
fn default_name_is_that_of_the_program_behind_shims() {
    let directory = scratch("chain_name");
    let shim = shim_of_worker(&directory);
    let shown = Shown::from(run(cairn().args(["heap", "-q"]).arg(&shim).arg("exit").current_dir(&directory)));
    assert_eq!((shown.status, shown.errors.as_str()), (Some(4), ""));
    let all = recordings(&directory);
    assert_eq!(all.len(), 1, "{:?}", names(&directory));
    assert_eq!(names(&directory), [format!("worker.{}.cairn", all[0].process)]);
    assert_eq!(all[0].count(14001), WORK);
}

/// The last of two programs of one name has the plain name.
#[test]
fn programs_of_note_go_to_a_directory_in_order() {
    let directory = scratch("chain_before");
    compile(&directory, "ends.c", "worker", &["-fno-builtin", "-O0"]);
    let script = "exec ./worker exec";
    let mut command = cairn();
    command.args(["heap", "-o", "out.cairn", "sh", "-c", script]).current_dir(&directory);
    let shown = Shown::from(run(&mut command));
    assert_eq!(shown.status, Some(5), "{shown:?}");
    assert_eq!(names(&directory), ["out.cairn", "out.cairn.before"]);
    let last = support::Recording::read(&directory.join("out.cairn"));
    assert_eq!((last.count(14001).made, last.count(14003).made), (0, 100));
    let before = directory.join("out.cairn.before");
    assert_eq!(names(&before), ["02-worker.cairn"]);
    assert_eq!(count_of_work(&before.join("02-worker.cairn")), WORK);
    let end = Recording::open(before.join("02-worker.cairn")).unwrap().end();
    assert_eq!(end.map(|(reason, _)| reason), Some(EndReason::Exec));
    let line = said(&shown)[0];
    let expected = format!(
        "cairn: before, it was 2 programs: 1 short one, which is dropped ({}); recorded in {}: 02-worker.cairn",
        shell(),
        before.display()
    );
    assert_eq!(line, expected);
    let report = Shown::from(run(cairn().args(["report", "--json"]).arg(before.join("02-worker.cairn"))));
    assert_eq!(report.status, Some(0), "{report:?}");
}

#[test]
fn directory_of_earlier_programs_is_named_after_the_last() {
    let directory = scratch("chain_before_name");
    compile(&directory, "ends.c", "worker", &["-fno-builtin", "-O0"]);
    let mut command = cairn();
    // `worker exec` becomes itself, and that again: by another name.
    let script = "exec ./worker exec";
    executable(&directory.join("first"), &Executable::Script(&format!("#!/bin/sh\n{script}\n")));
    command.args(["heap", "-q", "./first"]).current_dir(&directory);
    assert_eq!(run(&mut command).status.code(), Some(5));
    let all = names(&directory);
    assert_eq!(all.len(), 2, "{all:?}");
    assert!(all[0].starts_with("worker.") && all[1] == format!("{}.before", all[0]), "{all:?}");
}

/// A program that lives long is of note, even if it allocates nothing.
#[test]
fn a_program_that_lives_a_second_is_of_note() {
    let directory = scratch("chain_long");
    compile(&directory, "ends.c", "worker", &["-fno-builtin", "-O0"]);
    let mut command = cairn();
    command.args(["heap", "-q", "-o", "out.cairn", "sh", "-c", "sleep 1.1; exec ./worker exit"]);
    assert_eq!(run(command.current_dir(&directory)).status.code(), Some(4));
    assert_eq!(names(&directory), ["out.cairn", "out.cairn.before"]);
    assert_eq!(count_of_work(&directory.join("out.cairn")), WORK);
    assert_eq!(names(&directory.join("out.cairn.before")).len(), 1);
}

#[test]
fn exec_that_fails_leaves_the_recording_to_its_caller() {
    let directory = scratch("chain_failed");
    let source = directory.join("failing.c");
    fs::write(
        &source,
        "#include <stdlib.h>\n#include <unistd.h>\nint main(void) {\n\
         char *none[] = {\"none\", 0};\nexecv(\"./missing\", none);\n\
         for (int i = 0; i < 50; i++) { void *volatile block = malloc(31001); }\nreturn 3; }\n",
    )
    .unwrap();
    let program = directory.join("failing");
    let mut compiler = Command::new("cc");
    compiler.args(["-w", "-fno-builtin", "-O0"]).arg(&source).arg("-o").arg(&program);
    assert!(run(&mut compiler).status.success());
    let mut command = cairn();
    command.args(["heap", "-o", "out.cairn", "sh", "-c", "exec ./failing"]).current_dir(&directory);
    let shown = Shown::from(run(&mut command));
    assert_eq!(shown.status, Some(3), "{shown:?}");
    assert!(!shown.errors.contains("another program"), "{shown:?}");
    assert_eq!(names(&directory), ["out.cairn"]);
    let out = support::Recording::read(&directory.join("out.cairn"));
    assert_eq!(out.count(31001), Count { made: 50, left: 50 });
    let end = Recording::open(directory.join("out.cairn")).unwrap().end();
    assert_eq!(end.map(|(reason, _)| reason), Some(EndReason::Exit));
}

/// However short the program is that cannot be recorded.
#[test]
fn summary_says_that_the_program_went_on_unrecorded() {
    let directory = scratch("chain_static");
    let source = directory.join("static.c");
    fs::write(&source, "int main(void) { return 9; }\n").unwrap();
    let mut compiler = Command::new("cc");
    compiler.arg("-static").arg(&source).arg("-o").arg(directory.join("static"));
    assert!(run(&mut compiler).status.success());
    compile(&directory, "ends.c", "worker", &["-fno-builtin", "-O0"]);
    executable(&directory.join("shim"), &Executable::Script("#!/usr/bin/env sh\nexec ./static\n"));
    for _ in 0..5 {
        let mut command = cairn();
        command.args(["heap", "--force", "-o", "out.cairn", "./shim"]).current_dir(&directory);
        let shown = Shown::from(run(&mut command));
        assert_eq!(shown.status, Some(9), "{shown:?}");
        assert_eq!(names(&directory), ["out.cairn"]);
        let expected = "cairn: it then became another program, which is not recorded";
        assert!(shown.errors.contains(expected), "{shown:?}");
        let recording = Recording::open(directory.join("out.cairn")).unwrap();
        assert!(recording.fact("executable").unwrap().ends_with(b"sh"), "{:?}", recording.facts());
        assert_eq!(recording.end().map(|(reason, _)| reason), Some(EndReason::Exec));
    }
}

#[test]
fn other_files_of_the_name_are_not_touched() {
    let directory = scratch("chain_numbers");
    let shim = shim_of_worker(&directory);
    fs::write(directory.join("out.cairn"), "of another day").unwrap();
    let record = |options: &[&str]| {
        let mut command = cairn();
        command.args(["heap", "-q", "-o", "out.cairn"]).args(options).arg(&shim).arg("exit");
        assert_eq!(run(command.current_dir(&directory)).status.code(), Some(4));
    };
    record(&[]);
    assert_eq!(names(&directory), ["out.2.cairn", "out.cairn"]);
    assert_eq!(fs::read(directory.join("out.cairn")).unwrap(), b"of another day");
    assert_eq!(count_of_work(&directory.join("out.2.cairn")), WORK);
    record(&["--force"]);
    assert_eq!(names(&directory), ["out.2.cairn", "out.cairn"]);
    assert_eq!(count_of_work(&directory.join("out.cairn")), WORK);
}

#[test]
fn force_replaces_the_file_that_has_the_name_of_the_last() {
    let directory = scratch("chain_force");
    let shim = shim_of_worker(&directory);
    for name in ["worker.cairn", "env.cairn"] {
        fs::write(directory.join(name), "of another day").unwrap();
    }
    let mut command = cairn();
    command.args(["heap", "-q", "--force", "-o", "%n.cairn"]).arg(&shim).arg("exit");
    assert_eq!(run(command.current_dir(&directory)).status.code(), Some(4));
    assert_eq!(names(&directory), ["env.cairn", "worker.cairn"]);
    assert_eq!(fs::read(directory.join("env.cairn")).unwrap(), b"of another day");
    assert_eq!(count_of_work(&directory.join("worker.cairn")), WORK);
}

/// The time counts from the start of the program that was meant.
#[test]
fn time_limit_does_not_count_shims() {
    let directory = scratch("chain_for");
    compile(&directory, "ends.c", "worker", &["-fno-builtin", "-O0"]);
    let mut command = cairn();
    command.args(["heap", "-q", "--for", "300ms", "-o", "out.cairn"]);
    command.args(["sh", "-c", "sleep 0.6; exec ./worker exit"]).current_dir(&directory);
    assert_eq!(run(&mut command).status.code(), Some(4));
    assert_eq!(names(&directory), ["out.cairn"]);
    let out = support::Recording::read(&directory.join("out.cairn"));
    assert!(out.count(14001).made > 0, "the time was over before the program began");
}

/// A program that says when it is ready, and waits until it may go on. Then it allocates more than
/// its file has room for.
const WAITING: &str = "#include <stdlib.h>\n#include <unistd.h>\n#include <fcntl.h>\nint main(void) {\n\
     void *volatile first = malloc(32001);\nclose(creat(\"ready\", 0600));\n\
     while (access(\"go\", F_OK) != 0) usleep(2000);\n\
     for (int i = 0; i < 500000; i++) { void *volatile block = malloc(32002 % (i + 40000)); free(block); }\n\
     return 6; }\n";

fn shim_of_waiting(directory: &Path) -> PathBuf {
    let shim = make_shim(directory, "waiting");
    let source = directory.join("waiting.c");
    fs::write(&source, WAITING).unwrap();
    let mut compiler = Command::new("cc");
    compiler
        .args(["-w", "-fno-builtin", "-O0"])
        .arg(&source)
        .arg("-o")
        .arg(directory.join("versions/waiting"));
    assert!(run(&mut compiler).status.success());
    shim
}

#[test]
fn output_has_its_name_while_the_program_runs() {
    let directory = scratch("chain_live");
    let shim = shim_of_waiting(&directory);
    let mut command = cairn();
    command.args(["heap", "-q", "-o", "out.cairn"]).arg(&shim).current_dir(&directory);
    let mut child = command.spawn().unwrap();
    wait_for("the program", || directory.join("ready").exists().then_some(()));
    let is_recorded = |target: &str| {
        let output = run(cairn().args(["top", "--once", "--by", "module", target]).current_dir(&directory));
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        (output.status.success() && text.contains("waiting")).then_some(text)
    };
    wait_for("the program's recording", || is_recorded("out.cairn"));
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", child.id())).unwrap();
    is_recorded(children.split_whitespace().next().unwrap()).expect("found by its PID");
    // The shims are gone by then.
    wait_for("one recording", || (names(&directory) == ["out.cairn", "out.cairn.new"]).then_some(()));
    fs::write(directory.join("go"), "").unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(6));
    assert_eq!(names(&directory), ["out.cairn"]);
}

/// The file was renamed while the program has it mapped; the program finds it again to extend it.
#[test]
fn recording_goes_on_under_its_new_name_without_cairn() {
    let directory = scratch("chain_killed");
    let shim = shim_of_waiting(&directory);
    let mut command = cairn();
    command.args(["heap", "-q", "-o", "out.cairn"]).arg(&shim).current_dir(&directory);
    // The program has the pipe open: its end shows that the program has ended.
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    wait_for("the program", || directory.join("ready").exists().then_some(()));
    wait_for("one recording", || (names(&directory) == ["out.cairn", "out.cairn.new"]).then_some(()));
    child.kill().unwrap();
    fs::write(directory.join("go"), "").unwrap();
    let mut rest = Vec::new();
    std::io::Read::read_to_end(child.stdout.as_mut().unwrap(), &mut rest).unwrap();
    child.wait().unwrap();
    let report = run(cairn().args(["report", "--json", "out.cairn"]).current_dir(&directory));
    let report: serde_json::Value = serde_json::from_slice(&report.stdout).unwrap();
    assert!(report["total_allocations"].as_u64().unwrap() >= 500_001, "{report}");
    let findings = report["findings"].to_string();
    assert!(!findings.contains("ended early"), "{findings}");
}

/// Whenever the command is killed, all of the last program is in some file.
#[test]
fn no_recording_is_lost_when_cairn_is_killed_in_a_chain() {
    for millis in [0, 5, 10, 20, 40, 80, 160, 320] {
        let directory = scratch(&format!("chain_killed_{millis}"));
        let shim = make_shim(&directory, "churn");
        compile(&directory.join("versions"), "churn.c", "churn", &["-fno-builtin"]);
        let mut command = cairn();
        command.args(["heap", "-q", "-o", "out.cairn"]).arg(&shim).args(["300000", "1"]);
        let mut child = command.current_dir(&directory).stdout(Stdio::piped()).spawn().unwrap();
        wait_for("a recording", || (!names(&directory).is_empty()).then_some(()));
        std::thread::sleep(std::time::Duration::from_millis(millis));
        child.kill().unwrap();
        let mut rest = Vec::new();
        std::io::Read::read_to_end(child.stdout.as_mut().unwrap(), &mut rest).unwrap();
        child.wait().unwrap();
        let mut found = 0;
        for name in names(&directory).iter().filter(|name| !name.ends_with(".new")) {
            let report = run(cairn().args(["report", "--json", name]).current_dir(&directory));
            let report: serde_json::Value = serde_json::from_slice(&report.stdout)
                .unwrap_or_else(|error| panic!("{name}: {error}: {report:?}"));
            let is_churn = report["recording"]["command"].to_string().contains("versions/churn");
            found += if is_churn { report["total_allocations"].as_u64().unwrap() } else { 0 };
        }
        assert!(found >= 300_000, "{found} in {:?} after {millis} ms", names(&directory));
    }
}
