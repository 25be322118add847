//! Reads the conformance vectors in `fixtures/vectors`.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test file uses its own part of these helpers, and none is a library"
)]

use std::path::PathBuf;

use serde_json::Value;

pub mod mutate;

/// Returns the file of that name in `fixtures/vectors`.
pub fn vector_path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/vectors").join(name)
}

/// Returns all cases of a vector file whose `group` is `group` (`None`: all cases). Never empty, so
/// that no test passes idly.
pub fn cases(file: &str, group: Option<&str>) -> Vec<Value> {
    let text = std::fs::read_to_string(vector_path(file)).unwrap();
    let mut document: Value = serde_json::from_str(&text).unwrap();
    let Value::Array(mut cases) = document["cases"].take() else { panic!("{file} has no cases") };
    if let Some(group) = group {
        cases.retain(|case| case["group"] == group);
    }
    assert!(!cases.is_empty(), "{file}: no case in group {group:?}");
    cases
}

/// Returns the `id` and `note` of a case, for assertion messages.
pub fn name(case: &Value) -> String {
    format!("{}: {}", text(case, "id"), case["note"].as_str().unwrap_or(""))
}

/// Returns a string field that must be there.
pub fn text<'a>(case: &'a Value, key: &str) -> &'a str {
    case[key].as_str().unwrap_or_else(|| panic!("{}: no text {key}", case["id"]))
}

/// Returns a field of bytes in hexadecimal.
pub fn hex_field(case: &Value, key: &str) -> Vec<u8> {
    hex(text(case, key))
}

/// Returns bytes from hexadecimal digits.
pub fn hex(digits: &str) -> Vec<u8> {
    assert!(digits.len() & 1 == 0, "odd number of hexadecimal digits");
    (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap()).collect()
}

/// Hexadecimal digits of bytes.
pub fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns a number: plain, or a string `0x…`, or a decimal string.
pub fn number(value: &Value) -> u64 {
    match value {
        Value::String(text) => match text.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).unwrap(),
            None => text.parse().unwrap(),
        },
        other => other.as_u64().unwrap_or_else(|| panic!("not a number: {other}")),
    }
}

/// Returns a list of numbers.
pub fn numbers(value: &Value) -> Vec<u64> {
    value.as_array().unwrap_or_else(|| panic!("not a list: {value}")).iter().map(number).collect()
}
