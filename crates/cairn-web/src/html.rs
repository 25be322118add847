//! Content, script and style as one file.
//!
//! The script is a handful of modules that stand beside each other in `page/`; here they become one, in the order of
//! [`MODULES`], without their `import` lines and the word `export`. That is all the bundling there is: names of a module are
//! names of all, and a test sees to it that no two modules declare the same one.

use std::fmt::Write;
use std::io::Write as _;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::write::DeflateEncoder;
use sha2::{Digest, Sha256};

use crate::content::Packed;

/// Each module comes after those that it imports.
const MODULES: [(&str, &str); 9] = [
    ("content.js", include_str!("../page/content.js")),
    ("text.js", include_str!("../page/text.js")),
    ("model.js", include_str!("../page/model.js")),
    ("flame.js", include_str!("../page/flame.js")),
    ("timeline.js", include_str!("../page/timeline.js")),
    ("tables.js", include_str!("../page/tables.js")),
    ("charts.js", include_str!("../page/charts.js")),
    ("state.js", include_str!("../page/state.js")),
    ("main.js", include_str!("../page/main.js")),
];

const STYLE: &str = include_str!("../page/page.css");
const BODY: &str = include_str!("../page/page.html");

/// The file with this content.
pub(crate) fn page(content: &Packed) -> String {
    let script = script();
    let mut html = String::with_capacity(content.first.len() + content.slices.len());
    let policy = format!(
        "default-src 'none'; script-src '{}'; style-src '{}'; base-uri 'none'; form-action 'none'",
        hash(&script),
        hash(STYLE)
    );
    let _ = write!(
        html,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{policy}\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<meta name=\"referrer\" content=\"no-referrer\">\n\
         <title>cairn</title>\n<style>{STYLE}</style>\n</head>\n<body>\n{BODY}\n\
         <script type=\"application/octet-stream\" id=\"content\">{}</script>\n\
         <script type=\"application/octet-stream\" id=\"slices\">{}</script>\n\
         <script type=\"module\">{script}</script>\n</body>\n</html>\n",
        STANDARD.encode(deflated(&content.first)),
        STANDARD.encode(deflated(&content.slices))
    );
    html
}

/// All modules as one.
fn script() -> String {
    let mut script = String::from("'use strict';\n");
    for (name, text) in MODULES {
        let _ = writeln!(script, "// {name}");
        for line in text.lines().filter(|line| !line.starts_with("import ")) {
            script.push_str(line.strip_prefix("export ").unwrap_or(line));
            script.push('\n');
        }
    }
    script
}

fn hash(text: &str) -> String {
    format!("sha256-{}", STANDARD.encode(Sha256::digest(text)))
}

fn deflated(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = DeflateEncoder::new(Vec::with_capacity(bytes.len() / 3), Compression::best());
    // Writing to memory does not fail.
    let _ = encoder.write_all(bytes);
    encoder.finish().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn no_two_modules_declare_the_same_name_and_none_is_imported_before_it_is_there() {
        let mut declared = HashSet::new();
        for (module, text) in MODULES {
            for line in text.lines() {
                if let Some(import) = line.strip_prefix("import {") {
                    assert!(line.ends_with("';"), "{module}: an import takes one line: {line}");
                    let list = import.split('}').next().unwrap_or("");
                    for name in list.split(',').map(str::trim).filter(|name| !name.is_empty()) {
                        assert!(declared.contains(name), "{module} imports {name}, which is not there yet");
                    }
                }
                let line = line.strip_prefix("export ").unwrap_or(line);
                let line = line.strip_prefix("async ").unwrap_or(line);
                let kinds = ["function ", "class ", "const ", "let "];
                if let Some(rest) = kinds.iter().find_map(|kind| line.strip_prefix(kind)) {
                    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
                    let name = &rest[..end];
                    assert!(!name.is_empty(), "{module}: one declaration takes one name: {line}");
                    assert!(declared.insert(name.to_owned()), "{module} declares {name} once more");
                }
            }
        }
    }

    #[test]
    fn the_script_sets_texts_and_never_markup() {
        for (module, text) in MODULES {
            for forbidden in [
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
                "new Function(",
                "fetch(",
            ] {
                assert!(!text.contains(forbidden), "{module}: {forbidden}");
            }
        }
        assert!(!script().contains("</script"));
        assert!(!STYLE.contains("</style") && !STYLE.contains("url("));
    }

    #[test]
    fn the_page_names_its_script_and_style_by_their_hashes_and_lets_nothing_else_in() {
        let html = page(&Packed { first: b"content".to_vec(), slices: Vec::new() });
        let policy =
            html.split("Content-Security-Policy\" content=\"").nth(1).and_then(|rest| rest.split('"').next());
        let expected = format!(
            "default-src 'none'; script-src '{}'; style-src '{}'; base-uri 'none'; form-action 'none'",
            hash(&script()),
            hash(STYLE)
        );
        assert_eq!(policy, Some(expected.as_str()));
        assert_eq!(html.matches("<script").count(), 3);
        assert!(!html.contains("src=") && !html.contains("href="));
    }
}
