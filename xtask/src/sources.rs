//! `docs/book/reference/sources.md` lists what five published designs promise, each item with a
//! test that proves it. The tests here hold the page to that: each test that it names exists, and
//! an item to be built has none yet.

use std::fs;

use crate::process::workspace_root;

const PAGE: &str = "docs/book/reference/sources.md";
/// How the place in cairn begins, of an item that is not there.
const TO_BE_BUILT: &str = "to be built";

/// A row of one of the tables.
struct Row<'a> {
    line: usize,
    place: &'a str,
    proof: &'a str,
}

/// Returns the rows of all tables, without their heads.
fn rows(page: &str) -> Result<Vec<Row<'_>>, String> {
    let mut rows = Vec::new();
    for (index, text) in page.lines().enumerate() {
        let line = index + 1;
        if !text.starts_with('|') || text.starts_with("|---") || text.starts_with("| item |") {
            continue;
        }
        let cells: Vec<&str> = text.trim_matches('|').split('|').map(str::trim).collect();
        let [item, place, proof] = cells[..] else {
            return Err(format!("line {line}: {} cells in place of 3", cells.len()));
        };
        if item.is_empty() || place.is_empty() {
            return Err(format!("line {line}: an empty cell"));
        }
        rows.push(Row { line, place, proof });
    }
    Ok(rows)
}

/// Returns true when a line of the source begins the function.
fn declares(line: &str, name: &str) -> bool {
    let rest = line.trim_start();
    let rest = rest.strip_prefix("pub(crate) ").unwrap_or(rest);
    let rest = rest.strip_prefix("fn ").and_then(|rest| rest.strip_prefix(name));
    rest.is_some_and(|rest| rest.starts_with('('))
}

/// Returns true when the source has a test of this name. In a chore of xtask any function counts.
fn has_test(path: &str, source: &str, name: &str) -> bool {
    let lines: Vec<&str> = source.lines().map(str::trim).collect();
    let is_chore = path.starts_with("xtask/src/");
    lines.iter().enumerate().filter(|(_, line)| declares(line, name)).any(|(at, _)| {
        let above =
            lines[..at].iter().rev().take_while(|line| line.starts_with("#[") || line.starts_with("//"));
        let above: Vec<_> = above.collect();
        // A test that is ignored proves nothing.
        let is_test = above.contains(&&"#[test]") && !above.iter().any(|line| line.starts_with("#[ignore"));
        is_chore || is_test
    })
}

/// Returns everything wrong with a page; `read` gives the source of a path, if there is such a
/// file.
fn complaints(page: &str, read: impl Fn(&str) -> Option<String>) -> Result<Vec<String>, String> {
    let rows = rows(page)?;
    let stated = format!(": {} items.", rows.len());
    let mut found = Vec::new();
    if !page.contains(&stated) {
        found.push(format!("the page has {} rows, and does not say `{stated}`", rows.len()));
    }
    for Row { line, place, proof } in rows {
        let test = proof.strip_prefix('`').and_then(|proof| proof.strip_suffix('`'));
        let Some((path, name)) = test.and_then(|test| test.split_once("::")) else {
            found.push(format!("line {line}: {proof:?} is not `file::test`"));
            continue;
        };
        let exists = read(path).is_some_and(|source| has_test(path, &source, name));
        match (exists, place.starts_with(TO_BE_BUILT)) {
            (false, false) => found.push(format!("line {line}: no test {name} in {path}")),
            (true, true) => found.push(format!("line {line}: {path} has {name}; name the place in cairn")),
            _ => {}
        }
    }
    Ok(found)
}

// Failed with: no such page.
#[test]
fn sources_name_tests_that_exist() {
    let root = workspace_root();
    let page = fs::read_to_string(root.join(PAGE)).unwrap();
    let found = complaints(&page, |path| fs::read_to_string(root.join(path)).ok()).unwrap();
    assert!(found.is_empty(), "{PAGE}:\n{}", found.join("\n"));
}

#[test]
fn sources_with_faults_are_refused_with_their_lines() {
    let file = "/// A test.\n#[test]\n// Why.\n#[cfg(unix)]\nfn there() {}\nfn helper() {}\n#[test]\nfn there_too() {}\n\
                #[test]\n#[ignore]\nfn left_out() {}\n";
    let read = |path: &str| matches!(path, "a.rs" | "xtask/src/a.rs").then(|| file.to_owned());
    let check = |rows: &[&str]| {
        let table = rows.iter().map(|row| format!("{row}\n")).collect::<String>();
        complaints(
            &format!(": {} items.\n| item | in cairn | test |\n|---|---|---|\n{table}", rows.len()),
            read,
        )
    };
    let right = [
        "| a | b | `a.rs::there` |",
        "| a | b | `a.rs::there_too` |",
        "| a | b | `xtask/src/a.rs::helper` |",
        "| a | to be built: b | `a.rs::elsewhere` |",
    ];
    assert_eq!(check(&right), Ok(Vec::new()));
    for (row, expected) in [
        ("| a | b | `a.rs::ther` |", "line 4: no test ther in a.rs"),
        ("| a | b | `a.rs::helper` |", "line 4: no test helper in a.rs"),
        ("| a | b | `a.rs::left_out` |", "line 4: no test left_out in a.rs"),
        ("| a | b | `b.rs::there` |", "line 4: no test there in b.rs"),
        ("| a | b | partly |", "line 4: \"partly\" is not `file::test`"),
        ("| a | to be built | `a.rs::there` |", "line 4: a.rs has there; name the place in cairn"),
    ] {
        assert_eq!(check(&[row]), Ok(vec![expected.to_owned()]), "{row}");
    }
    assert_eq!(check(&["| a | b |"]), Err("line 4: 2 cells in place of 3".to_owned()));
    assert_eq!(check(&["| a |  | `a.rs::there` |"]), Err("line 4: an empty cell".to_owned()));
    let none = complaints("| item | in cairn | test |\n| a | b | `a.rs::there` |\n", read).unwrap();
    assert_eq!(none, ["the page has 1 rows, and does not say `: 1 items.`"]);
}
