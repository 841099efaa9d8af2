//! Errors of configurations and of stores.

mod config;
mod store;
pub(crate) mod validation;

pub use self::config::ConfigError;
#[cfg(feature = "rules")]
pub(crate) use self::config::Position;
pub(crate) use self::config::{Fault, RulePosition, or_panic};
pub use self::store::{Node, StoreError, StoreErrorKind};
