//! `cargo xtask exports [--require] [FILE]`: a recording in every format of other tools, opened by
//! these tools; their totals must be ours.
//!
//! Without a file, a run of python3 is recorded. Missing tools from npm, PyPI or Go's compiler are
//! put into `target/exports`; Debian packages are only named. A tool that is missing is given, and
//! is a failure with `--require` alone.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::process::{Failure, Outcome, at, cargo, on_path, read, run, workspace_root};
use crate::python;

/// Program to record when no file is named: allocations of all sizes, freed and retained.
const PROGRAM: &str = "import json, re
data = [{'a': i, 'b': [str(i)] * (i % 7)} for i in range(3000)]
text = json.dumps(data)
keep = json.loads(text)
print(len(text), sum(len(x) for x in re.findall(r'[0-9]+', text)))";

const FORMATS: &[(&str, &str)] = &[
    ("pprof", "app.pb.gz"),
    ("firefox", "app.firefox.json"),
    ("speedscope", "app.speedscope.json"),
    ("heapprofile", "app.heapprofile"),
    ("folded", "app.folded"),
    ("heaptrack", "app.heaptrack.zst"),
    ("dhat", "app.dhat.json"),
    ("otlp", "app.otlp"),
    ("csv", "app.csv"),
    ("jsonl", "app.jsonl"),
];

/// Columns of pprof, tables and OTLP, and the keys of cairn's own report.
const COLUMNS: &[(&str, &str)] = &[
    ("alloc_objects", "total_allocations"),
    ("alloc_space", "total_bytes"),
    ("inuse_objects", "leaked_allocations"),
    ("inuse_space", "leaked_bytes"),
    ("peak_objects", "peak_allocations"),
    ("peak_space", "peak_bytes"),
    ("temporary_objects", "temporary_allocations"),
];

/// The columns of an image: what was allocated before is not known.
const IMAGE_COLUMNS: &[(&str, &str)] =
    &[("inuse_objects", "leaked_allocations"), ("inuse_space", "leaked_bytes")];

/// A program that holds blocks and waits until its input ends.
const WAITING: &str = "import os, sys
keep = [{'a': i, 'b': [str(i)] * (i % 7), 'c': 'x' * (600 + i)} for i in range(2000)]
print(os.getpid(), flush=True)
sys.stdin.read()";

const PPROF_SOURCE: &str = "/usr/share/gocode/src/github.com/google/pprof";
const DH_VIEW: &str = "/usr/libexec/valgrind/dh_view.html";
const NPM_PACKAGES: &[&str] = &["node@24", "@firefox-devtools/profiler-cli", "speedscope", "puppeteer-core"];

/// A total as a consumer prints it, and as `cairn report --json` does.
struct Seen {
    what: String,
    theirs: f64,
    ours: f64,
    /// Where a tool rounds what it prints: by how much it may be off, of ours.
    slack: f64,
}

impl Seen {
    fn agrees(&self) -> bool {
        (self.theirs - self.ours).abs() <= self.ours * self.slack
    }
}

/// Result of one tool.
enum Answer {
    Seen {
        version: String,
        totals: Vec<Seen>,
    },
    /// How to get it.
    Missing(String),
}

/// A tool, and what it is asked.
type Consumer = (&'static str, fn(&Exports) -> Outcome<Answer>);

const CONSUMERS: &[Consumer] = &[
    ("pprof -top", pprof),
    ("heaptrack_print", heaptrack_print),
    ("heaptrack_gui", heaptrack_gui),
    ("profiler-cli (Firefox Profiler)", firefox),
    ("speedscope, dh_view.html, the flame graph in Chromium", browser),
    ("opentelemetry-proto", otlp),
    ("sqlite3 .import", sqlite),
    ("folded stacks, summed up by awk", folded),
];

/// Those that tell of an image: the window of heaptrack shows the same file as its text.
const IMAGE_CONSUMERS: &[Consumer] = &[
    ("pprof -top", pprof),
    ("heaptrack_print", heaptrack_print),
    ("profiler-cli (Firefox Profiler)", firefox),
    ("speedscope, dh_view.html, the flame graph in Chromium", browser),
    ("opentelemetry-proto", otlp),
    ("sqlite3 .import", sqlite),
    ("folded stacks, summed up by awk", folded),
];

/// Exports of one recording or image, in a directory, and what they must add up to.
struct Exports {
    /// Where tools are that are not the system's.
    tools: PathBuf,
    directory: PathBuf,
    report: Value,
    columns: &'static [(&'static str, &'static str)],
    /// Columns for an image of memory: it has live blocks, and no times.
    is_image: bool,
}

impl Exports {
    fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    fn total(&self, key: &str) -> Outcome<f64> {
        self.report[key].as_f64().ok_or_else(|| Failure::new(format!("the report has no number {key}")))
    }

    fn seen(&self, key: &str, theirs: f64) -> Outcome<Seen> {
        Ok(Seen { what: key.to_owned(), theirs, ours: self.total(key)?, slack: 0.0 })
    }

    /// Packages of npm, if they are available.
    fn npm(&self) -> Outcome<Option<PathBuf>> {
        let modules = self.tools.join("npm/node_modules");
        let has_all = NPM_PACKAGES.iter().all(|name| modules.join(name.trim_end_matches("@24")).exists());
        if !has_all {
            if !on_path("npm") {
                return Ok(None);
            }
            let prefix = self.tools.join("npm");
            fs::create_dir_all(&prefix).map_err(at(&prefix))?;
            let mut command = Command::new("npm");
            command.args(["install", "--silent", "--no-audit", "--no-fund", "--prefix"]).arg(&prefix);
            // The browser is Debian's.
            run(command.args(NPM_PACKAGES).env("PUPPETEER_SKIP_DOWNLOAD", "1"))?;
        }
        Ok(Some(modules))
    }
}

pub(crate) fn run_all(arguments: &[String]) -> Outcome {
    let is_required = arguments.iter().any(|argument| argument == "--require");
    let files: Vec<&String> = arguments.iter().filter(|argument| *argument != "--require").collect();
    if files.len() > 1 || files.iter().any(|file| file.starts_with('-')) {
        return Err(Failure::usage("cargo xtask exports [--require] [FILE]"));
    }
    let exports = prepare(files.first().map(|file| Path::new(file.as_str())))?;
    let (mut missing, mut wrong) = (Vec::new(), Vec::new());
    check(&exports, CONSUMERS, "", &mut missing, &mut wrong);
    check(&prepare_image(&exports.tools)?, IMAGE_CONSUMERS, "an image of memory: ", &mut missing, &mut wrong);
    println!("files and screenshots: {}", exports.directory.display());
    if is_required && !missing.is_empty() {
        wrong.push(format!("missing: {}", missing.join(", ")));
    }
    if wrong.is_empty() { Ok(()) } else { Err(Failure::new(wrong.join("\n"))) }
}

fn check(
    exports: &Exports,
    consumers: &[Consumer],
    of: &str,
    missing: &mut Vec<&'static str>,
    wrong: &mut Vec<String>,
) {
    for (name, consumer) in consumers {
        match consumer(exports) {
            Ok(Answer::Seen { version, totals }) => {
                println!("{of}{name} {version}");
                for seen in &totals {
                    let verdict = if seen.agrees() { "=" } else { "≠" };
                    println!("  {:<44} {:>12} {verdict} {}", seen.what, seen.theirs, seen.ours);
                    if !seen.agrees() {
                        wrong
                            .push(format!("{of}{name}: {} is {}, not {}", seen.what, seen.theirs, seen.ours));
                    }
                }
                if totals.is_empty() {
                    wrong.push(format!("{of}{name}: shows nothing"));
                }
            }
            Ok(Answer::Missing(how)) => {
                println!("{name} is missing: {how}");
                missing.push(*name);
            }
            Err(failure) => wrong.push(format!("{of}{name}: {failure}")),
        }
    }
}

/// Returns the command as it was just built.
fn cairn() -> Command {
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace_root().join("target"), PathBuf::from);
    Command::new(target.join("debug/cairn"))
}

/// Reads a running program with annotated blocks, and exports its live memory.
fn prepare_image(tools: &Path) -> Outcome<Exports> {
    let directory = tools.join("image");
    fs::create_dir_all(&directory).map_err(at(&directory))?;
    let mut command = cairn();
    command.args(["heap", "-q", "--annotate", "/usr/bin/python3", "-c", WAITING]);
    // It ends when its input does.
    let mut program = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| Failure::new(format!("{command:?}: {error}")))?;
    let mut pid = String::new();
    if let Some(output) = program.stdout.take() {
        BufReader::new(output).read_line(&mut pid).map_err(at(&directory))?;
    }
    let mut look = cairn();
    look.args(["core", "--json", "--force", "--pid", pid.trim(), "--flame"]).arg(directory.join("app.svg"));
    for (format, name) in FORMATS {
        look.arg("--export").arg(format!("{format}={}", directory.join(name).display()));
    }
    let printed = read(&mut look);
    drop(program.stdin.take());
    let _ = program.wait();
    let image: Value =
        serde_json::from_str(&printed?).map_err(|error| Failure::new(format!("the image: {error}")))?;
    let (bytes, blocks) = (&image["live_bytes"], &image["blocks"]);
    // All that lives was allocated, and is held most of the time that there is.
    let mut report = serde_json::Map::new();
    for of in ["total", "leaked", "peak"] {
        report.insert(format!("{of}_bytes"), bytes.clone());
        report.insert(format!("{of}_allocations"), blocks.clone());
    }
    Ok(Exports {
        tools: tools.to_owned(),
        directory,
        report: Value::Object(report),
        columns: IMAGE_COLUMNS,
        is_image: true,
    })
}

/// Records, reports and exports.
fn prepare(recording: Option<&Path>) -> Outcome<Exports> {
    let root = workspace_root();
    let directory = root.join("target/exports");
    fs::create_dir_all(&directory).map_err(at(&directory))?;
    run(cargo().args(["build", "--quiet", "-p", "cairn-cli"]))?;
    let file = directory.join("app.cairn");
    let _ = fs::remove_file(&file);
    match recording {
        Some(path) => {
            fs::copy(path, &file).map_err(at(path))?;
        }
        None => {
            run(cairn().args(["heap", "-q", "-o"]).arg(&file).args(["/usr/bin/python3", "-c", PROGRAM]))?;
        }
    }
    let report = read(cairn().args(["report", "--json"]).arg(&file))?;
    let report =
        serde_json::from_str(&report).map_err(|error| Failure::new(format!("the report: {error}")))?;
    for (format, name) in FORMATS {
        run(cairn()
            .args(["export", "--force", "--to", format])
            .arg(&file)
            .arg("-o")
            .arg(directory.join(name)))?;
    }
    run(cairn().args(["flame", "--force", "-o"]).arg(directory.join("app.svg")).arg(&file))?;
    Ok(Exports { tools: directory.clone(), directory, report, columns: COLUMNS, is_image: false })
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or("").trim().to_owned()
}

fn debian_version(package: &str) -> String {
    read(Command::new("dpkg-query").args(["--show", "--showformat=${Version}", package])).unwrap_or_default()
}

fn number(text: &str) -> Option<f64> {
    text.trim().parse().ok()
}

fn pprof(exports: &Exports) -> Outcome<Answer> {
    let program = exports.tools.join("pprof");
    if !program.exists() {
        if !on_path("go") || !Path::new(PPROF_SOURCE).exists() {
            let how = "apt-get install --no-install-recommends golang-go golang-github-google-pprof-dev";
            return Ok(Answer::Missing(how.to_owned()));
        }
        let mut build = Command::new("go");
        build.args(["build", "-o"]).arg(&program).arg("github.com/google/pprof");
        run(build.envs([("GO111MODULE", "off"), ("GOPATH", "/usr/share/gocode"), ("GOFLAGS", "")]))?;
    }
    let mut totals = Vec::new();
    for (column, key) in exports.columns {
        let unit = if column.ends_with("space") { "B" } else { "count" };
        let text = read(
            Command::new(&program)
                .args(["-symbolize=none", "-top", "-nodecount=0", "-nodefraction=0"])
                .arg(format!("-unit={unit}"))
                .arg(format!("-sample_index={column}"))
                .arg(exports.file("app.pb.gz")),
        )?;
        // "Showing nodes accounting for 5B, 100% of 5B total"
        let line = text.lines().find_map(|line| line.strip_prefix("Showing nodes accounting for "));
        let total = line.and_then(|line| number(line.split_once(',')?.0.trim_end_matches('B')));
        let total = total.ok_or_else(|| Failure::new(format!("{column}: no total in:\n{text}")))?;
        totals.push(exports.seen(key, total)?);
    }
    Ok(Answer::Seen { version: debian_version("golang-github-google-pprof-dev"), totals })
}

fn heaptrack_print(exports: &Exports) -> Outcome<Answer> {
    if !on_path("heaptrack_print") {
        return Ok(Answer::Missing("apt-get install --no-install-recommends heaptrack".to_owned()));
    }
    let costs = [("allocations", "total_allocations"), ("leaked", "leaked_bytes"), ("peak", "peak_bytes")];
    let mut totals = Vec::new();
    let folded = exports.file("heaptrack.folded");
    let file = exports.file("app.heaptrack.zst");
    for (cost, key) in costs {
        let mut command = Command::new("heaptrack_print");
        // It leaves known leaks of python out unless an option includes them.
        command.args(["--disable-builtin-suppressions", "--disable-embedded-suppressions"]);
        read(command.args(["--flamegraph-cost-type", cost, "-F"]).arg(&folded).arg(&file))?;
        totals.push(exports.seen(key, sum_of_folded(&folded)?)?);
    }
    let version = first_line(&read(Command::new("heaptrack_print").arg("--version"))?);
    Ok(Answer::Seen { version, totals })
}

/// Returns the numbers behind the last blanks.
fn sum_of_folded(path: &Path) -> Outcome<f64> {
    let text = fs::read_to_string(path).map_err(at(path))?;
    Ok(text.lines().filter_map(|line| number(line.rsplit(' ').next()?)).sum())
}

/// A program that must not outlive this one.
struct Running(Child);

impl Running {
    fn start(command: &mut Command) -> Outcome<Self> {
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        child.map(Self).map_err(|error| Failure::new(format!("{command:?}: {error}")))
    }

    fn runs(&mut self) -> bool {
        matches!(self.0.try_wait(), Ok(None))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// It has no interface for scripts. The check covers that it opens the file and goes on; its
/// picture is stored for a person.
fn heaptrack_gui(exports: &Exports) -> Outcome<Answer> {
    const DISPLAY: &str = ":97";
    if !["heaptrack_gui", "Xvfb", "import"].iter().all(|program| on_path(program)) {
        let how = "apt-get install --no-install-recommends heaptrack-gui xvfb imagemagick";
        return Ok(Answer::Missing(how.to_owned()));
    }
    let _screen = Running::start(Command::new("Xvfb").args([DISPLAY, "-screen", "0", "1400x900x24"]))?;
    std::thread::sleep(Duration::from_secs(2));
    let file = exports.file("app.heaptrack.zst");
    let mut gui = Running::start(Command::new("heaptrack_gui").arg(file).env("DISPLAY", DISPLAY))?;
    std::thread::sleep(Duration::from_secs(15));
    let picture = exports.file("heaptrack_gui.png");
    read(Command::new("import").args(["-display", DISPLAY, "-window", "root"]).arg(&picture))?;
    let colours = read(Command::new("identify").args(["-format", "%k"]).arg(&picture))?;
    let is_drawn = f64::from(gui.runs() && number(&colours).is_some_and(|colours| colours > 20.0));
    let totals = vec![Seen {
        what: "runs, and has drawn a window".to_owned(),
        theirs: is_drawn,
        ours: 1.0,
        slack: 0.0,
    }];
    Ok(Answer::Seen { version: debian_version("heaptrack-gui"), totals })
}

fn firefox(exports: &Exports) -> Outcome<Answer> {
    let Some(modules) = exports.npm()? else {
        return Ok(Answer::Missing("apt-get install npm".to_owned()));
    };
    let home = exports.tools.join("home");
    fs::create_dir_all(&home).map_err(at(&home))?;
    let cli = |arguments: &[&str]| {
        let mut command = Command::new(modules.join("node/bin/node"));
        // Its sessions are in the home directory; those of the user are not touched.
        command.arg(modules.join("@firefox-devtools/profiler-cli/dist/profiler-cli.js")).env("HOME", &home);
        read(command.args(arguments))
    };
    let file = exports.file("app.firefox.json");
    let file = file.to_string_lossy();
    // On a busy machine its server takes longer than it waits.
    if cli(&["load", &file]).is_err() {
        std::thread::sleep(Duration::from_secs(5));
        cli(&["load", &file])?;
    }
    let answers = || {
        let frees = exports.total("total_bytes")? - exports.total("leaked_bytes")?;
        let strategies = [
            ("native-allocations", exports.total("total_bytes")?),
            ("native-retained-allocations", exports.total("leaked_bytes")?),
            ("native-deallocations-memory", frees),
        ];
        let mut totals = Vec::new();
        // Nothing was freed in an image, and one moment makes no track.
        let kinds = if exports.is_image { 2 } else { strategies.len() };
        for (strategy, ours) in strategies.into_iter().take(kinds) {
            cli(&["strategy", strategy])?;
            let text = cli(&["thread", "samples"])?;
            let theirs =
                text.split_once("Categories (").and_then(|(_, rest)| number(rest.split(' ').next()?));
            let theirs = theirs.ok_or_else(|| Failure::new(format!("{strategy}: no total in:\n{text}")))?;
            totals.push(Seen { what: strategy.to_owned(), theirs, ours, slack: 0.0 });
        }
        if exports.is_image {
            return Ok(Answer::Seen { version: cli(&["--version"])?.trim().to_owned(), totals });
        }
        let text = cli(&["counter", "list"])?;
        let range =
            text.split_once("memory range in graph: ").and_then(|(_, rest)| size(rest.split(' ').next()?));
        let theirs = range.ok_or_else(|| Failure::new(format!("no memory track in:\n{text}")))?;
        let ours = exports.total("peak_bytes_of_all")?;
        // It is printed with two or three digits.
        totals.push(Seen { what: "memory track, highest".to_owned(), theirs, ours, slack: 0.03 });
        Ok(Answer::Seen { version: cli(&["--version"])?.trim().to_owned(), totals })
    };
    let mut answer = answers();
    let _ = cli(&["stop", "--all"]);
    if let (Ok(Answer::Seen { totals, .. }), false) = (&mut answer, exports.is_image) {
        totals.push(firefox_lines(exports, cli)?);
    }
    answer
}

/// Returns a program whose lines are known: what one of them allocated, and that it is of that
/// file.
fn firefox_lines(exports: &Exports, cli: impl Fn(&[&str]) -> Outcome<String>) -> Outcome<Seen> {
    let (program, recording, file) =
        (exports.file("small"), exports.file("small.cairn"), exports.file("small.firefox.json"));
    let source = workspace_root().join("fixtures/exchange/small.c");
    run(Command::new("cc").args(["-g", "-O1", "-o"]).arg(&program).arg(&source))?;
    let _ = fs::remove_file(&recording);
    run(cairn().args(["heap", "-q", "-o"]).arg(&recording).arg(&program))?;
    run(cairn().args(["export", "--force", "--to", "firefox", "-o"]).arg(&file).arg(&recording))?;
    let json = |text: String| -> Outcome<Value> {
        serde_json::from_str(&text).map_err(|error| Failure::new(format!("{error}: {text}")))
    };
    let report = json(read(
        cairn().args(["report", "--json", "--full", "--by", "line", "--cost", "allocated"]).arg(&recording),
    )?)?;
    let lines = report["top"].as_array().into_iter().flatten();
    let load = lines.into_iter().find(|line| line["function"] == "load");
    let load = load.ok_or_else(|| Failure::new("the report has no line of load".to_owned()))?;
    let answers = || -> Outcome<f64> {
        cli(&["load", &file.to_string_lossy()])?;
        cli(&["strategy", "native-allocations"])?;
        let functions = json(cli(&["thread", "functions", "--json"])?)?;
        let function = functions["functions"]
            .as_array()
            .into_iter()
            .flatten()
            .find(|function| function["name"].as_str().is_some_and(|name| name.ends_with("load")));
        let handle = function.and_then(|function| function["functionHandle"].as_str());
        let handle = handle.ok_or_else(|| Failure::new(format!("no load among {functions}")))?;
        let source = json(cli(&["function", "annotate", handle, "--json"])?)?;
        let source = &source["srcAnnotation"];
        let is_file = source["filename"].as_str().is_some_and(|name| name.ends_with("exchange/small.c"));
        let line = source["lines"].as_array().into_iter().flatten();
        let line = line.into_iter().find(|line| is_file && line["lineNumber"] == load["line"]);
        Ok(line.and_then(|line| line["selfSamples"].as_f64()).unwrap_or(f64::NAN))
    };
    let theirs = answers();
    let _ = cli(&["stop", "--all"]);
    let what = format!("bytes at small.c:{}", load["line"]);
    let ours = load["bytes"].as_f64().or(load["total_bytes"].as_f64()).unwrap_or(f64::NAN);
    Ok(Seen { what, theirs: theirs?, ours, slack: 0.0 })
}

/// `1.7MB`, of 1000 times 1000.
fn size(text: &str) -> Option<f64> {
    let digits = text.find(|c: char| c.is_ascii_alphabetic())?;
    let unit = match &text[digits..] {
        "B" => 1.0,
        "KB" => 1e3,
        "MB" => 1e6,
        "GB" => 1e9,
        _ => return None,
    };
    Some(number(&text[..digits])? * unit)
}

fn browser(exports: &Exports) -> Outcome<Answer> {
    if !on_path("chromium") {
        return Ok(Answer::Missing("apt-get install --no-install-recommends chromium valgrind".to_owned()));
    }
    let Some(modules) = exports.npm()? else {
        return Ok(Answer::Missing("apt-get install npm".to_owned()));
    };
    // Packages are looked for beside the script.
    let script = exports.tools.join("npm/browser.mjs");
    fs::copy(workspace_root().join("xtask/exports/browser.mjs"), &script).map_err(at(&script))?;
    let dh_view = if Path::new(DH_VIEW).exists() { DH_VIEW } else { "-" };
    let mut command = Command::new(modules.join("node/bin/node"));
    command.arg(&script).arg("/usr/bin/chromium").arg(&exports.directory);
    command.arg(modules.join("speedscope/dist/release/index.html")).arg(dh_view);
    let text = read(&mut command)?;
    let seen: Value =
        serde_json::from_str(&text).map_err(|error| Failure::new(format!("{error}: {text}")))?;
    let columns = [
        ("Allocations", "total_allocations"),
        ("Allocated", "total_bytes"),
        ("Blocks not freed", "leaked_allocations"),
        ("Not freed", "leaked_bytes"),
        ("Blocks at the peak", "peak_allocations"),
        ("Held at the peak", "peak_bytes"),
        ("Temporary allocations", "temporary_allocations"),
    ];
    let moments = [
        ("Total bytes", "total_bytes"),
        ("Total blocks", "total_allocations"),
        ("At t-gmax bytes", "peak_bytes"),
        ("At t-gmax blocks", "peak_allocations"),
        ("At t-end bytes", "leaked_bytes"),
        ("At t-end blocks", "leaked_allocations"),
    ];
    let mut totals = Vec::new();
    let mut add = |what: &str, theirs: &Value, ours: f64| {
        let theirs = theirs.as_f64().unwrap_or(f64::NAN);
        totals.push(Seen { what: what.to_owned(), theirs, ours, slack: 0.0 });
    };
    let has = |key: &str| exports.columns.iter().any(|(_, known)| *known == key);
    for (name, key) in columns.into_iter().filter(|(_, key)| has(key)) {
        add(&format!("speedscope: {name}"), &seen["speedscope"][name], exports.total(key)?);
    }
    add(".heapprofile in speedscope", &seen["heapprofile"]["app.heapprofile"], exports.total("peak_bytes")?);
    if dh_view != "-" {
        for (name, key) in moments {
            add(&format!("dh_view: {name}"), &seen["dhat"][name], exports.total(key)?);
        }
    }
    add("flame graph: all", &seen["flame"]["total"], exports.total("peak_bytes")?);
    add("flame graph: a click zooms", &seen["flame"]["zooms"], 1.0);
    add("flame graph: a search finds", &seen["flame"]["finds"], 1.0);
    let problems = seen["problems"].as_array().map_or(0, Vec::len);
    add("errors in pages", &Value::from(problems), 0.0);
    Ok(Answer::Seen { version: format!("{} {}", debian_version("chromium"), npm_versions(&modules)), totals })
}

fn npm_versions(modules: &Path) -> String {
    let version = |name: &str| -> Option<String> {
        let text = fs::read_to_string(modules.join(name).join("package.json")).ok()?;
        let package: Value = serde_json::from_str(&text).ok()?;
        Some(format!("{name} {}", package["version"].as_str()?))
    };
    ["speedscope", "puppeteer-core", "node"].into_iter().filter_map(version).collect::<Vec<_>>().join(", ")
}

fn otlp(exports: &Exports) -> Outcome<Answer> {
    let Ok(python) = python::environment(&exports.tools.join("python"), &["opentelemetry-proto"]) else {
        return Ok(Answer::Missing("apt-get install python3-venv".to_owned()));
    };
    let script = workspace_root().join("xtask/exports/otlp.py");
    let text = read(Command::new(&python).arg(script).arg(exports.file("app.otlp")))?;
    let printed: BTreeMap<&str, f64> = text
        .lines()
        .filter_map(|line| line.split_once(' '))
        .filter_map(|(name, sum)| Some((name, number(sum)?)))
        .collect();
    let totals = exports
        .columns
        .iter()
        .map(|(column, key)| exports.seen(key, printed.get(column).copied().unwrap_or(f64::NAN)));
    let version = "import importlib.metadata as m; print(m.version('opentelemetry-proto'))";
    let version = read(Command::new(&python).args(["-c", version]))?.trim().to_owned();
    Ok(Answer::Seen { version, totals: totals.collect::<Outcome<_>>()? })
}

fn sqlite(exports: &Exports) -> Outcome<Answer> {
    if !on_path("sqlite3") {
        return Ok(Answer::Missing("apt-get install --no-install-recommends sqlite3".to_owned()));
    }
    let mut totals = Vec::new();
    for (column, key) in exports.columns {
        let file = exports.file("app.csv");
        let text = read(
            Command::new("sqlite3")
                .args([":memory:", "-cmd", ".mode csv", "-cmd"])
                .arg(format!(".import '{}' heap", file.display()))
                .arg(format!("select sum({column}) from heap")),
        )?;
        totals.push(exports.seen(key, number(&text).unwrap_or(f64::NAN))?);
    }
    let version = read(Command::new("sqlite3").arg("--version"))?;
    Ok(Answer::Seen { version: version.split(' ').next().unwrap_or("").to_owned(), totals })
}

fn folded(exports: &Exports) -> Outcome<Answer> {
    let text =
        read(Command::new("awk").arg("{ sum += $NF } END { print sum }").arg(exports.file("app.folded")))?;
    let totals = vec![exports.seen("peak_bytes", number(&text).unwrap_or(f64::NAN))?];
    Ok(Answer::Seen { version: String::new(), totals })
}
