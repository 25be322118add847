//! `cargo xtask bench`: runs the benchmark program, optimised, from the root of the workspace, and
//! keeps what it measured.
//!
//! The program prints Markdown. Each row of its tables becomes a line of
//! `benchmarks/history.jsonl`, with the date, the commit and the machine. With `--keep`, the
//! printed tables also replace those of the subject's page in `benchmarks/record`, between `<!--
//! bench: COMMAND -->` and `<!-- end -->`; that is for runs on a quiet machine.

use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use pulldown_cmark::{Alignment, Event, Options, Parser, Tag, TagEnd};
use serde_json::{Map, Value, json};

use crate::process::{Failure, Outcome, at, cargo, read, workspace_root};

const HISTORY: &str = "benchmarks/history.jsonl";
const PAGES: &str = "benchmarks/record";

/// The page of each command of the program that prints tables.
const SUBJECTS: &[(&str, &str)] = &[
    ("annotate", "annotate.md"),
    ("capture", "capture.md"),
    ("code-size", "formats.md"),
    ("core", "core.md"),
    ("against", "against.md"),
    ("first-lines", "first-lines.md"),
    ("formats", "formats.md"),
    ("heap", "heap.md"),
    ("instructions", "formats.md"),
    ("marks", "recorder.md"),
    ("modules", "recorder.md"),
    ("python", "python.md"),
    ("recording", "recording.md"),
    ("report", "heap.md"),
    ("symbols", "symbols.md"),
    ("traces", "formats.md"),
];

/// Passes its arguments on; without any, the program lists its commands.
pub(crate) fn run_benches(arguments: &[String]) -> Outcome {
    let keeps = arguments.first().is_some_and(|argument| argument == "--keep");
    let arguments = &arguments[usize::from(keeps)..];
    let help = ["help".to_owned()];
    let arguments = if arguments.is_empty() { &help } else { arguments };
    let subject = SUBJECTS.iter().find(|(name, _)| *name == arguments[0]);
    if keeps && subject.is_none() {
        let names: Vec<&str> = SUBJECTS.iter().map(|(name, _)| *name).collect();
        return Err(Failure::usage(format!("--keep needs one of: {}", names.join(", "))));
    }
    let load = load_average();
    let printed = run(arguments)?;
    let Some((name, page)) = subject else { return Ok(()) };
    let root = workspace_root();
    let date = read(Command::new("date").args(["-u", "+%Y-%m-%dT%H:%M:%SZ"]))?;
    let rows = rows(&printed);
    let run =
        Run { date: date.trim(), load, command: &arguments.join(" "), subject: name, printed: &printed };
    append(&root.join(HISTORY), &rows.iter().map(|row| run.line(row)).collect::<Vec<_>>())?;
    println!("{} rows were added to {HISTORY}", rows.len());
    if keeps {
        let page = root.join(PAGES).join(page);
        let text = fs::read_to_string(&page).map_err(at(&page))?;
        let text = replaced(&text, name, &format!("{}\n{printed}", run.head())).ok_or_else(|| {
            Failure::new(format!("{}: no `<!-- bench: {name} -->` with `<!-- end -->`", page.display()))
        })?;
        fs::write(&page, text).map_err(at(&page))?;
    }
    Ok(())
}

/// Returns the load average of the last minute; 0 where the system does not state it.
fn load_average() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().and_then(|load| load.parse().ok()).unwrap_or_default()
}

/// Runs the program, shows what it prints, and returns it.
fn run(arguments: &[String]) -> Outcome<String> {
    let mut command = cargo();
    command.args(["run", "--quiet", "--release", "--package", "cairn-benches", "--"]).args(arguments);
    println!("$ cargo run --quiet --release --package cairn-benches -- {}", arguments.join(" "));
    let failed = |error: &dyn std::fmt::Display| Failure::new(format!("cairn-benches: {error}"));
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().map_err(|error| failed(&error))?;
    let output = child.stdout.take().ok_or_else(|| failed(&"no output"))?;
    let mut printed = String::new();
    for line in BufReader::new(output).lines() {
        let line = line.map_err(|error| failed(&error))?;
        println!("{line}");
        printed += &format!("{line}\n");
    }
    let status = child.wait().map_err(|error| failed(&error))?;
    if status.success() { Ok(printed) } else { Err(failed(&status)) }
}

/// A row of a table: the heading above it, its labels, and its figures by column.
#[derive(Debug, PartialEq, Eq)]
struct Row {
    section: String,
    labels: Vec<String>,
    values: Vec<(String, String)>,
}

/// Reads all tables of a text. Columns that are aligned to the right have figures, the others name
/// the row.
fn rows(text: &str) -> Vec<Row> {
    let (mut section, mut cell) = (String::new(), String::new());
    let (mut columns, mut cells): (Vec<String>, Vec<String>) = (Vec::new(), Vec::new());
    let mut alignments: Vec<Alignment> = Vec::new();
    let mut rows = Vec::new();
    for event in Parser::new_ext(text, Options::ENABLE_TABLES) {
        match event {
            Event::Start(Tag::Heading { .. } | Tag::TableCell) => cell.clear(),
            Event::End(TagEnd::Heading(_)) => section = std::mem::take(&mut cell),
            Event::Start(Tag::Table(of)) => alignments = of,
            Event::Text(words) | Event::Code(words) => cell += &words,
            Event::End(TagEnd::TableCell) => cells.push(std::mem::take(&mut cell).trim().to_owned()),
            Event::End(TagEnd::TableHead) => columns = distinct(std::mem::take(&mut cells)),
            Event::End(TagEnd::TableRow) => {
                let mut row = Row { section: section.clone(), labels: Vec::new(), values: Vec::new() };
                for ((value, column), alignment) in cells.drain(..).zip(&columns).zip(&alignments) {
                    match alignment {
                        Alignment::Right => row.values.push((column.clone(), value)),
                        _ => row.labels.push(value),
                    }
                }
                rows.push(row);
            }
            _ => {}
        }
    }
    rows
}

/// Numbers the columns that have the name of an earlier one, as `bytes per allocation (2)`.
fn distinct(columns: Vec<String>) -> Vec<String> {
    let numbered = columns.iter().enumerate().map(|(at, name)| {
        let before = columns[..at].iter().filter(|other| *other == name).count();
        if before == 0 { name.clone() } else { format!("{name} ({})", before + 1) }
    });
    numbered.collect()
}

/// A run of the program.
struct Run<'a> {
    date: &'a str,
    /// Load average of the last minute when the run began: a figure of a busy machine says less.
    load: f64,
    command: &'a str,
    subject: &'a str,
    printed: &'a str,
}

impl Run<'_> {
    /// Returns a fact of the list in front of the tables, as `- Commit: ...`.
    fn fact(&self, name: &str) -> Option<String> {
        let start = format!("- {name}: ");
        self.printed.lines().find_map(|line| line.strip_prefix(&start)).map(str::to_owned)
    }

    fn commit(&self) -> String {
        self.fact("Commit").unwrap_or_else(|| {
            let asked = read(Command::new("git").args(["rev-parse", "--short=12", "HEAD"]));
            asked.map_or_else(|_| "unknown".to_owned(), |commit| commit.trim().to_owned())
        })
    }

    fn line(&self, row: &Row) -> String {
        let values: Map<String, Value> =
            row.values.iter().map(|(column, value)| (column.clone(), json!(value))).collect();
        json!({
            "date": self.date,
            "commit": self.commit(),
            "machine": self.fact("Processor").unwrap_or_default(),
            "kernel": self.fact("Kernel").unwrap_or_default(),
            "load": self.load,
            "command": format!("cargo xtask bench {}", self.command),
            "subject": self.subject,
            "section": row.section,
            "row": row.labels.join(" / "),
            "values": values,
        })
        .to_string()
    }

    fn head(&self) -> String {
        format!("`cargo xtask bench {}`, {}.\n", self.command, self.date)
    }
}

fn append(path: &Path, lines: &[String]) -> Outcome {
    let mut file = OpenOptions::new().create(true).append(true).open(path).map_err(at(path))?;
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    file.write_all(text.as_bytes()).map_err(at(path))
}

/// Puts `tables` between the marks of a command; none if the page has no such marks.
fn replaced(page: &str, command: &str, tables: &str) -> Option<String> {
    let (before, rest) = page.split_once(&format!("<!-- bench: {command} -->\n"))?;
    let (_, after) = rest.split_once("<!-- end -->")?;
    Some(format!("{before}<!-- bench: {command} -->\n{}\n<!-- end -->{after}", tables.trim_end()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRINTED: &str = "- Processor: X1, 2 processors\n- Commit: abc\n\n## Fixed stacks\n\n\
                           | program | by | 4 frames | 34 frames |\n|---|---|---:|---:|\n| C | `cairn` | 12 | 29 |\n";

    #[test]
    fn bench_rows_become_lines_of_the_history() {
        let rows = rows(PRINTED);
        let run = Run {
            date: "2026-11-22T00:00:00Z",
            load: 0.5,
            command: "capture fixed",
            subject: "capture",
            printed: PRINTED,
        };
        let lines: Vec<Value> =
            rows.iter().map(|row| serde_json::from_str(&run.line(row)).unwrap()).collect();
        assert_eq!(
            lines,
            [json!({
                "date": "2026-11-22T00:00:00Z", "commit": "abc", "machine": "X1, 2 processors", "kernel": "", "load": 0.5,
                "command": "cargo xtask bench capture fixed", "subject": "capture", "section": "Fixed stacks",
                "row": "C / cairn", "values": { "4 frames": "12", "34 frames": "29" },
            })]
        );
    }

    #[test]
    fn bench_columns_of_one_name_are_numbered() {
        let rows = rows(
            "| work | in all | bytes | in all | bytes |\n|---|---:|---:|---:|---:|\n| a | 1 | 2 | 3 | 4 |\n",
        );
        let names: Vec<&str> = rows[0].values.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["in all", "bytes", "in all (2)", "bytes (2)"]);
    }

    #[test]
    fn bench_tables_replace_those_of_their_command() {
        let page =
            "# A\n<!-- bench: heap -->\nold\n<!-- end -->\n<!-- bench: report -->\nr\n<!-- end -->\nrest\n";
        let expected =
            "# A\n<!-- bench: heap -->\nnew\n<!-- end -->\n<!-- bench: report -->\nr\n<!-- end -->\nrest\n";
        assert_eq!(replaced(page, "heap", "new\n").as_deref(), Some(expected));
        assert_eq!(replaced(page, "marks", "new"), None);
    }

    // Each line can be read, and names what a figure needs.
    #[test]
    fn bench_history_is_complete() {
        let text = fs::read_to_string(workspace_root().join(HISTORY)).unwrap();
        assert!(!text.is_empty());
        for (index, line) in text.lines().enumerate() {
            let value: Value =
                serde_json::from_str(line).unwrap_or_else(|error| panic!("line {}: {error}", index + 1));
            for key in ["date", "commit", "machine", "command", "subject", "row", "values"] {
                assert!(value.get(key).is_some(), "line {}: no {key}", index + 1);
            }
        }
    }

    #[test]
    fn bench_pages_have_the_marks_of_their_commands() {
        for (name, page) in SUBJECTS {
            let text = fs::read_to_string(workspace_root().join(PAGES).join(page)).unwrap();
            assert!(replaced(&text, name, "").is_some(), "{page} has no marks of {name}");
        }
    }
}
