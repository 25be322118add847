//! Captures at every malloc, calloc and realloc of real programs: most stacks differ from the one
//! before, and the program's own work has been through the caches in between.
//!
//! Each unwinder runs in the same preloaded library (`benches/malloc-hook`). Its cost is the
//! program's CPU time with it, less that with a hook that captures nothing, by captures; from
//! interleaved runs.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use cairn_bench_unwinders::UNWINDERS;

use crate::capture::programs;

const RUNS: usize = 7;

/// The hook alone.
const NONE: &str = "none";

struct HookedProgram {
    name: &'static str,
    what: &'static str,
    program: &'static str,
    arguments: Vec<String>,
    variables: &'static [(&'static str, &'static str)],
    /// These would take minutes.
    without: &'static [&'static str],
}

fn programs() -> Vec<HookedProgram> {
    let source = |name: &str| programs::source(name).to_string_lossy().into_owned();
    vec![
        HookedProgram {
            name: "python3",
            what: "JSON, patterns, sorting, recursion; PYTHONMALLOC=malloc",
            program: "/usr/bin/python3",
            arguments: vec![source("churn.py"), "40".to_owned()],
            variables: &[("PYTHONMALLOC", "malloc"), ("PYTHONHASHSEED", "0")],
            without: &[],
        },
        HookedProgram {
            name: "sqlite3",
            what: "a bulk insert, an index, queries",
            program: "/usr/bin/sqlite3",
            arguments: vec![":memory:".to_owned(), format!(".read {}", source("churn.sql"))],
            variables: &[],
            without: &[],
        },
        HookedProgram {
            name: "clang",
            what: "-O2 -c of a small C++ file",
            program: "/usr/bin/clang++",
            arguments: ["-std=c++17", "-O2", "-c", "-o", "/dev/null"]
                .map(str::to_owned)
                .into_iter()
                .chain([source("churn.cpp")])
                .collect(),
            variables: &[],
            without: &["libgcc", "glibc", "backtrace-crate"],
        },
    ]
}

/// Output of the hook at the program's end.
struct Report(HashMap<String, u64>);

impl Report {
    fn value(&self, name: &str) -> Result<f64, String> {
        self.0.get(name).map(|&value| value as f64).ok_or_else(|| format!("no {name} in the hook's report"))
    }
}

pub(crate) fn run() -> Result<(), String> {
    let hook = build_hook()?;
    println!("ns per capture over an empty hook: best of {RUNS} interleaved runs / median.\n");
    println!("| program | captures | frames each | different | by | ns per capture | against cairn |");
    println!("|---|---:|---:|---:|---|---:|---:|");
    for program in programs() {
        if let Err(why) = measure(&hook, &program) {
            println!("| {} | missing: {why} | | | | | |", program.name);
        }
    }
    Ok(())
}

fn measure(hook: &PathBuf, program: &HookedProgram) -> Result<(), String> {
    let counted = start(hook, program, "cairn-count")?;
    let (captures, unique) = (counted.value("captures")?, counted.value("unique")?);
    let mut names = vec![NONE];
    names.extend(
        UNWINDERS.iter().map(|unwinder| unwinder.name).filter(|name| !program.without.contains(name)),
    );
    let mut nanos: Vec<Vec<f64>> = vec![Vec::new(); names.len()];
    for _ in 0..RUNS {
        for (name, nanos) in names.iter().zip(&mut nanos) {
            match start(hook, program, name) {
                Ok(report) => nanos.push(report.value("cpu_nanos")? / report.value("captures")?),
                Err(why) if nanos.is_empty() => eprintln!("{} by {name}: {why}", program.name),
                Err(why) => return Err(why),
            }
        }
    }
    for nanos in &mut nanos {
        nanos.sort_by(f64::total_cmp);
    }
    let best = |index: usize| Some(nanos[index].first()? - nanos[0].first()?);
    let median = |index: usize| Some(nanos[index].get(RUNS / 2)? - nanos[0].get(RUNS / 2)?);
    for (index, name) in names.iter().enumerate().skip(1) {
        let (Some(low), Some(middle), Some(cairn)) = (best(index), median(index), best(1)) else { continue };
        println!(
            "| {} ({}) | {captures:.0} | {:.1} | {:.2} % | {name} | {low:.1} / {middle:.1} | {:.1} |",
            program.name,
            program.what,
            counted.value("frames")? / captures,
            100.0 * unique / captures,
            low / cairn,
        );
    }
    println!(
        "| {}, memory | | | {unique:.0} stacks | cairn | {:.1} bytes each | |",
        program.name,
        counted.value("memory_bytes")? / unique
    );
    Ok(())
}

fn start(hook: &PathBuf, program: &HookedProgram, unwinder: &str) -> Result<Report, String> {
    let path = programs::build_directory()?.join("malloc-hook-report");
    let _ = fs::remove_file(&path);
    let status = Command::new(program.program)
        .args(&program.arguments)
        .envs(program.variables.iter().copied())
        .env("LD_PRELOAD", hook)
        .env("CAIRN_BENCH_UNWINDER", unwinder)
        .env("CAIRN_BENCH_REPORT", &path)
        .stdout(Stdio::null())
        .status()
        .map_err(|error| format!("{}: {error}", program.program))?;
    if !status.success() {
        return Err(format!("{}: {status}", program.program));
    }
    let text = fs::read_to_string(&path).map_err(|error| format!("the hook's report: {error}"))?;
    if let Some(why) = text.strip_prefix("missing=") {
        return Err(why.to_owned());
    }
    let words = text.split_whitespace().filter_map(|word| word.split_once('='));
    Ok(Report(words.filter_map(|(name, value)| Some((name.to_owned(), value.parse().ok()?))).collect()))
}

fn build_hook() -> Result<PathBuf, String> {
    let status = Command::new(std::env::var("CARGO").as_deref().unwrap_or("cargo"))
        .args(["build", "--quiet", "--release", "--package", "cairn-bench-malloc-hook"])
        .status()
        .map_err(|error| format!("cargo: {error}"))?;
    if !status.success() {
        return Err(format!("cargo build of the hook: {status}"));
    }
    let program = std::env::current_exe().map_err(|error| format!("this program: {error}"))?;
    Ok(program.with_file_name("libcairn_bench_malloc_hook.so"))
}
