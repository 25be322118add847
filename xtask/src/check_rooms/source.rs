//! Reads facts from a source file without parsing Rust: the attributes at its top, and a few
//! characteristic lines.

/// Returns the `#![…]` at the top of a file, without blanks: `forbid(unsafe_code)`.
///
/// Comments may lie between them; the first other line ends the search, as it does for the
/// compiler.
pub(crate) fn inner_attributes(text: &str) -> Vec<String> {
    let mut attributes = Vec::new();
    let mut lines = text.lines().map(str::trim);
    while let Some(line) = lines.next() {
        if line.is_empty() || line.starts_with("//") {
            continue;
        }
        if !line.starts_with("#![") {
            break;
        }
        let mut attribute = line.to_owned();
        // rustfmt breaks a long attribute and puts its end on a line of its own.
        while !attribute.ends_with(']') {
            let Some(more) = lines.next() else { break };
            attribute.push_str(more);
        }
        let inside = attribute.trim_start_matches("#![").trim_end_matches(']');
        attributes.push(inside.chars().filter(|c| !c.is_whitespace()).collect());
    }
    attributes
}

/// Returns whether the attributes set `lint` to one of `levels`, also among other lints.
pub(crate) fn sets_lint(attributes: &[String], levels: &[&str], lint: &str) -> bool {
    attributes.iter().any(|attribute| {
        let Some((level, rest)) = attribute.split_once('(') else { return false };
        levels.contains(&level) && rest.trim_end_matches(')').split(',').any(|word| word == lint)
    })
}

/// Returns the lines (counted from 1) that lift `lint` again, for a file, an item or a block.
pub(crate) fn lines_that_allow(text: &str, lint: &str) -> Vec<usize> {
    let lifts = |line: &str| {
        let line = line.trim();
        let is_attribute = ["#[", "#!["].iter().any(|start| line.starts_with(start));
        is_attribute && ["allow(", "expect("].iter().any(|level| line.contains(level)) && line.contains(lint)
    };
    numbered(text).filter(|(_, line)| lifts(line)).map(|(number, _)| number).collect()
}

/// Returns the lines that bring in std or alloc, except for tests.
///
/// At the left margin a line is for tests if `#[cfg(test)]` is right above it; within a module, if
/// that is anywhere above, since tests are last in a file.
pub(crate) fn lines_with_std_or_alloc(text: &str) -> Vec<usize> {
    let mut found = Vec::new();
    let mut previous = "";
    let mut tests_have_begun = false;
    for (number, line) in numbered(text) {
        let is_at_margin = !line.starts_with(char::is_whitespace);
        let word = line.trim();
        let is_for_tests = if is_at_margin { previous == "#[cfg(test)]" } else { tests_have_begun };
        let extern_crate = word.trim_start_matches("pub ").strip_prefix("extern crate ").unwrap_or_default();
        let name = extern_crate.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
        if ["std", "alloc"].contains(&name) && !is_for_tests {
            found.push(number);
        }
        tests_have_begun |= word == "#[cfg(test)]";
        if !word.is_empty() {
            previous = word;
        }
    }
    found
}

fn numbered(text: &str) -> impl Iterator<Item = (usize, &str)> {
    (1..).zip(text.lines())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rooms_find_attributes_across_lines() {
        let text = "//! Docs with #![no_std] in them.\n\n#![no_std]\n// reason\n#![forbid(\n    unsafe_code,\n    \
                    missing_docs\n)]\nmod a;\n#![late]\n";
        assert_eq!(inner_attributes(text), ["no_std", "forbid(unsafe_code,missing_docs)"]);
        assert_eq!(inner_attributes("// #![no_std]\nfn main() {}\n"), [""; 0]);
    }

    #[test]
    fn rooms_find_lints_by_whole_name() {
        let attributes =
            inner_attributes("#![deny(missing_docs, unsafe_code)]\n#![warn(unsafe_op_in_unsafe_fn)]\n");
        assert!(sets_lint(&attributes, &["forbid", "deny"], "unsafe_code"));
        assert!(!sets_lint(&attributes, &["forbid"], "unsafe_code"));
        assert!(!sets_lint(&attributes, &["warn"], "unsafe_code"));
    }

    #[test]
    fn rooms_find_lints_lifted_at_any_level() {
        let text = "#![allow(unsafe_code)]\nfn a() {\n    #[expect(unsafe_code, reason = \"x\")]\n    b();\n}\n// allow(unsafe_code)\n";
        assert_eq!(lines_that_allow(text, "unsafe_code"), [1, 3]);
    }

    #[test]
    fn rooms_allow_std_in_tests_only() {
        let cases: [(&str, &[usize]); 5] = [
            ("extern crate alloc;\n", &[1]),
            ("mod a;\npub extern crate std as base;\n", &[2]),
            ("#[cfg(test)]\nextern crate std;\n", &[]),
            ("fn a() {}\n#[cfg(test)]\nmod tests {\n    extern crate std;\n}\n", &[]),
            ("extern crate stdx;\n// extern crate std;\n", &[]),
        ];
        for (text, expected) in cases {
            assert_eq!(lines_with_std_or_alloc(text), expected, "{text:?}");
        }
    }
}
