//! TLS with a certificate made for the test.

mod program;
mod support;

use std::net::TcpStream;
use std::sync::Arc;

use support::{Server, TOKEN, block, exchange, now_ms, run, store};
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

#[test]
fn blocks_come_over_tls_and_not_without() {
    let directory = store();
    let made = rcgen::generate_simple_self_signed(vec!["fleet.test".to_owned()]).unwrap();
    let file = |name: &str, text: &str| std::fs::write(directory.path().join(name), text).unwrap();
    file("certificate.pem", &made.cert.pem());
    file("key.pem", &made.signing_key.serialize_pem());
    let options = ["--tls-certificate", "certificate.pem", "--tls-key", "key.pem"];
    let server = Server::start(directory.path(), &options);

    let mut roots = RootCertStore::empty();
    roots.add(made.cert.der().clone()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let connect = || {
        let name = ServerName::try_from("fleet.test").unwrap();
        let client = ClientConnection::new(Arc::new(config.clone()), name).unwrap();
        StreamOwned::new(client, TcpStream::connect(server.address).unwrap())
    };
    let bearer = format!("Bearer {TOKEN}");
    let headers = [("authorization", &*bearer), ("content-type", "application/json")];
    let body = block("a", 1, 2, now_ms()).to_string();
    let answer = exchange(connect(), "POST", "/v1/block", &headers, body.as_bytes()).unwrap();
    assert_eq!(answer.status, 200, "{}", answer.text());
    let answer = exchange(connect(), "POST", "/v1/block", &headers[1..], body.as_bytes()).unwrap();
    assert_eq!(answer.status, 401);
    // In clear there is no answer.
    let stream = TcpStream::connect(server.address).unwrap();
    assert!(exchange(stream, "GET", "/health", &[], b"").is_err());
    // The key of another certificate.
    let other = rcgen::generate_simple_self_signed(vec!["other.test".to_owned()]).unwrap();
    file("other.pem", &other.signing_key.serialize_pem());
    for key in ["other.pem", "certificate.pem", "absent.pem"] {
        let output = run(
            directory.path(),
            &["serve", "store", "--tls-certificate", "certificate.pem", "--tls-key", key],
        );
        assert_eq!(output.status.code(), Some(1), "{key}: {output:?}");
    }
}
