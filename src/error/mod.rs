//! Errors of configurations and of stores.

mod config;
mod fault;
mod message;
mod rule_position;
mod store;

pub use self::config::ConfigError;
#[cfg(feature = "time-zones")]
pub(crate) use self::config::ConfigErrorKind;
pub(crate) use self::config::or_panic;
pub(crate) use self::fault::Fault;
pub(crate) use self::rule_position::RulePosition;
pub use self::store::{StoreError, StoreErrorKind};
