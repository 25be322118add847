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

/// Parses some modules of the standard library.
const PARSE: &str = "import ast, argparse, inspect, typing
for module in ast, argparse, inspect, typing:
    text = open(module.__file__).read()
    for turn in range(3):
        ast.parse(text)";

/// The hook alone.
const NONE: &str = "none";

pub(crate) struct HookedProgram {
    pub(crate) name: &'static str,
    what: &'static str,
    program: String,
    arguments: Vec<String>,
    variables: &'static [(&'static str, &'static str)],
    /// These would take minutes.
    without: &'static [&'static str],
}

/// The names of all programs.
pub(crate) const PROGRAMS: &[&str] = &[
    "walks",
    "parse",
    "match",
    "rewrite",
    "scene",
    "cc1plus",
    "python3's parser",
    "python3",
    "sqlite3",
    "clang",
];

/// The programs of these names, or all.
pub(crate) fn programs(only: &[&str]) -> Vec<HookedProgram> {
    let mut programs = all_programs();
    assert!(programs.iter().map(|program| program.name).eq(PROGRAMS.iter().copied()));
    programs.retain(|program| only.is_empty() || only.contains(&program.name));
    programs
}

fn all_programs() -> Vec<HookedProgram> {
    let source = |name: &str| programs::source(name).to_string_lossy().into_owned();
    let built = |source: &str| {
        let program = programs::build(source);
        program.map_or_else(|why| why, |path| path.to_string_lossy().into_owned())
    };
    let recursions = built("heap/recursions.cpp");
    let compiler = Command::new("gcc").arg("-print-prog-name=cc1plus").output();
    let compiler =
        compiler.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default();
    let recursion = |name, what, rounds: &str| HookedProgram {
        name,
        what,
        program: recursions.clone(),
        arguments: vec![name.to_owned(), rounds.to_owned()],
        variables: &[],
        without: &["libgcc", "glibc", "backtrace-crate", "framehop"],
    };
    vec![
        HookedProgram {
            name: "walks",
            what: "random walks through mutually recursive functions",
            program: built("heap/walks.c"),
            arguments: vec!["1000000".to_owned(), "1".to_owned()],
            variables: &[],
            without: &["libgcc", "glibc", "backtrace-crate", "framehop"],
        },
        recursion("parse", "a recursive-descent parser", "5000"),
        recursion("match", "regular expressions with backtracking", "1000"),
        recursion("rewrite", "rules applied to terms", "1000"),
        recursion("scene", "a scene graph", "400"),
        HookedProgram {
            name: "cc1plus",
            what: "-O2 of a small C++ file",
            program: compiler,
            arguments: [
                "-quiet",
                "-imultiarch",
                "x86_64-linux-gnu",
                "-D_GNU_SOURCE",
                "-O2",
                "-std=c++17",
                "-o",
                "/dev/null",
            ]
            .map(str::to_owned)
            .into_iter()
            .chain([source("churn.cpp")])
            .collect(),
            variables: &[],
            without: &["libgcc", "glibc", "backtrace-crate", "framehop"],
        },
        HookedProgram {
            name: "python3's parser",
            what: "syntax trees of modules; PYTHONMALLOC=malloc",
            program: "/usr/bin/python3".to_owned(),
            arguments: ["-S", "-c", PARSE].map(str::to_owned).to_vec(),
            variables: &[("PYTHONMALLOC", "malloc"), ("PYTHONHASHSEED", "0")],
            without: &["libgcc", "glibc", "backtrace-crate", "framehop"],
        },
        HookedProgram {
            name: "python3",
            what: "JSON, patterns, sorting, recursion; PYTHONMALLOC=malloc",
            program: "/usr/bin/python3".to_owned(),
            arguments: vec![source("churn.py"), "40".to_owned()],
            variables: &[("PYTHONMALLOC", "malloc"), ("PYTHONHASHSEED", "0")],
            without: &[],
        },
        HookedProgram {
            name: "sqlite3",
            what: "a bulk insert, an index, queries",
            program: "/usr/bin/sqlite3".to_owned(),
            arguments: vec![":memory:".to_owned(), format!(".read {}", source("churn.sql"))],
            variables: &[],
            without: &[],
        },
        HookedProgram {
            name: "clang",
            what: "-O2 -c of a small C++ file",
            program: "/usr/bin/clang++".to_owned(),
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
pub(crate) struct Report(HashMap<String, u64>);

impl Report {
    pub(crate) fn value(&self, name: &str) -> Result<f64, String> {
        self.0.get(name).map(|&value| value as f64).ok_or_else(|| format!("no {name} in the hook's report"))
    }
}

pub(crate) fn run(only: &[&str]) -> Result<(), String> {
    let hook = build_hook(&[])?;
    println!("ns per capture over an empty hook: best of {RUNS} interleaved runs / median.\n");
    println!("| program | captures | frames each | different | by | ns per capture | against cairn |");
    println!("|---|---:|---:|---:|---|---:|---:|");
    for program in programs(only) {
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

pub(crate) fn start(hook: &PathBuf, program: &HookedProgram, unwinder: &str) -> Result<Report, String> {
    let path = programs::build_directory()?.join("malloc-hook-report");
    let _ = fs::remove_file(&path);
    let status = Command::new(&program.program)
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

/// Builds the hook; with options of cargo, in a directory of its own.
pub(crate) fn build_hook(options: &[&str]) -> Result<PathBuf, String> {
    let program = std::env::current_exe().map_err(|error| format!("this program: {error}"))?;
    let mut command = Command::new(std::env::var("CARGO").as_deref().unwrap_or("cargo"));
    command.args(["build", "--quiet", "--release", "--package", "cairn-bench-malloc-hook"]).args(options);
    let folder = program.parent().ok_or("this program has no directory")?;
    let folder = if options.is_empty() {
        folder.to_path_buf()
    } else {
        let target = folder.join("bench-hook");
        command.arg("--target-dir").arg(&target);
        target.join("release")
    };
    let status = command.status().map_err(|error| format!("cargo: {error}"))?;
    if !status.success() {
        return Err(format!("cargo build of the hook: {status}"));
    }
    Ok(folder.join("libcairn_bench_malloc_hook.so"))
}
