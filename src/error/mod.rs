//! Errors of configurations and of stores.

mod config;
mod fault;
mod message;
#[cfg(feature = "redis")]
mod redis_config;
mod rule_position;
mod store;

pub use self::config::ConfigError;
pub(crate) use self::config::{ConfigErrorKind, or_panic};
pub(crate) use self::fault::Fault;
#[cfg(feature = "redis")]
pub(crate) use self::redis_config::RedisConfigError;
pub(crate) use self::rule_position::RulePosition;
pub use self::store::{StoreError, StoreErrorKind};
