//! Limits, and their replacement at runtime.
//!
//! | subject | modules |
//! | --- | --- |
//! | One limit | [`definition`], and its settings in [`on_missing_key`], [`sizes`], [`overage`], [`mode`], [`cost`], [`settle`] and [`metric_detail`] |
//! | The limits of a limiter | [`limits`], [`index`] |
//! | Live limits | [`live`], [`snapshot`], [`derived`], `watch` |

mod cost;
mod definition;
mod derived;
mod index;
mod limits;
mod live;
mod metric_detail;
mod mode;
mod on_missing_key;
mod overage;
mod settle;
mod sizes;
mod snapshot;
#[cfg(feature = "rules")]
mod watch;

pub(crate) use self::cost::CostRule;
pub use self::cost::CostTable;
pub use self::definition::Limit;
pub(crate) use self::derived::Derived;
#[cfg(feature = "rules")]
pub(crate) use self::index::{LimitIndex, MissingKeyPolicy, OnMatch};
pub(crate) use self::index::{Match, PendingMatches};
pub(crate) use self::limits::{Limits, check_needs_no_request};
pub use self::live::LiveLimits;
pub use self::on_missing_key::OnMissingKey;
pub(crate) use self::snapshot::LimitsSnapshot;
#[cfg(feature = "rules")]
pub(crate) use self::watch::{Apply, Document};
