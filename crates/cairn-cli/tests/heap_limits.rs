//! Limits of the recorded program: it has the same as without cairn, and a recording that ends
//! early reports it.

#![cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
#![allow(clippy::print_stdout, reason = "a test says what it could not check here")]

#[allow(dead_code, reason = "it serves other tests too")]
mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use cairn_recording::{EndReason, Events, Recording, Wanted};
use serde_json::Value;
use support::{Shown, cairn, compile, run, scratch, wait_for};

/// How much of a limit of its own memory the library and the first tables of the recorder take.
const OWN_MEBIBYTES: i64 = 12;

fn shell(directory: &Path, script: &str) -> Shown {
    let mut command = Command::new("bash");
    let command = command.args(["-c", script, env!("CARGO_BIN_EXE_cairn")]);
    Shown::from(run(command.env("XDG_CACHE_HOME", directory).current_dir(directory)))
}

fn mebibytes(shown: &Shown) -> i64 {
    shown.output.trim().parse().unwrap_or_else(|_| panic!("{shown:?}"))
}

/// Checks limits that a program derives from its own size.
///
/// Before, a program that allowed itself 96 MiB more than its VmSize could map 63,000 MiB: the
/// recorder's reserved addresses were part of its VmSize, and were given back when it set the
/// limit.
#[test]
fn limits_by_the_own_size_allow_as_much_as_without_cairn() {
    let directory = scratch("limits_own");
    let program = compile(&directory, "limited.c", "limited", &["-fno-builtin"]);
    for how in ["set", "prlimit"] {
        for what in ["own-space", "own-data"] {
            let plain = mebibytes(&Shown::from(run(Command::new(&program).args([how, what]))));
            let mut command = cairn();
            command.args(["heap", "--quiet", "--"]).arg(&program).args([how, what]);
            let recorded = mebibytes(&Shown::from(run(command.current_dir(&directory))));
            assert!((plain - 2..=plain).contains(&recorded), "{how} {what}: {plain} and {recorded}");
        }
    }
}

/// Before, a quarter of the limit went to the window of the recording.
#[test]
fn limits_by_a_number_leave_nearly_as_much_as_without_cairn() {
    let directory = scratch("limits_number");
    let program = compile(&directory, "limited.c", "limited", &["-fno-builtin"]);
    for how in ["set space", "set data", "prlimit space", "outside space", "outside data"] {
        let limit = match how {
            "outside space" => "ulimit -v 300000;",
            "outside data" => "ulimit -d 300000;",
            _ => "",
        };
        let run = program.display();
        let plain = mebibytes(&shell(&directory, &format!("{limit} {run} {how}")));
        let recorded =
            mebibytes(&shell(&directory, &format!("{limit} \"$0\" heap --quiet --or-run -- {run} {how}")));
        assert!((plain - OWN_MEBIBYTES..=plain).contains(&recorded), "{how}: {plain} and {recorded}");
    }
}

/// The library that `cairn heap` has unpacked into this directory.
fn library(directory: &Path) -> PathBuf {
    let entries = fs::read_dir(directory.join("cairn")).unwrap().map(|entry| entry.unwrap().path());
    let is_plain = |path: &PathBuf| path.to_string_lossy().contains("/libcairn_preload-");
    entries.into_iter().find(is_plain).unwrap()
}

/// Runs `program` with the preload library alone; its recording is `own.cairn`.
fn preloaded(directory: &Path, before: &str, program: &Path, arguments: &str) -> Shown {
    let warm = shell(directory, "\"$0\" heap --quiet -o warm.cairn true");
    assert_eq!(warm.status, Some(0), "{warm:?}");
    let script = format!(
        "{before} CAIRN_HEAP=output={}/own.cairn LD_PRELOAD={} exec {} {arguments}",
        directory.display(),
        library(directory).display(),
        program.display()
    );
    shell(directory, &script)
}

/// Checks that all readers report the same of `file`.
///
/// They are the report as text and as JSON, and the report of the recording that `pack` makes of
/// it.
fn assert_all_readers_say(directory: &Path, file: &str, what: &str, intended: bool) -> Value {
    let packed = format!("\"$0\" pack -o packed.cairn {file}");
    let packed = shell(directory, &packed);
    assert!(directory.join("packed.cairn").exists(), "{packed:?}");
    let mut last = Value::Null;
    for file in [file, "packed.cairn"] {
        let text = shell(directory, &format!("\"$0\" report {file}"));
        let head: Vec<&str> = text.output.lines().take(5).collect();
        let line = head.iter().find(|line| line.starts_with("recording ended early: "));
        assert!(line.is_some_and(|line| line.contains(what)), "{file}: {text:?}");
        assert_eq!(text.status, Some(if intended { 0 } else { 3 }), "{file}");
        let json = shell(directory, &format!("\"$0\" report --json {file}"));
        last = serde_json::from_str(&json.output).unwrap();
        let first = last["findings"][0].as_str().unwrap_or_default();
        assert!(first.starts_with("recording ended early: ") && first.contains(what), "{last}");
        assert_eq!(last["recording"]["end"], "stopped", "{file}");
        let recording = Recording::open(directory.join(file)).unwrap();
        assert_eq!(recording.end().map(|(reason, _)| reason), Some(EndReason::Stopped), "{file}");
        assert!(recording.ended_early().is_some_and(|early| early.cause.is_intended() == intended));
    }
    fs::remove_file(directory.join("packed.cairn")).unwrap();
    last
}

/// Before, `findings` was empty, and neither the text nor the summary of `cairn heap` said
/// anything.
#[test]
fn early_end_by_seccomp_is_said_by_every_reader() {
    const WHAT: &str = "the program locked itself in with seccomp after 0.";
    for how in ["filter", "syscall"] {
        let directory = scratch(&format!("early_{how}"));
        let program = compile(&directory, "early.c", "early", &["-fno-builtin"]);
        let shown = shell(&directory, &format!("\"$0\" heap -o own.cairn {} {how} 5000", program.display()));
        assert_eq!((shown.status, shown.output.as_str()), (Some(0), ""), "{shown:?}");
        let answer = format!("cairn: recording ended early: {WHAT}");
        assert!(shown.errors.contains(&answer), "{shown:?}");
        // Each event is counted, without a system call.
        assert!(shown.errors.contains("not in the numbers (10000 events)"), "{shown:?}");
        let report = assert_all_readers_say(&directory, "own.cairn", WHAT, false);
        assert_eq!(report["total_allocations"], 100);
        fs::remove_file(directory.join("own.cairn")).unwrap();

        let shown = preloaded(&directory, "", &program, &format!("{how} 5000"));
        assert_eq!((shown.status, shown.errors.as_str()), (Some(0), ""), "{shown:?}");
        let report = assert_all_readers_say(&directory, "own.cairn", WHAT, false);
        assert_eq!(report["total_allocations"], 100);
    }
}

/// Before, nothing said why it ended, and after `--for` and `--max-size` not that it did.
#[test]
fn early_end_has_its_reason_whatever_it_is() {
    let cases = [
        ("files", "could not be opened again (errno 24)"),
        ("landlock", "could not be opened again (errno 13)"),
        ("rename", "no longer at its path"),
    ];
    for (how, what) in cases {
        let directory = scratch(&format!("early_{how}"));
        let program = compile(&directory, "early.c", "early", &["-fno-builtin"]);
        let shown = preloaded(&directory, "", &program, &format!("{how} 200000 own.cairn moved.cairn"));
        assert_eq!(shown.status, Some(0), "{shown:?}");
        if shown.output.contains("no landlock") {
            println!("landlock: this kernel has none; not checked");
            continue;
        }
        let file = if how == "rename" { "moved.cairn" } else { "own.cairn" };
        assert_all_readers_say(&directory, file, what, false);
    }
    let directory = scratch("early_asked");
    let program = compile(&directory, "early.c", "early", &["-fno-builtin"]);
    let program = program.display();
    let shown = shell(&directory, &format!("\"$0\" heap --for 20ms -o for.cairn {program} nothing 5000"));
    assert!(shown.errors.contains("recording ended early: the time that --for allows"), "{shown:?}");
    assert_all_readers_say(&directory, "for.cairn", "the time that --for allows was over after 0.", true);
    let words = format!("heap --max-size 1KiB -o size.cairn {program} nothing 300000");
    let shown = shell(&directory, &format!("\"$0\" {words}"));
    assert!(shown.errors.contains("recording ended early: the recording reached the size"), "{shown:?}");
    assert_all_readers_say(&directory, "size.cairn", "the size that --max-size allows", true);
}

/// Before, `cairn heap` said nothing below 1 MiB, and left a spool without a summary below 512 KiB.
#[test]
fn early_end_by_ulimit_f_is_said_for_any_limit() {
    let directory = scratch("early_size");
    let program = compile(&directory, "early.c", "early", &["-fno-builtin"]);
    let warm = shell(&directory, "\"$0\" heap --quiet -o warm.cairn true");
    assert_eq!(warm.status, Some(0), "{warm:?}");
    let program = program.display();
    for kibibytes in [0, 1, 16, 63, 64, 100, 128, 256, 512, 1023] {
        let script = format!("ulimit -f {kibibytes}; exec \"$0\" heap -o own.cairn {program} nothing 100000");
        let shown = shell(&directory, &script);
        assert_eq!((shown.status, shown.signal), (Some(0), None), "{shown:?}");
        if kibibytes < 64 {
            let why = "is not recorded: ";
            assert!(shown.errors.contains(why) && shown.errors.contains("ulimit -f"), "{shown:?}");
            assert!(!directory.join("own.cairn").exists() && !directory.join("own.cairn.new").exists());
            continue;
        }
        let what = "the recording reached the limit of the file size (ulimit -f)";
        assert!(shown.errors.contains(what) && shown.errors.contains("allocated  "), "{shown:?}");
        assert!(!directory.join("own.cairn.new").exists(), "{kibibytes}");
        assert_all_readers_say(&directory, "own.cairn", what, false);
        fs::remove_file(directory.join("own.cairn")).unwrap();
    }
    let alone = preloaded(&directory, "ulimit -f 100;", Path::new(&program.to_string()), "nothing 100000");
    assert_eq!((alone.status, alone.errors.as_str()), (Some(0), ""), "{alone:?}");
    assert_all_readers_say(&directory, "own.cairn", "the limit of the file size", false);
    fs::remove_file(directory.join("own.cairn")).unwrap();
    // Descriptor 2 is a pipe here, which has no size.
    let alone = preloaded(&directory, "ulimit -f 16;", Path::new(&program.to_string()), "nothing 100");
    assert!(alone.status == Some(0) && alone.errors.contains("nothing is recorded"), "{alone:?}");
}

/// Checks recordings on small disks.
///
/// Before, nothing was recorded on 96 KiB and 2 MiB; on 4 MiB the message was `File exists`, and an
/// empty `.new` remained.
#[test]
fn small_disks_hold_small_recordings() {
    let directory = scratch("small_disks");
    let program = compile(&directory, "early.c", "early", &["-fno-builtin"]);
    let warm = shell(&directory, "\"$0\" heap --quiet -o warm.cairn true");
    assert_eq!(warm.status, Some(0), "{warm:?}");
    fs::create_dir(directory.join("small")).unwrap();
    let library = library(&directory);
    for (size, least_with_command, least_alone) in
        [("96k", 0, 0), ("200k", 100, 100), ("1m", 1000, 1000), ("2m", 5000, 5000), ("4m", 5000, 5000)]
    {
        let script = format!(
            "mount -t tmpfs -o size={size} tmpfs small || exit 77
            \"$0\" heap -o small/own.cairn {program} nothing 300000; echo status $?; ls small
            \"$0\" report --json small/own.cairn; rm small/*
            CAIRN_HEAP=output=$PWD/small/own.cairn LD_PRELOAD={library} {program} nothing 300000; echo status $?
            \"$0\" report --json small/own.cairn; true",
            program = program.display(),
            library = library.display(),
        );
        let mut command = Command::new("unshare");
        command.args(["-Urm", "bash", "-c", &script, env!("CARGO_BIN_EXE_cairn")]);
        command.env("XDG_CACHE_HOME", &directory).current_dir(&directory);
        let shown = Shown::from(run(&mut command));
        if shown.status != Some(0) {
            println!("this system lets no process mount a small file system; not checked: {shown:?}");
            return;
        }
        let lines: Vec<&str> = shown.output.lines().collect();
        let [with_command, listed, report, alone, report_alone] = lines[..] else {
            panic!("{size}: {shown:?}")
        };
        assert_eq!((with_command, listed, alone), ("status 0", "own.cairn", "status 0"), "{size}: {shown:?}");
        let report: Value = serde_json::from_str(report).unwrap();
        assert!(report["total_allocations"].as_u64() >= Some(least_with_command), "{size}: {report}");
        let report: Value = serde_json::from_str(report_alone).unwrap();
        assert!(report["total_allocations"].as_u64() >= Some(least_alone), "{size}: {report}");
        let first = report["findings"][0].as_str().unwrap_or_default();
        assert!(first.starts_with("recording ended early: the disk was full after"), "{size}: {report}");
        if least_with_command == 0 {
            assert!(shown.errors.contains("recording ended early: the disk was full"), "{shown:?}");
        }
    }
}

/// Before, the message was `the recording is left as it is`, of a directory that was gone.
#[test]
fn a_deleted_recording_is_called_deleted() {
    let directory = scratch("deleted");
    let program = compile(&directory, "early.c", "early", &["-fno-builtin"]);
    fs::create_dir(directory.join("gone")).unwrap();
    let words = format!("heap -o gone/own.cairn {} remove 5000 gone", program.display());
    let shown = shell(&directory, &format!("\"$0\" {words}"));
    assert_eq!(shown.status, Some(0), "{shown:?}");
    assert!(shown.errors.contains("was deleted or moved while the program ran"), "{shown:?}");
    assert!(!shown.errors.contains("left as"), "{shown:?}");
}

/// Before, the program was ended by SIGBUS at its next event, and `cairn heap` with it.
#[test]
fn idle_programs_survive_a_truncated_recording() {
    for length in [0, 100_000] {
        let directory = scratch(&format!("truncated_{length}"));
        let program = compile(&directory, "early.c", "early", &["-fno-builtin"]);
        let (own, packed) = (directory.join("own.cairn"), directory.join("own.cairn.new"));
        let mut command = cairn();
        command.args(["heap", "-o", "own.cairn"]).arg(&program).args(["wait", "5000", "go"]);
        command.current_dir(&directory).stderr(std::process::Stdio::piped());
        let child = command.spawn().unwrap();
        // The packed file contains the events before the program waits.
        wait_for("the first events", || {
            let live = Recording::open(&packed).ok()?;
            let mut count = Allocations(0);
            live.read(&Wanted::HEAP, &mut count).ok()?;
            (count.0 >= 100).then_some(())
        });
        let before = fs::metadata(&own).unwrap().len();
        fs::File::options().write(true).open(&own).unwrap().set_len(length).unwrap();
        wait_for("the length", || (fs::metadata(&own).unwrap().len() >= before).then_some(()));
        fs::write(directory.join("go"), "").unwrap();
        let shown = Shown::from(child.wait_with_output().unwrap());
        assert_eq!((shown.status, shown.signal), (Some(0), None), "{shown:?}");
        let what = "recording ended early: the recording's file was truncated";
        assert!(shown.errors.contains(what), "{shown:?}");
        let report = assert_all_readers_say(&directory, "own.cairn", "file was truncated", false);
        assert_eq!(report["total_allocations"], 100);
    }
}

struct Allocations(u64);

impl Events for Allocations {
    fn alloc(&mut self, _: &cairn_recording::Alloc) {
        self.0 += 1;
    }
}
