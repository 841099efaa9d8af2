//! Creates clients that get the address of a master from Sentinels.

use redis::sentinel::{SentinelClient, SentinelNodeConnectionInfo, SentinelServerType};
use redis::{ConnectionInfo, RedisConnectionInfo, TlsMode};
#[cfg(feature = "redis-tls")]
use redis::{TlsCertificates, sentinel::SentinelClientBuilder};

use crate::store::redis::connector::tcp_settings;
use crate::store::redis::error::Fault;

/// Creates a client that gets the address of the master `name` from `sentinels`, and connects to it with these
/// `settings`.
pub(super) fn client(
    name: &str,
    sentinels: Vec<ConnectionInfo>,
    settings: RedisConnectionInfo,
    uses_tls: bool,
) -> Result<SentinelClient, Fault> {
    let mut master =
        SentinelNodeConnectionInfo::default().set_redis_connection_info(settings).set_tcp_settings(tcp_settings());
    if uses_tls {
        master = master.set_tls_mode(TlsMode::Secure);
    }
    // Without TLS, redis-rs requires a `String`.
    let client = SentinelClient::build(sentinels, String::from(name), Some(master), SentinelServerType::Master);
    client.map_err(Fault::setting)
}

/// Creates a client like [`client`], for a master that uses TLS with custom certificates.
///
/// Only the builder accepts certificates, and it cannot turn off the `CLIENT SETINFO` that redis-rs sends.
#[cfg(feature = "redis-tls")]
pub(super) fn client_with_certificates(
    name: &str,
    sentinels: &[ConnectionInfo],
    settings: &RedisConnectionInfo,
    certificates: TlsCertificates,
) -> Result<SentinelClient, Fault> {
    let addresses = sentinels.iter().map(|sentinel| sentinel.addr().clone());
    let mut builder = SentinelClientBuilder::new(addresses, name, SentinelServerType::Master)
        .map_err(Fault::Url)?
        .set_client_to_redis_db(settings.db())
        .set_client_to_redis_protocol(settings.protocol())
        .set_client_to_redis_tls_mode(TlsMode::Secure)
        .set_client_to_redis_tcp_settings(tcp_settings());
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
    let client = builder.set_client_to_redis_certificates(certificates).build();
    client.map_err(Fault::setting)
}
