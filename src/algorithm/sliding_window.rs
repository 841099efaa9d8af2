//! A counter for each part of the last period.

use std::time::Duration;

use super::log::{Log, Span};
use super::shape::{decided_by, window_constructors};
use crate::error::{ConfigError, Fault};

/// At most `limit` tokens in the last `period`, which is cut into buckets: the present one, begun
/// but not ended, and those before it.
///
/// - **Admits at most**: `limit` in any span of `period` less one bucket.
/// - **Remembers**: 48 bytes a key, 12 for each further bucket in which something was allowed, and up to as
///   much as that again for room to grow.
/// - **Choose it when** a window's edges would hurt and a [`SlidingLog`](crate::SlidingLog) would
///   remember too much: the more buckets, the closer to the log, and the more it remembers.
///
/// ```
/// use tower_ratelimit::SlidingWindow;
///
/// // 100 an hour, counted by the minute.
/// let hourly = SlidingWindow::per_hour(100).buckets(60);
/// # let _ = hourly;
/// ```
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct SlidingWindow {
    limit: u32,
    period: u64,
    buckets: u32,
}

window_constructors!(SlidingWindow, "a sliding");

impl SlidingWindow {
    const fn of(limit: u32, period: u64) -> Self {
        let mut buckets = 10;
        while !period.is_multiple_of(buckets as u64) {
            buckets -= 1;
        }
        Self { limit, period, buckets }
    }

    /// Into how many buckets the period is cut: 10 at first, or fewer where the period does not
    /// divide into 10. One makes it a [`FixedWindow`](crate::FixedWindow).
    ///
    /// # Panics
    ///
    /// When the period does not divide into that many buckets of whole microseconds; at compile
    /// time in a constant. [`try_buckets`](Self::try_buckets) returns an error instead.
    #[must_use]
    #[track_caller]
    pub const fn buckets(mut self, buckets: u32) -> Self {
        self.buckets = crate::quota::checked!(self.divides(buckets));
        self
    }

    /// Like [`buckets`](Self::buckets), for a number that is not known to be right.
    ///
    /// # Errors
    ///
    /// When the period does not divide into that many buckets of whole microseconds.
    pub fn try_buckets(mut self, buckets: u32) -> Result<Self, ConfigError> {
        self.buckets = self.divides(buckets)?;
        Ok(self)
    }

    const fn divides(&self, buckets: u32) -> Result<u32, Fault> {
        if buckets == 0 || !self.period.is_multiple_of(buckets as u64) {
            return Err(Fault::Buckets { period: Duration::from_micros(self.period), buckets });
        }
        Ok(buckets)
    }

    pub(super) const fn parts(&self) -> u32 {
        self.buckets
    }

    #[inline]
    pub(crate) fn span(&self) -> Span {
        Span { limit: self.capacity(), width: self.period / u64::from(self.buckets), period: self.period }
    }
}

decided_by!(SlidingWindow, span over Log);
