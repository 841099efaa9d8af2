//! Whether there is room.

use std::time::Duration;

use crate::algorithm::Availability;
use crate::time;

/// Whether a limit has room for a cost.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Verdict {
    /// There is room. The request goes on after `delay`, which only a
    /// [`LeakyBucketQueue`](crate::LeakyBucketQueue) makes longer than zero.
    Allow {
        /// How long the request waits before it goes on.
        delay: Duration,
    },
    /// There is no room.
    Deny {
        /// The shortest wait after which the same cost would have room, if nothing else comes:
        /// exact to the microsecond. `None` where no wait can help, as for a cost over the
        /// limit's capacity.
        retry_after: Option<Duration>,
    },
}

impl Verdict {
    /// There is room, at once.
    pub const NOW: Self = Self::Allow { delay: Duration::ZERO };

    /// What this and another limit's verdict on one request say together: room where both have
    /// room, after the longer delay; or else the longer wait of those that deny.
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

    /// There is room.
    #[must_use]
    pub const fn is_allowed(&self) -> bool {
        matches!(self, Self::Allow { .. })
    }
}

impl From<Availability> for Verdict {
    fn from(availability: Availability) -> Self {
        match availability {
            Availability::Now { delay, .. } => Self::Allow { delay: time::micros(delay) },
            Availability::After(after) => Self::Deny { retry_after: Some(time::micros(after)) },
            Availability::Never => Self::Deny { retry_after: None },
        }
    }
}
