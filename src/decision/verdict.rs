//! Whether a limit, or all limits of a request, have capacity.

use std::time::Duration;

use crate::algorithm::NEVER;

/// The wait of a charge that no store has answered. It denies the request, in case that it is not checked.
pub(super) const UNANSWERED: u64 = NEVER - 1;

/// Whether a limit has capacity for a cost.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Verdict {
    /// The limit has capacity.
    Allow {
        /// The time for which the request waits before it proceeds. Only a
        /// [`LeakyBucketQueue`](crate::LeakyBucketQueue) delays requests.
        delay: Duration,
    },
    /// The limit has no capacity.
    Deny {
        /// The shortest wait after which the same cost would be allowed if no other request arrived, exact to the
        /// microsecond. `None` if waiting cannot help, as for a cost beyond the limit's capacity.
        retry_after: Option<Duration>,
    },
}

impl Verdict {
    /// Capacity without a delay.
    pub const NOW: Self = Self::Allow { delay: Duration::ZERO };

    /// Creates the verdict of a limit that has capacity after `wait` (in µs), or [`NEVER`], and then delays a request.
    pub(crate) const fn of(wait: u64, delay: u64) -> Self {
        match wait {
            0 => Self::Allow { delay: Duration::from_micros(delay) },
            UNANSWERED.. => Self::Deny { retry_after: None },
            _ => Self::Deny { retry_after: Some(Duration::from_micros(wait)) },
        }
    }

    /// Combines the verdicts of two limits on one request: allowed after the longer delay if both allow it, or else the
    /// longer wait of those that deny.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Allow { delay: one }, Self::Allow { delay: other }) => Self::Allow { delay: one.max(other) },
            (Self::Deny { retry_after: one }, Self::Deny { retry_after: other }) => {
                Self::Deny { retry_after: one.zip(other).map(|(one, other)| one.max(other)) }
            }
            (denied @ Self::Deny { .. }, _) | (_, denied @ Self::Deny { .. }) => denied,
        }
    }

    /// Returns whether the limit has capacity.
    #[must_use]
    pub const fn is_allowed(&self) -> bool {
        matches!(self, Self::Allow { .. })
    }

    /// Returns the time for which an allowed request waits before it proceeds. Zero if the limit has no capacity.
    #[must_use]
    pub const fn delay(&self) -> Duration {
        if let Self::Allow { delay } = *self { delay } else { Duration::ZERO }
    }

    /// Returns the wait after which a denied request would be allowed. `None` if the limit has capacity, or if waiting
    /// cannot help.
    #[must_use]
    pub const fn retry_after(&self) -> Option<Duration> {
        if let Self::Deny { retry_after } = *self { retry_after } else { None }
    }
}
