//! `cairn decode` as a user runs it: arguments and standard input in; output, complaints and exit
//! code out.

use std::path::PathBuf;

use cairn_format::{AbsoluteAddress, SliceSink};
use cairn_logs::convert::base64_text;
use cairn_wire::lws;
use serde_json::json;
use snapbox::cmd::{Command, cargo_bin};
use snapbox::{file, str};

fn cairn() -> Command {
    let repository = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    Command::new(cargo_bin!("cairn")).current_dir(repository).env("COLUMNS", "100").env("NO_COLOR", "1")
}

const DOCUMENTED: &str = "~m#IF0BmUQugNCkgCnkhdAYpQa6wAAV";
const DECODED: &str = "~b#size: 7520, 0x406651 0x406852 0x406c1b 0x406294 \n";

#[test]
fn help_matches_the_snapshots() {
    cairn().args(["play", "--help"]).assert().success().stdout_eq(file!["snapshots/play-help.txt"]);
    cairn().args(["top", "--help"]).assert().success().stdout_eq(file!["snapshots/top-help.txt"]);
    // On Windows these name what needs Linux.
    if cfg!(not(windows)) {
        cairn().arg("--help").assert().success().stdout_eq(file!["snapshots/help.txt"]);
        let help = cairn().args(["snapshot", "--help"]).assert().success();
        help.stdout_eq(file!["snapshots/snapshot-help.txt"]);
    }
    cairn().args(["view", "--help"]).assert().success().stdout_eq(file!["snapshots/view-help.txt"]);
    cairn().args(["decode", "--help"]).assert().success().stdout_eq(file!["snapshots/decode-help.txt"]);
}

#[test]
fn a_text_given_as_argument_is_decoded() {
    cairn().args(["decode", DOCUMENTED]).assert().success().stdout_eq(DECODED).stderr_eq("");
}

#[test]
fn decode_finds_marks_anywhere_in_a_line_and_skips_other_lines() {
    let log = format!("boot\n[00:00:01] N: lost {DOCUMENTED} bytes\r\nHello123\n");
    cairn().arg("decode").stdin(log.clone()).assert().success().stdout_eq(DECODED);
    let printed = format!("boot\n{DECODED}Hello123\n");
    cairn().args(["decode", "--keep", "-"]).stdin(log).assert().success().stdout_eq(printed);
}

#[test]
fn decode_reports_a_bad_line_and_continues() {
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
        let there =
            cairn().args(["decode", DOCUMENTED, "--format", format, "--text", text]).output().unwrap();
        assert!(there.status.success(), "{format}: {}", String::from_utf8_lossy(&there.stderr));
        let back = cairn().args(["decode", "--input-format", format]).stdin(there.stdout).output().unwrap();
        let line = String::from_utf8(back.stdout).unwrap();
        assert!(line.ends_with("0x406651 0x406852 0x406c1b 0x406294 \n"), "{format}: {line}");
    }
}

#[test]
fn swift_json_goes_both_ways() {
    let json = cairn()
        .args(["decode", DOCUMENTED, "--format", "swift-json", "--architecture", "arm"])
        .output()
        .unwrap();
    let json = String::from_utf8(json.stdout).unwrap();
    assert_eq!(json, "{\"architecture\": \"arm\", \"backtrace\": \"ASpAZlEhAgEhA8kh9nkA\"}\n");
    cairn().arg("decode").stdin(json).assert().success().stdout_eq(str![[r#"
~b#0x406651 0x406852 0x406c1b 0x406294 

"#]]);
}

#[test]
fn raw_bytes_of_several_records_are_all_read() {
    let raw = cairn()
        .args(["decode", DOCUMENTED, DOCUMENTED, "--format", "cbf", "--text", "raw"])
        .output()
        .unwrap()
        .stdout;
    assert_eq!(raw[0], 0x02);
    let lines = cairn().args(["decode", "--input-format", "cbf"]).stdin(raw).output().unwrap().stdout;
    assert_eq!(lines.iter().filter(|&&byte| byte == b'\n').count(), 2);
}

#[test]
fn a_few_bytes_that_claim_many_frames_end_soon() {
    cairn().args(["decode", "--input-format", "cbf", "--json", "02187f8f0fffffffffffffff00"]).assert().code(1).stdout_eq(str![[r#"
{"schema":1,"input":"argument","line":1,"format":"cbf","word_bits":64,"frames":[{"kind":"program-counter","address":"0x7f","times":1152921504606846976}],"faults":["bad CBF record: a frame is repeated more often than allowed, at byte 3"]}

"#]]);
}

#[test]
fn decode_reports_missing_files_and_texts_without_stacks() {
    cairn().args(["decode", "no/such.log"]).assert().code(1).stderr_eq(str![[r#"
cairn: no/such.log: [..] (os error [..])

"#]]);
    cairn().args(["decode", "fixtures"]).assert().code(1).stderr_eq(str![[r#"
cairn: fixtures: is a directory; name the files in it

"#]]);
    cairn().args(["decode", "-e", "README.md", DOCUMENTED]).assert().code(1).stderr_eq(str![[r#"
cairn: README.md: cannot read symbols: [..]

"#]]);
    cairn().args(["decode", "Hello123"]).assert().code(1).stderr_eq(str![[r#"
cairn: argument:1: no call stack found in this text; name its format with --input-format

"#]]);
}

#[test]
fn arguments_that_contradict_each_other_are_refused() {
    cairn().args(["decode", "--totals", "--format", "cbf", DOCUMENTED]).assert().code(2);
    cairn().args(["decode", "--encoding", "hex", DOCUMENTED]).assert().code(2);
    cairn().args(["decode", "--load-address", "0x1000", DOCUMENTED]).assert().code(2);
    cairn().args(["decode", "--format", "swift-json", DOCUMENTED]).assert().code(2);
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

/// Writes a blob of three 47-bit addresses and a size of 2^31 or more.
///
/// The 64-bit libwebsockets of 2022 writes it like this.
fn damaged(size: u64) -> String {
    // For a value of k bits, k above 32, that encoder writes 1 for bit 31 and the lowest k - 32
    // bits on top.
    let damage = |value: u64| {
        let bits = 64 - value.leading_zeros();
        if bits <= 32 {
            value
        } else {
            (value & 0x7fff_ffff | 1 << 31) | (value & ((1 << (bits - 32)) - 1)) << 32
        }
    };
    let addresses = [0x7f12_3456_7890, 0x5555_5555_4000].map(|value| AbsoluteAddress::new(damage(value)));
    let mut buffer = [0; lws::BLOB_BUFFER_BYTES];
    let mut sink = SliceSink::new(&mut buffer);
    lws::encode(&addresses, damage(size), &mut sink).unwrap();
    format!("~m#{}", base64_text(sink.written()))
}

// Failed with: "~b#size: 114694715546, 0x7890b4567890 0x40005555c000" and exit code 0.
#[test]
fn decode_flags_values_that_libwebsockets_damaged() {
    let log = damaged(0x12_3456_789a);
    let decode =
        |arguments: &[&str]| cairn().arg("decode").args(arguments).stdin(log.clone()).assert().code(1);
    let complaint = "cairn: standard input:1: 2 addresses and the size are uncertain (marked with ?): [..]\n";
    decode(&[]).stdout_eq("~b#size: 114694715546?, 0x7890b4567890? 0x4000d5554000? \n").stderr_eq(complaint);
    decode(&["--word", "64", "-e", "fixtures/device/app.elf"]).stdout_eq(str![[r#"
~b#size: 114694715546?, 0x7890b4567890? 0x4000d5554000? 
    0x7890b4567890? ??
    0x4000d5554000? ??


"#]]);
    decode(&["--totals"]).stdout_eq(str![[r#"
# 1 allocation without a certain size, not in the total
# Total instrumented allocation 0

"#]]);
    for (to, arguments) in
        [("lws", &[][..]), ("cbf", &[]), ("xnu", &[]), ("swift-json", &["--architecture", "x86_64"])]
    {
        let decoded = decode(&[&["--format", to], arguments].concat());
        let errors = String::from_utf8_lossy(&decoded.get_output().stderr).into_owned();
        assert!(errors.contains("2 addresses and the size are uncertain"), "{to}: {errors}");
        assert_eq!(errors.contains("the target format has no mark for them"), to != "lws", "{to}: {errors}");
    }
    let json = decode(&["--json"]).get_output().stdout.clone();
    let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
    assert_eq!((&json["uncertain_frames"], &json["uncertain_size"]), (&json!([0, 1]), &json!(true)));
    decode(&["--strict"]).stdout_eq("");
}

// Failed with: a cluster of sound addresses in the totals.
#[test]
fn totals_mark_damaged_addresses_and_sum_their_sizes() {
    let log = format!("{0}\n{0}\n~b#0x1000 \n~b#size: 7, 0x2000 \n", damaged(16));
    cairn().args(["decode", "--totals"]).stdin(log).assert().code(1).stdout_eq(str![[r#"
32 bytes in 2 allocations of 16
    0x7890b4567890?
    0x4000d5554000?

7 bytes in 1 allocation
    0x2000

# 1 allocation without a certain size, not in the total
# Total instrumented allocation 39

"#]]);
}

// Failed with: "~b#size: 5, 0x0 0x0", and 5 bytes in the totals.
#[test]
fn decode_flags_kernel_addresses_that_libwebsockets_misstates() {
    // lws-p051 of the vectors: the width of a 64-bit literal is stated as 0, so that all behind it
    // is misread.
    let blob = "100100468acf00468acf004011a0004011a00044400017";
    cairn()
        .args(["decode", "--input-format", "lws", blob])
        .assert()
        .code(1)
        .stdout_eq("~b#size: 5?, 0x0? 0x0? \n");
    cairn().args(["decode", "--input-format", "lws", "--totals", blob]).assert().code(1).stdout_eq(str![[
        r#"
# 1 allocation without a certain size, not in the total
# Total instrumented allocation 0

"#
    ]]);
}

// Failed with: empty standard output.
#[test]
fn damaged_blobs_without_addresses_keep_their_size() {
    let mut buffer = [0; lws::BLOB_BUFFER_BYTES];
    let mut sink = SliceSink::new(&mut buffer);
    lws::encode(&[], 7520, &mut sink).unwrap();
    let mut blob = sink.written().to_vec();
    *blob.last_mut().unwrap() += 1;
    let log = format!("~m#{}\n", base64_text(&blob));
    cairn()
        .arg("decode")
        .stdin(log.clone())
        .assert()
        .code(1)
        .stdout_eq("~b#size: 7520, \n")
        .stderr_eq("cairn: standard input:1: bad blob: length field says 7 bytes, but there are 6[..]\n");
    cairn().args(["decode", "--totals"]).stdin(log).assert().code(1).stdout_eq(str![[r#"
7520 bytes in 1 allocation

# Total instrumented allocation 7520

"#]]);
    // A program that gave up has written neither.
    cairn().args(["decode", "~m#AAA="]).assert().code(1).stdout_eq("");
}

// Failed with: "~b#0x1000 0x1010 0x2000 ...5 ..." without an option to tell the kinds apart.
#[test]
fn kinds_of_frames_are_printed_and_read_back() {
    // pc 0x1000, ra 0x1010, async 0x2000, five omitted, truncated.
    let record = "021910002010310ff04401";
    let decode = |text: &str, more: &[&str]| {
        let output = cairn().args(["decode", "--kinds"]).args(more).stdin(text.to_owned()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let line = decode(record, &["--input-format", "cbf"]);
    assert_eq!(line, "~b#pc:0x1000 ra:0x1010 async:0x2000 ...5 ... \n");
    assert_eq!(decode(&line, &[]), line);
    let plain = cairn().args(["decode", "--input-format", "cbf", record]).output().unwrap().stdout;
    assert_eq!(String::from_utf8(plain).unwrap(), "~b#0x1000 0x1010 0x2000 ...5 ... \n");
    // The line holds all that the record does.
    let back =
        cairn().args(["decode", "--format", "cbf", "--text", "hex"]).stdin(line).output().unwrap().stdout;
    assert_eq!(String::from_utf8(back).unwrap().trim(), record);
    let named = decode("pc:0x10338 ra:0x10338\n", &["-e", "fixtures/device/app.elf"]);
    assert!(named.contains("    pc:0x10338 ") && named.contains("    ra:0x10338 "), "{named}");
}

// Failed with: `no "size: " behind ~b#` for the first, no output and exit code 0 for the others.
#[test]
fn lines_of_addresses_are_read_back() {
    for line in [
        "~b#0x1000 0x1010 ",
        "N: ~b#0x1000 0x1010",
        "0x1000 0x1010",
        "\t0x1000, 0x1010\r",
        "ra:0x1000 ra:0x1010",
    ] {
        let decoded = cairn().arg("decode").stdin(format!("{line}\n")).assert().success();
        decoded.stdout_eq("~b#0x1000 0x1010 \n");
    }
    cairn().args(["decode", "0x1000 0x1010"]).assert().success().stdout_eq("~b#0x1000 0x1010 \n");
    cairn().args(["decode", "0x1000"]).assert().success().stdout_eq("~b#0x1000 \n");
    // Unreadable stacks are reported and the rest is printed; other lines are not taken for stacks.
    let log = "0x1000 0x12345678901234567\n0x1000 in main\n... \n";
    cairn()
        .arg("decode")
        .stdin(log)
        .assert()
        .code(1)
        .stdout_eq("~b#0x1000 \n")
        .stderr_eq("cairn: standard input:1: bad number (at character 9)\n");
    let json = cairn().args(["decode", "--json", "0x1000"]).output().unwrap().stdout;
    let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
    assert_eq!(json["format"], "text");
}

// Failed with: exit code 0 and two 64-bit addresses.
#[test]
fn word_sizes_that_xnu_does_not_pack_are_refused() {
    let bytes = "00100000000000001010000000000000";
    for word in ["16", "32"] {
        let refused =
            cairn().args(["decode", "--input-format", "xnu", "--word", word, bytes]).assert().code(2);
        let errors = String::from_utf8_lossy(&refused.get_output().stderr).into_owned();
        assert!(errors.contains("--word does not apply to --input-format xnu"), "{errors}");
    }
    let read = cairn().args(["decode", "--input-format", "xnu", "--word", "64", bytes]).assert().success();
    read.stdout_eq("~b#0x1000 0x1010 \n");
    cairn().args(["decode", "--kernel-base", "0x1000", DOCUMENTED]).assert().code(2);
}

/// Runs the command in 256 MiB of address space, where there are shells that limit it.
///
/// Unbounded memory then fails the command instead of filling the machine.
fn bounded(arguments: &[&str], input: &[u8]) -> (std::process::ExitStatus, Vec<u8>, String) {
    let limit = "ulimit -v 262144; exec \"$@\"";
    let command = if cfg!(unix) {
        Command::new("sh").args(["-c", limit, "sh"]).arg(cargo_bin!("cairn"))
    } else {
        Command::new(cargo_bin!("cairn"))
    };
    let mut command = command.arg("decode");
    command = command.args(arguments).stdin(input.to_vec()).env("NO_COLOR", "1");
    let output = command.output().unwrap();
    (output.status, output.stdout, String::from_utf8_lossy(&output.stderr).into_owned())
}

// Failed with: "memory allocation of 268435456 bytes failed" (without a limit: all memory, then
// SIGKILL).
#[test]
fn repeats_are_converted_in_bounded_memory() {
    // 0x7f, and 2^64 - 1 more of it.
    let bytes = b"02187f8fffffffffffffffff00";
    let from_cbf = ["--input-format", "cbf", "--text", "hex"];
    let swift_json = ["--architecture", "x86_64"];
    for (to, more) in [("cbf", &[][..]), ("swift-json", &swift_json), ("xnu", &[]), ("lws", &[])] {
        let arguments = [&from_cbf[..], &["--format", to], more].concat();
        let (status, output, errors) = bounded(&arguments, bytes);
        assert_eq!(status.code(), Some(1), "{to}: {errors}");
        let most = if to == "xnu" { 17 << 20 } else { 1 << 11 };
        assert!(!output.is_empty() && output.len() < most, "{to}: {} bytes", output.len());
    }
    // All frames are there, or counted.
    let (_, cbf, errors) = bounded(&[&from_cbf[..], &["--format", "cbf"]].concat(), bytes);
    assert!(errors.contains("18446744073642442750 repeats of frames"), "{errors}");
    let (_, text, _) = bounded(&["--input-format", "cbf", "--json"], &cbf);
    let json: serde_json::Value = serde_json::from_slice(&text).unwrap();
    assert_eq!(json["frames"][0]["times"], 2 + (1_u64 << 26));
    assert_eq!(json["frames"][1]["omitted"], u64::MAX - 1 - (1 << 26));
    // Swift 6.2 has one instruction for them all.
    let swift = [&from_cbf[..], &["--format", "cbf", "--dialect", "swift-6.2"]].concat();
    assert_eq!(bounded(&swift, bytes).1, b"02107f8fffffffffffffffff\n");
}

// Failed with: no end within ten minutes.
#[test]
fn endlessly_repeated_marks_are_not_searched_for_addresses() {
    // One omitted frame, and 65536 times 1048577 more of it, each `rep` within what the format
    // allows.
    let line = ["02", "40", &"8a100001".repeat(1 << 16), "00"].concat();
    let (status, output, _) = bounded(&[], line.as_bytes());
    assert_eq!((status.code(), output), (Some(0), vec![]));
}

// Failed with: "memory allocation of 419430400 bytes failed".
#[test]
fn records_are_printed_as_they_come() {
    // Two million records of no frame: info byte and end.
    let input = [0x02, 0x00].repeat(2 << 20);
    let (status, output, errors) = bounded(&["--input-format", "cbf", "--encoding", "raw"], &input);
    assert_eq!(status.code(), Some(0), "{errors}");
    assert_eq!(output.len(), (2 << 20) * b"~b#\n".len());
}

// Failed with: "memory allocation failed" (without a limit: 483 MiB for these 148 KB).
#[test]
fn paths_of_an_image_map_are_read_in_bounded_memory() {
    // The first image defines a prefix of 62 * 63 bytes; the others repeat it thirty times each.
    let mut map = vec![0x02, 0x00, 0xa0, 0x20];
    let image = [0x00, 0x10, 0x10, 0x00];
    map.extend(image);
    for piece in 0..62 {
        map.push(63);
        map.extend([b'a'; 62]);
        map.push(if piece == 61 { b'/' } else { b'a' });
    }
    map.extend([1, b'x', 0]);
    // Code 32 is what is before the slash.
    for _ in 1..0x1020 {
        map.extend(image);
        map.extend([0x80 | 32; 30]);
        map.push(0);
    }
    for arguments in [&["--json"][..], &[], &["--format", "cif", "--text", "raw"]] {
        let arguments = [&["--input-format", "cif", "--encoding", "raw"], arguments].concat();
        let (status, output, errors) = bounded(&arguments, &map);
        assert_eq!(status.code(), Some(1), "{errors}");
        assert!(errors.contains("the paths of this image map have more than"), "{errors}");
        assert!(!output.is_empty(), "{arguments:?}");
    }
    let strict = bounded(&["--input-format", "cif", "--encoding", "raw", "--strict"], &map);
    assert_eq!((strict.0.code(), strict.1.len()), (Some(1), 0));
}
