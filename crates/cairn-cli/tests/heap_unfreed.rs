//! Names of blocks that were not freed: leaked if the program exited, else alive.

#![allow(clippy::print_stdout, reason = "a test says what it could not check here")]
#![cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]

#[allow(dead_code, reason = "it serves other tests too")]
mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use cairn_analysis::heap::LiveHeap;
use cairn_recording::Recording;
use serde_json::Value;
use support::{cairn, compile, run, scratch, wait_for};

/// The programs run until they are ended.
const LONG: &str = "600000";

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn live(directory: &Path) -> PathBuf {
    compile(directory, "live.c", "program", &[])
}

/// Starts the program under `cairn heap`; it ends when there is a file `stop`.
fn recorded(directory: &Path, options: &[&str]) -> (Child, PathBuf) {
    let program = live(directory);
    let mut command = cairn();
    command.args(["heap", "-o", "it.cairn"]).args(options).arg("--").arg(program).args(["2", LONG, "stop"]);
    let child = command
        .current_dir(directory)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let path = directory.join("it.cairn");
    (child, path)
}

fn wait_for_allocations(path: &Path, least: u64) {
    wait_for("allocations", || (allocations(path)? >= least).then_some(()));
}

fn allocations(path: &Path) -> Option<u64> {
    let mut heap = LiveHeap::open(path).ok()?;
    while heap.update().ok()?.is_behind {}
    Some(heap.snapshot().profile.totals.allocations)
}

fn process_of(path: &Path) -> String {
    Recording::open(path).unwrap().header().process.to_string()
}

fn end(directory: &Path, child: Child) -> Output {
    fs::write(directory.join("stop"), "").unwrap();
    child.wait_with_output().unwrap()
}

fn ctl(process: &str, what: &str) {
    assert!(run(cairn().args(["heap", "ctl", process, what])).status.success());
}

/// Waits until the program has heard of that.
fn wait_for_state(path: &Path, state: cairn_format::recording::control::State) {
    use std::os::unix::fs::FileExt;
    wait_for("the state", || {
        let mut word = [0; 8];
        let at = cairn_format::recording::control::STATE as u64;
        fs::File::open(path).unwrap().read_exact_at(&mut word, at).ok()?;
        (u64::from_le_bytes(word) == state.to_word()).then_some(())
    });
}

/// Each output that reports blocks that were not freed.
fn outputs(directory: &Path, path: &Path) -> Vec<(&'static str, String)> {
    let page = directory.join("page.html");
    let exported = directory.join("it.heaptrack.zst");
    let ask = |arguments: &[&str]| {
        let output = run(cairn().args(arguments).env("COLUMNS", "200"));
        text(&output.stdout) + &text(&output.stderr)
    };
    let name = path.to_str().unwrap();
    ask(&["report", "--no-symbols", "--force", "--html", page.to_str().unwrap(), name]);
    let export =
        ["export", "--no-symbols", "--force", "--to", "heaptrack", "-o", exported.to_str().unwrap(), name];
    vec![
        ("report", ask(&["report", "--no-symbols", name])),
        ("threads", ask(&["report", "--no-symbols", "--by", "thread", name])),
        ("functions", ask(&["report", "--no-symbols", "--by", "function", "--cost", "leaked", name])),
        ("diff", ask(&["diff", "--no-symbols", "--cost", "leaked", name, name])),
        ("export", ask(&export)),
    ]
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&run(cairn().args(["report", "--json", "--no-symbols"]).arg(path)).stdout).unwrap()
}

/// Checks that no block is called leaked if recording ended early or the program was killed.
fn check_alive(directory: &Path, path: &Path, end: Option<&str>, heading: &str) {
    for (what, text) in outputs(directory, path) {
        let calls = text.to_lowercase().replace("heaptrack calls leaked what was not freed: blocks", "");
        assert!(!calls.contains("leaked"), "{what}: {text}");
        assert!(what == "diff" || what == "threads" || text.contains(heading), "{what}: {text}");
    }
    let json = json(path);
    assert!(json["leaked_bytes"].as_u64().unwrap() > 0);
    assert_eq!((json["unfreed"].as_str(), json["recording"]["end"].as_str()), (Some("alive"), end));
    assert_eq!(
        json["recording"]["ended_before_program"].as_bool(),
        Some(matches!(end, Some("stopped" | "exec")))
    );
}

// Failed with: "Leaked (never freed)" and an end by `exit`, though recording had ended before.
#[test]
fn unfreed_is_alive_when_the_time_was_over_before_the_program() {
    let directory = scratch("unfreed-for");
    let (child, path) = recorded(&directory, &["--for", "1s"]);
    // However few there are in that time.
    wait_for_allocations(&path, 1);
    wait_for_state(&path, cairn_format::recording::control::State::Paused);
    let summary = text(&end(&directory, child).stderr);
    assert!(summary.contains("Most memory alive at the end") && !summary.contains("leaked"), "{summary}");
    check_alive(&directory, &path, Some("stopped"), "Alive when the recording ended (the program went on)");
}

// Failed with: "Leaked (never freed)", and no word of the time in which frees were not recorded.
#[test]
fn unfreed_is_alive_when_recording_was_stopped_for_a_while() {
    use cairn_format::recording::control::State;
    let directory = scratch("unfreed-stop");
    let (child, path) = recorded(&directory, &["--quiet"]);
    wait_for_allocations(&path, 1_000);
    let process = process_of(&path);
    ctl(&process, "stop");
    wait_for_state(&path, State::Paused);
    // As it is now: the program runs, and may free all.
    let now = json(&path);
    assert_eq!((now["unfreed"].as_str(), now["recording"]["end"].as_str()), (Some("alive"), None));
    std::thread::sleep(std::time::Duration::from_millis(100));
    ctl(&process, "start");
    wait_for_state(&path, State::Recording);
    end(&directory, child);
    check_alive(&directory, &path, Some("exit"), "Alive at the end (the recording was stopped for a while)");
    let report = text(&run(cairn().args(["report", "--no-symbols"]).arg(&path)).stdout);
    assert!(report.contains("note: the recording was stopped from "), "{report}");
}

// Failed with: "leaked" in the list of threads, "never freed" on the page.
#[test]
fn unfreed_is_alive_of_a_killed_program() {
    let directory = scratch("unfreed-killed");
    let (child, path) = recorded(&directory, &[]);
    wait_for_allocations(&path, 1_000);
    let _ = Command::new("kill").args(["-9", &process_of(&path)]).status();
    let summary = text(&child.wait_with_output().unwrap().stderr);
    assert!(summary.contains("Most memory alive at the end") && !summary.contains("leaked"), "{summary}");
    check_alive(&directory, &path, None, "Alive when the recording stops");
}

// Failed with: "Leaked (never freed)" of a process that goes on.
#[test]
fn unfreed_is_alive_after_a_detach() {
    let directory = scratch("unfreed-detach");
    let program = live(&directory);
    let mut running = Command::new(program);
    running.args(["2", LONG, "stop"]).current_dir(&directory).stdin(Stdio::null()).stdout(Stdio::null());
    let mut running = running.spawn().unwrap();
    let process = running.id().to_string();
    let mut command = cairn();
    command.args(["heap", "--attach", &process, "--for", "300ms", "-o", "it.cairn"]).current_dir(&directory);
    let attached = run(&mut command);
    let said = text(&attached.stderr);
    let path = directory.join("it.cairn");
    let goes_on = running.try_wait().unwrap().is_none();
    if attached.status.success() {
        assert!(said.contains("Most memory alive at the end") && !said.contains("leaked"), "{said}");
        check_alive(
            &directory,
            &path,
            Some("stopped"),
            "Alive when the recording ended (the program went on)",
        );
    } else {
        println!("skipped: nothing can be attached to here: {said}");
    }
    fs::write(directory.join("stop"), "").unwrap();
    assert!(running.wait().unwrap().success() && goes_on);
}

// Holds before and after: only the words of others are changed.
#[test]
fn unfreed_is_leaked_of_a_program_that_exits() {
    let directory = scratch("unfreed-exit");
    let (child, path) = recorded(&directory, &[]);
    wait_for_allocations(&path, 1_000);
    let summary = text(&end(&directory, child).stderr);
    assert!(summary.contains("Most memory leaked") && summary.contains("  leaked  "), "{summary}");
    let report = text(&run(cairn().args(["report", "--no-symbols"]).arg(&path)).stdout);
    assert!(report.contains("Leaked (never freed)"), "{report}");
    let json = json(&path);
    assert_eq!((json["unfreed"].as_str(), json["recording"]["end"].as_str()), (Some("leaked"), Some("exit")));
    assert_eq!(json["recording"]["ended_before_program"].as_bool(), Some(false));
}
