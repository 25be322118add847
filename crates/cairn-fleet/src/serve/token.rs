//! The token that requests must have.

use std::path::Path;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, WWW_AUTHENTICATE};
use axum::http::{Method, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use cairn_store::Id;

use crate::error::FleetError;

/// Characters of a token at least; 16, because shorter ones can be guessed over a network.
const LEAST_CHARACTERS: usize = 16;

/// The hash of the token that requests must have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Token(Id);

impl Token {
    fn of(text: &[u8]) -> Self {
        Self(Id::of_content([text]))
    }

    /// Makes a token; returns it as text too.
    pub(crate) fn made() -> Result<(Self, String), FleetError> {
        let mut bytes = [0; 32];
        let random = tokio_rustls::rustls::crypto::ring::default_provider().secure_random;
        random.fill(&mut bytes).map_err(|_| FleetError::new("no random numbers for a token"))?;
        let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok((Self::of(text.as_bytes()), text))
    }

    /// Reads a token from a file, without the white space around it.
    pub(crate) fn read(path: &Path) -> Result<Self, FleetError> {
        let text = std::fs::read_to_string(path).map_err(|error| FleetError::file(path, error))?;
        let text = text.trim();
        let is_sendable = text.bytes().all(|byte| byte.is_ascii_graphic());
        if text.len() < LEAST_CHARACTERS || !is_sendable {
            return Err(FleetError::file(
                path,
                format_args!("a token has at least {LEAST_CHARACTERS} characters and no white space"),
            ));
        }
        Ok(Self::of(text.as_bytes()))
    }

    /// Compares in a time that says nothing about the token.
    fn is(self, given: &[u8]) -> bool {
        let given = Self::of(given);
        let differences = self.0.bytes().iter().zip(given.0.bytes()).fold(0, |sum, (a, b)| sum | (a ^ b));
        std::hint::black_box(differences) == 0
    }

    fn is_in(self, request: &Request) -> bool {
        let header = request.headers().get(AUTHORIZATION).map(|header| header.as_bytes());
        let given = header.and_then(|header| {
            let (scheme, token) = header.split_at_checked(7)?;
            scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
        });
        given.is_some_and(|given| self.is(given))
    }
}

/// Refuses requests without the token, on every route that there is, and on those that there are
/// not.
pub(crate) fn behind(token: Token, routes: Router) -> Router {
    let absent = async || (StatusCode::NOT_FOUND, "no such route\n");
    routes.fallback(absent).layer(from_fn_with_state(token, check))
}

async fn check(State(token): State<Token>, request: Request, next: Next) -> Response {
    let is_health = request.method() == Method::GET && request.uri().path() == "/health";
    if is_health || token.is_in(&request) {
        return next.run(request).await;
    }
    let text = "this request has no token, or another one; send the header `Authorization: Bearer TOKEN`\n";
    (StatusCode::UNAUTHORIZED, [(WWW_AUTHENTICATE, "Bearer")], text).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_is_the_whole_text_behind_bearer() {
        let (token, text) = Token::made().unwrap();
        let is_in = |header: &str| {
            let request = Request::builder().header("authorization", header);
            token.is_in(&request.body(axum::body::Body::empty()).unwrap())
        };
        assert!(is_in(&format!("Bearer {text}")));
        assert!(is_in(&format!("bearer  {text} ")));
        for wrong in
            [&text[..], "Bearer", "Bearer ", &format!("Bearer {}", &text[1..]), &format!("Basic {text}")]
        {
            assert!(!is_in(wrong), "{wrong}");
        }
    }
}
