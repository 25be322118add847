//! Python programs under heap profilers: processor time as a multiple of the plain run, bytes of
//! the file, and counted allocations.
//!
//! Each work runs plain and under each tool in turn, round after round. *In the program* is the
//! processor time of the recorded process alone; *in all* includes that of the tool's own
//! processes. Where a tool is a part of the interpreter's process, both are the same.
//!
//! An allocation that a hook misses would make a tool faster, so the counts are checked: the
//! objects of Python that `cairn heap` counts must be those that the same program takes from
//! `malloc` when the interpreter has no allocator of its own (`PYTHONMALLOC=malloc`).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::against::least;
use crate::heap::{self, COMPRESSED, RunCost, Tool, Work};
use crate::machine;

/// Names the interpreter: one that has memray and numpy gives the whole table.
const INTERPRETER: &str = "CAIRN_BENCH_PYTHON";

/// The works in `fixtures/programs/python`: name, rounds, and the module that it needs.
///
/// The rounds take about a second on a processor of 2.8 GHz.
const WORKS: &[(&str, &str, &str)] = &[
    ("json_lists", "100", "json"),
    ("objects", "60", "sys"),
    ("generators", "75", "asyncio"),
    ("recursion", "8", "ast"),
    ("arrays", "150", "numpy"),
    ("parser", "150", "re"),
];

/// Ending of the files that memray is given.
const MEMRAY: &str = ".memray";

/// Part of the allocations by which the two counts may differ; 1 %.
///
/// The growth of some buffers depends on the allocator.
const TOLERATED: f64 = 0.01;

/// Runs everything `rounds` times and prints the table.
pub(crate) fn run(rounds: usize, only: &[&str]) -> Result<(), String> {
    let directory = std::env::temp_dir().join(format!("cairn-bench-python-{}", std::process::id()));
    fs::create_dir_all(&directory).map_err(|error| error.to_string())?;
    let result = run_in(&directory, rounds.max(1), only);
    let _ = fs::remove_dir_all(&directory);
    result
}

fn run_in(directory: &Path, rounds: usize, only: &[&str]) -> Result<(), String> {
    let cairn = heap::build_cairn()?;
    let probe = heap::build_probe(directory)?;
    let python = std::env::var(INTERPRETER).unwrap_or_else(|_| "/usr/bin/python3".to_owned());
    print!("{}", machine::description());
    println!("- Python: {}", heap::version(&python));
    println!("- memray: {}", memray_version(&python).unwrap_or_else(|| "missing".to_owned()));
    println!("- heaptrack: {}", heap::version("heaptrack"));
    println!("- {rounds} rounds; times are multiples of the plain run's processor time: median, and least\n");
    println!(
        "| work | under | in the program | least | in all | least | file, bytes | allocations |\n\
         |---|---|---:|---:|---:|---:|---:|---:|"
    );
    for &(name, times, module) in WORKS {
        if !only.is_empty() && !only.iter().any(|part| name.contains(part)) {
            continue;
        }
        if !has_module(&python, module) {
            eprintln!("{name}: {python} has no {module}");
            continue;
        }
        let script = fs::canonicalize(format!("fixtures/programs/python/{name}.py"))
            .map_err(|error| error.to_string())?;
        let work = work(name, &python, &[&script.display().to_string(), times]);
        let subjects = subjects(&cairn, &python, &probe);
        measure(&work, &subjects, directory, rounds)?;
        check_count(&work, &cairn, directory)?;
    }
    Ok(())
}

/// Sets are in one order in all runs, so that the runs allocate the same.
fn work(name: &'static str, program: &str, arguments: &[&str]) -> Work {
    Work {
        name,
        program: program.to_owned(),
        arguments: arguments.iter().map(|word| (*word).to_owned()).collect(),
        environment: vec![("PYTHONHASHSEED", "0"), ("PYTHONDONTWRITEBYTECODE", "1")],
    }
}

/// A tool, and how many allocations are in the file that it has just written.
struct Subject {
    tool: Tool,
    /// False when the tool runs the script itself, without the interpreter's name in front.
    takes_program: bool,
    count: fn(&Tool, &Path) -> f64,
}

fn subjects(cairn: &Path, python: &str, probe: &str) -> Vec<Subject> {
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let command = cairn.display().to_string();
    let plain = Subject { tool: Tool::plain(probe), takes_program: true, count: |_, _| 0.0 };
    let cairn_heap = |name, options: &[&str]| Subject {
        tool: Tool {
            name,
            wrapper: [words(&[&command, "heap", "--quiet"]), words(options)].concat(),
            ..Tool::cairn_heap(cairn, probe)
        },
        takes_program: true,
        count: heap::allocations_in,
    };
    let mut subjects = vec![plain, cairn_heap("cairn heap", &[])];
    subjects.push(cairn_heap("cairn heap --python=native", &["--python=native"]));
    if memray_version(python).is_some() {
        let memray = |name, options: &[&str]| Subject {
            tool: Tool {
                name,
                wrapper: [
                    words(&[python, "-m", "memray", "run", "-q", "-f", "-o", "out.memray"]),
                    words(options),
                ]
                .concat(),
                ending: MEMRAY,
                preload: Vec::new(),
                ..Tool::plain(probe)
            },
            takes_program: false,
            count: memray_allocations,
        };
        subjects.push(memray("memray run", &[]));
        subjects.push(memray("memray run --trace-python-allocators", &["--trace-python-allocators"]));
        subjects.push(memray("memray run --native", &["--native"]));
        subjects.push(memray(
            "memray run --native --trace-python-allocators",
            &["--native", "--trace-python-allocators"],
        ));
    }
    if Command::new("heaptrack").arg("--version").output().is_ok() {
        subjects.push(Subject {
            tool: Tool {
                name: "heaptrack",
                wrapper: words(&["heaptrack", "--output", "out"]),
                ending: COMPRESSED,
                preload: Vec::new(),
                ..Tool::plain(probe)
            },
            takes_program: true,
            count: heaptrack_allocations,
        });
    }
    subjects
}

/// Figures of all rounds of one tool.
#[derive(Default)]
struct Rounds {
    costs: Vec<RunCost>,
    least: Option<RunCost>,
    allocations: f64,
}

fn measure(work: &Work, subjects: &[Subject], directory: &Path, rounds: usize) -> Result<(), String> {
    let script_alone = Work {
        name: work.name,
        program: work.arguments.first().cloned().unwrap_or_default(),
        arguments: work.arguments.iter().skip(1).cloned().collect(),
        environment: work.environment.clone(),
    };
    let mut figures: Vec<Rounds> = subjects.iter().map(|_| Rounds::default()).collect();
    for round in 0..rounds {
        for (subject, figures) in subjects.iter().zip(&mut figures) {
            let work = if subject.takes_program { work } else { &script_alone };
            let cost = heap::once(work, &subject.tool, directory)?;
            if round == 0 {
                figures.allocations = (subject.count)(&subject.tool, directory);
            }
            figures.least = Some(least(figures.least, cost));
            figures.costs.push(cost);
        }
    }
    let of_plain = figures.first().map(|plain| (heap::median(&plain.costs), plain.least.unwrap_or_default()));
    let (plain, plain_least) = of_plain.unwrap_or_default();
    for (index, (subject, figures)) in subjects.iter().zip(&figures).enumerate() {
        let (median, least) = (heap::median(&figures.costs), figures.least.unwrap_or_default());
        let name = subject.tool.name;
        if index == 0 {
            println!(
                "| {} | {name} | {:.2} s | {:.2} s | {:.2} s | {:.2} s | | |",
                work.name,
                median.program_seconds,
                least.program_seconds,
                median.processor_seconds,
                least.processor_seconds
            );
            continue;
        }
        let in_program = |of: f64, base: f64| {
            if of > 0.0 { format!("{:.2}x", of / base) } else { String::new() }
        };
        println!(
            "| {} | {name} | {} | {} | {:.2}x | {:.2}x | {} | {:.0} |",
            work.name,
            in_program(median.program_seconds, plain.program_seconds),
            in_program(least.program_seconds, plain_least.program_seconds),
            median.processor_seconds / plain.processor_seconds,
            least.processor_seconds / plain_least.processor_seconds,
            median.recorded_bytes,
            figures.allocations
        );
    }
    Ok(())
}

/// # Errors
///
/// When `cairn heap` counts other allocations than those that the program takes from `malloc`.
fn check_count(work: &Work, cairn: &Path, directory: &Path) -> Result<(), String> {
    let counted = |options: &[&str], variables: &[(&'static str, &'static str)]| {
        let words = ["heap", "--quiet"].iter().chain(options).map(|word| (*word).to_owned());
        let tool = Tool {
            name: "count",
            wrapper: std::iter::once(cairn.display().to_string()).chain(words).collect(),
            preload: Vec::new(),
            ..Tool::cairn_heap(cairn, "")
        };
        let work = Work {
            name: work.name,
            program: work.program.clone(),
            arguments: work.arguments.clone(),
            environment: [work.environment.as_slice(), variables].concat(),
        };
        heap::once(&work, &tool, directory)?;
        Ok::<f64, String>(heap::allocations_in(&tool, directory))
    };
    let hooked = counted(&[], &[])?;
    let from_malloc = counted(&["--python=native"], &[("PYTHONMALLOC", "malloc")])?;
    if hooked <= 0.0 || (hooked - from_malloc).abs() > from_malloc * TOLERATED {
        return Err(format!(
            "{}: cairn heap counts {hooked} allocations, and {from_malloc} under PYTHONMALLOC=malloc",
            work.name
        ));
    }
    Ok(())
}

fn has_module(python: &str, module: &str) -> bool {
    let imported = Command::new(python).args(["-c", &format!("import {module}")]).output();
    imported.is_ok_and(|output| output.status.success())
}

fn memray_version(python: &str) -> Option<String> {
    let output = Command::new(python).args(["-m", "memray", "--version"]).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn memray_allocations(tool: &Tool, directory: &Path) -> f64 {
    let records = directory.join("records");
    let Some(python) = tool.wrapper.first() else { return 0.0 };
    let _ = Command::new(python)
        .args(["-m", "memray", "stats", "--json", "-f", "-o", "stats.json", "out.memray"])
        .current_dir(&records)
        .output();
    let text = fs::read_to_string(records.join("stats.json")).unwrap_or_default();
    let stats: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
    stats["total_num_allocations"].as_f64().unwrap_or_default()
}

fn heaptrack_allocations(_: &Tool, directory: &Path) -> f64 {
    let records = fs::read_dir(directory.join("records")).into_iter().flatten().filter_map(Result::ok);
    let paths: Vec<PathBuf> = records.map(|entry| entry.path()).collect();
    let Some(path) = paths.iter().find(|path| path.to_string_lossy().ends_with(COMPRESSED)) else {
        return 0.0;
    };
    let quick = ["--print-peaks=0", "--print-allocators=0", "--print-temporary=0", "--print-leaks=0"];
    let printed = Command::new("heaptrack_print").args(quick).arg(path).output();
    let text = printed.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("calls to allocation functions: "));
    let digits: String = line.unwrap_or_default().chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap_or_default()
}
