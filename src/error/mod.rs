//! Errors of configurations and of stores.

mod config;
mod fault;
mod message;
mod store;
pub(crate) mod validation;

pub use self::config::ConfigError;
pub(crate) use self::config::{RulePosition, or_panic};
pub(crate) use self::fault::Fault;
pub use self::store::{StoreError, StoreErrorKind};
