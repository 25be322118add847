//! Names in lists: shortened as people read them; cut to the width of a terminal, never in a pipe;
//! their places never cut.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

#[allow(dead_code, reason = "it serves other tests too")]
mod support;

use std::path::Path;
use std::process::{Command, Stdio};

use support::{cairn, compile, run, scratch};
use unicode_width::UnicodeWidthStr;

const COLUMNS: usize = 100;

/// The lists of the recording `it.cairn`, by each command that has any. Frames of libraries have
/// the longest names.
const LISTS: &[&[&str]] = &[
    &["report", "it.cairn"],
    &["report", "it.cairn", "--internals", "--by", "line", "--cost", "allocated"],
    &["report", "it.cairn", "--internals", "--by", "callers"],
    &["diff", "it.cairn", "--internals", "--from", "0s", "--cost", "allocated"],
    &["top", "it.cairn", "--internals", "--plain", "--once", "--by", "line"],
];

fn in_pipe(directory: &Path, arguments: &[&str]) -> String {
    let output = run(cairn().args(arguments).current_dir(directory));
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn on_terminal(directory: &Path, arguments: &[&str]) -> String {
    let line = format!(
        "stty rows 50 cols {COLUMNS}; exec '{}' {}",
        env!("CARGO_BIN_EXE_cairn"),
        arguments.join(" ")
    );
    let output = Command::new("script")
        .args(["-qfec", &line, "/dev/null"])
        .current_dir(directory)
        .env("NO_COLOR", "1")
        .env("TERM", "xterm-256color")
        .env("SHELL", "/bin/sh")
        .env_remove("COLUMNS")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    // Progress is a line that is written over.
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| line.rsplit("\u{1b}[2K").next().unwrap().trim_end().to_owned() + "\n").collect()
}

fn record(test: &str) -> (std::path::PathBuf, String) {
    let directory = scratch(test);
    let program = compile(&directory, "templates.cpp", "program", &["-std=c++17", "-O1"]);
    let mut command = cairn();
    command.args(["heap", "-o", "it.cairn", "--"]).arg(&program).current_dir(&directory);
    let output = run(command.stdin(Stdio::null()));
    assert!(output.status.success());
    (directory, String::from_utf8(output.stderr).unwrap())
}

// Failed with: `_ZSt11make_sharedIN4shop5Order…`, `std::map<…>::operator[](…)`, `stl_map.h:5…`.
#[test]
fn names_in_a_pipe_are_short_and_whole() {
    let (directory, summary) = record("names-pipe");
    let lists: Vec<String> = LISTS.iter().map(|arguments| in_pipe(&directory, arguments)).collect();
    for list in lists.iter().chain([&summary]) {
        for long in [
            "_Z",
            "basic_string<char",
            "allocator<shop",
            "__cxx11",
            "shop::Order>>, std::less",
            "report_month(int)",
        ] {
            assert!(!list.contains(long), "{long} is in\n{list}");
        }
        let cut = list.lines().find(|line| line.contains("<…") || line.contains(", …"));
        assert_eq!(cut, None);
    }
    assert!(lists[0].contains("shop::report_month") && summary.contains("shop::report_month"));
    assert!(lists[2].contains("std::make_shared<shop::Order, shop::Order>"), "{}", lists[2]);
    let whole = "std::allocator_traits<std::allocator<int>>::allocate  alloc_traits.h:";
    assert!(lists[1].contains(whole), "{}", lists[1]);
    // On demand everything is there.
    let full = in_pipe(&directory, &["report", "it.cairn", "--by", "line", "--full", "--internals"]);
    assert!(full.contains("std::less<") && full.contains("report_month(int)"), "{full}");
    // JSON has whole names.
    let json = in_pipe(&directory, &["report", "it.cairn", "--json"]);
    assert!(json.contains("shop::report_month(int)"), "{json}");
}

// Failed with: places that end in `…`, because a long name took their room.
#[test]
fn names_on_a_terminal_leave_room_for_their_place() {
    let (directory, _) = record("names-terminal");
    for arguments in LISTS {
        let (pipe, list) = (in_pipe(&directory, arguments), on_terminal(&directory, arguments));
        // Callers have the longest names.
        if arguments.contains(&"callers") {
            assert!(list.contains('…'), "{arguments:?}:\n{list}");
        }
        // Notes are sentences of any length.
        for line in list.lines().filter(|line| !line.starts_with("note: ")) {
            assert!(line.width() <= COLUMNS, "{} columns: {line}", line.width());
            let place = line.split_once(" [").map(|(front, module)| {
                let file = front.rsplit("  ").next().unwrap_or_default();
                format!("  {file} [{module}")
            });
            if let Some(place) = place.filter(|place| place.contains(".h:") || place.contains(".cpp:")) {
                assert!(pipe.contains(place.trim_end()), "{arguments:?}: no {place} in\n{pipe}");
            }
        }
        assert_eq!(list.matches("[program]").count(), pipe.matches("[program]").count(), "{list}\n{pipe}");
    }
}
