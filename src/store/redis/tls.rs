//! The certificates of TLS connections.

use redis::sentinel::{SentinelClient, SentinelClientBuilder, SentinelServerType};
use redis::{Client, ClientTlsConfig, ConnectionAddr, ConnectionInfo, RedisConnectionInfo, TlsCertificates, TlsMode};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use super::connector::tcp_settings;
use super::error::Fault;

/// Certificates in PEM. Without `roots`, those of the system apply.
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

    /// Adds the certificates to a connection that uses TLS.
    pub(super) fn apply(&self, info: ConnectionInfo) -> Result<ConnectionInfo, Fault> {
        if !matches!(info.addr(), ConnectionAddr::TcpTls { .. }) {
            return Ok(info);
        }
        let client = Client::build_with_tls(info, self.parse()?)
            .map_err(|error| Fault::setting(format_args!("the certificates can't be read: {error}")))?;
        Ok(client.get_connection_info().clone())
    }

    /// Creates a client of Sentinels, for a master that uses TLS with these certificates.
    ///
    /// Only the builder accepts certificates, and it cannot turn off the `CLIENT SETINFO` that redis-rs sends.
    pub(super) fn sentinel_client(
        &self,
        master: &str,
        sentinels: &[ConnectionInfo],
        settings: &RedisConnectionInfo,
    ) -> Result<SentinelClient, Fault> {
        let addresses = sentinels.iter().map(|sentinel| sentinel.addr().clone());
        let mut builder = SentinelClientBuilder::new(addresses, master, SentinelServerType::Master)
            .map_err(Fault::invalid_url)?
            .set_client_to_redis_db(settings.db())
            .set_client_to_redis_protocol(settings.protocol())
            .set_client_to_redis_tls_mode(TlsMode::Secure)
            .set_client_to_redis_tcp_settings(tcp_settings())
            .set_client_to_redis_certificates(self.parse()?);
        if let Some(user) = settings.username() {
            builder = builder.set_client_to_redis_username(user);
        }
        if let Some(password) = settings.password() {
            builder = builder.set_client_to_redis_password(password);
        }
        // `RedisConfig` has checked that all Sentinels have the same credentials.
        let sentinel_settings = sentinels.first().map(ConnectionInfo::redis_settings);
        if let Some(user) = sentinel_settings.and_then(RedisConnectionInfo::username) {
            builder = builder.set_client_to_sentinel_username(user);
        }
        if let Some(password) = sentinel_settings.and_then(RedisConnectionInfo::password) {
            builder = builder.set_client_to_sentinel_password(password);
        }
        builder.build().map_err(Fault::setting)
    }

    /// Converts the certificates for redis-rs, which would ignore invalid ones.
    fn parse(&self) -> Result<TlsCertificates, Fault> {
        let client = self.client.as_ref();
        let given = [("ca_certificates", self.roots.as_ref()), ("client_certificate", client.map(|(cert, _)| cert))];
        for (setting, pem) in given.into_iter().filter_map(|(setting, pem)| Some((setting, pem?))) {
            if !matches!(CertificateDer::pem_slice_iter(pem).next(), Some(Ok(_))) {
                return Err(Fault::setting(format_args!(
                    "{setting} holds no certificate: use the text of a PEM file, which begins with \
                     -----BEGIN CERTIFICATE-----"
                )));
            }
        }
        Ok(TlsCertificates {
            client_tls: client.cloned().map(|(client_cert, client_key)| ClientTlsConfig { client_cert, client_key }),
            root_cert: self.roots.clone(),
        })
    }
}

/// Installs *ring* as the process' cryptography provider, unless the application has installed one. Without an
/// installed provider, rustls panics if dependencies enable two of them.
pub(super) fn install_provider() {
    if CryptoProvider::get_default().is_none() {
        // Fails if another thread has just installed one.
        let _ = ring::default_provider().install_default();
    }
}
