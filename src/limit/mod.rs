//! Limits: what applies to which requests, and how limits are replaced at runtime.

mod builder;
mod derived;
mod index;
mod limits;
mod live;
mod on_missing_key;
mod settle;
mod sizes;
mod threshold;
#[cfg(feature = "rules")]
mod watch;

pub use self::builder::Limit;
pub(crate) use self::derived::Derived;
pub(crate) use self::index::PendingMatches;
#[cfg(feature = "rules")]
pub(crate) use self::index::{LimitIndex, OnMatch};
pub(crate) use self::limits::{Limits, check_needs_no_request};
pub(crate) use self::live::LimitsSnapshot;
pub use self::live::LiveLimits;
#[cfg(feature = "rules")]
pub(crate) use self::live::Retired;
pub use self::on_missing_key::OnMissingKey;
#[cfg(feature = "rules")]
pub(crate) use self::watch::{Apply, Document};
