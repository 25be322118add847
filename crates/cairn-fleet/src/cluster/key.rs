//! The key of a cluster: a certificate and its private key in one file, which all members share.
//!
//! A member trusts this certificate and no other, and shows it itself, as server and as client. So
//! a process with the file is a member, and any other one is refused before its first request.

use std::fs::OpenOptions;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use clap::Args;
use tonic::transport::{Certificate, ClientTlsConfig, Identity, ServerTlsConfig};

use crate::error::FleetError;

/// The name in each certificate. Members have any address; the certificate itself is what proves.
const NAME: &str = "cairn-fleet";

/// A key that was read.
#[derive(Clone)]
pub(crate) struct ClusterKey {
    /// Certificate and private key.
    pem: Vec<u8>,
}

/// Make the key of a cluster
///
/// Copy the file to each machine that runs a scheduler, an executor or a question with --on, and
/// give it there with --cluster-key. Everyone who has it can read all files that the executors can
/// read.
#[derive(Args)]
pub(crate) struct MakeKey {
    /// The new file
    file: PathBuf,
}

impl MakeKey {
    pub(crate) fn run(&self) -> Result<u8, FleetError> {
        let failed = |error: &dyn std::fmt::Display| FleetError::file(&self.file, error);
        let made = rcgen::generate_simple_self_signed([NAME.to_owned()]).map_err(|error| failed(&error))?;
        let pem = made.cert.pem() + &made.signing_key.serialize_pem();
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&self.file)
            .map_err(|error| failed(&error))?;
        file.write_all(pem.as_bytes()).and_then(|()| file.sync_all()).map_err(|error| failed(&error))?;
        Ok(0)
    }
}

impl ClusterKey {
    /// Reads a key.
    pub(super) fn read(path: &Path) -> Result<Self, FleetError> {
        /// Far more than certificate and key have.
        const MOST_BYTES: u64 = 1 << 20;
        let failed = |error: std::io::Error| FleetError::file(path, error);
        let file = std::fs::File::open(path).map_err(failed)?;
        if file.metadata().map_err(failed)?.permissions().mode() & 0o077 != 0 {
            return Err(FleetError::file(path, "other users can read this key; run `chmod 600` on it"));
        }
        let mut pem = Vec::new();
        file.take(MOST_BYTES).read_to_end(&mut pem).map_err(failed)?;
        let has = |part: &[u8]| pem.windows(part.len()).any(|window| window == part);
        if !has(b"-----BEGIN CERTIFICATE-----") || !has(b"PRIVATE KEY-----") {
            return Err(FleetError::file(path, "no key of a cluster; `cairn fleet key` makes one"));
        }
        // Another part of the program may have chosen, and any choice is right.
        let _ = tokio_rustls::rustls::crypto::ring::default_provider().install_default();
        Ok(Self { pem })
    }

    fn certificate(&self) -> Certificate {
        Certificate::from_pem(&self.pem)
    }

    fn identity(&self) -> Identity {
        Identity::from_pem(&self.pem, &self.pem)
    }

    pub(super) fn of_server(&self) -> ServerTlsConfig {
        ServerTlsConfig::new().identity(self.identity()).client_ca_root(self.certificate())
    }

    pub(super) fn of_client(&self) -> ClientTlsConfig {
        ClientTlsConfig::new().ca_certificate(self.certificate()).identity(self.identity()).domain_name(NAME)
    }
}
