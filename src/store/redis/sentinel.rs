//! Clients that ask Sentinels for a master.

use deadpool_redis::redis::sentinel::{SentinelClient, SentinelNodeConnectionInfo, SentinelServerType};
use deadpool_redis::redis::{ConnectionInfo, RedisConnectionInfo, TlsMode};
#[cfg(feature = "redis-tls")]
use deadpool_redis::redis::{TlsCertificates, sentinel::SentinelClientBuilder};

use super::error::Fault;

/// A client that asks `sentinels` for the master of this `name`, which it connects to with these `settings`.
pub(super) fn client(
    name: &str,
    sentinels: Vec<ConnectionInfo>,
    settings: RedisConnectionInfo,
    by_tls: bool,
) -> Result<SentinelClient, Fault> {
    let mut master = SentinelNodeConnectionInfo::default().set_redis_connection_info(settings);
    if by_tls {
        master = master.set_tls_mode(TlsMode::Secure);
    }
    // Without TLS, redis-rs takes no less than a `String`.
    let client = SentinelClient::build(sentinels, String::from(name), Some(master), SentinelServerType::Master);
    client.map_err(|error| Fault::Setting(error.to_string().into()))
}

/// The same, for a master that speaks TLS and certificates other than the system's.
///
/// Only the builder takes these, and it has no setting for the `CLIENT SETINFO` that redis-rs sends.
#[cfg(feature = "redis-tls")]
pub(super) fn client_with_certificates(
    name: &str,
    sentinels: &[ConnectionInfo],
    settings: &RedisConnectionInfo,
    certificates: TlsCertificates,
) -> Result<SentinelClient, Fault> {
    let addresses = sentinels.iter().map(|sentinel| sentinel.addr().clone());
    let mut builder = SentinelClientBuilder::new(addresses, name, SentinelServerType::Master)
        .map_err(Fault::url)?
        .set_client_to_redis_db(settings.db())
        .set_client_to_redis_protocol(settings.protocol())
        .set_client_to_redis_tls_mode(TlsMode::Secure);
    if let Some(user) = settings.username() {
        builder = builder.set_client_to_redis_username(user);
    }
    if let Some(password) = settings.password() {
        builder = builder.set_client_to_redis_password(password);
    }
    // All Sentinels have the same credentials.
    let sentinels_own = sentinels.first().map(ConnectionInfo::redis_settings);
    if let Some(user) = sentinels_own.and_then(RedisConnectionInfo::username) {
        builder = builder.set_client_to_sentinel_username(user);
    }
    if let Some(password) = sentinels_own.and_then(RedisConnectionInfo::password) {
        builder = builder.set_client_to_sentinel_password(password);
    }
    let client = builder.set_client_to_redis_certificates(certificates).build();
    client.map_err(|error| Fault::Setting(error.to_string().into()))
}
