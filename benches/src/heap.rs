//! Whole programs under heap profilers: processor time as a multiple of the plain run, and bytes of the recording.
//!
//! Each work runs plain and under each tool in turn, round after round; medians of the rounds. Two figures for each tool:
//! *in the program* is the processor time of the recorded process alone, *in all* that of everything the tool runs beside it
//! as well. The tools write where they normally do. Without the command beside it, cairn's library reads the clock as often as
//! with it, and extends its file itself.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::machine;

/// One program with its arguments.
struct Work {
    name: &'static str,
    program: String,
    arguments: Vec<String>,
    environment: Vec<(&'static str, &'static str)>,
}

/// A way to run it.
struct Tool {
    name: &'static str,
    /// The command in front of the program's own.
    wrapper: Vec<String>,
    environment: Vec<(String, String)>,
    /// Ending of the files that it records to.
    ending: &'static str,
}

/// What one run took.
#[derive(Clone, Copy, Default)]
struct Cost {
    wall_seconds: f64,
    processor_seconds: f64,
    recorded_bytes: u64,
}

/// Runs everything `rounds` times and prints the tables.
pub(crate) fn run(rounds: usize, only: &[&str]) -> Result<(), String> {
    let directory = std::env::temp_dir().join(format!("cairn-bench-heap-{}", std::process::id()));
    fs::create_dir_all(&directory).map_err(|error| error.to_string())?;
    let result = run_in(&directory, rounds, only);
    let _ = fs::remove_dir_all(&directory);
    result
}

fn run_in(directory: &Path, rounds: usize, only: &[&str]) -> Result<(), String> {
    let cairn = build_cairn()?;
    let tools = tools(&cairn, directory)?;
    print!("{}", machine::description());
    println!("- heaptrack: {}", version("heaptrack"));
    println!("- {rounds} rounds; medians; times are multiples of the plain run's processor time\n");
    print!("| work | plain |");
    tools.iter().skip(1).for_each(|tool| print!(" {} |", tool.name));
    print!("\n|---|---:|");
    tools.iter().skip(1).for_each(|_| print!("---:|"));
    println!();
    for work in works(directory)? {
        if !only.is_empty() && !only.iter().any(|name| work.name.contains(name)) {
            continue;
        }
        measure(&work, &tools, directory, rounds)?;
    }
    Ok(())
}

fn measure(work: &Work, tools: &[Tool], directory: &Path, rounds: usize) -> Result<(), String> {
    let mut costs = vec![Vec::new(); tools.len()];
    for _ in 0..rounds {
        for (tool, costs) in tools.iter().zip(&mut costs) {
            costs.push(once(work, tool, directory)?);
        }
    }
    let medians: Vec<Cost> = costs.iter_mut().map(|costs| median(costs)).collect();
    let plain = medians.first().copied().unwrap_or_default();
    print!("| {} | {:.2} s |", work.name, plain.processor_seconds);
    for cost in medians.iter().skip(1) {
        let ratio = cost.processor_seconds / plain.processor_seconds;
        let wall = cost.wall_seconds / plain.wall_seconds;
        if cost.recorded_bytes > 0 {
            print!(" {ratio:.2}x (wall {wall:.2}x), {:.1} MB |", cost.recorded_bytes as f64 / 1e6);
        } else {
            print!(" {ratio:.2}x (wall {wall:.2}x) |");
        }
    }
    println!();
    Ok(())
}

fn once(work: &Work, tool: &Tool, directory: &Path) -> Result<Cost, String> {
    let records = directory.join("records");
    let _ = fs::remove_dir_all(&records);
    fs::create_dir_all(&records).map_err(|error| error.to_string())?;
    let mut words = tool.wrapper.iter().chain([&work.program]).chain(&work.arguments);
    let mut command = Command::new(words.next().ok_or("no command")?);
    command
        .args(words)
        .current_dir(&records)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.envs(work.environment.iter().copied());
    command.envs(tool.environment.iter().map(|(name, value)| (name, value)));
    let before = children_seconds();
    let began = Instant::now();
    let status = command.status().map_err(|error| format!("{}: {error}", work.program))?;
    let wall_seconds = began.elapsed().as_secs_f64();
    if !status.success() {
        return Err(format!("{} under {}: {status}", work.name, tool.name));
    }
    let recorded_bytes = fs::read_dir(&records)
        .map_err(|error| error.to_string())?
        .filter_map(Result::ok)
        .filter(|entry| entry.file_name().to_string_lossy().ends_with(tool.ending))
        .filter_map(|entry| entry.metadata().ok())
        .map(|facts| if tool.ending.is_empty() { 0 } else { facts.len() })
        .sum();
    Ok(Cost { wall_seconds, processor_seconds: children_seconds() - before, recorded_bytes })
}

/// Processor time of the children that were waited for, and of theirs.
fn children_seconds() -> f64 {
    // SAFETY: zeros are a value of it, and the call writes to it.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage);
        usage
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

fn median(costs: &mut [Cost]) -> Cost {
    costs.sort_by(|a, b| a.processor_seconds.total_cmp(&b.processor_seconds));
    costs.get(costs.len() / 2).copied().unwrap_or_default()
}

/// The command as it is shipped.
fn build_cairn() -> Result<PathBuf, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built =
        Command::new(cargo).args(["build", "--quiet", "--release", "--package", "cairn-cli"]).status();
    if !built.is_ok_and(|status| status.success()) {
        return Err("cairn cannot be built".to_owned());
    }
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
    fs::canonicalize(target.join("release/cairn")).map_err(|error| error.to_string())
}

/// The library that the command puts into programs: it tells its children where that is.
fn library(cairn: &Path, directory: &Path) -> Result<String, String> {
    let output = Command::new(cairn)
        .args(["heap", "--quiet", "--children", "env"])
        .current_dir(directory)
        .output()
        .map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let list = text.lines().find_map(|line| line.strip_prefix("LD_PRELOAD="));
    Ok(list.ok_or("cairn heap puts no library into env")?.to_owned())
}

fn tools(cairn: &Path, directory: &Path) -> Result<Vec<Tool>, String> {
    let library = library(cairn, directory)?;
    let cairn = cairn.display().to_string();
    let own = |name, options: &str| Tool {
        name,
        wrapper: Vec::new(),
        environment: vec![
            ("LD_PRELOAD".to_owned(), library.clone()),
            ("CAIRN_HEAP".to_owned(), options.to_owned()),
        ],
        ending: ".cairn",
    };
    let mut tools = vec![
        Tool { name: "plain", wrapper: Vec::new(), environment: Vec::new(), ending: "" },
        Tool { ending: "", ..own("cairn, hooks alone", "paused") },
        own("cairn, in the program", "stamp=8,output=%n.%p.cairn"),
        Tool {
            name: "cairn heap, in all",
            wrapper: vec![cairn, "heap".to_owned(), "--quiet".to_owned()],
            environment: Vec::new(),
            ending: ".cairn",
        },
    ];
    let peer = "/usr/lib/heaptrack/libheaptrack_preload.so";
    if Path::new(peer).exists() {
        tools.push(Tool {
            name: "heaptrack, in the program",
            wrapper: Vec::new(),
            environment: vec![
                ("LD_PRELOAD".to_owned(), peer.to_owned()),
                ("DUMP_HEAPTRACK_OUTPUT".to_owned(), "raw.heaptrack".to_owned()),
            ],
            ending: ".heaptrack",
        });
        tools.push(Tool {
            name: "heaptrack, in all",
            wrapper: vec!["heaptrack".to_owned(), "--output".to_owned(), "out".to_owned()],
            environment: Vec::new(),
            ending: "",
        });
    }
    Ok(tools)
}

fn works(directory: &Path) -> Result<Vec<Work>, String> {
    let sources = Path::new("fixtures/programs/heap");
    let compile = |compiler: &str, source: &str, name: &str| {
        let program = directory.join(name);
        let built = Command::new(compiler)
            .args(["-O2", "-g", "-pthread", "-fno-builtin-malloc", "-o"])
            .arg(&program)
            .arg(sources.join(source))
            .status();
        if built.is_ok_and(|status| status.success()) {
            Ok(program.display().to_string())
        } else {
            Err(format!("{source} cannot be compiled"))
        }
    };
    let work = |name, program: &str, arguments: &[&str]| Work {
        name,
        program: program.to_owned(),
        arguments: arguments.iter().map(|word| (*word).to_owned()).collect(),
        environment: Vec::new(),
    };
    let churn = compile("cc", "churn.c", "churn")?;
    let maps = compile("c++", "maps.cpp", "maps")?;
    let sql = fs::canonicalize("fixtures/programs/churn.sql").map_err(|error| error.to_string())?;
    let script = fs::canonicalize("fixtures/programs/churn.py").map_err(|error| error.to_string())?;
    let source = fs::canonicalize("fixtures/programs/churn.cpp").map_err(|error| error.to_string())?;
    let compiled = Command::new("gcc").arg("-print-prog-name=cc1plus").output();
    let compiler =
        compiled.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default();
    let mut works = vec![
        work("churn, 1 thread", &churn, &["4000000", "1"]),
        work("churn, 4 threads", &churn, &["4000000", "4"]),
        work("C++ maps", &maps, &["8"]),
        work("sqlite3", "sqlite3", &[":memory:", &format!(".read {}", sql.display())]),
        work("jq", "jq", &["-n", "[range(150000)|{a:.,b:(.|tostring)}]|map(.b|length)|add"]),
        work("git log", "git", &["-C", env!("CARGO_MANIFEST_DIR"), "log", "--stat", "-200"]),
        work(
            "cc1plus -O2",
            &compiler,
            &[
                "-quiet",
                "-imultiarch",
                "x86_64-linux-gnu",
                "-D_GNU_SOURCE",
                "-O2",
                "-std=c++17",
                &source.display().to_string(),
                "-o",
                "/dev/null",
            ],
        ),
        Work {
            environment: vec![("PYTHONMALLOC", "malloc")],
            ..work(
                "python3, PYTHONMALLOC=malloc",
                "/usr/bin/python3",
                &[&script.display().to_string(), "150"],
            )
        },
    ];
    works.retain(|work| {
        let is_here = if work.program.contains('/') {
            Path::new(&work.program).exists()
        } else {
            Command::new(&work.program).arg("--version").output().is_ok()
        };
        if !is_here {
            eprintln!("{}: {} is missing", work.name, work.program);
        }
        is_here
    });
    Ok(works)
}

fn version(program: &str) -> String {
    let output = Command::new(program).arg("--version").output();
    output.map_or_else(
        |_| "missing".to_owned(),
        |output| String::from_utf8_lossy(&output.stdout).lines().next().unwrap_or_default().to_owned(),
    )
}
