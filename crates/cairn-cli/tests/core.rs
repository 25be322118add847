//! `cairn core` as its users call it: a running process, raw dumps, reports as heapprof's, and
//! everything that is no image.

#![cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
#![allow(clippy::print_stdout, reason = "a test says what it could not check here")]

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

const CAIRN: &str = env!("CARGO_BIN_EXE_cairn");
const VECTORS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/vectors");

fn core(arguments: &[&str]) -> Output {
    Command::new(CAIRN).arg("core").args(arguments).output().unwrap()
}

fn text(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn scratch(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

#[test]
fn the_report_of_heapprof_is_that_of_the_reference() {
    let vectors: Value =
        serde_json::from_slice(&fs::read(format!("{VECTORS}/heapprof.json")).unwrap()).unwrap();
    let mut compared = 0;
    for case in vectors["cases"].as_array().unwrap() {
        // The reference knows little-endian memory only, and reads some blocks otherwise.
        let same = case["robust_blocks"] == "same as reference_blocks" && case["endian"] == "little";
        let (Some(hex), Some(report)) = (case["memory_hex"].as_str(), case["reference_report"].as_str())
        else {
            continue;
        };
        let word = case["word_bits"].as_u64().unwrap() / 8;
        let offsets = case["reference_blocks"].as_array().map_or(&[][..], Vec::as_slice);
        let remainders: BTreeSet<u64> =
            offsets.iter().map(|block| block["offset"].as_u64().unwrap() % word).collect();
        // Dumps that begin anywhere: their blocks are aligned in memory and not in the file.
        let (true, [remainder]) = (same, &remainders.into_iter().collect::<Vec<u64>>()[..]) else { continue };
        let load_address = 0x10000 + (word - remainder) % word;
        let memory: Vec<u8> =
            (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect();
        let file = scratch(&format!("{}.bin", case["id"].as_str().unwrap()));
        fs::write(&file, memory).unwrap();
        let bits = case["word_bits"].to_string();
        let printed = text(&core(&[
            "--raw",
            &format!("{}@{load_address:#x}", file.display()),
            "--word",
            &bits,
            "--layout",
            "heapprof",
            "--format",
            "heapprof",
        ]));
        // The reference's names are made up.
        let without_names = |report: &str| -> Vec<String> {
            let line = |line: &str| match line.strip_prefix("  ") {
                Some(frame) => frame.split(' ').next().unwrap_or_default().to_owned(),
                None => line.to_owned(),
            };
            report.lines().map(line).collect()
        };
        assert_eq!(without_names(&printed), without_names(report), "{}", case["id"]);
        blocks_are_exported(&file, load_address, &bits);
        compared += 1;
    }
    assert!(compared >= 5, "{compared}");
}

/// Folded stacks add up to what cairn reads back from its own pprof file.
fn blocks_are_exported(file: &Path, load_address: u64, bits: &str) {
    let (profile, folded) = (scratch("core-export.pb.gz"), scratch("core-export.folded"));
    let raw = format!("{}@{load_address:#x}", file.display());
    let (to_pprof, to_folded) =
        (format!("pprof={}", profile.display()), format!("folded={}", folded.display()));
    let exports = ["--export", &to_pprof, "--export", &to_folded, "--force"];
    let output = core(&[&["--raw", &raw, "--word", bits, "--layout", "heapprof"], &exports[..]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let folded = fs::read_to_string(folded).unwrap();
    let sum: u64 = folded.lines().map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum();
    let report = Command::new(CAIRN).args(["report", "--json"]).arg(&profile).output().unwrap();
    let report: Value = serde_json::from_str(&text(&report)).unwrap();
    assert!(sum > 0);
    assert_eq!(report["leaked_bytes"], sum);
    // Formats of events have each block; what they cannot know of an image is said.
    let own = [("heaptrack", "heaptrack.zst"), ("firefox", "firefox.json"), ("dhat", "dhat.json")];
    let own = own.map(|(format, extension)| (format, scratch(&format!("core-export.{extension}"))));
    for (format, file) in &own {
        let export = format!("{format}={}", file.display());
        let arguments =
            ["--raw", &raw, "--word", bits, "--layout", "heapprof", "--export", &export, "--force"];
        let output = core(&arguments);
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(0), "{format}: {words}");
        assert!(words.contains("at time 0"), "{format}: {words}");
    }
    for (format, file) in &own[..2] {
        let report = Command::new(CAIRN).args(["report", "--json"]).arg(file).output().unwrap();
        let report: Value = serde_json::from_str(&text(&report)).unwrap();
        assert_eq!((&report["leaked_bytes"], &report["peak_bytes"]), (&sum.into(), &sum.into()), "{format}");
    }
    let dhat: Value = serde_json::from_str(&fs::read_to_string(&own[2].1).unwrap()).unwrap();
    let held: u64 = dhat["pps"].as_array().unwrap().iter().map(|point| point["eb"].as_u64().unwrap()).sum();
    assert_eq!(held, sum);
    for (format, extension) in [
        ("speedscope", "speedscope.json"),
        ("heapprofile", "heapprofile"),
        ("otlp", "otlp"),
        ("csv", "csv"),
        ("jsonl", "jsonl"),
    ] {
        let file = scratch(&format!("core-export.{extension}"));
        let export = format!("{format}={}", file.display());
        let output =
            core(&["--raw", &raw, "--word", bits, "--layout", "heapprof", "--export", &export, "--force"]);
        assert_eq!(output.status.code(), Some(0), "{format}: {}", String::from_utf8_lossy(&output.stderr));
        assert!(fs::metadata(&file).unwrap().len() > 20, "{format}");
    }
    let flame = scratch("core-export.svg");
    let flame = flame.to_str().unwrap();
    let drawn = ["--raw", &raw, "--word", bits, "--layout", "heapprof", "--flame", flame];
    text(&core(&[&drawn[..], &["--force"]].concat()));
    let again = core(&drawn);
    assert!(!again.status.success() && String::from_utf8_lossy(&again.stderr).contains("--force"));
    let again = core(&["--raw", &raw, "--word", bits, "--export", &to_pprof]);
    assert!(!again.status.success() && String::from_utf8_lossy(&again.stderr).contains("--force"));
}

#[test]
fn core_reads_heap_threads_and_addresses_of_a_process() {
    let program = scratch("core-waiting");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/programs/waiting.c");
    let mut compiler = Command::new("cc");
    compiler.args(["-O2", "-g", "-pthread", "-Wl,--build-id", source, "-o"]).arg(&program);
    assert!(compiler.status().unwrap().success());
    let mut child = Command::new(&program).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let pid = child.id().to_string();

    let report = text(&core(&["--pid", &pid]));
    assert!(report.contains("core-waiting") && report.contains("Heap of glibc's malloc"), "{report}");
    let answer: Value = serde_json::from_str(&text(&core(&["--pid", &pid, "--json", "--stacks"]))).unwrap();
    assert_eq!((&answer["schema"], &answer["kind"]), (&Value::from("cairn.core/1"), &Value::from("process")));
    assert!(answer["heap"]["in_use_blocks"].as_u64().unwrap() > 0);
    let threads = answer["threads"].as_array().unwrap();
    let functions = |thread: &Value| -> Vec<String> {
        let frames = thread["frames"].as_array().unwrap().iter();
        frames.filter_map(|frame| Some(frame["function"].as_str()?.to_owned())).collect()
    };
    assert!(threads.iter().any(|thread| functions(thread).iter().any(|name| name == "main")), "{threads:?}");
    assert!(threads.iter().all(|thread| thread["end"] == "end of stack"), "{threads:?}");

    let largest = answer["heap"]["largest"][0]["address"].as_str().unwrap().to_owned();
    let place = text(&core(&["--pid", &pid, "--address", &largest]));
    assert!(place.contains(&format!("in the heap block at {largest}, in use")), "{place}");
    let flame = scratch("core-waiting.svg");
    text(&core(&["--pid", &pid, "--force", "--flame", flame.to_str().unwrap()]));
    assert!(fs::read_to_string(&flame).unwrap().starts_with("<?xml"));
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn raw_memory_of_a_device_is_named_by_its_program() {
    // A block whose header holds its caller: 0x8000 is the start of the program's code.
    let elf = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/device/app.elf");
    let named = Command::new(CAIRN).args(["symbolize", "--help"]).output().unwrap();
    assert!(named.status.success());
    let bytes = fs::read(elf).unwrap();
    let entry = u64::from(u32::from_le_bytes(bytes[24..28].try_into().unwrap()));
    let user = 0x2000_0040_u64;
    let tag = cairn_wire::heapblock::StackReference::Tag((entry + 4) as u32);
    let header = cairn_wire::heapblock::Header::new(24, tag, 3, false).unwrap();
    let mut memory = vec![0; 256];
    memory[0x30..0x40]
        .copy_from_slice(&header.to_bytes(user, cairn_wire::heapblock::ByteOrder::LittleEndian));
    let file = scratch("device.bin");
    fs::write(&file, memory).unwrap();
    let raw = format!("{}@0x20000000", file.display());
    let report = core(&["--raw", &raw, "--exe", elf, "--word", "32"]);
    let report = String::from_utf8(report.stdout).unwrap();
    assert!(report.contains("1 annotated block, 24 B, 1 cairn") && report.contains("[app.elf]"), "{report}");
    let place = core(&["--raw", &raw, "--exe", elf, "--word", "32", "--address", "0x20000059"]);
    let place = String::from_utf8(place.stdout).unwrap();
    assert!(place.contains("1 bytes past the end of the block of 24 bytes at 0x20000040"), "{place}");
}

#[test]
fn core_refuses_other_files_in_one_line() {
    let cases: [(&[&str], i32, &str); 6] = [
        (&[], 2, "give a core file"),
        (&["/nowhere/core"], 1, "/nowhere/core"),
        (&[CAIRN], 1, "not a core file or minidump"),
        (&["--pid", "4194304"], 1, "no process"),
        (&["--raw", "x", "--pid", "1"], 2, "cannot be used with"),
        (&["--address", "nonsense", "core"], 2, "0x20000000"),
    ];
    for (arguments, code, expected) in cases {
        let output = core(arguments);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{error}");
        assert!(error.contains(expected), "{error}");
    }
}

// Failed with: "no annotated blocks", exit code 0, nothing on standard error: 64 bits were taken
// for granted.
#[test]
fn raw_memory_has_the_word_size_of_its_program() {
    let elf = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/device/app.elf");
    let vectors: Value =
        serde_json::from_slice(&fs::read(format!("{VECTORS}/heapprof.json")).unwrap()).unwrap();
    let is_usual = |case: &&Value| {
        case["word_bits"] == 32
            && case["endian"] == "little"
            && case["reference_blocks"].as_array().is_some_and(|blocks| blocks.len() > 1)
            && case["memory_hex"].is_string()
    };
    let case = vectors["cases"].as_array().unwrap().iter().find(is_usual).unwrap();
    let hex = case["memory_hex"].as_str().unwrap();
    let digits = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
    let memory: Vec<u8> = (0..hex.len()).step_by(2).map(digits).collect();
    let file = scratch("word-size.bin");
    fs::write(&file, memory).unwrap();
    let raw = format!("{}@0x10000", file.display());
    let answer = |words: &[&str]| core(&[&["--raw", &raw, "--json", "--no-symbols"], words].concat());
    let blocks = |output: &Output| -> Value {
        serde_json::from_slice::<Value>(&output.stdout).unwrap()["blocks"].clone()
    };
    let words = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();

    let (stated, by_program) = (answer(&["--word", "32"]), answer(&["--exe", elf]));
    assert!(blocks(&stated).as_u64() > Some(1), "{}", words(&stated));
    assert_eq!((blocks(&by_program), by_program.status.code()), (blocks(&stated), Some(0)));
    // Without the program the machine is unknown.
    let without = answer(&[]);
    assert_eq!((blocks(&without), without.status.code()), (Value::from(0), Some(3)));
    let expected =
        format!("of 32 bits, little-endian it holds {} annotated blocks: use --word 32", blocks(&stated));
    let said = words(&without);
    assert!(
        said.contains("no blocks in memory of 64 bits, little-endian") && said.contains(&expected),
        "{said}"
    );
    let other = answer(&["--exe", elf, "--word", "64"]);
    assert!(words(&other).contains("app.elf: is a program of 32 bits"), "{}", words(&other));
    assert_eq!(other.status.code(), Some(1));
    let empty = scratch("word-size-empty.bin");
    fs::write(&empty, vec![0; 4096]).unwrap();
    let nothing = core(&["--raw", empty.to_str().unwrap(), "--exe", elf]);
    assert!(words(&nothing).contains("no annotated blocks in memory of 32 bits"), "{}", words(&nothing));
    assert_eq!(nothing.status.code(), Some(3));
}

fn minidump(name: &str, program: &str) -> (Value, Vec<String>) {
    let place = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/minidumps");
    let (program, dump) = (format!("{place}/{program}"), format!("{place}/{name}.dmp"));
    let output = core(&["--json", "--stacks", "--no-cache", &program, &dump]);
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    let threads = answer["threads"].as_array().unwrap();
    let frames = threads.iter().flat_map(|thread| thread["frames"].as_array().unwrap());
    let functions = frames.filter_map(|frame| Some(frame["function"].as_str()?.to_owned())).collect();
    (answer, functions)
}

/// The module whose path ends so.
fn module<'t>(answer: &'t Value, name: &str) -> &'t Value {
    let mut modules = answer["modules"].as_array().unwrap().iter();
    modules.find(|module| module["path"].as_str().unwrap().ends_with(name)).unwrap()
}

// Failed with: no process, no name of the thread, and libc.so.6, which Crashpad lists without a
// directory, as missing.
#[test]
fn a_minidump_of_crashpad_names_its_process_and_frames() {
    let (answer, functions) = minidump("crashpad", "crash");
    assert_eq!((&answer["process"], &answer["signal"]), (&Value::from(29345), &Value::from(11)));
    assert_eq!(answer["fault_address"], "0x10");
    assert_eq!(answer["threads"][0]["name"], "crash");
    assert_eq!(functions[..3], ["store", "crash_here", "main"]);
    assert_eq!(module(&answer, "/crash")["file"], "same");
    // A libc of another build is not taken for the one that ran.
    let libc = module(&answer, "libc.so.6");
    let expected = if libc["file"] == "same" { "end of stack" } else { "no unwind information" };
    assert!(answer["threads"][0]["end"].as_str().unwrap().contains(expected), "{answer:#}");
}

// Failed with: one frame, and the program as missing.
#[test]
fn a_minidump_of_windows_names_its_frames() {
    let (answer, functions) = minidump("windows", "crash_windows.exe");
    assert_eq!(functions[..5], ["store", "small", "grows", "vectors", "main"]);
    let program = module(&answer, "crash_windows.exe");
    assert_eq!(program["file"], "same");
    let crashed = &answer["threads"][0];
    assert!(crashed["frames"][0]["file"].as_str().unwrap().ends_with("crash_windows.c"), "{crashed:#}");
    assert_eq!(answer["fault_address"], "0x0");
    assert!(crashed["end"].as_str().unwrap().contains("no unwind information"), "{crashed:#}");
}

// Failed with: signal 4294967295, [vdso] beside linux-vdso.so.1, no names of threads.
#[test]
fn a_minidump_of_breakpads_layout_names_its_threads() {
    let (answer, functions) = minidump("breakpad", "waiting");
    assert_eq!((&answer["signal"], &answer["fault_address"]), (&Value::Null, &Value::Null));
    let names: Vec<&str> =
        answer["threads"].as_array().unwrap().iter().map(|thread| thread["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["waiting", "worker"]);
    let modules = answer["modules"].as_array().unwrap();
    let files: Vec<&str> = modules
        .iter()
        .map(|module| Path::new(module["path"].as_str().unwrap()).file_name().unwrap().to_str().unwrap())
        .collect();
    assert_eq!(files, ["waiting", "libc.so.6", "linux-vdso.so.1", "ld-linux-x86-64.so.2"]);
    if module(&answer, "libc.so.6")["file"] != "same" {
        println!("the libc that ran is not here: both threads wait in it, and were not walked");
        return;
    }
    for expected in ["wait_for_worker", "main", "wait_inlined", "wait_for_work", "work"] {
        assert!(functions.iter().any(|name| name == expected), "{expected} of {functions:?}");
    }
}
