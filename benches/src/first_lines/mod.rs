//! How often the first line of a heap profiler is the function that a maintainer expects.
//!
//! `benchmarks/first-lines/programs` has a script for each program. The tables in
//! `benchmarks/first-lines/expected` have the functions that were chosen by reading the programs'
//! sources. Each workload is recorded with cairn and with heaptrack. For each expected stack, the
//! tool's list is searched for the row that has this stack; the function in the first line of that
//! row is right or wrong. A stack that does not occur is *not met* and counts for neither side.

mod cairn;
mod expected;
mod heaptrack;
mod listing;
mod names;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Instant;

use crate::heap::build_cairn;
use crate::machine;
use expected::{Expectations, Row};
use listing::{Entry, Verdict, View, judge};

/// Names the directory of builds and recordings, in place of `first-lines` in cargo's target
/// directory.
const WORK_DIRECTORY: &str = "CAIRN_FIRST_LINES_DIR";
/// Seconds after which a run is given up; a workload takes a few, also under heaptrack.
const RUN_SECONDS: &str = "300";
/// Lines of each tool's first list on the page.
const LINES: usize = 5;

/// Records the programs, all without a name, and prints the tables. `--cairn FILE` takes another
/// build of the command.
pub(crate) fn run(arguments: &[&str]) -> Result<(), String> {
    let (cairn, only) = match arguments {
        ["--cairn", cairn, only @ ..] => {
            (fs::canonicalize(cairn).map_err(|error| format!("{cairn}: {error}"))?, only)
        }
        only => (build_cairn()?, only),
    };
    let programs = programs(only)?;
    print!("{}", machine::description());
    println!("- heaptrack: {}", version_of(&["heaptrack", "--version"]));
    println!("- bytehound: not obtainable (no package of Debian, crates.io or PyPI)");
    let mut reports = Vec::new();
    for program in &programs {
        let began = Instant::now();
        match measure(program, &cairn) {
            Ok(report) => {
                eprintln!("{program}: {} s", began.elapsed().as_secs());
                reports.push(report);
            }
            Err(error) => eprintln!("{program}: {error}"),
        }
    }
    print_shares(&reports);
    print_rows(&reports);
    print_first_lines(&reports);
    let missing: Vec<&String> =
        programs.iter().filter(|name| !reports.iter().any(|report| report.program == **name)).collect();
    if missing.is_empty() { Ok(()) } else { Err(format!("not measured: {missing:?}")) }
}

/// Returns where the scripts and tables are.
fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../benchmarks/first-lines")
}

/// Returns the programs that have a script, or those of them that are named.
fn programs(only: &[&str]) -> Result<Vec<String>, String> {
    let path = directory().join("programs");
    let files = fs::read_dir(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let names = files.filter_map(|file| Some(file.ok()?.path().file_stem()?.to_str()?.to_owned()));
    let mut names: Vec<String> = names.collect();
    names.sort();
    if let Some(unknown) = only.iter().find(|name| !names.iter().any(|known| known == *name)) {
        return Err(format!("no program {unknown:?}; there are: {}", names.join(", ")));
    }
    names.retain(|name| only.is_empty() || only.contains(&name.as_str()));
    Ok(names)
}

/// The findings for one program.
struct ProgramReport {
    program: String,
    /// Version that was built here.
    version: String,
    /// None for programs whose first lines alone are shown.
    expectations: Option<Expectations>,
    cairn: Vec<Verdict>,
    /// None where heaptrack is missing.
    heaptrack: Option<Vec<Verdict>>,
    /// Name of a tool, and the first lines of its first list.
    first_lines: Vec<(&'static str, Vec<String>)>,
}

fn measure(program: &str, cairn: &Path) -> Result<ProgramReport, String> {
    let recipe = Recipe::prepare(program)?;
    let table = directory().join(format!("expected/{program}.jsonl"));
    let expectations = if table.is_file() { Some(expected::read(&table)?) } else { None };
    let rows: &[Row] = expectations.as_ref().map_or(&[], |table| &table.rows);
    let mut first_lines = Vec::new();

    let (entries, lines) = record_with_cairn(&recipe, cairn, !rows.is_empty())?;
    let judged = |entries: &[Entry]| -> Vec<Verdict> {
        rows.iter().map(|row| judge(entries, row.view, &row.stack, &row.expected)).collect()
    };
    let cairn = judged(&entries);
    first_lines.extend(lines);
    let mut heaptrack = None;
    match record_with_heaptrack(&recipe) {
        Ok((entries, lines)) => {
            heaptrack = Some(judged(&entries));
            first_lines.push(lines);
        }
        Err(error) => eprintln!("{program}: {error}"),
    }
    let memray = text(&recipe.run(&["memray"])?);
    if !memray.is_empty() {
        first_lines.push(("memray summary", memray.lines().take(3 + LINES).map(str::to_owned).collect()));
    }
    let version = text(&recipe.run(&["version"])?).trim().to_owned();
    Ok(ProgramReport { program: program.to_owned(), version, expectations, cairn, heaptrack, first_lines })
}

/// A program's script, and the directory in which it works.
struct Recipe {
    program: String,
    directory: PathBuf,
}

impl Recipe {
    /// Builds the program and its input, if that was not done before.
    fn prepare(program: &str) -> Result<Self, String> {
        let target =
            std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
        let root = std::env::var_os(WORK_DIRECTORY).map_or_else(|| target.join("first-lines"), PathBuf::from);
        let directory = root.join(program);
        fs::create_dir_all(directory.join("recordings")).map_err(|error| error.to_string())?;
        let directory = fs::canonicalize(&directory).map_err(|error| error.to_string())?;
        let recipe = Self { program: program.to_owned(), directory };
        eprintln!("{program}: builds");
        recipe.run(&["build"])?;
        Ok(recipe)
    }

    /// Runs an action of the script.
    fn run(&self, action: &[&str]) -> Result<Output, String> {
        let mut command = Command::new("timeout");
        command.args(["--kill-after=10", if action[0] == "build" { "0" } else { RUN_SECONDS }, "bash"]);
        command.arg(directory().join("recipe.sh")).arg(&self.program).args(action);
        let output = command.current_dir(&self.directory).stdin(Stdio::null()).output();
        let output = output.map_err(|error| format!("timeout: {error}"))?;
        if output.status.success() {
            return Ok(output);
        }
        let error = String::from_utf8_lossy(&output.stderr);
        let last: Vec<&str> = error.lines().rev().take(10).collect();
        let last: Vec<&str> = last.into_iter().rev().collect();
        Err(format!("recipe.sh {} {}: {}\n{}", self.program, action[0], output.status, last.join("\n")))
    }

    fn recording(&self, name: &str) -> String {
        let path = self.directory.join("recordings").join(name);
        let _ = fs::remove_file(&path);
        path.display().to_string()
    }
}

type FirstLines = (&'static str, Vec<String>);

/// Records and reports with cairn.
fn record_with_cairn(
    recipe: &Recipe,
    cairn: &Path,
    asks: bool,
) -> Result<(Vec<Entry>, [FirstLines; 2]), String> {
    let cairn = cairn.display().to_string();
    let file = recipe.recording("program.cairn");
    let recorded = recipe.run(&["run", &cairn, "heap", "-o", &file])?;
    let summary = String::from_utf8_lossy(&recorded.stderr).into_owned();
    let report = |arguments: &[&str]| {
        let output = Command::new(&cairn).arg("report").arg(&file).args(arguments).output();
        let output = output.map_err(|error| format!("cairn report: {error}"))?;
        if !output.status.success() {
            return Err(format!("cairn report: {}", String::from_utf8_lossy(&output.stderr)));
        }
        Ok(text(&output))
    };
    let mut entries = Vec::new();
    for view in View::ALL.into_iter().filter(|_| asks) {
        let stacks = [cairn::STACKS, &["--cost", view.name()]].concat();
        let unfolded = [stacks.as_slice(), &[cairn::UNFOLDED]].concat();
        entries.extend(cairn::entries(&report(&stacks)?, &report(&unfolded)?, view)?);
    }
    let lines = [
        ("cairn heap", lines_after(&summary, "Most memory at the peak")),
        ("cairn report", lines_after(&report(&[])?, "Held at the peak")),
    ];
    Ok((entries, lines))
}

/// Records and prints with heaptrack.
fn record_with_heaptrack(recipe: &Recipe) -> Result<(Vec<Entry>, FirstLines), String> {
    let path = recipe.recording("program.heaptrack");
    let file = [".zst", ".gz"].map(|ending| format!("{path}{ending}"));
    file.iter().for_each(|file| drop(fs::remove_file(file)));
    recipe.run(&["run", "heaptrack", "-o", &path])?;
    let file = file.iter().find(|file| Path::new(file).is_file()).ok_or("heaptrack wrote no recording")?;
    let print = |arguments: &[&str]| {
        let output = Command::new("heaptrack_print").args(arguments).arg(file).output();
        output.map(|output| text(&output)).map_err(|error| format!("heaptrack_print: {error}"))
    };
    let entries = heaptrack::entries(&print(heaptrack::LIMITS)?);
    if entries.is_empty() {
        return Err("heaptrack_print printed no lists".to_owned());
    }
    Ok((entries, ("heaptrack_print", lines_after(&print(&[])?, "PEAK MEMORY CONSUMERS"))))
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Returns the line that begins with `heading`, and those after it.
fn lines_after(text: &str, heading: &str) -> Vec<String> {
    let lines = text.lines().skip_while(|line| !line.starts_with(heading));
    lines.take(1 + LINES).map(|line| line.trim_end().to_owned()).collect()
}

fn version_of(command: &[&str]) -> String {
    let output = Command::new(command[0]).args(&command[1..]).output();
    let line = output.ok().and_then(|output| text(&output).lines().next().map(str::to_owned));
    line.unwrap_or_else(|| "missing".to_owned())
}

/// Rows and right ones of a tool.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
struct Share {
    right: usize,
    met: usize,
}

impl Share {
    fn of(verdicts: &[Verdict]) -> Self {
        let right = verdicts.iter().filter(|verdict| matches!(verdict, Verdict::Right(_))).count();
        let met = verdicts.iter().filter(|verdict| **verdict != Verdict::NotMet).count();
        Self { right, met }
    }

    fn shown(self) -> String {
        match self.met {
            0 => "-".to_owned(),
            met => format!("{} of {met} ({:.0} %)", self.right, self.right as f64 * 100.0 / met as f64),
        }
    }
}

fn print_shares(reports: &[ProgramReport]) {
    println!("\n### Share of right first lines\n");
    println!(
        "| program | version | rows | not met by cairn | cairn | not met by heaptrack | heaptrack_print | bytehound |"
    );
    println!("|---|---|---:|---:|---:|---:|---:|---:|");
    let (mut rows, mut cairn, mut heaptrack) = (0, Share::default(), Share::default());
    let (mut rows_of_heaptrack, add) =
        (0, |a: Share, b: Share| Share { right: a.right + b.right, met: a.met + b.met });
    for report in reports {
        let Some(table) = &report.expectations else { continue };
        let of_cairn = Share::of(&report.cairn);
        let of_heaptrack = report.heaptrack.as_deref().map(Share::of);
        let count = table.rows.len();
        rows += count;
        cairn = add(cairn, of_cairn);
        if let Some(share) = of_heaptrack {
            heaptrack = add(heaptrack, share);
            rows_of_heaptrack += count;
        }
        let version = if table.version == report.version {
            report.version.clone()
        } else {
            format!("{} (expectations: {})", report.version, table.version)
        };
        let lost = of_heaptrack.map_or_else(|| "-".to_owned(), |share| (count - share.met).to_string());
        println!(
            "| {} | {version} | {count} | {} | {} | {lost} | {} | - |",
            report.program,
            count - of_cairn.met,
            of_cairn.shown(),
            of_heaptrack.map_or_else(|| "missing".to_owned(), Share::shown),
        );
    }
    println!(
        "| all | | {rows} | {} | **{}** | {} | **{}** | - |",
        rows - cairn.met,
        cairn.shown(),
        rows_of_heaptrack - heaptrack.met,
        heaptrack.shown()
    );
}

/// Prints what each tool named, and the workloads.
fn print_rows(reports: &[ProgramReport]) {
    println!("\n### Rows\n");
    println!("`+` right, `-` wrong, `?` not met; the expected names are separated by `|`.");
    for report in reports {
        let Some(table) = &report.expectations else { continue };
        println!("\n{}: {}\n\n```text", report.program, table.workload);
        for (at, row) in table.rows.iter().enumerate() {
            let shown = |verdict: Option<&Verdict>| match verdict {
                Some(Verdict::Right(name)) => format!("+ {}", names::plain(name)),
                Some(Verdict::Wrong(name)) => format!("- {}", names::plain(name)),
                Some(Verdict::NotMet) => "?".to_owned(),
                None => "missing".to_owned(),
            };
            let heaptrack = report.heaptrack.as_ref().and_then(|verdicts| verdicts.get(at));
            println!("{:9}  {}", row.view.name(), row.expected.join(" | "));
            println!("           cairn {}   heaptrack {}", shown(report.cairn.get(at)), shown(heaptrack));
        }
        println!("```");
    }
}

fn print_first_lines(reports: &[ProgramReport]) {
    println!("\n### First five lines");
    for report in reports {
        println!("\n#### {} {}", report.program, report.version);
        for (tool, lines) in &report.first_lines {
            println!("\n{tool}:\n\n```text");
            lines.iter().for_each(|line| println!("{}", shortened(line)));
            println!("```");
        }
    }
}

/// Cuts a line after 160 characters, as a wide terminal does.
fn shortened(line: &str) -> String {
    match line.char_indices().nth(160) {
        Some((at, _)) => format!("{}...", &line[..at]),
        None => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn share_leaves_out_what_was_not_met() {
        let (right, wrong) = (Verdict::Right(String::new()), Verdict::Wrong(String::new()));
        let share = Share::of(&[right.clone(), wrong, Verdict::NotMet, right]);
        assert_eq!(share, Share { right: 2, met: 3 });
        assert_eq!(share.shown(), "2 of 3 (67 %)");
        assert_eq!(Share::default().shown(), "-");
    }

    #[test]
    fn first_lines_begin_at_the_heading() {
        assert_eq!(
            lines_after("a\nHeld at\n1\n2\n3\n4\n5\n6\n", "Held"),
            ["Held at", "1", "2", "3", "4", "5"]
        );
        assert!(lines_after("a\nb\n", "Held").is_empty());
    }
}
