//! Runs the commands of the book: each chapter of `docs/book` is a session in a shell, and its
//! output is compared.
//!
//! A block that is marked as `console` has lines that begin with `$ `, which are run, and below
//! each its output. All blocks of a chapter run in one shell, in an empty directory with copies of
//! `docs/book/programs` and `examples/c`. `...` matches any lines, `[..]` for any text in a
//! line. Times, process ids, addresses and sizes of files differ from run to run and are compared
//! by their form alone, so that a chapter shows real values. A command must succeed unless the next
//! one is `echo $?`.
//!
//! `CAIRN_UPDATE_BOOK=1` writes what was printed into the chapters, in place of outputs that
//! differ.
//!
//! `console,needs-gcore` runs only where the tool `gcore` is on the path; the test prints what it
//! left out.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(clippy::print_stdout, reason = "a test prints what it could not check")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use regex::Regex;
use snapbox::{Assert, IntoData};

/// The directory that the book shows in place of the test's own.
const SHOWN_DIRECTORY: &str = "/home/you/";

/// Separates the outputs of commands; followed by the number of the command and its status.
const MARK: &str = "== end of command";

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// A command of a chapter with the output below it.
struct Step {
    /// Line of the command in the chapter, from 1.
    line: usize,
    command: String,
    output: String,
    /// The lines of the output, from 0.
    output_lines: std::ops::Range<usize>,
}

fn is_here(tool: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(tool).is_file())
}

/// Reads the commands of a chapter, without the blocks whose tools are missing.
fn steps(chapter: &str, text: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut lines = text.lines().enumerate();
    while let Some((_, line)) = lines.next() {
        let Some(info) = line.strip_prefix("```console") else { continue };
        let missing =
            info.split(',').filter_map(|word| word.strip_prefix("needs-")).find(|tool| !is_here(tool));
        let first = steps.len();
        for (index, line) in lines.by_ref().take_while(|(_, line)| *line != "```") {
            if let Some(command) = line.strip_prefix("$ ") {
                let (command, output) = (command.to_owned(), String::new());
                steps.push(Step { line: index + 1, command, output, output_lines: index + 1..index + 1 });
                continue;
            }
            let step =
                steps[first..].last_mut().unwrap_or_else(|| panic!("{chapter}:{}: no command", index + 1));
            match line.strip_prefix("> ").filter(|_| step.output.is_empty() && step.command.ends_with('\\')) {
                Some(more) => {
                    step.command = format!("{}{more}", step.command.trim_end_matches('\\'));
                    step.output_lines = index + 1..index + 1;
                }
                None => {
                    step.output += &format!("{line}\n");
                    step.output_lines.end = index + 1;
                }
            }
        }
        if let Some(tool) = missing {
            println!("{chapter}: {} commands not run, because {tool} is not here", steps.len() - first);
            steps.truncate(first);
        }
    }
    steps
}

/// Writes all commands as one script, which prints a mark with the status behind the output of
/// each.
fn script(steps: &[Step]) -> String {
    let mut script = String::from("exec 2>&1\n");
    for (number, step) in steps.iter().enumerate() {
        script += &format!("{}\nstatus=$?; echo '{MARK}' {number} $status; (exit $status)\n", step.command);
    }
    script
}

/// Replaces values that differ from run to run by their names, in both texts.
struct Redactions(Vec<(Regex, &'static str)>);

impl Redactions {
    fn new() -> Self {
        let rules = [
            (r"0x[0-9a-f]{5,}", "ADDRESS"),
            (r"\b([Pp]rocess|[Tt]hread) \d+", "$1 PID"),
            (r"\.\d+\.cairn", ".PID.cairn"),
            (r"\d[\d,]*(\.\d+)? (ns|us|µs|ms|s|min)\b", "TIME"),
            (r"[\d,]+ a second", "COUNT a second"),
            (r"\(\d[\d,.]* (B|KiB|MiB)\)", "(FILE SIZE)"),
            // More of the C library's frames are known where its debug symbols are installed.
            (r"note: [\d,]+ frames? of the stacks", "note: COUNT frames of the stacks"),
            // The memory of the process, which the program shares with the C library and with
            // cairn.
            (r"(?m)^  resident .*\n", ""),
            (r" +\n", "\n"),
        ];
        Self(rules.map(|(rule, name)| (Regex::new(rule).unwrap(), name)).into())
    }

    fn apply(&self, text: &str) -> String {
        self.0.iter().fold(text.to_owned(), |text, (rule, name)| rule.replace_all(&text, *name).into_owned())
    }
}

/// Runs a chapter's commands and compares their output.
fn check(chapter: &str) {
    let file = workspace().join("docs/book").join(chapter);
    let text = fs::read_to_string(&file).unwrap();
    let steps = steps(chapter, &text);
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("book").join(chapter);
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir_all(&directory).unwrap();
    let directory = directory.canonicalize().unwrap();
    for programs in ["docs/book/programs", "examples/c"] {
        for entry in fs::read_dir(workspace().join(programs)).unwrap() {
            let entry = entry.unwrap();
            fs::copy(entry.path(), directory.join(entry.file_name())).unwrap();
        }
    }
    let cairn = Path::new(env!("CARGO_BIN_EXE_cairn")).parent().unwrap().to_path_buf();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(std::iter::once(cairn).chain(std::env::split_paths(&path))).unwrap();
    let output = Command::new("timeout")
        .args(["300", "sh", "-c", &script(&steps)])
        .current_dir(&directory)
        .env("PATH", path)
        .env("COLUMNS", "100")
        .env("NO_COLOR", "1")
        .env("FIXTURES", workspace().join("fixtures"))
        .env_remove("CARGO_TARGET_TMPDIR")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let output = String::from_utf8_lossy(&output.stdout)
        .replace(&format!("{}/", directory.display()), SHOWN_DIRECTORY);
    let redactions = Redactions::new();
    let mut rest = output.as_str();
    let mut differing: Vec<(&Step, &str)> = Vec::new();
    let mut report = String::new();
    for (number, step) in steps.iter().enumerate() {
        let place = format!("docs/book/{chapter}:{}: $ {}", step.line, step.command);
        let mark = format!("{MARK} {number} ");
        let (printed, after) =
            rest.split_once(&mark).unwrap_or_else(|| panic!("{place}\nhas not ended; printed:\n{rest}"));
        let (status, after) = after.split_once('\n').unwrap();
        rest = after;
        let asks_status = steps.get(number + 1).is_some_and(|next| next.command == "echo $?");
        assert!(status == "0" || asks_status, "{place}\nended with {status} and printed:\n{printed}");
        let (actual, expected) = (redactions.apply(printed), redactions.apply(&step.output));
        if let Err(error) = Assert::new().try_eq(None, actual.into_data(), expected.into_data()) {
            report += &format!("{place}\n{error}\n");
            differing.push((step, printed));
        }
    }
    if differing.is_empty() {
        return;
    }
    if std::env::var_os("CAIRN_UPDATE_BOOK").is_none() {
        panic!("{report}\nCAIRN_UPDATE_BOOK=1 writes what was printed into the chapter");
    }
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    for (step, printed) in differing.into_iter().rev() {
        let printed = printed.lines().map(|line| line.trim_end().to_owned());
        lines.splice(step.output_lines.clone(), printed);
    }
    fs::write(&file, lines.join("\n") + "\n").unwrap();
}

macro_rules! chapters {
    ($($test:ident $chapter:literal),* $(,)?) => {
        $(#[test] fn $test() { check($chapter); })*
        const CHAPTERS: &[&str] = &[$($chapter),*];
    };
}

chapters! {
    book_start "start.md",
    book_find_a_leak "find-a-leak.md",
    book_shrink_a_peak "shrink-a-peak.md",
    book_my_code "my-code.md",
    book_production "production.md",
    book_fleet "fleet.md",
    book_containers "containers.md",
    book_core_files "core-files.md",
    book_devices "devices.md",
    book_symbols "symbols.md",
    book_recorder_and_player "recorder-and-player.md",
    book_c_and_rust "c-and-rust.md",
}

#[test]
fn book_chapters_are_all_run() {
    // The runtimes of the chapters on Python and JIT compilers are not on every machine;
    // heap_python.rs and heap_jit.rs run them where they are. The pages on costs and on Windows
    // have no command that could run here.
    const TEXT_ONLY: [&str; 6] =
        ["fleet-costs.md", "how-it-works.md", "jit.md", "limits.md", "python.md", "windows.md"];
    let summary = fs::read_to_string(workspace().join("docs/book/SUMMARY.md")).unwrap();
    let guide = summary.split("# Reference").next().unwrap();
    let listed = guide.split("](").skip(1).map(|rest| rest.split(')').next().unwrap());
    let listed: Vec<&str> = listed.filter(|page| !TEXT_ONLY.contains(page)).collect();
    assert_eq!(listed, CHAPTERS);
    for chapter in CHAPTERS {
        let text = fs::read_to_string(workspace().join("docs/book").join(chapter)).unwrap();
        assert!(text.contains("\n$ cairn "), "{chapter} runs no command of cairn");
    }
}

#[test]
fn book_redactions_keep_sizes_of_blocks() {
    let text = "cairn: process 4711 is recorded in a.4711.cairn (1.8 KiB)\n  41.9 KiB  2,000 × f  after 36.2 ms  0x55d01a2b31c9\n";
    let shown = "cairn: process PID is recorded in a.PID.cairn (FILE SIZE)\n  41.9 KiB  2,000 × f  after TIME  ADDRESS\n";
    assert_eq!(Redactions::new().apply(text), shown);
}
