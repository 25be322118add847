//! Requests that are not taken, and why.

use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};

/// The reason why a request is not taken. Nothing of it is stored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    pub(crate) text: String,
    /// The number of the block that the sender must go on with.
    pub(crate) expected: Option<i64>,
}

/// Seconds after which a sender tries again that found the queue full, or the store broken.
const RETRY_SECONDS: &str = "5";

impl Refusal {
    fn new(status: StatusCode, text: impl Into<String>) -> Self {
        Self { status, text: text.into(), expected: None }
    }

    /// The request is not what the route takes.
    pub(crate) fn bad(text: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, text)
    }

    /// The request did not arrive in time.
    pub(crate) fn slow(text: impl Into<String>) -> Self {
        Self::new(StatusCode::REQUEST_TIMEOUT, text)
    }

    /// An earlier block of the sender is missing.
    pub(crate) fn gap(number: i64, expected: i64) -> Self {
        let text = format!(
            "block {number} comes before block {expected}; send block {expected} next, or begin with number 1 \
             under another sender"
        );
        Self { expected: Some(expected), ..Self::new(StatusCode::CONFLICT, text) }
    }

    /// The request exceeds a limit.
    pub(crate) fn too_large(what: &str, found: u64, most: u64) -> Self {
        Self::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("{what}: {found}, and at most {most} are taken; send less at once"),
        )
    }

    /// The request is in a form that is not read here.
    pub(crate) fn form(text: impl Into<String>) -> Self {
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, text)
    }

    /// The request is in the right form and says what cannot be.
    pub(crate) fn wrong(text: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, text)
    }

    /// Too many requests wait.
    pub(crate) fn full() -> Self {
        Self::new(
            StatusCode::TOO_MANY_REQUESTS,
            format!("too many requests wait to be stored; send this one again in {RETRY_SECONDS} seconds"),
        )
    }

    /// The store cannot be written.
    pub(crate) fn unavailable(why: impl std::fmt::Display) -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            format!("nothing of this request was stored: {why}; send it again in {RETRY_SECONDS} seconds"),
        )
    }

    /// The answer with another body, for clients that want one of their own kind.
    pub(crate) fn with_body(&self, kind: &'static str, body: Vec<u8>) -> Response {
        let mut answer = (self.status, body).into_response();
        let headers = answer.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
        if matches!(self.status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
            headers.insert(RETRY_AFTER, HeaderValue::from_static(RETRY_SECONDS));
        }
        answer
    }

    /// The answer in JSON.
    pub(crate) fn as_json(&self) -> Response {
        let mut body = serde_json::json!({ "error": self.text });
        if let Some(expected) = self.expected {
            body["expected"] = expected.into();
        }
        self.with_body("application/json", body.to_string().into_bytes())
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let text = format!("{}\n", self.text);
        self.with_body("text/plain; charset=utf-8", text.into_bytes())
    }
}
