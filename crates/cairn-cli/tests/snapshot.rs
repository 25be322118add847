//! `cairn snapshot` of real programs: threads, names, inlined calls, and everything that cannot be
//! looked at.

#![cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]

#[path = "../../cairn-memory/tests/support/asleep.rs"]
mod asleep;

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

const CAIRN: &str = env!("CARGO_BIN_EXE_cairn");

/// `fixtures/programs/waiting.c`, running; ends with the test.
struct Waiting {
    child: Child,
    program: PathBuf,
}

impl Waiting {
    fn start(name: &str) -> Self {
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/programs/waiting.c");
        let mut compiler = Command::new("cc");
        compiler.args(["-O2", "-g", "-pthread", "-Wl,--build-id", source, "-o"]).arg(&program);
        assert!(compiler.status().unwrap().success());
        let mut child = Command::new(&program).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        let waiting = Self { child, program };
        waiting.wait_until_asleep();
        waiting
    }

    fn id(&self) -> String {
        self.child.id().to_string()
    }

    fn wait_until_asleep(&self) {
        asleep::wait_until_asleep(self.child.id());
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Standard output, complaints, exit code.
fn snapshot(arguments: &[&str]) -> (String, String, i32) {
    let output = Command::new(CAIRN).arg("snapshot").args(arguments).env("NO_COLOR", "1").output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (text(output.stdout), text(output.stderr), output.status.code().unwrap())
}

#[test]
fn all_threads_are_shown_with_their_inlined_calls() {
    let waiting = Waiting::start("waiting-shown");
    let (text, _, code) = snapshot(&[&waiting.id()]);
    assert_eq!(code, 0);
    let (main, worker) = text.split_once(" \"worker\"\n").unwrap();
    let at = |text: &str, part: &str| text.find(part).unwrap_or_else(|| panic!("no {part:?} in:\n{text}"));
    assert!(
        main.starts_with(&format!("process {}: {}\n", waiting.id(), waiting.program.display())),
        "{text}"
    );
    assert!(at(main, "  wait_for_worker at ") < at(main, "  main at "));
    assert!(at(worker, "  wait_inlined at ") < at(worker, "  wait_for_work at "));
    assert!(at(worker, "  wait_for_work at ") < at(worker, "  work at "));
    let inlined = worker.lines().find(|line| line.contains("wait_inlined")).unwrap();
    assert!(inlined.contains("waiting.c:8 (inlined)"), "{inlined}");
    assert_eq!(text.matches("\n      end of stack\n").count(), 2, "{text}");
}

#[test]
fn a_thread_can_be_chosen_by_name_and_by_number() {
    let waiting = Waiting::start("waiting-chosen");
    let (text, _, _) = snapshot(&[&waiting.id(), "--thread", "worker", "--no-symbols"]);
    assert!(text.contains(" \"worker\"\n") && text.matches("\nthread ").count() == 1, "{text}");
    assert!(!text.contains("wait_for_work"), "{text}");
    let (text, _, _) = snapshot(&[&waiting.id(), "-t", &waiting.id()]);
    assert!(text.contains("wait_for_worker") && text.matches("\nthread ").count() == 1, "{text}");
    let (_, answer, code) = snapshot(&[&waiting.id(), "-t", "nobody"]);
    assert!(
        answer.starts_with("cairn: no such thread; there are: ") && answer.contains(" worker"),
        "{answer}"
    );
    assert_eq!(code, 1);
}

#[test]
fn json_has_all_that_the_text_has() {
    let waiting = Waiting::start("waiting-json");
    let (text, _, code) = snapshot(&[&waiting.id(), "--json"]);
    let json: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((code, &json["schema"], json["process"].to_string()), (0, &1.into(), waiting.id()));
    let worker =
        json["threads"].as_array().unwrap().iter().find(|thread| thread["name"] == "worker").unwrap();
    assert_eq!(worker["end"], "end of stack");
    let frame =
        worker["frames"].as_array().unwrap().iter().find(|frame| frame["function"] == "wait_for_work");
    let frame = frame.unwrap();
    assert_eq!(frame["inlined"][0]["function"], "wait_inlined");
    let module = &json["modules"][usize::try_from(frame["module"].as_u64().unwrap()).unwrap()];
    assert_eq!(module["path"], waiting.program.to_str().unwrap());
    assert_eq!(module["file_is_there"], true);
    assert!(module["build_id"].as_str().unwrap().len() >= 16);
}

#[test]
fn a_recorded_snapshot_plays_as_it_was_shown() {
    let waiting = Waiting::start("waiting-recorded");
    let recording = waiting.program.with_extension("cairn");
    let _ = fs::remove_file(&recording);
    let path = recording.to_str().unwrap();
    let (text, _, code) = snapshot(&[&waiting.id(), "--output", path]);
    assert_eq!(code, 0);
    let played = Command::new(CAIRN).args(["play", path, "--stacks"]).output().unwrap();
    assert!(played.status.success(), "{played:?}");
    let played = String::from_utf8(played.stdout).unwrap();
    let functions = |text: &str| -> Vec<&'static str> {
        let known = ["wait_inlined", "wait_for_worker", "wait_for_work", "main"];
        let is_in = |line: &&str, name: &str| line.split([' ', '(', ')', ':']).any(|word| word == name);
        text.lines()
            .filter(|line| line.starts_with(' '))
            .filter_map(|line| known.into_iter().find(|name| is_in(&line, name)))
            .collect()
    };
    assert_eq!(functions(&text), ["wait_for_worker", "main", "wait_inlined", "wait_for_work"]);
    assert_eq!(functions(&played), functions(&text), "{played}");
    assert!(played.contains(" \"worker\": \"snapshot\"\n"), "{played}");

    let (_, answer, code) = snapshot(&[&waiting.id(), "--output", path]);
    assert!(code == 1 && answer.contains("--force"), "a recording is overwritten: {answer}");
}

#[test]
fn snapshot_takes_no_names_from_a_replaced_program() {
    let waiting = Waiting::start("waiting-replaced");
    fs::remove_file(&waiting.program).unwrap();
    fs::copy("/bin/true", &waiting.program).unwrap();
    let (text, answer, code) = snapshot(&[&waiting.id()]);
    assert_eq!(code, 0);
    assert!(!text.contains("wait_for_work") && text.contains(" (file replaced or deleted)\n"), "{text}");
    assert!(answer.contains("waiting-replaced: a file was not used: "), "{answer}");
}

#[test]
fn snapshot_reports_unreadable_processes() {
    let (_, answer, code) = snapshot(&["4194304"]);
    assert_eq!((answer.as_str(), code), ("cairn: there is no process 4194304\n", 1));
    assert_eq!(snapshot(&["init"]).2, 2);

    let waiting = Waiting::start("waiting-answer");
    let tasks = fs::read_dir(format!("/proc/{}/task", waiting.id())).unwrap();
    let thread = tasks.map(|task| task.unwrap().file_name().into_string().unwrap());
    let thread = thread.into_iter().find(|thread| *thread != waiting.id()).unwrap();
    let (_, answer, code) = snapshot(&[&thread]);
    let expected =
        format!("{thread} is a thread of process {}; give the number of the process", waiting.id());
    assert!(answer.contains(&expected) && code == 1, "{answer}");

    let mut ended = Command::new("true").spawn().unwrap();
    let zombie = ended.id().to_string();
    let deadline = Instant::now() + Duration::from_secs(20);
    while !fs::read_to_string(format!("/proc/{zombie}/stat")).unwrap().contains(") Z ") {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(2));
    }
    let (_, answer, code) = snapshot(&[&zombie]);
    assert!(answer.contains(" has ended; only its exit status is left") && code == 1, "{answer}");
    ended.wait().unwrap();
}

#[test]
fn snapshot_explains_how_to_get_permission() {
    let waiting = Waiting::start("waiting-foreign");
    // Only root can become another user, and not every user may be able to run this build.
    let own = fs::metadata("/proc/self").unwrap();
    if std::os::unix::fs::MetadataExt::uid(&own) != 0 {
        return;
    }
    let cairn = std::env::temp_dir().join(format!("cairn-for-nobody-{}", waiting.id()));
    // By another process: a file that this one has open to write to, a child of another test has
    // open as well for a moment, and then the kernel does not run it.
    assert!(Command::new("cp").args([CAIRN.as_ref(), cairn.as_os_str()]).status().unwrap().success());
    let output = Command::new(&cairn).args(["snapshot", &waiting.id()]).uid(65534).gid(65534).output();
    fs::remove_file(&cairn).unwrap();
    let output = output.unwrap();
    let answer = String::from_utf8(output.stderr).unwrap();
    assert!(
        answer.starts_with(&format!("cairn: no permission to look at process {}: ", waiting.id())),
        "{answer}"
    );
    assert!(answer.contains("sudo") || answer.contains("restart"), "{answer}");
    assert_eq!(output.status.code(), Some(1));
}
