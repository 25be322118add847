//! The committed tables: which function a maintainer expects to be named first, and why.
//!
//! `benchmarks/first-lines/expected/PROGRAM.jsonl` has one JSON object a line: the program, then
//! one for each stack.
//!
//! ```text
//! {"program": "redis", "workload": "...", "version": "5:7.0.15-1"}
//! {"views": ["peak"], "stack": ["zrealloc_usable", "lpInsert"], "expected": ["lpInsert"], "reason": "..."}
//! ```

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::listing::View;

/// The expectations for one program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Expectations {
    pub(crate) program: String,
    pub(crate) workload: String,
    /// The version whose sources were read.
    pub(crate) version: String,
    pub(crate) rows: Vec<Row>,
}

/// A stack in one view, and the functions that are right.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) view: View,
    /// Functions by which the stack is found: they occur in this order, innermost first.
    pub(crate) stack: Vec<String>,
    pub(crate) expected: Vec<String>,
}

/// Reads a table.
///
/// # Errors
/// Names the file, the line and what is wrong there.
pub(crate) fn read(path: &Path) -> Result<Expectations, String> {
    let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    parse(&text).map_err(|error| format!("{}: {error}", path.display()))
}

fn parse(text: &str) -> Result<Expectations, String> {
    let mut lines = text.lines().enumerate().map(|(index, line)| {
        let value: Value =
            serde_json::from_str(line).map_err(|error| format!("line {}: {error}", index + 1))?;
        Ok::<_, String>((index + 1, value))
    });
    let (_, head) = lines.next().ok_or("empty")??;
    let text = |key: &str| {
        let text = head[key].as_str().filter(|text| !text.is_empty());
        Ok::<_, String>(text.ok_or_else(|| format!("line 1: no text {key}"))?.to_owned())
    };
    let mut expectations = Expectations {
        program: text("program")?,
        workload: text("workload")?,
        version: text("version")?,
        rows: Vec::new(),
    };
    for line in lines {
        let (number, value) = line?;
        let words = |key: &str| {
            let list = value[key].as_array().into_iter().flatten();
            let words: Option<Vec<String>> = list.map(|word| Some(word.as_str()?.to_owned())).collect();
            words
                .filter(|words| !words.is_empty())
                .ok_or_else(|| format!("line {number}: {key} is no list of words"))
        };
        if value["reason"].as_str().is_none_or(str::is_empty) {
            return Err(format!("line {number}: no reason"));
        }
        for view in words("views")? {
            let view = View::of(&view).ok_or_else(|| format!("line {number}: no view {view:?}"))?;
            expectations.rows.push(Row { view, stack: words("stack")?, expected: words("expected")? });
        }
    }
    Ok(expectations)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = r#"{"program": "jq", "workload": "groups", "version": "1.6"}"#;

    #[test]
    fn expectations_have_a_row_for_each_view() {
        let line = r#"{"views": ["peak", "count"], "stack": ["a", "b"], "expected": ["b"], "reason": "r"}"#;
        let read = parse(&format!("{HEAD}\n{line}\n")).unwrap();
        assert_eq!((read.program.as_str(), read.rows.len()), ("jq", 2));
        assert_eq!(read.rows[1].view, View::Count);
        assert_eq!(read.rows[1].stack, ["a", "b"]);
    }

    #[test]
    fn expectations_say_which_line_is_wrong() {
        let check = |line: &str, words: &str| {
            let error = parse(&format!("{HEAD}\n{line}\n")).unwrap_err();
            assert!(error.contains("line 2") && error.contains(words), "{error}");
        };
        check("{", "line 2");
        check(r#"{"views": ["peak"], "stack": ["a"], "expected": ["a"]}"#, "no reason");
        check(r#"{"views": ["pike"], "stack": ["a"], "expected": ["a"], "reason": "r"}"#, "pike");
        check(r#"{"views": ["peak"], "stack": [], "expected": ["a"], "reason": "r"}"#, "stack");
        assert!(parse("").is_err() && parse(r#"{"program": "jq"}"#).unwrap_err().contains("workload"));
    }

    // A row without a script, or one that cannot be read, would be a row that is never measured.
    #[test]
    fn expectations_that_are_committed_are_complete() {
        let directory = super::super::directory();
        let mut programs = 0;
        for file in fs::read_dir(directory.join("expected")).unwrap() {
            let path = file.unwrap().path();
            let table = read(&path).unwrap();
            assert_eq!(path.file_stem().unwrap().to_str().unwrap(), table.program);
            assert!(directory.join(format!("programs/{}.sh", table.program)).is_file(), "{}", table.program);
            for (at, row) in table.rows.iter().enumerate() {
                let same = |other: &&Row| other.view == row.view && other.stack == row.stack;
                assert!(
                    !table.rows[..at].iter().any(|other| same(&other)),
                    "{}: {row:?} twice",
                    table.program
                );
            }
            programs += 1;
        }
        assert_eq!(programs, 10);
    }
}
