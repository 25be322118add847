//! Connections: their number, their end when nothing comes, and TLS.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{Instant, Sleep, sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::error::FleetError;

/// Connections at once; 4096, each a few hundred kilobytes at most. Others wait.
const MOST_CONNECTIONS: usize = 4096;

/// Time for the handshake of TLS.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Time after which a connection ends on which nothing has come. An answer may take a whole
/// interval between commits, and a sender is silent until then.
const SILENCE: Duration = Duration::from_secs(600);

/// The certificate and the key of a server.
pub(crate) type Tls = TlsAcceptor;

/// Reads a certificate and its key.
pub(crate) fn tls(certificate: &Path, key: &Path) -> Result<Tls, FleetError> {
    let certificates: Vec<_> = CertificateDer::pem_file_iter(certificate)
        .and_then(Iterator::collect)
        .map_err(|error| FleetError::file(certificate, format_args!("no certificate in PEM: {error}")))?;
    let private = PrivateKeyDer::from_pem_file(key)
        .map_err(|error| FleetError::file(key, format_args!("no private key in PEM: {error}")))?;
    let unusable =
        |error| FleetError::file(certificate, format_args!("not usable with {}: {error}", key.display()));
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(unusable)?
        .with_no_client_auth()
        .with_single_cert(certificates, private)
        .map_err(unusable)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Connections as they come.
pub(crate) struct Connections {
    accepted: mpsc::Receiver<(Connection, SocketAddr)>,
    address: SocketAddr,
}

impl Connections {
    /// Listens on an address.
    pub(crate) async fn listen(address: SocketAddr, tls: Option<Tls>) -> Result<Self, FleetError> {
        let failed = |error: io::Error| FleetError::new(format!("{address}: {error}"));
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let (sender, accepted) = mpsc::channel(16);
        tokio::spawn(async move {
            tokio::select! {
                () = accept_all(listener, tls, &sender) => {}
                () = sender.closed() => {}
            }
        });
        Ok(Self { accepted, address })
    }

    /// The address with the port that the system chose.
    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }
}

/// Accepts connections, and passes them on after their handshake. A slow one delays no other.
async fn accept_all(
    listener: TcpListener,
    tls: Option<Tls>,
    accepted: &mpsc::Sender<(Connection, SocketAddr)>,
) {
    let free = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    loop {
        let Ok(permit) = Arc::clone(&free).acquire_owned().await else { return };
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(_) => {
                // Descriptors are out, most likely: they come back when connections end.
                sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let _ = stream.set_nodelay(true);
        let (tls, accepted) = (tls.clone(), accepted.clone());
        tokio::spawn(async move {
            let stream: Box<dyn Duplex> = match tls {
                None => Box::new(stream),
                Some(tls) => match timeout(HANDSHAKE, tls.accept(stream)).await {
                    Ok(Ok(stream)) => Box::new(stream),
                    _ => return,
                },
            };
            let _ = accepted.send((Connection::new(stream, permit), peer)).await;
        });
    }
}

impl axum::serve::Listener for Connections {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        match self.accepted.recv().await {
            Some(accepted) => accepted,
            // The task that accepts ends with this receiver only.
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
    }
}

/// A stream in both directions.
trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl Duplex for TcpStream {}
impl Duplex for tokio_rustls::server::TlsStream<TcpStream> {}

/// A connection, which ends when nothing comes for a long time.
pub(crate) struct Connection {
    stream: Box<dyn Duplex>,
    silence: Pin<Box<Sleep>>,
    _permit: OwnedSemaphorePermit,
}

impl Connection {
    fn new(stream: Box<dyn Duplex>, permit: OwnedSemaphorePermit) -> Self {
        Self { stream, silence: Box::pin(sleep(SILENCE)), _permit: permit }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Poll::Ready(result) = Pin::new(&mut *self.stream).poll_read(context, buffer) {
            self.silence.as_mut().reset(Instant::now() + SILENCE);
            return Poll::Ready(result);
        }
        ready!(self.silence.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.stream).poll_shutdown(context)
    }
}
