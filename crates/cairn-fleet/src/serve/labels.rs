//! Texts that senders give: their length, and what they are made of.

use std::collections::BTreeMap;

use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;

use super::refusal::Refusal;

/// Bytes of the name of a service, a version, a host, a sender, or of a path.
pub(crate) const MOST_TEXT_BYTES: usize = 4096;
/// Bytes of the name of a function; names of C++ templates are long.
pub(crate) const MOST_NAME_BYTES: usize = 64 << 10;
/// Labels of a process. Each key becomes a column of questions.
pub(crate) const MOST_LABELS: usize = 64;
/// Bytes of the key and of the value of a label.
const MOST_LABEL_BYTES: usize = 1024;

/// Refuses a text that is too long.
pub(crate) fn check_length(what: &str, text: &str, most: usize) -> Result<(), Refusal> {
    if text.len() > most {
        return Err(Refusal::too_large(&format!("bytes of {what}"), text.len() as u64, most as u64));
    }
    Ok(())
}

/// Refuses a text that is too long, or that would do something to a terminal.
pub(crate) fn check_text(what: &str, text: &str, most: usize) -> Result<(), Refusal> {
    check_length(what, text, most)?;
    if text.chars().any(char::is_control) {
        return Err(Refusal::wrong(format!("{what}: it has a control character")));
    }
    Ok(())
}

/// Refuses labels that cannot be columns.
pub(crate) fn check(labels: &BTreeMap<String, String>) -> Result<(), Refusal> {
    if labels.len() > MOST_LABELS {
        return Err(Refusal::too_large("labels", labels.len() as u64, MOST_LABELS as u64));
    }
    for (key, value) in labels {
        check_text("a label's key", key, MOST_LABEL_BYTES)?;
        check_text("a label", value, MOST_LABEL_BYTES)?;
        if key.is_empty() || *key != as_key(key) {
            return Err(Refusal::wrong(format!(
                "labels: {key}: the key of a label is of small letters, digits and underscores, as it is a column"
            )));
        }
    }
    Ok(())
}

/// Makes the key of a label out of a name that another tool gives: `k8s.pod` is `k8s_pod`.
pub(crate) fn as_key(name: &str) -> String {
    let letter = |letter: char| match letter.to_ascii_lowercase() {
        letter if letter.is_ascii_lowercase() || letter.is_ascii_digit() => letter,
        _ => '_',
    };
    name.chars().map(letter).collect()
}

/// Refuses a body of another kind than these.
pub(crate) fn check_kind(headers: &HeaderMap, kinds: &[&str]) -> Result<(), Refusal> {
    let kind = headers.get(CONTENT_TYPE).map(|kind| String::from_utf8_lossy(kind.as_bytes()).into_owned());
    let kind = kind.unwrap_or_default();
    let essence = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if kinds.contains(&essence.as_str()) {
        return Ok(());
    }
    let kind = if kind.is_empty() { "none" } else { &kind };
    Err(Refusal::form(format!("Content-Type: {kind}, and this route takes {}", kinds.join(", "))))
}
