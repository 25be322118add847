//! Finds types of one crate that share a name: a reader of `Entry` must not have to search for the
//! import that says which entry it is.
//!
//! Only definitions at the start of a line count, so that helpers inside functions and in modules
//! of tests are free to choose. Twins for two processors or systems have one name on purpose: they
//! lie in a folder of [`PLATFORMS`] or carry a `#[cfg(...)]`. Files that end with one of
//! [`REPLACING`] replace a feature that is not built, or that one system alone has, and are twins
//! too.

use std::collections::BTreeMap;

use crate::allowances::Breach;

/// Folders and files of one processor or system.
const PLATFORMS: &[&str] = &["aarch64", "arch", "linux", "macos", "unix", "windows", "x86_64"];

/// Ends of the names of files that replace a feature.
const REPLACING: &[&str] = &["_disabled.rs", "_elsewhere.rs", "_windows.rs"];

/// Keywords that define a type or a trait.
const KEYWORDS: &[&str] = &["struct", "enum", "union", "trait"];

/// Places of the definitions, by crate and name.
#[derive(Default)]
pub(super) struct TypeNames {
    places: BTreeMap<(String, String), Vec<Place>>,
}

/// One definition.
struct Place {
    path: String,
    line: usize,
    is_twin: bool,
}

impl TypeNames {
    /// Notes the types that one file defines, if it is a source file of a crate.
    pub(super) fn read(&mut self, path: &str, text: &str) {
        let Some((package, file)) = source_of_crate(path) else { return };
        let in_platform = file.split(['/', '.']).any(|part| PLATFORMS.contains(&part))
            || REPLACING.iter().any(|end| file.ends_with(end));
        let mut has_cfg = false;
        for (line, content) in (1..).zip(text.lines()) {
            if content.starts_with("#[") {
                has_cfg |= content.starts_with("#[cfg(");
                continue;
            }
            if let Some(name) = defined_type(content) {
                let place = Place { path: path.to_owned(), line, is_twin: in_platform || has_cfg };
                self.places.entry((package.to_owned(), name.to_owned())).or_default().push(place);
            }
            has_cfg &= content.starts_with("///");
        }
    }

    /// Returns a breach for each definition after the first of its name.
    pub(super) fn breaches(&self) -> Vec<Breach> {
        let mut found = Vec::new();
        for ((package, name), places) in &self.places {
            let Some((first, others)) = places.split_first() else { continue };
            if places.iter().all(|place| place.is_twin)
                || places.iter().filter(|place| !place.is_twin).count() == 1
            {
                continue;
            }
            found.extend(others.iter().map(|place| Breach {
                rule: "type-name",
                path: place.path.clone(),
                line: place.line,
                message: format!(
                    "{package} has another type `{name}` ({}:{}): rename one of them",
                    first.path, first.line
                ),
            }));
        }
        found
    }
}

/// Splits the path of a crate's source file into the crate and the rest.
fn source_of_crate(path: &str) -> Option<(&str, &str)> {
    path.strip_suffix(".rs")?;
    let (package, file) = path.strip_prefix("crates/")?.split_once("/src/")?;
    Some((package, file))
}

/// Returns the name of the type that a line defines.
fn defined_type(line: &str) -> Option<&str> {
    let mut words = line.split_whitespace();
    let is_definition = words.by_ref().any(|word| KEYWORDS.contains(&word));
    let is_item =
        ["pub", "struct", "enum", "union", "trait", "unsafe"].iter().any(|start| line.starts_with(start));
    let rest = words.next().filter(|_| is_definition && is_item)?;
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
    rest.get(..end).filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the lines of breaches in two files of one crate.
    fn check(first: (&str, &str), second: (&str, &str), expected: &[usize]) {
        let mut names = TypeNames::default();
        for (path, text) in [first, second] {
            names.read(&format!("crates/cairn-a/src/{path}"), text);
        }
        let lines: Vec<_> = names.breaches().iter().map(|breach| breach.line).collect();
        assert_eq!(lines, expected);
    }

    #[test]
    fn type_names_occur_once_in_a_crate() {
        check(("a.rs", "pub(crate) struct Entry;\n"), ("b.rs", "\nenum Entry<T> {\n"), &[2]);
        check(("a.rs", "struct Entry;\n"), ("b.rs", "mod tests {\n    struct Entry;\n}\n"), &[]);
        check(("a.rs", "struct Entry;\n"), ("b.rs", "struct Other(Entry);\nimpl Entry {}\n"), &[]);
    }

    #[test]
    fn twins_for_platforms_share_a_name() {
        check(("arch/x86_64.rs", "struct Site;\n"), ("arch/aarch64.rs", "struct Site;\n"), &[]);
        check(("a.rs", "struct Pdb;\n"), ("b.rs", "#[cfg(not(unix))]\n#[derive(Debug)]\nstruct Pdb;\n"), &[]);
    }
}
