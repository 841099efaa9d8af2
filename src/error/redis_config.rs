//! Invalid configurations of a Redis store.

use std::fmt;
use std::time::Duration;

/// An invalid setting of a [`RedisConfig`](crate::RedisConfig).
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum RedisConfigError {
    Url {
        reason: String,
    },
    /// A Cluster without URLs.
    NoSeeds,
    /// A Unix socket as a node of a Cluster.
    ClusterAddress {
        address: String,
    },
    Connections {
        connections: usize,
    },
    QueueCapacity,
    Timeout {
        setting: &'static str,
        timeout: Duration,
    },
    #[cfg(not(feature = "redis-tls"))]
    TlsFeature,
    #[cfg(feature = "redis-tls")]
    UnusedCertificates,
    #[cfg(feature = "redis-tls")]
    NoCertificate {
        setting: &'static str,
    },
    #[cfg(feature = "redis-tls")]
    Certificates {
        reason: String,
    },
    NoSentinel,
    SentinelSchemes,
    SentinelCredentials,
    SentinelDatabase,
    /// The client library rejects the configuration.
    Client {
        reason: String,
    },
}

impl fmt::Display for RedisConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Url { reason } => {
                f.write_str("the URL of Redis is invalid: write redis://host:port, or rediss:// for TLS")?;
                return write!(f, ": {reason}");
            }
            Self::NoSeeds => {
                return f.write_str("there is no URL: give that of one master of the Cluster, or better of several");
            }
            _ => f.write_str("the configuration of Redis is invalid: ")?,
        }
        match self {
            Self::Url { .. } | Self::NoSeeds => Ok(()),
            Self::ClusterAddress { address } => {
                write!(f, "a Cluster is not reachable through the Unix socket {address}: write redis://host:port")
            }
            Self::Connections { connections } => write!(f, "{connections} connections: use 1 to 1024"),
            Self::QueueCapacity => f.write_str("queue_capacity is 0: let at least 1 request wait"),
            Self::Timeout { setting, timeout } => write!(f, "{setting} is {timeout:?}: use at least 1 ms"),
            #[cfg(not(feature = "redis-tls"))]
            Self::TlsFeature => f.write_str(
                "a URL requires TLS, but tower-ratelimit was built without it: enable its feature `redis-tls`",
            ),
            #[cfg(feature = "redis-tls")]
            Self::UnusedCertificates => f.write_str("certificates are given, but no URL uses TLS: write rediss://"),
            #[cfg(feature = "redis-tls")]
            Self::NoCertificate { setting } => write!(
                f,
                "{setting} holds no certificate: use the text of a PEM file, which begins with -----BEGIN CERTIFICATE-----"
            ),
            #[cfg(feature = "redis-tls")]
            Self::Certificates { reason } => write!(f, "the certificates can't be read: {reason}"),
            Self::NoSentinel => f.write_str("there is no Sentinel: give at least one URL"),
            Self::SentinelSchemes => f.write_str("some Sentinels use TLS and some do not: use one scheme for all"),
            Self::SentinelCredentials => {
                f.write_str("the Sentinels' URLs have different users or passwords: use one for all")
            }
            Self::SentinelDatabase => f.write_str(
                "a Sentinel's URL has a database, but Sentinels have none: use `master_database` for the master's",
            ),
            Self::Client { reason } => f.write_str(reason),
        }
    }
}
