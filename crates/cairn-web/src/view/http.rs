//! Connections and their limits: how many, how long, how large.

use std::convert::Infallible;
use std::io;
use std::net::TcpListener;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError};

use super::api::{Api, Call};
use super::door::{Door, Refusal};
use super::seats::{Seat, Seats};
use crate::html;

/// A browser opens six. Clients without the token do not keep it out, however many
/// they are: see `seats`.
const MOST_CONNECTIONS: usize = 128;
/// The header of a request, with a path of calls in it. The buffer may be four times as large
/// before the length is known.
const MOST_HEADER_BYTES: usize = 32 << 10;
const MOST_HEADERS: usize = 64;
/// The text of a mark is the largest that anybody sends.
const MOST_BODY_BYTES: usize = 4096;
/// From the beginning of a connection, or the end of the request before, to the end of a header. A
/// browser whose connection is closed meanwhile opens another one.
pub(super) const HEADER_TIME: Duration = Duration::from_secs(5);
const BODY_TIME: Duration = Duration::from_secs(10);
/// Reading a recording of many gigabytes, and naming all its functions.
const ANSWER_TIME: Duration = Duration::from_secs(600);
/// A browser that takes nothing any more is left; it is the whole connection's, so it is long.
const CONNECTION_TIME: Duration = Duration::from_secs(3600);
/// Longest wait for answers under way at the end.
const LAST_ANSWERS: Duration = Duration::from_millis(500);

/// The body of an answer.
pub(super) type Answered = Response<Full<Bytes>>;

/// Answers until the user ends it; returns the programs that an index would have named faster.
pub(super) fn run(
    listener: TcpListener,
    door: Door,
    api: Api,
    header_time: Duration,
) -> io::Result<Vec<PathBuf>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let served = Arc::new((door, api));
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let connections = Arc::new(Semaphore::new(MOST_CONNECTIONS));
        let accepting =
            tokio::spawn(accept(listener, Arc::clone(&served), Arc::clone(&connections), header_time));
        end_wanted().await?;
        accepting.abort();
        let all = connections.acquire_many(MOST_CONNECTIONS as u32);
        let _ = tokio::time::timeout(LAST_ANSWERS, all).await;
        Ok(served.1.without_index())
    })
}

/// Ctrl-C, or the signal that service managers send.
#[cfg(unix)]
async fn end_wanted() -> io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    std::future::poll_fn(|context| {
        let is_over = interrupt.poll_recv(context).is_ready() || terminate.poll_recv(context).is_ready();
        if is_over { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    Ok(())
}

/// Ctrl-C, Ctrl-Break, or the end of the console or of the session.
#[cfg(windows)]
async fn end_wanted() -> io::Result<()> {
    use tokio::signal::windows::{ctrl_break, ctrl_c, ctrl_close, ctrl_logoff, ctrl_shutdown};
    let (mut interrupt, mut end) = (ctrl_c()?, ctrl_break()?);
    let (mut close, mut logoff, mut shutdown) = (ctrl_close()?, ctrl_logoff()?, ctrl_shutdown()?);
    std::future::poll_fn(|context| {
        let is_over = interrupt.poll_recv(context).is_ready()
            || end.poll_recv(context).is_ready()
            || close.poll_recv(context).is_ready()
            || logoff.poll_recv(context).is_ready()
            || shutdown.poll_recv(context).is_ready();
        if is_over { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    Ok(())
}

async fn accept(
    listener: tokio::net::TcpListener,
    served: Arc<(Door, Api)>,
    connections: Arc<Semaphore>,
    header_time: Duration,
) {
    let seats = Arc::new(Seats::default());
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Too many open files, most likely.
            seats.close_one();
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        let Some(permit) = place(&seats, &connections).await else { return };
        let seat = Arc::new(seats.take(permit));
        let number = seat.number();
        let served = Arc::clone(&served);
        let task = tokio::spawn(async move {
            let service = service_fn(|request| {
                let (served, seat) = (Arc::clone(&served), Arc::clone(&seat));
                async move {
                    let answered = answer(&served.0, &served.1, &seat, request).await;
                    seat.answered();
                    Ok::<_, Infallible>(answered)
                }
            });
            let mut server = http1::Builder::new();
            server
                .timer(TokioTimer::new())
                .header_read_timeout(header_time)
                .max_buf_size(4 * MOST_HEADER_BYTES)
                .max_headers(MOST_HEADERS);
            let connection = pin!(server.serve_connection(TokioIo::new(stream), service));
            // A failed connection has no one to report to.
            let _ = tokio::time::timeout(CONNECTION_TIME, connection).await;
        });
        seats.is_served_by(number, task.abort_handle());
    }
}

/// Room for one more connection; another one may be closed for it. None at the end.
async fn place(seats: &Seats, connections: &Arc<Semaphore>) -> Option<OwnedSemaphorePermit> {
    /// When all are being answered, one of them may be waiting by then.
    const AGAIN: Duration = Duration::from_millis(50);
    loop {
        match Arc::clone(connections).try_acquire_owned() {
            Ok(permit) => return Some(permit),
            Err(TryAcquireError::Closed) => return None,
            Err(TryAcquireError::NoPermits) => {}
        }
        seats.close_one();
        // A closed connection frees its seat when its task is dropped.
        if let Ok(permit) = tokio::time::timeout(AGAIN, Arc::clone(connections).acquire_owned()).await {
            return permit.ok();
        }
    }
}

async fn answer(door: &Door, api: &Api, seat: &Seat, request: Request<Incoming>) -> Answered {
    let (head, body) = request.into_parts();
    let fields = head.headers.iter().map(|(name, value)| name.as_str().len() + value.len());
    let uri = head.uri.path_and_query().map_or(0, |uri| uri.as_str().len());
    if uri + fields.sum::<usize>() > MOST_HEADER_BYTES {
        return finished(message(
            StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            "the header of the request is too large",
        ));
    }
    let path = match door.admit(&head) {
        Ok(path) => path,
        Err(why) => return finished(refused(why)),
    };
    seat.answers();
    let body = match tokio::time::timeout(BODY_TIME, Limited::new(body, MOST_BODY_BYTES).collect()).await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(_)) => return finished(message(StatusCode::PAYLOAD_TOO_LARGE, "the request is too large")),
        Err(_) => {
            return finished(message(StatusCode::REQUEST_TIMEOUT, "the request did not come to its end"));
        }
    };
    let call = Call { method: &head.method, path, query: head.uri.query().unwrap_or(""), body };
    let answered = tokio::time::timeout(ANSWER_TIME, api.answer(call)).await;
    finished(answered.unwrap_or_else(|_| message(StatusCode::GATEWAY_TIMEOUT, "it took too long")))
}

fn refused(why: Refusal) -> Answered {
    match why {
        Refusal::OtherHost => message(StatusCode::FORBIDDEN, "this is not the host that is asked for"),
        Refusal::OtherOrigin => message(StatusCode::FORBIDDEN, "requests of other pages are not answered"),
        Refusal::WrongToken => {
            message(StatusCode::FORBIDDEN, "this is not the token; open the address that cairn view printed")
        }
        // The only page that is had without a token; it knows nothing.
        Refusal::NoToken => with_policy(
            response(StatusCode::UNAUTHORIZED, "text/html; charset=utf-8", html::door().into()),
            &html::door_policy(),
        ),
    }
}

/// A text for people, as JSON.
pub(super) fn message(status: StatusCode, what: &str) -> Answered {
    let text = serde_json::json!({ "error": what }).to_string();
    response(status, "application/json", text.into())
}

pub(super) fn response(status: StatusCode, kind: &'static str, body: Bytes) -> Answered {
    let mut made = Response::new(Full::new(body));
    *made.status_mut() = status;
    made.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    made
}

const POLICY: HeaderName = HeaderName::from_static("content-security-policy");

pub(super) fn with_policy(mut made: Answered, policy: &str) -> Answered {
    if let Ok(policy) = HeaderValue::from_str(policy) {
        made.headers_mut().insert(POLICY, policy);
    }
    made
}

/// Headers of every answer.
fn finished(mut made: Answered) -> Answered {
    let headers = made.headers_mut();
    headers.entry(POLICY).or_insert(HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'"));
    for (name, value) in [
        ("cache-control", "no-store"),
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "no-referrer"),
        ("x-frame-options", "DENY"),
        ("cross-origin-resource-policy", "same-origin"),
        ("cross-origin-opener-policy", "same-origin"),
    ] {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    made
}
