//! A counter for the current window, and a weighted one for the previous window.

use super::macros::window_constructors;
use super::mul_div::{mul_div, mul_div_ceil};
use super::rate_algorithm::{Availability, QuotaSnapshot, RateAlgorithm};
use super::settings::{Settings, window_settings};
use super::state::{ChargeMark, CompactState};
use super::state_period::StatePeriod;

/// At most `limit` tokens in a sliding window of `period`, estimated from two aligned ones: the count of the current
/// window, plus the count of the previous window times the share of it that the sliding window still covers.
///
/// - **Admits at most** `limit` tokens in any period if the requests of the previous window were evenly spread, which
///   the estimate assumes. In practice it is close to that, and never more than twice.
/// - **Keeps** 24 bytes per key: two counts, and their window.
/// - **Choose it** when the burst of a [`FixedWindow`](crate::FixedWindow) at its boundary would hurt, and a
///   [`SlidingLog`](crate::SlidingLog) would grow too large.
///
#[cfg_attr(doc, doc = include_str!("../guide/diagrams/sliding_window_counter.svg"))]
///
/// ```
/// use tower_ratelimit::{Rounding, SlidingWindowCounter};
///
/// let strict = SlidingWindowCounter::per_minute(100);
/// let lenient = SlidingWindowCounter::per_minute(100).rounding(Rounding::Down);
/// # let _ = (strict, lenient);
/// ```
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct SlidingWindowCounter {
    pub(crate) limit: u32,
    pub(crate) period: u64,
    pub(crate) rounding: Rounding,
}

/// The direction in which a [`SlidingWindowCounter`] rounds the weighted count of the previous window.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub enum Rounding {
    /// Counts a fraction of a token as a whole one: never admits more than the estimate.
    #[default]
    Up,
    /// Drops a fraction of a token.
    Down,
}

window_constructors!(SlidingWindowCounter, "a sliding window of", "a sliding");

/// The counts of the current window, which begins at `start`, and of the previous one.
///
/// The state encodes them as the end of the window after the current one, and both counts of 32 bits. A window in which
/// nothing was charged leaves no trace: the previous window is then encoded as the current one.
#[derive(Clone, Copy)]
struct Windows {
    start: u64,
    previous: u64,
    current: u64,
}

impl SlidingWindowCounter {
    const fn from_checked(limit: u32, period: u64) -> Self {
        Self { limit, period, rounding: Rounding::Up }
    }

    /// Sets the rounding. Defaults to [`Rounding::Up`].
    #[must_use]
    pub const fn rounding(mut self, rounding: Rounding) -> Self {
        self.rounding = rounding;
        self
    }

    /// Returns the windows that count at `now`, and the time elapsed in the current one. If the clock has stepped back
    /// before the windows of the state, no time has elapsed in them.
    fn windows(&self, state: &CompactState, now: u64) -> (Windows, u64) {
        let start = now - now % self.period;
        let [previous, current] = [state.detail >> 32, state.detail & u64::from(u32::MAX)];
        if state.expires_at <= start {
            (Windows { start, previous: 0, current: 0 }, now - start)
        } else if state.expires_at <= start + self.period {
            (Windows { start, previous: current, current: 0 }, now - start)
        } else {
            let start = start.max(state.expires_at.saturating_sub(2 * self.period));
            (Windows { start, previous, current }, now.saturating_sub(start))
        }
    }

    fn encode(&self, windows: Windows) -> CompactState {
        match windows {
            Windows { previous: 0, current: 0, .. } => CompactState::UNUSED,
            Windows { start, previous, current: 0 } => {
                CompactState { expires_at: start + self.period, at: 0, detail: previous }
            }
            Windows { start, previous, current } => {
                CompactState { expires_at: start + 2 * self.period, at: 0, detail: previous << 32 | current }
            }
        }
    }

    /// Returns the tokens that count when `elapsed` µs of the current window have passed.
    fn used(&self, windows: Windows, elapsed: u64) -> u64 {
        let covered = self.period - elapsed;
        let weighted = match self.rounding {
            Rounding::Up => mul_div_ceil(windows.previous, covered, self.period),
            Rounding::Down => mul_div(windows.previous, covered, self.period),
        };
        weighted + windows.current
    }

    /// Returns the first instant at which at most `most` tokens count.
    fn used_at_most(&self, most: u64, windows: Windows) -> u64 {
        match most.checked_sub(windows.current) {
            Some(most) => windows.start + self.faded_to(most, windows.previous),
            None => windows.start + self.period + self.faded_to(most, windows.current),
        }
    }

    /// Returns how far into the next window a `count` is weighted as `most` or less, in µs.
    fn faded_to(&self, most: u64, count: u64) -> u64 {
        if count == 0 {
            return 0;
        }
        let covered = match self.rounding {
            Rounding::Up => mul_div(most, self.period, count),
            Rounding::Down => mul_div_ceil(most + 1, self.period, count) - 1,
        };
        self.period - covered.min(self.period)
    }

    fn snapshot_of(&self, windows: Windows, elapsed: u64, now: u64) -> QuotaSnapshot {
        let used = self.used(windows, elapsed).min(self.capacity());
        let more_after = used.checked_sub(1).map(|less| self.used_at_most(less, windows) - now);
        let unused_at = match windows {
            Windows { previous: 0, current: 0, .. } => now,
            Windows { start, current: 0, .. } => start + self.period,
            Windows { start, .. } => start + 2 * self.period,
        };
        QuotaSnapshot { remaining: self.capacity() - used, more_after, reset_after: unused_at - now }
    }
}

impl Settings for SlidingWindowCounter {
    fn state_period(&self) -> StatePeriod {
        StatePeriod::Micros(self.period)
    }

    window_settings!();
}

impl RateAlgorithm<CompactState> for SlidingWindowCounter {
    fn peek(&self, state: &CompactState, now: u64, cost: u64) -> Availability {
        let (windows, elapsed) = self.windows(state, now);
        match self.capacity().checked_sub(cost) {
            None => Availability::Never,
            Some(most) if self.used(windows, elapsed) <= most => Availability::NOW,
            Some(most) => Availability::After(self.used_at_most(most, windows) - now),
        }
    }

    /// The mark is the state that the charge leaves.
    fn commit(&self, state: &mut CompactState, now: u64, cost: u64) -> (ChargeMark, QuotaSnapshot) {
        let (mut windows, elapsed) = self.windows(state, now);
        windows.current += cost;
        *state = self.encode(windows);
        (ChargeMark(*state), self.snapshot_of(windows, elapsed, now))
    }

    fn snapshot(&self, state: &CompactState, now: u64) -> QuotaSnapshot {
        let (windows, elapsed) = self.windows(state, now);
        self.snapshot_of(windows, elapsed, now)
    }

    fn refund(&self, state: &mut CompactState, mark: ChargeMark, now: u64, cost: u64) {
        let (mut windows, _) = self.windows(state, now);
        let charged = mark.0.expires_at.saturating_sub(2 * self.period);
        if charged == windows.start {
            windows.current = windows.current.saturating_sub(cost);
        } else if charged + self.period == windows.start {
            windows.previous = windows.previous.saturating_sub(cost);
        } else {
            return;
        }
        *state = self.encode(windows);
    }
}
