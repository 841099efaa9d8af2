//! Whether there is room, and what is left.

use std::time::Duration;

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

/// [`Verdict`] of one limit, in µs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Room {
    /// `over`: it reaches into the limit's overage.
    Now {
        delay: u128,
        over: bool,
    },
    After(u128),
    Never,
}

impl Room {
    pub(crate) const NOW: Self = Self::Now { delay: 0, over: false };

    pub(crate) const fn is_now(&self) -> bool {
        matches!(self, Self::Now { .. })
    }

    pub(crate) const fn is_after(&self) -> bool {
        matches!(self, Self::After(_))
    }
}

impl From<Room> for Verdict {
    fn from(room: Room) -> Self {
        match room {
            Room::Now { delay, .. } => Self::Allow { delay: time::micros(delay) },
            Room::After(after) => Self::Deny { retry_after: Some(time::micros(after)) },
            Room::Never => Self::Deny { retry_after: None },
        }
    }
}

/// What is left of a limit for one key, at one instant. In µs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Standing {
    pub(crate) remaining: u64,
    pub(crate) more_after: Option<u128>,
    pub(crate) reset_after: u128,
}

impl Standing {
    pub(crate) const fn untouched(capacity: u64) -> Self {
        Self { remaining: capacity, more_after: None, reset_after: 0 }
    }
}
