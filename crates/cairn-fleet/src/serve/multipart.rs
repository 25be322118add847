//! Bodies of several parts: `multipart/form-data`, as browsers and Pyroscope's clients send it.

use super::refusal::Refusal;

/// A part of a body.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Part<'a> {
    pub(crate) name: String,
    pub(crate) content: &'a [u8],
}

/// Parts of a body; 16, and clients send three.
const MOST_PARTS: usize = 16;
/// Bytes of the text between parts, as RFC 2046 has it.
const MOST_BOUNDARY_BYTES: usize = 70;

/// The text between parts; none of a body that has no parts.
pub(crate) fn boundary(kind: &str) -> Option<&str> {
    let (essence, parameters) = kind.split_once(';')?;
    if !essence.trim().eq_ignore_ascii_case("multipart/form-data") {
        return None;
    }
    parameters.split(';').find_map(|parameter| {
        let (key, value) = parameter.trim().split_once('=')?;
        let value = value.trim().trim_matches('"');
        let is_boundary = key.trim().eq_ignore_ascii_case("boundary");
        (is_boundary && (1..=MOST_BOUNDARY_BYTES).contains(&value.len())).then_some(value)
    })
}

/// Divides a body.
pub(crate) fn parts<'a>(bytes: &'a [u8], boundary: &str) -> Result<Vec<Part<'a>>, Refusal> {
    let bad = |why: &str| Refusal::bad(format!("the body of several parts: {why}"));
    let first = format!("--{boundary}");
    let next = format!("\r\n--{boundary}");
    let start = find(bytes, first.as_bytes()).ok_or_else(|| bad("its boundary is not in it"))?;
    let mut rest = bytes.get(start + first.len()..).unwrap_or_default();
    let mut parts = Vec::new();
    while !rest.starts_with(b"--") {
        let part = rest.strip_prefix(b"\r\n").ok_or_else(|| bad("no line ends behind a boundary"))?;
        let end = find(part, next.as_bytes()).ok_or_else(|| bad("a part has no end"))?;
        let (part, behind) = part.split_at(end);
        let head = find(part, b"\r\n\r\n").ok_or_else(|| bad("a part has no empty line"))?;
        let (head, content) = part.split_at(head);
        let name = name_in(&String::from_utf8_lossy(head)).ok_or_else(|| bad("a part has no name"))?;
        parts.push(Part { name, content: content.get(4..).unwrap_or_default() });
        if parts.len() > MOST_PARTS {
            return Err(Refusal::too_large("parts of a body", parts.len() as u64, MOST_PARTS as u64));
        }
        rest = behind.get(next.len()..).unwrap_or_default();
    }
    Ok(parts)
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).position(|window| window == wanted)
}

/// The name in `Content-Disposition: form-data; name="profile"; filename="profile.pprof"`.
fn name_in(head: &str) -> Option<String> {
    let line = head.split("\r\n").find(|line| {
        line.split_once(':').is_some_and(|(key, _)| key.trim().eq_ignore_ascii_case("content-disposition"))
    })?;
    line.split(';').find_map(|parameter| {
        let (key, value) = parameter.trim().split_once('=')?;
        key.eq_ignore_ascii_case("name").then(|| value.trim_matches('"').to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_divided_and_broken_ones_refused() {
        let kind = "multipart/form-data; boundary=\"xyz\"";
        assert_eq!(boundary(kind), Some("xyz"));
        assert_eq!(boundary("application/octet-stream"), None);
        assert_eq!(boundary("multipart/form-data; boundary="), None);
        let body = b"--xyz\r\nContent-Disposition: form-data; name=\"profile\"; filename=\"p\"\r\n\
            Content-Type: x\r\n\r\n\x1f\r\n--x\r\n--xyz\r\ncontent-disposition: form-data; name=b\r\n\r\n\r\n--xyz--\r\n";
        let found = parts(body, "xyz").unwrap();
        let expected: [(&str, &[u8]); 2] = [("profile", b"\x1f\r\n--x"), ("b", b"")];
        let expected = expected.map(|(name, content)| Part { name: name.to_owned(), content });
        assert_eq!(found, expected);
        for length in 0..body.len() - 4 {
            assert!(parts(&body[..length], "xyz").is_err(), "{length}");
        }
    }
}
