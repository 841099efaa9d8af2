//! Parses the URLs of servers.

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisConnectionInfo};

use crate::error::ConfigError;
use crate::store::redis::error::Fault;

#[derive(Clone, PartialEq)]
pub(super) struct Credentials {
    pub(super) user: String,
    pub(super) password: String,
}

pub(super) fn with_credentials(
    settings: RedisConnectionInfo,
    credentials: Option<&Credentials>,
) -> RedisConnectionInfo {
    match credentials {
        Some(Credentials { user, password }) => settings.set_username(user).set_password(password),
        None => settings,
    }
}

pub(super) fn parse(url: &str) -> Result<ConnectionInfo, Fault> {
    let scheme = url.split(':').next().unwrap_or_default().to_ascii_lowercase();
    if scheme == "rediss" || scheme == "valkeys" {
        check_tls_feature()?;
    }
    url.into_connection_info().map_err(|error| {
        Fault::Setting(ConfigError::new(format!(
            "the URL of Redis is invalid: write redis://host:port, or rediss:// for TLS: {error}"
        )))
    })
}

/// Returns an error unless the crate was built with TLS.
pub(super) fn check_tls_feature() -> Result<(), Fault> {
    #[cfg(feature = "redis-tls")]
    return Ok(());
    #[cfg(not(feature = "redis-tls"))]
    Err(Fault::setting("a URL requires TLS, but tower-ratelimit was built without it: enable its feature `redis-tls`"))
}

pub(super) fn uses_tls(info: &ConnectionInfo) -> bool {
    matches!(info.addr(), ConnectionAddr::TcpTls { .. })
}

pub(super) fn credentials_of(info: &ConnectionInfo) -> Option<Credentials> {
    let settings = info.redis_settings();
    let password = settings.password()?.to_owned();
    Some(Credentials { user: settings.username().unwrap_or("default").to_owned(), password })
}

/// Returns the address of a URL, without its credentials.
pub(super) fn address(url: &str) -> String {
    parse(url).map_or_else(|_| "an unreadable URL".to_owned(), |info| info.addr().to_string())
}
