//! Rewrites members of dependent types, which GCC mangles in a form that the demangler refuses.
//!
//! `std::is_array<T>::value` in a signature is `sr St8is_arrayIT_E 5value`: `sr`, a type, and a
//! name. The demangler accepts template parameters and back references alone as the type. The same
//! member is also the external name `L_Z NSt8is_arrayIT_E5valueE E`, which it reads, prints in the
//! same way, and which adds the same entries in the same order to the table of back references. So
//! all later references (`S1_`) mean what they meant.
//!
//! ```text
//!   sr St8is_arrayIT_E    5value   ->   L_ZN St8is_arrayIT_E 5value EE
//!   sr N1a1bIT_E E        5value   ->   L_ZN 1a1bIT_E        5value EE
//! ```

use std::ops::Range;

/// Maximum members that are rewritten; 64, more than any name of a program has.
const MAX_MEMBERS: usize = 64;

/// Rewrites all such members of a name; `None` if there is none.
pub(super) fn as_external_names(name: &str) -> Option<String> {
    let mut whole = name.to_owned();
    let mut end = whole.len();
    let mut count = 0;
    // From the last one: members inside the type of another one come after its start.
    while let Some(at) = whole[..end].rfind("sr") {
        end = at;
        if let Some((path, name)) = member(&whole, at + 2) {
            let text = format!("L_ZN{}{}EE", &whole[path], &whole[name.clone()]);
            whole.replace_range(at..name.end, &text);
            count += 1;
        }
        if count > MAX_MEMBERS {
            return None;
        }
    }
    (count > 0).then_some(whole)
}

/// The ranges of the type's path and of the member's name behind `sr`.
fn member(name: &str, at: usize) -> Option<(Range<usize>, Range<usize>)> {
    let bytes = name.as_bytes();
    let (path, behind) = if bytes.get(at) == Some(&b'N') {
        let end = skip_bracketed(bytes, at)?;
        (at + 1..end - 1, end)
    } else {
        let mut end = match bytes.get(at..at + 2)? {
            b"St" => skip_source_name(bytes, at + 2)?,
            [b'S', _] => skip_token(bytes, at)?.0,
            [digit, _] if digit.is_ascii_digit() => skip_source_name(bytes, at)?,
            _ => return None,
        };
        if bytes.get(end) == Some(&b'I') {
            end = skip_bracketed(bytes, end)?;
        }
        (at..end, end)
    };
    let mut end = skip_source_name(bytes, behind)?;
    if bytes.get(end) == Some(&b'I') {
        end = skip_bracketed(bytes, end)?;
    }
    Some((path, behind..end))
}

/// The end of a number and that many bytes.
fn skip_source_name(bytes: &[u8], at: usize) -> Option<usize> {
    let digits = bytes.get(at..)?.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let length: usize = std::str::from_utf8(bytes.get(at..at + digits)?).ok()?.parse().ok()?;
    let end = (at + digits).checked_add(length)?;
    (end <= bytes.len()).then_some(end)
}

/// The end of what begins here with `I`, `N` or another opening letter, behind its `E`.
fn skip_bracketed(bytes: &[u8], at: usize) -> Option<usize> {
    let (mut at, mut depth) = (at, 0_usize);
    loop {
        let (end, change) = skip_token(bytes, at)?;
        at = end;
        depth = depth.checked_add_signed(change)?;
        if depth == 0 {
            return Some(at);
        }
    }
}

/// The end of the token here, and whether it opens (1) or closes (-1) a bracket.
///
/// A letter may be a type or the half of an operator. A token that is misread leads to a name that
/// the demangler refuses, or that lacks an `E`.
fn skip_token(bytes: &[u8], at: usize) -> Option<(usize, isize)> {
    let digits = |from: usize| bytes[from..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let second = bytes.get(at + 1).copied();
    Some(match *bytes.get(at)? {
        b'0'..=b'9' => (skip_source_name(bytes, at)?, 0),
        b'E' => (at + 1, -1),
        b'I' | b'J' | b'X' | b'N' | b'F' => (at + 1, 1),
        b'S' if second.is_some_and(|letter| letter.is_ascii_lowercase()) => (at + 2, 0),
        b'S' | b'T' => {
            let number = |byte: &&u8| byte.is_ascii_digit() || byte.is_ascii_uppercase();
            let end = at + 1 + bytes[at + 1..].iter().take_while(number).count();
            (bytes.get(end) == Some(&b'_')).then_some((end + 1, 0))?
        }
        // An external name; else a type, a number, and `E`.
        b'L' if bytes[at..].starts_with(b"L_Z") => (at + 3, 1),
        b'L' => {
            let mut end = at + 1;
            end = match *bytes.get(end)? {
                b'N' => skip_bracketed(bytes, end)?,
                b'0'..=b'9' => skip_source_name(bytes, end)?,
                b'S' => match skip_token(bytes, end)?.0 {
                    behind if bytes[end..].starts_with(b"St") => skip_source_name(bytes, behind)?,
                    behind => behind,
                },
                b'D' => end + 2,
                _ => end + 1,
            };
            let number = |byte: &&u8| byte.is_ascii_digit() || **byte == b'n';
            (end + bytes.get(end..)?.iter().take_while(number).count(), 1)
        }
        b'A' | b'C' => (at + 1 + digits(at + 1), 0),
        b'D' if matches!(second, Some(b'T' | b't' | b'O' | b'w')) => (at + 2, 1),
        b'D' => ((at + 2).min(bytes.len()), 0),
        b'f' if matches!(second, Some(b'p')) => (at + 2 + digits(at + 2), 0),
        _ => (at + 1, 0),
    })
}
