//! Any text as a mangled name: the readable form keeps to its limit, and what is no name stays as
//! it is.
#![no_main]

use cairn_symbols::demangle::{MAX_DEMANGLED_BYTES, readable, scheme};

libfuzzer_sys::fuzz_target!(|name: &str| {
    let text = readable(name);
    assert!(text.len() <= MAX_DEMANGLED_BYTES.max(name.len()));
    if scheme(name).is_none() {
        assert_eq!(text, name);
    }
    // Most inputs are no names; behind these marks more of them are.
    for mark in ["_ZN", "_Z1fI", "_R", "_RINvC1a1b", "?f@@YA", "??$f@"] {
        let _ = readable(&format!("{mark}{name}"));
    }
});
