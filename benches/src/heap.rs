//! Whole programs under heap profilers: processor time as a multiple of the plain run, and bytes of
//! the recording.
//!
//! Each work runs plain and under each tool in turn, round after round; medians of the rounds. Two
//! figures for cairn, of the same runs: *in the program* is the processor time of the recorded
//! process alone, which a probe in it writes at its end; *in all* includes that of the `cairn`
//! process. The tools write where they normally do. Profilers that are a part of an allocator are
//! compared with that allocator without.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::machine;

/// One program with its arguments.
pub(crate) struct Work {
    pub(crate) name: &'static str,
    pub(crate) program: String,
    pub(crate) arguments: Vec<String>,
    pub(crate) environment: Vec<(&'static str, &'static str)>,
}

/// A way to run it.
pub(crate) struct Tool {
    pub(crate) name: &'static str,
    /// The command in front of the program's own.
    pub(crate) wrapper: Vec<String>,
    pub(crate) environment: Vec<(String, String)>,
    /// Ending of the files that it records to.
    pub(crate) ending: &'static str,
    /// Libraries that the loader puts into the program.
    pub(crate) preload: Vec<String>,
    /// Index in the list of the peer that it is compared with.
    pub(crate) base: usize,
}

/// Ending of what heaptrack writes with its interpreter.
pub(crate) const COMPRESSED: &str = ".zst";
/// Ending of what bytehound writes.
const BYTEHOUND: &str = ".bytehound";
/// Names bytehound's library: nobody ships it, so who wants it in the tables builds it.
const BYTEHOUND_LIBRARY: &str = "CAIRN_BENCH_BYTEHOUND";

/// Cost of one run.
#[derive(Clone, Copy, Default)]
pub(crate) struct RunCost {
    pub(crate) wall_seconds: f64,
    /// Cost of all processes.
    pub(crate) processor_seconds: f64,
    /// Cost of the program, if the probe is in it.
    pub(crate) program_seconds: f64,
    pub(crate) recorded_bytes: u64,
    /// Peak of the program's resident memory, and what of it at its end was no file, in KiB.
    pub(crate) resident_kib: f64,
    pub(crate) anonymous_kib: f64,
    pub(crate) allocations: f64,
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
    let tools = tools(&cairn, directory, &build_probe(directory)?)?;
    print!("{}", machine::description());
    println!("- heaptrack: {}", version("heaptrack"));
    println!("- {rounds} rounds; medians; times are multiples of the plain run's processor time\n");
    print!("| work | plain: time, allocations, memory |");
    tools.iter().skip(1).for_each(|tool| print!(" {} |", tool.name));
    print!("\n|---|---:|");
    tools.iter().skip(1).for_each(|tool| print!("{}", "---:|".repeat(tool.name.split(" | ").count())));
    println!();
    for work in works(directory)? {
        if !only.is_empty() && !only.iter().any(|name| work.name.contains(name)) {
            continue;
        }
        measure(&work, &tools, directory, rounds)?;
    }
    measure_small(&cairn, directory, rounds)
}

/// Beside valgrind's DHAT, which runs programs in a machine of its own: a hundredth of the work.
fn measure_small(cairn: &Path, directory: &Path, rounds: usize) -> Result<(), String> {
    if Command::new("valgrind").arg("--version").output().is_err() {
        eprintln!("DHAT: valgrind is missing");
        return Ok(());
    }
    let work = Work {
        name: "churn, 1 thread, small",
        program: directory.join("churn").display().to_string(),
        arguments: vec!["40000".to_owned(), "1".to_owned()],
        environment: Vec::new(),
    };
    let tool = |name, wrapper: &[&str]| Tool {
        name,
        wrapper: wrapper.iter().map(|word| (*word).to_owned()).collect(),
        environment: Vec::new(),
        ending: "",
        preload: Vec::new(),
        base: 0,
    };
    let tools = [
        tool("plain", &[]),
        tool("cairn heap", &[&cairn.display().to_string(), "heap", "--quiet"]),
        tool("DHAT", &["valgrind", "--quiet", "--tool=dhat", "--dhat-out-file=dhat.out"]),
    ];
    let mut seconds = vec![Vec::new(); tools.len()];
    for _ in 0..rounds {
        for (tool, seconds) in tools.iter().zip(&mut seconds) {
            seconds.push(once(&work, tool, directory)?.processor_seconds);
        }
    }
    println!("\n{}, in all: processor time, median", work.name);
    for (tool, seconds) in tools.iter().zip(&mut seconds) {
        seconds.sort_by(f64::total_cmp);
        println!("- {}: {:.3} s", tool.name, seconds.get(seconds.len() / 2).copied().unwrap_or_default());
    }
    Ok(())
}

fn measure(work: &Work, tools: &[Tool], directory: &Path, rounds: usize) -> Result<(), String> {
    let mut costs = vec![Vec::new(); tools.len()];
    for round in 0..rounds {
        for (tool, costs) in tools.iter().zip(&mut costs) {
            // Three hundred times as slow as the plain run: one round of it has to do.
            if tool.name.starts_with("gperftools") && round > 0 {
                continue;
            }
            let mut cost = once(work, tool, directory)?;
            // The same in every round.
            cost.allocations = if tool.ending == ".cairn" && round == 0 {
                allocations_in(tool, directory)
            } else {
                costs.first().map_or(0.0, |first: &RunCost| first.allocations)
            };
            costs.push(cost);
        }
    }
    let medians: Vec<RunCost> = costs.iter().map(|costs| median(costs)).collect();
    let plain = medians.first().copied().unwrap_or_default();
    let allocations = medians.iter().map(|cost| cost.allocations).fold(0.0, f64::max);
    print!(
        "| {} | {:.2} s, {:.2} M, {:.0} MiB |",
        work.name,
        plain.processor_seconds,
        allocations / 1e6,
        plain.resident_kib / 1024.0
    );
    for (tool, cost) in tools.iter().zip(&medians).skip(1) {
        let base = medians.get(tool.base).copied().unwrap_or_default();
        let ratio = cost.processor_seconds / base.processor_seconds;
        let in_program = cost.program_seconds / base.program_seconds;
        let bytes = cost.recorded_bytes as f64 / allocations;
        if tool.ending == ".cairn" {
            let wall = cost.wall_seconds / base.wall_seconds;
            let resident = (cost.resident_kib - base.resident_kib) / 1024.0;
            let anonymous = (cost.anonymous_kib - base.anonymous_kib) / 1024.0;
            print!(
                " {in_program:.2}x | {ratio:.2}x (wall {wall:.2}x) | {bytes:.2} | {resident:.0} ({anonymous:.1}) |"
            );
        } else if [COMPRESSED, BYTEHOUND].contains(&tool.ending) {
            print!(" {ratio:.2}x | {bytes:.2} |");
        } else if in_program == 0.0 {
            print!(" {ratio:.2}x |");
        } else {
            print!(" {in_program:.2}x |");
        }
    }
    println!();
    Ok(())
}

impl Tool {
    /// The program alone, with the probe in it.
    pub(crate) fn plain(probe: &str) -> Self {
        Self {
            name: "plain",
            wrapper: Vec::new(),
            environment: Vec::new(),
            ending: "",
            preload: vec![probe.to_owned()],
            base: 0,
        }
    }

    /// `cairn heap` of a build.
    pub(crate) fn cairn_heap(cairn: &Path, probe: &str) -> Self {
        let wrapper = vec![cairn.display().to_string(), "heap".to_owned(), "--quiet".to_owned()];
        Self { name: "cairn heap", wrapper, ending: ".cairn", ..Self::plain(probe) }
    }
}

/// Compiles the library that measures a program from inside.
pub(crate) fn build_probe(directory: &Path) -> Result<String, String> {
    let probe = directory.join("probe.so");
    let source = Path::new("benches/src/heap_probe.c");
    compile(Command::new("cc").args(["-O2", "-D_GNU_SOURCE", "-shared", "-fPIC"]), source, &probe)?;
    Ok(probe.display().to_string())
}

/// The recordings that the last run left.
pub(crate) fn recordings(directory: &Path) -> impl Iterator<Item = PathBuf> {
    let files = fs::read_dir(directory.join("records")).into_iter().flatten().filter_map(Result::ok);
    files.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|end| end == "cairn"))
}

/// Counts the allocations in the recordings that `cairn heap` has just made.
pub(crate) fn allocations_in(tool: &Tool, directory: &Path) -> f64 {
    let Some(cairn) = tool.wrapper.first() else { return 0.0 };
    recordings(directory)
        .filter_map(|path| Command::new(cairn).args(["report", "--json"]).arg(path).output().ok())
        .filter_map(|output| {
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let (_, rest) = text.split_once("\"total_allocations\":")?;
            let digits: String = rest.trim_start().chars().take_while(char::is_ascii_digit).collect();
            digits.parse::<f64>().ok()
        })
        .sum()
}

pub(crate) fn once(work: &Work, tool: &Tool, directory: &Path) -> Result<RunCost, String> {
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
    let figures_text = directory.join("probe.txt");
    let _ = fs::remove_file(&figures_text);
    command.env("CAIRN_BENCH_PROBE", &figures_text);
    if !tool.preload.is_empty() {
        command.env("LD_PRELOAD", tool.preload.join(":"));
    }
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
    let processor_seconds = children_seconds() - before;
    let figures_text = fs::read_to_string(&figures_text).unwrap_or_default();
    let of_program = own_figures(&figures_text, &work.program);
    Ok(RunCost {
        wall_seconds,
        processor_seconds,
        program_seconds: of_program.iter().map(|figures| figures[0]).sum(),
        recorded_bytes,
        resident_kib: of_program.iter().map(|figures| figures[1]).fold(0.0, f64::max),
        anonymous_kib: of_program.iter().map(|figures| figures[2]).fold(0.0, f64::max),
        allocations: 0.0,
    })
}

/// Returns the program's own figures, as the probe wrote them. The command next to it has them too.
/// Seconds, and two sizes in KiB.
fn own_figures(figures_text: &str, program: &str) -> Vec<[f64; 3]> {
    let name = Path::new(program).file_name().unwrap_or_default().to_string_lossy();
    let figures = |line: &str| {
        let mut words = line.splitn(4, ' ');
        let mut number = || words.next()?.parse::<f64>().ok();
        let figures = [number()?, number()?, number()?];
        (words.next()? == name).then_some(figures)
    };
    figures_text.lines().filter_map(figures).collect()
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

/// Each figure's own.
pub(crate) fn median(costs: &[RunCost]) -> RunCost {
    let of = |figure: fn(&RunCost) -> f64| {
        let mut figures: Vec<f64> = costs.iter().map(figure).collect();
        figures.sort_by(f64::total_cmp);
        figures.get(figures.len() / 2).copied().unwrap_or_default()
    };
    RunCost {
        wall_seconds: of(|cost| cost.wall_seconds),
        processor_seconds: of(|cost| cost.processor_seconds),
        program_seconds: of(|cost| cost.program_seconds),
        recorded_bytes: of(|cost| cost.recorded_bytes as f64) as u64,
        resident_kib: of(|cost| cost.resident_kib),
        anonymous_kib: of(|cost| cost.anonymous_kib),
        allocations: of(|cost| cost.allocations),
    }
}

fn compile(compiler: &mut Command, source: &Path, program: &Path) -> Result<(), String> {
    let built = compiler.arg("-o").arg(program).arg(source).status();
    if built.is_ok_and(|status| status.success()) {
        Ok(())
    } else {
        Err(format!("{} cannot be compiled", source.display()))
    }
}

/// Returns the command as it is shipped.
pub(crate) fn build_cairn() -> Result<PathBuf, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built =
        Command::new(cargo).args(["build", "--quiet", "--release", "--package", "cairn-cli"]).status();
    if !built.is_ok_and(|status| status.success()) {
        return Err("cairn cannot be built".to_owned());
    }
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
    fs::canonicalize(target.join("release/cairn")).map_err(|error| error.to_string())
}

/// Returns the library that the command puts into programs: it passes the path to its children.
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

fn tools(cairn: &Path, directory: &Path, probe: &str) -> Result<Vec<Tool>, String> {
    let library = library(cairn, directory)?;
    let cairn = cairn.display().to_string();
    let probed = |name| Tool { name, ..Tool::plain(probe) };
    let mut tools = vec![
        probed("plain"),
        Tool {
            environment: vec![("CAIRN_HEAP".to_owned(), "paused".to_owned())],
            preload: vec![library, probe.to_owned()],
            ..probed("cairn, hooks alone")
        },
        Tool {
            wrapper: vec![cairn.clone(), "heap".to_owned(), "--quiet".to_owned()],
            ending: ".cairn",
            ..probed("cairn heap, in the program | in all | bytes per allocation | MiB added (without files)")
        },
        Tool {
            wrapper: ["heap", "--quiet", "--sample", "512KiB"].iter().fold(vec![cairn], |mut words, word| {
                words.push((*word).to_owned());
                words
            }),
            ..probed("cairn heap --sample 512KiB, in the program")
        },
    ];
    let peer = "/usr/lib/heaptrack/libheaptrack_preload.so";
    if Path::new(peer).exists() {
        tools.push(Tool {
            name: "heaptrack, in the program",
            wrapper: Vec::new(),
            environment: vec![("DUMP_HEAPTRACK_OUTPUT".to_owned(), "raw.heaptrack".to_owned())],
            ending: ".heaptrack",
            preload: vec![peer.to_owned()],
            base: 0,
        });
        tools.push(Tool {
            name: "heaptrack, in all | bytes per allocation",
            wrapper: vec!["heaptrack".to_owned(), "--output".to_owned(), "out".to_owned()],
            environment: Vec::new(),
            ending: COMPRESSED,
            preload: Vec::new(),
            base: 0,
        });
    }
    if let Some(bytehound) = std::env::var_os(BYTEHOUND_LIBRARY) {
        let output = ("MEMORY_PROFILER_OUTPUT".to_owned(), format!("%p{BYTEHOUND}"));
        tools.push(Tool {
            environment: vec![output, ("MEMORY_PROFILER_LOG".to_owned(), "off".to_owned())],
            ending: BYTEHOUND,
            preload: vec![PathBuf::from(bytehound).display().to_string()],
            ..probed("bytehound, in all | bytes per allocation")
        });
    }
    // By their whole path: a program may go elsewhere before it ends.
    let records = directory.join("records");
    let profilers = [
        (
            "/usr/lib/x86_64-linux-gnu/libjemalloc.so.2",
            "jemalloc",
            "MALLOC_CONF",
            format!("prof:true,prof_final:true,prof_prefix:{}", records.join("jeprof").display()),
        ),
        (
            "/usr/lib/x86_64-linux-gnu/libtcmalloc.so.4",
            "gperftools",
            "HEAPPROFILE",
            records.join("gperf").display().to_string(),
        ),
    ];
    for (allocator, name, variable, value) in profilers {
        if !Path::new(allocator).exists() {
            continue;
        }
        let base = tools.len();
        let preload = vec![allocator.to_owned(), probe.to_owned()];
        let (without, with) = match name {
            "jemalloc" => ("jemalloc alone", "jemalloc, profiling (of jemalloc alone)"),
            _ => ("tcmalloc alone", "gperftools' heap profiler (of tcmalloc alone)"),
        };
        tools.push(Tool { preload: preload.clone(), ..probed(without) });
        let environment = vec![(variable.to_owned(), value)];
        tools.push(Tool { preload, environment, base, ..probed(with) });
    }
    Ok(tools)
}

pub(crate) fn works(directory: &Path) -> Result<Vec<Work>, String> {
    let sources = Path::new("fixtures/programs/heap");
    let built = |compiler: &str, options: &[&str], source: &str, name: &str| {
        let program = directory.join(name);
        compile(Command::new(compiler).args(options), &sources.join(source), &program)?;
        Ok::<_, String>(program.display().to_string())
    };
    let plain = ["-O2", "-g", "-pthread", "-fno-builtin-malloc"];
    let work = |name, program: &str, arguments: &[&str]| Work {
        name,
        program: program.to_owned(),
        arguments: arguments.iter().map(|word| (*word).to_owned()).collect(),
        environment: Vec::new(),
    };
    let churn = built("cc", &plain, "churn.c", "churn")?;
    let maps = built("c++", &plain, "maps.cpp", "maps")?;
    let lookups = built("c++", &plain, "lookups.cpp", "lookups")?;
    let walks = built("cc", &plain, "walks.c", "walks")?;
    let recursions = built("c++", &plain, "recursions.cpp", "recursions")?;
    let btree = built("rustc", &["-O", "--edition", "2024"], "btree.rs", "btree")?;
    let document = directory.join("large.xml");
    let item = "<item number=\"1\"><name>some name</name><text lang=\"en\">a text &amp; more</text></item>\n";
    fs::write(&document, format!("<list>\n{}</list>\n", item.repeat(100_000)))
        .map_err(|error| error.to_string())?;
    let sql = fs::canonicalize("fixtures/programs/churn.sql").map_err(|error| error.to_string())?;
    let script = fs::canonicalize("fixtures/programs/churn.py").map_err(|error| error.to_string())?;
    let computing =
        fs::canonicalize("fixtures/programs/heap/compute.py").map_err(|error| error.to_string())?;
    let source = fs::canonicalize("fixtures/programs/churn.cpp").map_err(|error| error.to_string())?;
    // The driver knows the directories of headers; the front end alone does not.
    let preprocessed = directory.join("churn.ii").display().to_string();
    let _ = Command::new("clang++").args(["-E", "-std=c++17", "-o", &preprocessed]).arg(&source).status();
    let compiled = Command::new("gcc").arg("-print-prog-name=cc1plus").output();
    let compiler =
        compiled.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default();
    let mut works = vec![
        work("churn, 1 thread", &churn, &["4000000", "1"]),
        work("churn, 4 threads", &churn, &["4000000", "4"]),
        work("C++ maps", &maps, &["8"]),
        work("C++ maps, with lookups", &lookups, &["8"]),
        work("Rust BTreeMap", &btree, &["8"]),
        work("random walks, 1 thread", &walks, &["4000000", "1"]),
        work("random walks, 4 threads", &walks, &["4000000", "4"]),
        work("random walks, 8 threads", &walks, &["4000000", "8"]),
        work("recursive-descent parser", &recursions, &["parse", "15000"]),
        work("regular expressions", &recursions, &["match", "4000"]),
        work("rewriting of terms", &recursions, &["rewrite", "1000"]),
        work("scene graph", &recursions, &["scene", "800"]),
        work("xmllint", "xmllint", &["--noout", &document.display().to_string()]),
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
        // The front end that the driver starts: a driver's child is not recorded.
        work(
            "clang -O2",
            "/usr/bin/clang++",
            &["-cc1", "-O2", "-x", "c++", "-std=c++17", "-emit-llvm-bc", "-o", "/dev/null", &preprocessed],
        ),
        Work {
            environment: vec![("PYTHONMALLOC", "malloc")],
            ..work(
                "python3, PYTHONMALLOC=malloc",
                "/usr/bin/python3",
                &[&script.display().to_string(), "150"],
            )
        },
        Work {
            environment: vec![("PYTHONMALLOC", "malloc")],
            ..work("python3 that computes", "/usr/bin/python3", &[&computing.display().to_string(), "30"])
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

pub(crate) fn version(program: &str) -> String {
    let output = Command::new(program).arg("--version").output();
    output.map_or_else(
        |_| "missing".to_owned(),
        |output| String::from_utf8_lossy(&output.stdout).lines().next().unwrap_or_default().to_owned(),
    )
}
