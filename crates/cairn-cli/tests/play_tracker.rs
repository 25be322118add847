//! `cairn play` with recordings of call-stack-tracker: against the reference's own answers and the
//! shown text.

use std::fs;
use std::path::PathBuf;
use std::sync::Once;

use serde_json::Value;
use snapbox::cmd::{Command, cargo_bin};
use snapbox::{file, str};

fn cairn() -> Command {
    let repository = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    // Without it, `.exe` of the recorded modules would count as that of programs here.
    let assert = snapbox::Assert::new().action_env(snapbox::assert::DEFAULT_ACTION_ENV);
    Command::new(cargo_bin!("cairn"))
        .with_assert(assert.redact_with(snapbox::Redactions::new()))
        .current_dir(repository)
        .env("COLUMNS", "100")
        .env("NO_COLOR", "1")
}

/// One case of the vectors, as a file.
struct Case {
    value: Value,
    path: PathBuf,
}

impl Case {
    fn bytes(&self) -> Vec<u8> {
        let digits = self.value["recording_hex"].as_str().unwrap();
        (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap()).collect()
    }

    fn id(&self) -> &str {
        self.value["id"].as_str().unwrap()
    }
}

fn cases() -> Vec<Case> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/vectors/module_recording.json");
    let vectors: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    let cases = vectors["cases"].as_array().unwrap().iter().map(|value| {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(value["id"].as_str().unwrap());
        Case { value: value.clone(), path }
    });
    let cases: Vec<Case> = cases.collect();
    // Once, because other tests of this program read them at the same time.
    static WRITTEN: Once = Once::new();
    WRITTEN.call_once(|| cases.iter().for_each(|case| fs::write(&case.path, case.bytes()).unwrap()));
    cases
}

fn case(id: &str) -> Case {
    cases().into_iter().find(|case| case.id() == id).unwrap()
}

/// The frames of a stack as the vectors have them: address, index of the path, offset.
fn expected(stack: &Value, paths: &Value) -> Vec<(String, Option<String>, Option<String>)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let frames = stack["frames"].as_array().unwrap().iter().map(|frame| {
        let path = frame[1].as_u64().map(|index| text(&paths[usize::try_from(index).unwrap()]));
        (text(&frame[0]), path, frame.get(2).map(text))
    });
    frames.collect()
}

#[test]
fn every_stack_lies_in_the_modules_of_its_time() {
    let mut stacks_seen = 0;
    for case in cases() {
        let bits = case.value["word_bits"].to_string();
        let output = cairn().args(["play", "--json", "--no-symbols", "--word", &bits]).arg(&case.path);
        let output = output.output().unwrap();
        let id = case.id();
        let code = if case.value["error"].is_null() { 0 } else { 3 };
        assert_eq!(output.status.code(), Some(code), "{id}: {}", String::from_utf8_lossy(&output.stderr));
        let lines: Vec<Value> = output
            .stdout
            .split(|&byte| byte == b'\n')
            .filter(|line| !line.is_empty())
            .map(|line| serde_json::from_slice(line).unwrap())
            .collect();
        let mut paths = std::collections::HashMap::new();
        let mut stacks = case.value["stacks"].as_array().unwrap().iter();
        for line in &lines {
            if line["event"] == "module-loaded" {
                paths.insert(line["module"].as_u64().unwrap(), line["path"].as_str().unwrap().to_owned());
            }
            let Some(frames) = line["frames"].as_array() else { continue };
            let found: Vec<_> = frames
                .iter()
                .map(|frame| {
                    let path = frame["module"].as_u64().map(|module| paths[&module].clone());
                    let offset = frame["offset"].as_str().map(str::to_owned);
                    (frame["address"].as_str().unwrap().to_owned(), path, offset)
                })
                .collect();
            let stack = stacks.next().unwrap_or_else(|| panic!("{id}: more stacks than there are"));
            assert_eq!(found, expected(stack, &case.value["modules"]), "{id}");
            stacks_seen += 1;
        }
        assert_eq!(stacks.next(), None, "{id}: a stack is missing");
    }
    assert!(stacks_seen > 20, "the vectors are gone");
}

#[test]
fn stacks_are_printed_as_the_trackers_viewer_does() {
    let case = case("recording-p001");
    let play = |arguments: &[&str]| cairn().arg("play").arg(&case.path).args(arguments).assert().success();
    play(&["--no-symbols"]).stdout_eq(file!["snapshots/play-tracker.txt"]).stderr_eq("");
    play(&["--no-symbols", "--stacks", "--time", "viewer", "--to", "1.2us"]).stdout_eq(str![[r#"
Sun Apr  8 20:05:44 2018.457700: {
    "B.dll"! 0x7ff610031234: B.dll+0x1234
    "A.exe"! 0x7ff610000777: A.exe+0x777
    "C.dll"! 0x7ff610070010: C.dll+0x10
}

"#]]);
    play(&["--modules"]).stdout_eq(file!["snapshots/play-tracker-modules.txt"]);
    play(&["--collapse", "--no-symbols", "--time", "relative", "--module", "D"]).stdout_eq(str![[r#"
1 time, first 0.000003500, last 0.000003500: {
    "D.dll"! 0x7ff610031234: D.dll+0x1234
    "A.exe"! 0x7ff610000777: A.exe+0x777
}
1 time, first 0.000004500, last 0.000004500: {
    "B.dll"! 0x7ff700001234: B.dll+0x1234
    "D.dll"! 0x7ff610031234: D.dll+0x1234
    "A.exe"! 0x7ff610000777: A.exe+0x777
}

"#]]);
}

#[test]
fn times_and_patterns_choose_events() {
    let case = case("recording-p001");
    let count = |arguments: &[&str]| {
        let output = cairn().arg("play").arg(&case.path).args(["--json", "--no-symbols"]).args(arguments);
        output.output().unwrap().stdout.iter().filter(|&&byte| byte == b'\n').count()
    };
    assert_eq!(count(&[]), 10);
    assert_eq!(count(&["--stacks"]), 4);
    assert_eq!(count(&["--stacks", "--from", "2018-04-08T20:05:44.123459200Z"]), 3);
    assert_eq!(count(&["--stacks", "--from", "2.5us", "--to", "3.5us"]), 1);
    assert_eq!(count(&["--from", "1"]), 0);
    assert_eq!(count(&["--match", "(?i)app.*d\\.DLL"]), 3);
    assert_eq!(count(&["--module", "C.dll"]), 2);
    assert_eq!(count(&["--module", r"C:\app\C.dll", "--stacks"]), 1);
    assert_eq!(count(&["--thread", "4711"]), 0);
}

#[test]
fn play_prints_everything_before_damage() {
    let whole = case("recording-p001");
    let cut = whole.path.with_extension("cut");
    let bytes = whole.bytes();
    fs::write(&cut, &bytes[..bytes.len() - 5]).unwrap();
    cairn().arg("play").arg(&cut).args(["--no-symbols", "--from", "4us"]).assert().code(3).stdout_eq(str![[r#"
Sun Apr  8 20:05:44 2018.123460: loaded "B.dll" at 0x7ff700000000-0x7ff700040000 (C:/app/B.dll)

"#]]).stderr_eq(str![[r#"
cairn: [..]recording-p001.cut: the recording ends inside the event at byte 359; nothing behind it can be read (as a recording of 64-bit addresses, which was guessed)

"#]]);
}

#[test]
fn play_ends_soon_at_every_cut_and_reports_it() {
    let bytes = case("recording-p002").bytes();
    for length in 0..bytes.len() {
        let output = cairn().args(["play", "-", "--no-symbols"]).stdin(&bytes[..length]).output().unwrap();
        let code = output.status.code().unwrap();
        // A cut between two events leaves a whole recording.
        assert!(matches!(code, 0 | 1 | 3), "{length}: {code}");
        assert_eq!(
            code == 0,
            output.stderr.is_empty(),
            "{length}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

#[test]
fn play_refuses_files_that_are_no_tracker_recording() {
    let answer = |arguments: &[&str], text: &str| {
        cairn().arg("play").args(arguments).assert().code(1).stdout_eq("").stderr_eq(text);
    };
    // In the words of the system.
    let absent = fs::File::open("no/such.cairn").unwrap_err();
    answer(&["no/such.cairn"], &format!("cairn: no/such.cairn: {absent}\n"));
    answer(
        &["fixtures"],
        "cairn: fixtures: not a recording: it is a directory; name a recording in it; [..]\n",
    );
    let empty = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("empty.recording");
    fs::write(&empty, "").unwrap();
    answer(
        &[empty.to_str().unwrap()],
        "cairn: [..]empty.recording: not a recording: the file is empty; [..]\n",
    );
    answer(&["README.md"], "cairn: README.md: not a recording: it begins with other bytes; [..]\n");
    answer(
        &["fixtures/device/app.elf"],
        "cairn: fixtures/device/app.elf: not a recording: it is a program or library; [..]\n",
    );
    cairn().args(["play", "x", "--from", "soon"]).assert().code(2);
    cairn().args(["play", "x", "--match", "("]).assert().code(2);
    cairn().args(["play", "x", "--map-path", "a"]).assert().code(2);
}
