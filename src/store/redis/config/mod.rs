//! The configuration of a store's connections.

mod build;
mod redis_config;
mod sentinel;
#[cfg(feature = "redis-tls")]
mod tls;
mod url;

pub use self::redis_config::RedisConfig;
