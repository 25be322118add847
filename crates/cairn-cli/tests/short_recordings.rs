//! Recordings of programs that run for a few milliseconds: their times, and how they ended, in each
//! way to record.

#![cfg(target_os = "linux")]

#[allow(dead_code, reason = "a part of it is used here")]
mod support;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use cairn_recording::{Alloc, EndReason, Events, Finding, Mark, Recording, Wanted};
use support::{cairn, compile, run, scratch, workspace};

/// The times of the two moments of `short.c`.
#[derive(Default)]
struct Moments(Vec<u64>);

impl Events for Moments {
    fn alloc(&mut self, event: &Alloc) {
        if event.size_bytes / 10 == 100_000 {
            self.0.push(event.at.nanos);
        }
    }

    fn mark(&mut self, event: &Mark<'_>) {
        self.0.push(event.at.nanos);
    }
}

/// The monotonic clock before and after each of them, as the program read it.
fn clocks(output: &Output) -> [u64; 4] {
    let text = String::from_utf8_lossy(&output.stdout);
    let times: Vec<u64> = text.split_whitespace().map(|number| number.parse().unwrap()).collect();
    times.try_into().unwrap_or_else(|_| panic!("{output:?}"))
}

/// Runs the program to each of its ends, and compares the recording with what it printed.
fn check(path: &Path, mut command: impl FnMut(&str) -> Command) {
    for (end, reason) in
        [("return", Some(EndReason::Exit)), ("exit", Some(EndReason::Exit)), ("quit", None), ("kill", None)]
    {
        let _ = std::fs::remove_file(path);
        let clocks = clocks(&run(command(end).stdin(Stdio::null())));
        let recording = Recording::open(path).unwrap();
        assert_eq!(recording.end().map(|(reason, _)| reason), reason, "{end}");
        let has = |finding: &Finding| recording.findings().contains(finding);
        assert_eq!(has(&Finding::NoEnd), reason.is_none(), "{end}: {:?}", recording.findings());
        assert!(!has(&Finding::UnknownClock), "{end}");

        let mut moments = Moments::default();
        recording.read(&Wanted::ALL, &mut moments).unwrap();
        let [first, second] = moments.0[..] else { panic!("{end}: {:?}", moments.0) };
        let (least, most) = (clocks[2] - clocks[1], clocks[3] - clocks[0]);
        // A killed program leaves the readings of its start: their speed may be wrong by 1 %.
        let inexact = if reason.is_some() { 2_000 } else { 2_000 + most / 100 };
        let between = second - first;
        assert!(
            (least.saturating_sub(inexact)..=most + inexact).contains(&between),
            "{end}: {between} ns between the moments, which were {least} to {most} ns apart"
        );
        // Also from the start of the recording, which the program does not know, but the file says.
        let start = recording.header().start_monotonic_nanos;
        let (least, most) = (clocks[2] - start, clocks[3] - start);
        assert!(
            (least.saturating_sub(inexact)..=most + inexact).contains(&second),
            "{end}: {second} ns from the start, where {least} to {most} ns had passed"
        );
    }
}

// Failed with: a recording of 0.5 ms has no scale, and `NoEnd` after `return` and `exit`.
#[test]
fn short_recordings_of_the_rust_recorder_have_times_and_ends() {
    let directory = scratch("short_rust");
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--quiet", "--package", "cairn-recorder", "--example", "short_recording"]);
    build.args(["--message-format", "json-render-diagnostics"]).current_dir(workspace());
    let built = run(&mut build);
    let text = String::from_utf8_lossy(&built.stdout);
    let line =
        text.lines().find(|line| line.contains("short_recording") && line.contains("\"executable\":\""));
    let line = line.unwrap_or_else(|| panic!("{text}{}", String::from_utf8_lossy(&built.stderr)));
    let program = line.split("\"executable\":\"").nth(1).unwrap().split('"').next().unwrap();
    let path = directory.join("short.cairn");
    check(&path, |end| {
        let mut command = Command::new(program);
        command.arg(end).env("CAIRN_RECORDING", &path);
        command
    });
}

// Failed with: as above, for both libraries.
#[test]
fn short_recordings_of_the_c_library_have_times_and_ends() {
    let directory = scratch("short_c");
    let prefix = directory.join("prefix");
    let mut install = Command::new(env!("CARGO"));
    install.args(["run", "--quiet", "--package", "xtask", "--", "c-library", "--prefix"]).arg(&prefix);
    let installed = run(install.current_dir(workspace()));
    assert!(installed.status.success(), "{}", String::from_utf8_lossy(&installed.stderr));
    let include = format!("-I{}", prefix.join("include").display());
    let lib = prefix.join("lib");
    let (search, found) = (format!("-L{}", lib.display()), format!("-Wl,-rpath,{}", lib.display()));
    let fixed = lib.join("libcairn.a").display().to_string();
    let path = directory.join("short.cairn");
    let link: [(&str, &[&str]); 2] = [("static", &[&fixed]), ("shared", &[&search, "-lcairn", &found])];
    for (name, how) in link {
        let flags: Vec<&str> = ["-DMARKS", &include].into_iter().chain(how.iter().copied()).collect();
        let program = compile(&directory, "short.c", name, &flags);
        check(&path, |end| {
            let mut command = Command::new(&program);
            command.arg(end).env("CAIRN_RECORDING", &path);
            command
        });
    }
}

// Failed with: `UnknownClock` for each end.
#[test]
fn short_recordings_of_the_library_alone_have_times_and_ends() {
    let directory = scratch("short_alone");
    let program = compile(&directory, "short.c", "short", &["-fno-builtin"]);
    let library = cairn_run::Library::unpack().unwrap();
    let path = directory.join("short.cairn");
    let output = format!("output={}", path.display());
    check(&path, |end| {
        let mut command = Command::new(&program);
        command.arg(end).env("LD_PRELOAD", library.path()).env("CAIRN_HEAP", &output);
        command
    });
}

/// Checks the duration of short recordings.
///
/// Under `cairn heap` the times of blocks are coarse, but the duration is not: it lies between the
/// program's own measurement and the test's.
#[test]
fn short_recordings_of_cairn_heap_are_as_long_as_their_programs() {
    let directory = scratch("short_heap");
    let program: PathBuf = compile(&directory, "short.c", "short", &["-fno-builtin"]);
    let path = directory.join("short.cairn");
    for (end, reason) in [
        ("return", Some(EndReason::Exit)),
        ("exit", Some(EndReason::Exit)),
        ("quit", Some(EndReason::Exit)),
        ("kill", None),
    ] {
        let _ = std::fs::remove_file(&path);
        let began = std::time::Instant::now();
        let mut command = cairn();
        command.args(["heap", "--quiet", "-o"]).arg(&path).arg("--").arg(&program).arg(end);
        let clocks = clocks(&run(&mut command));
        let most = began.elapsed().as_nanos() as u64;
        let recording = Recording::open(&path).unwrap();
        assert_eq!(recording.end().map(|(reason, _)| reason), reason, "{end}");
        assert!(!recording.findings().contains(&Finding::UnknownClock), "{end}");
        let Some((_, nanos)) = recording.end() else { continue };
        let least = clocks[2] - recording.header().start_monotonic_nanos;
        assert!((least..=most).contains(&nanos), "{end}: {nanos} ns, of {least} to {most}");
    }
}
