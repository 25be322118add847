//! Names that Windows reserves for devices, in every directory.

use std::ffi::OsStr;

/// Returns true for `NUL`, `CON`, `COM1` and their like, with or without an ending.
///
/// Windows 10 and older take `nul.txt` for the device as well.
pub(super) fn is_reserved(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    let stem = name.split(['.', ':']).next().unwrap_or_default().trim_end_matches(' ').to_ascii_uppercase();
    match stem.as_str() {
        "CON" | "PRN" | "AUX" | "NUL" | "CONIN$" | "CONOUT$" => true,
        port => port.strip_prefix("COM").or(port.strip_prefix("LPT")).is_some_and(|number| {
            let mut digits = number.chars();
            matches!((digits.next(), digits.next()), (Some('0'..='9' | '¹' | '²' | '³'), None))
        }),
    }
}

/// Returns true for a reserved name without an ending.
pub(super) fn is_device(name: &OsStr) -> bool {
    is_reserved(name) && !name.to_string_lossy().contains('.')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_devices_are_reserved_in_any_case_and_with_endings() {
        for name in
            ["NUL", "nul", "con", "Com1", "LPT9", "aux", "CONOUT$", "com¹", "nul.txt", "NUL .x", "NUL:"]
        {
            assert!(is_reserved(name.as_ref()), "{name}");
        }
        for name in ["null", "COM", "COM10", "console", "测试.cairn", "nul_.txt", ""] {
            assert!(!is_reserved(name.as_ref()), "{name}");
        }
        assert!(is_device("nul".as_ref()) && !is_device("nul.txt".as_ref()));
    }
}
