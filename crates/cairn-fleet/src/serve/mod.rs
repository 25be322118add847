//! `cairn fleet serve`: takes profiles over HTTP and stores them.
//!
//! One listener and one router. Every route wants the token, save `GET /health`. A request that
//! brings samples is answered after the commit that has them, so that an answer is a promise.
//!
//! ```text
//!   connection -> token -> route: body -> blocks --> queue --> committer: one commit for all
//!                                            ^                     |
//!                                            +------ answer <------+
//! ```
//!
//! | module | task |
//! |---|---|
//! | `listen` | connections, TLS, their number |
//! | `token` | who may ask |
//! | `body` | bodies within limits |
//! | `block` | cairn's blocks: `/v1/block` |
//! | `otlp` | OpenTelemetry's profiles: `/v1development/profiles` |
//! | `pyroscope`, `multipart` | Pyroscope's clients: `/ingest` |
//! | `foreign` | heaps of other tools as blocks |
//! | `labels`, `clock` | what senders say of themselves and of the time |
//! | `queue` | one commit for many blocks |
//! | `naming` | names behind commits |
//! | `refusal` | requests that are not taken |

mod block;
mod body;
mod clock;
mod foreign;
mod labels;
mod listen;
mod multipart;
mod naming;
mod otlp;
mod pyroscope;
mod queue;
mod refusal;
mod token;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::{get, post};
use cairn_analysis::source::{parse_size, parse_time};
use cairn_store::Store;
use clap::Args;
use tokio::sync::{Notify, watch};

use self::listen::Connections;
use self::queue::{Pace, Queue};
use self::token::Token;
use crate::commands::complain;
use crate::error::FleetError;
use crate::flight;

/// Take profiles over HTTP and store them
///
/// Every request needs the header `Authorization: Bearer TOKEN`, save GET /health.
#[derive(Args)]
pub(crate) struct Serve {
    /// The directory of the store
    store: String,

    /// Address and port. An address that other machines reach needs TLS, or --plain
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:4041")]
    listen: SocketAddr,

    /// A file with the token that requests must have. Without it, a token is made and shown once
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,

    /// The certificates of this server, as PEM, its own first
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_certificate: Option<PathBuf>,

    /// The private key of the certificate, as PEM
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    tls_key: Option<PathBuf>,

    /// Listen without TLS on an address that other machines reach: something in front does TLS
    #[arg(long, conflicts_with = "tls_key")]
    plain: bool,

    /// The longest time between the arrival of samples and their commit
    #[arg(long, value_name = "TIME", value_parser = parse_interval, default_value = "60s")]
    commit_every: Duration,

    /// Samples that are committed before that time: the memory that they take
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "64M")]
    commit_bytes: u64,

    /// Memory for requests that wait for their commit; more are refused with status 429
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "512M")]
    queue_bytes: u64,

    /// A directory with programs and debug files, which name the code of new samples
    #[arg(long, value_name = "DIRECTORY")]
    symbols: Vec<PathBuf>,

    #[command(flatten)]
    limits: flight::Limits,
}

/// Reads a time between commits.
fn parse_interval(text: &str) -> Result<Duration, String> {
    /// A sender waits for its answer, and its connection is silent until then.
    const MOST: Duration = Duration::from_secs(300);
    let interval = Duration::from_nanos(parse_time(text)?);
    if interval > MOST { Err(format!("{text}: at most {} s", MOST.as_secs())) } else { Ok(interval) }
}

/// Time for requests that run when the server is asked to end.
const GRACE: Duration = Duration::from_secs(30);

impl Serve {
    /// Serves until a signal comes; returns the exit code.
    pub(crate) async fn run(self) -> Result<u8, FleetError> {
        let tls = self.tls()?;
        let token = self.token()?;
        let store = Store::open(&self.store).await?;
        let flight = flight::routes(&self.store, self.limits)?;
        let connections = Connections::listen(self.listen, tls).await?;
        let ending = ending()?;
        let pace = Pace { every: self.commit_every, bytes: self.commit_bytes };
        let committed = Arc::new(Notify::new());
        let place = self.store.clone();
        let naming = (!self.symbols.is_empty()).then(|| {
            let (place, committed) = (self.store.clone(), Arc::clone(&committed));
            tokio::spawn(naming::run(place, self.symbols.clone(), committed, ending.clone()))
        });
        let (queue, committer) =
            Queue::start(store, place, pace, self.queue_bytes, ending.clone(), committed);
        let scheme = if self.tls_key.is_some() { "https" } else { "http" };
        complain(&format_args!("listening on {scheme}://{}", connections.address()));
        serve(connections, router(token, queue, flight), ending).await?;
        // The routes are gone, and with them the last way to the queue.
        committer.await.map_err(|error| FleetError::new(format!("the last commit: {error}")))?;
        if let Some(naming) = naming {
            let _ = tokio::time::timeout(GRACE, naming).await;
        }
        Ok(0)
    }

    fn tls(&self) -> Result<Option<listen::Tls>, FleetError> {
        match (&self.tls_certificate, &self.tls_key) {
            (Some(certificate), Some(key)) => listen::tls(certificate, key).map(Some),
            _ if self.plain || self.listen.ip().is_loopback() => Ok(None),
            _ => Err(FleetError::usage(format!(
                "--listen {}: other machines reach this address, and the token would cross the network in \
                 clear; give --tls-certificate and --tls-key, or --plain if something in front does TLS",
                self.listen
            ))),
        }
    }

    fn token(&self) -> Result<Token, FleetError> {
        match &self.token_file {
            Some(path) => Token::read(path),
            None => {
                let (token, text) = Token::made()?;
                complain(&format_args!("the token, which is shown this once: {text}"));
                Ok(token)
            }
        }
    }
}

/// Returns all routes, behind the token.
pub(crate) fn router(token: Token, queue: Queue, flight: Router) -> Router {
    let routes = Router::new()
        .route("/health", get(async || "cairn fleet\n"))
        .route("/v1/block", post(block::take))
        .route("/v1development/profiles", post(otlp::take))
        .route("/ingest", post(pyroscope::take))
        .with_state(queue)
        .merge(flight);
    token::behind(token, routes)
}

/// Serves until a signal comes, and finishes the requests that run then.
async fn serve(
    connections: Connections,
    routes: Router,
    mut ending: watch::Receiver<bool>,
) -> Result<(), FleetError> {
    let server = axum::serve(connections, routes).with_graceful_shutdown({
        let mut ending = ending.clone();
        async move {
            let _ = ending.wait_for(|&is_ending| is_ending).await;
        }
    });
    let overdue = async {
        let _ = ending.wait_for(|&is_ending| is_ending).await;
        tokio::time::sleep(GRACE).await;
    };
    tokio::select! {
        result = server.into_future() => result.map_err(|error| FleetError::new(format!("the server: {error}")))?,
        () = overdue => complain(&"some requests did not end in time, and are not answered"),
    }
    Ok(())
}

/// Returns a value that becomes true when the process is asked to end.
fn ending() -> Result<watch::Receiver<bool>, FleetError> {
    use tokio::signal::unix::{SignalKind, signal};
    let failed = |error: std::io::Error| FleetError::new(format!("signals: {error}"));
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let (sender, receiver) = watch::channel(false);
    tokio::spawn(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        sender.send_replace(true);
        // Receivers must not see a sender that is gone.
        sender.closed().await;
    });
    Ok(receiver)
}
