//! `cargo xtask api`: lists the public items of every library into `docs/api/`.
//!
//! A change of the API then shows in a diff. The `public-api` crate writes the lists from rustdoc's
//! JSON, a format that only unstable options produce: `RUSTC_BOOTSTRAP` lets the stable toolchain
//! accept them. The build has a target directory of its own, because some build scripts run again
//! when that variable changes. The format changes with the compiler, so that a new toolchain may
//! need another version of `public-api`; the error then names both versions.

use std::collections::BTreeMap;
use std::fs;

use public_api::Builder;

use crate::check_rooms::facts;
use crate::process::{Failure, Outcome, at, cargo, run as start, workspace_root};

/// The lists, relative to the workspace.
const DIRECTORY: &str = "docs/api";

/// Where rustdoc's JSON is built, relative to the workspace.
const TARGET: &str = "target/api";

const HEAD: &str = "\
# Public items, without automatic and derived implementations.
# `cargo xtask api` writes this file; CI fails when it differs from the sources.
";

/// Crates whose Rust items nobody uses: C or the loader calls them, or they are never shipped.
/// The fleet is a program, and its store is for that program alone.
const WITHOUT_RUST_API: &[&str] = &[
    "cairn-c",
    "cairn-cli",
    "cairn-fleet",
    "cairn-hooks-windows",
    "cairn-preload",
    "cairn-store",
    "cairn-truth",
];

/// Writes the lists; with `--check` compares them only. Names of crates limit it to these.
pub(crate) fn run(arguments: &[String]) -> Outcome {
    let (flags, wanted): (Vec<&str>, Vec<&str>) =
        arguments.iter().map(String::as_str).partition(|argument| argument.starts_with('-'));
    let checks = match flags.as_slice() {
        [] => false,
        ["--check"] => true,
        _ => return Err(Failure::usage("usage: cargo xtask api [--check] [CRATE...]")),
    };
    let crates = libraries()?;
    if let Some(unknown) = wanted.iter().find(|name| !crates.iter().any(|known| known == *name)) {
        let known = crates.join(", ");
        return Err(Failure::usage(format!("no library {unknown:?} with a Rust API; there are: {known}")));
    }
    let mut lists = BTreeMap::new();
    for name in crates.iter().filter(|name| wanted.is_empty() || wanted.contains(&name.as_str())) {
        lists.insert(format!("{name}.txt"), list(name)?);
    }
    if checks { compare(&lists, wanted.is_empty()) } else { write(&lists, wanted.is_empty()) }
}

/// Names the crates of the product that have a Rust API.
fn libraries() -> Outcome<Vec<String>> {
    let has_api = |name: &str| name.starts_with("cairn-") && !WITHOUT_RUST_API.contains(&name);
    let found = facts::gather()?.into_iter();
    let product = found.filter(|found| found.manifest.starts_with("crates/") && has_api(&found.name));
    Ok(product.map(|found| found.name).collect())
}

/// Lists the public items of one crate, one a line.
fn list(name: &str) -> Outcome<String> {
    let target = workspace_root().join(TARGET);
    let mut rustdoc = cargo();
    rustdoc.env("RUSTC_BOOTSTRAP", "1").args(["rustdoc", "--quiet", "--locked", "--lib", "--all-features"]);
    // The profile that optimises nothing, as nothing runs but build scripts.
    rustdoc.args(["--profile", "fleet", "--package", name, "--target-dir"]).arg(&target);
    start(rustdoc.args(["--", "-Z", "unstable-options", "--output-format", "json", "--cap-lints", "allow"]))?;
    let json = target.join("doc").join(format!("{}.json", name.replace('-', "_")));
    let api = Builder::from_rustdoc_json(&json)
        .omit_blanket_impls(true)
        .omit_auto_trait_impls(true)
        .omit_auto_derived_impls(true)
        .build()
        .map_err(|error| {
            Failure::new(format!(
                "{}: {error}; the installed rustdoc and the `public-api` crate in xtask/Cargo.toml must agree \
                 on the format: use the version of `public-api` that was made for this compiler",
                json.display()
            ))
        })?;
    Ok(format!("{HEAD}\n{api}"))
}

fn write(lists: &BTreeMap<String, String>, is_complete: bool) -> Outcome {
    let directory = workspace_root().join(DIRECTORY);
    fs::create_dir_all(&directory).map_err(at(&directory))?;
    for (file, list) in lists {
        let path = directory.join(file);
        fs::write(&path, list).map_err(at(&path))?;
    }
    if is_complete {
        for file in surplus(lists)? {
            let path = directory.join(&file);
            fs::remove_file(&path).map_err(at(&path))?;
        }
    }
    println!("{DIRECTORY}: wrote {} lists", lists.len());
    Ok(())
}

fn compare(lists: &BTreeMap<String, String>, is_complete: bool) -> Outcome {
    let mut differing = 0;
    for (file, list) in lists {
        let path = workspace_root().join(DIRECTORY).join(file);
        // A list that is not there yet differs in every line.
        let present = fs::read_to_string(&path).unwrap_or_default();
        let changes = changes(&present, list);
        if present != *list {
            differing += 1;
            eprintln!("{DIRECTORY}/{file}:\n{}", changes.join("\n"));
        }
    }
    for file in if is_complete { surplus(lists)? } else { Vec::new() } {
        differing += 1;
        eprintln!("{DIRECTORY}/{file}: there is no such library");
    }
    if differing == 0 {
        println!("{DIRECTORY} agrees with the sources of {} libraries", lists.len());
        return Ok(());
    }
    Err(Failure::new(format!(
        "the API of {differing} libraries changed; if that is intended, run `cargo xtask api`, commit {DIRECTORY}, \
         and mention the change in CHANGELOG.md"
    )))
}

/// Lists removed lines with `-` and added lines with `+`.
fn changes(present: &str, list: &str) -> Vec<String> {
    let missing = |line: &&str, text: &str| !text.lines().any(|other| other == *line);
    let removed = present.lines().filter(|line| missing(line, list)).map(|line| format!("- {line}"));
    let added = list.lines().filter(|line| missing(line, present)).map(|line| format!("+ {line}"));
    removed.chain(added).collect()
}

/// Lists of crates that are gone.
fn surplus(lists: &BTreeMap<String, String>) -> Outcome<Vec<String>> {
    let directory = workspace_root().join(DIRECTORY);
    let Ok(entries) = fs::read_dir(&directory) else { return Ok(Vec::new()) };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    Ok(names.filter(|name| name.ends_with(".txt") && !lists.contains_key(name)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn api_changes_show_removed_and_added_items() {
        assert_eq!(changes("a\nb\nc\n", "a\nc\nd\n"), ["- b", "+ d"]);
        assert_eq!(changes("a\n", "a\n"), [""; 0]);
    }

    #[test]
    fn api_lists_libraries_but_no_programs_and_tools() {
        let found = libraries().unwrap();
        assert!(found.iter().any(|name| name == "cairn-format"), "{found:?}");
        assert!(found.iter().all(|name| name != "cairn-cli" && name != "xtask"), "{found:?}");
    }

    #[test]
    fn api_refuses_unknown_crates_and_flags() {
        let refuse = |argument: &str| run(&[argument.to_owned()]).unwrap_err().to_string();
        assert!(refuse("cairn-none").contains("no library \"cairn-none\" with a Rust API"));
        assert!(refuse("--write").starts_with("usage:"));
    }
}
