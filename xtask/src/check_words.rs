//! `cargo xtask check-words`: holds comments, documents, messages and names to CONTRIBUTING.md's
//! rules.
//!
//! | rule | breach |
//! |---|---|
//! | `word` | one of [`AVOIDED`], anywhere in a text file, also as a part of a name |
//! | `opening` | a sentence of a comment that opens with a noun from [`OPENINGS`] |
//! | `columns` | a comment line wider than [`COMMENT_COLUMNS`], outside tables and code |
//! | `summary` | a doc summary longer than [`SUMMARY_CHARACTERS`] |
//! | `test-name` | a test's name longer than [`TEST_NAME_CHARACTERS`] |
//! | `type-name` | a type whose name another type of the same crate has |
//!
//! A quotation of a format or of another tool's output carries `check-words: quoted` on its line or
//! on the line above; a longer one lies between `check-words: off` and `check-words: on`.

mod comments;
mod type_names;

use std::fs;
use std::process::Command;

use crate::allowances::{self, Breach};
use crate::process::{Failure, Outcome, read, workspace_root};
use comments::Comment;

// check-words: off
/// Words and phrases that a reader of this field does not expect, with a remedy.
const AVOIDED: &[(&[&str], &str)] = &[
    (&["told"], "name the actor and the message: reports, states, tells apart = distinguishes"),
    (&["tells", "of"], "use `reports` or `describes`"),
    (&["whoever"], "name the actor: the caller, the reader, the user"),
    (&["somebody"], "name the actor: another process, another thread, the user"),
    (&["so", "many"], "state the number, or use `that many`"),
    (&["in", "the", "midst"], "use `during` or `within`"),
    (&["of", "which"], "start a new sentence with the noun"),
    (&["mended"], "use `repaired` or `fixed`"),
    (&["stands"], "use `is`, `lies` or `is stored`"),
    (&["hangs", "on"], "use `depends on` or `hangs`"),
    (&["looks"], "use `reads`, `searches`, `checks` or `resembles`"),
    (&["kept"], "use `stored`, `retained`, `preserved` or `unchanged`"),
    (&["who", "asked"], "name the actor: the caller, the client"),
    (&["makes", "no", "sense"], "name the contradiction: out of range, invalid, inconsistent"),
];
// check-words: on

/// Phrases of the field that begin with an avoided word: `looks up`.
// check-words: quoted
const FIELD_PHRASES: &[(&[&str], &str)] = &[(&["looks"], "up")];

/// Words that must not open a sentence as a noun; a question may open with them.
// check-words: quoted
const OPENINGS: &[&str] = &["What", "Who", "Whoever", "Whose", "Of"];

/// Maximum width of a comment line, in columns; 100, because two files fit side by side on a
/// screen.
const COMMENT_COLUMNS: usize = 100;

/// Maximum length of a doc summary, in characters; 100, because lists of items show one line each.
const SUMMARY_CHARACTERS: usize = 100;

/// Maximum length of a test's name, in characters; 60, because a longer one is no usable filter.
const TEST_NAME_CHARACTERS: usize = 60;

/// Names of the rules, as in the list of allowances.
const RULES: &[&str] = &["word", "opening", "columns", "summary", "test-name", "type-name"];

/// Endings of the files that people read.
const TEXT_FILES: &[&str] = &["rs", "c", "h", "cpp", "py", "js", "mjs", "css", "html", "md", "toml", "sh"];

/// Files that others wrote or that tools write, relative to the workspace.
const FOREIGN: &[&str] = &["LICENSE", "Cargo.lock", "fixtures/crash_logs/", "fixtures/exchange/"];

/// Checks every text file of the repository.
pub(crate) fn run(arguments: &[String]) -> Outcome {
    let shrinks = match arguments {
        [] => false,
        [flag] if flag == "--shrink" => true,
        _ => return Err(Failure::usage("usage: cargo xtask check-words [--shrink]")),
    };
    let mut breaches = Vec::new();
    let mut type_names = type_names::TypeNames::default();
    for path in text_files()? {
        // A file that is listed but not there was removed and is not committed yet.
        let Ok(text) = fs::read_to_string(workspace_root().join(&path)) else { continue };
        breaches.extend(breaches_in(&path, &text));
        type_names.read(&path, &text);
    }
    breaches.extend(type_names.breaches());
    allowances::report("check-words", RULES, &breaches, shrinks)
}

/// Lists the text files of the repository, also those that are not committed yet.
pub(crate) fn text_files() -> Outcome<Vec<String>> {
    let mut git = Command::new("git");
    git.current_dir(workspace_root()).args(["ls-files", "--cached", "--others", "--exclude-standard"]);
    let is_text = |path: &str| path.rsplit_once('.').is_some_and(|(_, ending)| TEXT_FILES.contains(&ending));
    let is_foreign = |path: &str| FOREIGN.iter().any(|start| path.starts_with(start));
    let listed = read(&mut git)?;
    Ok(listed.lines().filter(|path| is_text(path) && !is_foreign(path)).map(str::to_owned).collect())
}

/// Returns all breaches in one file.
fn breaches_in(path: &str, text: &str) -> Vec<Breach> {
    let quoted = quoted_lines(text);
    let mut found = words(text);
    if path.ends_with(".rs") {
        let comments = comments::of(text);
        found.extend(comments.iter().flat_map(|comment| openings(comment).chain(summary(comment))));
        found.extend(comments.iter().flat_map(wide_lines));
        found.extend(test_names(text));
    }
    found.retain(|(_, line, _)| !quoted[line - 1]);
    let breach = |(rule, line, message)| Breach { rule, path: path.to_owned(), line, message };
    found.into_iter().map(breach).collect()
}

/// A rule, a line and a message.
type Finding = (&'static str, usize, String);

/// Marks the lines that quote others.
fn quoted_lines(text: &str) -> Vec<bool> {
    let mut is_off = false;
    let mut is_next = false;
    let mark = |line: &str| {
        let is_quoted = is_off || is_next || line.contains("check-words: quoted");
        is_off = !line.contains("check-words: on") && (is_off || line.contains("check-words: off"));
        is_next = line.contains("check-words: quoted");
        is_quoted
    };
    text.lines().map(mark).collect()
}

/// Finds avoided words. Names count as the words they are made of: `is_big`, `IsBig`.
fn words(text: &str) -> Vec<Finding> {
    let mut words: Vec<(usize, String)> = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let mut previous = ' ';
        for c in line.chars() {
            let begins = !previous.is_alphabetic() || (previous.is_lowercase() && c.is_uppercase());
            if c.is_alphabetic() {
                if begins {
                    words.push((number, String::new()));
                }
                if let Some((_, word)) = words.last_mut() {
                    word.extend(c.to_lowercase());
                }
            }
            previous = c;
        }
    }
    let mut found = Vec::new();
    for at in 0..words.len() {
        for (phrase, remedy) in AVOIDED {
            let here = words[at..].iter().map(|(_, word)| word.as_str()).take(phrase.len());
            let next = words.get(at + phrase.len()).map(|(_, word)| word.as_str());
            if here.eq(phrase.iter().copied()) && !FIELD_PHRASES.contains(&(phrase, next.unwrap_or_default()))
            {
                found.push(("word", words[at].0, format!("avoid {:?}: {remedy}", phrase.join(" "))));
            }
        }
    }
    found
}

/// Finds sentences that open with a noun from [`OPENINGS`].
fn openings(comment: &Comment) -> impl Iterator<Item = Finding> + '_ {
    let sentences = comment.sentences.iter().filter(|sentence| !sentence.text.ends_with('?'));
    sentences.filter_map(|sentence| {
        let first = sentence.text.split(' ').next()?;
        let message = || format!("a sentence opens with {first:?}: put the subject first, then the verb");
        OPENINGS.contains(&first).then(|| ("opening", sentence.line, message()))
    })
}

/// Measures the first sentence of an item's documentation.
fn summary(comment: &Comment) -> Option<Finding> {
    let sentence = comment.sentences.first().filter(|_| comment.is_item_doc)?;
    let characters = comments::without_link_targets(&sentence.text).chars().count();
    (characters > SUMMARY_CHARACTERS).then(|| {
        let message = format!("a summary of {characters} characters; at most {SUMMARY_CHARACTERS}");
        ("summary", sentence.line, message)
    })
}

/// Finds comment lines that are too wide.
fn wide_lines(comment: &Comment) -> impl Iterator<Item = Finding> + '_ {
    let wide = comment.lines.iter().filter(|line| line.is_prose && line.columns > COMMENT_COLUMNS);
    wide.map(|line| {
        let message = format!("a comment of {} columns; at most {COMMENT_COLUMNS}", line.columns);
        ("columns", line.number, message)
    })
}

/// Finds names of tests that are too long.
fn test_names(text: &str) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut is_test = false;
    for (number, line) in (1..).zip(text.lines().map(str::trim)) {
        if line.starts_with("#[test]") {
            is_test = true;
        }
        if let Some((name, _)) = line.split_once("fn ").and_then(|(_, rest)| rest.split_once('(')) {
            let characters = name.chars().count();
            if is_test && characters > TEST_NAME_CHARACTERS {
                let message = format!("a name of {characters} characters; at most {TEST_NAME_CHARACTERS}");
                found.push(("test-name", number, message));
            }
            is_test = false;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the breaches of a Rust file, as pairs of a rule and a line.
    fn check(text: &str, expected: &[(&str, usize)]) {
        let found = breaches_in("a.rs", text);
        let found: Vec<_> = found.iter().map(|breach| (breach.rule, breach.line)).collect();
        assert_eq!(found, expected, "{text:?}");
    }

    // check-words: off
    #[test]
    fn words_are_found_in_comments_strings_and_names() {
        check("// It was told.\n", &[("word", 1)]);
        check("let a = \"who\n asked\";\n", &[("word", 1)]);
        check("struct NeverKept;\nfn is_kept() {}\n", &[("word", 1), ("word", 2)]);
        check("// It looks up names. It looks.\n", &[("word", 1)]);
        check("// A skeptic, an overlook, understands so much; many keep it.\n", &[]);
    }

    #[test]
    fn quotations_are_exempt_from_the_rules() {
        check("// told // check-words: quoted\n// told\n// told\n", &[("word", 3)]);
        check("// check-words: off\n// told\n// told\n// check-words: on\n// told\n", &[("word", 5)]);
    }
    // check-words: on

    #[test]
    fn openings_are_found_at_starts_of_sentences() {
        check("/// What it does.\nfn a() {}\n", &[("opening", 1)]);
        check("// It waits. Of\n// two, one wins.\n", &[("opening", 1)]);
        check("// What now? It waits\n// for What it is.\n", &[]);
        check("//! ```text\n//! What is this\n//! ```\n//! - Who reads\n//!   this.\n", &[("opening", 4)]);
    }

    #[test]
    fn summaries_are_measured_up_to_their_first_full_stop() {
        let long = "a".repeat(90);
        check(&format!("/// It {long}.\nfn a() {{}}\n"), &[]);
        check(&format!("/// It always does\n/// {long}.\nfn a() {{}}\n"), &[("summary", 1)]);
        check(&format!("/// Short. It does\n/// {long}.\nfn a() {{}}\n"), &[]);
        check(&format!("/// It does\n/// [`A`](super::{long}).\nfn a() {{}}\n"), &[("columns", 2)]);
    }

    #[test]
    fn comment_width_exempts_tables_code_and_addresses() {
        let long = "word ".repeat(25);
        check(&format!("// {long}\n"), &[("columns", 1)]);
        check(&format!("    call(); // {long}\n"), &[("columns", 1)]);
        check(&format!("//! | {long} |\n//! ```\n//! {long}\n//! ```\n"), &[]);
        check(&format!("// https://{}\n", "a".repeat(100)), &[]);
        check(&format!("let a = \"// {long}\";\n"), &[]);
    }

    #[test]
    fn test_names_are_measured() {
        let name = "a".repeat(61);
        check(&format!("#[test]\n#[ignore]\nfn {name}() {{}}\n"), &[("test-name", 3)]);
        check(&format!("#[test]\nfn {}() {{}}\nfn {name}() {{}}\n", &name[1..]), &[]);
    }
}
