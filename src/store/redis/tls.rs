//! TLS: who is trusted, and who we are.

use std::fmt;

use deadpool_redis::redis::{Client, ClientTlsConfig, ConnectionAddr, ConnectionInfo, TlsCertificates};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use super::error::Fault;

/// Certificates in PEM. Those that are not given are the system's roots, and none of ours.
#[derive(Clone, Default)]
pub(super) struct Certificates {
    pub(super) roots: Option<Vec<u8>>,
    /// The certificate with its chain, and its key.
    pub(super) client: Option<(Vec<u8>, Vec<u8>)>,
}

impl Certificates {
    pub(super) fn is_empty(&self) -> bool {
        self.roots.is_none() && self.client.is_none()
    }

    /// Has a connection that speaks TLS use them.
    pub(super) fn apply(&self, info: ConnectionInfo) -> Result<ConnectionInfo, Fault> {
        if !matches!(info.addr(), ConnectionAddr::TcpTls { .. }) {
            return Ok(info);
        }
        let client = Client::build_with_tls(info, self.parse()?);
        let client =
            client.map_err(|error| Fault::Setting(format!("the certificates can't be read: {error}").into()))?;
        Ok(client.get_connection_info().clone())
    }

    /// As redis-rs takes them, which skips what is no certificate.
    pub(super) fn parse(&self) -> Result<TlsCertificates, Fault> {
        let client = self.client.as_ref();
        let given = [("ca_certificates", self.roots.as_ref()), ("client_certificate", client.map(|(cert, _)| cert))];
        for (name, pem) in given.into_iter().filter_map(|(name, pem)| Some((name, pem?))) {
            if !matches!(CertificateDer::pem_slice_iter(pem).next(), Some(Ok(_))) {
                let what = format!(
                    "{name} holds no certificate: hand in the text of a PEM file, -----BEGIN CERTIFICATE-----…"
                );
                return Err(Fault::Setting(what.into()));
            }
        }
        Ok(TlsCertificates {
            client_tls: self
                .client
                .clone()
                .map(|(client_cert, client_key)| ClientTlsConfig { client_cert, client_key }),
            root_cert: self.roots.clone(),
        })
    }
}

/// Sees to it that the process has cryptography, as redis-rs takes the process' own: what the
/// application installed, or else ring. Left to itself, rustls panics where another dependency has
/// it built with a second one.
pub(super) fn provide() {
    if CryptoProvider::get_default().is_none() {
        // Someone may just have been faster.
        let _ = ring::default_provider().install_default();
    }
}

impl fmt::Debug for Certificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificates")
            .field("roots", &self.roots.is_some())
            .field("client", &self.client.is_some())
            .finish()
    }
}
