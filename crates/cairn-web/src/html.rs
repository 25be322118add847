//! Content, script and style as one file.
//!
//! The script is a handful of modules that lie beside each other in `page/`; here they become one,
//! in the order of [`MODULES`], without their `import` lines and the word `export`. That is all the
//! bundling there is: names of a module are names of all, and a test sees to it that no two modules
//! declare the same one.

use std::fmt::Write;
use std::io::Write as _;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::write::DeflateEncoder;
use sha2::{Digest, Sha256};

use cairn_analysis::attribution::colours::{FRAME_TEXT, owner_variables};

use crate::content::Packed;

type Module = (&'static str, &'static str);

/// Modules of every page. Each module comes after those that it imports.
const MODULES: [Module; 13] = [
    ("content.js", include_str!("../page/content.js")),
    ("text.js", include_str!("../page/text.js")),
    ("ticks.js", include_str!("../page/ticks.js")),
    ("shape.js", include_str!("../page/shape.js")),
    ("owners.js", include_str!("../page/owners.js")),
    ("model.js", include_str!("../page/model.js")),
    ("flame.js", include_str!("../page/flame.js")),
    ("timeline.js", include_str!("../page/timeline.js")),
    ("tables.js", include_str!("../page/tables.js")),
    ("charts.js", include_str!("../page/charts.js")),
    ("state.js", include_str!("../page/state.js")),
    ("transforms.js", include_str!("../page/transforms.js")),
    ("main.js", include_str!("../page/main.js")),
];

/// Modules of a page that is a file.
const OF_FILES: [Module; 1] = [("start.js", include_str!("../page/start.js"))];

/// Modules of the served page.
const SERVED: [Module; 5] = [
    ("api.js", include_str!("../page/api.js")),
    ("source.js", include_str!("../page/source.js")),
    ("diff.js", include_str!("../page/diff.js")),
    ("compare.js", include_str!("../page/compare.js")),
    ("view.js", include_str!("../page/view.js")),
];

const STYLE: &str = include_str!("../page/page.css");
const SERVED_STYLE: &str = include_str!("../page/view.css");
const BODY: &str = include_str!("../page/page.html");
const SERVED_BODY: &str = include_str!("../page/view.html");

/// Restores a token that this browser had before: a copy of the page's address has none.
const DOOR_SCRIPT: &str = "'use strict';
const token = localStorage.getItem('cairn-token');
if (token && /^[\\w-]{32}$/.test(token)) location.replace(`/${token}/${location.hash}`);
";

/// The file with this content.
pub(crate) fn page(content: &Packed) -> String {
    let script = script(&OF_FILES);
    let policy = policy(&script, &style(), "");
    let data = |id: &str, bytes: &[u8]| {
        let text = STANDARD.encode(deflated(bytes));
        format!("<script type=\"application/octet-stream\" id=\"{id}\">{text}</script>\n")
    };
    let data = data("content", &content.first) + &data("slices", &content.slices);
    let meta = format!("<meta http-equiv=\"Content-Security-Policy\" content=\"{policy}\">\n");
    document(&meta, &style(), BODY, &data, &script)
}

/// The page that asks a server for its content. Its policy is in the answer's header.
pub(crate) fn served() -> String {
    let body = BODY.replacen("</header>\n", &format!("</header>\n{SERVED_BODY}"), 1);
    document("", &served_style(), &body, "", &script(&SERVED))
}

/// The policy of the served page: it may send requests to its own server, and nothing else.
pub(crate) fn served_policy() -> String {
    policy(&script(&SERVED), &served_style(), "; connect-src 'self'; frame-ancestors 'none'")
}

/// The style of every page, with the colours of owners.
fn style() -> String {
    let variables = |is_dark| format!("{{ {}--owner-text: {FRAME_TEXT}; }}", owner_variables(is_dark));
    let (light, dark) = (variables(false), variables(true));
    format!(
        ":root {light}\n@media (prefers-color-scheme: dark) {{ :root:not([data-theme=\"light\"]) {dark} }}\n\
         :root[data-theme=\"dark\"] {dark}\n{STYLE}"
    )
}

fn served_style() -> String {
    format!("{}{SERVED_STYLE}", style())
}

/// The page for a request without a token.
pub(crate) fn door() -> String {
    let body = "<main><h1>cairn view</h1>\n<p>Open the address that <code>cairn view</code> printed: it holds a token, without \
                which nothing is shown.</p></main>";
    document("", &style(), body, "", DOOR_SCRIPT)
}

pub(crate) fn door_policy() -> String {
    policy(DOOR_SCRIPT, &style(), "; frame-ancestors 'none'")
}

fn policy(script: &str, style: &str, more: &str) -> String {
    let (script, style) = (hash(script), hash(style));
    format!(
        "default-src 'none'; script-src '{script}'; style-src '{style}'; base-uri 'none'; form-action 'none'{more}"
    )
}

fn document(meta: &str, style: &str, body: &str, data: &str, script: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n{meta}\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<meta name=\"referrer\" content=\"no-referrer\">\n\
         <title>cairn</title>\n<style>{style}</style>\n</head>\n<body>\n{body}\n{data}\
         <script type=\"module\">{script}</script>\n</body>\n</html>\n"
    )
}

/// All modules as one.
fn script(more: &[Module]) -> String {
    let mut script = String::from("'use strict';\n");
    for (name, text) in MODULES.iter().chain(more) {
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
    fn script_modules_are_ordered_and_share_no_name() {
        for more in [&OF_FILES[..], &SERVED[..]] {
            check_names(MODULES.iter().chain(more));
        }
    }

    fn check_names<'a>(modules: impl Iterator<Item = &'a Module>) {
        let mut declared = HashSet::new();
        for (module, text) in modules {
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
        for (module, text) in MODULES.iter().chain(&OF_FILES).chain(&SERVED) {
            for forbidden in [
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
                "new Function(",
                "fetch(",
            ] {
                // One module asks the server; it is in no file.
                let is_asking = (*module, forbidden) == ("api.js", "fetch(");
                assert_eq!(text.contains(forbidden), is_asking, "{module}: {forbidden}");
            }
        }
        for script in [script(&OF_FILES), script(&SERVED), DOOR_SCRIPT.to_owned()] {
            assert!(!script.contains("</script"));
        }
        let style = served_style();
        assert!(!style.contains("</style") && !style.contains("url("));
    }

    #[test]
    fn policy_allows_the_script_and_style_by_hash_alone() {
        let html = page(&Packed { first: b"content".to_vec(), slices: Vec::new() });
        let policy =
            html.split("Content-Security-Policy\" content=\"").nth(1).and_then(|rest| rest.split('"').next());
        let expected = format!(
            "default-src 'none'; script-src '{}'; style-src '{}'; base-uri 'none'; form-action 'none'",
            hash(&script(&OF_FILES)),
            hash(&style())
        );
        assert_eq!(policy, Some(expected.as_str()));
        assert_eq!(html.matches("<script").count(), 3);
        assert!(!html.contains("src=") && !html.contains("href="));
        let served = served();
        assert_eq!(served.matches("<script").count(), 1);
        assert!(!served.contains("src=") && !served.contains("href="));
        assert!(
            served_policy().contains(&hash(&script(&SERVED)))
                && served_policy().contains("connect-src 'self'")
        );
        assert!(!html.contains("connect-src"));
    }
}
