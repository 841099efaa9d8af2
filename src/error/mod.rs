//! Errors of configurations and of stores.

mod store;
pub(crate) mod validation;

pub use self::store::{Node, StoreError, StoreErrorKind};
pub use self::validation::ConfigError;
#[cfg(feature = "rules")]
pub(crate) use self::validation::Position;
pub(crate) use self::validation::{Fault, RulePosition, or_panic};
