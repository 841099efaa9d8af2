//! Limits, and their replacement at runtime.
//!
//! | subject | modules |
//! | --- | --- |
//! | One limit | [`definition`], and its settings in [`on_missing_key`], [`sizes`], [`overage`], [`mode`] and [`settle`] |
//! | The limits of a limiter | [`limits`], [`index`] |
//! | Live limits | [`live`], `watch` |

mod definition;
mod index;
mod limits;
mod live;
mod mode;
mod on_missing_key;
mod overage;
mod settle;
mod sizes;
#[cfg(feature = "rules")]
mod watch;

pub use self::definition::Limit;
#[cfg(feature = "rules")]
pub(crate) use self::index::{LimitIndex, MissingKeyPolicy, OnMatch};
pub(crate) use self::index::{Match, PendingMatches};
pub(crate) use self::limits::{Limits, check_needs_no_request};
pub(crate) use self::live::Live;
pub use self::live::LiveLimits;
pub use self::on_missing_key::OnMissingKey;
#[cfg(feature = "rules")]
pub(crate) use self::watch::{Apply, Document};
