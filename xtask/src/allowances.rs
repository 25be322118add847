//! Reads the files that may still break a rule: `xtask/allowances.txt`, a list that may only
//! shrink.
//!
//! A new rule meets old files. The list names these files, one rule and one path on a line, so that
//! the rule holds for every other file from its first day. An entry that is no longer needed is an
//! error, and `--shrink` removes it; no command adds one.

use std::collections::BTreeSet;
use std::fs;

use crate::process::{Failure, Outcome, at, workspace_root};

/// The list, relative to the workspace.
pub(crate) const LIST: &str = "xtask/allowances.txt";

/// One place that breaks a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Breach {
    /// Name of the rule, as in the list.
    pub(crate) rule: &'static str,
    /// Path of the file, relative to the workspace.
    pub(crate) path: String,
    /// Line in the file, counted from 1.
    pub(crate) line: usize,
    /// Describes the breach and the remedy.
    pub(crate) message: String,
}

/// The entries of the list, as pairs of a rule and a path.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Allowances {
    entries: BTreeSet<(String, String)>,
}

impl Allowances {
    /// Reads the list of the workspace.
    pub(crate) fn load() -> Outcome<Self> {
        let path = workspace_root().join(LIST);
        let text = fs::read_to_string(&path).map_err(at(&path))?;
        Self::parse(&text)
    }

    fn parse(text: &str) -> Outcome<Self> {
        let mut entries = BTreeSet::new();
        for (number, line) in (1..).zip(text.lines()) {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let Some((rule, path)) = line.split_once(' ') else {
                return Err(Failure::new(format!("{LIST}:{number}: expected `RULE PATH`, found {line:?}")));
            };
            if !entries.insert((rule.to_owned(), path.to_owned())) {
                return Err(Failure::new(format!("{LIST}:{number}: {line:?} is listed twice; remove one")));
            }
        }
        Ok(Self { entries })
    }

    /// Splits breaches into those that no entry allows and the number of the others.
    pub(crate) fn refused(&self, breaches: &[Breach]) -> (Vec<Breach>, usize) {
        let refused: Vec<Breach> =
            breaches.iter().filter(|breach| !self.has(breach.rule, &breach.path)).cloned().collect();
        let allowed = breaches.len() - refused.len();
        (refused, allowed)
    }

    /// Lists the entries for `rules` that no breach needs.
    pub(crate) fn unneeded(&self, rules: &[&str], breaches: &[Breach]) -> Vec<(String, String)> {
        let is_needed =
            |(rule, path): &(String, String)| breaches.iter().any(|b| b.rule == rule && b.path == *path);
        let checked = self.entries.iter().filter(|(rule, _)| rules.contains(&rule.as_str()));
        checked.filter(|entry| !is_needed(entry)).cloned().collect()
    }

    fn has(&self, rule: &str, path: &str) -> bool {
        self.entries.contains(&(rule.to_owned(), path.to_owned()))
    }
}

/// Removes entries from the list; keeps its comments and its order.
pub(crate) fn shrink(unneeded: &[(String, String)]) -> Outcome {
    let path = workspace_root().join(LIST);
    let text = fs::read_to_string(&path).map_err(at(&path))?;
    fs::write(&path, without(&text, unneeded)).map_err(at(&path))?;
    println!("{LIST}: removed {} entries", unneeded.len());
    Ok(())
}

fn without(text: &str, unneeded: &[(String, String)]) -> String {
    let is_unneeded = |line: &str| unneeded.iter().any(|(rule, path)| line == format!("{rule} {path}"));
    text.lines().filter(|line| !is_unneeded(line)).map(|line| format!("{line}\n")).collect()
}

/// Prints the breaches that no entry allows and the entries without use; fails if there are any.
pub(crate) fn report(chore: &str, rules: &[&str], breaches: &[Breach], shrinks: bool) -> Outcome {
    let allowances = Allowances::load()?;
    let (refused, allowed) = allowances.refused(breaches);
    for breach in &refused {
        eprintln!("{}:{}: {}", breach.path, breach.line, breach.message);
    }
    let mut unneeded = allowances.unneeded(rules, breaches);
    if shrinks && !unneeded.is_empty() {
        shrink(&unneeded)?;
        unneeded.clear();
    }
    for (rule, path) in &unneeded {
        eprintln!("{LIST}: `{rule} {path}` is no longer needed; run `cargo xtask {chore} --shrink`");
    }
    if !refused.is_empty() || !unneeded.is_empty() {
        let (breaches, entries) = (refused.len(), unneeded.len());
        return Err(Failure::new(format!("{breaches} breaches of the rules, {entries} unneeded allowances")));
    }
    println!("{chore}: no new breach; {allowed} old ones in files that {LIST} still allows");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn breach(rule: &'static str, path: &str) -> Breach {
        Breach { rule, path: path.to_owned(), line: 1, message: String::new() }
    }

    #[test]
    fn allowances_cover_one_rule_of_one_file() {
        let list = Allowances::parse("# why\nword a.rs\n\nlong b.rs\n").unwrap();
        let breaches = [breach("word", "a.rs"), breach("long", "a.rs"), breach("word", "b.rs")];
        assert_eq!(list.refused(&breaches), (breaches[1..].to_vec(), 1));
    }

    #[test]
    fn allowances_without_use_are_named_for_checked_rules() {
        let list = Allowances::parse("word a.rs\nword b.rs\nlong b.rs\n").unwrap();
        let unneeded = list.unneeded(&["word"], &[breach("word", "a.rs")]);
        assert_eq!(unneeded, [("word".to_owned(), "b.rs".to_owned())]);
    }

    #[test]
    fn allowances_shrink_without_touching_the_rest() {
        let text = "# why\nword a.rs\nword a.rs.md\n";
        let shrunk = without(text, &[("word".to_owned(), "a.rs".to_owned())]);
        assert_eq!(shrunk, "# why\nword a.rs.md\n");
    }

    #[test]
    fn allowances_refuse_lines_without_path_and_duplicates() {
        let message = |text: &str| Allowances::parse(text).unwrap_err().to_string();
        assert_eq!(message("word\n"), format!("{LIST}:1: expected `RULE PATH`, found \"word\""));
        assert!(message("word a\nword a\n").contains(":2: \"word a\" is listed twice"));
    }

    #[test]
    fn allowances_of_the_workspace_name_existing_files() {
        let list = Allowances::load().unwrap();
        for (_, path) in &list.entries {
            assert!(workspace_root().join(path).is_file(), "{LIST}: no file {path}; remove the line");
        }
    }
}
