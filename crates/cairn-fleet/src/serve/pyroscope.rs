//! Pyroscope's `POST /ingest`: pprof, as its clients push it.

use axum::extract::{Query, Request, State};
use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;
use cairn_exchange::import::{ImportOptions, Imported};
use cairn_store::{Block, Id, now_ms};

use super::body;
use super::clock;
use super::foreign::{KnownLabel, MOST_PROFILE_BYTES, Origin, labels_of};
use super::multipart;
use super::queue::Queue;
use super::refusal::Refusal;

/// Formats of Pyroscope that are not read here: they have no heap, or no sums.
const OTHER_FORMATS: [&str; 8] =
    ["folded", "groups", "lines", "trie", "tree", "jfr", "speedscope", "individual"];

/// The parameters of a request.
#[derive(Debug, Default)]
struct Parameters {
    name: String,
    from: Option<i64>,
    until: Option<i64>,
    format: String,
}

/// Takes a profile.
pub(crate) async fn take(State(queue): State<Queue>, request: Request) -> Result<&'static str, Refusal> {
    let (head, sent) = request.into_parts();
    let Query(pairs) = Query::<Vec<(String, String)>>::try_from_uri(&head.uri)
        .map_err(|error| Refusal::bad(format!("the parameters: {error}")))?;
    let parameters = Parameters::of(pairs)?;
    let mut held = queue.held();
    let bytes = body::read(&head.headers, sent, MOST_PROFILE_BYTES, &mut held, &queue.parsers).await?;
    let received_ms = now_ms();
    let parse = move || parse(&parameters, &head.headers, &bytes, received_ms);
    let block = body::apart(&queue.parsers, parse).await?;
    queue.store(vec![block], held).await?;
    Ok("stored\n")
}

impl Parameters {
    fn of(pairs: Vec<(String, String)>) -> Result<Self, Refusal> {
        let mut parameters = Self::default();
        for (name, value) in pairs {
            match name.as_str() {
                "name" => parameters.name = value,
                "from" => parameters.from = Some(moment("from", &value)?),
                "until" => parameters.until = Some(moment("until", &value)?),
                "format" => parameters.format = value,
                _ => {}
            }
        }
        if OTHER_FORMATS.contains(&parameters.format.as_str()) {
            return Err(Refusal::form(format!(
                "format={}: this server reads heaps in pprof; push with format=pprof",
                parameters.format
            )));
        }
        Ok(parameters)
    }

    fn slice(&self) -> Result<Option<(i64, i64)>, Refusal> {
        match (self.from, self.until) {
            (Some(from), Some(until)) if from < until => Ok(Some((from, until))),
            (Some(from), Some(until)) => {
                Err(Refusal::wrong(format!("from and until: {from} is not before {until}")))
            }
            (None, Some(until)) => Ok(Some((until - 1, until))),
            _ => Ok(None),
        }
    }
}

/// A moment in seconds, milliseconds or nanoseconds since 1970, as clients send it.
fn moment(what: &str, text: &str) -> Result<i64, Refusal> {
    let number: i64 = text.parse().map_err(|_| {
        Refusal::bad(format!("{what}={text}: a moment is in seconds since 1970, as a number"))
    })?;
    // Seconds have ten digits for a long time to come, milliseconds thirteen.
    let moment_ms = if number < 100_000_000_000 {
        number.saturating_mul(1000)
    } else if number < 100_000_000_000_000 {
        number
    } else {
        number / 1_000_000
    };
    clock::check(what, moment_ms)?;
    Ok(moment_ms)
}

fn parse(
    parameters: &Parameters,
    headers: &HeaderMap,
    bytes: &[u8],
    received_ms: i64,
) -> Result<Block, Refusal> {
    let profile = profile_of(headers, bytes)?;
    let slice = parameters.slice()?;
    let (service, pairs) = name_of(&parameters.name)?;
    let mut options = ImportOptions::default();
    options.max_unpacked_bytes = Some(body::MOST_BYTES);
    let heap = Imported::from_bytes_with(profile.to_vec(), &options)
        .map_err(|error| Refusal::bad(format!("the profile: {error}")))?;
    let mut labels = labels_of(pairs, known);
    labels.service = Some(service);
    let moments = format!("{slice:?}");
    let content = Id::of_content([profile, parameters.name.as_bytes(), moments.as_bytes()]);
    let process = Id::of_content([&b"ingest"[..], parameters.name.as_bytes()]);
    Origin { interface: "ingest", labels, process, content, slice, received_ms }.block(heap)
}

/// The profile of a body: the body, or a part of it.
fn profile_of<'a>(headers: &HeaderMap, bytes: &'a [u8]) -> Result<&'a [u8], Refusal> {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let Some(boundary) = multipart::boundary(kind) else { return Ok(bytes) };
    let mut profile = None;
    for part in multipart::parts(bytes, boundary)? {
        match part.name.as_str() {
            "profile" => profile = Some(part.content),
            "prev_profile" => {
                return Err(Refusal::form(
                    "prev_profile: counters since the start of the process, with those of before; use a client \
                     that sends the differences",
                ));
            }
            _ => {}
        }
    }
    profile.ok_or_else(|| Refusal::bad("the body has no part `profile`"))
}

/// Divides `service{region="eu",pod=x}`.
fn name_of(name: &str) -> Result<(String, Vec<(String, String)>), Refusal> {
    let bad = |why: &str| Refusal::bad(format!("name={name}: {why}; a name is service{{label=\"value\"}}"));
    let (service, rest) = match name.split_once('{') {
        None => (name, ""),
        Some((service, rest)) => {
            (service, rest.trim_end().strip_suffix('}').ok_or_else(|| bad("no `}` at its end"))?)
        }
    };
    let service = service.trim();
    if service.is_empty() {
        return Err(bad("no service"));
    }
    let mut pairs = Vec::new();
    let mut rest = rest.trim_start();
    while !rest.is_empty() {
        let (key, behind) = rest.split_once('=').ok_or_else(|| bad("a label without `=`"))?;
        let (value, behind) = match behind.strip_prefix('"') {
            Some(quoted) => {
                let (value, behind) = quoted.split_once('"').ok_or_else(|| bad("a quote without its end"))?;
                (value, behind.trim_start().strip_prefix(',').unwrap_or(behind.trim_start()))
            }
            None => behind.split_once(',').unwrap_or((behind, "")),
        };
        pairs.push((key.trim().to_owned(), value.trim().to_owned()));
        rest = behind.trim_start();
    }
    Ok((service.to_owned(), pairs))
}

fn known(name: &str) -> Option<KnownLabel> {
    match name {
        "version" | "service_version" | "service.version" => Some(KnownLabel::Version),
        "host" | "hostname" | "host_name" => Some(KnownLabel::Host),
        "service" | "__session_id__" | "__name__" | "service_name" => Some(KnownLabel::Ignored),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_labels_with_and_without_quotes() {
        let check = |name: &str, service: &str, expected: &[(&str, &str)]| {
            let (found, pairs) = name_of(name).unwrap();
            let pairs: Vec<_> = pairs.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
            assert_eq!((found.as_str(), pairs.as_slice()), (service, expected), "{name}");
        };
        check("web", "web", &[]);
        check("web{}", "web", &[]);
        check("web{region=\"eu, west\",pod=\"a\"}", "web", &[("region", "eu, west"), ("pod", "a")]);
        check("web{region=eu,pod=a}", "web", &[("region", "eu"), ("pod", "a")]);
        for wrong in ["", "{a=b}", "web{a=b", "web{a}", "web{a=\"b}"] {
            assert!(name_of(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn moments_are_in_any_unit() {
        for text in ["1790856000", "1790856000000", "1790856000000000000"] {
            assert_eq!(moment("from", text), Ok(1_790_856_000_000), "{text}");
        }
        assert!(moment("from", "now").is_err());
        assert!(moment("from", "-1").is_err());
    }
}
