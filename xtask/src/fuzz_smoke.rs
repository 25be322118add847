//! `cargo xtask fuzz-smoke`: every fuzz target for a few seconds, on its retained corpus and onward
//! from there.
//!
//! Needs neither a nightly compiler nor cargo-fuzz: what cargo-fuzz adds on nightly is the address
//! sanitizer, which has nothing to find in crates that forbid `unsafe`. libFuzzer itself (built by
//! the `libfuzzer-sys` crate, hence g++) needs only the coverage counters, and these are a pass of
//! LLVM that the stable compiler runs on request.
//!
//! libFuzzer draws its changes from a fixed seed, so that a check of the same commit tries the same
//! inputs again, and a failure belongs to the change that brought it. `--seed random` searches
//! where no run has looked before: that is for long runs.
//!
//! libFuzzer adds what it finds to the first directory it is given, so that one is scratch space
//! below `fuzz/target`; the retained corpus is the second and stays as it is.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;

use serde_json::Value;

use crate::debian::{self, Tool};
use crate::process::{Failure, Outcome, at, cargo, read, run as run_command, workspace_root};

const USAGE: &str = "usage: cargo xtask fuzz-smoke [--seconds N] [--seed N|random] [target...]";

/// Two dozen targets, two at a time, end in little more than a minute.
const DEFAULT_SECONDS: u32 = 6;

const DEFAULT_SEED: u32 = 1;

/// Seed that makes libFuzzer choose one.
const RANDOM_SEED: u32 = 0;

/// The coverage that libFuzzer works with. One codegen unit, as the counters of several do not link
/// into one table.
const RUSTFLAGS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing -Ccodegen-units=1";

/// A decoder that needs more memory or time than this for a few KiB of input has a bug.
const LIMITS: [&str; 2] = ["-rss_limit_mb=512", "-timeout=10"];

/// Builds and runs the targets named in `arguments`, or all.
pub(crate) fn run(arguments: &[String]) -> Outcome {
    let request = Request::parse(arguments)?;
    let layout = Layout { fuzz: workspace_root().join("fuzz") };
    let known = layout.targets()?;
    let targets = request.choose(&known)?;
    debian::require(&[Tool { program: "g++", package: "g++", also: &[] }])?;
    let binaries = build(&layout, &targets)?;
    println!("running {} targets for {} s each", targets.len(), request.seconds);
    let failed = run_all(&layout, &binaries, &targets, &request);
    match failed.as_slice() {
        [] => Ok(()),
        _ => Err(Failure::new(format!(
            "{} of {} targets failed: {}",
            failed.len(),
            targets.len(),
            failed.join(", ")
        ))),
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Request {
    seconds: u32,
    seed: u32,
    targets: Vec<String>,
}

impl Request {
    fn parse(arguments: &[String]) -> Outcome<Self> {
        let mut request = Self { seconds: DEFAULT_SECONDS, seed: DEFAULT_SEED, targets: Vec::new() };
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            if argument == "--seconds" {
                let seconds =
                    arguments.next().and_then(|number| number.parse().ok()).filter(|&seconds| seconds > 0);
                request.seconds =
                    seconds.ok_or_else(|| Failure::usage(format!("{USAGE}: N is a number from 1")))?;
            } else if argument == "--seed" {
                let seed = arguments.next().and_then(|seed| match seed.as_str() {
                    "random" => Some(RANDOM_SEED),
                    number => number.parse().ok().filter(|&seed| seed != RANDOM_SEED),
                });
                request.seed = seed.ok_or_else(|| {
                    Failure::usage(format!("{USAGE}: a seed is a number from 1, or random"))
                })?;
            } else if argument.starts_with('-') {
                return Err(Failure::usage(format!("{USAGE}: no option {argument:?}")));
            } else {
                request.targets.push(argument.clone());
            }
        }
        Ok(request)
    }

    fn choose(&self, known: &[String]) -> Outcome<Vec<String>> {
        if self.targets.is_empty() {
            return Ok(known.to_vec());
        }
        match self.targets.iter().find(|name| !known.contains(name)) {
            Some(name) => {
                Err(Failure::usage(format!("no fuzz target {name:?}; there are: {}", known.join(", "))))
            }
            None => Ok(self.targets.clone()),
        }
    }
}

/// Where things are below `fuzz/`.
struct Layout {
    fuzz: PathBuf,
}

impl Layout {
    fn manifest(&self) -> PathBuf {
        self.fuzz.join("Cargo.toml")
    }

    fn committed_corpus(&self, target: &str) -> PathBuf {
        self.fuzz.join("corpus").join(target)
    }

    fn artifacts(&self, target: &str) -> PathBuf {
        self.fuzz.join("artifacts").join(target)
    }

    fn scratch(&self, target: &str) -> PathBuf {
        self.fuzz.join("target/smoke").join(target)
    }

    /// Returns the targets of the manifest, after checking that manifest, sources and corpora
    /// agree.
    fn targets(&self) -> Outcome<Vec<String>> {
        let mut command = cargo();
        command.args(["metadata", "--no-deps", "--format-version=1", "--manifest-path"]).arg(self.manifest());
        let metadata: Value = serde_json::from_str(&read(&mut command)?).map_err(at(&self.manifest()))?;
        let listed = listed_targets(&metadata);
        let sources = names_in(&self.fuzz.join("fuzz_targets"), Some("rs"))?;
        let corpora = names_in(&self.fuzz.join("corpus"), None)?;
        let is_filled = |name: &str| {
            fs::read_dir(self.committed_corpus(name)).is_ok_and(|mut files| files.next().is_some())
        };
        let faults = faults(&listed, &sources, &corpora, is_filled);
        if faults.is_empty() {
            Ok(listed.into_iter().collect())
        } else {
            Err(Failure::new(faults.join("\n")))
        }
    }
}

fn listed_targets(metadata: &Value) -> BTreeSet<String> {
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let targets = packages.flat_map(|package| package["targets"].as_array().into_iter().flatten());
    targets
        .filter(|target| {
            target["kind"].as_array().is_some_and(|kinds| kinds.iter().any(|kind| kind == "bin"))
        })
        .filter_map(|target| target["name"].as_str().map(str::to_owned))
        .collect()
}

/// Names of the files with this extension (without it), or of the directories if there is none.
fn names_in(directory: &Path, extension: Option<&str>) -> Outcome<BTreeSet<String>> {
    if !directory.is_dir() {
        return Ok(BTreeSet::new());
    }
    let entries = fs::read_dir(directory).map_err(at(directory))?;
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let wanted = paths.filter(|path| match extension {
        Some(_) => path.extension().and_then(|found| found.to_str()) == extension,
        None => path.is_dir(),
    });
    Ok(wanted.filter_map(|path| Some(path.file_stem()?.to_string_lossy().into_owned())).collect())
}

/// Returns what does not fit together. A target that is listed but never runs would pass for a
/// target that found nothing.
fn faults(
    listed: &BTreeSet<String>,
    sources: &BTreeSet<String>,
    corpora: &BTreeSet<String>,
    is_filled: impl Fn(&str) -> bool,
) -> Vec<String> {
    let mut faults = Vec::new();
    if listed.is_empty() {
        faults.push("fuzz/Cargo.toml: lists no targets".to_owned());
    }
    for name in listed.difference(sources) {
        faults.push(format!(
            "fuzz/Cargo.toml: lists {name}, but there is no fuzz/fuzz_targets/{name}.rs; write it"
        ));
    }
    for name in sources.difference(listed) {
        faults.push(format!("fuzz/fuzz_targets/{name}.rs: no [[bin]] in fuzz/Cargo.toml names it; add one"));
    }
    for name in corpora.difference(listed) {
        faults.push(format!(
            "fuzz/corpus/{name}: belongs to no target of fuzz/Cargo.toml; rename or delete it"
        ));
    }
    for name in listed.iter().filter(|name| !is_filled(name)) {
        faults.push(format!("fuzz/corpus/{name}: no files; add a few small inputs that the target accepts"));
    }
    faults
}

/// Builds the targets and returns the directory of their binaries.
fn build(layout: &Layout, targets: &[String]) -> Outcome<PathBuf> {
    let host = host_triple()?;
    let target_directory = layout.fuzz.join("target");
    let mut command = cargo();
    // `--target`, though it is the host: without it the flags would apply to build scripts as well.
    command.args(["build", "--release", "--locked", "--target", &host]);
    command.args(["--manifest-path", "fuzz/Cargo.toml", "--target-dir", "fuzz/target"]);
    for target in targets {
        command.args(["--bin", target]);
    }
    run_command(command.env("RUSTFLAGS", RUSTFLAGS).env_remove("CARGO_ENCODED_RUSTFLAGS"))?;
    Ok(target_directory.join(host).join("release"))
}

fn host_triple() -> Outcome<String> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = read(Command::new(rustc).arg("-vV"))?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).ok_or_else(|| Failure::new("rustc -vV names no host"))
}

/// Runs the targets and returns the names of those that failed. One runs on each processor.
fn run_all(layout: &Layout, binaries: &Path, targets: &[String], request: &Request) -> Vec<String> {
    let workers = thread::available_parallelism().map_or(1, usize::from);
    let waiting = Mutex::new(targets.iter());
    let failed = Mutex::new(Vec::new());
    let work = || {
        loop {
            // The guard is gone at the end of this statement; a target runs without holding the
            // queue.
            let next = waiting.lock().expect("no worker panics").next();
            let Some(target) = next else { return };
            match smoke(layout, binaries, target, request) {
                Ok(summary) => println!("{target}: {summary}"),
                Err(failure) => {
                    println!("{target}: FAILED\n{failure}");
                    failed.lock().expect("no worker panics").push(target.clone());
                }
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..workers.min(targets.len()) {
            scope.spawn(work);
        }
    });
    failed.into_inner().expect("no worker panics")
}

/// Runs one target; returns what libFuzzer says at the end.
fn smoke(layout: &Layout, binaries: &Path, target: &str, request: &Request) -> Outcome<String> {
    let scratch = layout.scratch(target);
    let artifacts = layout.artifacts(target);
    let log = scratch.with_extension("log");
    let _ = fs::remove_dir_all(&scratch);
    for directory in [&scratch, &artifacts] {
        fs::create_dir_all(directory).map_err(at(directory))?;
    }
    let binary = binaries.join(target);
    let status = Command::new(&binary)
        .arg(format!("-max_total_time={}", request.seconds))
        .arg(format!("-seed={}", request.seed))
        .args(LIMITS)
        .arg(format!("-artifact_prefix={}/", artifacts.display()))
        .args([&scratch, &layout.committed_corpus(target)])
        // A backtrace would push the panic's message out of the lines that are shown.
        .env("RUST_BACKTRACE", "0")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(fs::File::create(&log).map_err(at(&log))?)
        .status()
        .map_err(at(&binary))?;
    let words = String::from_utf8_lossy(&fs::read(&log).map_err(at(&log))?).into_owned();
    match done_line(&words).filter(|_| status.success()) {
        Some(line) if corpus_inputs(line) < 2 => Err(Failure::new(format!(
            "{line}\nevery input takes the same path: does fuzz/fuzz_targets/{target}.rs use its input, and does a file \
             in fuzz/corpus/{target} get past its first check?"
        ))),
        Some(line) => Ok(line.to_owned()),
        None => Err(Failure::new(failure_report(&words, &binary, &log, &status.to_string()))),
    }
}

/// Returns the line `#<runs> DONE cov: … exec/s: …`. A target without it has run nothing, whatever
/// its exit status.
fn done_line(words: &str) -> Option<&str> {
    words.lines().rev().find(|line| line.starts_with('#') && line.contains("DONE")).map(str::trim)
}

/// Returns the number of inputs that libFuzzer found worth keeping: `12` in `corp: 12/345b`.
fn corpus_inputs(done_line: &str) -> u64 {
    let after = done_line.split_once("corp: ").map_or("", |(_, after)| after);
    after.split('/').next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// Returns a failure: the last words of libFuzzer, and how to see it again.
fn failure_report(words: &str, binary: &Path, log: &Path, status: &str) -> String {
    let lines: Vec<&str> = words.lines().collect();
    let tail = &lines[lines.len().saturating_sub(20)..];
    let again = match artifact(words) {
        Some(path) => format!("the input is stored; to reproduce:\n  {} {path}", binary.display()),
        None => "no input was stored: the target ended before or outside of a run".to_owned(),
    };
    format!("{}\n{status}; whole output: {}\n{again}", tail.join("\n"), log.display())
}

/// Returns the path in `artifact_prefix='…'; Test unit written to <path>`.
fn artifact(words: &str) -> Option<&str> {
    words.lines().find_map(|line| line.split_once("Test unit written to ")).map(|(_, path)| path.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|&word| word.to_owned()).collect()
    }

    #[test]
    fn fuzz_request_has_seconds_and_targets_in_any_order() {
        let request = Request::parse(&words(&["cbf", "--seconds", "3", "lws"])).unwrap();
        assert_eq!(request, Request { seconds: 3, seed: DEFAULT_SEED, targets: words(&["cbf", "lws"]) });
        let request = Request::parse(&words(&["--seed", "random"])).unwrap();
        assert_eq!(request.seed, RANDOM_SEED);
        assert_eq!(Request::parse(&words(&["--seed", "7"])).unwrap().seed, 7);
        for wrong in [
            &["--seconds"][..],
            &["--seconds", "0"],
            &["--seconds", "soon"],
            &["--seed"],
            &["--seed", "0"],
            &["--seed", "any"],
            &["--fast"],
        ] {
            assert!(Request::parse(&words(wrong)).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn fuzz_request_refuses_unknown_targets() {
        let known = words(&["cbf", "lws"]);
        assert_eq!(Request { seconds: 1, seed: 1, targets: Vec::new() }.choose(&known).unwrap(), known);
        let failure =
            Request { seconds: 1, seed: 1, targets: words(&["xnu"]) }.choose(&known).unwrap_err().to_string();
        assert!(failure.contains("\"xnu\"") && failure.contains("cbf, lws"), "{failure}");
    }

    #[test]
    fn fuzz_manifest_sources_and_corpora_must_agree() {
        let agreed = names(&["cbf", "lws"]);
        assert_eq!(faults(&agreed, &agreed, &agreed, |_| true), [""; 0]);
        let only_cbf = names(&["cbf"]);
        let cases: [(&str, Vec<String>); 5] = [
            ("lists no targets", faults(&names(&[]), &names(&[]), &names(&[]), |_| true)),
            ("fuzz_targets/lws.rs; write it", faults(&agreed, &only_cbf, &agreed, |_| true)),
            ("fuzz_targets/lws.rs: no [[bin]]", faults(&only_cbf, &agreed, &only_cbf, |_| true)),
            ("fuzz/corpus/lws: belongs to no target", faults(&only_cbf, &only_cbf, &agreed, |_| true)),
            ("fuzz/corpus/lws: no files", faults(&agreed, &agreed, &agreed, |name| name != "lws")),
        ];
        for (expected, found) in cases {
            assert!(found.len() == 1 && found[0].contains(expected), "{expected}: {found:?}");
        }
    }

    #[test]
    fn fuzz_targets_come_from_the_manifest() {
        let metadata = serde_json::json!({"packages": [{"targets": [
            {"name": "cbf", "kind": ["bin"]}, {"name": "build-script-build", "kind": ["custom-build"]},
        ]}]});
        assert_eq!(listed_targets(&metadata), names(&["cbf"]));
    }

    #[test]
    fn fuzz_run_requires_the_last_line_of_libfuzzer() {
        let log = "INFO: seed\n#2\tINITED cov: 3\n#900\tDONE   cov: 30 ft: 60 exec/s: 450\nDone 900 runs in 2 second(s)\n";
        assert_eq!(done_line(log), Some("#900\tDONE   cov: 30 ft: 60 exec/s: 450"));
        assert_eq!(corpus_inputs("#900\tDONE   cov: 30 ft: 60 corp: 12/345b lim: 4096"), 12);
        assert_eq!(corpus_inputs(log), 0);
        assert_eq!(done_line("ERROR: no interesting inputs were found\n"), None);
    }

    #[test]
    fn fuzz_crash_report_has_input_and_command() {
        let log = "panicked at x\nartifact_prefix='a/'; Test unit written to a/crash-12\nBase64: AA==\n";
        let text = failure_report(log, Path::new("release/cbf"), Path::new("cbf.log"), "exit status: 77");
        assert!(text.contains("release/cbf a/crash-12") && text.contains("panicked at x"), "{text}");
    }
}
