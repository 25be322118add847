//! Any text as a mangled name: the readable form keeps to its limit, and what is no name stays as
//! it is. Short forms are never longer, and their own short forms.
#![no_main]

use cairn_symbols::demangle::{MAX_DEMANGLED_BYTES, readable, scheme};
use cairn_symbols::shorten::{fit, shorten, shorten_without_parameters};

libfuzzer_sys::fuzz_target!(|name: &str| {
    let text = readable(name);
    assert!(text.len() <= MAX_DEMANGLED_BYTES.max(name.len()));
    if scheme(name).is_none() {
        assert_eq!(text, name);
    }
    check_short(&text);
    check_short(name);
    // Most inputs are no names; behind these marks more of them are.
    for mark in ["_ZN", "_Z1fI", "_R", "_RINvC1a1b", "?f@@YA", "??$f@"] {
        let _ = readable(&format!("{mark}{name}"));
    }
});

/// A short name is never longer, is its own short name, and has matching brackets if the name has.
fn check_short(name: &str) {
    for shorten in [shorten, shorten_without_parameters] {
        let short = shorten(name);
        assert!(short.len() <= name.len());
        assert_eq!(shorten(&short), short);
        assert!(has_matching_brackets(&short) || !has_matching_brackets(name), "{name}: {short}");
    }
    let fitted = fit(name, 30, |text| text.chars().count());
    assert!(fitted.chars().count() <= 30);
}

/// True if each bracket but those of operators and arrows has its counterpart.
fn has_matching_brackets(name: &str) -> bool {
    if name.contains("operator") || name.contains("->") {
        return true;
    }
    let mut open = Vec::new();
    name.chars().all(|c| match c {
        '<' | '(' | '[' | '{' => {
            open.push(c);
            true
        }
        '>' => open.pop() == Some('<'),
        ')' => open.pop() == Some('('),
        ']' => open.pop() == Some('['),
        '}' => open.pop() == Some('{'),
        _ => true,
    }) && open.is_empty()
}
