//! Limits, and their replacement at runtime.
//!
//! | subject | modules |
//! | --- | --- |
//! | One limit | [`definition`], [`options`], [`lease`], [`cost`], [`spare_capacity`], [`body_end`] |
//! | The limits of a limiter | [`limits`] |
//! | Live limits | [`live`] |

mod body_end;
mod concurrency;
mod cost;
mod definition;
mod lease;
mod limits;
mod live;
mod options;
mod spare_capacity;

pub use self::body_end::BodyEnd;
pub(crate) use self::cost::CostRule;
pub use self::cost::CostTable;
#[cfg(feature = "rules")]
pub(crate) use self::definition::{IndexPosition, LimitAt, LimitIndex, OnMatch, Value, check_name};
pub use self::definition::{Limit, OnMissingKey, OnStoreError, Share};
pub(crate) use self::definition::{Match, Values};
pub(crate) use self::limits::{IndexedLimits, Limits, MAX_PER_REQUEST};
pub(crate) use self::live::Live;
pub use self::live::LiveLimits;
pub use self::spare_capacity::SpareCapacity;
