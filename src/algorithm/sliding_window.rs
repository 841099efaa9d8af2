//! A counter for each part of the last period.

use std::time::Duration;

use super::log::LogWindow;
use super::macros::window_constructors;
use super::settings::{Settings, window_settings};
use super::state_period::StatePeriod;
use crate::error::{ConfigError, Fault};

/// At most `limit` tokens in a sliding window of `period`, which is divided into buckets: the current one, and those
/// before it.
///
/// - **Admits at most** `limit` tokens in any span of `period` less one bucket.
/// - **Keeps** 48 bytes per key, 12 for each further bucket in which a request was allowed, and up to twice as much
///   while it grows.
/// - **Choose it** when the boundary of a [`FixedWindow`](crate::FixedWindow) would hurt, and a
///   [`SlidingLog`](crate::SlidingLog) would grow too large. The more buckets, the closer to the log, and the larger.
///
#[cfg_attr(doc, doc = include_str!("../guide/diagrams/sliding_window.svg"))]
///
/// ```
/// use tower_ratelimit::SlidingWindow;
///
/// // 100 per hour, counted by the minute.
/// let hourly = SlidingWindow::per_hour(100).buckets(60);
/// # let _ = hourly;
/// ```
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct SlidingWindow {
    limit: u32,
    pub(super) period: u64,
    pub(super) buckets: u32,
}

window_constructors!(SlidingWindow, "a sliding window of", "a sliding");

impl SlidingWindow {
    const fn from_checked(limit: u32, period: u64) -> Self {
        let mut buckets = 10;
        while !period.is_multiple_of(buckets as u64) {
            buckets -= 1;
        }
        Self { limit, period, buckets }
    }

    /// Sets the number of buckets, from 1. Defaults to 10, or the largest smaller number that divides the period. With
    /// one bucket, the limit decides as a [`FixedWindow`](crate::FixedWindow).
    ///
    /// # Panics
    ///
    /// Panics if the period does not divide into that many buckets of whole microseconds. In a constant, this is a
    /// compile-time error. [`try_buckets`](Self::try_buckets) returns an error instead.
    #[must_use]
    #[track_caller]
    pub const fn buckets(mut self, buckets: u32) -> Self {
        self.buckets = crate::validation::checked!(self.checked_buckets(buckets));
        self
    }

    /// Fallible version of [`buckets`](Self::buckets).
    ///
    /// # Errors
    ///
    /// Returns an error if the period does not divide into that many buckets of whole microseconds.
    pub fn try_buckets(mut self, buckets: u32) -> Result<Self, ConfigError> {
        self.buckets = self.checked_buckets(buckets)?;
        Ok(self)
    }

    const fn checked_buckets(&self, buckets: u32) -> Result<u32, Fault> {
        if buckets == 0 || !self.period.is_multiple_of(buckets as u64) {
            return Err(Fault::Buckets { period: Duration::from_micros(self.period), buckets });
        }
        Ok(buckets)
    }

    pub(super) fn log_window(&self) -> LogWindow {
        LogWindow { limit: self.capacity(), width: self.period / u64::from(self.buckets), period: self.period }
    }
}

impl Settings for SlidingWindow {
    fn state_period(&self) -> StatePeriod {
        StatePeriod::Buckets(self.period, self.buckets)
    }

    window_settings!();
}
