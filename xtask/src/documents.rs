//! Checks the Markdown files of the repository: each relative link leads to a file and an anchor
//! that exist, pages of the book link only to each other, paths of files in code spans exist, and
//! so does each document that a source names by its path.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

use crate::process::{Outcome, at, read};

const BOOK: &str = "docs/book";
const SUMMARY: &str = "docs/book/SUMMARY.md";

/// The links and anchors of one page.
#[derive(Debug, Default, PartialEq, Eq)]
struct Page {
    /// Line and text of each path of the repository in a code span.
    paths: Vec<(usize, String)>,
    /// Line and destination of each link and image.
    links: Vec<(usize, String)>,
    anchors: BTreeSet<String>,
}

impl Page {
    fn parse(text: &str) -> Self {
        let mut page = Self::default();
        let mut heading: Option<String> = None;
        let mut used: BTreeMap<String, usize> = BTreeMap::new();
        for (event, range) in Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter() {
            match event {
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::End(TagEnd::Heading(_)) => {
                    let id = anchor(&heading.take().unwrap_or_default());
                    let count = used.entry(id.clone()).or_default();
                    page.anchors.insert(if *count == 0 { id } else { format!("{id}-{count}") });
                    *count += 1;
                }
                Event::Text(words) | Event::Code(words) => {
                    if let Some(heading) = &mut heading {
                        heading.push_str(&words);
                    }
                    if text[range.clone()].starts_with('`') && is_path(&words) {
                        let line = text[..range.start].matches('\n').count() + 1;
                        page.paths.push((line, words.into_string()));
                    }
                }
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    let line = text[..range.start].matches('\n').count() + 1;
                    page.links.push((line, dest_url.into_string()));
                }
                _ => {}
            }
        }
        page
    }
}

/// True for code that names a file or directory of this repository, without placeholders.
fn is_path(code: &str) -> bool {
    const PLACES: [&str; 8] =
        ["benches", "benchmarks", "crates", "docs", "examples", "fixtures", "fuzz", "xtask"];
    let is_plain = code.chars().all(|c| c.is_alphanumeric() || "/._-".contains(c));
    is_plain && code.split_once('/').is_some_and(|(place, _)| PLACES.contains(&place))
}

/// Returns the anchor of a heading, as mdBook and GitHub make it.
fn anchor(heading: &str) -> String {
    let lower = heading.trim().to_lowercase();
    let permitted = lower.chars().filter(|&c| c.is_alphanumeric() || matches!(c, '-' | '_' | ' '));
    permitted.map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// Joins a relative link to the directory of its page; none if it leaves the repository.
fn target(page: &str, link: &str) -> Option<String> {
    let mut parts: Vec<&str> = Path::new(page).parent()?.iter().filter_map(|part| part.to_str()).collect();
    for component in Path::new(link).components() {
        match component {
            Component::ParentDir => {
                parts.pop()?;
            }
            Component::Normal(part) => parts.push(part.to_str()?),
            Component::CurDir => {}
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(parts.join("/"))
}

/// Checks the links of all pages; `exists` answers whether the repository has a file or directory.
fn link_complaints(pages: &BTreeMap<String, Page>, exists: impl Fn(&str) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    let is_in_book = |path: &str| path.starts_with(BOOK);
    for (name, page) in pages {
        for (line, path) in &page.paths {
            // Pages of fixtures name files of the programs that made them.
            if !name.starts_with("fixtures/") && !exists(path) {
                found.push(format!("{name}:{line}: `{path}`: no such file"));
            }
        }
        for (line, link) in &page.links {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if path.is_empty() { Some(name.clone()) } else { target(name, path) };
            let Some(target) = target.filter(|target| exists(target)) else {
                found.push(format!("{name}:{line}: {link}: no such file"));
                continue;
            };
            if is_in_book(name) && !is_in_book(&target) {
                found.push(format!("{name}:{line}: {link}: leads out of the book; name the path as code"));
            }
            let has_anchor = pages.get(&target).is_none_or(|page| page.anchors.contains(anchor));
            if !anchor.is_empty() && !has_anchor {
                found.push(format!("{name}:{line}: {link}: {target} has no such heading"));
            }
        }
    }
    found
}

/// Checks that the summary lists every page of the book.
fn summary_complaints(pages: &BTreeMap<String, Page>) -> Vec<String> {
    let Some(summary) = pages.get(SUMMARY) else { return vec![format!("{SUMMARY}: no such file")] };
    let listed: BTreeSet<String> =
        summary.links.iter().filter_map(|(_, link)| target(SUMMARY, link)).collect();
    let in_book = pages.keys().filter(|name| name.starts_with(BOOK) && *name != SUMMARY);
    in_book
        .filter(|name| !listed.contains(*name))
        .map(|name| format!("{SUMMARY}: {name} is not in it"))
        .collect()
}

/// Finds the paths of documents in a text, each with its line.
fn named_documents(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        for start in ["docs/", "benchmarks/"].iter().flat_map(|place| line.match_indices(place)) {
            let (offset, _) = start;
            // A path from elsewhere, or a longer word.
            if line[..offset].ends_with(|c: char| c.is_alphanumeric() || matches!(c, '/' | '.' | '-' | '_')) {
                continue;
            }
            let end = line[offset..].find(|c: char| !(c.is_alphanumeric() || "/._-".contains(c)));
            let word = &line[offset..end.map_or(line.len(), |end| offset + end)];
            let word = word.trim_end_matches('.');
            if word.ends_with(".md") {
                found.push((index + 1, word));
            }
        }
    }
    found
}

/// Lists the files of the repository that git knows and that are there.
fn tracked(root: &Path) -> Outcome<Vec<String>> {
    let files = read(Command::new("git").arg("-C").arg(root).args([
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
    ]))?;
    Ok(files.split('\0').filter(|name| root.join(name).is_file()).map(str::to_owned).collect())
}

/// Returns everything that is wrong with the documents below `root`.
pub(crate) fn complaints(root: &Path) -> Outcome<Vec<String>> {
    const SOURCES: [&str; 11] = ["md", "rs", "toml", "c", "h", "js", "mjs", "sh", "py", "txt", "html"];
    let mut pages = BTreeMap::new();
    let mut found = Vec::new();
    for name in tracked(root)? {
        let extension = Path::new(&name).extension().and_then(|extension| extension.to_str()).unwrap_or("");
        // Inputs of tests are texts of others.
        if !SOURCES.contains(&extension) || name.starts_with("fixtures/") && extension != "md" {
            continue;
        }
        let path: PathBuf = root.join(&name);
        let text = fs::read_to_string(&path).map_err(at(&path))?;
        if name != "xtask/src/documents.rs" {
            for (line, document) in named_documents(&text) {
                if !root.join(document).is_file() {
                    found.push(format!("{name}:{line}: {document}: no such file"));
                }
            }
        }
        if extension == "md" {
            pages.insert(name, Page::parse(&text));
        }
    }
    found.extend(link_complaints(&pages, |target| root.join(target).exists()));
    found.extend(summary_complaints(&pages));
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::workspace_root;

    // Failed with: docs/book/reference/c-api.md:77: book/backtrace9.md: no such file
    #[test]
    fn links_of_all_documents_lead_somewhere() {
        let found = complaints(&workspace_root()).unwrap();
        assert!(found.is_empty(), "{}", found.join("\n"));
    }

    fn check(pages: &[(&str, &str)]) -> Vec<String> {
        let pages: BTreeMap<String, Page> =
            pages.iter().map(|(name, text)| ((*name).to_owned(), Page::parse(text))).collect();
        let exists = |path: &str| pages.contains_key(path) || path == "a.png";
        link_complaints(&pages, exists).into_iter().chain(summary_complaints(&pages)).collect()
    }

    #[test]
    fn links_with_faults_are_named_with_their_lines() {
        let summary = ("docs/book/SUMMARY.md", "[a](a.md)\n[b](part/b.md)\n");
        let other = ("README.md", "# Read me\n![picture](a.png)");
        let b = ("docs/book/part/b.md", "# `b`: one, two!\n## Same\n## Same\n[back](../a.md#x-y)");
        let right =
            "# X y\n[b](part/b.md#b-one-two) [c](part/b.md#same-1) [w](https://example.org/x.md) [s](#x-y)";
        assert_eq!(check(&[summary, other, b, ("docs/book/a.md", right)]), Vec::<String>::new());
        for (text, expected) in [
            ("# X y\n\n[b](b.md)", "docs/book/a.md:3: b.md: no such file"),
            (
                "# X y\n[b](part/b.md#no)",
                "docs/book/a.md:2: part/b.md#no: docs/book/part/b.md has no such heading",
            ),
            (
                "# X y\n[r](../../README.md)",
                "docs/book/a.md:2: ../../README.md: leads out of the book; name the path as code",
            ),
            (
                "# X y\n`crates/gone.rs` and `crates/<x>.rs`",
                "docs/book/a.md:2: `crates/gone.rs`: no such file",
            ),
            ("# X y\n[r](../../../x)", "docs/book/a.md:2: ../../../x: no such file"),
        ] {
            assert_eq!(check(&[summary, other, b, ("docs/book/a.md", text)]), [expected], "{text}");
        }
        let unlisted = check(&[("docs/book/SUMMARY.md", "# All"), ("docs/book/a.md", "# A")]);
        assert_eq!(unlisted, ["docs/book/SUMMARY.md: docs/book/a.md is not in it"]);
    }

    #[test]
    fn paths_of_documents_are_found_in_sources() {
        let text = "see `docs/a.md`, or\n(benchmarks/b_c/d.md).\nhttps://x.org/docs/no.md ../docs/no.md docs/book/ docs/x.rs";
        assert_eq!(named_documents(text), [(1, "docs/a.md"), (2, "benchmarks/b_c/d.md")]);
    }
}
