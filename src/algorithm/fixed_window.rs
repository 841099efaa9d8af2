//! A counter for each aligned window.

use super::shape::window_constructors;
use super::windows::Windows;
use crate::record::Record;

/// At most `limit` tokens in each window of `period`. Windows start at the multiples of `period`
/// since the Unix epoch, so that a window of a day is a day of UTC. For months, or days elsewhere, there is
/// [`CalendarWindow`](crate::CalendarWindow).
///
/// - **Admits at most**: `limit` in a window; twice that across the edge of two, if a client
///   spends one window's tokens at its end and the next one's at its start.
/// - **Remembers**: 16 bytes a key: the window and its count.
/// - **Choose it when** people think in windows ("10,000 a day"), or when cost matters most and a
///   burst at the edge does no harm.
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

window_constructors!(FixedWindow, "each aligned");

impl FixedWindow {
    const fn of(limit: u32, period: u64) -> Self {
        Self { limit, period }
    }
}

impl Windows for FixedWindow {
    #[inline(always)]
    fn most(&self) -> u64 {
        self.capacity()
    }

    #[inline(always)]
    fn current(&self, record: &Record, now: u64) -> (u64, u64) {
        let end = now - now % self.period + self.period;
        if record.until < end {
            (end, 0)
        } else {
            // This window, or a later one after a clock stepped back.
            (record.until, record.detail)
        }
    }
}
