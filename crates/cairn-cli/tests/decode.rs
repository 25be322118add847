//! `cairn decode` as a user runs it: arguments and standard input in; output, complaints and exit code out.

use std::path::PathBuf;

use snapbox::cmd::{Command, cargo_bin};
use snapbox::{file, str};

fn cairn() -> Command {
    let repository = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    Command::new(cargo_bin!("cairn")).current_dir(repository).env("COLUMNS", "100").env("NO_COLOR", "1")
}

const DOCUMENTED: &str = "~m#IF0BmUQugNCkgCnkhdAYpQa6wAAV";
const DECODED: &str = "~b#size: 7520, 0x406651 0x406852 0x406c1b 0x406294 \n";

#[test]
fn help_is_what_the_snapshots_show() {
    cairn().arg("--help").assert().success().stdout_eq(file!["snapshots/help.txt"]);
    cairn().args(["play", "--help"]).assert().success().stdout_eq(file!["snapshots/play-help.txt"]);
    cairn().args(["top", "--help"]).assert().success().stdout_eq(file!["snapshots/top-help.txt"]);
    cairn().args(["snapshot", "--help"]).assert().success().stdout_eq(file!["snapshots/snapshot-help.txt"]);
    cairn().args(["view", "--help"]).assert().success().stdout_eq(file!["snapshots/view-help.txt"]);
    cairn().args(["decode", "--help"]).assert().success().stdout_eq(file!["snapshots/decode-help.txt"]);
}

#[test]
fn a_text_given_as_argument_is_decoded() {
    cairn().args(["decode", DOCUMENTED]).assert().success().stdout_eq(DECODED).stderr_eq("");
}

#[test]
fn a_mark_is_found_anywhere_in_a_line_and_other_lines_are_passed_over() {
    let log = format!("boot\n[00:00:01] N: lost {DOCUMENTED} bytes\r\nHello123\n");
    cairn().arg("decode").stdin(log.clone()).assert().success().stdout_eq(DECODED);
    let kept = format!("boot\n{DECODED}Hello123\n");
    cairn().args(["decode", "--keep", "-"]).stdin(log).assert().success().stdout_eq(kept);
}

#[test]
fn a_bad_line_is_told_with_its_number_and_the_rest_goes_on() {
    let log = format!("fine\n~m#IF0BmUQugNCkgCnkhdAYpQ==\n{DOCUMENTED}\n");
    cairn()
        .arg("decode")
        .stdin(log)
        .assert()
        .code(1)
        .stdout_eq(str![[r#"
~b#0x406651 0x406852 0x406c1b 
~b#size: 7520, 0x406651 0x406852 0x406c1b 0x406294 

"#]])
        .stderr_eq(str![[r#"
cairn: standard input:2: bad blob: [..]
...
"#]]);
}

#[test]
fn strict_refuses_what_is_damaged() {
    cairn().args(["decode", "--strict", "~m#IF0BmUQugNCkgCnkhdAYpQ=="]).assert().code(1).stdout_eq("");
}

#[test]
fn the_device_log_is_named_and_totalled() {
    let device = ["-e", "fixtures/device/app.elf", "fixtures/device/device.log"];
    let totals = cairn().args(["decode", "--totals"]).args(device).assert().success();
    totals.stdout_eq(file!["snapshots/device-totals.txt"]);
    let named = cairn().arg("decode").args(device).assert().success();
    named.stdout_eq(file!["snapshots/device-named.txt"]);
}

#[test]
fn totals_as_json_agree_with_the_log() {
    let output =
        cairn().args(["decode", "--totals", "--json", "fixtures/device/device.log"]).output().unwrap();
    let totals: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let clusters = totals["clusters"].as_array().unwrap();
    let sum: u64 = clusters.iter().map(|cluster| cluster["size"].as_u64().unwrap()).sum();
    assert_eq!(totals["total_size"], sum);
    assert_eq!(clusters[0]["size"], 5 * 1408);
    assert_eq!(clusters[0]["frames"][0]["address"], "0x10338");
}

#[test]
fn every_format_converts_to_every_other_and_back() {
    for (format, text) in [("cbf", "base64"), ("cbf", "hex"), ("xnu", "hex"), ("lws", "base64")] {
        let there = cairn().args(["decode", DOCUMENTED, "--to", format, "--text", text]).output().unwrap();
        assert!(there.status.success(), "{format}: {}", String::from_utf8_lossy(&there.stderr));
        let back = cairn().args(["decode", "--from", format]).stdin(there.stdout).output().unwrap();
        let line = String::from_utf8(back.stdout).unwrap();
        assert!(line.ends_with("0x406651 0x406852 0x406c1b 0x406294 \n"), "{format}: {line}");
    }
}

#[test]
fn swift_json_goes_both_ways() {
    let json =
        cairn().args(["decode", DOCUMENTED, "--to", "swift-json", "--architecture", "arm"]).output().unwrap();
    let json = String::from_utf8(json.stdout).unwrap();
    assert_eq!(json, "{\"architecture\": \"arm\", \"backtrace\": \"ASpAZlEhAgEhA8kh9nkA\"}\n");
    cairn().arg("decode").stdin(json).assert().success().stdout_eq(str![[r#"
~b#0x406651 0x406852 0x406c1b 0x406294 

"#]]);
}

#[test]
fn raw_bytes_of_several_records_are_all_read() {
    let raw = cairn()
        .args(["decode", DOCUMENTED, DOCUMENTED, "--to", "cbf", "--text", "raw"])
        .output()
        .unwrap()
        .stdout;
    assert_eq!(raw[0], 0x02);
    let lines = cairn().args(["decode", "--from", "cbf"]).stdin(raw).output().unwrap().stdout;
    assert_eq!(lines.iter().filter(|&&byte| byte == b'\n').count(), 2);
}

#[test]
fn a_few_bytes_that_claim_many_frames_end_soon() {
    cairn().args(["decode", "--from", "cbf", "--json", "02187f8f0fffffffffffffff00"]).assert().code(1).stdout_eq(str![[r#"
{"schema":1,"input":"argument","line":1,"format":"cbf","word_bits":64,"frames":[{"kind":"program-counter","address":"0x7f","times":1152921504606846976}],"faults":["bad CBF record: a frame is repeated more often than allowed, at byte 3"]}

"#]]);
}

#[test]
fn what_is_missing_or_no_stack_is_told() {
    cairn().args(["decode", "no/such.log"]).assert().code(1).stderr_eq(str![[r#"
cairn: no/such.log: No such file or directory (os error 2)

"#]]);
    cairn().args(["decode", "fixtures"]).assert().code(1).stderr_eq(str![[r#"
cairn: fixtures: is a directory; name the files in it

"#]]);
    cairn().args(["decode", "-e", "README.md", DOCUMENTED]).assert().code(1).stderr_eq(str![[r#"
cairn: README.md: cannot read symbols: [..]

"#]]);
    cairn().args(["decode", "Hello123"]).assert().code(1).stderr_eq(str![[r#"
cairn: argument:1: no call stack found in this text; name its format with --from

"#]]);
}

#[test]
fn arguments_that_contradict_each_other_are_refused() {
    cairn().args(["decode", "--totals", "--to", "cbf", DOCUMENTED]).assert().code(2);
    cairn().args(["decode", "--encoding", "hex", DOCUMENTED]).assert().code(2);
    cairn().args(["decode", "--load-address", "0x1000", DOCUMENTED]).assert().code(2);
    cairn().args(["decode", "--to", "swift-json", DOCUMENTED]).assert().code(2);
}

#[test]
fn control_characters_of_a_log_are_not_printed_by_complaints() {
    let output = cairn().args(["decode", "~m#\u{1b}[31m"]).output().unwrap();
    assert!(!output.stderr.contains(&0x1b));
}

#[test]
fn a_closed_pipe_is_success() {
    let log = format!("{DOCUMENTED}\n").repeat(100_000);
    let path = std::env::temp_dir().join(format!("cairn-closed-pipe-{}", std::process::id()));
    std::fs::write(&path, log).unwrap();
    let mut child = std::process::Command::new(cargo_bin!("cairn"))
        .arg("decode")
        .arg(&path)
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    std::fs::remove_file(&path).unwrap();
    assert!(output.status.success(), "{:?}", output.status);
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

#[test]
fn completions_know_the_subcommands() {
    for shell in ["bash", "zsh", "fish"] {
        let output = cairn().args(["completions", shell]).output().unwrap();
        assert!(output.status.success());
        assert!(String::from_utf8(output.stdout).unwrap().contains("decode"), "{shell}");
    }
}
