//! Access control: lets in one browser, on this machine, that was given the address.
//!
//! A page that is open in the same browser may send requests here as well, and a name that its
//! owner points to this machine later (DNS rebinding) makes them resemble our own. So three checks
//! precede everything else, and each would suffice alone against such a page: the `Host` is the
//! address that is listened to, letter by letter; the browser's statement of the request's origin
//! is ours; and the token is there, which no one else has. Answers carry no permission for other
//! origins, ever.
//!
//! The token is in the path of the address that is opened (`/TOKEN/`) or in the header
//! `X-Cairn-Token`. It is no cookie: those are sent to every port of a host.

use std::io;
use std::net::SocketAddr;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hyper::Method;
use hyper::header::{HOST, HeaderName, ORIGIN};
use hyper::http::request::Parts;
use subtle::ConstantTimeEq;

/// Bytes of a token; 24, because 192 bits cannot be guessed.
const TOKEN_BYTES: usize = 24;

const TOKEN: HeaderName = HeaderName::from_static("x-cairn-token");
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const SEC_FETCH_MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");
const SEC_FETCH_DEST: HeaderName = HeaderName::from_static("sec-fetch-dest");

/// The secret and the origin that a request must have.
pub(crate) struct Door {
    token: String,
    host: String,
    origin: String,
}

/// Why a request is not let in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refusal {
    /// It names another host, none, or several.
    OtherHost,
    /// It comes from a page of another origin.
    OtherOrigin,
    /// It has no token.
    NoToken,
    /// It has another one.
    WrongToken,
}

impl Door {
    /// Creates a door with a new token, for the server that listens at this address.
    pub(crate) fn new(address: SocketAddr) -> io::Result<Self> {
        let mut bytes = [0; TOKEN_BYTES];
        getrandom::fill(&mut bytes)
            .map_err(|error| io::Error::other(format!("the system gives no random numbers: {error}")))?;
        Ok(Self::with_token(address, URL_SAFE_NO_PAD.encode(bytes)))
    }

    fn with_token(address: SocketAddr, token: String) -> Self {
        // An IPv6 address has its brackets here.
        let host = address.to_string();
        Self { token, origin: format!("http://{host}"), host }
    }

    /// The address to open.
    pub(crate) fn url(&self) -> String {
        format!("{}/{}/", self.origin, self.token)
    }

    /// The requested path, without the token.
    pub(crate) fn admit<'a>(&self, request: &'a Parts) -> Result<&'a str, Refusal> {
        self.check_host(request)?;
        self.check_origin(request)?;
        let path = request.uri.path();
        let (first, rest) = split_first(path);
        if self.is_token(first.as_bytes()) {
            return Ok(rest);
        }
        let given = request.headers.get(TOKEN);
        match given {
            Some(given) if self.is_token(given.as_bytes()) => Ok(path),
            Some(_) => Err(Refusal::WrongToken),
            // Anything else in the token's place is a wrong token.
            None if matches!(first, "" | "api") => Err(Refusal::NoToken),
            None => Err(Refusal::WrongToken),
        }
    }

    fn check_host(&self, request: &Parts) -> Result<(), Refusal> {
        let mut hosts = request.headers.get_all(HOST).iter();
        let named = (hosts.next(), hosts.next());
        let is_ours = |host: &[u8]| host == self.host.as_bytes();
        let in_line = request.uri.authority().is_none_or(|authority| is_ours(authority.as_str().as_bytes()));
        match named {
            (Some(host), None) if is_ours(host.as_bytes()) && in_line => Ok(()),
            _ => Err(Refusal::OtherHost),
        }
    }

    fn check_origin(&self, request: &Parts) -> Result<(), Refusal> {
        let all = |name: HeaderName, is_good: &dyn Fn(&[u8]) -> bool| {
            request.headers.get_all(name).iter().all(|value| is_good(value.as_bytes()))
        };
        let is_ours = all(ORIGIN, &|origin| origin == self.origin.as_bytes());
        // `none` is an address that was typed, or opened by another program.
        let is_near = all(SEC_FETCH_SITE, &|site| matches!(site, b"same-origin" | b"none"));
        // A link leads here from anywhere: it opens a page of its own, and the page with the link
        // sees nothing of it.
        let is_link = request.method == Method::GET
            && request.headers.contains_key(SEC_FETCH_MODE)
            && all(SEC_FETCH_MODE, &|mode| mode == b"navigate")
            && all(SEC_FETCH_DEST, &|goal| goal == b"document");
        if is_ours && (is_near || is_link) { Ok(()) } else { Err(Refusal::OtherOrigin) }
    }

    /// Takes the same time whichever byte differs; only the length, which is no secret, shows.
    fn is_token(&self, given: &[u8]) -> bool {
        bool::from(self.token.as_bytes().ct_eq(given))
    }
}

/// The first part of a path, and the rest with its slash.
fn split_first(path: &str) -> (&str, &str) {
    let path = path.strip_prefix('/').unwrap_or(path);
    match path.find('/') {
        Some(at) => path.split_at(at),
        None => (path, "/"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::Request;

    fn door() -> Door {
        Door::with_token(([127, 0, 0, 1], 4711).into(), "t0ken".to_owned())
    }

    #[test]
    fn door_requires_host_origin_and_token() {
        let ours = ("host", "127.0.0.1:4711");
        let token = ("x-cairn-token", "t0ken");
        type Case<'a> = (&'a str, &'a [(&'a str, &'a str)], Result<&'a str, Refusal>);
        let cases: &[Case<'_>] = &[
            ("/t0ken/", &[ours], Ok("/")),
            ("/t0ken", &[ours], Ok("/")),
            ("/t0ken/api/1/recordings", &[ours], Ok("/api/1/recordings")),
            ("/api/1/recordings", &[ours, token], Ok("/api/1/recordings")),
            (
                "/api/1/recordings",
                &[ours, token, ("origin", "http://127.0.0.1:4711")],
                Ok("/api/1/recordings"),
            ),
            ("/t0ken/", &[ours, ("sec-fetch-site", "none")], Ok("/")),
            ("/t0ken/", &[ours, ("sec-fetch-site", "same-origin")], Ok("/")),
            ("http://127.0.0.1:4711/t0ken/", &[ours], Ok("/")),
            // No token, and wrong ones.
            ("/", &[ours], Err(Refusal::NoToken)),
            ("/api/1/recordings", &[ours], Err(Refusal::NoToken)),
            ("/t0keN/", &[ours], Err(Refusal::WrongToken)),
            ("/t0ken2/", &[ours], Err(Refusal::WrongToken)),
            ("/t0ke/", &[ours], Err(Refusal::WrongToken)),
            ("/api/1/recordings", &[ours, ("x-cairn-token", "")], Err(Refusal::WrongToken)),
            ("/api/1/recordings?token=t0ken", &[ours], Err(Refusal::NoToken)),
            ("//t0ken/", &[ours], Err(Refusal::NoToken)),
            // Other hosts.
            ("/t0ken/", &[], Err(Refusal::OtherHost)),
            ("/t0ken/", &[("host", "evil.example")], Err(Refusal::OtherHost)),
            ("/t0ken/", &[("host", "evil.example:4711")], Err(Refusal::OtherHost)),
            ("/t0ken/", &[("host", "localhost:4711")], Err(Refusal::OtherHost)),
            ("/t0ken/", &[("host", "127.0.0.1")], Err(Refusal::OtherHost)),
            ("/t0ken/", &[("host", "127.0.0.1:4712")], Err(Refusal::OtherHost)),
            ("/t0ken/", &[("host", "127.0.0.1:4711.evil.example")], Err(Refusal::OtherHost)),
            ("/t0ken/", &[ours, ("host", "evil.example")], Err(Refusal::OtherHost)),
            ("http://evil.example/t0ken/", &[ours], Err(Refusal::OtherHost)),
            // Other pages.
            ("/t0ken/", &[ours, ("origin", "http://evil.example")], Err(Refusal::OtherOrigin)),
            ("/t0ken/", &[ours, ("origin", "null")], Err(Refusal::OtherOrigin)),
            ("/t0ken/", &[ours, ("origin", "http://127.0.0.1:80")], Err(Refusal::OtherOrigin)),
            ("/t0ken/", &[ours, ("origin", "https://127.0.0.1:4711")], Err(Refusal::OtherOrigin)),
            ("/t0ken/", &[ours, ("sec-fetch-site", "cross-site")], Err(Refusal::OtherOrigin)),
            ("/t0ken/", &[ours, ("sec-fetch-site", "same-site")], Err(Refusal::OtherOrigin)),
            (
                "/t0ken/",
                &[ours, ("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "no-cors")],
                Err(Refusal::OtherOrigin),
            ),
            (
                "/t0ken/",
                &[
                    ours,
                    ("sec-fetch-site", "cross-site"),
                    ("sec-fetch-mode", "navigate"),
                    ("sec-fetch-dest", "iframe"),
                ],
                Err(Refusal::OtherOrigin),
            ),
            (
                "/t0ken/",
                &[
                    ours,
                    ("sec-fetch-site", "cross-site"),
                    ("sec-fetch-mode", "navigate"),
                    ("sec-fetch-dest", "document"),
                ],
                Ok("/"),
            ),
        ];
        for (uri, headers, expected) in cases {
            let mut request = Request::builder().uri(*uri);
            for (name, value) in *headers {
                request = request.header(*name, *value);
            }
            let (parts, ()) = request.body(()).unwrap().into_parts();
            assert_eq!(door().admit(&parts), *expected, "{uri} {headers:?}");
        }
    }

    #[test]
    fn tokens_are_long_and_differ() {
        let address = ([127, 0, 0, 1], 1).into();
        let (one, other) = (Door::new(address).unwrap(), Door::new(address).unwrap());
        assert_ne!(one.token, other.token);
        assert_eq!(one.token.len(), TOKEN_BYTES * 4 / 3);
        assert_eq!(one.url(), format!("http://127.0.0.1:1/{}/", one.token));
        let six = Door::new("[::1]:8".parse().unwrap()).unwrap();
        assert_eq!(six.host, "[::1]:8");
    }
}
