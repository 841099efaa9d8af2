//! A counter per aligned window.

use super::aligned_window::AlignedWindow;
use super::macros::window_constructors;
use super::settings::{Settings, window_settings};
use super::state::CompactState;
use super::state_period::StatePeriod;

/// At most `limit` tokens in each window of `period`. Windows are aligned to multiples of `period` since the Unix
/// epoch, so that a window of a day is a day in UTC. For months, or for days in other time zones, use a
/// [`CalendarWindow`](crate::CalendarWindow).
///
/// - **Admits at most** `limit` tokens per window, and twice that across a boundary, if a client spends one window at
///   its end and the next at its start.
/// - **Keeps** 24 bytes per key: the end of the window, and its count.
/// - **Choose it** for rules that are stated in windows ("10,000 a day"), or when cost matters most and a burst at a
///   boundary does no harm.
///
#[cfg_attr(doc, doc = include_str!("../guide/diagrams/fixed_window.svg"))]
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::FixedWindow;
///
/// let daily = FixedWindow::per_day(10_000);
/// assert_eq!(daily, FixedWindow::new(10_000, Duration::from_secs(86_400)));
/// ```
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct FixedWindow {
    pub(crate) limit: u32,
    pub(crate) period: u64,
}

window_constructors!(FixedWindow, "each aligned window of", "each");

impl FixedWindow {
    const fn from_checked(limit: u32, period: u64) -> Self {
        Self { limit, period }
    }
}

impl Settings for FixedWindow {
    fn state_period(&self) -> StatePeriod {
        StatePeriod::Micros(self.period)
    }

    window_settings!();
}

impl AlignedWindow for FixedWindow {
    fn limit(&self) -> u64 {
        self.capacity()
    }

    fn current(&self, state: &CompactState, now: u64) -> (u64, u64) {
        let end = now - now % self.period + self.period;
        if state.expires_at < end { (end, 0) } else { (state.expires_at, state.detail) }
    }
}
