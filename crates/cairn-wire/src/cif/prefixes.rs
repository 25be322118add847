//! Rules for path prefixes that encoder and decoder share: the fixed prefixes, and the end of a new
//! one.

/// The prefixes that every map knows, by code. Codes 12 to 31 are reserved for more of them.
///
/// An older copy of the document ends the last one with a backslash; no implementation does.
pub(super) const FIXED_PREFIXES: [&[u8]; 12] = [
    b"/lib",
    b"/usr/lib",
    b"/usr/local/lib",
    b"/opt/lib",
    b"/System/Library/Frameworks",
    b"/System/Library/PrivateFrameworks",
    b"/System/iOSSupport",
    b"/Library/Frameworks",
    b"/System/Applications",
    b"/Applications",
    b"C:\\Windows\\System32",
    b"C:\\Program Files",
];

/// The first code that string data gets.
pub(super) const FIRST_ASSIGNED_CODE: u64 = 32;
const _: () = assert!(FIXED_PREFIXES.len() as u64 <= FIRST_ASSIGNED_CODE);

/// Offset of extended codes: `expand` with an operand `v` means code `v + 64`.
pub(super) const FIRST_EXTENDED_CODE: u64 = 64;

/// The most bytes that one `str` opcode carries.
pub(super) const LONGEST_STR: usize = 0x3f;

/// The longest framework name that the opcode can state.
pub(super) const LONGEST_FRAMEWORK_NAME: usize = 64;

/// The version byte of a framework without a `Versions` folder, as on iOS. Swift 6.2 does not know
/// it.
pub(super) const FLAT_FRAMEWORK: u8 = 1;

/// Returns true for the bytes that end a prefix. Both count on every platform.
pub(super) const fn is_separator(byte: u8) -> bool {
    matches!(byte, b'/' | b'\\')
}
