//! Questions on several machines: a scheduler, executors, and clients that give them plans.
//!
//! Ballista does the work; this module chooses its settings and guards its ports. Executors fetch
//! their tasks, so that each has one port, from which others read intermediate results, and the
//! scheduler connects to nobody.
//!
//! A client of a scheduler reads every file that its executors can read, as a plan names its
//! files. So each port is on the loopback interface unless the members of the cluster share a
//! [key](key::ClusterKey): then every connection is TLS, and both ends prove that they have it.
//!
//! | module | task |
//! |---|---|
//! | `key` | the key of a cluster |
//! | `scheduler`, `executor` | the two kinds of members |
//! | `client` | contexts whose plans run on a cluster |
//! | `messages` | what the members report |

pub(crate) mod client;
pub(crate) mod executor;
pub(crate) mod key;
mod messages;
pub(crate) mod scheduler;

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use ballista_core::extension::EndpointOverrideFn;
use clap::Args;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Endpoint, Server};

use crate::error::FleetError;
use key::ClusterKey;

/// Seconds without a sign of life after which an executor counts as lost, and its questions end.
/// Ballista's own 180 s would be waited for by a person.
const LOST_AFTER_SECONDS: u64 = 10;
/// Seconds between two searches for lost executors.
const SEARCH_SECONDS: u64 = 2;
/// Seconds between two signs of life of an executor that has work.
const HEARTBEAT_SECONDS: u64 = 2;

/// The most bytes of one message. Plans name all files of a store: 100,000 files need 15 MiB.
const MOST_MESSAGE_BYTES: u32 = 64 << 20;

/// Seconds until a connection must be there.
const CONNECT_SECONDS: u64 = 10;
/// Seconds until a member must begin its answer to a request.
const ANSWER_SECONDS: u64 = 60;

/// The address of a scheduler, as `df://host:50050`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct SchedulerAddress {
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl FromStr for SchedulerAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text}: a scheduler's address is df://HOST:PORT");
        let url = url::Url::parse(text).map_err(|_| wrong())?;
        match (url.scheme(), url.host_str(), url.port(), url.path()) {
            ("df", Some(host), Some(port), "" | "/") => Ok(Self { host: host.to_owned(), port }),
            _ => Err(wrong()),
        }
    }
}

impl std::fmt::Display for SchedulerAddress {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "df://{}:{}", self.host, self.port)
    }
}

impl SchedulerAddress {
    fn http(&self) -> String {
        format!("http://{}:{}", self.host, self.port)
    }
}

/// How the members of a cluster prove who they are.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Guard {
    /// The key that all members and clients of the cluster share, as `cairn fleet key` makes it.
    /// All connections are encrypted, and clients without the key are refused
    #[arg(long, value_name = "FILE")]
    cluster_key: Option<PathBuf>,
}

impl Guard {
    fn key(&self) -> Result<Option<ClusterKey>, FleetError> {
        self.cluster_key.as_deref().map(ClusterKey::read).transpose()
    }
}

/// Where a member listens.
#[derive(Args, Clone, Debug)]
pub(crate) struct Listening {
    #[command(flatten)]
    guard: Guard,

    /// Listen beyond this machine without a key. Everyone who reaches the port can read every file
    /// that the executors can read, in clear text, and fill their disks
    #[arg(long, conflicts_with = "cluster_key")]
    unprotected: bool,
}

impl Listening {
    /// Binds a port, unless everybody would reach it.
    fn bind(&self, address: SocketAddr) -> Result<(TcpListener, Option<ClusterKey>), FleetError> {
        let key = self.guard.key()?;
        if !address.ip().is_loopback() && key.is_none() && !self.unprotected {
            return Err(FleetError::usage(format!(
                "{address}: other machines reach this address, and its clients read the files of the \
                 executors; give --cluster-key FILE, which `cairn fleet key FILE` makes"
            )));
        }
        let failed = |error: std::io::Error| FleetError::new(format!("{address}: {error}"));
        let listener = TcpListener::bind(address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        Ok((listener, key))
    }
}

/// A server with the settings of all members. Call it within the runtime.
fn server(
    listener: TcpListener,
    key: Option<&ClusterKey>,
) -> Result<(Server, TcpIncoming), Box<dyn std::error::Error + Send + Sync>> {
    let mut server = Server::builder().http2_keepalive_interval(Some(Duration::from_secs(30)));
    if let Some(key) = key {
        server = server.tls_config(key.of_server())?;
    }
    let incoming = TcpIncoming::from(tokio::net::TcpListener::from_std(listener)?).with_nodelay(Some(true));
    Ok((server, incoming))
}

/// Makes connections to members: with the key if there is one, and with limits of time.
fn connecting(key: Option<&ClusterKey>) -> EndpointOverrideFn {
    let key = key.cloned();
    Arc::new(move |endpoint: Endpoint| {
        let plain = endpoint.uri().to_string();
        let address = match &key {
            Some(_) => plain.replacen("http://", "https://", 1),
            None => plain,
        };
        let endpoint = Endpoint::from_shared(address)?
            .connect_timeout(Duration::from_secs(CONNECT_SECONDS))
            .timeout(Duration::from_secs(ANSWER_SECONDS))
            .tcp_nodelay(true)
            .http2_keep_alive_interval(Duration::from_secs(10))
            .keep_alive_timeout(Duration::from_secs(10))
            .keep_alive_while_idle(true);
        Ok(match &key {
            Some(key) => endpoint.tls_config(key.of_client())?,
            None => endpoint,
        })
    })
}

/// Waits for an interrupt or a request to end.
async fn ended() {
    use tokio::signal::unix::{SignalKind, signal};
    match signal(SignalKind::terminate()) {
        Ok(mut terminated) => tokio::select! {
            _ = terminated.recv() => {}
            _ = tokio::signal::ctrl_c() => {}
        },
        Err(_) => drop(tokio::signal::ctrl_c().await),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scheduler_addresses_have_host_and_port() {
        let address: SchedulerAddress = "df://10.1.2.3:50050".parse().unwrap();
        assert_eq!((address.host.as_str(), address.port), ("10.1.2.3", 50050));
        assert_eq!("df://[::1]:1".parse::<SchedulerAddress>().unwrap().to_string(), "df://[::1]:1");
        for wrong in ["10.1.2.3:50050", "df://host", "http://host:1", "df://host:1/path", "df://:1", ""] {
            assert!(wrong.parse::<SchedulerAddress>().is_err(), "{wrong}");
        }
    }
}
