//! Parses the address of a request: its path, and its query behind the question mark.
//!
//! Every byte may come from a stranger: memory is bounded by a multiple of the request, and invalid
//! requests get an error.

use std::collections::HashMap;

use super::desk::Part;

/// Calls of a path; a page has no more above one another.
const MOST_LEVELS: usize = 1100;
/// Characters of a filter.
const MOST_TEXT: usize = 2000;

/// An invalid address: a sentence for people.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct InvalidRequest(pub(crate) String);

/// Splits a path at its slashes and resolves the percent signs of each part.
///
/// A name of a file may then contain a slash; it is looked up in a list and opened nowhere.
pub(crate) fn decoded_parts(path: &str) -> Result<Vec<String>, InvalidRequest> {
    path.trim_start_matches('/').split('/').map(|part| decoded(part, false)).collect()
}

fn decoded(text: &str, is_query: bool) -> Result<String, InvalidRequest> {
    let bad = || invalid("the address has an invalid percent sign, or is no UTF-8");
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
                let (high, low) = (digit(rest.next()), digit(rest.next()));
                let (high, low) = high.zip(low).ok_or_else(bad)?;
                (high * 16 + low) as u8
            }
            b'+' if is_query => b' ',
            byte => byte,
        });
    }
    String::from_utf8(bytes).map_err(|_| bad())
}

/// The text as a part of an address: letters and digits as they are, other bytes behind percent
/// signs.
pub(crate) fn encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.') {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

/// The query of an address.
pub(crate) struct Query(HashMap<String, String>);

impl Query {
    pub(crate) fn parse(text: &str) -> Result<Self, InvalidRequest> {
        let mut values = HashMap::new();
        for part in text.split('&').filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let twice = values.insert(decoded(name, true)?, decoded(value, true)?);
            if twice.is_some() {
                return Err(invalid(&format!("{name} is given twice")));
            }
        }
        Ok(Self(values))
    }

    pub(crate) fn text(&self, name: &str) -> Result<Option<&str>, InvalidRequest> {
        let value = self.0.get(name).map(String::as_str).filter(|value| !value.is_empty());
        // A path of calls has a limit of its own.
        if value.is_some_and(|value| value.len() > MOST_TEXT * 4) {
            return Err(invalid(&format!("{name} is too long")));
        }
        Ok(value)
    }

    pub(crate) fn number(&self, name: &str) -> Result<Option<u64>, InvalidRequest> {
        let bad = |_| invalid(&format!("{name} is no number"));
        self.0.get(name).filter(|text| !text.is_empty()).map(|text| text.parse().map_err(bad)).transpose()
    }

    /// The part of a recording that is asked for, by names that begin so.
    pub(crate) fn part(&self, prefix: &str) -> Result<Part, InvalidRequest> {
        let name = |name: &str| format!("{prefix}{name}");
        let owned = |what: &str| -> Result<Option<String>, InvalidRequest> {
            Ok(self.text(&name(what))?.map(|text| text.chars().take(MOST_TEXT).collect()))
        };
        let bad = |what: &str| invalid(what);
        let from_nanos = self.number(&name("from"))?.unwrap_or(0);
        let to_nanos = self.number(&name("to"))?;
        if to_nanos.is_some_and(|to| to < from_nanos) {
            return Err(bad("the earlier time comes first"));
        }
        let sizes = match owned("size")? {
            None => None,
            Some(text) => {
                let parsed =
                    text.split_once('-').and_then(|(from, to)| Some((from.parse().ok()?, to.parse().ok()?)));
                Some(
                    parsed
                        .filter(|(from, to)| from <= to)
                        .ok_or_else(|| bad("sizes are written as FROM-TO"))?,
                )
            }
        };
        let below = self.0.get(&name("below")).map_or("", String::as_str);
        let keys = below.split('.').filter(|key| !key.is_empty()).map(|key| u32::from_str_radix(key, 36));
        let below: Vec<u32> = keys.collect::<Result<_, _>>().map_err(|_| bad("below is no path of calls"))?;
        if below.len() > MOST_LEVELS {
            return Err(bad("below has too many calls"));
        }
        Ok(Part {
            from_nanos,
            to_nanos,
            thread: owned("thread")?,
            sizes,
            function: owned("function")?,
            module: owned("module")?,
            below,
        })
    }
}

fn invalid(what: &str) -> InvalidRequest {
    InvalidRequest(what.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percent_encoding_is_decoded_or_refused() {
        let cases: &[(&str, Option<&[&str]>)] = &[
            ("/", Some(&[""])),
            ("/api/1", Some(&["api", "1"])),
            ("/a%2Fb/%C3%A9", Some(&["a/b", "é"])),
            ("/a+b", Some(&["a+b"])),
            ("/%", None),
            ("/%2", None),
            ("/%zz", None),
            ("/%ff", None),
            ("/%2é", None),
        ];
        for (path, expected) in cases {
            let parts = decoded_parts(path).ok();
            let parts = parts.as_ref().map(|parts| parts.iter().map(String::as_str).collect::<Vec<_>>());
            assert_eq!(parts.as_deref(), *expected, "{path}");
        }
    }

    #[test]
    fn request_parts_are_parsed_and_invalid_ones_refused() {
        let part = |text: &str| Query::parse(text).and_then(|query| query.part(""));
        assert_eq!(part("").unwrap(), Part::default());
        assert_eq!(part("thread=&size=&below=").unwrap(), Part::default());
        let all =
            part("from=5&to=9&thread=a+b&size=1-18446744073709551615&function=%3Cf%3E&module=m&below=10.zz")
                .unwrap();
        let expected = Part {
            from_nanos: 5,
            to_nanos: Some(9),
            thread: Some("a b".to_owned()),
            sizes: Some((1, u64::MAX)),
            function: Some("<f>".to_owned()),
            module: Some("m".to_owned()),
            below: vec![36, 35 * 36 + 35],
        };
        assert_eq!(all, expected);
        let long = format!("thread={}", "x".repeat(9000));
        let deep = format!("below={}", "1.".repeat(2000));
        for text in [
            "from=x",
            "from=-1",
            "to=99999999999999999999",
            "from=2&to=1",
            "size=1",
            "size=2-1",
            "size=1-2-3",
            "below=1.!",
            "below=zzzzzzzz",
            "from=1&from=1",
            long.as_str(),
            deep.as_str(),
        ] {
            assert!(part(text).is_err(), "{text}");
        }
    }
}
