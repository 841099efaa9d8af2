//! The verdict of a limit.

use std::time::Duration;

use crate::algorithm::NEVER;

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
            NEVER => Self::Deny { retry_after: None },
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
}
