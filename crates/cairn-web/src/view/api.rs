//! Answers requests, which `docs/book/reference/http.md` describes.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use hyper::header::{HeaderName, HeaderValue};
use hyper::{Method, StatusCode};
use serde::Serialize;
use tokio::sync::Semaphore;

use super::catalogue::{Catalogue, Listed};
use super::comparison::{Side, compare};
use super::control::{MOST_MARK_BYTES, Wish, send};
use super::desk::{Answer, Asked, Desk, Naming, NoAnswer};
use super::http::{Answered, message, response, with_policy};
use super::source_text::{self, NoSource, SourceRoot};
use super::words::{InvalidRequest, Query, decoded_parts};
use super::{PageLimit, ViewOptions};
use crate::{PageOptions, html};

/// Recordings that are open at a time; the one that was asked last stays longest.
const MOST_DESKS: usize = 4;
const VERSION: HeaderName = HeaderName::from_static("cairn-version");

/// A request that was let in.
pub(crate) struct Call<'a> {
    pub(crate) method: &'a Method,
    pub(crate) path: &'a str,
    pub(crate) query: &'a str,
    pub(crate) body: Bytes,
}

/// Why a request has no answer.
struct Refused {
    status: StatusCode,
    why: String,
}

fn refused(status: StatusCode, why: &str) -> Refused {
    Refused { status, why: why.to_owned() }
}

impl From<InvalidRequest> for Refused {
    fn from(InvalidRequest(why): InvalidRequest) -> Self {
        Self { status: StatusCode::BAD_REQUEST, why }
    }
}

pub(crate) struct Api {
    catalogue: Catalogue,
    naming: Naming,
    sources: Vec<SourceRoot>,
    compares: bool,
    /// By name, the one that was asked last at the end.
    desks: Mutex<Vec<(String, Desk)>>,
    /// Comparing holds two recordings in memory: one at a time.
    comparing: Semaphore,
}

#[derive(Serialize)]
struct List {
    api: u32,
    cairn: &'static str,
    recordings: Vec<Listed>,
    compares: bool,
    has_sources: bool,
}

impl Api {
    pub(crate) fn new(options: ViewOptions) -> Self {
        Self {
            catalogue: Catalogue::new(options.shown),
            naming: Naming {
                source: options.source,
                folding: options.folding.clone(),
                most_calls: match options.state.limit {
                    PageLimit::Everything => usize::MAX,
                    _ => PageOptions::default().most_calls,
                },
                without_index: Arc::default(),
            },
            sources: options.sources,
            compares: options.compares,
            desks: Mutex::new(Vec::new()),
            comparing: Semaphore::new(1),
        }
    }

    /// The programs that would have been named faster with an index.
    pub(crate) fn without_index(&self) -> Vec<PathBuf> {
        self.naming
            .without_index
            .lock()
            .map_or_else(|_| Vec::new(), |programs| programs.iter().cloned().collect())
    }

    pub(crate) async fn answer(&self, call: Call<'_>) -> Answered {
        self.answered(&call).await.unwrap_or_else(|Refused { status, why }| match status {
            // Nothing is new: there is nothing to say.
            StatusCode::NO_CONTENT => response(status, BINARY, Bytes::new()),
            status => message(status, &why),
        })
    }

    async fn answered(&self, call: &Call<'_>) -> Result<Answered, Refused> {
        let parts = decoded_parts(call.path)?;
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        let query = Query::parse(call.query)?;
        match (call.method, parts.as_slice()) {
            (&Method::GET, [""]) => Ok(page()),
            (&Method::GET, ["api", "1", "recordings"]) => Ok(json(&self.list())),
            (&Method::GET, ["api", "1", "recordings", id]) => Ok(json(&self.listed(id)?)),
            (&Method::GET, ["api", "1", "recordings", id, "content"]) => {
                Ok(with_version(&self.content(id, &query, "known").await?, |answer| answer.first.clone()))
            }
            (&Method::GET, ["api", "1", "recordings", id, "slices"]) => self.slices(id, &query).await,
            (&Method::POST, ["api", "1", "recordings", id, wish @ ("start" | "stop" | "mark")]) => {
                self.send(id, wish, &call.body)
            }
            (&Method::GET, ["api", "1", "comparison"]) => self.compare(&query).await,
            (&Method::GET, ["api", "1", "source"]) => self.source(&query),
            (_, ["api", version, ..]) if *version != "1" => {
                Err(refused(StatusCode::NOT_FOUND, "there is version 1 of these requests only"))
            }
            (&Method::GET | &Method::POST, _) => Err(refused(StatusCode::NOT_FOUND, "there is nothing here")),
            _ => {
                Err(refused(StatusCode::METHOD_NOT_ALLOWED, "GET asks, POST changes; there is nothing else"))
            }
        }
    }

    fn list(&self) -> List {
        List {
            api: 1,
            cairn: env!("CARGO_PKG_VERSION"),
            recordings: self.catalogue.list(),
            compares: self.compares,
            has_sources: !self.sources.is_empty(),
        }
    }

    fn listed(&self, id: &str) -> Result<Listed, Refused> {
        self.catalogue.find(id).ok_or_else(|| refused(StatusCode::NOT_FOUND, "there is no such recording"))
    }

    async fn content(&self, id: &str, query: &Query, known: &str) -> Result<Answer, Refused> {
        let listed = self.listed(id)?;
        let asked = Asked { part: query.part("")?, known: query.number(known)? };
        let answer = self.ask(listed, asked)?;
        match answer.await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(why)) => Err(without_answer(&why)),
            Err(_) => {
                Err(refused(StatusCode::INTERNAL_SERVER_ERROR, "the recording could not be read to its end"))
            }
        }
    }

    fn ask(
        &self,
        listed: Listed,
        asked: Asked,
    ) -> Result<tokio::sync::oneshot::Receiver<Result<Answer, NoAnswer>>, Refused> {
        let failed =
            |error: &dyn std::fmt::Display| refused(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string());
        let mut desks = self.desks.lock().map_err(|error| failed(&error))?;
        let known = desks.iter().position(|(id, _)| *id == listed.id).map(|at| desks.remove(at).1);
        let first = Asked { part: asked.part.clone(), known: asked.known };
        let asking = known.map(|desk| (desk.ask(first), desk));
        let (answer, desk) = match asking {
            // It was closed after a long time without a request.
            None | Some((Err(None), _)) => {
                let desk = Desk::open(listed.file, self.naming.clone()).map_err(|error| failed(&error))?;
                (desk.ask(asked), desk)
            }
            Some(asking) => asking,
        };
        if desks.len() >= MOST_DESKS {
            desks.remove(0);
        }
        desks.push((listed.id, desk));
        answer.map_err(|why| without_answer(&why.unwrap_or(NoAnswer::Busy)))
    }

    async fn slices(&self, id: &str, query: &Query) -> Result<Answered, Refused> {
        let wanted = query.number("version")?;
        let answer = self.content(id, query, "").await?;
        if wanted.is_some_and(|wanted| wanted != answer.version) {
            return Err(refused(StatusCode::CONFLICT, "the recording has grown; ask for its content again"));
        }
        Ok(with_version(&answer, |answer| answer.slices.clone()))
    }

    fn send(&self, id: &str, wish: &str, body: &Bytes) -> Result<Answered, Refused> {
        let listed = self.listed(id)?;
        let wish = match wish {
            "start" => Wish::Start,
            "stop" => Wish::Stop,
            _ if body.is_empty() || body.len() > MOST_MARK_BYTES => {
                return Err(refused(StatusCode::BAD_REQUEST, "a mark has a text of 1 to 1000 bytes"));
            }
            _ => Wish::Mark(body.to_vec()),
        };
        if !listed.is_growing {
            return Err(refused(StatusCode::CONFLICT, "no program records to this file"));
        }
        send(&listed.file, &wish).map_err(|error| refused(StatusCode::CONFLICT, &error.to_string()))?;
        Ok(json(&self.listed(id)?))
    }

    async fn compare(&self, query: &Query) -> Result<Answered, Refused> {
        let side = |name: &str| -> Result<Side, Refused> {
            let id = query.text(name)?.ok_or_else(|| {
                refused(StatusCode::BAD_REQUEST, "name two recordings: before=... and after=...")
            })?;
            Ok(Side { file: self.listed(id)?.file, part: query.part(&format!("{name}_"))? })
        };
        let (before, after) = (side("before")?, side("after")?);
        let busy = || refused(StatusCode::SERVICE_UNAVAILABLE, "another comparison is under way");
        let _place = self.comparing.acquire().await.map_err(|_| busy())?;
        let naming = self.naming.clone();
        let (reply, compared) = tokio::sync::oneshot::channel();
        let begun = std::thread::Builder::new()
            .name("cairn-compare".into())
            .spawn(move || drop(reply.send(compare(&before, &after, &naming))));
        begun.map_err(|error| refused(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()))?;
        match compared.await {
            Ok(Ok(bytes)) => Ok(response(StatusCode::OK, BINARY, bytes.into())),
            Ok(Err(why)) => Err(without_answer(&why)),
            Err(_) => Err(refused(StatusCode::INTERNAL_SERVER_ERROR, "the recordings could not be compared")),
        }
    }

    fn source(&self, query: &Query) -> Result<Answered, Refused> {
        let name = query.text("file")?.unwrap_or("");
        match source_text::read(&self.sources, name) {
            Ok(text) => Ok(json(&text)),
            Err(NoSource::NoRoots) => Err(refused(
                StatusCode::FORBIDDEN,
                "no source files are shown; start cairn view with --source DIR",
            )),
            Err(NoSource::NotFound) => Err(refused(
                StatusCode::NOT_FOUND,
                "there is no such file below a directory that was given with --source",
            )),
            Err(NoSource::NoText) => Err(refused(StatusCode::UNSUPPORTED_MEDIA_TYPE, "the file is no text")),
        }
    }
}

const BINARY: &str = "application/octet-stream";

fn page() -> Answered {
    let page = response(StatusCode::OK, "text/html; charset=utf-8", html::served().into());
    with_policy(page, &html::served_policy())
}

fn json(value: &impl Serialize) -> Answered {
    match serde_json::to_vec(value) {
        Ok(bytes) => response(StatusCode::OK, "application/json", bytes.into()),
        Err(error) => message(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    }
}

fn with_version(answer: &Answer, bytes: impl Fn(&Answer) -> Bytes) -> Answered {
    let mut made = response(StatusCode::OK, BINARY, bytes(answer));
    made.headers_mut().insert(VERSION, HeaderValue::from(answer.version));
    made
}

fn without_answer(why: &NoAnswer) -> Refused {
    match why {
        NoAnswer::Unchanged => refused(StatusCode::NO_CONTENT, ""),
        NoAnswer::NotThere(what) => refused(StatusCode::NOT_FOUND, what),
        NoAnswer::Unreadable(what) => refused(StatusCode::UNPROCESSABLE_ENTITY, what),
        NoAnswer::Busy => {
            refused(StatusCode::SERVICE_UNAVAILABLE, "too much is asked of this recording at once")
        }
    }
}
