//! Damaged recordings: every command that reads recordings ends with the documented exit code and
//! says what is damaged.

#![cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
#![allow(clippy::print_stdout, reason = "a test says what it could not check here")]

#[allow(dead_code, reason = "each test needs a part of it")]
mod support;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use cairn_format::recording::{
    CHUNK_HEADER_BYTES, ChunkHeader, ChunkKind, FILE_HEADER_BYTES, SEGMENT_BYTES, control,
};
use serde_json::Value;
use support::{cairn, compile, recording, run, scratch};

/// Offset, header.
type Chunk = (usize, ChunkHeader);

fn chunks(bytes: &[u8]) -> Vec<Chunk> {
    let mut chunks = Vec::new();
    let mut at = FILE_HEADER_BYTES;
    while at + CHUNK_HEADER_BYTES <= bytes.len() {
        let Some(header) = ChunkHeader::read(&bytes[at..at + CHUNK_HEADER_BYTES]) else {
            // The trailer of a part of the file.
            at += 16;
            continue;
        };
        chunks.push((at, header));
        at += (CHUNK_HEADER_BYTES + header.stored_bytes as usize).next_multiple_of(8);
    }
    chunks
}

/// Flips a byte in the middle of the content of the last chunk of a kind.
fn flip(bytes: &mut [u8], kind: ChunkKind) {
    let of_kind: Vec<Chunk> = chunks(bytes).into_iter().filter(|(_, header)| header.kind == kind).collect();
    let (at, header) = of_kind.last().unwrap_or_else(|| panic!("no chunk {kind}"));
    bytes[at + CHUNK_HEADER_BYTES + header.stored_bytes as usize / 2] ^= 0x10;
}

fn cut(bytes: &mut Vec<u8>) {
    bytes.truncate(bytes.len() * 3 / 5);
}

/// The second segment of a lane of a spool, not the last one.
fn zero_segment(bytes: &mut [u8]) {
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let segments = bytes.len() / SEGMENT_BYTES;
    let lane = |segment: usize| (word(segment * SEGMENT_BYTES + 4), word(segment * SEGMENT_BYTES + 8));
    let sequence = |segment: usize| word(segment * SEGMENT_BYTES + 12);
    let is_inner = |&segment: &usize| {
        word(segment * SEGMENT_BYTES) != 0
            && sequence(segment) == 1
            && (1..segments).any(|other| lane(other) == lane(segment) && sequence(other) == 2)
    };
    let segment = (1..segments).find(is_inner).expect("a lane of three segments");
    bytes[segment * SEGMENT_BYTES..][..SEGMENT_BYTES].fill(0);
}

/// The state of a file, and the exit codes of commands that read events or only marks.
struct Case {
    name: &'static str,
    damage: fn(&mut Vec<u8>),
    is_spool: bool,
    events: i32,
    marks: i32,
}

const CASES: [Case; 7] = [
    Case { name: "whole", damage: |_| {}, is_spool: false, events: 0, marks: 0 },
    Case {
        name: "flipped-event",
        damage: |bytes| flip(bytes, ChunkKind::HEAP_STREAM),
        is_spool: false,
        events: 3,
        // Marks do not depend on the chunk that is damaged.
        marks: 0,
    },
    Case { name: "cut", damage: cut, is_spool: false, events: 3, marks: 3 },
    Case {
        name: "index",
        damage: |bytes| flip(bytes, ChunkKind::INDEX),
        is_spool: false,
        events: 3,
        marks: 3,
    },
    // The events answer, and nothing is missing.
    Case { name: "sums", damage: |bytes| flip(bytes, ChunkKind::SUMS), is_spool: false, events: 0, marks: 0 },
    Case { name: "whole-spool", damage: |_| {}, is_spool: true, events: 0, marks: 0 },
    Case { name: "zeroed-segment", damage: |bytes| zero_segment(bytes), is_spool: true, events: 3, marks: 3 },
];

struct Files {
    directory: PathBuf,
    /// Packed, with sums.
    packed: Vec<u8>,
    spool: Vec<u8>,
}

fn files(test: &str) -> Files {
    let directory = scratch(test);
    let program = compile(&directory, "threads_in_turn.c", "jobs", &["-fno-builtin"]);
    let recorded = run(cairn()
        .args(["heap", "--quiet", "--"])
        .arg(&program)
        .args(["3", "6000"])
        .current_dir(&directory));
    assert!(recorded.status.success());
    let path = recording(&directory).path;
    let library = {
        let recording = cairn_recording::Recording::open(&path).unwrap();
        let modules = recording.modules();
        let library = modules.iter().find(|module| module.path_text().contains("libcairn_preload"));
        PathBuf::from(library.unwrap().path_text().into_owned())
    };
    let added = run(cairn().args(["pack", "--in-place"]).arg(&path));
    assert!(added.status.success(), "{}", String::from_utf8_lossy(&added.stderr));
    let spool = directory.join("spool");
    let mut command = Command::new(&program);
    command.env("LD_PRELOAD", library).env("CAIRN_HEAP", format!("output={}", spool.display()));
    run(command.args(["3", "6000"]));
    let claimed = {
        let bytes = fs::read(&spool).unwrap();
        u64::from_le_bytes(bytes[control::CLAIMED_SEGMENTS..][..8].try_into().unwrap())
    };
    assert!(claimed > 4, "{claimed} segments");
    Files { packed: fs::read(path).unwrap(), spool: fs::read(spool).unwrap(), directory }
}

fn code(arguments: &[&str], path: &Path) -> (i32, Output) {
    let output = run(cairn().args(arguments).arg(path));
    (output.status.code().unwrap(), output)
}

/// Commands that read all events or the sums of them.
const OF_EVENTS: [&[&str]; 18] = [
    &["report", "--no-symbols"],
    &["report", "--no-symbols", "--json"],
    &["report", "--no-symbols", "--check"],
    &["report", "--no-symbols", "--by", "thread"],
    &["report", "--no-symbols", "--by", "function"],
    &["report", "--no-symbols", "--filter", "size=1.."],
    &["report", "--no-symbols", "--html", "OUT"],
    &["diff", "--no-symbols", "WHOLE"],
    &["flame", "--no-symbols", "-o", "OUT"],
    &["export", "--no-symbols", "--to", "pprof", "-o", "OUT"],
    &["export", "--no-symbols", "--to", "csv", "-o", "OUT"],
    &["export", "--no-symbols", "--to", "heaptrack", "-o", "OUT"],
    &["export", "--no-symbols", "--to", "firefox", "-o", "OUT"],
    &["play", "--no-symbols", "--heap"],
    &["play", "--no-symbols", "--heap", "--json"],
    &["play", "--no-symbols", "--heap", "--collapse"],
    &["pack", "-o", "OUT"],
    &["pack", "-o", "-"],
];
/// Commands that read no allocations.
const OF_MARKS: [&[&str]; 3] =
    [&["play", "--no-symbols"], &["play", "--no-symbols", "--json"], &["play", "--no-symbols", "--modules"]];

// Failed before: `play --heap`, `pack` and all of `report`, `diff`, `flame` and `export` of a
// recording with sums ended with 0 on a flipped event, and all commands did on a damaged index.
#[test]
fn damage_is_reported_by_every_command_that_reads() {
    let files = files("damage");
    let whole = files.directory.join("whole-file");
    fs::write(&whole, &files.packed).unwrap();
    let mut wrong = Vec::new();
    for case in &CASES {
        let mut bytes = if case.is_spool { files.spool.clone() } else { files.packed.clone() };
        (case.damage)(&mut bytes);
        let path = files.directory.join(case.name);
        fs::write(&path, &bytes).unwrap();
        let expected = OF_EVENTS.iter().map(|arguments| (*arguments, case.events));
        let expected = expected.chain(OF_MARKS.iter().map(|arguments| (*arguments, case.marks)));
        for (arguments, expected) in expected {
            let out = files.directory.join("out");
            let _ = fs::remove_file(&out);
            let arguments: Vec<&str> = arguments
                .iter()
                .map(|&word| match word {
                    "OUT" => out.to_str().unwrap(),
                    "WHOLE" => whole.to_str().unwrap(),
                    word => word,
                })
                .collect();
            let (code, output) = code(&arguments, &path);
            let errors = String::from_utf8_lossy(&output.stderr);
            if code != expected || (expected == 3 && errors.trim().is_empty()) {
                wrong.push(format!(
                    "{} {}: {code} in place of {expected}: {errors}",
                    case.name,
                    arguments.join(" ")
                ));
            }
        }
        // All of it, the sums as well.
        let (code, output) = code(&["pack", "--check"], &path);
        let is_damaged = case.events == 3 || case.name == "sums";
        if code != if is_damaged { 3 } else { 0 } {
            wrong.push(format!(
                "{} pack --check: {code}: {}",
                case.name,
                String::from_utf8_lossy(&output.stderr)
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

// Failed before: nothing was said, in any of them.
#[test]
fn damage_behind_sums_is_reported() {
    let files = files("damage_reported");
    let path = files.directory.join("it.cairn");
    let mut bytes = files.packed.clone();
    flip(&mut bytes, ChunkKind::HEAP_STREAM);
    fs::write(&path, &bytes).unwrap();
    let whole = files.directory.join("whole-file");
    fs::write(&whole, &files.packed).unwrap();
    let text = |path: &Path| String::from_utf8(code(&["report", "--no-symbols"], path).1.stdout).unwrap();
    let damaged = text(&path);
    let third = damaged.lines().nth(2).unwrap();
    assert!(third.starts_with("damaged: chunk HEP2") && third.contains("checksum"), "{damaged}");
    let rest = |text: &str| {
        let lines: Vec<String> =
            text.lines().filter(|line| !line.starts_with("damaged:")).map(str::to_owned).collect();
        lines
    };
    assert_eq!(rest(&damaged), rest(&text(&whole)), "the sums are those from before the damage");
    let (_, output) = code(&["report", "--no-symbols", "--json"], &path);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let findings = report["findings"].as_array().unwrap();
    assert!(findings.iter().any(|finding| finding.as_str().unwrap().contains("checksum")), "{findings:?}");
    let page = files.directory.join("page.html");
    code(&["report", "--no-symbols", "--html", page.to_str().unwrap()], &path);
    match data_of(&fs::read_to_string(page).unwrap()) {
        Some(data) => assert!(data.contains("checksum does not match"), "the page says it"),
        None => println!("the page was not looked into: there is no python3"),
    }
}

/// The data of a page, which is compressed in it.
fn data_of(page: &str) -> Option<String> {
    let data = page.split(['"', '>', '<', '\'']).max_by_key(|part| part.len())?.to_owned();
    let script = "import sys, base64, zlib\n\
                  data = base64.b64decode(sys.stdin.read())\n\
                  sys.stdout.buffer.write(zlib.decompress(data, -15))";
    let mut child = Command::new("python3")
        .args(["-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .ok()?;
    let mut input = child.stdin.take()?;
    let writer = std::thread::spawn(move || input.write_all(data.as_bytes()));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}
